"""Hears that Spark wants no more of a running read.

Spark tells a Python worker nothing when a LIMIT is satisfied or a task is cancelled: it closes the
worker's socket, and the worker notices with its next flush, which a throttled read reaches late. The
sockets that are open when `read()` begins are watched instead (Linux; elsewhere the next flush tells).
"""

import os
import select
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["HangupWatch"]

_DESCRIPTORS = Path("/proc/self/fd")


class HangupWatch:
    """Calls `on_hangup` once, from its own thread, when the other side closes one of this process's sockets.

    Made when `read()` begins, before anything opens sockets of its own; the thread starts with
    `with` and is gone when the block ends.
    """

    def __init__(self, on_hangup: Callable[[], None]) -> None:
        self._on_hangup = on_hangup
        self._sockets = _open_sockets()
        self._thread: threading.Thread | None = None
        self._stop_write = -1

    def __enter__(self) -> Self:
        if self._sockets:
            stop_read, self._stop_write = os.pipe()
            self._thread = threading.Thread(
                target=self._watch, args=(stop_read,), name="spark-channel-hangup", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        os.close(self._stop_write)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._thread = None

    def _watch(self, stop_read: int) -> None:
        poller = select.poll()
        poller.register(stop_read, 0)
        for descriptor in self._sockets:
            poller.register(descriptor, 0)  # POLLHUP, POLLERR and POLLNVAL are always reported
        try:
            while True:
                for descriptor, event in poller.poll():
                    if descriptor == stop_read:
                        return
                    if event & select.POLLNVAL:
                        poller.unregister(descriptor)
                        continue
                    self._on_hangup()
                    return
        finally:
            os.close(stop_read)


def _open_sockets() -> list[int]:
    try:
        descriptors = [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
    except OSError:
        return []
    found = []
    for descriptor in descriptors:
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                found.append(descriptor)
        except OSError:
            continue  # the listing's own descriptor, closed by now
    return found
