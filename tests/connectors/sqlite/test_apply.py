"""`writeMode=apply`: a change feed's rows into the table, the last of each key, as a dictionary would take them."""

import random

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.feed import DELETES, WRITES
from spark_channel.errors import OptionError, SchemaError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.sql.one_database import run_task
from tests.connectors.sqlite.conftest import Db

both = pytest.mark.parametrize("commit", ["job", "task"])


@pytest.fixture
def keyed(db: Db) -> Db:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, kept INTEGER DEFAULT 7)")
    db.sql("INSERT INTO t VALUES (1, 'old', 1), (3, 'three', 3)")
    return db


def rows(db: Db) -> list[tuple[object, ...]]:
    return db.sql("SELECT * FROM t ORDER BY id")


def feed(*changes: tuple[int | None, str | None, str | None]) -> pa.Table:
    ids, names, operations = zip(*changes, strict=True)
    return pa.table(
        {
            "_op": pa.array(operations, pa.string()),
            "id": pa.array(ids, pa.int64()),
            "name": list(names),
        }
    )


@both
def test_the_last_row_of_each_key_counts(keyed: Db, commit: CommitMode) -> None:
    keyed.write(
        feed(
            (1, "x", "update"),
            (1, "y", "U"),
            (3, None, "delete"),
            (5, "five", "insert"),
            (5, None, "d"),
            (6, None, "D"),
            (6, "six", "c"),
            (7, None, "delete"),
        ),
        writeMode="apply",
        commit=commit,
        batchsize="2",
    )
    assert rows(keyed) == [(1, "y", 1), (6, "six", 7)]
    assert keyed.staged() == []


@both
def test_a_random_feed_ends_as_a_dictionary_does(keyed: Db, commit: CommitMode) -> None:
    chance, known = random.Random(7), {1: "old", 3: "three"}
    for _ in range(5):
        changes = []
        for number in range(200):
            key, operation = chance.randrange(40), chance.choice([*WRITES, *DELETES])
            changes.append((key, f"n{number}", operation))
            if operation in DELETES:
                known.pop(key, None)
            else:
                known[key] = f"n{number}"
        keyed.write(
            feed(*changes), writeMode="apply", keyColumns="ID", commit=commit, batchsize="64"
        )
        assert dict(keyed.sql("SELECT id, name FROM t")) == known


def test_tasks_come_in_their_order(keyed: Db) -> None:
    """With `commit=job`, whichever receipt comes first."""
    writer = keyed.writer(writeMode="apply")
    tasks = [feed((1, "first", "u"), (3, "3", "u")), feed((1, "last", "u"), (3, None, "d"))]
    plan = writer.prepare(keyed.context(), tasks[0].schema)
    receipts = [run_task(writer, plan, number, table) for number, table in enumerate(tasks)]
    writer.commit(plan, receipts[::-1])
    assert rows(keyed) == [(1, "last", 1)]


@both
def test_what_says_nothing_known_is_refused(keyed: Db, commit: CommitMode) -> None:
    for strange, reason in (
        (None, "None in _op"),
        ("truncate", "'truncate' in _op; it takes one of insert"),
    ):
        with pytest.raises(TargetError, match=reason):
            keyed.write(feed((1, "x", "u"), (3, "y", strange)), writeMode="apply", commit=commit)
    with pytest.raises(TargetError, match="NULL in its key"):
        keyed.write(feed((1, "x", "u"), (None, "y", "d")), writeMode="apply", commit=commit)
    with pytest.raises(SchemaError, match=r"needs column '_op'.*the rows have id, name"):
        keyed.write(feed((1, "x", "u")).drop_columns(["_op"]), writeMode="apply", commit=commit)
    assert rows(keyed) == [(1, "old", 1), (3, "three", 3)]
    assert keyed.staged() == []


@both
def test_a_new_table_has_the_key_and_no_operation(db: Db, commit: CommitMode) -> None:
    changes = feed((1, "a", "i"), (2, "b", "i"), (1, None, "d"))
    with pytest.raises(OptionError, match="needs 'keyColumns', since table 't' is to be made"):
        db.write(changes, writeMode="apply", commit=commit)
    db.write(changes, writeMode="apply", keyColumns="id", commit=commit)
    assert rows(db) == [(2, "b")]
    db.write(feed((2, "c", "u"), (3, None, "d")), writeMode="apply", commit=commit)
    assert rows(db) == [(2, "c")]


@both
def test_keys_of_several_columns_under_odd_names(db: Db, commit: CommitMode) -> None:
    db.sql(
        """CREATE TABLE t (id TEXT, "rowid" BIGINT, "o""id" TEXT, PRIMARY KEY ("o""id", "rowid"))"""
    )
    db.sql("INSERT INTO t VALUES ('a', 1, 'x'), ('b', 2, 'x'), ('c', 1, 'y')")
    table = pa.table(
        {
            "id": ["A", "B", None],
            "rowid": [1, 2, 3],
            'o"id': ["x", "x", "y"],
            "_op": ["d", "u", "d"],
        }
    )
    db.write(table, writeMode="apply", commit=commit)
    assert rows(db) == [("B", 2, "x"), ("c", 1, "y")]


def test_refused_rows_of_a_feed_are_dirty(keyed: Db) -> None:
    writer = keyed.writer(writeMode="apply", maxDirtyRows="9")
    table = feed(
        (1, "x", "u"), (3, "y", "truncate"), (None, "z", "u"), (1, None, "d"), (8, "eight", "i")
    )
    plan = writer.prepare(keyed.context(commit="task"), table.schema)
    refused: list[str] = []
    task = writer.open(plan, 0, 0)
    task.tolerant, task.refused = True, lambda _row, reason: refused.append(reason)
    for batch in table.to_batches(max_chunksize=2):
        task.write(batch)
    receipt = task.close()
    writer.commit(plan, [receipt])
    assert rows(keyed) == [(3, "three", 3), (8, "eight", 7)]
    assert receipt.rows == 3
    assert ["in _op" in refused[0], "NULL in its key" in refused[1]] == [True, True]


def test_a_batch_of_a_stream_is_applied_once(keyed: Db) -> None:
    """A query that was stopped runs its last batch again, by a new writer."""
    batches = [feed((1, "x", "u"), (5, "five", "i")), feed((1, None, "d"), (5, "cinq", "u"))]
    for number, table in ((0, batches[0]), (1, batches[1]), (1, batches[1]), (0, batches[0])):
        writer = keyed.writer(writeMode="apply")
        plan = writer.prepare(
            WriteContext(f"query-{number}", stream=("query", number)), table.schema
        )
        writer.commit(plan, [run_task(writer, plan, 0, table)])
    assert rows(keyed) == [(3, "three", 3), (5, "cinq", 7)]
    assert keyed.staged() == []


@both
def test_a_pair_that_was_published_is_a_no_op(keyed: Db, commit: CommitMode) -> None:
    keyed.write(feed((1, None, "d")), writeMode="apply", commit=commit, txn=("feed", 1))
    keyed.write(feed((1, "back", "i")), writeMode="apply", commit=commit, txn=("feed", 2))
    keyed.write(feed((1, None, "d")), writeMode="apply", commit=commit, txn=("feed", 1))
    assert rows(keyed) == [(1, "back", 7), (3, "three", 3)]
