"""A Firebird server for the tests: on a free port, in its own directory, removed when it is closed.

`FirebirdServer.sql` is the witness: it asks the server with a client that is not the connector.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.servers.installed import not_installed
from tests.servers.ports import free_port

__all__ = ["FirebirdServer"]

USER = "SYSDBA"
PASSWORD = "s3cret of/tester:%"
_START_SECONDS = 60.0
_INSTALLED = "/usr/lib/*-linux-gnu/firebird/3.0"


def _installed() -> Path:
    found = sorted(Path("/").glob(_INSTALLED.lstrip("/")))
    if not found or shutil.which("isql-fb") is None:
        not_installed("Firebird (firebird3.0-server and firebird3.0-utils of Debian)")
    return found[0]


def _account() -> dict[str, Any]:
    """The server needs no rights of root: then its processes belong to the user `firebird`."""
    return (
        {"user": "firebird", "group": "firebird", "extra_groups": []} if os.geteuid() == 0 else {}
    )


@dataclass
class FirebirdServer:
    """One server with its own security database; `close` removes both.

    `SYSDBA` logs in with a password over TCP.
    """

    directory: Path
    port: int
    _process: subprocess.Popen[bytes] | None = None

    user = USER
    password = PASSWORD

    @classmethod
    def create(cls) -> Self:
        """A new server, started."""
        directory = Path(tempfile.mkdtemp(prefix="spark-channel-fb-"))
        server = cls(directory, free_port())
        try:
            server._initialise()
            server.start()
        except BaseException:
            server.close()
            raise
        return server

    def _initialise(self) -> None:
        """A root of Firebird's: links to what is installed, and settings and its own security database."""
        installed = _installed()
        for name in ("plugins", "intl", "firebird.msg"):
            (self.directory / name).symlink_to(installed / name)
        for name in ("plugins.conf", "fbtrace.conf"):
            shutil.copyfile(installed / name, self.directory / name)
        security = self.directory / "security.fdb"
        (self.directory / "firebird.conf").write_text(
            f"RemoteServicePort = {self.port}\nRemoteBindAddress = 127.0.0.1\nSecurityDatabase = {security}\n"
            "AuthServer = Srp\nUserManager = Srp\nWireCrypt = Enabled\nServerMode = Super\nDeadlockTimeout = 1\n"
        )
        (self.directory / "databases.conf").write_text(
            f"security.db = {security}\n{{\n RemoteAccess = false\n}}\n"
        )
        for name in ("lock", "tmp", "data"):
            (self.directory / name).mkdir()
        if os.geteuid() == 0:
            for path in (self.directory, *self.directory.iterdir()):
                if not path.is_symlink():
                    shutil.chown(path, "firebird", "firebird")
        self._isql(
            f"CREATE DATABASE '{security}'; COMMIT; CREATE USER {USER} PASSWORD '{PASSWORD}'; COMMIT; "
            f"CREATE DATABASE '{self.file('empty')}' DEFAULT CHARACTER SET UTF8; COMMIT;"
        )
        self._program("gfix", "-user", USER, "-write", "async", str(self.file("empty")))

    def _environment(self) -> dict[str, str]:
        root = str(self.directory)
        return {
            **os.environ,
            "FIREBIRD": root,
            "FIREBIRD_LOCK": f"{root}/lock",
            "FIREBIRD_TMP": f"{root}/tmp",
        }

    def _isql(self, script: str) -> None:
        """Without the server: the engine itself opens the file."""
        self._program("isql-fb", "-q", "-bail", "-user", USER, given=script)

    def _program(self, *command: str, given: str = "") -> None:
        done = subprocess.run(
            command,
            input=given.encode(),
            capture_output=True,
            check=False,
            timeout=60,
            cwd=self.directory,
            env=self._environment(),
            **_account(),
        )
        if done.returncode or done.stderr:
            raise RuntimeError(f"{command[0]}: {done.stderr.decode()}{done.stdout.decode()}")

    def start(self) -> None:
        """Start, and return when it answers."""
        command = [
            shutil.which("firebird", path="/usr/sbin:/usr/bin") or "firebird",
            "-p",
            str(self.port),
        ]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env=self._environment(),
                **_account(),
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Firebird did not start: {self.log()[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        import socket

        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

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

    def file(self, name: str) -> Path:
        return self.directory / "data" / f"{name}.fdb"

    def login(self, name: str) -> dict[str, str]:
        """`url`, `user` and `password` of a database, as options."""
        url = f"firebird://127.0.0.1:{self.port}/{self.file(name)}"
        return {"url": url, "user": USER, "password": PASSWORD}

    def _address(self, name: str) -> str:
        return f"127.0.0.1/{self.port}:{self.file(name)}"

    def create_database(self, name: str) -> None:
        """A copy of the empty one, whose writes wait for no disk."""
        shutil.copyfile(self.file("empty"), self.file(name))
        if os.geteuid() == 0:
            shutil.chown(self.file(name), "firebird", "firebird")

    def drop_database(self, name: str) -> None:
        from firebird.driver import connect

        connect(self._address(name), user=USER, password=PASSWORD, charset="UTF8").drop_database()

    @contextmanager
    def _connected(self, name: str) -> Iterator[Any]:
        from firebird.driver import connect

        with connect(
            self._address(name), user=USER, password=PASSWORD, charset="UTF8"
        ) as connection:
            yield connection

    def sql(self, statement: str, *, database: str) -> list[tuple[Any, ...]]:
        """The rows of one statement, committed."""
        with self._connected(database) as connection:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
            connection.commit()
        return rows

    def insert(self, statement: str, rows: Sequence[Sequence[Any]], *, database: str) -> None:
        """One INSERT with parameters, for each row."""
        with self._connected(database) as connection:
            with connection.cursor() as cursor:
                cursor.executemany(statement, rows)
            connection.commit()

    def connections(self, name: str) -> int:
        """How many sessions of clients the database has, this question's own left out.

        A client that detaches waits for the server's answer: none of them is waited for.
        """
        query = (
            "SELECT COUNT(*) FROM MON$ATTACHMENTS "
            "WHERE MON$SYSTEM_FLAG = 0 AND MON$ATTACHMENT_ID <> CURRENT_CONNECTION"
        )
        return int(self.sql(query, database=name)[0][0])

    def log(self) -> str:
        """Return the server's log."""
        logs = [self.directory / "log", self.directory / "firebird.log"]
        return "".join(path.read_text(errors="replace") for path in logs if path.exists())
