"""The owner of a job: the process whose death ends the job, and whether it is alive.

A Spark write is prepared in a short-lived Python worker. The driver's JVM, the nearest ancestor named
`java`, lives as long as the job. Without one, this process is the owner.
"""

import os
import socket
from pathlib import Path
from typing import Any

__all__ = ["describe_owner", "owner_is_gone"]

_PROC = Path("/proc")


def _stat(pid: int) -> tuple[str, int, str] | None:
    """(name, parent, start time) of a process on Linux; None when there is none, or no /proc."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name is in parentheses, and may contain any character.
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return name, int(rest[1]), rest[19]


def _machine() -> list[str]:
    """Identifies a space of process ids: host, boot, and pid namespace."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return [socket.gethostname(), "", ""]
    return [socket.gethostname(), boot, space]


def describe_owner() -> dict[str, Any]:
    """Plain data for `owner_is_gone`, on this machine or another."""
    pid = os.getpid()
    found, walked = pid, pid
    while walked > 1 and (stat := _stat(walked)) is not None:
        if stat[0] == "java":
            found = walked
            break
        walked = stat[1]
    own = _stat(found)
    return {"machine": _machine(), "pid": found, "started": own[2] if own else None}


def owner_is_gone(owner: dict[str, Any]) -> bool:
    """Return True only when it is certain: the owner ran on this machine, and has ended."""
    if owner.get("machine") != _machine() or not owner.get("started"):
        return False
    now = _stat(int(owner["pid"]))
    return now is None or now[2] != owner["started"]
