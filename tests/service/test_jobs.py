"""The book of jobs, on a virtual clock: who opens, who closes, and when."""

import logging
import threading

import pytest

from spark_channel.progress import Counters, JobProgress, JobSpec, Phase, Snapshot
from spark_channel.service import JobRegistry, run_id
from spark_channel.testing import VirtualClock
from tests.service.helpers import Listener

SPEC = JobSpec("read", source="csv x", tasks=2)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def heard() -> Listener:
    return Listener()


@pytest.fixture
def book(clock: VirtualClock, heard: Listener) -> JobRegistry:
    book = JobRegistry(clock=clock, idle_seconds=5.0, keep=3)
    book.subscribe(heard)
    return book


def done(task: int, rows: int = 10) -> Snapshot:
    counters = Counters(task, 100 + task)
    counters.pushed(rows, rows)
    counters.enter(Phase.DONE)
    return counters.snapshot()


def test_the_first_client_needs_the_spec_and_opens_the_job(
    book: JobRegistry, heard: Listener
) -> None:
    assert book.report("j", "a", []) is None
    assert heard.opened == []
    assert book.report("j", "a", [], spec=SPEC) == 0.5
    assert book.report("j", "b", [], spec=SPEC) == 0.5
    assert heard.opened == ["j"]


def test_a_job_ends_with_its_last_client_once_all_tasks_are_done(
    book: JobRegistry, heard: Listener
) -> None:
    book.report("j", "a", [done(0)], spec=SPEC, leaving=True)
    assert heard.closed == []
    book.report("j", "b", [], spec=SPEC)
    book.report("j", "b", [done(1)], leaving=True)
    assert [each.phase for each in heard.closed] == [Phase.DONE]
    assert heard.closed[0].report().rows == 20
    assert book.live() == []
    assert book.close_idle() is None


def test_settling_closes_what_nobody_works_on_and_what_goes_on_is_opened_again(
    book: JobRegistry, heard: Listener
) -> None:
    book.report("j", "a", [done(0)], spec=SPEC)
    book.settle()
    assert heard.closed == []
    book.report("j", "a", [], leaving=True)
    book.settle()
    assert len(heard.closed) == 1
    book.report("j", "b", [done(1)])
    assert heard.opened == ["j", "j"]
    book.report("j", "b", [], leaving=True)
    assert len(heard.closed) == 2
    assert heard.closed[-1].report().rows == 20


def test_without_a_client_it_is_closed_in_time_and_its_clock_stopped_before(
    book: JobRegistry, heard: Listener, clock: VirtualClock
) -> None:
    book.report("j", "a", [], spec=SPEC)
    clock.advance(1)
    book.report("j", "a", [done(0)], leaving=True)
    assert book.close_idle() == 5.0
    clock.advance(4.9)
    assert book.close_idle() == pytest.approx(0.1)
    assert heard.closed == []
    clock.advance(0.1)
    assert book.close_idle() is None
    assert heard.closed[0].phase is Phase.DONE
    assert heard.closed[0].report().seconds == 1.0


def test_a_killed_client_is_missed_and_its_job_has_failed(
    book: JobRegistry, heard: Listener, clock: VirtualClock
) -> None:
    book.report("j", "a", [Counters(0, 0).snapshot()], spec=SPEC)
    clock.advance(10)
    assert book.close_idle() == 5.0
    clock.advance(5)
    assert book.close_idle() is None
    report = heard.closed[0].report()
    assert (report.phase, report.error) == ("failed", "it ended before all its tasks were done")


def ended(task: int) -> Snapshot:
    counters = Counters(task, task)
    counters.read(10, 80)
    counters.pushed(10, 80)
    counters.enter(Phase.ENDED)
    return counters.snapshot()


def test_a_read_below_a_limit_has_ended_not_failed(
    book: JobRegistry, heard: Listener, clock: VirtualClock
) -> None:
    book.report("j", "a", [done(0), ended(1)], spec=SPEC, leaving=True)
    assert heard.closed == [], "a LIMIT may look at further tasks"
    clock.advance(1)
    assert book.close_idle() is None
    report = heard.closed[0].report()
    assert (report.phase, report.error, report.rows) == ("ended", "", 20)
    assert str(report).splitlines()[0].endswith("; Spark wanted no more, as with a LIMIT")


def running(task: int) -> Snapshot:
    counters = Counters(task, task)
    counters.pushed(10, 80)
    return counters.snapshot()


@pytest.mark.parametrize("failed", [False, True])
def test_a_program_that_ends_well_has_wanted_no_more_of_its_reads(
    book: JobRegistry, heard: Listener, failed: bool
) -> None:
    """`show()` as the last line of a script: its task had no time to say how it ended."""
    book.report("r", "a", [done(0), running(1)], spec=SPEC)
    book.open(JobSpec("write"), "w")
    book.close_all(failed=failed)
    phases = {each.job: each.phase for each in heard.closed}
    assert phases == {"r": Phase.FAILED if failed else Phase.ENDED, "w": Phase.FAILED}


def test_a_read_with_a_failed_task_has_failed_however_the_program_ends(
    book: JobRegistry, heard: Listener
) -> None:
    lost = Counters(0, 0)
    lost.enter(Phase.FAILED)
    book.report("r", "a", [lost.snapshot(), running(1)], spec=SPEC)
    book.close_all(failed=False)
    assert [each.phase for each in heard.closed] == [Phase.FAILED]


