"""Processes: who they are, which one is the driver's JVM, and waiting for the end of one."""

import os
import select
from pathlib import Path

from spark_channel.clock import SYSTEM_CLOCK

__all__ = ["alive", "driver_pid", "pid_namespace", "started", "wait_until_gone"]

_PROC = Path("/proc")
_CHECK_SECONDS = 1.0
_MOST_ANCESTORS = 64


def started(pid: int) -> str | None:
    """A mark that, with the pid, names one process for good; None when it is gone (a zombie is).

    With /proc: its start in clock ticks since boot. Elsewhere "", which cannot tell a reused pid.
    """
    if _PROC.joinpath("self/stat").exists():
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


def alive(pid: int, since: str) -> bool:
    """Whether the process that was `started` at `since` still runs."""
    return started(pid) == since


def pid_namespace() -> str:
    """What tells this machine's (or container's) pids from those of another that shares the directory."""
    try:
        return str((_PROC / "self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def driver_pid() -> int:
    """The pid of the nearest ancestor that is a JVM: from a planner worker, the driver's.

    Without one, or without /proc: the parent.
    """
    pid = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        fields = _stat(pid)
        if fields is None or pid <= 1:
            break
        if _name(pid) == "java":
            return pid
        pid = int(fields[1])
    return os.getppid()


def wait_until_gone(pid: int, since: str) -> None:
    """Block until the process ends: on a pidfd where there is one, else by a look each second."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        while alive(pid, since):
            SYSTEM_CLOCK.sleep(_CHECK_SECONDS)
        return
    try:
        if alive(pid, since):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
    finally:
        os.close(descriptor)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third on (state, parent, ...), behind the name in brackets."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
