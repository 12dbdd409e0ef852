"""A streaming query as one client of a tunnel: its channels, and the ranges that the store assigns."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import FeedLag, FeedLimit, has_base
from spark_channel.errors import ChannelLostError, TunnelStoreError
from spark_channel.tunnel.client import TunnelClient
from spark_channel.tunnel.positions import (
    BatchAdmission,
    Offset,
    OffsetRange,
    StreamPositions,
    added_up,
    check_offset,
    entry,
    make_offset,
    token_in,
)
from spark_channel.tunnel.records import Channel, ClientState, TunnelStore
from spark_channel.tunnel.source import READ, StreamSource, base_split

__all__ = ["SharedPositions"]

_LOOK_SECONDS = 1.0
"""How often a query that begins again looks whether its channels have come free."""


def _is_silent(error: BaseException) -> bool:
    return isinstance(error, TunnelStoreError)


@dataclass
class _Run:
    """A channel of this client. `token` and `sequence` are its checkpoint, `pending` what is assigned."""

    channel: Channel
    sequence: int = -1
    token: Token | None = None
    pending: Token | None = None
    stopping: bool = False
    finished: bool = False


class SharedPositions(StreamPositions):
    """Offsets name the ranges of one batch each: (channel, sequence), and where they begin and end.

    The first request for an offset starts the client. An assigned range does not change, so each run of it reads the
    same rows.
    """

    def __init__(
        self, source: StreamSource, store: TunnelStore, *, clock: Clock | None = None
    ) -> None:
        super().__init__(source, clock=clock)
        assert source.options.tunnel is not None
        self._name = source.options.tunnel
        self._store = self.renewal.wrap(store, _is_silent)
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._record = store.get(self._name)
        source.check(self._record)
        settings = source.options
        self._client = TunnelClient(
            store,
            self._record,
            self,
            tag=settings.client_tag,
            interval=settings.heartbeat_interval,
            timeout=settings.heartbeat_timeout,
            clock=clock,
        )
        self._calls = self.renewal.wrap(self._client, _is_silent)
        self._changed = threading.Condition()
        self._runs: dict[str, _Run] = {}
        self._planned: Offset | None = None
        self._offered: Offset | None = None
        self._error: BaseException | None = None

    # --- ChannelHost ---

    def dial(self, channel: Channel) -> None:
        self._client.dialled(channel.id)

    def run_channel(self, channel: Channel) -> None:
        with self._changed:
            self._runs[channel.id] = _Run(channel)

    def stop_channel(self, channel: str) -> None:
        with self._changed:
            if run := self._runs.get(channel):
                run.stopping = True

    def heartbeat_done(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        self._error = error

    # --- Positions ---

    def initial(self) -> Offset:
        return self._offset({})

    def latest(self, start: Offset | None, limit: FeedLimit) -> Offset:
        self._begin()
        offset = start
        if offset is None and self._planned is not None:
            offset = self._planned
        if offset is None and self._offered is not None:
            offset = self._offered  # offered twice and not planned: Spark has it behind it
        if offset is not None:
            self._check(offset)
            self._await(offset)
            self.settle(offset)
        if self._leave():
            self._calls.heartbeat()
        news, room = {}, BatchAdmission(limit)
        paused = {channel.id for channel in self._client.running() if channel.paused}
        with self.feed.shared_look():
            for run in self._loaded():
                self.source.feed.reads_base = run.channel.id not in paused
                range_entry = self._next(run, room)
                if range_entry is not None:
                    news[run.channel.id] = range_entry
        if not news:
            self.check_base(
                run.token for run in self._all() if not (run.channel.is_base or run.stopping)
            )
            return offset if offset is not None else self._offset({})
        self._offered = self._offset(news)
        return self._offered

    def is_beside(self, start: Offset | None) -> bool:
        self._begin()
        return any(
            has_base(run.channel.token if run.token is None else run.token) for run in self._all()
        )

    def ranges(self, start: Offset, end: Offset) -> list[OffsetRange]:
        self._begin()
        self._check(end)
        again = end != self._offered
        if again:
            self._await(end)
        self._planned = end
        old = start["channels"]
        changed = {
            key: range_entry
            for key, range_entry in end["channels"].items()
            if old.get(key) != range_entry
        }
        mine = {run.channel.id: run for run in self._loaded(again=again)}
        ranges = []
        for key, range_entry in changed.items():
            run = mine.get(key)
            if run is None or run.sequence != range_entry["seq"]:
                continue  # another client has it, from the same checkpoint on
            after, upto = token_in(range_entry["from"]), token_in(range_entry["to"])
            splits = (
                (base_split(run.channel),)
                if run.channel.is_base
                else self.feed.changes(after, upto)
            )
            origin = f"{self._record.id}-{key}-{range_entry['seq']}"
            ranges.append(OffsetRange(key, range_entry["seq"], tuple(splits), origin))
        return ranges

    def settle(self, offset: Offset) -> None:
        for key, range_entry in offset["channels"].items():
            run = self._runs.get(key)
            if run is None or (run.sequence >= 0 and run.sequence != range_entry["seq"]):
                continue
            end = token_in(range_entry["to"])
            try:
                self._calls.checkpoint(key, range_entry["seq"], end)
            except ChannelLostError:
                continue  # it went to another client, which reads on from the checkpoint that counts
            run.sequence, run.token, run.pending = range_entry["seq"] + 1, end, None
            if not run.channel.is_base:
                self.feed.settle(end)

    def behind(self, end: Offset) -> FeedLag:
        """Return the lag of the channels that this client has."""
        lags = []
        with self.feed.shared_look():
            for run in self._all():
                planned = end["channels"].get(run.channel.id)
                token = token_in(planned["to"]) if planned is not None else run.token
                if token is None or token == READ:
                    continue
                if run.channel.is_base:
                    split = base_split(run.channel)
                    lags.append(FeedLag(split.rows, split.nbytes))
                else:
                    lags.append(self.feed.lag(token))
        return added_up(lags)

    def close(self) -> None:
        self._client.close()

    # --- inside ---

    def _begin(self) -> None:
        if self._error is not None:
            raise self._error
        if self._client.state is ClientState.READY:
            self._calls.start()

    def _check(self, offset: Offset) -> None:
        check_offset(offset, tunnel=self._name, key=self._record.id, schema=self.columns())

    def _offset(self, channels: Mapping[str, object]) -> Offset:
        return make_offset(
            self._name, self._record.id, self.source.schema_text(), channels, client=self._client.id
        )

    def _await(self, offset: Offset) -> None:
        """Wait until no channel of `offset` belongs to the client that planned it, if that is not this one.

        That client was this query before it began again. When its process ran on this host the first
        heartbeat has freed its channels; else they come free after its timeout.
        """
        before = offset.get("client", "")
        keys = [key for key in offset["channels"] if key not in self._runs]
        if not keys or before == self._client.id:
            return
        until = (
            self._clock.now()
            + self.source.options.heartbeat_timeout
            + self.source.options.heartbeat_interval
        )
        self._client.want(keys)
        try:
            while self._clock.now() < until:
                state = self._store.state(self._name)
                if not any(
                    state.channels[key].client == before for key in keys if key in state.channels
                ):
                    break
                with self._changed:
                    self._clock.wait(self._changed, _LOOK_SECONDS)
                self._calls.heartbeat(keys)
            self._calls.heartbeat(keys)
        finally:
            self._client.want(())

    def _loaded(self, *, again: bool = False) -> list[_Run]:
        """The runs, each with its checkpoint; read from the store where not known yet, or `again`."""
        runs = self._all()
        if again or any(run.sequence < 0 for run in runs):
            state = self._store.state(self._name)
            for run in runs:
                channel = state.channels[run.channel.id]
                if channel.client == self._client.id and (again or run.sequence < 0):
                    if not run.channel.is_base:
                        # The client that took the checkpoint may have ended before it settled.
                        self.feed.settle(channel.token)
                    run.sequence, run.token, run.pending = (
                        channel.sequence,
                        channel.token,
                        channel.pending,
                    )
        return sorted((run for run in runs if run.sequence >= 0), key=lambda run: run.channel.place)

    def _all(self) -> list[_Run]:
        with self._changed:
            return list(self._runs.values())

    def _leave(self) -> bool:
        """Give back what is drained or asked for; whether there was any."""
        gone: Collection[_Run] = [
            run
            for run in self._all()
            if run.stopping
            or run.finished
            or (run.channel.is_base and run.token == READ and run.pending is None)
        ]
        for run in gone:
            with self._changed:
                del self._runs[run.channel.id]
            drained = run.finished or (run.channel.is_base and run.token == READ)
            self._client.ended(run.channel.id, finished=drained)
        return bool(gone)

    def _next(self, run: _Run, room: BatchAdmission) -> dict[str, object] | None:
        """The channel's next range as an offset holds it; None when there is none, or no room."""
        assert run.token is not None
        if room.full or run.stopping:
            return None
        end = run.pending
        if end is None and run.channel.is_base:
            split = base_split(run.channel)
            if run.token == READ or not room.takes(split.rows, split.nbytes):
                return None
            end = READ
        elif end is None:
            target, until = self.target.token_of(run.channel.partition), run.channel.until
            if until is None:
                end = self.feed.latest(run.token, room.left, target)
            elif run.token != until:
                end = self.feed.before(run.token, room.left, until, target)
            if end is None:
                run.finished = True
                return None
            if end == run.token:
                return None
            room.full = bool(room.left)
        try:
            counts = self._calls.hand_out(run.channel.id, run.sequence, end)
        except ChannelLostError:
            with self._changed:
                self._runs.pop(run.channel.id, None)
            self._client.ended(run.channel.id, finished=False)
            return None
        if counts == run.token:  # the channel was split here
            run.finished = True
            return None
        run.pending = counts
        return entry(run.sequence, run.token, counts)
