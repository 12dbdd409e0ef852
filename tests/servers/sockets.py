"""What the kernel knows of connections on this machine."""

import os
from pathlib import Path

__all__ = ["process_at", "queued_bytes"]


def process_at(port: int, server_port: int) -> int | None:
    """The process that holds the client's end of a connection between two ports of this machine."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}") and fields[2].endswith(f":{server_port:04X}"):
            link = f"socket:[{fields[9]}]"
            for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
                try:
                    if os.readlink(descriptor) == link:  # noqa: PTH115 - no path
                        return int(descriptor.parts[2])
                except OSError:
                    continue
    return None


def queued_bytes(port: int) -> int:
    """What the sockets of connections to `port` hold, at both of their ends."""
    held = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues = line.split()[:5]
        if port in (int(local.partition(":")[2], 16), int(remote.partition(":")[2], 16)):
            held += sum(int(queue, 16) for queue in queues.split(":"))
    return held
