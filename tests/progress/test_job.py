"""A job's figures: every task once, whatever is retried; percent, speed and time left."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.progress import (
    Counters,
    JobColumn,
    JobProgress,
    JobSpec,
    Phase,
    Snapshot,
    is_batch,
    tighter,
)
from spark_channel.progress.speed import by_the_second
from spark_channel.testing import VirtualClock


def snapshot(
    task: int = 0,
    attempt: int = 0,
    rows: int = 0,
    *,
    sequence: int = 1,
    phase: Phase = Phase.RUNNING,
    **more: object,
) -> Snapshot:
    made = Snapshot(
        task,
        attempt,
        sequence=sequence,
        phase=phase,
        rows_pushed=rows,
        bytes_pushed=8 * rows,
        rows_read=rows,
        bytes_read=8 * rows,
        rows_written=rows,
        bytes_written=8 * rows,
    )
    return replace(made, **more)  # type: ignore[arg-type] # mypy does not see what a mapping has


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def job(clock: VirtualClock, **spec: object) -> JobProgress:
    return JobProgress("j", JobSpec("transfer", **spec), clock=clock)  # type: ignore[arg-type] # mypy does not see what a mapping has


def test_a_retried_task_counts_once_and_its_traffic_twice(clock: VirtualClock) -> None:
    progress = job(clock)
    progress.update(snapshot(0, 1, 700))
    progress.update(snapshot(0, 1, 900, sequence=2, phase=Phase.FAILED))
    assert progress.status().rows == 0
    progress.update(snapshot(0, 2, 1000, phase=Phase.DONE))
    status = progress.status()
    assert (status.rows, status.rows_moved) == (1000, 1900)
    assert (status.tasks, status.tasks_done, status.attempts) == (1, 1, 2)
    report = progress.report()
    assert (report.rows, report.rows_moved, report.retries) == (1000, 1900, 1)


def test_of_two_attempts_that_race_the_furthest_stands_for_the_task(clock: VirtualClock) -> None:
    progress = job(clock)
    progress.update(snapshot(0, 1, 500))
    progress.update(snapshot(0, 2, 300))
    assert progress.status().rows == 500
    progress.update(snapshot(0, 2, 800, sequence=2, phase=Phase.DONE))
    assert progress.status().rows == 800
    progress.update(snapshot(0, 1, 900, sequence=2))
    assert progress.status().rows == 800


def test_both_attempts_done_count_once(clock: VirtualClock) -> None:
    progress = job(clock)
    for attempt in (1, 2):
        progress.update(snapshot(0, attempt, 100, phase=Phase.DONE))
    assert progress.status().rows == 100


def test_an_attempt_that_fell_silent_gives_way_to_one_that_is_heard(clock: VirtualClock) -> None:
    progress = job(clock)
    progress.update(snapshot(0, 1, 900))
    clock.advance(61)
    progress.update(snapshot(0, 2, 100))
    assert progress.status().rows == 100


def test_a_late_snapshot_changes_nothing(clock: VirtualClock) -> None:
    progress = job(clock)
    assert progress.update(snapshot(rows=500, sequence=5))
    assert not progress.update(snapshot(rows=100, sequence=4))
    assert not progress.update(snapshot(rows=500, sequence=5))
    assert progress.status().rows == 500


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 6), st.sampled_from(Phase)),
        max_size=40,
    )
)
def test_in_any_order_a_task_counts_at_most_once(events: list[tuple[int, int, int, Phase]]) -> None:
    progress = JobProgress("j", JobSpec("transfer", rows_expected=400), clock=VirtualClock())
    for task, attempt, sequence, phase in events:
        progress.update(
            snapshot(
                task,
                attempt,
                100 * sequence // 6,
                sequence=sequence,
                phase=phase,
                rows_expected=100,
            )
        )
        status = progress.status()
        tasks = {each[0] for each in events}
        assert status.rows <= 100 * len(tasks)
        assert status.rows <= status.rows_moved
        assert status.percent is not None
        assert 0 <= status.percent <= 100


def test_percent_is_of_the_rows_expected_and_never_above_100(clock: VirtualClock) -> None:
    progress = job(clock, rows_expected=1000, tasks=2)
    assert progress.status().percent == 0
    progress.update(snapshot(0, 0, 250, rows_expected=500))
    assert progress.status().percent == 25
    progress.update(snapshot(0, 0, 5000, sequence=2, rows_expected=500))
    assert progress.status().percent == 50
    progress.update(snapshot(0, 0, 5000, sequence=3, rows_expected=500, phase=Phase.DONE))
    progress.update(snapshot(1, 1, 9000, rows_expected=500, phase=Phase.DONE))
    assert progress.status().percent == 100


def test_a_task_that_is_done_has_all_of_its_part_though_the_estimate_was_high(
    clock: VirtualClock,
) -> None:
    progress = job(clock, rows_expected=1000)
    progress.update(snapshot(0, 0, 100, rows_expected=1000, phase=Phase.DONE))
    assert progress.status().percent == 100


def test_a_plan_that_is_read_twice_has_twice_the_rows(clock: VirtualClock) -> None:
    progress = job(clock, rows_expected=100)
    progress.update(snapshot(0, 0, 100, rows_expected=100, scan=3, phase=Phase.DONE))
    progress.update(snapshot(0, 1, 50, rows_expected=100, scan=4))
    assert progress.status().percent == 75
    assert progress.status().rows == 150


def test_passes_of_one_attempt_count_together_and_its_retry_once(clock: VirtualClock) -> None:
    progress = job(clock, rows_expected=100)
    for attempt in (0, 1):
        for opening in (71, 5):
            part = {"scan": 3, "opening": opening + attempt}
            phase = Phase.DONE if attempt else Phase.FAILED
            progress.update(snapshot(0, attempt, 100, rows_expected=100, phase=phase, **part))
    assert (progress.status().rows, progress.status().percent) == (200, 100)
    assert progress.report().retries == 2


def test_bytes_give_the_percent_when_rows_are_unknown(clock: VirtualClock) -> None:
    progress = job(clock, bytes_expected=800)
    progress.update(snapshot(0, 0, 25, bytes_expected=800))
    assert progress.status().percent == 25


def test_no_percent_and_no_time_left_when_the_total_is_unknown(clock: VirtualClock) -> None:
    progress = job(clock)
    progress.update(snapshot(rows=10))
    clock.advance(1)
    assert progress.status().percent is None
    assert progress.status().eta_seconds is None


def test_speed_is_of_the_last_seconds_and_falls_when_nothing_comes(clock: VirtualClock) -> None:
    progress = job(clock)
    for second in range(1, 21):
        clock.advance(1)
        progress.update(snapshot(rows=100 * second, sequence=second))
    assert progress.status().rows_per_second == pytest.approx(100)
    assert progress.status().bytes_per_second == pytest.approx(800)
    for second in range(21, 31):
        clock.advance(1)
        progress.update(snapshot(rows=2000 + 300 * (second - 20), sequence=second))
    assert progress.status().rows_per_second == pytest.approx(300)
    clock.advance(2.5)
    assert progress.status().rows_per_second == pytest.approx(150)
    clock.advance(10)
    assert progress.status().rows_per_second == 0


def test_a_young_job_is_not_too_fast(clock: VirtualClock) -> None:
    progress = job(clock)
    clock.advance(2)
    progress.update(snapshot(rows=200))
    assert progress.status().rows_per_second == pytest.approx(100)


def test_a_job_begins_when_its_first_attempt_did(clock: VirtualClock) -> None:
    clock.advance(50)
    progress = job(clock)
    progress.update(snapshot(rows=200, seconds=0.5))
    assert progress.status().seconds == pytest.approx(0.5)
    assert progress.status().rows_per_second == pytest.approx(400)


def test_waiting_for_sparks_workers_is_no_slowness_of_the_copy(clock: VirtualClock) -> None:
    progress = job(clock, rows_per_second=100)
    clock.advance(11.8)
    progress.update(snapshot(1, 1, rows=80, seconds=0.8))  # began after the one that is heard next
    clock.advance(0.2)
    progress.update(snapshot(0, 0, rows=120, seconds=2.0))
    clock.advance(1)
    progress.update(snapshot(0, 0, rows=220, sequence=2, seconds=3.0))
    report = progress.report()
    assert report.seconds == pytest.approx(13.0)
    assert report.moving_seconds == pytest.approx(3.0)
    assert report.rows_per_second == pytest.approx(100)
    assert report.samples[0].seconds == pytest.approx(10.0)


def test_the_seconds_after_the_last_row_are_no_slowness_of_the_copy(clock: VirtualClock) -> None:
    """A task whose rows are all there makes them durable for 1.3 s; it was 69.8 % of the limit."""
    progress = job(clock, rows_per_second=100)
    for step in range(1, 7):
        clock.advance(0.5)
        progress.update(snapshot(rows=50 * step, sequence=step, seconds=0.5 * step))
    clock.advance(1.3)
    progress.update(snapshot(rows=300, sequence=7, seconds=4.3, phase=Phase.DONE))
    report = progress.report()
    assert report.moving_seconds == pytest.approx(3.0)
    assert report.rows_per_second == pytest.approx(100)
    assert report.samples[-1].seconds == pytest.approx(4.3)


def test_time_left_follows_the_speed(clock: VirtualClock) -> None:
    progress = job(clock, rows_expected=1000)
    clock.advance(10)
    progress.update(snapshot(rows=250, rows_expected=1000))
    assert progress.status().eta_seconds == pytest.approx(30)
    progress.enter(Phase.DONE)
    assert progress.status().eta_seconds == 0


def test_wait_shares_are_by_side_and_sum_to_one(clock: VirtualClock) -> None:
    progress = job(clock)
    assert progress.status().wait_shares == {}
    clock.advance(1)
    waits = {
        "limit:rows": 0.5,
        "limit:paused": 0.21,
        "source": 0.03,
        "target": 0.2,
        "target:permit": 0.06,
    }
    progress.update(snapshot(rows=1, waits=waits))
    shares = progress.status().wait_shares
    assert shares == {
        "limit": pytest.approx(0.71),
        "source": pytest.approx(0.03),
        "target": pytest.approx(0.26),
    }
    assert progress.report().waits == waits


def test_waits_that_slow_nothing_have_no_shares(clock: VirtualClock) -> None:
    progress = job(clock)
    clock.advance(1)
    progress.update(snapshot(rows=1, waits={"limit:grant": 0.01}))
    assert progress.status().wait_shares == {}


def test_publishing_is_a_phase_with_its_own_time(clock: VirtualClock) -> None:
    progress = job(clock)
    assert progress.phase is Phase.PLANNING
    clock.advance(3)
    progress.update(snapshot(rows=30, phase=Phase.DONE))
    assert progress.status().phase is Phase.RUNNING
    progress.enter(Phase.PUBLISHING)
    clock.advance(2)
    progress.enter(Phase.DONE, where="table t", rows=29)
    clock.advance(100)
    report = progress.report()
    assert (report.phase, report.seconds, report.publish_seconds) == ("done", 5.0, 2.0)
    assert (report.where, report.rows) == ("table t", 29)
    assert report.rows_per_second == pytest.approx(10)


def test_a_final_phase_stays_until_reopened(clock: VirtualClock) -> None:
    progress = job(clock)
    progress.enter(Phase.FAILED, error="no disk")
    progress.enter(Phase.DONE)
    assert progress.report().error == "no disk"
    assert progress.status().phase is Phase.FAILED
    progress.reopen()
    assert progress.status().phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        ({"commit": "task"}, 10),
        ({"commit": "task", "at_least_once": True}, 40),
        ({"commit": "job"}, 0),
    ],
)
def test_of_a_write_that_failed_the_rows_are_those_that_its_target_shows(
    clock: VirtualClock, spec: dict[str, object], rows: int
) -> None:
    """Where the driver knows no better: of tasks that are done, or all that were sent to a target that shows them."""
    progress = job(clock, **spec)
    progress.update(snapshot(0, 0, 10, phase=Phase.DONE))
    progress.update(snapshot(1, 1, 30))
    progress.enter(Phase.FAILED, error="cancelled")
    assert progress.report().rows == rows


def test_complete_means_every_task_of_the_plan(clock: VirtualClock) -> None:
    progress = job(clock, tasks=2)
    progress.update(snapshot(0, 0, 1, phase=Phase.DONE))
    assert progress.all_done()
    assert not progress.complete()
    progress.update(snapshot(1, 1, 1, phase=Phase.FAILED))
    assert not progress.complete()
    progress.update(snapshot(1, 2, 1, phase=Phase.DONE))
    assert progress.complete()
    assert not job(clock).complete()


def test_a_changed_limit_is_what_status_and_report_show(clock: VirtualClock) -> None:
    progress = job(clock, rows_per_second=100)
    progress.set_limits(50, None, "paused")
    assert progress.status().spec.rows_per_second == 50
    assert progress.status().note == "paused"
    assert progress.report().rows_per_second_limit == 50


def test_a_shared_limit_is_shown_from_the_start_and_its_changes_too(clock: VirtualClock) -> None:
    progress = job(clock, limit_scope="shared limit orders-db")
    clock.advance(1)
    progress.set_shared_limits(20_000, None)
    assert progress.status().spec.rows_per_second == 20_000
    assert progress.report().changes == ()
    assert progress.report().rows_per_second_limit == 20_000
    assert progress.report().limit_scope == "shared limit orders-db"
    clock.advance(1)
    progress.set_shared_limits(20_000, None)
    progress.set_shared_limits(20_000, None, "paused")
    assert progress.status().note == "paused"
    clock.advance(1)
    progress.set_shared_limits(10_000, 5_000)
    assert [
        (each.seconds, each.rows_per_second, each.note) for each in progress.report().changes
    ] == [
        (0.0, 20_000, ""),
        (2.0, 20_000, "paused"),
        (3.0, 10_000, ""),
    ]


def test_a_shared_limit_known_when_it_was_planned_is_shown_before_a_task_has_heard_of_it(
    clock: VirtualClock,
) -> None:
    progress = job(clock, shared_rows_per_second=20_000, limit_scope="shared limit orders-db")
    assert progress.status().spec.rows_per_second == 20_000
    clock.advance(1)
    progress.set_shared_limits(20_000, None)
    assert progress.report().changes == ()
    progress.set_shared_limits(10_000, None)
    assert [(each.seconds, each.rows_per_second) for each in progress.report().changes] == [
        (0.0, 20_000),
        (1.0, 10_000),
    ]


def test_of_an_own_and_a_shared_limit_the_tighter_one_is_shown(clock: VirtualClock) -> None:
    progress = job(clock, rows_per_second=100, limit_scope="shared limit orders-db")
    progress.set_shared_limits(500, 1_000)
    spec = progress.status().spec
    assert (spec.rows_per_second, spec.bytes_per_second) == (100, 1_000)
    progress.set_limits(800, None)
    assert progress.status().spec.rows_per_second == 500


def test_tasks_that_report_at_nearly_the_same_time_make_no_peaks(clock: VirtualClock) -> None:
    progress = job(clock)
    for step in range(1, 101):
        for task in (0, 1):
            clock.advance(0.001 if task else 0.499)
            progress.update(snapshot(task, task, 50 * step, sequence=step))
    assert all(
        each.rows_per_second == pytest.approx(200, rel=0.6) for each in progress.report().samples
    )


def test_no_sample_is_faster_than_the_rows_were(clock: VirtualClock) -> None:
    """Two tasks of 50 rows/s report each 0.6 s at their own times: the sum per second was 120 and 60."""
    progress = JobProgress("j", JobSpec("read", rows_per_second=100), clock=clock)
    reports = sorted(
        (first + 0.6 * number, task, number)
        for task, first in ((0, 0.01), (1, 0.05))
        for number in range(1, 20)
    )
    for at, task, number in reports:
        clock.advance(at - clock.now())
        age = 0.6 * number
        progress.update(
            Snapshot(
                task=task, attempt=0, sequence=number, rows_pushed=round(50 * age), seconds=age
            )
        )
    _, speeds = by_the_second(progress.report().samples, "rows_per_second")
    assert max(speeds) == pytest.approx(100, rel=0.02)


def test_samples_stay_few_and_keep_every_row(clock: VirtualClock) -> None:
    progress = job(clock)
    for step in range(1, 6001):
        clock.advance(0.5)
        progress.update(snapshot(rows=50 * step, sequence=step))
    samples = progress.report().samples
    assert 500 <= len(samples) <= 1200
    assert all(each.rows_per_second == pytest.approx(100, rel=0.01) for each in samples)
    assert samples[-1].seconds == pytest.approx(3000)


def test_a_report_keeps_the_limits_that_were_in_force_and_both_ends_speed(
    clock: VirtualClock,
) -> None:
    progress = JobProgress("j", JobSpec("write", rows_per_second=100), clock=clock)
    progress.update(Snapshot(task=0, attempt=0, sequence=1))
    clock.advance(2)
    progress.set_limits(100, None, "paused")
    clock.advance(1)
    progress.set_limits(50, None)
    progress.update(Snapshot(task=0, attempt=0, sequence=2, rows_pushed=300, rows_written=150))
    report = progress.report()
    assert [(each.seconds, each.rows_per_second, each.note) for each in report.changes] == [
        (0.0, 100, ""),
        (2.0, 100, "paused"),
        (3.0, 50, ""),
    ]
    assert report.samples[-1].rows_per_second == pytest.approx(100)
    assert report.samples[-1].rows_written_per_second == pytest.approx(50)


def test_rows_that_spark_wrote_by_itself_have_a_speed_too() -> None:
    """A job of Spark's formats has no tasks that report: 1 000 rows in 5 s were shown as 0 rows/s."""
    clock = VirtualClock()
    job = JobProgress("j", JobSpec("transfer"), clock=clock)
    clock.advance(5)
    job.enter(Phase.DONE, rows=1000)
    report = job.report()
    assert (report.rows, report.rows_moved, report.rows_per_second) == (1000, 1000, 200.0)
    assert str(report).startswith("copied 1 000 rows in 5.0 s: 200 rows/s\n")