@pytest.mark.parametrize("leaves", [False, True])
def test_the_end_waits_for_clients_that_leave_and_for_no_driver(
    book: JobRegistry, clock: VirtualClock, leaves: bool
) -> None:
    book.open(JobSpec("write"), "w")
    book.report("w", "b", [running(0)])
    book.wait_left(2)  # returns: its driver says how it ended
    book.report("r", "a", [ended(0)], spec=SPEC)
    waiting = threading.Thread(target=book.wait_left, args=(2,))
    waiting.start()
    clock.wait_until_blocked(waiting)
    if leaves:
        book.report("r", "a", [], leaving=True)
    else:
        clock.advance(2)
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_failed_task_says_why_its_job_failed(
    book: JobRegistry, heard: Listener, clock: VirtualClock
) -> None:
    """It was "it ended before all its tasks were done", below the error itself."""
    failed = Counters(0, 0)
    failed.explain("too early")
    failed.enter(Phase.FAILED)
    failed.explain("a.csv, line 2: column 'id' cannot hold 'x'")
    failed.explain("the connection is closed")
    book.report(
        "j", "a", [Snapshot.from_json(failed.snapshot().to_json())], spec=SPEC, leaving=True
    )
    book.open(JobSpec("write"), "w")
    book.report("w", "b", [failed.snapshot()], spec=JobSpec("write"), leaving=True)
    book.enter("w", Phase.FAILED)
    clock.advance(5)
    book.close_idle()
    assert [each.report().error for each in heard.closed] == [
        "a.csv, line 2: column 'id' cannot hold 'x'"
    ] * 2


def test_a_retry_that_succeeds_leaves_no_error(
    book: JobRegistry, heard: Listener, clock: VirtualClock
) -> None:
    failed = Counters(0, 0)
    failed.enter(Phase.FAILED)
    failed.explain("the connection is closed")
    again = Counters(0, 7)
    again.enter(Phase.DONE)
    book.report("j", "a", [failed.snapshot(), again.snapshot(), done(1)], spec=SPEC, leaving=True)
    clock.advance(5)
    book.close_idle()
    report = heard.closed[0].report()
    assert (report.phase, report.error, report.retries) == ("done", "", 1)


def test_a_failed_task_beside_one_that_ended_is_a_failure(
    book: JobRegistry, heard: Listener, clock: VirtualClock
) -> None:
    failed = Counters(0, 0)
    failed.enter(Phase.FAILED)
    book.report("j", "a", [failed.snapshot(), ended(1)], spec=SPEC, leaving=True)
    clock.advance(5)
    book.close_idle()
    assert heard.closed[0].phase is Phase.FAILED


def test_tasks_that_come_late_open_the_job_again(
    book: JobRegistry, heard: Listener, clock: VirtualClock
) -> None:
    book.report("j", "a", [done(0)], spec=SPEC, leaving=True)
    clock.advance(5)
    book.close_idle()
    book.report("j", "b", [done(1)])
    assert heard.opened == ["j", "j"]
    assert book.find("j").phase is Phase.RUNNING
    book.report("j", "b", [], leaving=True)
    assert heard.closed[-1].report().rows == 20


def test_an_owned_job_is_closed_by_its_owner(
    book: JobRegistry, heard: Listener, clock: VirtualClock
) -> None:
    job = book.open(SPEC)
    book.report(job, "a", [done(0), done(1)], leaving=True)
    clock.advance(600)
    book.close_idle()
    assert heard.closed == []
    book.enter(job, Phase.PUBLISHING)
    clock.advance(3)
    book.enter(job, Phase.DONE, rows=19)
    book.enter(job, Phase.FAILED)
    assert len(heard.closed) == 1
    report = book.find(job).report()
    assert (report.phase, report.rows, report.publish_seconds) == ("done", 19, 3.0)
    book.report(job, "late", [done(0)])
    assert heard.opened == [job]


def test_an_owner_that_never_comes_back_is_not_waited_for_for_ever(
    book: JobRegistry, heard: Listener, clock: VirtualClock
) -> None:
    book.open(SPEC)
    clock.advance(3600)
    assert book.close_idle() is None
    assert len(heard.closed) == 1


def test_ids_are_taken_once(book: JobRegistry) -> None:
    book.open(SPEC, "j")
    with pytest.raises(ValueError, match="exists"):
        book.open(SPEC, "j")
    with pytest.raises(KeyError):
        book.enter("k", Phase.DONE)
    with pytest.raises(KeyError):
        book.find("k")


def test_only_the_last_closed_jobs_are_kept(book: JobRegistry) -> None:
    for number in range(5):
        book.enter(book.open(SPEC, f"j{number}"), Phase.DONE)
    with pytest.raises(KeyError):
        book.find("j1")
    assert book.find("j2").phase is Phase.DONE


def test_many_clients_report_less_often(book: JobRegistry) -> None:
    after = [book.report("j", f"c{number}", [], spec=SPEC) for number in range(1000)]
    assert after[0] == 0.5
    assert after[-1] == pytest.approx(1000 / 150)


def test_a_listener_that_fails_harms_nobody(
    book: JobRegistry, heard: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def job_opened(self, progress: JobProgress) -> None:
            raise RuntimeError("broken")

        def job_closed(self, progress: JobProgress) -> None:
            raise RuntimeError("broken")

    broken = Broken()
    book.subscribe(broken)
    with caplog.at_level(logging.ERROR):
        book.enter(book.open(SPEC), Phase.DONE)
    assert len(heard.closed) == 1
    assert len(caplog.records) == 2
    book.unsubscribe(broken)
    book.open(SPEC)
    assert len(caplog.records) == 2


def test_all_tasks_of_an_action_compute_one_job_and_two_actions_two() -> None:
    assert run_id("p", "7", 3) == run_id("p", "7", 4)
    assert (
        len({run_id("p", "7", 3), run_id("p", "8", 3), run_id("q", "7", 3), run_id("p", None, 3)})
        == 4
    )
    assert run_id("p", None, 3) != run_id("p", None, 4)
