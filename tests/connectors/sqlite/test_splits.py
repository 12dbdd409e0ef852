"""Splits cover the rows once, in about equal parts, whatever the keys look like."""

import datetime as dt
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_channel.errors import OptionError
from tests.connectors.sql import skewed
from tests.connectors.sqlite.conftest import Db


def sizes(db: Db, advice: int, dbtable: str | None = "t", **options: Any) -> list[int]:
    """Rows per split, after holding that all splits together give each row once."""
    reader = db.reader(dbtable, **options)
    schema = reader.schema()
    whole: Counter[str] = Counter()
    counts = []
    for split in reader.split(advice):
        table = pa.Table.from_batches(list(reader.read(split)), schema)
        whole.update(map(repr, table.to_pylist()))
        counts.append(table.num_rows)
    one = reader.split(1)
    alone = pa.Table.from_batches([batch for split in one for batch in reader.read(split)], schema)
    assert whole == Counter(map(repr, alone.to_pylist()))
    return counts


def test_a_dense_table_is_cut_evenly(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
    db.many("INSERT INTO t VALUES (?, ?)", [(number, str(number)) for number in range(1000)])
    assert sizes(db, 7) == [142, 143, 143, 143, 143, 143, 143]


def test_gaps_do_not_skew(db: Db) -> None:
    """99 % of the keys lie in 1 % of their range: the largest split is at most 1.3 times the smallest."""
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    chosen = random.Random(1)
    keys = set(range(5_000_000, 5_009_900)) | {chosen.randrange(10**6) * 1000 for _ in range(100)}
    db.many("INSERT INTO t VALUES (?)", [(key,) for key in keys])
    counts = sizes(db, 20)
    assert len(counts) == 20
    assert max(counts) <= 1.3 * min(counts)


@pytest.mark.parametrize("rowid", ["", " WITHOUT ROWID"])
def test_any_source_with_skewed_keys_makes_even_splits(db: Db, rowid: str) -> None:
    db.sql("CREATE TABLE ints (id INTEGER PRIMARY KEY)")
    db.sql(
        f"CREATE TABLE texts (id INTEGER, name TEXT, a TEXT, b INTEGER, PRIMARY KEY (name)){rowid}"
    )
    db.sql(f"CREATE TABLE pairs (a TEXT, b INTEGER, id INTEGER, PRIMARY KEY (a, b)){rowid}")
    db.many("INSERT INTO texts VALUES (?, ?, ?, ?)", skewed.rows())
    db.sql("INSERT INTO ints SELECT id FROM texts")
    db.sql("INSERT INTO pairs SELECT a, b, id FROM texts")
    db.sql("CREATE VIEW v AS SELECT * FROM texts")
    assert skewed.uneven(db.reader) == {}


def test_estimates_are_what_is_read(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
    db.many("INSERT INTO t VALUES (?, ?)", [(number**2, "x" * 100) for number in range(500)])
    reader = db.reader()
    schema = reader.schema()
    for split in reader.split(4):
        table = pa.Table.from_batches(list(reader.read(split)), schema)
        assert split.rows == table.num_rows
        assert split.nbytes == pytest.approx(table.nbytes, rel=0.15)


def test_splits_are_even_under_a_condition(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, day TEXT)")
    db.many(
        "INSERT INTO t VALUES (?, ?)",
        [(number, "new" if number > 900 else "old") for number in range(1000)],
    )
    assert sizes(db, 3, where="day = 'new'") == [33, 33, 33]


@pytest.mark.parametrize("table", ["t", "v", None], ids=["table", "view", "query"])
def test_an_empty_source_has_no_splits(db: Db, table: str | None) -> None:
    db.sql("CREATE TABLE t (id INTEGER, v TEXT)")
    db.sql("CREATE VIEW v AS SELECT * FROM t")
    options = {} if table else {"query": "SELECT * FROM t"}
    reader = db.reader(table, **options)
    assert reader.schema().names == ["id", "v"]
    assert reader.split(5) == []
    assert db.reader(table, partitionColumn="id", **options).split(5) == []


def test_more_splits_than_rows_are_never_made(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER)")
    db.sql("INSERT INTO t VALUES (1), (2)")
    assert sizes(db, 10) == [1, 1]


def test_views_and_queries_are_one_split(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER)")
    db.many("INSERT INTO t VALUES (?)", [(number,) for number in range(50)])
    db.sql("CREATE VIEW v AS SELECT id * 2 AS d FROM t")
    assert sizes(db, 4, "v") == [50]
    assert sizes(db, 4, None, query="SELECT id FROM t ORDER BY id LIMIT 10") == [10]
    assert sizes(db, 4, "(SELECT id FROM t) q") == [50]


def test_a_table_without_rowid_is_cut_by_its_key(db: Db) -> None:
    db.sql("CREATE TABLE t (a TEXT, b INTEGER, v REAL, PRIMARY KEY (a, b)) WITHOUT ROWID")
    db.many(
        "INSERT INTO t VALUES (?, ?, 0.5)", [("ab"[number % 2], number) for number in range(400)]
    )
    assert sizes(db, 4) == [100, 100, 100, 100]


def test_a_table_whose_columns_hide_the_rowid_is_cut_by_its_key_or_not_at_all(db: Db) -> None:
    db.sql("CREATE TABLE t (rowid TEXT, _rowid_ TEXT, oid INTEGER PRIMARY KEY)")
    db.many("INSERT INTO t VALUES ('x', 'y', ?)", [(number,) for number in range(40)])
    assert sizes(db, 4) == [10, 10, 10, 10]
    db.sql("CREATE TABLE u (rowid TEXT, _rowid_ TEXT, oid TEXT)")
    db.sql("INSERT INTO u VALUES ('x', 'y', 'z'), ('x', 'y', 'z')")
    assert sizes(db, 4, "u") == [2]


def test_negative_and_extreme_rowids(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    keys = [-(2**63), -7, 0, 9, 2**62, 2**63 - 1]
    db.many("INSERT INTO t VALUES (?)", [(key,) for key in keys])
    assert sizes(db, 3) == [2, 2, 2]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("INTEGER", lambda number: number % 100),
        ("TEXT", lambda number: f"key-{number % 100:03d}"),
        ("REAL", lambda number: number / 7),
        ("BLOB", lambda number: number.to_bytes(2, "big")),
        ("TEXT COLLATE NOCASE", lambda number: "aAbB"[number % 4] + str(number % 50)),
    ],
)
def test_a_partition_column_alone_gives_equal_splits(db: Db, declared: str, value: Any) -> None:
    db.sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, k {declared})")
    db.many("INSERT INTO t VALUES (?, ?)", [(number, value(number)) for number in range(1000)])
    counts = sizes(db, 5, partitionColumn="K")
    assert len(counts) == 5
    assert max(counts) <= 1.3 * min(counts)


