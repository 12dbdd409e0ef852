"""The protocol's table, the shares and the back-off, rule by rule."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.retry import Backoff, reconnect_delay
from spark_channel.testing import VirtualClock
from spark_channel.tunnel import state_machine
from spark_channel.tunnel.channel import RangeSize
from spark_channel.tunnel.client import ChannelConnects, OpenChannel, StartChannel, StopChannel
from spark_channel.tunnel.records import (
    Channel,
    ChannelState,
    ChannelStatus,
    Client,
    ConnectState,
    TunnelState,
)
from spark_channel.tunnel.state_machine import share
from tests.tunnel.world import channels

OPEN = Channel("x", 0, state=ChannelState.OPEN, version=3, client="a")
CLOSING = replace(OPEN, state=ChannelState.CLOSING, version=4)


def running() -> ChannelConnects:
    connects = ChannelConnects()
    assert connects.merge([OPEN]) == [OpenChannel(OPEN)]
    assert connects.dialled("x") == [StartChannel(OPEN)]
    return connects


def test_open_and_wait_runs_once_it_is_dialled() -> None:
    connects = running()
    assert connects.states() == {"x": ConnectState.RUNNING}
    assert connects.merge([OPEN]) == []
    assert connects.report() == (ChannelStatus("x", 3, ChannelState.OPEN),)


@pytest.mark.parametrize(
    ("finished", "state"), [(True, ChannelState.TERMINATED), (False, ChannelState.CLOSED)]
)
def test_a_pipeline_that_ends_raises_the_version(finished: bool, state: ChannelState) -> None:
    connects = running()
    connects.ended("x", finished=finished)
    assert connects.report() == (ChannelStatus("x", 4, state),)
    connects.merge([OPEN])
    assert connects.report() == (ChannelStatus("x", 4, state),), "an old answer changes nothing"
    connects.merge([CLOSING])
    assert connects.report() == (ChannelStatus("x", 5, state),), (
        "equal versions: the store's state counts"
    )


def test_closing_and_running_stops_and_then_closes() -> None:
    connects = running()
    assert connects.merge([CLOSING]) == [StopChannel("x")]
    assert connects.merge([CLOSING]) == []
    connects.ended("x", finished=False)
    assert connects.report() == (ChannelStatus("x", 5, ChannelState.CLOSED),)


def test_closing_and_wait_closes_at_once() -> None:
    connects = ChannelConnects()
    connects.merge([OPEN])
    connects.merge([CLOSING])
    assert connects.report() == (ChannelStatus("x", 5, ChannelState.CLOSED),)
    assert connects.dialled("x") == []


def test_a_failed_dial_gives_the_channel_back() -> None:
    connects = ChannelConnects()
    connects.merge([OPEN])
    connects.dial_failed("x")
    assert connects.report() == (ChannelStatus("x", 4, ChannelState.CLOSED),)
    again = replace(OPEN, version=5)
    assert connects.merge([again]) == [OpenChannel(again)], (
        "given once more, it is dialled once more"
    )


def test_a_channel_that_the_store_does_not_name_is_stopped_and_forgotten() -> None:
    connects = running()
    assert connects.merge([]) == [StopChannel("x")]
    assert connects.report() == ()
    assert connects.merge([OPEN]) == [], "not before its old pipeline has ended"
    connects.ended("x", finished=False)
    assert connects.merge([OPEN]) == [OpenChannel(OPEN)]


def test_a_status_needs_a_strictly_newer_version() -> None:
    state = state_machine.connect(TunnelState(channels(1, 0)), Client("a"), 0.0)
    state = state_machine.heartbeat(state, "a", (), 1.0)
    version = state.channels["base-0"].version
    for said in (version, version - 1):
        same = state_machine.heartbeat(
            state, "a", [ChannelStatus("base-0", said, ChannelState.TERMINATED)], 2.0
        )
        assert same.channels["base-0"].state is ChannelState.OPEN
    newer = state_machine.heartbeat(
        state, "a", [ChannelStatus("base-0", version + 1, ChannelState.TERMINATED)], 2.0
    )
    assert newer.channels["base-0"].state is ChannelState.TERMINATED


def test_three_heartbeats_in_closing_are_enough() -> None:
    state = TunnelState(channels(2, 0))
    for name in ("a", "b"):
        state = state_machine.connect(state, Client(name), 0.0)
        state = state_machine.heartbeat(state, name, (), 0.0)
    state = state_machine.heartbeat(state, "a", (), 1.0)
    closing = [key for key, each in state.channels.items() if each.state is ChannelState.CLOSING]
    for number in range(state_machine.FORCED_AFTER):
        assert [state.channels[key].state for key in closing] == [ChannelState.CLOSING] * len(
            closing
        ), number
        state = state_machine.heartbeat(state, "a", (), 2.0 + number)
    state = state_machine.heartbeat(state, "a", (), 9.0)
    assert {each.client for each in state.channels.values()} == {"a", "b"}


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 12))
def test_shares_end_within_one_and_move_as_few_as_possible(counts: list[int], free: int) -> None:
    held = {f"c{n}": [f"c{n}-{k}" for k in range(count)] for n, count in enumerate(counts)}
    new = [f"free-{k}" for k in range(free)]
    given_out, back = share(held, {}, new)
    assert set(given_out) == set(new)
    after = {name: len(held[name]) for name in held}
    for name in given_out.values():
        after[name] += 1
    for channel in back:
        after[channel.partition("-")[0]] -= 1
    total = sum(counts) + free
    floor = total // len(counts)
    assert all(count <= floor + 1 for count in after.values())
    needed = sum(max(0, count - floor - 1) for count in counts)
    surplus = sorted((count - floor for count in counts), reverse=True)
    ones = total - floor * len(counts)
    fewest = sum(max(0, each - (1 if place < ones else 0)) for place, each in enumerate(surplus))
    assert len(back) == fewest
    assert len(back) >= needed


def test_channels_go_first_to_who_asks_for_them() -> None:
    given_out, _ = share({"a": [], "b": []}, {}, ["x", "y"], {"b": ["x"]})
    assert given_out == {"x": "b", "y": "a"}


def test_back_off_grows_fivefold_to_two_seconds_and_begins_anew() -> None:
    backoff = Backoff(chance=random.Random(1))
    for base in (0.01, 0.05, 0.25, 1.25, 2.0, 2.0):
        assert 0.75 * base <= backoff.after(1, 10) <= 1.25 * base
    assert backoff.after(501, 0) == 0.0
    assert backoff.after(0, (900 << 10) + 1) == 0.0
    assert backoff.after(0, 0) <= 0.0125
    for attempt, most in ((0, 0.1), (1, 0.3), (3, 2.7), (5, 10.0), (10_000, 10.0)):
        waits = [reconnect_delay(attempt, random.Random(seed)) for seed in range(50)]
        assert min(waits) >= 0.001
        assert 0.8 * most <= max(waits) <= most


@pytest.mark.parametrize(("tables", "most"), [(1, 330), (300, 280), (1_000, 125), (3_000, 50)])
def test_looks_that_find_nothing_new_have_a_part_of_the_time(tables: int, most: int) -> None:
    """A look takes 1 ms for each table. With pauses of 2 s alone, the source of 3 000 tables would work for most of the
    time, and a first run, whose rows take as long as there are tables, would cost it n times n.
    """
    backoff, clock, looks = Backoff(chance=random.Random(1)), VirtualClock(), 0
    while clock.now() < 600.0:
        looks += 1
        clock.sleep(tables * 1e-3)
        clock.sleep(backoff.after(0, 0, tables * 1e-3))
    assert looks <= most


def test_ranges_grow_until_a_checkpoint_takes_its_interval() -> None:
    size = RangeSize(FeedLimit(rows=100_000), 5.0)
    for _ in range(10):
        rows = size.limit().rows
        assert rows is not None
        size.took(rows / 8_000, rows)
    assert size.limit().rows == 40_000
    size.took(1.0, 10)
    assert size.limit().rows == 40_000, "there was no more to read"
    assert size.is_full(40_000, 0)
    assert not size.is_full(39_999, 0)
