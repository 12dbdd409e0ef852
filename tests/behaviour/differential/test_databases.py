"""Tables, as spark-channel reads and writes them, and as the databases' own clients show them."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_channel
from spark_channel.connectors import FetchSize
from tests.behaviour.differential import inputs, judges
from tests.behaviour.differential.differences import accepted
from tests.behaviour.differential.inputs import PLAIN, UNSIGNED
from tests.behaviour.differential.lengths import either_length, examples
from tests.behaviour.differential.sql_texts import (
    MARIADB,
    POSTGRESQL,
    SQLITE,
    Declared,
    copied_rows,
    of_columns,
    parsed,
)
from tests.behaviour.differential.tables import Found, difference, from_arrow, of_rows
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

Columns = list[tuple[Declared, list[Any]]]
ONE_ROW = FetchSize(rows=1)


def assert_equal(system: str, ours: Found, theirs: Found) -> None:
    found = difference(*accepted(system, ours, theirs), ordered=False)
    assert found is None, found


def assert_read(system: str, options: dict[str, Any], theirs: Found) -> None:
    """Read in one split, in several, and in fetches of one row as under a limit: each time the same rows."""
    for splits, fetch in ((1, None), (7, None), (2, ONE_ROW)):
        assert_equal(system, judges.channel(options, splits=splits, fetch=fetch), theirs)


def numbered(columns: Columns) -> tuple[list[str], list[str], list[list[Any]]]:
    """Names, kinds and rows, with a number first."""
    names = ["id", *(f"c{number}" for number in range(len(columns)))]
    kinds = ["int32", *(each.kind for each, _ in columns)]
    rows = [list(row) for row in zip(*(values for _, values in columns), strict=True)]
    return names, kinds, [[number, *row] for number, row in enumerate(rows)]


def literal(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


# PostgreSQL


class Postgres:
    system = "postgresql"

    def __init__(self, server: PostgresServer) -> None:
        self.server = server

    def options(self, table: str) -> dict[str, Any]:
        return {**self.server.login, "dbtable": table}

    def drop(self, *tables: str) -> None:
        self.server.psql(";".join(f"DROP TABLE IF EXISTS {table}" for table in tables))

    def make(self, table: str, columns: Columns) -> None:
        _, _, rows = numbered(columns)
        declared = [f"c{number} {each.declared}" for number, (each, _) in enumerate(columns)]
        statements = [
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} ({', '.join(['id int PRIMARY KEY', *declared])})",
            *(
                f"INSERT INTO {table} VALUES ({', '.join([str(row[0]), *map(literal, row[1:])])})"
                for row in rows
            ),
        ]
        self.server.psql(";\n".join(statements))

    def says(self, table: str, names: Sequence[str], kinds: Sequence[str]) -> Found:
        chosen = ", ".join(f'"{name}"' for name in names)
        text = self.server.psql(f"COPY (SELECT {chosen} FROM {table}) TO STDOUT")
        return of_texts(names, kinds, copied_rows(text))


def of_texts(
    names: Sequence[str], kinds: Sequence[str], rows: Sequence[Sequence[str | None]]
) -> Found:
    values = [[parsed(text, kind) for text, kind in zip(row, kinds, strict=True)] for row in rows]
    return of_rows(names, kinds, values)


class Mariadb:
    system = "mysql"

    def __init__(self, server: MariadbServer) -> None:
        self.server = server

    def sql(self, statement: str) -> str:
        return self.server.sql(statement, database="shop")

    def options(self, table: str) -> dict[str, Any]:
        return {**self.server.login, "dbtable": table}

    def drop(self, *tables: str) -> None:
        self.sql(";".join(f"DROP TABLE IF EXISTS {table}" for table in tables))

    def make(self, table: str, columns: Columns) -> None:
        _, kinds, rows = numbered(columns)
        declared = [f"c{number} {each.declared}" for number, (each, _) in enumerate(columns)]
        statements = [
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} ({', '.join(['id int PRIMARY KEY', *declared])})",
        ]
        for row in rows:
            values = ", ".join(
                mysql_literal(value, kind) for value, kind in zip(row, kinds, strict=True)
            )
            statements.append(f"INSERT INTO {table} VALUES ({values})")
        self.sql(";\n".join(statements))

    def says(self, table: str, names: Sequence[str], kinds: Sequence[str]) -> Found:
        shown = ", ".join(
            _shown(f"`{name}`", kind) for name, kind in zip(names, kinds, strict=True)
        )
        text = self.sql(f"SELECT {shown} FROM {table}")
        rows = [line.split("\t") for line in text.split("\n")] if text else []
        values = [
            [
                None
                if value == "-"
                else bytes.fromhex(value[1:])
                if kind == "binary"
                else parsed(bytes.fromhex(value[1:]).decode(), kind)
                for value, kind in zip(row, kinds, strict=True)
            ]
            for row in rows
        ]
        return of_rows(names, kinds, values)


def mysql_literal(value: Any, kind: str) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if kind.startswith(("bool", "int", "uint", "float", "decimal")):
        return str(value)  # a text of hexadecimal digits is a number where one is asked for
    return f"_utf8mb4 X'{value.encode().hex()}'"


def _shown(column: str, kind: str) -> str:
    """The bytes of the text of a column as hexadecimal digits behind a letter; "-" is NULL."""
    if kind == "binary":
        text = column
    elif kind == "text":
        text = f"CONVERT({column} USING utf8mb4)"
    elif kind == "float32":
        text = f"CAST(CAST({column} AS DOUBLE) AS CHAR)"
    elif kind in ("bool", "int64", "uint64"):
        text = f"CAST({column} + 0 AS CHAR)"  # bit(n) is printed as bytes
    else:
        text = f"CAST({column} AS CHAR)"
    return f"IF({column} IS NULL, '-', CONCAT('x', HEX({text})))"


class Sqlite:
    system = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path

    def options(self, table: str) -> dict[str, Any]:
        return {"reader": "sqlite", "url": f"sqlite:{self.path}", "dbtable": table}

    def drop(self, *tables: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for table in tables:
                connection.execute(f"DROP TABLE IF EXISTS {table}")

    def make(self, table: str, columns: Columns) -> None:
        self.drop(table)
        _, _, rows = numbered(columns)
        declared = [f"c{number} {each.declared}" for number, (each, _) in enumerate(columns)]
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(f"CREATE TABLE {table} ({', '.join(['id int4', *declared])})")
            marks = ", ".join("?" * (len(columns) + 1))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def says(self, table: str, names: Sequence[str], kinds: Sequence[str]) -> Found:
        chosen = ", ".join(f'"{name}"' for name in names)
        with closing(sqlite3.connect(self.path)) as connection:
            connection.text_factory = lambda data: data.decode()
            rows = connection.execute(f"SELECT {chosen} FROM {table}").fetchall()
        values = [
            [_sqlite(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in rows
        ]
        return of_rows(names, kinds, values)


def _sqlite(value: Any, kind: str) -> Any:
    if value is None or (kind, type(value)) in (("text", str), ("binary", bytes)):
        return value
    return parsed(str(value).removesuffix("Z") if kind == "instant" else str(value), kind)


class Duck:
    system = "duckdb"

    def __init__(self, path: Path) -> None:
        self.path = path

    def options(self, table: str) -> dict[str, Any]:
        return {"reader": "duckdb", "url": f"duckdb:{self.path}", "dbtable": table}

    def drop(self, *tables: str) -> None:
        with duckdb.connect(str(self.path)) as connection:
            for table in tables:
                connection.execute(f"DROP TABLE IF EXISTS {table}")

    def says(self, table: str, names: Sequence[str], kinds: Sequence[str]) -> Found:
        chosen = ", ".join(f'"{name}"' for name in names)
        return judges.duckdb_query(f"SELECT {chosen} FROM {table}", str(self.path))


Database = Postgres | Mariadb | Sqlite | Duck


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[Postgres]:
    made = Postgres(postgres_server)
    yield made
    made.drop("differs", "differs_copy")


@pytest.fixture
def mariadb(mariadb_server: MariadbServer) -> Iterator[Mariadb]:
    made = Mariadb(mariadb_server)
    yield made
    made.drop("differs", "differs_copy")


@pytest.fixture
def sqlite(tmp_path: Path) -> Sqlite:
    return Sqlite(tmp_path / "a.db")


@pytest.fixture
def duck(tmp_path: Path) -> Duck:
    return Duck(tmp_path / "a.duckdb")


def _same_when_read(database: Postgres | Mariadb | Sqlite, columns: Columns) -> Found:
    database.make("differs", columns)
    names, kinds, _ = numbered(columns)
    theirs = database.says("differs", names, kinds)
    assert_read(database.system, database.options("differs"), theirs)
    return theirs


@either_length
def test_postgresql_is_read_as_psql_shows_it(postgres: Postgres, length: str) -> None:
    @examples(length)
    @given(of_columns(POSTGRESQL))
    def check(columns: Columns) -> None:
        _same_when_read(postgres, columns)

    check()


@either_length
def test_a_copy_within_postgresql_prints_the_same(postgres: Postgres, length: str) -> None:
    """Tables of the same types: the bytes of COPY are forwarded, or with short statements decoded values."""

    @examples(length, quick=4)
    @given(of_columns(POSTGRESQL), st.booleans())
    def check(columns: Columns, decoded: bool) -> None:
        postgres.make("differs", columns)
        postgres.drop("differs_copy")
        postgres.server.psql("CREATE TABLE differs_copy (LIKE differs)")
        spark_channel.transfer(
            None,
            {"name": "postgresql", **postgres.options("differs")}
            | ({"statementSeconds": "1"} if decoded else {}),
            {"name": "postgresql", **postgres.options("differs_copy")},
            channels=1,
        )
        names, kinds, _ = numbered(columns)
        texts = ["text"] * len(kinds)
        copied = postgres.says("differs_copy", names, texts)
        assert_equal("postgresql", copied, postgres.says("differs", names, texts))

    check()


@either_length
def test_mariadb_is_read_as_its_client_shows_it(mariadb: Mariadb, length: str) -> None:
    @examples(length)
    @given(of_columns(MARIADB))
    def check(columns: Columns) -> None:
        _same_when_read(mariadb, columns)

    check()


@either_length
def test_sqlite_is_read_as_python_reads_it(sqlite: Sqlite, length: str) -> None:
    @examples(length)
    @given(of_columns(SQLITE))
    def check(columns: Columns) -> None:
        _same_when_read(sqlite, columns)

    check()


_NO_TARGETS: dict[str, Callable[[pa.DataType], bool]] = {
    "postgresql": lambda kind: (
        kind in (pa.int8(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    ),
    "mysql": lambda kind: (
        pa.types.is_floating(kind) or pa.types.is_timestamp(kind) or kind == pa.decimal128(38, 38)
    ),
    "sqlite": lambda kind: pa.types.is_unsigned_integer(kind) or pa.types.is_floating(kind),
    "duckdb": lambda kind: False,
}
"""Types of which a database stores another one, or not each value."""


@pytest.mark.parametrize("name", ["postgres", "mariadb", "sqlite", "duck"])
@either_length
def test_written_rows_are_what_others_read(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, length: str
) -> None:
    database: Database = request.getfixturevalue(name)
    kinds = [
        each
        for each in (*PLAIN, *UNSIGNED, inputs.BINARY, inputs.CLOCK)
        if not _NO_TARGETS[database.system](each[0])
    ]
    source = tmp_path / "a.arrow"

    @examples(length, quick=6)
    @given(inputs.tables(kinds, names=("id", "Name", "a b", "é", "select", "x,y", "a'b")))
    def check(table: pa.Table) -> None:
        with pa.OSFile(str(source), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
        database.drop("differs")
        target = {
            key: value for key, value in database.options("differs").items() if key != "reader"
        }
        report = spark_channel.transfer(
            None,
            {"name": "arrow", "path": str(source)},
            {"name": database.system, **target},
            channels=1,
        )
        right = from_arrow(table)
        assert report.rows == table.num_rows
        names = [column.name for column in right.columns]
        theirs = database.says("differs", names, [column.kind for column in right.columns])
        assert_equal(database.system, right, theirs)
        assert_read(database.system, database.options("differs"), right)

    check()
