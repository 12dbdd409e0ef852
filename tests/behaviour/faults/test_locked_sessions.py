"""SIGTERM to a command whose statement waits for a lock: the server keeps no session that waits on."""

import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import psycopg
import pymysql
import pytest

from tests.cli.test_run import CLI, environment
from tests.servers.mariadb import MysqlServer
from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.full, pytest.mark.lowest, pytest.mark.timeout(120)]

_WAITS = "SELECT count(*) FROM pg_locks WHERE NOT granted"
_LOCKS = {
    "table": "LOCK TABLE locked.t IN ACCESS EXCLUSIVE MODE",
    "rows": "SELECT pg_advisory_xact_lock(4711)",
}
"""The second one is waited for by a query of the view, and not where its columns are asked for."""


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    gone = "SET client_min_messages = error; DROP SCHEMA IF EXISTS locked CASCADE"
    postgres_server.psql(
        f"{gone}; CREATE SCHEMA locked; CREATE TABLE locked.t (id bigint); INSERT INTO locked.t VALUES (1);"
        "CREATE TABLE locked.copy (id bigint);"
        "CREATE VIEW locked.v AS SELECT 1::bigint AS id FROM (SELECT pg_advisory_xact_lock(4711)) waits"
    )
    yield postgres_server
    postgres_server.psql(gone)


def _fill(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER)")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()


def _arguments(server: PostgresServer, path: Path, case: str) -> list[str]:
    login = f"user={server.user}&password={server.password}"
    uri = server.url.replace("//", f"//{server.user}:{server.password}@")
    file = f"sqlite:{path}?dbtable="
    return {
        "its columns are asked for": [f"{server.url}?dbtable=locked.t&{login}", f"{file}copy"],
        "rows are read": [f"{server.url}?dbtable=locked.v&{login}", f"{file}copy"],
        "COPY's bytes are read": [
            f"{server.url}?dbtable=locked.v&{login}",
            f"{server.url}?dbtable=locked.copy&{login}",
        ],
        "rows are read by ADBC": [
            f"adbc:?driver=postgresql&uri={uri}&dbtable=locked.v",
            f"{file}copy",
        ],
        "rows are published": [f"{file}t", f"{server.url}?dbtable=locked.t&{login}"],
        "rows are written": [f"{file}t", f"{server.url}?dbtable=locked.t&{login}", "--commit=task"],
    }[case]


@pytest.mark.parametrize(
    ("case", "lock"),
    [
        ("its columns are asked for", "table"),
        ("rows are read", "rows"),
        ("COPY's bytes are read", "rows"),
        ("rows are read by ADBC", "rows"),
        ("rows are published", "table"),
        ("rows are written", "table"),
    ],
)
def test_a_command_that_waits_for_a_lock_leaves_no_session_that_waits(
    server: PostgresServer, tmp_path: Path, case: str, lock: str
) -> None:
    _fill(tmp_path / "shop.db")
    login = f"host=127.0.0.1 port={server.port} user={server.user} password={server.password} dbname=postgres"
    command = [*CLI, "copy", *_arguments(server, tmp_path / "shop.db", case)]
    with psycopg.connect(login) as owner, psycopg.connect(login, autocommit=True) as witness:

        def waiting() -> int:
            return int((witness.execute(_WAITS).fetchone() or (0,))[0])

        owner.execute(_LOCKS[lock])
        _terminated(command, waiting)


def _terminated(command: list[str], waiting: Callable[[], int]) -> None:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as run:
        assert _within(60, lambda: bool(waiting()) or run.poll() is not None)
        assert waiting(), run.communicate()[0] if run.poll() is not None else command
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 143, output
    assert _within(5, lambda: not waiting())


def _within(seconds: float, happened: Callable[[], bool]) -> bool:
    """Other processes cannot notify a test."""
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("reads", [True, False], ids=["it reads", "it writes"])
def test_mysqls_own_server_keeps_none_either(tmp_path: Path, *, reads: bool) -> None:
    """MariaDB notices it by itself."""
    file = tmp_path / "shop.db"
    _fill(file)
    with closing(MysqlServer.create()) as server:
        server.sql("CREATE TABLE t (id BIGINT); INSERT INTO t VALUES (1)", database="shop")
        password = quote(server.password, safe="")
        table = f"{server.url}?dbtable=t&user={server.user}&password={password}"
        ends = (
            (table, f"sqlite:{file}?dbtable=copy") if reads else (f"sqlite:{file}?dbtable=t", table)
        )
        waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for%lock'"
        with pymysql.connect(
            host="127.0.0.1",
            port=server.port,
            user=server.user,
            password=server.password,
            database="shop",
        ) as owner:
            owner.cursor().execute("LOCK TABLES t WRITE")
            _terminated([*CLI, "copy", *ends], lambda: int(server.sql(waits)))
