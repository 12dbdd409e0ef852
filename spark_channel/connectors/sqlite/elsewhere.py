"""Opens the connection to a SQLite file: in this process, or in a child process with its own locks."""

import os
import sys
import threading
from pathlib import Path

from spark_channel.connectors.sqlite.apart import ChildConnection
from spark_channel.connectors.sqlite.connection import Connection, LocalConnection

__all__ = ["connect"]

_PER_CONNECTION = 2
"""How often ADBC opens the file: for its database, and for its connection."""
_LISTS = ("/proc/self/fd", "/dev/fd")
_ours: set[int] = set()
"""Descriptors of our library's connections."""
_lock = threading.RLock()
"""Reentrant: the garbage collector may close a connection while this thread opens another one."""


def connect(path: Path, uri: str) -> Connection:
    """Open a connection to `path`: in a child process, where one in this process could drop another connection's locks.

    The user's program may open the file during the connection, so there it is always a child. A Python worker of
    Spark runs only the job's code: there it is a child if something else has the file open. Two connections of
    spark-channel use one SQLite library, which knows both connections' locks.
    """
    if os.name == "nt":  # there a lock belongs to the handle that took it
        return LocalConnection(uri)
    if not _is_worker():
        return ChildConnection(uri)
    with _lock:
        before = _descriptors(path)
        if before is not None and before <= _ours:
            connection = _Noted(uri)
            new = (_descriptors(path) or set()) - before
            # One more: a thread opened the file in this moment. None counts as ours, which is safe.
            connection.note(new if len(new) == _PER_CONNECTION else set())
            return connection
    return ChildConnection(uri)


class _Noted(LocalConnection):
    """A connection whose descriptors count as ours until it is closed."""

    _own: frozenset[int] = frozenset()

    def note(self, descriptors: set[int]) -> None:
        self._own = frozenset(descriptors)
        _ours.update(descriptors)

    def close(self) -> None:
        with _lock:
            super().close()
            own, self._own = self._own, frozenset()
            _ours.difference_update(own)


def _is_worker() -> bool:
    """Whether this is a Python process of Spark's, where only tasks and planners of a job run."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _descriptors(path: Path) -> set[int] | None:
    """Return this process's descriptors of the file; None = the system does not list them."""
    try:
        file = path.stat()
    except OSError:
        return set()
    for each in _LISTS:
        try:
            names = os.listdir(each)  # noqa: PTH208 - the names are numbers
        except OSError:
            continue
        return {number for number in map(int, names) if _is_open_on(number, file)}
    return None


def _is_open_on(descriptor: int, file: os.stat_result) -> bool:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False  # the listing's own, or closed since
    return (found.st_ino, found.st_dev) == (file.st_ino, file.st_dev)


if hasattr(os, "register_at_fork"):  # a fork begins with the lock free
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