def plotted(field: str, steps: Sequence[tuple[float, int, int]]) -> list[float]:
    """The plot of a job of one task, which has pushed and written so many rows at each of these seconds."""
    clock = VirtualClock()
    job = JobProgress("j", JobSpec("write", rows_per_second=100), clock=clock)
    counters = Counters(0, 1, clock=clock)
    at, pushed, written = 0.0, 0, 0
    for seconds, pushed_by_now, written_by_now in steps:
        clock.advance(seconds - at)
        counters.pushed(pushed_by_now - pushed, 8 * (pushed_by_now - pushed))
        counters.wrote(written_by_now - written, 8 * (written_by_now - written))
        at, pushed, written = seconds, pushed_by_now, written_by_now
        job.update(counters.snapshot())
    return by_the_second(job.report().samples, field)[1]


@pytest.mark.parametrize("behind", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("rows", [30, 70, 130, 270])
def test_rows_that_are_counted_when_their_transaction_ends_are_not_plotted_above_the_limit(
    rows: int, behind: float
) -> None:
    """100 rows/s, `behind` seconds behind, reported each half second: some seconds had two transactions, some none."""
    steps = []
    for each in range(1, 41):
        written = max(0, 50 * each - round(100 * behind))
        steps.append((each / 2, 50 * each, written // rows * rows))
    speeds = plotted("rows_written_per_second", steps)
    assert sum(speeds) == pytest.approx(steps[-1][2], rel=0.01)
    assert max(speeds[5:]) <= 112
    assert plotted("rows_per_second", steps) == pytest.approx([100.0] * 20)


def test_rows_of_after_a_pause_are_not_plotted_into_it() -> None:
    steps = [
        (1.0, 100, 100),
        *((float(each), 100, 100) for each in range(2, 6)),
        (6.0, 200, 200),
        (7.0, 300, 300),
    ]
    assert plotted("rows_written_per_second", steps) == pytest.approx([100, 0, 0, 0, 0, 100, 100])


def test_a_source_that_gives_its_first_row_late_is_slow_and_not_late_to_start() -> None:
    """22 831 rows in 0.9 s, of which half went by before the first one, were 54.1k rows/s "over the 0.4 s"."""
    clock = VirtualClock()
    job = JobProgress("j", JobSpec("read"), clock=clock)
    counters = Counters(0, 1, clock=clock)
    for seconds, rows in ((0.6, 0), (0.4, 1000)):
        clock.advance(seconds)
        counters.pushed(rows, 8 * rows)
        job.update(counters.snapshot())
    job.enter(Phase.DONE)
    report = job.report()
    assert (report.moving_seconds, report.rows_per_second) == (1.0, 1000.0)
    assert str(report).startswith("read 1 000 rows (8kB) in 1.0 s: 1k rows/s\n")
    edges, values = by_the_second(report.samples, "rows_per_second")
    assert edges == [0.0, 1.0]
    assert values == [pytest.approx(1000.0)]


def test_columns_are_named_with_their_types_as_far_as_there_is_room() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    assert JobColumn.from_schema(schema) == (
        JobColumn("id", "int64"),
        JobColumn("at", "timestamp[us]"),
    )
    wide = pa.schema([(f"c{n}", pa.int64()) for n in range(1_001)])
    assert JobColumn.from_schema(wide) == ()
    (cut,) = JobColumn.bounded([JobColumn("v", "x" * 300, ("a",), "hashed")])
    assert (cut.type, cut.origins, cut.how) == ("x" * 200, ("a",), "hashed")


def test_the_smaller_of_two_limits_holds() -> None:
    assert [tighter(2, 3), tighter(None, 3), tighter(2, None), tighter(None, None)] == [
        2,
        3,
        2,
        None,
    ]


def test_a_batch_of_a_stream_is_told_from_other_jobs(clock: VirtualClock) -> None:
    jobs = [JobProgress("j", JobSpec("read", batch=number), clock=clock) for number in (None, 0, 7)]
    assert [is_batch(job) for job in jobs] == [False, True, True]
