"""PgBouncer before a PostgreSQL server: each transaction of a client gets one of a few sessions."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.servers.installed import not_installed
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer, account

__all__ = ["Pgbouncer", "pgbouncer"]

_START_SECONDS = 30.0
_CONFIG = """
[databases]
postgres = host=127.0.0.1 port={server.port} user={server.user} password={server.password} dbname=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 100
query_wait_timeout = {wait}
logfile =
"""


@dataclass
class Pgbouncer:
    """`size` sessions for all clients. Any password is taken."""

    server: PostgresServer
    port: int
    size: int

    @property
    def url(self) -> str:
        """Without a login, as an option `url` takes it."""
        return f"postgresql://127.0.0.1:{self.port}/postgres"

    @property
    def login(self) -> dict[str, str]:
        return {"url": self.url, "user": self.server.user, "password": "any"}

    def client(self, **more: Any) -> "psycopg.Connection[Any]":
        """An application's connection."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=self.server.user,
            password="any",
            dbname="postgres",
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=30,
            **more,
        )


@contextmanager
def pgbouncer(
    server: PostgresServer, *, size: int, mode: str = "transaction", wait: int = 30
) -> Iterator[Pgbouncer]:
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        not_installed("pgbouncer of Debian")
    made = Pgbouncer(server, free_port(), size)
    directory = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    config = directory / "pgbouncer.ini"
    config.write_text(
        _CONFIG.format(server=server, port=made.port, size=size, mode=mode, wait=wait)
    )
    directory.chmod(0o755)
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, str(config)],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            **account(),
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                made.client().close()
                break
            except psycopg.OperationalError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"PgBouncer did not start: {log.read_text()[-2000:]}"
                    ) from error
                time.sleep(0.02)
        yield made
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory, ignore_errors=True)
