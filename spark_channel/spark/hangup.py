"""Detects that Spark needs no more rows of a running read.

Spark tells a Python worker nothing when a LIMIT is satisfied or a task is cancelled: it closes the
worker's socket, and the worker notices with its next flush, which a throttled read reaches late. So that
socket is watched; in a worker without pyspark's daemon all sockets that are open when `read()` begins, of which it is
one (Linux; elsewhere the next flush tells).
"""

import contextlib
import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, cast

from spark_channel.spark.daemon_worker import connection_to_the_jvm

__all__ = ["HangupWatch"]

_DESCRIPTORS = Path("/proc/self/fd")


class HangupWatch:
    """Calls back once, from its own thread, when Spark's JVM closes this process's socket.

    Made when `read()` begins, before anything else opens sockets.
    """

    def __init__(self) -> None:
        # A connection that other code of a worker keeps, say to an object store, may end at any time.
        connection = connection_to_the_jvm()
        self._sockets = (
            _alive(_open_descriptors()) if connection is None else _sockets_at([connection.fileno()])
        )

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
            # Not by closing it: a poll that holds it, by the number of a socket that was closed, would keep it open.
            os.write(stop_write, b"x")
            thread.join()
            os.close(stop_write)
            os.close(stop_read)

    def _watch(self, stop_read: int, on_hangup: Callable[[], None]) -> None:
        poller = select.poll()
        poller.register(stop_read, select.POLLIN)
        for descriptor, inode in self._sockets.items():
            if _socket_at(descriptor) == inode:  # else it was closed, and its number may be another's by now
                poller.register(descriptor, 0)  # POLLHUP, POLLERR and POLLNVAL are always reported
        while True:
            for descriptor, event in poller.poll():
                if descriptor == stop_read:
                    return
                if event & select.POLLNVAL or _socket_at(descriptor) != self._sockets[descriptor]:
                    poller.unregister(descriptor)
                    continue
                on_hangup()
                return


class _QuietAfterHangup:
    """The standard error of a worker, silent once the JVM has hung up.

    pyspark prints the traceback of the BrokenPipeError that its next flush meets, for each worker that a LIMIT ends.
    It stays for the rest of the worker's life, since pyspark prints when the task is long over.
    """

    def __init__(self, stream: TextIO, sockets: Mapping[int, int]) -> None:
        self._stream = stream
        self._sockets = sockets
        self._poller = select.poll()
        for descriptor in sockets:
            self._poller.register(descriptor, 0)

    def write(self, text: str) -> int:
        return len(text) if self._has_hung_up() else self._stream.write(text)

    def _has_hung_up(self) -> bool:
        return any(
            event & (select.POLLHUP | select.POLLERR)
            and _socket_at(descriptor) == self._sockets[descriptor]  # else the number is another's by now
            for descriptor, event in self._poller.poll(0)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _open_descriptors() -> list[int]:
    try:
        return [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
    except OSError:
        return []


def _sockets_at(descriptors: Iterable[int]) -> dict[int, int]:
    """Descriptor -> inode."""
    found = {descriptor: _socket_at(descriptor) for descriptor in descriptors}
    return {descriptor: inode for descriptor, inode in found.items() if inode is not None}


def _alive(descriptors: Iterable[int]) -> dict[int, int]:
    """Those that have not hung up yet. The others are not Spark's, which waits for rows, but were lost by user code."""
    sockets, poller = _sockets_at(descriptors), select.poll()
    for descriptor in sockets:
        poller.register(descriptor, 0)
    lost = {descriptor for descriptor, _ in poller.poll(0)}
    return {descriptor: inode for descriptor, inode in sockets.items() if descriptor not in lost}


def _socket_at(descriptor: int) -> int | None:
    """The inode of the socket that has this number; None = it is closed, or no socket."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None
