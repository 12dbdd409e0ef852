"""A MariaDB server for the tests: on a free port, in its own directory, removed when it is closed.

`MariadbServer.sql` is the witness: what the server itself says, by its own client.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.servers.postgres import free_port

__all__ = ["BINLOG", "MariadbServer"]

USER = "tester"
PASSWORD = "s3cret of/tester:%"
DATABASE = "shop"
BINLOG: dict[str, Any] = {
    "log_bin": "bin",
    "server_id": "1",
    "binlog_format": "ROW",
    "binlog_row_metadata": "FULL",
    "log_slave_updates": "1",
}
"""Settings with which tables can be followed by the server's log."""
_START_SECONDS = 60.0


def _program(*names: str) -> str:
    for name in names:
        found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if found:
            return found
    raise RuntimeError(f"no {names[0]} is installed; run .ci/servers")


def _account() -> dict[str, Any]:
    """The server's programs refuse to run as root by default: then they belong to the user `mysql`."""
    return {"user": "mysql", "group": "mysql", "extra_groups": []} if os.geteuid() == 0 else {}


@dataclass
class MariadbServer:
    """One server; `create` makes it, `start` and `stop` may be called in turn, `close` removes it.

    `tester` logs in with a password over TCP and may do everything; the client on the socket is root.
    """

    directory: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    user = USER
    password = PASSWORD

    @classmethod
    def create(cls, *, ssl: bool = False, **settings: Any) -> Self:
        """A new server, started; `settings` are the server's, `ssl` certifies 127.0.0.1."""
        directory = Path(tempfile.mkdtemp(prefix="spark-channel-my-"))
        if os.geteuid() == 0:
            shutil.chown(directory, "mysql", "mysql")
        server = cls(directory, free_port(), settings)
        try:
            server._command(
                _program("mariadb-install-db", "mysql_install_db"),
                "--no-defaults",
                f"--datadir={directory}/data",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                f"--tmpdir={directory}",
            )
            if ssl:
                server._certify()
            server.start()
            server.sql(
                f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4; "
                f"CREATE USER {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'; "
                f"GRANT ALL ON *.* TO {USER}@'127.0.0.1'"
            )
        except BaseException:
            server.close()
            raise
        return server

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
            str(self.certificate),
            "-keyout",
            str(self.directory / "server.key"),
        )
        self.settings = {
            **self.settings,
            "ssl_cert": str(self.certificate),
            "ssl_key": str(self.directory / "server.key"),
        }

    @property
    def certificate(self) -> Path:
        return self.directory / "server.crt"

    @property
    def url(self) -> str:
        """Without a login, as an option `url` takes it."""
        return f"mysql://127.0.0.1:{self.port}/{DATABASE}"

    @property
    def login(self) -> dict[str, str]:
        """`url`, `user` and `password`, as options."""
        return {"url": self.url, "user": USER, "password": PASSWORD}

    def start(self) -> None:
        """Start, and return when it answers.

        Not in the common /tmp: a server that starts removes all `#sql` files there, also those of its neighbours.
        """
        settings = {
            "local_infile": "1",
            "innodb_flush_log_at_trx_commit": "0",
            "innodb_buffer_pool_size": "256M",
            "max_connections": "100",
            "character_set_server": "utf8mb4",
            **self.settings,
        }
        command = [
            _program("mariadbd", "mysqld"),
            "--no-defaults",
            f"--datadir={self.directory}/data",
            f"--socket={self.directory}/s",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--pid-file={self.directory}/pid",
            f"--tmpdir={self.directory}",
            *(f"--{name}={value}" for name, value in settings.items()),
        ]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                **_account(),
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"MariaDB did not start: {self.log()[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        command = [
            _program("mariadb-admin", "mysqladmin"),
            "--no-defaults",
            "-S",
            f"{self.directory}/s",
            "ping",
        ]
        return subprocess.run(command, check=False, capture_output=True, timeout=10).returncode == 0

    def stop(self, *, crash: bool = False) -> None:
        """End the server; `crash`: at once, as a power cut would."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL if crash else signal.SIGTERM)
            process.wait(60)

    def close(self) -> None:
        """Stop, and remove everything."""
        try:
            self.stop(crash=True)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def sql(self, statement: str, *, database: str = "") -> str:
        """What the client prints for `statement`: one line a row, fields apart by tabs, NULL as `NULL`."""
        done = subprocess.run(
            [
                _program("mariadb", "mysql"),
                "--no-defaults",
                "-S",
                f"{self.directory}/s",
                "-u",
                "root",
                "-N",
                "-B",
                "--default-character-set=utf8mb4",
                *([database] if database else []),
            ],
            input=f"SET time_zone = '+00:00'; {statement}".encode(),
            capture_output=True,
            check=False,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        return done.stdout.decode().rstrip("\n")

    def connections(self) -> int:
        """How many sessions of `tester` there are.

        A server notices some time after a client that it has gone: they are waited for, for 10 s.
        """
        count = f"SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{USER}'"
        return int(
            self.sql(
                "\nDELIMITER //\nBEGIN NOT ATOMIC DECLARE looks INT DEFAULT 0; "
                f"WHILE looks < 200 AND ({count}) > 0 DO DO SLEEP(0.05); SET looks = looks + 1; END WHILE; "
                f"{count}; END//"
            )
        )

    def log(self) -> str:
        """Return the server's log."""
        return (self.directory / "log").read_text(errors="replace")

    @staticmethod
    def _command(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, check=False, timeout=120, **_account())
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.decode()}{done.stdout.decode()}")
