"""Processes as the system names them: the owner of a job, whether one has ended, and what this one keeps loaded."""

import gc
import os
import select
import socket
from functools import cache
from pathlib import Path
from typing import Any

__all__ = [
    "alive",
    "cores",
    "describe_owner",
    "driver_pid",
    "has_ended",
    "host_name",
    "keep_loaded",
    "owner_is_gone",
    "pid_namespace",
    "process_name",
    "started",
    "wait_until_gone",
]

_PROC = Path("/proc")
_CHECK_MILLISECONDS = 1000
_MOST_ANCESTORS = 64


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def started(pid: int) -> str | None:
    """Return a mark that, with the pid, names one process for good; None when the process has ended (or is a zombie).

    With /proc: its start in clock ticks since boot. Elsewhere, or where it cannot be looked at (another user's under
    `hidepid`, or no more files may be open): "", which does not detect a reused pid.
    """
    if (stat := _stat(pid)) is not None:
        _, fields = stat
        return None if fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    return ""


def alive(pid: int, since: str) -> bool:
    """Whether the process that was `started` at `since` still runs; one that cannot be looked at does."""
    return started(pid) in ("", since)


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


def driver_pid() -> int:
    """The pid of the nearest ancestor that is a JVM: from a planner worker, the driver's.

    Without one, or without /proc: the parent.
    """
    parent = os.getppid()
    return _jvm_from(parent) or parent


def _jvm_from(pid: int) -> int | None:
    """The nearest JVM from process `pid` upwards."""
    for _ in range(_MOST_ANCESTORS):
        if (stat := _stat(pid)) is None:
            break
        name, fields = stat
        if name == "java":
            return pid
        pid = int(fields[1])
    return None


def _stat(pid: int) -> tuple[str, list[str]] | None:
    """From /proc/PID/stat: the name, in brackets there, and the fields behind it (state, parent, ...)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    named, _, fields = text.rpartition(")")
    return named.partition("(")[2], fields.split()


def pid_namespace() -> str:
    """Return the id of this machine's (or container's) pid namespace; others may share the directory."""
    try:
        return str((_PROC / "self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def _machine() -> list[str]:
    """Identifies a space of process ids: host, boot, and pid namespace."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = (_PROC / "self/ns/pid").readlink().name
    except OSError:
        return [socket.gethostname(), "", ""]
    return [socket.gethostname(), boot, space]


def describe_owner() -> dict[str, Any]:
    """Return plain data for `owner_is_gone`, about the process whose death ends the job.

    A Spark write is prepared in a short-lived Python worker. The driver's JVM, the nearest ancestor named `java`, lives
    as long as the job. Without one, this process is the owner.
    """
    own_pid = os.getpid()
    owner = _jvm_from(own_pid) or own_pid
    return {"machine": _machine(), "pid": owner, "started": started(owner) or None}


def owner_is_gone(owner: dict[str, Any]) -> bool:
    """Return True only when it is certain: the owner ran on this machine, and has ended."""
    if owner.get("machine") != _machine() or not owner.get("started"):
        return False
    return not alive(int(owner["pid"]), owner["started"])


@cache
def host_name() -> str:
    """Return a name for this boot of this machine (or container)."""
    host, boot, space = _machine()
    return f"{host}/{boot[:8]}:{space}" if boot else f"{host}/"


def process_name(pid: int | None = None) -> str:
    """Return the id of this process, or of `pid`, and its start time; empty where the system does not show them."""
    pid = os.getpid() if pid is None else pid
    since = started(pid)
    return f"{pid}@{since}" if since else ""


def has_ended(host: str, process: str) -> bool:
    """Whether the process ran on this host and has ended; False when that is unknown."""
    if not process or host != host_name() or host.endswith("/"):
        return False
    pid, _, since = process.partition("@")
    return not alive(int(pid), since)


@cache
def keep_loaded() -> None:
    """Leave what is loaded by now out of the collection of garbage that pyspark makes after each task.

    80 000 objects of libraries take it 45 ms, on the cores that other tasks want. Once per process; garbage that
    waits to be collected at that moment stays.
    """
    if os.environ.get("SPARK_REUSE_WORKER"):
        gc.freeze()
