"""One database of each kind, for what every one of them promises: a place to make tables in, and to read them from."""

import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from spark_channel.connectors import Reader, load_reader
from tests.behaviour.third_party import install, run_each, stored
from tests.servers.firebird import FirebirdServer
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

__all__ = ["KINDS", "Place", "open_place"]

KINDS = ("postgresql", "mysql", "sqlite", "duckdb", "firebird", "adbc-sqlite", "adbc-postgresql")
_TYPES: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        "int": "bigint",
        "text": 'text COLLATE "C"',
        "real": "double precision",
        "day": "date",
        "time": "timestamp",
    },
    "mysql": {
        "int": "BIGINT",
        "text": "VARCHAR(60)",
        "real": "DOUBLE",
        "day": "DATE",
        "time": "DATETIME(6)",
    },
    "sqlite": {
        "int": "BIGINT",
        "text": "TEXT",
        "real": "DOUBLE",
        "day": "DATE",
        "time": "TIMESTAMP",
    },
    "duckdb": {
        "int": "BIGINT",
        "text": "VARCHAR",
        "real": "DOUBLE",
        "day": "DATE",
        "time": "TIMESTAMP",
    },
    "firebird": {
        "int": "BIGINT",
        "text": "VARCHAR(60)",
        "real": "DOUBLE PRECISION",
        "day": "DATE",
        "time": "TIMESTAMP",
    },
}


@dataclass
class Place:
    """A separate database. `kind` is the connector and, for ADBC, its driver."""

    kind: str
    options: Mapping[str, Any]
    run: Callable[[str], Any]
    """Runs statements as the database's own client does."""
    connections: Callable[[], int] = field(default=lambda: 0)
    """Sessions that are still there, after the server had time to notice that they have ended."""
    schema: str = ""
    ticks: int = 6
    """Digits behind the second that a timestamp has."""
    spelled: Callable[[str], str] = lambda name: name
    """A name as the catalog has it."""
    insert: Callable[[str, Sequence[Sequence[Any]]], object] | None = None
    """Puts rows into a table of which `run` would have to take a long text apart; None = `run` is quick at that."""

    @property
    def database(self) -> str:
        return self.kind.removeprefix("adbc-")

    def quoted(self, name: str) -> str:
        return (
            f"`{name.replace('`', '``')}`"
            if self.database == "mysql"
            else '"' + self.spelled(name).replace('"', '""') + '"'
        )

    def create(
        self, name: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]], key: str = ""
    ) -> None:
        """A table of columns of `int`, `text`, `real`, `day` or `time`, perhaps `NOT NULL`."""
        types = _TYPES[self.database]
        declared = [
            f"{self.quoted(column)} {types[kind.split()[0]]} {' '.join(kind.split()[1:])}"
            for column, kind in columns.items()
        ]
        declared += [f"PRIMARY KEY ({key})"] if key else []
        self.run(f"CREATE TABLE {self.quoted(name)} ({', '.join(declared)})")
        if self.insert is not None:
            if rows:
                self.insert(self.quoted(name), rows)
            return
        for start in range(0, len(rows), 5_000):
            values = ", ".join(
                "(" + ", ".join(map(_literal, row)) + ")" for row in rows[start : start + 5_000]
            )
            self.run(f"INSERT INTO {self.quoted(name)} VALUES {values}")

    def reader(self, dbtable: str | None = "t", **options: Any) -> Reader:
        named = {} if dbtable is None else {"dbtable": self.in_schema(dbtable)}
        return load_reader(
            {**self.options, **named, **{key.lower(): value for key, value in options.items()}}
        )[0]

    def read(self, dbtable: str | None = "t", *, advice: int = 1, **options: Any) -> pa.Table:
        reader = self.reader(dbtable, **options)
        schema = reader.schema()
        return pa.Table.from_batches(
            [b for split in reader.split(advice) for b in reader.read(split)], schema
        )

    def sizes(self, dbtable: str | None = "t", *, advice: int = 4, **options: Any) -> list[int]:
        """Rows of each split."""
        reader = self.reader(dbtable, **options)
        reader.schema()
        return [
            sum(batch.num_rows for batch in reader.read(split)) for split in reader.split(advice)
        ]

    def in_schema(self, table: str) -> str:
        """The table as an option names it: ADBC's driver for PostgreSQL looks names up in `public`."""
        return f"{self.schema}.{table}" if self.schema and not table.startswith("(") else table


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


@contextmanager
def open_place(request: pytest.FixtureRequest, kind: str, directory: Path) -> Iterator[Place]:
    """A place of `kind`, gone in the end."""
    name = f"p{uuid.uuid4().hex[:12]}"
    if kind.endswith("postgresql"):
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        postgres.psql(f"CREATE SCHEMA {name}")
        uri = postgres.url.replace("//", f"//{postgres.user}:{postgres.password}@")
        options = {**postgres.login, "currentschema": name}
        schema = ""
        if kind.startswith("adbc"):
            options, schema = {"reader": "adbc", "driver": "postgresql", "uri": uri}, name
        yield Place(
            kind,
            options,
            lambda text: postgres.psql(f"SET search_path = {name}; {text}"),
            postgres.connections,
            schema,
        )
        postgres.psql(
            f"SET client_min_messages = error; SET lock_timeout = '5s'; DROP SCHEMA {name} CASCADE"
        )
    elif kind == "firebird":
        pytest.importorskip("firebird.driver", reason="the driver of the tests' own connector")
        install()
        firebird: FirebirdServer = request.getfixturevalue("firebird_server")
        firebird.create_database(name)
        yield Place(
            kind,
            firebird.login(name),
            lambda text: run_each(firebird, text, name),
            lambda: firebird.connections(name),
            insert=lambda table, rows: firebird.insert(
                f"INSERT INTO {table} VALUES ({', '.join('?' for _ in rows[0])})",
                rows,
                database=name,
            ),
            ticks=4,
            spelled=stored,
        )
        firebird.drop_database(name)
    elif kind == "mysql":
        mariadb: MariadbServer = request.getfixturevalue("mariadb_server")
        mariadb.sql(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        url = f"mysql://127.0.0.1:{mariadb.port}/{name}"
        login = {"url": url, "user": mariadb.user, "password": mariadb.password}
        yield Place(kind, login, lambda text: mariadb.sql(text, database=name), mariadb.connections)
        mariadb.sql(f"DROP DATABASE {name}")
    elif kind.endswith("sqlite"):
        path = directory / "shop.sqlite"

        def run_sqlite(text: str) -> None:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute(text)

        adbc = {"reader": "adbc", "driver": "sqlite", "uri": f"file:{path}"}
        yield Place(kind, adbc if kind.startswith("adbc") else {"path": str(path)}, run_sqlite)
    else:
        path = directory / "shop.duckdb"

        def run_duckdb(text: str) -> None:
            with closing(duckdb.connect(str(path))) as connection:
                connection.execute(text)

        def insert_duckdb(table: str, rows: Sequence[Sequence[Any]]) -> None:
            given = pa.table(
                {str(number): list(each) for number, each in enumerate(zip(*rows, strict=True))}
            )
            with closing(duckdb.connect(str(path))) as connection:
                connection.register("given", given)
                connection.execute(f"INSERT INTO {table} SELECT * FROM given")

        yield Place(kind, {"path": str(path)}, run_duckdb, insert=insert_duckdb)
