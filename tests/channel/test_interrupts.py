"""Interrupts, as a notebook's stop button sends them: the channel's lock never stays locked."""

import ctypes
import threading
import time
from collections.abc import Callable

import pytest

from spark_channel.channel import MemoryChannel, TransactionState
from tests.channel.helpers import conserved, numbers, rows


class Interrupt(BaseException):
    """Raised in another thread, between any two of its steps."""


def interrupt(thread: threading.Thread) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupt))


class Busy:
    """A thread that does `work` again and again, whatever interrupts it."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.interrupts = 0
        self.working = True
        self.thread = self.start()

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        return thread

    def run(self) -> None:
        try:
            while self.working:
                try:
                    while self.working:
                        self.work()
                except Interrupt:
                    self.interrupts += 1
        except Interrupt:  # it came between the loops
            self.interrupts += 1

    def disturb(self, times: int) -> None:
        for _ in range(times):
            if not self.thread.is_alive():
                self.thread = self.start()
            interrupt(self.thread)
            time.sleep(0.00002)
        self.working = False
        self.thread.join(20)
        assert not self.thread.is_alive()


def push_and_pull(channel: MemoryChannel) -> None:
    channel.push(rows(3))
    channel.pull_all(2)
    channel.drain()


def exchange(channel: MemoryChannel) -> None:
    transaction = channel.transaction()
    if transaction.state is not TransactionState.NEW:  # what an interrupt left
        if transaction.state is TransactionState.OPEN:
            transaction.rollback()
        transaction.close()
        transaction = channel.transaction()
    with transaction:
        transaction.put(rows(3))
        transaction.take()
    channel.drain()


@pytest.mark.parametrize("work", [push_and_pull, exchange])
def test_an_interrupt_at_any_step_leaves_the_lock_free(work: Callable[[MemoryChannel], None]) -> None:
    channel = MemoryChannel(keep_alive=0)
    heard: list[None] = []
    channel.add_listener(lambda: heard.append(None))
    busy = Busy(lambda: work(channel))
    busy.disturb(2_500)
    assert busy.interrupts > 100
    lock = channel._core._lock
    assert lock.acquire(timeout=5)
    lock.release()
    channel.drain()
    assert channel.push(rows(1, 7)) is True
    assert numbers(channel.drain()) == [7]


def test_who_is_interrupted_while_it_waits_leaves_its_queue() -> None:
    class StopError(Exception):
        """Raised by the clock, as a signal handler would inside a wait."""

    class Clock:
        def now(self) -> float:
            return 0.0

        def sleep(self, seconds: float) -> None:
            raise AssertionError

        def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
            raise StopError

    waiting = MemoryChannel(capacity_rows=2, clock=Clock())
    waiting.push(rows(2))
    for count in (1, 5):
        with pytest.raises(StopError):
            waiting.push(rows(count))
    with pytest.raises(StopError), waiting.transaction() as transaction:
        transaction.put(rows(1))
    assert numbers(waiting.drain()) == [0, 1]
    with pytest.raises(StopError):
        waiting.pull()
    assert waiting.push(rows(2, 10)) is True
    assert numbers(waiting.drain()) == [10, 11]
    s = waiting.statistics()
    assert (s.rows_failed, s.rows_reserved, s.rows_stored) == (7, 0, 0)
    conserved(waiting)
