"""Under which host executors find the driver, as Spark itself knows it."""

import ipaddress
import os
import re
import socket
from pathlib import Path

__all__ = ["bind_to", "driver_host"]

_SETTING = re.compile(r"spark\.driver\.host=(\S+)")
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - for a name that only executors can resolve; each call needs the token
_LISTEN, _ESTABLISHED = "0A", "01"
_NOWHERE = ("192.0.2.1", 9)
"""An address that no packet is sent to: asking the system for the way to it tells the outgoing address."""


def driver_host(command: str, jvm: int | None) -> str:
    """The host's name or address, from what a process on it sees of the driver: its `command` line and pid.

    What Spark was told comes first, then the address at which executors are connected to the JVM now, then what
    Spark does without a setting: its variables of the environment, the host's own address, an interface that is not
    the loopback (Debian's hosts call themselves 127.0.1.1).
    """
    match = _SETTING.search(command)
    if match:
        return match.group(1)
    return (
        os.environ.get("SPARK_LOCAL_HOSTNAME")
        or (_connected(jvm) if jvm is not None else None)
        or os.environ.get("SPARK_LOCAL_IP")
        or _own_address()
    )


def bind_to(host: str) -> str:
    """The address of this machine that a service is bound to when clients are told `host`.

    A name may be known to executors only (a Kubernetes service, the outer name of a container), or mean the loopback
    here and this machine elsewhere: then every address is bound.
    """
    bare = host.strip("[]")
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)}
    except OSError:
        return _EVERYWHERE
    literal = bare in found or bare == "localhost"
    for address in sorted(found, key=lambda text: ":" in text):
        if (literal or not ipaddress.ip_address(address.partition("%")[0]).is_loopback) and _is_ours(address):
            return address
    return _EVERYWHERE


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((address, 0))
    except OSError:
        return False
    return True


def _own_address() -> str:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = ""
    if address and not ipaddress.ip_address(address).is_loopback:
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(_NOWHERE)
            return str(trial.getsockname()[0])
        except OSError:  # no network at all: whoever asks is on this machine
            return address or "127.0.0.1"


def _connected(jvm: int) -> str | None:
    """The address at which most connections from other hosts reach a port of the JVM; None without any."""
    inodes = set()
    try:
        for entry in Path(f"/proc/{jvm}/fd").iterdir():
            try:
                target = str(entry.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        tables = [Path(f"/proc/{jvm}/net/{name}").read_text("ascii") for name in ("tcp", "tcp6")]
    except OSError:
        return None
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    own = [row for row in rows if len(row) > 9 and row[9] in inodes]
    ports = {row[1].rpartition(":")[2] for row in own if row[3] == _LISTEN}
    counts: dict[str, int] = {}
    for row in own:
        local, _, port = row[1].rpartition(":")
        remote = row[2].rpartition(":")[0]
        if row[3] == _ESTABLISHED and port in ports and remote != local:
            address = _address(local)
            if not ipaddress.ip_address(address).is_loopback:
                counts[address] = counts.get(address, 0) + 1
    return max(counts, key=lambda address: counts[address], default=None)


def _address(text: str) -> str:
    """An address as /proc writes it: words of 32 bits in the machine's order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