def test_a_stride_over_dates_and_timestamps(db: Db) -> None:
    first = dt.date(2024, 1, 1)
    db.sql("CREATE TABLE t (d DATE, ts TIMESTAMP, tz TIMESTAMPTZ)")
    days = [(first + dt.timedelta(days=number)).isoformat() for number in range(100)]
    db.many(
        "INSERT INTO t VALUES (?, ?, ?)",
        [(day, f"{day} 12:00:00.000000", f"{day} 12:00:00.000000Z") for day in days],
    )
    bounds = {"lowerBound": "2024-01-01", "upperBound": "2024-04-10"}
    assert sizes(db, 4, partitionColumn="d", **bounds) == [25, 25, 25, 25]
    assert sizes(db, 4, partitionColumn="ts", **bounds) == [25, 25, 25, 25]
    assert sizes(db, 4, partitionColumn="tz", **bounds) == [25, 25, 25, 25]


def test_a_stride_needs_a_number_or_a_time(db: Db) -> None:
    db.sql("CREATE TABLE t (k TEXT, d DECIMAL_TEXT(38,18))")
    db.sql("INSERT INTO t VALUES ('a', '1.5')")
    for column, message in (
        ("k", "needs a number, a date or a timestamp"),
        ("d", "decimals as text"),
    ):
        reader = db.reader(partitionColumn=column, lowerBound="0", upperBound="9")
        reader.schema()
        with pytest.raises(OptionError, match=message):
            reader.split(2)
    assert sizes(db, 2, partitionColumn="d") == [1]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    keys=st.sets(st.integers(-(2**63), 2**63 - 1) | st.integers(-50, 50), max_size=60),
    advice=st.integers(1, 12),
)
def test_any_keys_are_covered_once_and_evenly(db: Db, keys: set[int], advice: int) -> None:
    db.sql("DROP TABLE IF EXISTS t")
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    db.many("INSERT INTO t VALUES (?)", [(key,) for key in keys])
    counts = sizes(db, advice)
    assert sum(counts) == len(keys)
    assert len(counts) == min(advice, len(keys))
    assert not counts or max(counts) - min(counts) <= 1


