"""`writeMode` upsert, skipExisting and apply through drivers whose databases have ON CONFLICT."""

import random
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, load_writer
from spark_channel.errors import OptionError, SchemaError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.adbc.test_database import Base, base

__all__ = ["base"]

both = pytest.mark.parametrize("commit", ["job", "task"])
KEYED: dict[str, Any] = {"keyColumns": "id"}


@pytest.fixture
def keyed(base: Base) -> Base:
    base.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, kept BIGINT DEFAULT 7)")
    base.sql("INSERT INTO t VALUES (1, 'old', 1), (3, 'three', 3)")
    return base


def rows(base: Base) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in base.read().to_pylist())


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
def test_upsert_skip_existing_and_apply(keyed: Base, commit: CommitMode) -> None:
    two = pa.table({"ID": [1, 2], "name": ["a", "b"]})
    keyed.write(two, writeMode="upsert", commit=commit, **KEYED)
    assert rows(keyed) == [(1, "a", 1), (2, "b", 7), (3, "three", 3)]
    more = pa.table({"id": [2, 4], "name": ["x", "y"]})
    keyed.write(more, writeMode="skipExisting", commit=commit, **KEYED)
    assert rows(keyed) == [(1, "a", 1), (2, "b", 7), (3, "three", 3), (4, "y", 7)]
    changes = feed(
        (1, "x", "update"),
        (1, "y", "U"),
        (3, None, "delete"),
        (5, "five", "i"),
        (5, None, "d"),
        (6, "six", "c"),
    )
    keyed.write(changes, writeMode="apply", commit=commit, **KEYED)
    assert rows(keyed) == [(1, "y", 1), (2, "b", 7), (4, "y", 7), (6, "six", 7)]
    assert keyed.staged() == []


@both
def test_what_cannot_be_told_is_refused(keyed: Base, commit: CommitMode) -> None:
    before = rows(keyed)
    for ids, message in (([1, 1], "2 rows have the key"), ([1, None], "NULL in its key")):
        with pytest.raises(TargetError, match=message):
            keyed.write(
                pa.table({"id": ids, "name": ["x", "y"]}),
                writeMode="upsert",
                commit=commit,
                **KEYED,
            )
    for strange in ("truncate", None):
        with pytest.raises(TargetError, match=f"{strange!r} in _op; it takes one of insert"):
            keyed.write(
                feed((1, "x", "u"), (3, "y", strange)), writeMode="apply", commit=commit, **KEYED
            )
    with pytest.raises(SchemaError, match="needs column '_op'"):
        keyed.write(
            feed((1, "x", "u")).drop_columns(["_op"]), writeMode="apply", commit=commit, **KEYED
        )
    with pytest.raises(TargetError, match=r"does not hold \(name\) unique.*create a unique index"):
        keyed.write(feed((1, "x", "u")), writeMode="apply", commit=commit, keyColumns="name")
    assert rows(keyed) == before
    assert keyed.staged() == []


@both
def test_a_new_table_holds_its_key_unique(base: Base, commit: CommitMode) -> None:
    base.write(
        feed((1, "a", "i"), (2, "b", "i"), (1, None, "d")),
        writeMode="apply",
        commit=commit,
        **KEYED,
    )
    assert rows(base) == [(2, "b")]
    base.write(
        pa.table({"id": [2, 3], "name": ["c", "d"]}), writeMode="upsert", commit=commit, **KEYED
    )
    assert rows(base) == [(2, "c"), (3, "d")]
    with pytest.raises(Exception, match=r"(?i)unique"):
        base.sql(f"INSERT INTO {base.name('t')} VALUES (2, 'twice')")


def test_tasks_come_in_their_order(keyed: Base) -> None:
    """With `commit=job`, whichever receipt comes first, over chunks of `batchSize` rows; held to a dictionary."""
    chance, known = random.Random(3), {1: "old", 3: "three"}
    writer = keyed.writer(writeMode="apply", batchSize="16", **KEYED)
    tasks = []
    for task in range(3):
        changes = []
        for number in range(60):
            key, name, operation = (
                chance.randrange(20),
                f"{task}-{number}",
                chance.choice(["u", "i", "d"]),
            )
            changes.append((key, name, operation))
            known[key] = name
            if operation == "d":
                del known[key]
        tasks.append(feed(*changes))
    plan = writer.prepare(WriteContext("ordered"), tasks[0].schema)
    receipts = []
    for number, table in enumerate(tasks):
        attempt = writer.open(plan, number, number)
        for batch in table.to_batches(max_chunksize=10):
            attempt.write(batch)
        receipts.append(attempt.close())
    assert plan.commit == "job"
    writer.commit(plan, receipts[::-1])
    assert {key: name for key, name, _ in rows(keyed)} == known
    assert keyed.staged() == []


def test_a_key_of_two_columns_under_odd_names(base: Base) -> None:
    base.sql("""CREATE TABLE t (a BIGINT, "o""id" TEXT, "select" TEXT, PRIMARY KEY ("o""id", a))""")
    base.sql("INSERT INTO t VALUES (1, 'x', 'kept'), (2, 'x', 'goes'), (1, 'y', 'old')")
    table = pa.table(
        {
            "a": [2, 1, 9],
            'o"id': ["x", "y", "z"],
            "select": [None, "new", "made"],
            "_op": ["d", "u", "i"],
        }
    )
    base.write(table, writeMode="apply", keyColumns='["a", "o\\"id"]')
    assert rows(base) == [(1, "x", "kept"), (1, "y", "new"), (9, "z", "made")]


def test_what_it_needs_is_told_before_anything_is_asked() -> None:
    options = {"writer": "adbc", "driver": "sqlite", "dbtable": "t", "writemode": "upsert"}
    with pytest.raises(OptionError, match="upsert needs 'keyColumns'"):
        load_writer(options)
    with pytest.raises(OptionError, match="need writeMode=insert, and it is upsert"):
        load_writer({**options, "keycolumns": "id", "maxdirtyrows": "3"})
    for mode in ("upsert", "skipExisting", "apply"):
        for named in ({"driver": "snowflake"}, {"driver": "/lib/some.so"}, {"dialect": "tsql"}):
            with pytest.raises(
                OptionError,
                match=f"'writeMode' got '{mode}'; with a database that speaks .* it takes insert: .*postSql",
            ):
                load_writer({**options, **named, "writemode": mode, "keycolumns": "id"})
