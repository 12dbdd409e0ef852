"""A clock that moves only when `advance` moves it, so that timing is tested without waiting.

In the spirit of trio's `MockClock`, for threads.
"""
# ruff: noqa: SLF001 - it replaces the inside of threading.Condition, and is one class in two parts

import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["VirtualClock"]


class VirtualClock:
    """A clock for tests. Time passes only when `advance` is called.

    Threads block in `wait` and `sleep`; `advance` wakes those whose time has come. Time is kept in
    whole nanoseconds, so ten times `advance(0.1)` is one second.

    `sleep` moves the time by itself when no other thread runs: when every other thread that has blocked on
    this clock is blocked on it again, or has ended. Then the thread whose time comes first is woken,
    one at a time (first come, first served among equals), so that every run goes the same way.
    A thread is known to the clock from the first time that it blocks on it until it ends, and counts as
    running whenever it is not blocked on it, also while it waits for something else. The thread that
    made the clock never counts as running: it is the test, which starts and joins the others.

    Args:
        start: the first value of `now`, in seconds.
        autojump: False: only `advance` ends a `sleep`.

    ```python
    import threading
    from spark_channel.channel import MemoryChannel
    from spark_channel.testing import VirtualClock

    clock = VirtualClock()
    channel = MemoryChannel(keep_alive=3.0, clock=clock)
    answers = []

    def consume():
        with channel.transaction() as transaction:
            answers.append(transaction.take())

    consumer = threading.Thread(target=consume)
    consumer.start()
    clock.wait_until_blocked(consumer)
    clock.advance(3.0)                                     # takes no time
    consumer.join()
    assert answers == [None]
    ```
    """

    def __init__(self, start: float = 0.0, *, autojump: bool = True) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._now = _nanoseconds(start)
        self._frozen = 0 if autojump else 1
        self._turns = 0
        self._blocked: dict[int, _Sleeper] = {}
        self._running: set[int] = set()
        self._watched: set[threading.Thread] = set()
        self._maker = threading.get_ident()
        self._local = threading.local()

    def now(self) -> float:
        """Seconds since the clock's zero."""
        with self._lock:
            return self._now / 1e9

    def sleep(self, seconds: float) -> None:
        """Block for `seconds` of this clock. Zero or less returns immediately."""
        if seconds <= 0:
            return
        sleeper = _Sleeper(self, sleeps=True)
        self._block(sleeper, seconds)
        try:
            sleeper.gate.acquire()
        finally:
            self._forget(sleeper)

    def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
        """`condition.wait(timeout)` on this clock: False when `timeout` seconds passed unnotified.

        The caller holds `condition`'s lock, and re-checks its predicate afterwards; `RuntimeError`
        without the lock. A timeout of zero or less returns False immediately.
        """
        # A sleeper takes the place of the lock that Condition keeps for a waiter, and notify() calls its release():
        # the only way to know at that very moment, before its thread runs, that it is no longer blocked.
        inside: Any = condition
        if not inside._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        if timeout is not None and timeout <= 0:
            return False
        sleeper = _Sleeper(self)
        inside._waiters.append(sleeper)
        self._block(sleeper, timeout)
        state = inside._release_save()
        try:
            sleeper.gate.acquire()
        finally:
            inside._acquire_restore(state)
            self._forget(sleeper)
            if not sleeper.notified and sleeper in inside._waiters:
                inside._waiters.remove(sleeper)
        return sleeper.notified

    def advance(self, seconds: float) -> None:
        """Move the time forward, and wake every thread whose timeout has passed.

        It does not wait for these threads: call `wait_until_blocked` on them, or join them.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        with self._lock:
            self._now += _nanoseconds(seconds)
            due = [
                s
                for s in self._blocked.values()
                if s.deadline is not None and s.deadline <= self._now
            ]
            for sleeper in sorted(due, key=_turn):
                self._wake(sleeper)

    def wait_until_blocked(
        self, threads: threading.Thread | Iterable[threading.Thread], timeout: float = 10.0
    ) -> None:
        """Return once each of `threads` is blocked on this clock, or has ended.

        `timeout`: real seconds; then `TimeoutError` names the threads that still run.
        """
        threads = [threads] if isinstance(threads, threading.Thread) else list(threads)
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                busy = [t for t in threads if t.ident not in self._blocked and t.is_alive()]
                remaining = deadline - time.monotonic()
                if busy and remaining <= 0:
                    names = ", ".join(thread.name for thread in busy)
                    raise TimeoutError(f"not blocked on the clock after {timeout:g} s: {names}")
                if not busy:
                    return
                unwatched = [thread for thread in busy if thread not in self._watched]
                self._watched.update(unwatched)
                if not unwatched:
                    self._changed.wait(remaining)
            for thread in unwatched:
                threading.Thread(target=self._tell_of_end, args=(thread,), daemon=True).start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """A context in which `sleep` does not move the time: start threads here that must start together."""
        with self._lock:
            self._frozen += 1
        try:
            yield
        finally:
            with self._lock:
                self._frozen -= 1
                self._jump_if_idle()

    def _tell_of_end(self, thread: threading.Thread) -> None:
        thread.join()
        with self._lock:
            self._watched.discard(thread)
            self._changed.notify_all()

    def _block(self, sleeper: "_Sleeper", seconds: float | None) -> None:
        with self._lock:
            self._turns += 1
            sleeper.turn = self._turns
            if seconds is not None:
                sleeper.deadline = self._now + _nanoseconds(seconds)
            self._running.discard(sleeper.thread)
            self._blocked[sleeper.thread] = sleeper
            self._jump_if_idle()
            self._changed.notify_all()
        if not hasattr(self._local, "presence"):
            self._local.presence = _Presence(self, sleeper.thread)

    def _jump_if_idle(self) -> None:
        if self._frozen or self._running or not any(s.sleeps for s in self._blocked.values()):
            return
        first = min((s for s in self._blocked.values() if s.deadline is not None), key=_turn)
        assert first.deadline is not None
        self._now = max(self._now, first.deadline)
        self._wake(first)

    def _wake(self, sleeper: "_Sleeper") -> None:
        if not sleeper.woken:
            sleeper.woken = True
            del self._blocked[sleeper.thread]
            if sleeper.thread != self._maker:
                self._running.add(sleeper.thread)
            sleeper.gate.release()

    def _notify(self, sleeper: "_Sleeper") -> None:
        with self._lock:
            sleeper.notified = True
            self._wake(sleeper)

    def _forget(self, sleeper: "_Sleeper") -> None:
        """An interrupted thread is no longer blocked."""
        with self._lock:
            self._wake(sleeper)

    def _ended(self, thread: int) -> None:
        with self._lock:
            self._running.discard(thread)
            self._jump_if_idle()
            self._changed.notify_all()


class _Sleeper:
    """One blocked thread. Also what a Condition sees as a waiter's lock, hence `release`."""

    __slots__ = ("clock", "deadline", "gate", "notified", "sleeps", "thread", "turn", "woken")

    def __init__(self, clock: VirtualClock, *, sleeps: bool = False) -> None:
        self.clock = clock
        self.thread = threading.get_ident()
        self.gate = threading.Lock()
        self.gate.acquire()
        self.deadline: int | None = None
        self.turn = 0
        self.sleeps = sleeps
        self.notified = False
        self.woken = False

    def release(self) -> None:
        self.clock._notify(self)


class _Presence:
    """Ends with its thread, and says so to the clock."""

    __slots__ = ("_clock", "_thread")

    def __init__(self, clock: VirtualClock, thread: int) -> None:
        self._clock = weakref.ref(clock)
        self._thread = thread

    def __del__(self) -> None:
        clock = self._clock()
        if clock is not None:
            clock._ended(self._thread)


def _turn(sleeper: _Sleeper) -> tuple[int, int]:
    assert sleeper.deadline is not None
    return sleeper.deadline, sleeper.turn


def _nanoseconds(seconds: float) -> int:
    """Whole nanoseconds; what is above zero stays above zero, or a loop over it would never end."""
    nanoseconds = round(seconds * 1e9)
    return 1 if seconds > 0 and nanoseconds == 0 else nanoseconds
