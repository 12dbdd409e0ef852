"""Counters count under threads, and their snapshots survive the wire and nothing else does."""

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.channel import ChannelStatistics
from spark_channel.progress import Counters, Phase, Snapshot
from spark_channel.progress.tasks import LastProgress
from spark_channel.testing import VirtualClock
from tests.limits.world import World, short_tasks


def test_threads_lose_no_count() -> None:
    counters = Counters(1, 2)

    def count() -> None:
        for _ in range(2_000):
            counters.read(1, 10)
            counters.pushed(1, 10)
            counters.wrote(1, 10)
            counters.waited("limit:rows", 0.001)
            counters.dirty(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = counters.snapshot()
    assert (snapshot.rows_read, snapshot.rows_pushed, snapshot.rows_written) == (
        8_000,
        8_000,
        8_000,
    )
    assert (snapshot.bytes_read, snapshot.bytes_pushed, snapshot.bytes_written) == (
        80_000,
        80_000,
        80_000,
    )
    assert snapshot.dirty_rows == 8_000
    assert snapshot.waits["limit:rows"] == pytest.approx(8.0)


def test_changes_come_once_and_again_when_they_were_lost() -> None:
    counters = Counters(0, 0)
    first = counters.changes()
    assert first is not None
    assert counters.changes() is None
    counters.pushed(3, 30)
    second = counters.changes()
    assert second is not None
    assert second.rows_pushed == 3
    assert second.sequence > first.sequence
    counters.unsent()
    third = counters.changes()
    assert third is not None
    assert third.rows_pushed == 3


def test_a_final_phase_stays() -> None:
    counters = Counters(0, 0)
    counters.enter(Phase.FAILED)
    counters.enter(Phase.DONE)
    assert counters.snapshot().phase is Phase.FAILED


def _statistics(**figures: Any) -> ChannelStatistics:
    numbers = dict.fromkeys(ChannelStatistics.__dataclass_fields__, 0)
    return ChannelStatistics(**{**numbers, "throttled_seconds": {}, **figures})


def test_a_followed_channel_gives_rows_and_waits_that_add_up_to_the_producers_time() -> None:
    clock = VirtualClock()
    seen = [_statistics()]
    counters = Counters(0, 0, clock=clock)
    counters.follow(lambda: seen[0], producers=2)
    clock.advance(10)
    seen[0] = _statistics(
        rows_pushed=7, bytes_pushed=70, wait_writer_seconds=4.0, throttled_seconds={"rows": 9.0}
    )
    snapshot = counters.snapshot()
    assert (snapshot.rows_read, snapshot.rows_pushed, snapshot.bytes_pushed) == (7, 7, 70)
    assert snapshot.waits == {"limit:rows": 9.0, "target": 4.0, "source": pytest.approx(7.0)}


def test_the_end_takes_the_last_figures_and_follows_no_more() -> None:
    clock = VirtualClock()
    seen = [_statistics(rows_pushed=1)]
    counters = Counters(0, 0, clock=clock)
    counters.follow(lambda: seen[0])
    seen[0] = _statistics(rows_pushed=5)
    counters.enter(Phase.DONE)
    seen[0] = _statistics(rows_pushed=9)
    clock.advance(100)
    snapshot = counters.snapshot()
    assert snapshot.rows_pushed == 5
    assert snapshot.waits["source"] == 0.0


def test_a_task_waits_for_its_turn_first_and_for_no_source_while_it_is_published() -> None:
    clock = VirtualClock()
    seen = [_statistics(throttled_seconds={"rows": 0.0})]
    counters = Counters(0, 0, clock=clock)
    ahead = [(7.0, 1.0, 2.0)]
    counters.follow(lambda: seen[0], ahead=lambda: ahead[0])
    clock.advance(2)
    assert counters.snapshot().waits == {"source": pytest.approx(2.0), "target": 0.0}
    ahead[0] = (8.5, 1.25, 2.5)  # rows of the task before are paid
    assert counters.snapshot().waits["limit:turn"] == pytest.approx(1.5)
    counters.turn_came()
    clock.advance(3)
    seen[0] = _statistics(throttled_seconds={"rows": 2.5})
    counters.pushed_all()
    clock.advance(10)
    ahead[0] = (100.0, 100.0, 100.0)  # of its own rows
    assert counters.snapshot().waits == {
        "limit:turn": pytest.approx(1.5),
        "limit:rows": 2.5,
        "limit:share": pytest.approx(0.5),
        "start": 0.0,
        "target": 0.25,
        "source": pytest.approx(0.25),
    }


def test_a_payment_that_waits_while_the_source_works_is_no_wait_for_the_limit() -> None:
    clock, held, seen = VirtualClock(), [5.0], [_statistics()]
    counters = Counters(0, 0, clock=clock)
    counters.follow(lambda: seen[0], held_back=lambda: held[0])
    clock.advance(10)
    seen[0] = _statistics(throttled_seconds={"rows": 3.0, "grant": 1.0})
    assert counters.snapshot().waits == {"target": 0.0, "source": pytest.approx(10.0)}
    clock.advance(10)
    held[0] = 7.0
    seen[0] = _statistics(throttled_seconds={"rows": 6.0, "grant": 2.0})
    assert counters.snapshot().waits == {
        "limit:rows": pytest.approx(1.5),
        "limit:grant": pytest.approx(0.5),
        "target": 0.0,
        "source": pytest.approx(18.0),
    }


def test_a_task_that_waits_for_its_share_waits_neither_for_the_limit_nor_for_the_source() -> None:
    clock, seen = VirtualClock(), [_statistics()]
    counters = Counters(0, 0, clock=clock)
    counters.follow(lambda: seen[0])
    clock.advance(10)
    seen[0] = _statistics(throttled_seconds={"share": 3.0})
    snapshot = counters.snapshot()
    assert snapshot.waits == {"start": 3.0, "target": 0.0, "source": pytest.approx(7.0)}
    progress = LastProgress()
    assert progress.idle(snapshot, 10.0) == pytest.approx(7.0)


def test_what_waits_for_a_share_is_the_limits_as_far_as_rows_waited_then_too() -> None:
    clock, seen = VirtualClock(), [_statistics(throttled_seconds={"share": 3.0})]
    counters = Counters(0, 0, clock=clock)
    counters.follow(lambda: seen[0])
    clock.advance(10)
    assert counters.snapshot().waits == {"start": 3.0, "target": 0.0, "source": pytest.approx(7.0)}
    seen[0] = _statistics(throttled_seconds={"share": 3.0, "rows": 1.0, "turn": 0.5, "paused": 1.0})
    assert counters.snapshot().waits == {
        "limit:share": 1.5,
        "limit:rows": 1.0,
        "limit:turn": 0.5,
        "limit:paused": 1.0,
        "start": 1.5,
        "target": 0.0,
        "source": pytest.approx(4.5),
    }
    seen[0] = _statistics(throttled_seconds={"share": 3.0, "rows": 5.0})
    assert counters.snapshot().waits["limit:share"] == 3.0
    assert counters.snapshot().waits["start"] == 0.0


def _limited(world: World) -> tuple[float, float]:
    """Seconds that the tasks' reports say to have waited for the limit, and those that their payments did wait."""
    reported = waited = 0.0
    for number, worker in enumerate(world.workers):
        counters = Counters(number, 0)
        for reason, spent in worker.waits.items():
            counters.waited(f"limit:{reason}", spent)
            waited += spent
        waits = counters.snapshot().waits
        reported += sum(spent for reason, spent in waits.items() if reason != "start")
    return reported, waited


@pytest.mark.parametrize(
    ("slots", "tasks", "rate"),
    [(1, 5, 60_000), (2, 10, 60_000), (8, 40, 60_000), (8, 40, 100), (2, 100, 60_000)],
)
def test_tasks_of_a_second_and_less_under_a_limit_that_is_used_say_all_their_waits(
    slots: int, tasks: int, rate: int
) -> None:
    reported, waited = _limited(short_tasks(tasks, slots=slots, rows=5 * rate, rate=rate))
    assert waited > 4 * slots * 0.8
    assert reported == pytest.approx(waited)


@pytest.mark.parametrize("stalls", [None, (0.1, 0.4)])
@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_tasks_under_a_limit_that_is_never_reached_say_that_they_did_not_wait(
    tasks: int, stalls: tuple[float, float] | None
) -> None:
    """Also one whose source pauses, so that it gives its share back, and waits for another."""
    world = World(100_000_000)
    for number in range(tasks):
        world.worker(start=number / 100, speed=500_000, stalls=stalls)
    world.run(5.0)
    reported, _ = _limited(world)
    assert reported < 0.002 * tasks * 5.0


def test_what_the_target_holds_back_is_no_wait_for_the_limit() -> None:
    clock, held, seen = VirtualClock(), [0.0], [_statistics()]
    counters = Counters(0, 0, clock=clock)
    counters.follow(lambda: seen[0], held_back=lambda: held[0])
    clock.advance(10)
    held[0] = 4.0
    seen[0] = _statistics(throttled_seconds={"rows": 3.0}, wait_writer_seconds=4.0)
    assert counters.snapshot().waits == {"target": 4.0, "source": pytest.approx(6.0)}


def test_a_pause_counts_also_while_nothing_is_read() -> None:
    """By it a watch for stalls knows that the task may stand still."""
    clock, seen = VirtualClock(), [_statistics(throttled_seconds={"paused": 9.0, "rows": 1.0})]
    counters = Counters(0, 0, clock=clock)
    counters.follow(lambda: seen[0], held_back=lambda: 0.0)
    clock.advance(10)
    assert counters.snapshot().waits["limit:paused"] == 9.0
    assert counters.snapshot().waits["source"] == pytest.approx(1.0)


amounts = st.integers(0, 2**63 - 1)
snapshots = st.builds(
    Snapshot,
    task=amounts,
    attempt=amounts,
    scan=amounts,
    sequence=amounts,
    phase=st.sampled_from(Phase),
    rows_read=amounts,
    bytes_written=amounts,
    rows_expected=st.none() | amounts,
    seconds=st.integers(0, 10**9).map(lambda ms: ms / 1000),
    waits=st.dictionaries(
        st.text(min_size=1, max_size=64), st.integers(0, 10**6).map(float), max_size=5
    ),
)


@given(snapshots)
def test_a_snapshot_travels_unchanged(snapshot: Snapshot) -> None:
    assert Snapshot.from_json(json.loads(json.dumps(snapshot.to_json()))) == snapshot


@pytest.mark.parametrize(
    "change",
    [
        {"rows_read": -1},
        {"rows_read": 2**63},
        {"rows_read": 1.5},
        {"rows_read": True},
        {"rows_read": "7"},
        {"task": None},
        {"phase": "sleeping"},
        {"phase": 3},
        {"waits": {"limit": -1}},
        {"waits": {"limit": 1e300}},
        {"waits": {"": 1}},
        {"waits": {str(n): 1 for n in range(65)}},
        {"waits": [1]},
        {"seconds": -0.1},
        {"surprise": 1},
    ],
    ids=str,
)
def test_what_no_counter_can_have_is_refused(change: dict[str, Any]) -> None:
    good = replace(Counters(1, 1).snapshot(), rows_read=1).to_json()
    assert Snapshot.from_json(good).rows_read == 1
    with pytest.raises(ValueError):
        Snapshot.from_json({**good, **change})


@pytest.mark.parametrize("data", [None, [], "x", 1, {}, {"task": 1}])
def test_what_is_no_snapshot_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):
        Snapshot.from_json(data)
