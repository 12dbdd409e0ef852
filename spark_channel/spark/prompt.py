"""Removes a delay of 40 ms between Spark's JVM and each task.

The JVM hands a Python task its code and its rows in two writes to a TCP socket. Nagle's algorithm holds the second one
back until the first is acknowledged, and Linux acknowledges 40 ms late what it has no answer to: most of the time of a
short task.
"""

import contextlib
import socket
import sys
from typing import Any

from spark_channel.spark.daemon_worker import connection_to_the_jvm

__all__ = ["Prompt"]


class Prompt:
    """What a task unpickles before it takes its rows: that is between the two writes."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _acknowledge()


def _acknowledge() -> None:
    """In a worker of pyspark's daemon: acknowledge now what the JVM has sent. Elsewhere it does nothing."""
    connection = connection_to_the_jvm()
    if connection is None or connection.family == socket.AF_UNIX or sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
