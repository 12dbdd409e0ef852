"""SIGTERM ends a command as Ctrl-C does: the job is cancelled, and what it staged is removed."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["ending_on_sigterm", "terminate"]


class _Terminated(SystemExit):
    def __init__(self) -> None:
        from spark_channel.cli.codes import TERMINATED

        super().__init__(TERMINATED)

    def __str__(self) -> str:
        return "ended by SIGTERM"


def terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # again: the end is under way
    raise _Terminated


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """While the block runs, SIGTERM raises `SystemExit` in the main thread: docker, Kubernetes and systemd ask so."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
