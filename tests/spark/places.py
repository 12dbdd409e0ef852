"""Tables that a test of transfers fills, each in its own database, with the database's own client as witness."""

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

__all__ = ["Place", "duckdb_place", "mysql_place", "postgres_place", "sqlite_place"]


@dataclass
class Place:
    """`writer` are options of a transfer's end without a table; `ask` gives one row of numbers, `run` nothing.

    `staged` is what staging holds: names of tables or files.
    """

    writer: dict[str, Any]
    ask: Callable[[str], list[int]]
    run: Callable[[str], object]
    staged: Callable[[], list[str]] = field(default=list)

    def held(self, table: str = "t") -> list[int]:
        """All rows, distinct ones by `id`, and the sum of `id`."""
        return self.ask(f"SELECT count(*), count(DISTINCT id), coalesce(sum(id), 0) FROM {table}")

    def tasks(self) -> int:
        """Tasks that committed under a write that is not published yet."""
        return self.ask("SELECT count(*) FROM spark_channel_tasks")[0]

    def kept(self) -> int:
        return self.ask("SELECT count(*) FROM spark_channel_transfers")[0]


def _beside(path: Path) -> list[str]:
    return [str(each) for each in path.parent.iterdir() if ".spark-channel" in each.name]


def sqlite_place(path: Path) -> Place:
    def rows(statement: str) -> list[int]:
        with closing(sqlite3.connect(path, timeout=60)) as connection, connection:
            return list(connection.execute(statement).fetchone() or ())

    return Place({"name": "sqlite", "path": str(path)}, rows, rows, lambda: _beside(path))


def duckdb_place(path: Path) -> Place:
    import duckdb

    def rows(statement: str) -> list[int]:
        with closing(duckdb.connect(str(path))) as connection:
            return [int(each) for each in connection.execute(statement).fetchone() or ()]

    return Place({"name": "duckdb", "path": str(path)}, rows, rows, lambda: _beside(path))


@contextmanager
def postgres_place(server: PostgresServer) -> Iterator[Place]:
    """Its own schema."""
    schema = f"s{uuid.uuid4().hex[:10]}"

    def run(statement: str) -> str:
        return server.psql(f"SET search_path = {schema}; {statement}")

    def staged() -> list[str]:
        found = run(
            f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' "
            "AND tablename LIKE 'spark\\_channel\\_stage%'"
        )
        return found.split("\n") if found else []

    server.psql(f"CREATE SCHEMA {schema}")
    try:
        writer = {"name": "postgresql", **server.login, "currentSchema": schema}
        yield Place(writer, lambda text: [int(each) for each in run(text).split("|")], run, staged)
    finally:
        server.psql(f"SET client_min_messages = error; DROP SCHEMA {schema} CASCADE")


@contextmanager
def mysql_place(server: MariadbServer) -> Iterator[Place]:
    """Its own database."""
    database = f"shop_{uuid.uuid4().hex[:12]}"

    def run(statement: str) -> str:
        return server.sql(statement, database=database)

    def staged() -> list[str]:
        found = run("SHOW TABLES LIKE 'spark\\_channel\\_stage%'")
        return found.split("\n") if found else []

    server.sql(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    try:
        url = f"mysql://127.0.0.1:{server.port}/{database}"
        writer = {"name": "mysql", "url": url, "user": server.user, "password": server.password}
        yield Place(writer, lambda text: [int(each) for each in run(text).split("\t")], run, staged)
    finally:
        server.sql(f"DROP DATABASE {database}")
