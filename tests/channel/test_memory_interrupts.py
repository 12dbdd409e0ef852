"""Interrupts, as a notebook's stop button sends them: never a lock that stays locked, never a wrong count."""

import ctypes
import dis
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import pytest

from spark_channel.channel import MemoryChannel, Transaction, TransactionState
from spark_channel.errors import ChannelError
from tests.channel.helpers import Thread, conserved, numbers, rows
from tests.channel.interrupted import WORKS

ROOT = Path(__file__).resolve().parents[2]


class Interrupt(BaseException):
    """Raised in another thread, between any two of its steps."""


def interrupt(thread: threading.Thread) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupt)
    )


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


class InterruptedClock:
    """Whoever waits is interrupted."""

    def now(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError

    def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
        raise Interrupt


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


@pytest.mark.parametrize("name", WORKS)
def test_an_interrupt_at_any_microsecond_leaves_a_channel_that_is_whole_or_failed(
    name: str,
) -> None:
    """Signals need their own main thread. The program asserts what holds after each; both ends occur."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.channel.interrupted", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["failed"] > 0
    assert found["whole"] > 0


@pytest.mark.parametrize("work", [push_and_pull, exchange])
def test_interrupts_of_another_thread_leave_the_lock_free(
    work: Callable[[MemoryChannel], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A thread that is interrupted as it handles an interrupt dies of it, and one more may come while that is reported.
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    monkeypatch.setattr(sys, "unraisablehook", lambda _args: None)
    used: list[MemoryChannel] = []

    def use() -> None:
        if not used or used[-1].ended:
            used.append(MemoryChannel(keep_alive=0))
        work(used[-1])

    busy = Busy(use)
    busy.disturb(2_500)
    assert busy.interrupts > 100
    for channel in used:
        lock = channel._queue._lock
        assert lock.acquire(timeout=30)
        lock.release()
        if not channel.ended:
            channel.drain()
            conserved(channel)


def test_an_interrupted_change_wakes_who_waits() -> None:
    """Whoever was about to wake them was interrupted before it could."""
    channel = MemoryChannel(capacity_rows=2)
    channel.push(rows(2))
    blocked = [Thread(lambda: channel.push(rows(2))) for _ in range(3)]
    other = MemoryChannel()
    reader = Thread(other.pull)
    for each, waiting in (
        (channel, lambda: len(channel._queue._requests) == 3),
        (other, lambda: other._queue._readers),
    ):
        while not waiting():
            time.sleep(0.001)

        def interrupted() -> None:
            raise Interrupt

        with pytest.raises(Interrupt):
            each._queue._atomic(interrupted)
    for thread in (*blocked, reader):
        with pytest.raises(Interrupt):
            thread.result()


def test_a_listener_cut_short_hears_of_the_failure() -> None:
    channel = MemoryChannel()
    heard: list[bool] = []

    def listen() -> None:
        heard.append(channel.ended)
        if len(heard) == 1:
            raise Interrupt

    channel.add_listener(listen)
    with pytest.raises(Interrupt):
        channel.push(rows(1))
    assert heard == [False, True]
    with pytest.raises(Interrupt):
        channel.pull()


def test_an_interrupt_of_a_wait_leaves_the_channel_as_it_was() -> None:
    channel = MemoryChannel(capacity_rows=2, clock=InterruptedClock())
    channel.push(rows(2))
    with pytest.raises(Interrupt):
        channel.push(rows(1, 2))
    assert numbers(channel.drain()) == [0, 1]
    with pytest.raises(Interrupt):
        channel.pull()
    assert channel.push(rows(2, 10)) is True
    assert numbers(channel.drain()) == [10, 11]
    assert not channel.ended
    conserved(channel)


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


class _At:
    """Interrupts `code`, and what it calls, at one of the places where CPython lets a signal's handler in.

    These are the beginning of a function, and behind a call.
    """

    def __init__(self, code: CodeType, place: int) -> None:
        self.code, self.left = code, place
        self.inside = 0
        self.called: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> "_At | None":
        if event == "call":
            if not self.inside and frame.f_code is not self.code:
                return None
            if frame.f_code.co_name == "__del__":
                return None  # of another test's objects, collected now; Python reports what it raises, and continues
            frame.f_trace = self  # from Python 3.12 on, the first call has no opcodes without it
            frame.f_trace_opcodes = True
            self.inside += 1
            self.pass_one()
        elif event == "opcode":
            if frame in self.called:
                self.pass_one()
            self.called.discard(frame)
            if dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("CALL"):
                self.called.add(frame)
        elif event == "return":
            self.inside -= 1
        return self

    def pass_one(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupt


def test_an_interrupt_while_a_block_begins_leaves_no_open_transaction() -> None:
    """Its end does not run then, so nothing would close it."""
    channel = MemoryChannel(100, keep_alive=0)
    code = Transaction.__enter__.__code__
    for place in range(1, 100):
        tracer, old = _At(code, place), sys.gettrace()
        sys.settrace(tracer)
        try:
            with channel.transaction():
                sys.settrace(old)
        except Interrupt:
            pass
        finally:
            sys.settrace(old)
        left = channel.transaction()
        assert left.state is not TransactionState.OPEN, place
        left.close()
        if tracer.left > 0:
            break
    assert 3 < place < 99


@pytest.mark.parametrize("second", ["_is_foreseen", "_end_by", "_set_error", "_wake_all"])
@pytest.mark.parametrize("work", [push_and_pull, exchange])
def test_an_interrupt_of_what_follows_an_interrupt_leaves_a_channel_that_is_whole_or_failed(
    work: Callable[[MemoryChannel], None], second: str
) -> None:
    """The first one comes at each place of the work, the second one before the channel knows that it failed."""

    def cut(*_arguments: object) -> None:
        raise Interrupt

    failed, channels = 0, list[MemoryChannel]()  # the end of one is no place of the next one's work
    for place in range(1, 2_000):
        channel = MemoryChannel(100, keep_alive=0)
        channels.append(channel)
        channel.push(rows(5))
        setattr(channel._queue, second, cut)
        tracer, old = _At(work.__code__, place), sys.gettrace()
        sys.settrace(tracer)
        try:
            work(channel)
        except Interrupt:
            pass
        finally:
            sys.settrace(old)
        delattr(channel._queue, second)
        assert channel._queue._lock.acquire(blocking=False), place
        channel._queue._lock.release()
        if channel.ended:
            failed += 1
            with pytest.raises((Interrupt, ChannelError)):
                channel.push(rows(1))
        else:
            channel.drain()
            conserved(channel)
        if tracer.left > 0:
            break
    assert 10 < place < 1_999
    assert failed > 5
