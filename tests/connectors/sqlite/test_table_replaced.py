"""A table that is swapped, altered or made again between two statements of a limited read: the read ends by name."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.sqlite import SqliteReader
from spark_channel.errors import SourceError
from tests.connectors.sql.changing import check_change, check_no_change

_MADE = """
PRAGMA journal_mode = WAL;
DROP TABLE IF EXISTS t; DROP TABLE IF EXISTS other; DROP TABLE IF EXISTS old;
CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT, v TEXT);
CREATE TABLE other (id INTEGER PRIMARY KEY, at TEXT, v TEXT);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
INSERT INTO t SELECT i, '2024-01-01', 'old' FROM n;
INSERT INTO other SELECT id, at, 'new' FROM t;
"""
CHANGES = {
    "swap": (
        "ALTER TABLE t RENAME TO old; ALTER TABLE other RENAME TO t",
        "another table took its name",
    ),
    "an empty one": (
        "DELETE FROM other; ALTER TABLE t RENAME TO old; ALTER TABLE other RENAME TO t",
        "another table took its name",
    ),
    "dropped": ("DROP TABLE t", "it was dropped or renamed"),
    "type": (
        "DROP TABLE t; CREATE TABLE t (id INTEGER PRIMARY KEY, at INT, v TEXT)",
        "the type of column 'at' was changed from TEXT to INT",
    ),
    "column": ("ALTER TABLE t RENAME v TO w", "column 'v' was dropped or renamed"),
}


class File:
    def __init__(self, path: Path) -> None:
        self.path = path

    def sql(self, script: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(script)

    def reader(self, **options: str) -> SqliteReader:
        given = {"url": f"sqlite:{self.path}", "dbtable": "t", "statementseconds": "5", **options}
        reader, _ = load_reader(given)
        assert isinstance(reader, SqliteReader)
        return reader


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "t.db")


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_statements_ends_the_read(file: File, change: str) -> None:
    act, says = CHANGES[change]
    check_change(file.reader, lambda: file.sql(_MADE), lambda: file.sql(act), says)


def test_what_keeps_the_rows_does_not_end_the_read(file: File) -> None:
    act = "CREATE INDEX i ON t (v); CREATE TABLE more (a); ANALYZE"
    check_no_change(
        file.reader, lambda: file.sql(f"DROP TABLE IF EXISTS more; {_MADE}"), lambda: file.sql(act)
    )


def test_splits_of_one_job_read_one_table(file: File) -> None:
    file.sql(_MADE)
    reader = file.reader(statementseconds="0")
    reader.schema()
    splits = reader.split(3)
    assert list(reader.read(splits[0]))
    file.sql(CHANGES["swap"][0])
    with pytest.raises(SourceError, match="not the table any more"):
        list(reader.read(splits[1]))
