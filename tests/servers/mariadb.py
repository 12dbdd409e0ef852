"""Servers of MySQL's protocol for the tests: on a free port, in their own directory, removed when they are closed.

`MariadbServer` is Debian's. `NewestMariadb` and `MysqlServer` are those of artifacts/ (.ci/unstable-databases), with
the libraries beside them. `sql` is the witness: what the server itself says, by MariaDB's client.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.servers.installed import installed, not_installed, run_unpacked
from tests.servers.ports import free_port

__all__ = ["BINLOG", "MariadbServer", "MysqlServer", "NewestMariadb"]

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
"""Settings with which tables can be followed by the server's log; `log_settings` has those of each server."""
_COUNT = f"SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{USER}'"
_NUMBERS = re.compile(r"\bseq_(\d+)_to_(\d+)\b")
_START_SECONDS = 60.0


def _program(*names: str) -> str:
    for name in names:
        found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if found:
            return found
    return not_installed(f"{names[0]} (mariadb-server of Debian)")


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
    product: ClassVar[str] = "MariaDB"
    log_settings: ClassVar[Mapping[str, Any]] = BINLOG

    @classmethod
    def create(cls, *, ssl: bool = False, **settings: Any) -> Self:
        """A new server, started; `settings` are the server's, `ssl` certifies 127.0.0.1."""
        directory = Path(tempfile.mkdtemp(prefix="spark-channel-my-"))
        if os.geteuid() == 0:
            shutil.chown(directory, "mysql", "mysql")
        server = cls(directory, free_port(), settings)
        try:
            server._create_data()
            if ssl:
                server._certify()
            server.start()
            server.sql(
                f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4; "
                f"CREATE USER {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'; "
                f"GRANT ALL ON *.* TO {USER}@'127.0.0.1'; USE {DATABASE};\nDELIMITER //\n"
                "CREATE PROCEDURE connections_left() BEGIN DECLARE looks INT DEFAULT 0; "
                f"WHILE looks < 200 AND ({_COUNT}) > 0 DO DO SLEEP(0.05); SET looks = looks + 1; END WHILE; "
                f"{_COUNT}; END//"
            )
        except BaseException:
            server.close()
            raise
        return server

    def _create_data(self) -> None:
        self._command(
            _program("mariadb-install-db", "mysql_install_db"),
            "--no-defaults",
            f"--datadir={self.directory}/data",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            f"--tmpdir={self.directory}",
        )

    def _server(self) -> Sequence[str]:
        """What starts the program, and the options that come first."""
        return [_program("mariadbd", "mysqld"), "--no-defaults"]

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
        return {"url": self.url, "user": USER, "password": PASSWORD, **self.trust}

    @property
    def trust(self) -> dict[str, str]:
        """Options by which the password may be sent: MySQL's default login asks for it inside TLS."""
        return {}

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
            *self._server(),
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
                **self._account(),
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.product} did not start: {self.log()[-2000:]}")
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

    def load_zones(self, names: Iterable[str]) -> None:
        """Let the server know zones by these names."""
        for name in names:
            found = subprocess.run(
                [
                    _program("mariadb-tzinfo-to-sql", "mysql_tzinfo_to_sql"),
                    f"/usr/share/zoneinfo/{name}",
                    name,
                ],
                capture_output=True,
                check=True,
                text=True,
            )
            known = f"SELECT COUNT(*) FROM mysql.time_zone_name WHERE Name = '{name}'"
            if self.sql(known) == "0":
                self.sql(found.stdout, database="mysql")

    def connections(self) -> int:
        """How many sessions of `tester` there are.

        A server notices some time after a client that it has gone: they are waited for, for 10 s.
        """
        return int(self.sql("CALL connections_left()", database=DATABASE))

    def log(self) -> str:
        """Return the server's log."""
        return (self.directory / "log").read_text(errors="replace")

    def _account(self) -> dict[str, Any]:
        """Who runs the programs: they refuse to run as root by default, so they belong to the user `mysql`."""
        is_root = os.geteuid() == 0
        return {"user": "mysql", "group": "mysql", "extra_groups": []} if is_root else {}

    def _command(self, *command: str) -> None:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=120, **self._account()
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.decode()}{done.stdout.decode()}")


class _Unpacked(MariadbServer):
    """A server of artifacts/FOLDER, whose template of data is copied."""

    folder: ClassVar[str]
    package: ClassVar[str]
    program: ClassVar[str]
    share: ClassVar[str]
    more: ClassVar[Sequence[str]] = ()

    @classmethod
    def root(cls) -> Path:
        return installed(cls.folder, f"{cls.package} of Debian unstable")

    def _create_data(self) -> None:
        shutil.copytree(self.root() / "template", self.directory / "data")

    def _account(self) -> dict[str, Any]:
        return {}  # the user `mysql` may be unable to enter this checkout

    def _server(self) -> Sequence[str]:
        root = self.root()
        share = root / "usr/share" / self.share
        return [
            *run_unpacked(root, f"sbin/{self.program}"),
            "--no-defaults",
            f"--lc-messages-dir={share}",
            f"--character-sets-dir={share}/charsets",
            f"--plugin-dir={root}/usr/lib/mysql/plugin",
            *(["--user=root"] if os.geteuid() == 0 else []),
            *self.more,
        ]


class NewestMariadb(_Unpacked):
    """MariaDB of Debian's unstable suite: 11.8 or later."""

    folder, package, program, share = "mariadb-newest", "mariadb-server-core", "mariadbd", "mariadb"


class MysqlServer(_Unpacked):
    """MySQL of Debian's unstable suite: 9.7 or later."""

    product = "MySQL"
    folder, package, program, share = "mysql", "mysql-server-core", "mysqld", "mysql"
    more = (
        "--cte-max-recursion-depth=4294967295",
        "--mysqlx=0",
        "--secure-file-priv=",
        "--log-error-verbosity=2",
    )
    log_settings: ClassVar[Mapping[str, Any]] = {
        "log_bin": "bin",
        "server_id": "1",
        "binlog_row_metadata": "FULL",
        "gtid_mode": "ON",
        "enforce_gtid_consistency": "ON",
    }

    @property
    def trust(self) -> dict[str, str]:
        return {"sslmode": "verify-ca", "sslrootcert": str(self.directory / "data" / "ca.pem")}

    def sql(self, statement: str, *, database: str = "") -> str:
        """MariaDB's tables of numbers, as seq_1_to_100, are written out: MySQL has none."""
        return super().sql(_NUMBERS.sub(_written_out, statement), database=database)


def _written_out(name: re.Match[str]) -> str:
    least, most = name.groups()
    return (
        f"(WITH RECURSIVE numbers (seq) AS (SELECT {least} UNION ALL SELECT seq + 1 FROM numbers WHERE seq < {most}) "
        f"SELECT seq FROM numbers) AS {name[0]}"
    )
