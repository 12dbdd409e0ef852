"""SIGTERM as a request to end, which docker, Kubernetes and systemd send before they kill."""

import queue
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from spark_channel.main_thread import woken_by_signals

__all__ = ["Sigterm"]


class Sigterm:
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
            self._thread = threading.Thread(target=self._wait, name="spark-channel-sigterm", daemon=True)
            self._thread.start()
            signal.signal(signal.SIGTERM, self._handle)
            self._held.enter_context(woken_by_signals())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()
        if self._thread is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._news.put(False)
            self._thread.join()

    def _handle(self, _number: int, _frame: Any) -> None:
        self.came = True
        self._news.put(True)  # safe in a signal handler, as no lock of a condition is

    def _wait(self) -> None:
        while self._news.get():
            self._ended()
