"""A clock that the test moves: which threads wake, when, and in which order."""

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from spark_channel.clock import Clock
from spark_channel.testing import VirtualClock


class Thread(threading.Thread):
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(target=work, daemon=True)
        self.start()

    def finish(self) -> None:
        self.join(20)
        assert not self.is_alive()


def test_it_is_a_clock() -> None:
    clock: Clock = VirtualClock(start=5.0)
    assert clock.now() == 5.0


def test_a_lone_sleep_moves_the_time_and_does_not_wait() -> None:
    clock = VirtualClock()
    began = time.monotonic()
    clock.sleep(1e6)
    clock.sleep(0)
    clock.sleep(-1)
    assert clock.now() == 1e6
    assert time.monotonic() - began < 5.0


def test_tenths_sum_to_whole_seconds() -> None:
    clock = VirtualClock()
    for _ in range(10):
        clock.advance(0.1)
    assert clock.now() == 1.0


def test_the_smallest_wait_is_not_nothing() -> None:
    clock = VirtualClock()
    clock.sleep(1e-15)
    assert clock.now() > 0.0


def test_time_does_not_go_back() -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_a_wait_ends_when_its_time_has_come_and_not_before() -> None:
    clock = VirtualClock()
    condition = threading.Condition()
    seen: list[bool] = []

    def wait() -> None:
        with condition:
            seen.append(clock.wait(condition, 3.0))

    waiter = Thread(wait)
    clock.wait_until_blocked(waiter)
    clock.advance(2.999999)
    clock.wait_until_blocked(waiter)
    assert seen == []
    clock.advance(0.000001)
    waiter.finish()
    assert seen == [False]


@pytest.mark.parametrize("lock", [threading.Lock, threading.RLock])
def test_a_notified_wait_says_so(lock: Callable[[], Any]) -> None:
    clock = VirtualClock()
    condition = threading.Condition(lock())
    seen: list[bool] = []

    def wait() -> None:
        with condition:
            seen.append(clock.wait(condition))

    waiter = Thread(wait)
    clock.wait_until_blocked(waiter)
    clock.advance(1e9)
    clock.wait_until_blocked(waiter)
    with condition:
        condition.notify()
    waiter.finish()
    assert seen == [True]


def test_a_recursive_lock_is_let_go_and_taken_again_in_full() -> None:
    clock = VirtualClock()
    lock = threading.RLock()
    condition = threading.Condition(lock)

    def wait() -> None:
        with lock, lock:
            clock.wait(condition)
            lock.release()
            lock.acquire()

    waiter = Thread(wait)
    clock.wait_until_blocked(waiter)
    with condition:
        condition.notify()
    waiter.finish()
    assert lock.acquire(blocking=False)


def test_notify_wakes_the_first_and_leaves_the_others() -> None:
    clock = VirtualClock()
    condition = threading.Condition()
    woken: list[int] = []

    def wait(n: int) -> None:
        with condition:
            clock.wait(condition)
            woken.append(n)

    waiters = []
    for n in range(3):
        waiters.append(Thread(lambda n=n: wait(n)))  # type: ignore[misc] # mypy infers no lambda with a default
        clock.wait_until_blocked(waiters)
    with condition:
        condition.notify()
    waiters[0].finish()
    clock.wait_until_blocked(waiters[1:])
    assert woken == [0]
    with condition:
        condition.notify_all()
    for waiter in waiters:
        waiter.finish()


def test_a_wait_that_timed_out_swallows_no_notice() -> None:
    clock = VirtualClock()
    condition = threading.Condition()
    seen: list[bool] = []

    def wait(timeout: float | None) -> None:
        with condition:
            seen.append(clock.wait(condition, timeout))

    hurried = Thread(lambda: wait(1.0))
    clock.wait_until_blocked(hurried)
    patient = Thread(lambda: wait(None))
    clock.wait_until_blocked(patient)
    clock.advance(1.0)
    hurried.finish()
    with condition:
        condition.notify()
    patient.finish()
    assert seen == [False, True]


