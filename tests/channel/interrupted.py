"""A program that interrupts a channel with real signals, and says what it found; run by `test_interrupts`.

A timer of the operating system raises `KeyboardInterrupt` in the main thread, a little later each time, until
the work ends first. So every step is hit where CPython delivers signals, and nowhere else.
"""

import faulthandler
import json
import signal
import sys
import time
from collections.abc import Callable

from spark_channel.channel import MemoryChannel, TransactionState, Wait
from tests.channel.helpers import numbers, rows

ROWS = 3
STEPS = 400
"""In each of which a whole quick run of the work is divided."""
UNTOUCHED = 20
"""So often in a row the work ends first: the sweep is through."""
SECONDS = 30


class TwoRows:
    """A limiter that takes two rows at once, and each payment at once: the channel alone is under test."""

    def slice_size(self) -> tuple[int | None, int | None]:
        return 2, None

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> "TwoRows":
        return self

    def remaining(self) -> Wait:
        return Wait(0.0)

    def cancel(self) -> None:
        pass


def push_and_pull(channel: MemoryChannel) -> None:
    channel.push(rows(ROWS))
    channel.pull_all(2)
    channel.drain()


def push_in_slices(channel: MemoryChannel) -> None:
    channel.push(rows(8))
    channel.pull()


def exchange(channel: MemoryChannel) -> None:
    with channel.transaction() as transaction:
        transaction.put(rows(ROWS))
        transaction.take()
    with channel.transaction() as transaction:
        transaction.take()


def resize(channel: MemoryChannel) -> None:
    channel.push(rows(ROWS))
    channel.resize(capacity_rows=50)
    channel.resize(capacity_rows=100)


WORKS: dict[str, tuple[Callable[[], MemoryChannel], Callable[[MemoryChannel], None]]] = {
    "push_and_pull": (lambda: MemoryChannel(100, keep_alive=0), push_and_pull),
    "push_in_slices": (lambda: MemoryChannel(100, limiter=TwoRows()), push_in_slices),
    "exchange": (lambda: MemoryChannel(100, keep_alive=0), exchange),
    "resize": (lambda: MemoryChannel(100, keep_alive=0), resize),
}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Alarm:
    """Interrupts while it is set. Another thread may get the signal, and pass it on later."""

    is_set = False

    def __call__(self, *_: object) -> None:
        if self.is_set:
            raise KeyboardInterrupt


alarm = Alarm()


def interrupt(work: Callable[[], object], after: float) -> bool:
    """Was it interrupted before its end?"""
    try:
        alarm.is_set = True
        signal.setitimer(signal.ITIMER_REAL, after)
        work()
        alarm.is_set = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        alarm.is_set = False
        return True
    return False


def lets_through(use: Callable[[], object]) -> bool:
    try:
        use()
    except KeyboardInterrupt:
        return False
    return True


def check(channel: MemoryChannel) -> bool:
    """Has it failed? If not, it holds what it says and continues unharmed."""
    left: list[int] = []
    lock = channel._queue._lock
    assert lock.acquire(timeout=30), "the lock stayed locked"
    lock.release()
    transaction = channel.transaction()
    if transaction.state is TransactionState.OPEN:
        transaction.rollback()
    if transaction.state is not TransactionState.CLOSED:
        transaction.close()
    if not lets_through(lambda: left.extend(numbers(channel.drain()))):
        assert not lets_through(channel.pull), "a failed channel gave something"
        assert not lets_through(lambda: channel.push(rows(1))), "a failed channel took something"
        return True
    s = channel.statistics()
    assert s.rows_pushed == s.rows_pulled + s.rows_stored, s
    assert s.bytes_pushed == s.bytes_pulled + s.bytes_stored, s
    assert (s.rows_stored, s.bytes_stored, s.rows_reserved, s.bytes_reserved, s.rows_held) == (
        0,
        0,
        0,
        0,
        0,
    ), s
    core = channel._queue
    waiting = [*core._requests, *core._readers, *core._payers, *core._sleeping]
    assert waiting == []
    assert left == sorted(left), left
    assert channel.push(rows(2, 7)) is True
    assert numbers(channel.drain()) == [7, 8]
    return False


def sweep(
    make: Callable[[], MemoryChannel], work: Callable[[MemoryChannel], None]
) -> dict[str, int]:
    """Sweeps until both ends were seen: a timer that comes late steps over the few microseconds of a change."""
    quickest = min(seconds(lambda: work(make())) for _ in range(200))
    found = {"untouched": 0, "failed": 0, "whole": 0}
    end = time.monotonic() + SECONDS
    while not (found["failed"] and found["whole"]) and time.monotonic() < end:
        after, in_a_row = 0.0, 0
        while in_a_row < UNTOUCHED:
            after += quickest / STEPS
            channel = make()
            hit = interrupt(lambda c=channel: work(c), max(1e-6, after))  # type: ignore[misc] # mypy infers no lambda with a default
            in_a_row = 0 if hit else in_a_row + 1
            found["untouched" if not hit else "failed" if check(channel) else "whole"] += 1
    return found


if __name__ == "__main__":
    # CPython swallows what interrupts a destructor, and says so.
    sys.unraisablehook = lambda _: None
    faulthandler.dump_traceback_later(50, exit=True)
    signal.signal(signal.SIGALRM, alarm)
    print(json.dumps(sweep(*WORKS[sys.argv[1]])))
