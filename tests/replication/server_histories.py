"""A source and a target in servers for random histories: runs are killed by SIGKILL, or two of them overlap."""

import itertools
import json
import os
import re
import select as io
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pymysql

from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.connectors.postgresql.read.copy_session import PgCopySession
from spark_channel.connectors.postgresql.session import PgPlanSession, PgReadSession, PgWriteSession
from tests.replication.histories import (
    Held,
    Row,
    Said,
    Snapshot,
    Stream,
    World,
    at_statement,
    plain_rows,
)
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

SCHEMA = "history"
TARGET = "history_dw"
_STATEMENTS = (
    *((PgPlanSession, name) for name in ("_run", "_script")),
    *((PgReadSession, name) for name in ("_run", "_script", "_of", "stream")),
    *((PgWriteSession, name) for name in ("_run", "_script", "copy")),
    *((PgCopySession, name) for name in ("_run", "_script", "copy")),
    *((MysqlSession, name) for name in ("rows", "stream")),
)
_OVERLAP_SECONDS = 1.0
_END_SECONDS = 60.0
_KIND = re.compile(r"\b(INTEGER|INT4|TEXT|REAL)\b")
_WIDER = {("INT4", "INTEGER"): "INTEGER", ("INT4", "REAL"): "REAL"}


class PostgresSource:
    """A schema in PostgreSQL, seen by psycopg."""

    names: Mapping[str, str] = {
        "INTEGER": "bigint",
        "INT4": "integer",
        "TEXT": "text",
        "REAL": "double precision",
    }

    def __init__(self, server: PostgresServer) -> None:
        self.login = server.login
        self._connection = connect(server)
        self.sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        self.sql(f"CREATE SCHEMA {SCHEMA}")
        self.sql(f"SET search_path = {SCHEMA}")

    def sql(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(
            statement.replace("?", "%s").encode(), tuple(values) or None
        )
        return cursor.fetchall() if cursor.description else []

    def columns(self, table: str) -> list[tuple[Any, ...]]:
        return self.sql(
            "SELECT column_name, data_type FROM information_schema.columns "
            f"WHERE table_schema = '{SCHEMA}' AND table_name = '{table}' ORDER BY ordinal_position"
        )

    def retype(self, table: str, column: str, kind: str) -> None:
        made = self.names[kind]
        self.sql(f'ALTER TABLE "{table}" ALTER COLUMN "{column}" TYPE {made}')

    def close(self) -> None:
        self.sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        self._connection.close()


class MariadbSource:
    """A database in MariaDB, seen by PyMySQL."""

    names: Mapping[str, str] = {
        "INTEGER": "bigint",
        "INT4": "int",
        "TEXT": "longtext",
        "REAL": "double",
    }

    def __init__(self, server: MariadbServer) -> None:
        self.login = {**server.login, "url": f"mysql://127.0.0.1:{server.port}/{SCHEMA}"}
        self._connection = pymysql.connect(
            host="127.0.0.1",
            port=server.port,
            user=server.user,
            password=server.password,
            charset="utf8mb4",
            autocommit=True,
        )
        self.sql("SET sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES'), lock_wait_timeout = 60")
        self.sql(f"DROP DATABASE IF EXISTS {SCHEMA}")
        self.sql(f"CREATE DATABASE {SCHEMA} CHARACTER SET utf8mb4")
        self.sql(f"USE {SCHEMA}")

    def sql(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement.replace("?", "%s"), tuple(values) or None)
            return list(cursor.fetchall())

    def columns(self, table: str) -> list[tuple[Any, ...]]:
        return self.sql(
            "SELECT column_name, data_type FROM information_schema.columns "
            f"WHERE table_schema = '{SCHEMA}' AND table_name = '{table}' ORDER BY ordinal_position"
        )

    def retype(self, table: str, column: str, kind: str) -> None:
        self.sql(f'ALTER TABLE "{table}" MODIFY "{column}" {self.names[kind]}')

    def close(self) -> None:
        self.sql(f"DROP DATABASE IF EXISTS {SCHEMA}")
        self._connection.close()


def connect(server: PostgresServer) -> psycopg.Connection[Any]:
    return psycopg.connect(
        host="127.0.0.1",
        port=server.port,
        user=server.login["user"],
        dbname="postgres",
        password=server.login["password"],
        autocommit=True,
    )


class ServerWorld(World):
    """Tables of `source`, and their copies in PostgreSQL."""

    def __init__(
        self,
        source: PostgresSource | MariadbSource,
        target: PostgresServer,
        streams: Mapping[str, Stream],
    ) -> None:
        self.streams = dict(streams)
        self._from, self._login = source, target.login
        self._kinds = {each: kind for kind, each in source.names.items()}
        self._to = connect(target)
        self.target(f"DROP SCHEMA IF EXISTS {TARGET} CASCADE")
        self.target(f"CREATE SCHEMA {TARGET}")
        self.target(f"SET search_path = {TARGET}")

    def close(self) -> None:
        self._from.close()
        self.target(f"DROP SCHEMA IF EXISTS {TARGET} CASCADE")
        self._to.close()

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        names = self._from.names
        return self._from.sql(_KIND.sub(lambda found: names[found[0]], statement), values)

    def retype(self, table: str, column: str, kind: str) -> None:
        self._from.retype(table, column, kind)

    def target(self, statement: str) -> None:
        self._to.execute(statement.encode())

    def snapshot(self, table: str) -> Snapshot | None:
        columns = {name: self._kinds[kind] for name, kind in self._from.columns(table)}
        if not columns:
            return None
        key = "id" if "id" in columns else "nr"
        rows = self._from.sql(f'SELECT * FROM "{table}" ORDER BY {key}')
        return Snapshot(columns, [dict(zip(columns, each, strict=True)) for each in rows])

    def arrived(self, table: str) -> tuple[set[str] | None, list[Row]]:
        there = f"SELECT to_regclass('{TARGET}.\"{table}\"')::text"
        if self._to.execute(there.encode()).fetchall() == [(None,)]:
            return None, []
        cursor = self._to.execute(f'SELECT * FROM "{table}"'.encode())
        names = [each.name.lower() for each in cursor.description or ()]
        return plain_rows(names, cursor.fetchall())

    def stream(self, table: str) -> str:
        return f"{SCHEMA}.{table}"

    def wider(self, there: str, arriving: str) -> str | None:
        return _WIDER.get((there, arriving))

    def half_evolved(self, old: Held, new: Held) -> Iterator[Held]:
        """Columns are added and widened one by one, before the rows: without a row of theirs they change no value."""
        if old.columns is None or new.columns is None:
            return
        changed = [each for each in new.columns.items() if each not in old.columns.items()]
        for count in range(1, len(changed) + 1):
            for some in itertools.combinations(changed, count):
                yield replace(old, columns={**old.columns, **dict(some)})

    def file(self) -> dict[str, Any]:
        options = {"source_options": {"numPartitions": "1"}, "late_seconds": "0"}
        return {
            "source": dict(self._from.login),
            "target": {**self._login, "currentSchema": TARGET},
            "defaults": {"object": "{table}"},
            "streams": {
                self.stream(name): each.entry() | options for name, each in self.streams.items()
            },
            "parallel": "1",
        }

    def run_killed(self, select: Sequence[str], at: int) -> bool:
        before = self._sessions()

        def die() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        def run() -> None:
            with at_statement(at, die, _STATEMENTS):
                self.run(select)

        code = _ended(_child(run))
        assert code in (0, -signal.SIGKILL), code
        self._settle(before)
        return code != 0

    def run_overtaken(
        self, select: Sequence[str], at: int, between: Callable[[], object]
    ) -> list[Said]:
        """The second run begins before that statement of the first one, which goes on after a second at most."""
        (begin, begun), (reports, report) = os.pipe(), os.pipe()
        inner: list[Said] = []

        def second() -> None:
            if os.read(begin, 1) == b"y":
                os.write(report, json.dumps(self.run(select)).encode())

        def overtake() -> None:
            between()
            os.write(begun, b"y")
            io.select([reports], [], [], _OVERLAP_SECONDS)
            inner.append({})

        child = _child(second)
        os.close(report)
        try:
            with at_statement(at, overtake, _STATEMENTS):
                outer = self.run(select)
        finally:
            if not inner:
                os.write(begun, b"n")
            with os.fdopen(reports, "rb") as said:
                found = said.read()
            os.close(begin)
            os.close(begun)
            assert _ended(child) == 0
        return [json.loads(found), outer] if inner else [outer]

    def _sessions(self) -> set[tuple[int, Any]]:
        found = (
            "SELECT pid, backend_start FROM pg_stat_activity WHERE backend_type = 'client backend'"
        )
        return set(self._to.execute(found.encode()).fetchall())

    def _settle(self, before: set[tuple[int, Any]]) -> None:
        """Wait until the server has ended the sessions of a process that was killed."""
        until = time.monotonic() + _END_SECONDS
        while self._sessions() - before:
            assert time.monotonic() < until, "sessions of a killed run are still open"
            time.sleep(0.005)


def _child(run: Callable[[], object]) -> int:
    """Run in another process."""
    child = os.fork()
    if not child:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return child


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
