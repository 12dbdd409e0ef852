"""A task that needs no rows keeps Spark from sending them.

Spark's JVM looks for the answer of a Python worker only when the worker's socket takes no more rows, and pyspark's
daemon reads what a worker left unread, and drops it: a task that answers without taking a row is sent all of
them. Where the daemon leaves them in the socket, the socket fills, the JVM finds the answer, and the task is over.
"""

import contextlib
import select
import socket
import sys
from types import FrameType
from typing import Any

__all__ = ["connection_to_the_jvm", "leave_unread"]


def leave_unread() -> None:
    """In a worker of pyspark's daemon: leave what this task is still sent in its socket.

    Elsewhere it does nothing: Spark then sends all rows, which are dropped.
    """
    connection = connection_to_the_jvm(sys._getframe())  # noqa: SLF001 - no other way to it
    if connection is None or not hasattr(select, "POLLRDHUP"):
        return
    with contextlib.suppress(TypeError):  # a Python whose sockets cannot change their class
        connection.__class__ = _Unread


class _Unread(socket.socket):
    """What pyspark's daemon reads to the end once a worker has answered."""

    __slots__ = ()

    def recv(self, *args: Any) -> bytes:
        """As `socket.recv`, but not before the JVM has closed its side, which it does when the task is over."""
        poller = select.poll()
        poller.register(self, select.POLLRDHUP)
        poller.poll()
        return super().recv(*args)


def connection_to_the_jvm(frame: FrameType | None) -> socket.socket | None:
    """The connection to the JVM, which is a variable of the function of pyspark's daemon that serves it."""
    while frame is not None:
        if frame.f_code.co_filename.endswith("/pyspark/daemon.py"):
            found = frame.f_locals.get("sock")
            return found if type(found) is socket.socket else None
        frame = frame.f_back
    return None
