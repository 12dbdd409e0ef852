"""A task that needs no rows keeps Spark from sending them.

Spark's JVM looks for the answer of a Python worker only when the worker's socket takes no more rows, and pyspark's
daemon reads what a worker left unread, and drops it: a task that answers without taking a row is sent all of
them. Where the daemon leaves them in the socket, the socket fills, the JVM finds the answer, and the task is over.
"""

import contextlib
import select
import socket
from typing import Any

from spark_channel.spark.daemon_worker import connection_to_the_jvm

__all__ = ["leave_unread"]


def leave_unread() -> None:
    """In a worker of pyspark's daemon: leave what this task is still sent in its socket.

    Elsewhere it does nothing: Spark then sends all rows, which are dropped.
    """
    connection = connection_to_the_jvm()
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
