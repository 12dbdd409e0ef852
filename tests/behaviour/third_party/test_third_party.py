"""A connector as a third party writes it: what `Dialect`, `Session` and `SqlReader` ask for, and no more.

It reads SQLite through Python's own module, as a database of which nothing is overridden that has a default.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.sql import (
    BatchSize,
    Column,
    Dialect,
    Session,
    SqlReader,
    SqlReadOptions,
    Table,
)
from spark_channel.errors import ChannelError, OptionError, SourceError
from spark_channel.testing import reader_conformance

TYPES = {"BIGINT": pa.int64(), "TEXT": pa.string(), "DOUBLE": pa.float64()}


class PlainSession(Session):
    def __init__(self, path: str) -> None:
        self.place = path
        self._connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql).fetchall()
        except sqlite3.Error as error:
            raise self.explain(error) from error

    def names(self, query: str) -> list[str]:
        with closing(self._connection.execute(f"SELECT * FROM ({query}) LIMIT 0")) as cursor:
            return [name for name, *_ in cursor.description]

    def stream(self, sql: str, size: BatchSize) -> Iterator[pa.RecordBatch]:
        with closing(self._connection.execute(sql)) as cursor:
            names = [str(number) for number in range(len(cursor.description))]
            while rows := cursor.fetchmany(size.rows):
                columns = [pa.array(column) for column in zip(*rows, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, names)

    def explain(self, error: BaseException) -> ChannelError:
        return SourceError(f"{self.place}: {error}")


class PlainDialect(Dialect):
    product = "Plain"

    def find_table(self, session: Session, text: str) -> Table | None:
        columns = session.rows(
            f'SELECT name, type, "notnull", pk FROM pragma_table_info({self.literal(text, None)})'
        )
        found = tuple(Column(name, declared, bool(needed)) for name, declared, needed, _ in columns)
        key = tuple(
            name for place, name in sorted((place, name) for name, _, _, place in columns if place)
        )
        return Table("", text, found, primary=key) if found else None

    def table_names(self, session: Session) -> list[str]:
        return [
            name for (name,) in session.rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        assert isinstance(session, PlainSession)
        return tuple(Column(name, "BIGINT") for name in session.names(query))

    def arrow_type(self, column: Column) -> pa.DataType:
        return TYPES[column.declared]

    def size(self, text: str) -> str:
        return f"LENGTH({text})"


class PlainReader(SqlReader):
    def __init__(self, options: SqlReadOptions) -> None:
        super().__init__(options, PlainDialect())

    def connect(self, purpose: str) -> PlainSession:
        assert self.options.url is not None
        return PlainSession(self.options.url)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plain.db"
    rows = [(n // 50, f"it's {n:04d}", None if n % 9 == 0 else n / 4) for n in range(500)]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE t (a BIGINT NOT NULL, b TEXT NOT NULL, c DOUBLE, PRIMARY KEY (a, b))"
        )
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    return path


def reader(path: Path, **options: str) -> PlainReader:
    table = {} if "query" in options else {"dbtable": "t"}
    return PlainReader(SqlReadOptions.parse({"url": str(path), **table, **options})[0])


@pytest.mark.parametrize(
    "options", [{}, {"partitionColumn": "b"}, {"partitionColumn": "c"}, {"where": "c > 10"}]
)
def test_a_reader_keeps_its_contract(path: Path, options: dict[str, str]) -> None:
    reader_conformance(lambda: reader(path, **options))


def test_a_composite_key_makes_even_splits(path: Path) -> None:
    made = reader(path)
    made.schema()
    splits = made.split(4)
    assert [sum(batch.num_rows for batch in made.read(split)) for split in splits] == [125] * 4
    assert [split.rows for split in splits] == [125] * 4


def test_names_and_conditions_are_checked(path: Path) -> None:
    assert reader(path, columns="C,a", where="t.B = 'it''s 0003'").schema().names == ["c", "a"]
    with pytest.raises(
        OptionError, match="'where' names column 'nope', which is not there; columns: a, b, c"
    ):
        reader(path, where="nope = 1").schema()
    with pytest.raises(
        SourceError, match=r"table 'u' does not exist in .*plain\.db; its tables: t"
    ):
        reader(path, dbtable="u").schema()


def test_a_query_is_one_source(path: Path) -> None:
    made = reader(path, query="SELECT DISTINCT a FROM t", partitionColumn="a")
    made.schema()
    found = [
        value
        for split in made.split(3)
        for batch in made.read(split)
        for value in batch["a"].to_pylist()
    ]
    assert sorted(found) == list(range(10))


def test_a_table_is_followed_by_a_cursor(path: Path) -> None:
    feed = reader(path).feed(FeedOptions(cursor_column="b", cursor_order="text", late_seconds=0))
    token, seen = feed.earliest()[0], 0
    while (cut := feed.latest(token, FeedLimit(rows=200))) != token:
        seen += sum(
            batch.num_rows for split in feed.changes(token, cut) for batch in feed.read(split)
        )
        token = cut
    assert (seen, token) == (499, {"cursor": "it's 0498"}), "another row may have the highest value"
    with pytest.raises(
        OptionError, match="a Plain table is read as a stream by a column that only grows"
    ):
        reader(path).feed(FeedOptions())
