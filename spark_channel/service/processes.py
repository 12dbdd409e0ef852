"""Identifies processes, finds the driver's JVM, and waits for the end of a process."""

import os
import select
from pathlib import Path

__all__ = ["alive", "bare_environment", "driver_pid", "pid_namespace", "started", "wait_until_gone"]

_NEEDED = frozenset({
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONUTF8",
    "TMPDIR", "TZ", "TZDIR", "VIRTUAL_ENV", "XDG_RUNTIME_DIR",
})  # fmt: skip

_PROC = Path("/proc")
_CHECK_MILLISECONDS = 1000
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


def bare_environment() -> dict[str, str]:
    """What a process of ours needs to start, and nothing else.

    A job's environment holds logins (`PG*`, `AWS_*`, what Spark hands to its workers), which a process that
    outlives the call has no use for, and `/proc` shows for as long as it runs.
    """
    return {name: value for name, value in os.environ.items() if name in _NEEDED or name.startswith("LC_")}


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


def wait_until_gone(pid: int, since: str, wake: int | None = None) -> None:
    """Block until the process ends, or descriptor `wake` can be read.

    Waits on a pidfd where there is one; else it looks each second.
    """
    poll = select.poll()
    if wake is not None:
        poll.register(wake, select.POLLIN)
    descriptor = _pidfd(pid)
    try:
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        while alive(pid, since):
            if poll.poll(None if descriptor is not None else _CHECK_MILLISECONDS):
                return
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


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
