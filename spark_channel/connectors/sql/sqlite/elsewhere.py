"""Whether this process has a SQLite file open by something else than the library that we use."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from spark_channel.connectors.sql.sqlite.apart import ChildConnection
from spark_channel.connectors.sql.sqlite.connection import Connection, LocalConnection

__all__ = ["connect"]

_LISTS = ("/proc/self/fd", "/dev/fd")
_ours: set[int] = set()
"""Descriptors of our library's connections."""
_lock = (
    threading.RLock()
)  # a connection may be closed by the garbage collector, in the middle of another one's opening


def connect(path: Path, uri: str) -> Connection:
    """A connection to `path`: in a child process, where one in this process could drop somebody's locks.

    That is: something else has the file open, or a program of the user has Python's `sqlite3` loaded, and may open
    the file while our connection lasts. Two connections of ours are of one library, and know each other's locks.
    """
    if os.name == "nt":  # there a lock belongs to the handle that took it
        return LocalConnection(uri)
    if "_sqlite3" in sys.modules and not _is_worker():
        return ChildConnection(uri)
    with _lock:
        before = _descriptors(path)
        if before is not None and before <= _ours:
            connection = LocalConnection(uri)
            new = (_descriptors(path) or set()) - before
            # Two new ones: a thread opened the file in this moment. Neither counts as ours, which is safe.
            own = new if len(new) == 1 else set()
            _ours.update(own)
            return _Noted(connection, lambda: _ours.difference_update(own))
    return ChildConnection(uri)


class _Noted(LocalConnection):
    """A connection whose descriptor counts as ours until it is closed."""

    def __init__(self, connection: LocalConnection, forget: Callable[[], None]) -> None:
        self._connection = connection._connection
        self._forget = forget

    def close(self) -> None:
        with _lock:
            super().close()
            self._forget()


def _is_worker() -> bool:
    """Whether this is a Python process of Spark's, where only tasks and planners of a job run."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _descriptors(path: Path) -> set[int] | None:
    """This process's descriptors of the file; None = the system does not tell."""
    try:
        file = path.stat()
    except OSError:
        return set()
    for each in _LISTS:
        try:
            names = os.listdir(each)
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
