"""What a worker of pyspark's daemon is connected to: variables of the daemon's function that serves the JVM.

pyspark has no other way to them. Elsewhere, as in a worker without a daemon, there are none.
"""

import socket
import sys
from types import FrameType
from typing import IO, Any

__all__ = ["connection_to_the_jvm", "output_to_the_jvm"]


def connection_to_the_jvm() -> socket.socket | None:
    found = _variable("sock")
    return found if type(found) is socket.socket else None


def output_to_the_jvm() -> IO[bytes] | None:
    """The buffered file that pyspark writes batches into."""
    found: IO[bytes] | None = _variable("outfile")
    return found


def _variable(name: str) -> Any:
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None:
        if frame.f_code.co_filename.endswith("/pyspark/daemon.py"):
            return frame.f_locals.get(name)
        frame = frame.f_back
    return None
