"""go-mysql-server for the tests: another team's server of MySQL's protocol, which calls itself MySQL 8.

Its tables are in memory, and a rolled back transaction leaves no rows. It has no savepoints and no binary log.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from tests.servers.certificate import create_certificate
from tests.servers.installed import installed

__all__ = ["GoMysqlServer", "go_mysql_server"]

USER = "tester"
PASSWORD = "s3cret of/tester:%"


@dataclass
class GoMysqlServer:
    """The account logs in by caching_sha2_password, which this server takes over TLS only."""

    port: int
    certificate: Path
    user: str = USER
    password: str = PASSWORD

    def sql(self, statement: str, *, database: str = "") -> str:
        """What PyMySQL returns for `statement`, in the form of `MariadbServer.sql`."""
        with closing(self._connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            lines = list(cursor.fetchall())
            while cursor.nextset():
                lines += cursor.fetchall()
        shown = [["NULL" if each is None else str(each) for each in line] for line in lines]
        return "\n".join("\t".join(line) for line in shown)

    def _connect(self, database: str) -> Any:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            database=database or None,
            autocommit=True,
            ssl_ca=str(self.certificate),
            client_flag=CLIENT.MULTI_STATEMENTS,
        )

    def connections(self) -> int:
        """How many sessions of `tester` there are beside the one that counts."""
        return int(self.sql("SELECT COUNT(*) FROM information_schema.processlist")) - 1


@contextmanager
def go_mysql_server() -> Iterator[GoMysqlServer]:
    program = installed("go-mysql-server") / "go-mysql-server"
    folder = Path(tempfile.mkdtemp(prefix="go-mysql-server-"))
    try:
        create_certificate(folder)
        certificate, log = folder / "server.pem", folder / "log"
        with (
            log.open("wb") as out,
            subprocess.Popen(
                [program, certificate, USER, PASSWORD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
            ) as process,
        ):
            try:
                assert process.stdout is not None
                port = process.stdout.readline()
                if not port:
                    raise RuntimeError(f"go-mysql-server does not start: {log.read_text()}")
                yield GoMysqlServer(int(port), certificate)
            finally:
                process.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
