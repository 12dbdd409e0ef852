"""Dirty rows: SQLite refuses some, the others arrive."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt
from spark_channel.errors import DirtyRowsError, OptionError, TargetError
from tests.connectors.sqlite.conftest import Db

Refused = list[tuple[dict[str, Any], str]]


def write(
    db: Db,
    *tables: pa.Table,
    attempts: tuple[int, ...] = (0,),
    on_refused: Callable[[int], None] = lambda _count: None,
    **options: Any,
) -> tuple[Receipt, Refused]:
    """One task, tried `attempts` times; the last receipt is committed."""
    writer = db.writer(maxDirtyRows="unlimited", **options)
    plan = writer.prepare(db.context(commit="task"), tables[0].schema)
    for attempt in attempts:
        refused: Refused = []

        def refuse(row: pa.RecordBatch, why: str, seen: Refused = refused) -> None:
            seen.append((row.to_pylist()[0], why))
            on_refused(len(seen))

        task = writer.open(plan, 0, attempt)
        task.tolerant, task.refused = True, refuse
        try:
            for table in tables:
                for batch in table.to_batches():
                    task.write(batch)
            receipt = task.close()
        except BaseException:
            task.rollback()
            writer.abort(plan, None)
            raise
    writer.commit(plan, [receipt])
    return receipt, refused


def numbered(*ids: int | None, **more: Any) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{n}" for n in ids], **more})


def test_rows_that_break_constraints_are_refused_and_no_other(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT NOT NULL CHECK (name <> 'n5'))")
    db.sql("INSERT INTO t VALUES (3, 'was here')")
    rows = numbered(*range(1000))
    receipt, refused = write(db, rows, numbered(1000, 999, 1001), batchSize=64)
    assert [(row["id"], why.rpartition("SQLite says: ")[2]) for row, why in refused] == [
        (3, "UNIQUE constraint failed: t.id"),
        (5, "CHECK constraint failed: name <> 'n5'"),
        (999, "UNIQUE constraint failed: t.id"),
    ]
    assert (receipt.rows, receipt.task) == (1000, 0)
    assert db.sql("SELECT count(*), sum(id) FROM t WHERE name <> 'was here'") == [
        (1000, sum(range(1000)) - 3 - 5 + 1000 + 1001)
    ]
    assert db.staged() == []


def test_a_value_that_would_come_back_changed_is_refused_as_it_was_given(db: Db) -> None:
    db.sql("CREATE TABLE t (id BIGINT, x DOUBLE)")
    rows = pa.table({"id": [1, 2, 3], "x": [1.0, float("nan"), 3.0]})
    _, refused = write(db, rows)
    assert [row["id"] for row, _ in refused] == [2]
    assert (
        "column 'x': 'nan' cannot be stored in table 't': SQLite stores NaN as NULL"
        in refused[0][1]
    )
    assert db.sql("SELECT id FROM t ORDER BY id") == [(1,), (3,)]


@pytest.mark.parametrize("mode", ["upsert", "skipExisting"])
def test_a_key_that_comes_twice_is_refused_the_second_time(db: Db, mode: str) -> None:
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    db.sql("INSERT INTO t VALUES (2, 'old')")
    tables = (numbered(1, 2, 1, None), numbered(3, 2))
    _, refused = write(db, *tables, writeMode=mode, keyColumns="id")
    assert [row["id"] for row, _ in refused] == [1, None, 2]
    assert "keep one row per key" in refused[0][1]
    assert "NULL in its key" in refused[1][1]
    two = "n2" if mode == "upsert" else "old"
    assert db.sql("SELECT * FROM t ORDER BY id") == [(1, "n1"), (2, two), (3, "n3")]


def test_too_many_leave_the_table_as_it_was(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    db.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")

    def most_one(count: int) -> None:
        if count > 1:
            raise DirtyRowsError("too many")

    with pytest.raises(DirtyRowsError):
        write(db, numbered(0, 1, 2, 3), on_refused=most_one)
    assert db.sql("SELECT id FROM t") == [(1,), (2,)]
    assert db.staged() == []


def test_a_second_attempt_finds_the_first_ones_rows_and_counts_its_dirty_ones(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    db.sql("INSERT INTO t VALUES (1, 'a')")
    receipt, refused = write(db, numbered(0, 1, 2, 3), attempts=(0, 1))
    assert (receipt.attempt, receipt.rows, receipt.dirty_rows, refused) == (0, 3, 1, [])
    assert db.sql("SELECT count(*) FROM t") == [(4,)]


def test_a_trigger_that_ends_the_transaction_ends_the_attempt(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    db.sql(
        "CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN SELECT RAISE(ROLLBACK, 'all of it'); END"
    )
    with pytest.raises(TargetError, match="all of it"):
        write(db, numbered(0, 1, 2, 3))
    assert db.sql("SELECT count(*) FROM t") == [(0,)]


def test_one_publish_for_all_rows_cannot_leave_some_out(db: Db) -> None:
    for option in ({"maxDirtyRows": 1}, {"maxDirtyFraction": 0.1}):
        with pytest.raises(OptionError, match="need commit=task"):
            db.writer(commit="job", **option)
    db.writer(commit="job", maxDirtyRows=0)
