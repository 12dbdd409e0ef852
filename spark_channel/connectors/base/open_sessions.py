"""Sessions that are open in this process, so that its end can cancel what their servers do for it.

PostgreSQL and MySQL notice that a client is gone only when they next read from it or write to it. A statement that
waits for a lock waits on, until it gets the lock and takes it from others.
"""

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
        """Have the server end the statement that runs, if one does. Called by any thread; what it raises is lost."""


_sessions: "weakref.WeakSet[CancelledAtEnd]" = weakref.WeakSet()
_lock = threading.Lock()


def note_open(session: CancelledAtEnd) -> None:
    with _lock:
        _sessions.add(session)


def cancel_all() -> None:
    """As the process ends: what still runs belongs to threads that are left behind."""
    with _lock:
        sessions = list(_sessions)
    threads = [
        threading.Thread(target=_cancel, args=(session,), name="spark-channel-cancel", daemon=True)
        for session in sessions
    ]
    for thread in threads:
        thread.start()
    end = SYSTEM_CLOCK.now() + _END_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - SYSTEM_CLOCK.now()))


def _cancel(session: CancelledAtEnd) -> None:
    with suppress(Exception):
        session.cancel()
