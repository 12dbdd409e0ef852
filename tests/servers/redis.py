"""A Redis server for the tests: on a free port, in its own directory, removed when it is closed."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from tests.servers.postgres import free_port

PASSWORD = "s3cret of/tester:%"
_START_SECONDS = 30.0


@dataclass
class RedisServer:
    """`client` is the witness: the server's own answers."""

    port: int
    client: Any

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


@contextmanager
def redis_server(*, cluster: bool = False) -> Iterator[RedisServer]:
    """With `cluster`, one member that has all slots."""
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("no redis-server is installed; run .ci/servers")
    directory = tempfile.mkdtemp(prefix="redis-")
    port = free_port()
    more = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())] if cluster else []
    process = subprocess.Popen(
        [
            program,
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
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                client.ping()
                break
            except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        if cluster:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while "cluster_state:ok" not in str(client.execute_command("CLUSTER", "INFO")):
                if time.monotonic() > deadline:
                    raise RuntimeError("the cluster does not come up")
                time.sleep(0.02)
        yield RedisServer(port, client)
    finally:
        client.close()
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory, ignore_errors=True)
