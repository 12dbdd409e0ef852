"""A tunnel, its clients and a bad network between them, without threads, to test the protocol."""

import itertools
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from spark_channel.errors import ChannelLostError, ClientExpiredError
from spark_channel.tunnel import state_machine
from spark_channel.tunnel.client import (
    ChannelConnects,
    OpenChannel,
    StartChannel,
    Step,
    StopChannel,
)
from spark_channel.tunnel.records import (
    Channel,
    ChannelState,
    ChannelStatus,
    Client,
    ConnectState,
    TunnelState,
)

TIMEOUT = 300.0
MOST_SKEW = 400
BEATS = 3
"""Heartbeats of each client after which channels are shared evenly, whatever changed."""


def channels(base: int, stream: int = 1) -> dict[str, Channel]:
    """`base` full splits, and `stream` partitions of the feed that wait for them."""
    parents = tuple(f"base-{number}" for number in range(base))
    made = [
        Channel(each, place, {"split": {}}, token={"at": 0}) for place, each in enumerate(parents)
    ]
    made += [
        Channel(f"stream-{number}", base + number, {}, parents, token={"at": 0})
        for number in range(stream)
    ]
    return {channel.id: channel for channel in made}


@dataclass
class Pipeline:
    """One run of a channel by one client: it reads from its checkpoint on."""

    channel: Channel
    at: int
    sequence: int
    until: int | None = None
    stopping: bool = False


@dataclass
class SimulatedClient:
    id: str
    connects: ChannelConnects = field(default_factory=ChannelConnects)
    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    dials: list[str] = field(default_factory=list)
    skew: float = 0.0
    alive: bool = True
    expired: bool = False


@dataclass
class Request:
    client: str
    report: tuple[ChannelStatus, ...]


@dataclass
class Response:
    client: str
    answer: tuple[Channel, ...]


