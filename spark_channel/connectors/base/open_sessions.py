"""Sessions that are open in this process, so that its end can cancel what their servers do for it.

PostgreSQL and MySQL notice that a client is gone only when they next read from it or write to it. A statement that
waits for a lock waits on, until it gets the lock and takes it from others.
"""

import os
import threading
import weakref
from contextlib import suppress
from typing import Protocol

from spark_channel.clock import SYSTEM_CLOCK

__all__ = ["CancelledAtEnd", "cancel_all", "note_open"]

_END_SECONDS = 0.9
"""For all servers together; one that does not answer is left."""


class CancelledAtEnd(Protocol):
    """An open session."""

    def cancel(self) -> None:
        """Have the server end the statement that runs, if one does. Any thread calls it; its errors are ignored."""


class _OpenSessions:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child: the sessions are its parent's, and a thread that is not here may hold the lock."""
        self._sessions: weakref.WeakSet[CancelledAtEnd] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, session: CancelledAtEnd) -> None:
        with self._lock:
            self._sessions.add(session)

    def all(self) -> list[CancelledAtEnd]:
        with self._lock:
            return list(self._sessions)


_open = _OpenSessions()
note_open = _open.add
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.forget)


def cancel_all() -> None:
    """Cancel the statements of all open sessions, as the process ends and leaves their threads behind."""
    threads = [
        threading.Thread(target=_cancel, args=(session,), name="spark-channel-cancel", daemon=True)
        for session in _open.all()
    ]
    started = [thread for thread in threads if _is_started(thread)]
    end = SYSTEM_CLOCK.now() + _END_SECONDS
    for thread in started:
        thread.join(max(0.0, end - SYSTEM_CLOCK.now()))


def _is_started(thread: threading.Thread) -> bool:
    """Start it; the system may have no thread left, and those that it had are waited for."""
    with suppress(RuntimeError, MemoryError):
        thread.start()
        return True
    return False


def _cancel(session: CancelledAtEnd) -> None:
    with suppress(Exception):
        session.cancel()