def test_few_rows_are_joined_into_one_split_with_all_of_them(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
    db.many("INSERT INTO t VALUES (?, ?)", [(number, str(number)) for number in range(1000)])
    reader = db.reader("t")
    splits = reader.split(10)
    [joined] = reader.joined(splits)
    assert len(splits) == 10
    assert (joined.rows, joined.nbytes) == (1000, sum(split.nbytes or 0 for split in splits))
    found = [row["id"] for batch in reader.read(joined) for row in batch.to_pylist()]
    assert sorted(found) == list(range(1000))


@pytest.mark.parametrize(
    ("rows", "width", "options"),
    [
        (10_000, 1, {}),
        (50, 100_000, {}),
        (100, 1, {"where": "id < 50"}),  # few rows of a table that may be large
        (100, 1, {"partitionColumn": "id"}),
    ],
    ids=["many rows", "many bytes", "a condition", "a column to cut by"],
)
def test_other_splits_stay(db: Db, rows: int, width: int, options: dict[str, Any]) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v BLOB)")
    db.many("INSERT INTO t VALUES (?, ?)", [(number, b"x" * width) for number in range(rows)])
    reader = db.reader("t", **options)
    splits = reader.split(10)
    assert len(splits) > 1
    assert reader.joined(splits) == splits


def test_rows_without_a_key_stay_apart(db: Db) -> None:
    db.sql("CREATE TABLE t (a TEXT PRIMARY KEY) ")
    db.many("INSERT INTO t VALUES (?)", [(None,), *((str(number),) for number in range(100))])
    reader = db.reader("t")
    splits = reader.joined(reader.split(4))
    assert sum(batch.num_rows for split in splits for batch in reader.read(split)) == 101


@pytest.mark.parametrize(
    "declared",
    ["INTEGER PRIMARY KEY DESC", "INT PRIMARY KEY", "TEXT PRIMARY KEY", "BLOB PRIMARY KEY"],
)
def test_a_primary_key_that_holds_null_loses_no_row(db: Db, declared: str) -> None:
    """Only INTEGER PRIMARY KEY is the rowid; other keys take NULL, also more than once."""
    db.sql(f"CREATE TABLE t (id {declared}, n INT)")
    db.sql(
        "WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 90) "
        "INSERT INTO t SELECT CASE WHEN i % 3 THEN i END, i FROM r"
    )
    for options in ({}, {"partitionColumn": "id"}, {"statementSeconds": "5"}):
        for advice in (1, 4):
            found = db.read("t", advice=advice, columns="n", **options)
            assert sorted(found["n"].to_pylist()) == list(range(1, 91)), options
