"""SIGTERM ends a command as Ctrl-C does: the job is cancelled, and what it staged is removed."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from spark_channel.main_thread import wake_on_signals, woken_by_signals

__all__ = ["ending_on_signals", "ending_on_sigterm", "raise_if_ended"]

_heard: list[type[BaseException]] = []


class _Terminated(SystemExit):
    def __init__(self) -> None:
        from spark_channel.main_thread import TERMINATED

        super().__init__(TERMINATED)

    def __str__(self) -> str:
        return "ended by SIGTERM"


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # again: the end is under way
    _heard.append(_Terminated)
    raise _Terminated


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _heard.append(KeyboardInterrupt)
    raise KeyboardInterrupt


def ending_on_signals() -> None:
    """From now on, Ctrl-C and SIGTERM raise in the main thread, also beside Spark, and `raise_if_ended` tells of them.

    Spark's own handler calls the JVM from within the call that it interrupts, which breaks both.
    """
    _heard.clear()
    wake_on_signals()
    signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def raise_if_ended(error: Exception) -> None:
    """What a signal raised amid a call of the JVM may have been lost there, and show as any error of the call after it.

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
