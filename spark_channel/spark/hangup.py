"""Hears that Spark wants no more of a running read.

Spark tells a Python worker nothing when a LIMIT is satisfied or a task is cancelled: it closes the
worker's socket, and the worker notices with its next flush, which a throttled read reaches late. The
sockets that are open when `read()` begins are watched instead (Linux; elsewhere the next flush tells).
"""

import contextlib
import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

__all__ = ["HangupWatch"]

_DESCRIPTORS = Path("/proc/self/fd")


class HangupWatch:
    """Calls back once, from its own thread, when the other side closes one of this process's sockets.

    Made when `read()` begins, before anything else opens sockets.
    """

    def __init__(self) -> None:
        self._sockets = _open_sockets()

    @contextlib.contextmanager
    def calling(self, on_hangup: Callable[[], None]) -> Iterator[None]:
        """Watch while the block runs; the thread is gone when it ends."""
        if not self._sockets:
            yield
            return
        if not isinstance(sys.stderr, _QuietAfterHangup):
            sys.stderr = cast("TextIO", _QuietAfterHangup(sys.stderr, self._sockets))
        stop_read, stop_write = os.pipe()
        thread = threading.Thread(
            target=self._watch, args=(stop_read, on_hangup), name="spark-channel-hangup", daemon=True
        )
        try:
            thread.start()
            yield
        finally:
            os.close(stop_write)
            thread.join()

    def _watch(self, stop_read: int, on_hangup: Callable[[], None]) -> None:
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
                    on_hangup()
                    return
        finally:
            os.close(stop_read)


class _QuietAfterHangup:
    """The standard error of a worker, silent once the JVM has hung up.

    pyspark prints the traceback of the BrokenPipeError that its next flush meets, for each worker that a LIMIT ends.
    It stays for the rest of the worker's life, since pyspark prints when the task is long over.
    """

    def __init__(self, stream: TextIO, sockets: list[int]) -> None:
        self._stream = stream
        self._poller = select.poll()
        for descriptor in sockets:
            self._poller.register(descriptor, 0)

    def write(self, text: str) -> int:
        return len(text) if self._has_hung_up() else self._stream.write(text)

    def _has_hung_up(self) -> bool:
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in self._poller.poll(0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
