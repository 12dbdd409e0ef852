"""Redis and Valkey for the tests: on free ports, in their own directories, removed when they are closed."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from tests.servers.installed import installed, not_installed, run_unpacked
from tests.servers.ports import free_port

__all__ = ["PASSWORD", "PROGRAMS", "RedisServer", "redis_cluster", "redis_server"]

PASSWORD = "s3cret of/tester:%"
_START_SECONDS = 30.0
_SLOTS = 16_384


def _debians() -> Sequence[str]:
    program = shutil.which("redis-server")
    return [program] if program else not_installed("redis-server of Debian")


def _newest(name: str, package: str) -> Sequence[str]:
    return run_unpacked(
        installed("redis-newest", f"{package} of Debian unstable"), f"bin/{name}-server"
    )


PROGRAMS: Mapping[str, Callable[[], Sequence[str]]] = {
    "redis": _debians,
    "newest redis": lambda: _newest("redis", "redis-tools"),
    "valkey": lambda: _newest("valkey", "valkey-tools"),
}
"""What starts a server of each kind: Debian's Redis 7.0, and those of artifacts/ (.ci/unstable-databases)."""


@dataclass
class RedisServer:
    """`client` is the witness: the server's own answers."""

    kind: str
    port: int
    client: Any

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


@contextmanager
def redis_server(kind: str = "redis", *, cluster: bool = False) -> Iterator[RedisServer]:
    """With `cluster`, a member of a cluster, without slots."""
    directory = tempfile.mkdtemp(prefix="redis-")
    port = free_port()
    more = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())] if cluster else []
    process = subprocess.Popen(
        [
            *PROGRAMS[kind](),
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            directory,
            "--requirepass",
            PASSWORD,
            "--loglevel",
            "warning",
            *more,
        ],
        stdout=subprocess.DEVNULL,
    )
    client: Any = redis.Redis("127.0.0.1", port, password=PASSWORD, decode_responses=True)
    try:
        _wait(lambda: _answers(client), process)
        yield RedisServer(kind, port, client)
    finally:
        client.close()
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def redis_cluster(kind: str = "redis", members: int = 3) -> Iterator[list[RedisServer]]:
    """`members` primaries, which share the slots."""
    with ExitStack() as held:
        servers = [held.enter_context(redis_server(kind, cluster=True)) for _ in range(members)]
        for number, server in enumerate(servers):
            slots = (number * _SLOTS // members, (number + 1) * _SLOTS // members - 1)
            server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", *slots)
        first = servers[0].client
        for server in servers[1:]:
            (bus,) = server.client.config_get("cluster-port").values()
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        for server in servers:
            _wait(partial(_is_joined, server, members))
        yield servers


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
        return False


def _is_joined(server: RedisServer, members: int) -> bool:
    about = str(server.client.execute_command("CLUSTER", "INFO"))
    return "cluster_state:ok" in about and f"cluster_size:{members}" in about


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not ready():
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            raise RuntimeError("the server does not start, or its cluster does not come up")
        time.sleep(0.02)