def test_a_notice_that_meets_a_timeout_is_told() -> None:
    clock = VirtualClock()
    condition = threading.Condition()
    seen: list[bool] = []

    def wait() -> None:
        with condition:
            seen.append(clock.wait(condition, 1.0))

    waiter = Thread(wait)
    clock.wait_until_blocked(waiter)
    with condition:
        clock.advance(1.0)  # its time has come, but it cannot return yet
        condition.notify()  # and this notice is its own
    waiter.finish()
    assert seen == [True]


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_wait_of_no_time_returns(timeout: float) -> None:
    condition = threading.Condition()
    with condition:
        assert VirtualClock().wait(condition, timeout) is False


def test_a_wait_needs_the_lock() -> None:
    with pytest.raises(RuntimeError, match="un-acquired"):
        VirtualClock().wait(threading.Condition(), 1.0)


def sleepers(clock: VirtualClock, *periods: float, times: int) -> list[tuple[int, float]]:
    """Threads that sleep `times` times each, set off together: who woke when."""
    log: list[tuple[int, float]] = []

    def sleep(n: int, period: float) -> None:
        for _ in range(times):
            clock.sleep(period)
            log.append((n, clock.now()))

    threads = []
    with clock.frozen():
        for n, period in enumerate(periods):
            threads.append(Thread(lambda n=n, period=period: sleep(n, period)))  # type: ignore[misc] # mypy infers no lambda with a default
            clock.wait_until_blocked(threads)
    for thread in threads:
        thread.finish()
    return log


def test_sleepers_wake_in_the_order_of_their_times_in_every_run() -> None:
    expected = [
        (0, 1.0),
        (2, 1.0),
        (1, 1.5),
        (0, 2.0),
        (2, 2.0),
        (1, 3.0),
        (0, 3.0),
        (2, 3.0),
        (1, 4.5),
    ]
    for _ in range(20):
        assert sleepers(VirtualClock(), 1.0, 1.5, 1.0, times=3) == expected


def test_parallel_sleeps_do_not_add_up() -> None:
    clock = VirtualClock()
    sleepers(clock, *[1.0] * 8, times=5)
    assert clock.now() == 5.0


def test_a_sleep_waits_for_a_thread_that_runs() -> None:
    clock = VirtualClock()
    condition = threading.Condition()
    let_go = threading.Event()
    runs = threading.Event()

    def run() -> None:
        with condition:
            clock.wait(condition, 1.0)  # from here on it is known to the clock
        runs.set()
        let_go.wait(20)

    runner = Thread(run)
    clock.wait_until_blocked(runner)
    clock.advance(1.0)
    runs.wait(20)
    sleeper = Thread(lambda: clock.sleep(5.0))
    clock.wait_until_blocked(sleeper)
    assert clock.now() == 1.0
    let_go.set()  # it ends, and no other thread runs
    sleeper.finish()
    runner.finish()
    assert clock.now() == 6.0


def test_a_notified_thread_runs_from_the_moment_of_its_notice() -> None:
    clock = VirtualClock()
    condition = threading.Condition()
    log: list[str] = []

    def wait() -> None:
        with condition:
            clock.wait(condition)
        log.append(f"notified at {clock.now()}")

    waiter = Thread(wait)
    clock.wait_until_blocked(waiter)

    def notify() -> None:
        clock.sleep(1.0)
        with condition:
            condition.notify()
        clock.sleep(1.0)  # must not pass before the notified thread had its say
        log.append(f"slept until {clock.now()}")

    notifier = Thread(notify)
    waiter.finish()
    notifier.finish()
    assert log == ["notified at 1.0", "slept until 2.0"]


def test_without_autojump_only_advance_moves_the_time() -> None:
    clock = VirtualClock(autojump=False)
    sleeper = Thread(lambda: clock.sleep(2.0))
    clock.wait_until_blocked(sleeper)
    assert clock.now() == 0.0
    clock.advance(2.0)
    sleeper.finish()


def test_wait_until_blocked_names_who_runs() -> None:
    let_go = threading.Event()
    clock = VirtualClock()
    busy = threading.Thread(target=let_go.wait, args=(20,), name="busy-one", daemon=True)
    busy.start()
    with pytest.raises(TimeoutError, match="busy-one"):
        clock.wait_until_blocked(busy, timeout=0.05)
    let_go.set()
    clock.wait_until_blocked(busy)  # it ends
    busy.join(20)


def test_it_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    clock = VirtualClock()
    sleepers(clock, 1.0, 2.0, times=2)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()
    del clock
    gc.collect()
