"""Hosts with their own addresses on one machine: network namespaces round a switch. Needs root and iproute2."""

import os
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import Self

__all__ = ["Host", "Network", "why_not"]


def why_not() -> str:
    """Why this machine cannot make hosts; empty when it can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    if shutil.which("ip") is None:
        return "iproute2 is not installed (.ci/servers does it)"
    name = f"sc-try-{secrets.token_hex(3)}"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"the kernel makes no network namespaces: {error.stderr.strip()}"
    try:
        _ip("-n", name, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1")
        _ip("-n", name, "rule", "add", "ipproto", "tcp", "sport", "9", "blackhole")
    except subprocess.CalledProcessError as error:
        return f"the kernel has no bridge, veth or rules by port: {error.stderr.strip()}"
    finally:
        _ip("netns", "del", name)
    return ""


class Host:
    """One of the hosts of a `Network`."""

    def __init__(self, network: "Network", name: str, number: int) -> None:
        self.name = name
        self.namespace = f"{network.prefix}-{name}"
        self.address = f"10.77.0.{number}"
        self._switch, self._port = network.switch, f"p{number}"

    @property
    def path(self) -> str:
        """What a process enters to be on this host."""
        return f"/var/run/netns/{self.namespace}"

    def command(self, *command: str) -> list[str]:
        """`command`, run on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def know(self, names: dict[str, str]) -> None:
        """Commands of this host resolve these names, and no other host does."""
        folder = Path("/etc/netns") / self.namespace
        folder.mkdir(parents=True, exist_ok=True)
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        (folder / "hosts").write_text("\n".join(lines) + "\n")

    def drop_answers_from(self, port: int, *others: "Host", drop: bool = True) -> None:
        """What `others` send to this port is not answered, not even refused, as behind a firewall."""
        change = "add" if drop else "del"
        for other in others:
            selector = ["to", other.address, "ipproto", "tcp", "sport", str(port)]
            subprocess.run(
                ["ip", "-n", self.namespace, "rule", change, *selector, "blackhole"],
                check=drop,
                capture_output=True,
                timeout=20,
            )

    def plug(self, connected: bool) -> None:
        """Put the cable in, or pull it out."""
        _ip("-n", self._switch, "link", "set", self._port, "up" if connected else "down")


class Network:
    """A switch, itself a namespace, and hosts at 10.77.0.N. Leaves nothing behind at its end."""

    def __init__(self, *names: str) -> None:
        self.prefix = f"sc{secrets.token_hex(3)}"
        self.switch = f"{self.prefix}-switch"
        self.hosts = {name: Host(self, name, number) for number, name in enumerate(names, 1)}

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", self.switch)
            _ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
            _ip("-n", self.switch, "link", "set", "bridge0", "up")
            for number, host in enumerate(self.hosts.values(), 1):
                _ip("netns", "add", host.namespace)
                _ip("-n", host.namespace, "link", "set", "lo", "up")
                _ip(
                    "-n",
                    self.switch,
                    "link",
                    "add",
                    f"p{number}",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "eth0",
                    "netns",
                    host.namespace,
                )
                _ip("-n", self.switch, "link", "set", f"p{number}", "master", "bridge0", "up")
                _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
                _ip("-n", host.namespace, "link", "set", "eth0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __exit__(self, *_error: object) -> None:
        for namespace in [*(host.namespace for host in self.hosts.values()), self.switch]:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
            shutil.rmtree(Path("/etc/netns") / namespace, ignore_errors=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)
