"""Programs that run on a host of a `Network`: a module of Python, a PostgreSQL server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.behaviour.hosts.network import Host
from tests.servers.postgres import PostgresServer
from tests.service.helpers import ROOT

__all__ = ["HostedPostgres", "running"]


@contextmanager
def running(host: Host, run: Path, module: str, *arguments: str) -> Iterator[None]:
    """A module of Python, from its first line of output on."""
    run.mkdir(mode=0o700, exist_ok=True)
    process = subprocess.Popen(
        host.command(sys.executable, "-m", module, *arguments),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": str(run), "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), f"{module} did not start"
        yield
    finally:
        process.terminate()
        process.communicate(timeout=20)


@dataclass
class HostedPostgres(PostgresServer):
    """A PostgreSQL server with the address of a host; `psql` reaches it by its socket in the file system."""

    host: Host | None = None

    @classmethod
    def on(cls, host: Host) -> "HostedPostgres":
        server = cls.create(listen_addresses="*")
        try:
            server.stop()
            server.host = host
            with (server.data / "pg_hba.conf").open("a") as file:
                file.write("host all all 10.77.0.0/24 scram-sha-256\n")
            server.start()
        except BaseException:
            server.close()
            raise
        return server

    def _launch(self, arguments: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        if self.host is None:
            return super()._launch(arguments, log)
        account = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
        command = self.host.command(*account, *arguments)  # each of them becomes the next
        return subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory
        )
