"""Identifies a client's process, so that other clients on its host can see whether it still runs."""

import os
import socket
from functools import cache
from pathlib import Path

__all__ = ["host_name", "is_gone", "own_process"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


@cache
def host_name() -> str:
    """Return a name for this boot of this machine (or container)."""
    try:
        inside = f"{_BOOT.read_text('ascii').strip()[:8]}:{_NAMESPACE.readlink().name}"
    except OSError:
        inside = ""
    return f"{socket.gethostname()}/{inside}"


def own_process() -> str:
    """Return the id of this process and its start time; empty where the system does not show them."""
    return _process(os.getpid())


def is_gone(host: str, process: str) -> bool:
    """Whether the process ran on this host and has ended; False when that is unknown."""
    if not process or host != host_name() or host.endswith("/"):
        return False
    return _process(int(process.partition("@")[0])) != process


def _process(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return ""
    # The name is in brackets, and may hold anything; a zombie (Z) has ended.
    fields = text[text.rindex(")") + 2 :].split()
    return "" if fields[0] == "Z" else f"{pid}@{fields[19]}"