class World:
    """Everything that can happen, one method each."""

    def __init__(self, base: int, stream: int, records: int) -> None:
        self.now = 0.0
        self.records = records
        self.store = TunnelState(channels(base, stream))
        self.clients: dict[str, SimulatedClient] = {}
        self.requests: list[Request] = []
        self.responses: list[Response] = []
        self.seen: dict[str, set[int]] = {key: set() for key in self.store.channels}
        self.starts: dict[str, int] = dict.fromkeys(self.store.channels, 0)
        self.open_at: dict[tuple[str, int], str] = {}
        self.asked_back = 0
        self.names: dict[tuple[str, int], int] = {}
        self._ids = itertools.count()

    # --- the store ---

    def join(self) -> SimulatedClient:
        client = SimulatedClient(f"c{next(self._ids)}")
        self.clients[client.id] = client
        self._write(state_machine.connect(self.store, Client(client.id, timeout=TIMEOUT), self.now))
        return client

    def leave(self, client: SimulatedClient) -> None:
        """It ends as `TunnelClient.close` does: its pipelines first, then its place in the store."""
        client.alive = False
        client.pipelines.clear()
        self._write(state_machine.disconnect(self.store, client.id))

    def serve(self, request: Request, *, answered: bool = True, gone: Collection[str] = ()) -> None:
        client = self.clients[request.client]
        now = self.now + client.skew
        try:
            self._write(
                state_machine.heartbeat(self.store, request.client, request.report, now, gone=gone)
            )
        except ClientExpiredError:
            client.expired = True
            return
        if answered:
            self.responses.append(
                Response(client.id, state_machine.assigned(self.store, client.id))
            )

    def _write(self, state: TunnelState) -> None:
        for key, new in state.channels.items():
            if key not in self.store.channels:
                self.seen[key], self.starts[key] = set(), new.token["at"]
            old = self.store.channels.get(key, new)
            assert new.version >= old.version, "versions never go back"
            assert new.token["at"] >= old.token["at"], "checkpoints never go back"
            assert new.sequence >= old.sequence
            if old.state is ChannelState.TERMINATED:
                assert new.state is ChannelState.TERMINATED
            if new.state is ChannelState.CLOSING and old.state is ChannelState.OPEN:
                self.asked_back += 1
            if new.state is ChannelState.OPEN:
                assert self.open_at.setdefault((key, new.version), new.client) == new.client
                for parent in new.parents:
                    assert state.channels[parent].state is ChannelState.TERMINATED, (
                        "parents come first"
                    )
        self.store = state

    # --- a client ---

    def ask(self, client: SimulatedClient) -> Request:
        return Request(client.id, client.connects.report())

    def hear(self, response: Response) -> None:
        client = self.clients[response.client]
        if client.alive:
            self._do(client, client.connects.merge(response.answer))

    def dial(self, client: SimulatedClient, key: str, *, fails: bool = False) -> None:
        client.dials.remove(key)
        self._do(
            client, client.connects.dial_failed(key) if fails else client.connects.dialled(key)
        )

    def work(
        self,
        client: SimulatedClient,
        key: str,
        *,
        saves: bool = True,
        ahead: int = 0,
        parks: bool = False,
    ) -> None:
        """Read the next range, and move the checkpoint past it unless the client dies between the two.

        `ahead`: rows of the range after it, whose end is kept, and which is processed, before that checkpoint is taken.
        `parks`: the range fails for good.
        """
        pipeline = client.pipelines[key]
        done = pipeline.at >= (self.records if pipeline.until is None else pipeline.until)
        if pipeline.stopping or done:
            del client.pipelines[key]
            self._do(client, client.connects.ended(key, finished=done))
            return
        end = min(self.records, pipeline.at + 3)
        try:
            self._write(
                state_machine.hand_out(self.store, client.id, key, pipeline.sequence, {"at": end})
            )
            end = state_machine.handed_out(self.store, key, pipeline.sequence)["at"]
            if end == pipeline.at:  # it was split here
                del client.pipelines[key]
                self._do(client, client.connects.ended(key, finished=True))
                return
            if parks:
                self._write(
                    state_machine.park(self.store, client.id, key, pipeline.sequence, "why")
                )
                del client.pipelines[key]
                self._do(client, client.connects.ended(key, finished=False))
                return
            self._name(key, pipeline.sequence, end)
            self.seen[key].update(range(pipeline.at, end))
            if ahead and end < self.records:
                wanted = {"at": min(self.records, end + ahead)}
                self._write(
                    state_machine.hand_out(
                        self.store, client.id, key, pipeline.sequence + 1, wanted
                    )
                )
                after = state_machine.handed_out(self.store, key, pipeline.sequence + 1)["at"]
                if after > end:
                    self._name(key, pipeline.sequence + 1, after)
                    self.seen[key].update(range(end, after))
            if saves:
                self._write(
                    state_machine.checkpoint(
                        self.store, client.id, key, pipeline.sequence, {"at": end}
                    )
                )
                pipeline.at, pipeline.sequence = end, pipeline.sequence + 1
        except ChannelLostError:
            del client.pipelines[key]
            self._do(client, client.connects.ended(key, finished=False))

    def resume(self) -> None:
        for key in list(self.store.channels):
            self._write(state_machine.resume(self.store, key))

    def can_be_split(self) -> list[str]:
        channels = self.store.channels.values()
        parents = {parent for each in channels for parent in each.parents}
        return [
            each.id
            for each in channels
            if not each.is_base
            and each.id not in parents
            and each.state is not ChannelState.TERMINATED
        ]

    def split(self, key: str) -> None:
        """Two channels follow it; here each has all the rows that come after."""
        state, made = state_machine.split(self.store, key, lambda token: [token, token])
        assert len(made) == 2
        assert all(state.channels[each].token == self.store.channels[key].last_end for each in made)
        self._write(state)

    def _name(self, key: str, sequence: int, end: int) -> None:
        """A range that was processed ends where it ends, whoever processes it again."""
        assert self.names.setdefault((key, sequence), end) == end

    def crash(self, client: SimulatedClient) -> None:
        client.alive = False

    def _do(self, client: SimulatedClient, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case OpenChannel(channel):
                    client.dials.append(channel.id)
                case StartChannel(channel):
                    current = self.store.channels[channel.id]
                    assert channel.id not in client.pipelines
                    until = None if current.until is None else current.until["at"]
                    client.pipelines[channel.id] = Pipeline(
                        channel, current.token["at"], current.sequence, until
                    )
                case StopChannel(key):
                    client.pipelines[key].stopping = True

    # --- what must hold ---

    def check(self) -> None:
        running: dict[tuple[str, int], str] = {}
        for client in self.clients.values():
            for channel in client.connects.running():
                other = running.setdefault((channel.id, channel.version), client.id)
                assert other == client.id, (
                    f"{channel.id} is open twice at version {channel.version}"
                )
        for channel in self.store.channels.values():
            held = channel.state in (ChannelState.OPEN, ChannelState.CLOSING)
            assert held == bool(channel.client)

    def settle_down(self, chance: random.Random, *, gone: bool = False) -> None:
        """The network heals: three heartbeats of each client after the last change, channels are shared evenly.

        A change is a client that joins, or is lost, and a channel that becomes ready. `gone`: the processes of
        those that crashed are known to have ended; else they are lost once they were silent for too long.
        """
        self.requests.clear()
        self.responses.clear()
        for client in self.clients.values():
            client.skew = 0.0
        if not self.live():
            self.join()
        dead = [client.id for client in self.clients.values() if not client.alive] if gone else []
        if not gone:
            for _ in range(int(TIMEOUT / 30) + 2):
                # Until the last of the silent is lost in this very round; that round is the first that counts.
                if not self._silent(self.now + 30):
                    break
                self.round(work=False, chance=chance)
        quiet = 0
        for _ in range(BEATS * (2 + len(self.clients) + len(self.store.channels))):
            quiet = 0 if self.round(work=False, chance=chance, gone=dead) else quiet + 1
            if quiet == BEATS:
                break
        assert quiet == BEATS, "changes have an end"
        self.check_even()

    def live(self) -> list[SimulatedClient]:
        """The clients that run, also those that the store has given up."""
        return [client for client in self.clients.values() if client.alive]

    def ready(self) -> list[Channel]:
        """The channels that clients share."""
        return [
            c
            for c in self.store.channels.values()
            if state_machine.is_ready(c, self.store.channels)
        ]

    def drain(self, client: SimulatedClient) -> str:
        """Read one of the client's channels to its end; returns which, empty when it has none."""
        key = next(iter(client.pipelines), "")
        while key in client.pipelines:
            self.work(client, key)
        return key

    def fewest_moves(self, clients: Collection[str], drained: str = "") -> int:
        """How many channels must be taken from `clients`, the live ones, so that all have an even share.

        `drained`: a channel whose end the store has not heard of yet.
        """
        channels = dict(self.store.channels)
        if drained:
            channels[drained] = replace(channels[drained], state=ChannelState.TERMINATED)
        ready = [
            channel for channel in channels.values() if state_machine.is_ready(channel, channels)
        ]
        floor, extra = divmod(len(ready), len(clients))
        counts = sorted((sum(c.client == each for c in ready) for each in clients), reverse=True)
        return sum(max(0, count - floor - (place < extra)) for place, count in enumerate(counts))

    def check_even(self) -> None:
        """Every live client runs what the store says it has, and that is within one of every other."""
        ready, live = self.ready(), [client.id for client in self.live()]
        assert set(self.store.clients) == set(live)
        assert all(channel.state is ChannelState.OPEN for channel in ready), (
            "none is left over or on its way"
        )
        counts = [sum(channel.client == client for channel in ready) for client in live]
        assert sum(counts) == len(ready)
        assert max(counts) - min(counts) <= 1, f"shared unevenly: {counts}"
        for client in self.live():
            running = {
                k for k, state in client.connects.states().items() if state is ConnectState.RUNNING
            }
            assert running == {channel.id for channel in ready if channel.client == client.id}
            assert running == client.pipelines.keys()

    def finish(self) -> None:
        self.resume()
        for _ in range(20 * self.records + 100):
            if all(c.state is ChannelState.TERMINATED for c in self.store.channels.values()):
                break
            self.round(work=True)
        for key, seen in self.seen.items():
            until = self.store.channels[key].until
            end = self.records if until is None else until["at"]
            assert seen == set(range(self.starts[key], end)), f"{key} was not read to its end"

    def round(
        self, *, work: bool, chance: random.Random | None = None, gone: Collection[str] = ()
    ) -> bool:
        """One heartbeat of every live client, in any order, all of it answered and obeyed.

        Returns whether something changed for the store meanwhile: a client joined, a channel became ready or drained.
        """
        self.now += 30
        clients, ready = self.live(), [channel.id for channel in self.ready()]
        if chance is not None:
            chance.shuffle(clients)
        joined = False
        for client in clients:
            self.serve(self.ask(client), gone=gone)
            if client.expired:
                self.crash(client)
                self.join()
                joined = True
                continue
            self.hear(self.responses.pop())
            for key in list(client.dials):
                self.dial(client, key)
            for key, pipeline in list(client.pipelines.items()):
                if work or pipeline.stopping:
                    self.work(client, key)
        self.check()
        return joined or ready != [channel.id for channel in self.ready()]

    def _silent(self, at: float) -> bool:
        """Whether the store still counts on clients that crashed, and does so at `at`."""
        return any(
            not self.clients[key].alive and at - min(each.last_seen, self.now) <= TIMEOUT
            for key, each in self.store.clients.items()
        )
