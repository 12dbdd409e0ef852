"""One policy of retries: transient errors are retried, with pauses that grow, until a deadline."""

import threading

import pytest
import stamina

from spark_channel.retry import Retry, commit_pauses
from spark_channel.testing import VirtualClock


class BusyError(Exception):
    """A transient error."""


class Work:
    """Fails so many times, and notes when it was called."""

    def __init__(
        self,
        clock: VirtualClock,
        fails: int,
        error: type[Exception] = BusyError,
        takes: float = 0.0,
    ) -> None:
        self.clock, self.fails, self.error, self.takes = clock, fails, error, takes
        self.called: list[float] = []

    def __call__(self) -> str:
        self.called.append(self.clock.now())
        self.clock.sleep(self.takes)
        if len(self.called) <= self.fails:
            raise self.error(f"attempt {len(self.called)}")
        return "done"


def is_busy(error: Exception) -> bool:
    return isinstance(error, BusyError)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_what_passes_is_done_again_with_pauses_that_grow(clock: VirtualClock) -> None:
    work, begin = Work(clock, 8), clock.now()
    assert Retry(600, first=0.1, longest=5, clock=clock).call(work, is_busy) == "done"
    pauses = [later - earlier for earlier, later in zip(work.called, work.called[1:], strict=False)]
    for number, pause in enumerate(pauses):
        base = min(5.0, 0.1 * 2**number)
        assert 0.5 * base <= pause <= 1.5 * base
    assert work.called[0] == begin


@pytest.mark.parametrize(("asked", "attempts"), [(30.0, 3), (59.0, 2), (61.0, 1)])
def test_a_server_is_left_alone_for_as_long_as_it_asks(
    clock: VirtualClock, asked: float, attempts: int
) -> None:
    """A pause that would end behind the deadline is not begun: what is asked before it would be refused."""
    work, begin = Work(clock, 1_000_000), clock.now()
    with pytest.raises(BusyError):
        Retry(60, clock=clock).call(work, lambda error: asked)
    assert work.called == pytest.approx([begin + n * asked for n in range(attempts)])


def test_the_last_attempt_begins_at_the_deadline_and_its_error_is_raised(
    clock: VirtualClock,
) -> None:
    work, begin = Work(clock, 1_000_000), clock.now()
    with pytest.raises(BusyError, match=r"attempt \d+"):
        Retry(60, clock=clock).call(work, is_busy)
    assert work.called[-1] == pytest.approx(begin + 60)
    assert 12 < len(work.called) < 40


def test_a_server_whose_every_session_is_lost_at_once_is_not_hammered(clock: VirtualClock) -> None:
    """A loop without a pause made 770 680 attempts in one second."""
    work = Work(clock, 10**9)
    with pytest.raises(BusyError):
        Retry(1, clock=clock).call(work, is_busy)
    assert len(work.called) < 15


def test_work_that_takes_longer_than_the_timeout_is_done_once(clock: VirtualClock) -> None:
    work = Work(clock, 9, takes=10)
    with pytest.raises(BusyError):
        Retry(5, clock=clock).call(work, is_busy)
    assert len(work.called) == 1


def test_without_a_timeout_there_is_one_attempt(clock: VirtualClock) -> None:
    work = Work(clock, 9)
    with pytest.raises(BusyError, match="attempt 1"):
        Retry(0, clock=clock).call(work, is_busy)
    assert len(work.called) == 1


@pytest.mark.parametrize("error", [ValueError, KeyError])
def test_other_errors_are_raised_at_once(clock: VirtualClock, error: type[Exception]) -> None:
    work = Work(clock, 9, error)
    with pytest.raises(error):
        Retry(60, clock=clock).call(work, is_busy)
    assert len(work.called) == 1


def test_an_interrupt_ends_it(clock: VirtualClock) -> None:
    called = []

    def work() -> None:
        called.append(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Retry(60, clock=clock).call(work, lambda _error: True)
    assert called == [1]


def test_many_that_lost_one_server_do_not_come_back_together() -> None:
    pauses = {Retry(60, first=1).pause(1) for _ in range(100)}
    assert len(pauses) > 90
    assert max(pauses) - min(pauses) > 0.5


def test_on_the_machine_s_clock_stamina_sleeps_and_tells_its_hooks() -> None:
    waits, failed = [], threading.Event()

    def work() -> int:
        if not failed.is_set():
            failed.set()
            raise BusyError
        return 7

    before = stamina.instrumentation.get_on_retry_hooks()
    stamina.instrumentation.set_on_retry_hooks([lambda details: waits.append(details.wait_for)])
    try:
        assert Retry(5, first=0.01).call(work, is_busy) == 7
    finally:
        stamina.instrumentation.set_on_retry_hooks(before)
    assert len(waits) == 1
    assert 0.005 <= waits[0] <= 0.015


def test_pauses_between_commits_grow_by_half_to_the_longest() -> None:
    pauses = commit_pauses(0.1, 1.0)
    seen = [next(pauses) for _ in range(400)]
    bounds = [min(0.1 * 1.5**number, 1.0) for number in range(400)]
    assert all(0.0 <= pause <= most + 1e-9 for pause, most in zip(seen, bounds, strict=True))
    assert max(seen[20:]) > 0.7
