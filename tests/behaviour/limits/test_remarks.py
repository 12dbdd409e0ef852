"""A job that cannot read in short statements says so when it starts, with their length at its limit."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from spark_channel.connectors import FetchSize, find_connector


def _sqlite(path: Path) -> dict[str, Any]:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (id TEXT PRIMARY KEY) WITHOUT ROWID")
        connection.executemany(
            "INSERT INTO t VALUES (?)", [(str(number),) for number in range(1_000)]
        )
    connection.close()
    return {"url": f"sqlite:{path}", "dbtable": "t"}


def _duckdb(path: Path) -> dict[str, Any]:
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT range AS id FROM range(1000)")
    return {"url": f"duckdb:{path}", "dbtable": "t"}


def _adbc(path: Path) -> dict[str, Any]:
    _sqlite(path)
    return {"reader": "adbc", "driver": "adbc_driver_sqlite", "uri": str(path), "dbtable": "t"}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_sqlite, "tables without a rowid, views and queries have no key here"),
        (_duckdb, "DuckDB's indexes find single rows, and no order"),
        (_adbc, "ADBC drivers do not say which keys are unique"),
    ],
    ids=["sqlite without rowid", "duckdb", "adbc"],
)
def test_one_statement_a_split_is_told(
    tmp_path: Path, make: Callable[[Path], dict[str, Any]], why: str
) -> None:
    options = make(tmp_path / "some.db")
    reader, _ = find_connector(options, "reader").reader_with(options)
    reader.schema()
    splits = reader.split(1)
    assert reader.remarks(splits) == []
    reader.fetch_size = FetchSize(rows=5)  # 10 rows a second
    (remark,) = reader.remarks(splits)
    assert "is read by one statement" in remark
    assert why in remark
    assert "more 'channels'" in remark
    if splits[0].rows is not None:
        assert (
            f"of up to {max(each.rows or 0 for each in splits) / 10:.0f} s at this limit" in remark
        )
