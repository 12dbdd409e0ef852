"""Ports of 127.0.0.1 for servers of the tests, which get theirs on the command line and listen some time later."""

import fcntl
import os
import socket
from pathlib import Path

__all__ = ["free_port", "free_ports"]

# Below those that Linux gives to clients: one of these could take the port before the server listens.
_FIRST, _LAST = 10_000, 32_000
# Not in the folder that each process of the tests has of its own.
_LAST_GIVEN = Path(f"/tmp/spark-channel-tests-port-{os.getuid()}")


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different ones, which no other process of the tests gets until 22 000 more were given."""
    found: list[int] = []
    with _LAST_GIVEN.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        port = int(file.read() or _LAST)
        while len(found) < count:
            port = port + 1 if port < _LAST else _FIRST
            if _is_free(port):
                found.append(port)
        file.truncate(0)
        file.write(str(port))
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
