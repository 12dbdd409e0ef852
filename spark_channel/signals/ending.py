"""SIGTERM ends a command as Ctrl-C does: the job is cancelled, and what it staged is removed."""

import atexit
import gc
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Self

from spark_channel.signals.waking import wake_on_signals, woken_by_signals

__all__ = [
    "TERMINATED",
    "SigtermHandler",
    "ending_on_signals",
    "ending_on_sigterm",
    "raise_if_ended",
]

TERMINATED = 143
"""The exit code of a program that SIGTERM has ended: 128 and the signal's number."""


_END_SECONDS = 3.5
"""With the cancelling of what servers still do, a program ends within 5 s; a supervisor kills it after 10 s or more."""
_NOT_ENDED = (
    b"spark-channel: SIGTERM has ended the program while a server did not answer; the next job removes what this one "
    b"staged\n"
)

_heard: list[type[BaseException]] = []


class Terminated(SystemExit):
    def __init__(self) -> None:
        super().__init__(TERMINATED)

    def __str__(self) -> str:
        return "ended by SIGTERM"


def _shorten_exit() -> None:
    """Leave out Python's last collection, which takes 1 to 3 s of a busy machine, where the process ends now."""
    atexit.register(gc.freeze)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # again: the end is under way
    _shorten_exit()
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
def ending_on_sigterm(leave: Callable[[], None] = lambda: None) -> Iterator[None]:
    """While the block runs, SIGTERM raises `SystemExit` in the main thread: docker, Kubernetes and systemd ask so.

    A block that has not ended after 3.5 s waits for a server that does not answer, and the program ends: what a job
    staged is then left to a later one, as after `kill -9`. `leave` is called before, and when SIGTERM has ended the
    block: for what threads that are left behind still do. Not for Ctrl-C or `sys.exit`, which a caller may catch,
    as a notebook does, while other threads go on with their jobs.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    is_heard = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal is_heard
        is_heard = True
        _terminate(number, frame)

    signal.signal(signal.SIGTERM, terminate)
    last = threading.Timer(_END_SECONDS, _exit, (leave,))
    last.daemon = True
    try:
        with woken_by_signals(last.start):
            yield
    except BaseException:
        last.cancel()  # the block has ended
        if is_heard:
            with suppress(Exception):  # the signal's error is raised
                leave()
        raise
    finally:
        last.cancel()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(leave: Callable[[], None]) -> None:
    try:
        with suppress(Exception):
            leave()
        # In a program that began without a standard error, that number may be a file of rows.
        if sys.__stderr__ is not None and select.select([], [2], [], 0)[1]:
            os.write(2, _NOT_ENDED)
    finally:
        os._exit(TERMINATED)


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
        _shorten_exit()
        self._news.put(True)  # safe in a signal handler, as no lock of a condition is

    def _wait(self) -> None:
        while self._news.get():
            self._ended()
