"""Signals wake the main thread, which alone runs their handlers.

The system gives a signal to any thread of a process, often to one that was just made. A main thread that waits in a
call, for a lock or a socket, then learns nothing, and waits until that call returns.
"""

import os
import queue
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import Self

__all__ = [
    "TERMINATED",
    "SigtermHandler",
    "ending_on_signals",
    "ending_on_sigterm",
    "raise_if_ended",
    "wake_on_signals",
    "woken_by_signals",
]


TERMINATED = 143
"""The exit code of a program that SIGTERM has ended: 128 and the signal's number."""

_AGAIN_SECONDS = (0.01, 0.1, 1.0)
"""After a signal the main thread is woken at once, and again: it may have been about to begin its wait."""
_END = b"\0"


def wake_on_signals() -> None:
    """From now on. In the main thread, where no other part of the program learns of signals by a descriptor."""
    if _begins():
        _SignalThread.running = _SignalThread()


@contextmanager
def woken_by_signals() -> Iterator[None]:
    """While the block runs; see `wake_on_signals`."""
    if not _begins():
        yield
        return
    _SignalThread.running = relay = _SignalThread()
    try:
        yield
    finally:
        _SignalThread.running = None
        relay.end()


def _begins() -> bool:
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "pthread_kill"
    ):
        return False
    relay = _SignalThread.running
    if relay is not None and relay.is_alive():  # in a process that was forked it is not
        return False
    if signal.getsignal(signal.SIGURG) not in (signal.SIG_DFL, signal.SIG_IGN, _nothing):
        return False
    used = signal.set_wakeup_fd(-1)
    if used != -1 and (relay is None or used != relay.writable):
        signal.set_wakeup_fd(used)
        return False
    return True


class _SignalThread(threading.Thread):
    """Hears of each signal, and interrupts the main thread by one that means nothing."""

    running: "_SignalThread | None" = None

    def __init__(self) -> None:
        super().__init__(name="spark-channel-signals", daemon=True)
        self._main = threading.main_thread().ident or 0
        self._readable, self.writable = os.pipe()
        os.set_blocking(self.writable, False)
        self._before = signal.signal(signal.SIGURG, _nothing)
        self.start()
        signal.set_wakeup_fd(self.writable, warn_on_full_buffer=False)

    def end(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGURG, self._before)
        os.set_blocking(self.writable, True)
        os.write(self.writable, _END)
        self.join()
        os.close(self._readable)
        os.close(self.writable)

    def run(self) -> None:
        news, waits = select.poll(), list[float]()
        news.register(self._readable, select.POLLIN)
        while True:
            if news.poll(1000 * waits.pop(0) if waits else None):
                came = os.read(self._readable, 4096)
                if _END in came:
                    return
                if not set(came) - {signal.SIGURG}:
                    continue
                waits = list(_AGAIN_SECONDS)
            signal.pthread_kill(self._main, signal.SIGURG)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    pass


# SIGTERM ends a command as Ctrl-C does: the job is cancelled, and what it staged is removed.


_heard: list[type[BaseException]] = []


class Terminated(SystemExit):
    def __init__(self) -> None:

        super().__init__(TERMINATED)

    def __str__(self) -> str:
        return "ended by SIGTERM"


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # again: the end is under way
    _heard.append(Terminated)
    raise Terminated


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _heard.append(KeyboardInterrupt)
    raise KeyboardInterrupt


def ending_on_signals() -> None:
    """From now on, Ctrl-C and SIGTERM raise in the main thread, also beside Spark, and `raise_if_ended` reports them.

    Spark's own handler calls the JVM from within the call that it interrupts, which breaks both.
    """
    _heard.clear()
    wake_on_signals()
    signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def raise_if_ended(error: Exception) -> None:
    """An error that a signal raised in a call of the JVM may be lost there, and show as any error of the next call.

    Raises:
        KeyboardInterrupt, SystemExit: `error` came after a signal that ends the command. In the main thread.
    """
    if _heard and threading.current_thread() is threading.main_thread():
        raise _heard[-1]() from error


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """While the block runs, SIGTERM raises `SystemExit` in the main thread: docker, Kubernetes and systemd ask so."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with woken_by_signals():
            yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class SigtermHandler:
    """In a `with` block of the main thread, calls `ended` when SIGTERM comes; `came` says whether it did.

    A program that handles the signal itself keeps its handler, unless that has a true attribute `gives_way`, and in
    another thread nothing is changed. The handler takes no lock, since the main thread may hold any; another
    thread makes the call.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self.came = False
        self._news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        here = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        if here and (before is signal.SIG_DFL or getattr(before, "gives_way", False)):
            self._before = before
            self._thread = threading.Thread(
                target=self._wait, name="spark-channel-sigterm", daemon=True
            )
            self._thread.start()
            signal.signal(signal.SIGTERM, self._handle)
            self._held.enter_context(woken_by_signals())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held.close()
        if self._thread is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._news.put(False)
            self._thread.join()

    def _handle(self, _number: int, _frame: object) -> None:
        self.came = True
        self._news.put(True)  # safe in a signal handler, as no lock of a condition is

    def _wait(self) -> None:
        while self._news.get():
            self._ended()
