"""The protocol under loss, duplication, delay, clock skew and crashes."""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.tunnel.world import BEATS, MOST_SKEW, SimulatedClient, World

CLIENTS = 5
CHANNELS = 12


class TunnelMachine(RuleBasedStateMachine):
    world: World

    @initialize(base=st.integers(0, 4), stream=st.integers(1, 3), records=st.integers(0, 12))
    def make(self, base: int, stream: int, records: int) -> None:
        self.world = World(base, stream, records)
        self.world.join()

    def living(self) -> list[SimulatedClient]:
        return [client for client in self.world.clients.values() if client.alive]

    def pick(self, number: int) -> SimulatedClient:
        return self.living()[number % len(self.living())]

    @precondition(lambda self: len(self.living()) < CLIENTS)
    @rule()
    def join(self) -> None:
        self.world.join()

    @precondition(lambda self: self.living())
    @rule(number=st.integers(0, 9))
    def crash(self, number: int) -> None:
        self.world.crash(self.pick(number))

    @precondition(lambda self: self.living())
    @rule(number=st.integers(0, 9), seconds=st.integers(-MOST_SKEW, MOST_SKEW))
    def skew(self, number: int, seconds: int) -> None:
        self.pick(number).skew = seconds

    @rule(seconds=st.sampled_from([1, 30, 100, 301]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += seconds

    @precondition(lambda self: self.living())
    @rule(number=st.integers(0, 9))
    def heartbeat(self, number: int) -> None:
        client = self.pick(number)
        self.world.serve(self.world.ask(client))
        if client.expired:
            self.world.crash(client)
        else:
            self.world.hear(self.world.responses.pop())

    @precondition(lambda self: self.living())
    @rule(number=st.integers(0, 9))
    def request_is_sent(self, number: int) -> None:
        self.world.requests.append(self.world.ask(self.pick(number)))

    @precondition(lambda self: self.world.requests)
    @rule(number=st.integers(0, 9), twice=st.booleans(), lost=st.booleans(), answered=st.booleans())
    def request_arrives(self, number: int, twice: bool, lost: bool, answered: bool) -> None:
        place = number % len(self.world.requests)
        request = self.world.requests[place]
        if not twice:
            del self.world.requests[place]
        if not lost:
            self.world.serve(request, answered=answered)

    @precondition(lambda self: self.world.responses)
    @rule(number=st.integers(0, 9), twice=st.booleans(), lost=st.booleans())
    def response_arrives(self, number: int, twice: bool, lost: bool) -> None:
        place = number % len(self.world.responses)
        response = self.world.responses[place]
        if not twice:
            del self.world.responses[place]
        if not lost:
            self.world.hear(response)

    @precondition(lambda self: any(client.dials for client in self.living()))
    @rule(number=st.integers(0, 9), fails=st.booleans())
    def dial(self, number: int, fails: bool) -> None:
        dials = [(client, key) for client in self.living() for key in client.dials]
        self.world.dial(*dials[number % len(dials)], fails=fails)

    @precondition(lambda self: any(client.pipelines for client in self.living()))
    @rule(
        number=st.integers(0, 9),
        saves=st.booleans(),
        ahead=st.integers(0, 4),
        parks=st.sampled_from([False, False, False, True]),
    )
    def work(self, number: int, saves: bool, ahead: int, parks: bool) -> None:
        runs = [(client, key) for client in self.living() for key in client.pipelines]
        self.world.work(*runs[number % len(runs)], saves=saves, ahead=ahead, parks=parks)

    @precondition(lambda self: hasattr(self, "world") and self.world.can_be_split())
    @rule(number=st.integers(0, 9))
    def split(self, number: int) -> None:
        can = self.world.can_be_split()
        if len(self.world.store.channels) < CHANNELS:
            self.world.split(can[number % len(can)])

    @rule()
    def resume(self) -> None:
        self.world.resume()

    @rule(chance=st.randoms(use_true_random=False), gone=st.booleans())
    def the_network_heals(self, chance: random.Random, gone: bool) -> None:
        self.world.settle_down(chance, gone=gone)

    @rule(
        chance=st.randoms(use_true_random=False),
        number=st.integers(0, 9),
        change=st.sampled_from(["join", "leave", "lost", "drained"]),
    )
    def one_thing_changes_while_all_is_well(
        self, chance: random.Random, number: int, change: str
    ) -> None:
        """Shares are even again after three heartbeats, and no channel moved that need not."""
        world = self.world
        world.settle_down(chance)
        drained = ""
        match change:
            case "join" if len(self.living()) < CLIENTS:
                world.join()
            case "leave" if len(self.living()) > 1:
                world.leave(self.pick(number))
            case "lost" if len(self.living()) > 1:
                world.crash(self.pick(number))
            case "drained":
                drained = world.drain(self.pick(number))
        live = [client.id for client in self.living()]
        fewest = world.fewest_moves(live, drained)
        owners = {channel.id: channel.client for channel in world.store.channels.values()}
        world.asked_back = 0
        if drained:
            world.round(work=False, chance=chance)  # the store hears of it
        dead = [client.id for client in world.clients.values() if not client.alive]
        changed = [world.round(work=False, chance=chance, gone=dead) for _ in range(BEATS)]
        if any(changed):
            return  # the channel to give back had come to its end: one more change
        world.check_even()
        assert world.asked_back == fewest
        moved = [
            each
            for each in world.ready()
            if owners[each.id] in live and each.client != owners[each.id]
        ]
        assert len(moved) == fewest

    @invariant()
    def one_owner_per_version(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle_down(random.Random(0))
            self.world.finish()


class _Long(TunnelMachine):
    pass


TestTunnel = TunnelMachine.TestCase
TestTunnel.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLongTunnel = pytest.mark.soak(_Long.TestCase)
TestLongTunnel.settings = settings(TestTunnel.settings, max_examples=1_000)
