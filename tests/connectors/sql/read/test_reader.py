"""What every database's reader promises: the same tests on PostgreSQL, MariaDB, SQLite, DuckDB, a
third party's Firebird and two ADBC drivers (of which PostgreSQL's passes the contract, and the rest in `make soak`).
"""

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.clock import seconds_connecting
from spark_channel.connectors import FetchSize
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.sql.statements import missing_table
from spark_channel.errors import (
    ChannelError,
    OptionError,
    SchemaError,
    SourceError,
    UnsupportedError,
)
from spark_channel.testing import reader_conformance
from tests.connectors.sql import skewed
from tests.connectors.sql.places import KINDS, Place, open_place

ROWS = 400


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.soak) if kind == "adbc-postgresql" else kind
        for kind in KINDS
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, request.param, tmp_path) as made:
        yield made


def ours() -> pytest.MarkDecorator:
    """Without ADBC: the databases that have their own connector."""
    return pytest.mark.parametrize(
        "place", [kind for kind in KINDS if not kind.startswith("adbc")], indirect=True
    )


def people(place: Place, rows: int = ROWS) -> None:
    columns = {"id": "int NOT NULL", "name": "text", "price": "real", "day": "day"}
    place.create("t", columns, [_person(number) for number in range(rows)], "id")


def _person(number: int) -> tuple[Any, ...]:
    name = None if number % 7 == 0 else f"it's {number % 50:02d}"
    return number, name, number / 4, f"2024-01-{1 + number % 28:02d}"


@pytest.mark.parametrize(
    "place",
    [  # those that are for make soak have a contract with separate tables beside their connector
        pytest.param(kind, marks=pytest.mark.soak) if kind in ("duckdb", "mysql") else kind
        for kind in KINDS
    ],
    indirect=True,
)
def test_a_reader_keeps_its_contract(place: Place) -> None:
    """Schema, splits that cover once, pickling, threads, a read closed early, any fetch size; no session is left."""
    few = 60  # the contract reads them one by one, too
    people(place, few)
    expected = pa.table(
        {
            "id": pa.array(range(few), pa.int64()),
            "name": [_person(number)[1] for number in range(few)],
        }
    )
    reader_conformance(lambda: place.reader(columns="id,name"), expected=expected)
    reader_conformance(
        lambda: place.reader(columns="id,name", partitionColumn="name"), expected=expected
    )
    assert place.connections() == 0


def test_connecting_is_told_apart_from_reading(place: Place) -> None:
    people(place, 8)
    reader = place.reader()
    splits = reader.split(1)
    before = seconds_connecting()
    assert sum(batch.num_rows for split in splits for batch in reader.read(split)) == 8
    assert seconds_connecting() > before


def test_columns_are_those_asked_for_in_their_order(place: Place) -> None:
    people(place, 8)
    assert place.read().schema.names == ["id", "name", "price", "day"]
    found = place.read(columns="PRICE, id").sort_by("id")
    assert found.schema.names == ["price", "id"]
    assert found["price"].to_pylist() == [number / 4 for number in range(8)]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("id < 10", 10),
        ("name = 'it''s 03' AND price > 50", 3),
        ("name IS NULL OR id IN (1, 2, 500)", 60),
        ("NOT (id BETWEEN 5 AND 394)", 10),
        ("CASE WHEN id > 389 THEN 1 ELSE 0 END = 1 -- a comment", 10),
        ("t.id = 1", 1),
    ],
)
def test_a_condition_runs_in_the_database(place: Place, where: str, rows: int) -> None:
    people(place)
    assert place.read(where=where, advice=3).num_rows == rows


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("id = 1; DROP TABLE t", "not a condition"),
        ("1 = 1) OR (1 = 1; --", "not a condition"),
        ("1 = 1) UNION SELECT * FROM t --", "not a condition"),
        ("id = 1 GROUP BY id", "not a condition"),
        ("id = ?", "a parameter that nothing would fill"),
        ("nope = 1", "column 'nope', which is not there; columns: id, name"),
        ("other.id = 1", "column 'other.id', which is not there"),
    ],
)
def test_what_is_more_or_less_than_a_condition_is_refused(
    place: Place, where: str, message: str
) -> None:
    people(place, 3)
    with pytest.raises(OptionError, match=message) as caught:
        place.read(where=where)
    assert caught.value.option == "where"
    assert place.read().num_rows == 3


def test_a_query_and_a_subquery_are_read(place: Place) -> None:
    people(place, 20)
    query = f"SELECT id * 2 AS d, name FROM {place.in_schema('t')} WHERE id < 10"
    assert sorted(place.read(None, query=query)["d"].to_pylist()) == list(range(0, 20, 2))
    assert place.sizes(None, query=query) == [10]
    assert (
        place.read(f"({query}) q", where="q.d > 4", columns="d", partitionColumn="d").num_rows == 7
    )
    assert sum(place.sizes(None, query=query, partitionColumn="d", advice=3)) == 10


@pytest.mark.parametrize(
    "query",
    ["DROP TABLE t", "SELECT 1; SELECT 2", "DELETE FROM t", "SELECT ?", "", "SELEC 1", "BEGIN"],
)
def test_a_query_is_one_select(place: Place, query: str) -> None:
    people(place, 3)
    with pytest.raises(OptionError) as caught:
        place.read(None, query=query)
    assert caught.value.option == "query"
    assert place.read().num_rows == 3


@pytest.mark.parametrize(
    "dbtable", ["(SELECT 1) a, (SELECT 2) b", "(SELECT 1) a WHERE 1 = 1", "(t)"]
)
def test_a_subquery_is_nothing_but_that(place: Place, dbtable: str) -> None:
    people(place, 3)
    with pytest.raises(OptionError, match="subquery"):
        place.read(dbtable)


@pytest.mark.parametrize("place", ["postgresql", "adbc-sqlite", "adbc-postgresql"], indirect=True)
def test_columns_that_cannot_be_told_apart_are_refused(place: Place) -> None:
    people(place, 3)
    with pytest.raises(
        SchemaError, match="the query has two columns of one name: id; give each another name"
    ):
        place.read(None, query=f"SELECT id, name, price AS id FROM {place.in_schema('t')}")


def test_what_is_not_there_is_told_by_name(place: Place) -> None:
    people(place, 3)
    with pytest.raises(SourceError, match=r"nothing_here"):
        place.read("nothing_here")
    for option, name in (("columns", "prize"), ("partitionColumn", "kk")):
        with pytest.raises(
            OptionError, match=f"'{option}' names column '{name}', which is not there; columns: id"
        ):
            place.reader(**{option: name}).split(2)


@ours()
def test_a_table_that_is_not_there_is_told_with_those_that_are(place: Place) -> None:
    people(place, 3)
    with pytest.raises(
        SourceError, match=r"table 'x\"; drop table t; --' does not exist in .*; its tables: t"
    ):
        place.read('x"; drop table t; --')
    with pytest.raises(OptionError, match="'customSchema' names column 'nope', which is not there"):
        place.read(customSchema="nope STRING")


def test_the_tables_that_are_told_are_the_users() -> None:
    names = ["public.spark_channel_claims", "spark_channel_tasks", "orders"]
    assert str(missing_table("oders", names, "shop")).endswith("its tables: orders")
    assert str(missing_table("oders", names[:2], "shop")).endswith("its tables: none")


@pytest.mark.parametrize("options", [{}, {"partitionColumn": "id"}, {"partitionColumn": "name"}])
def test_an_empty_source_has_no_splits(place: Place, options: dict[str, str]) -> None:
    people(place, 0)
    reader = place.reader(**options)
    assert reader.schema().names[0] == "id"
    assert reader.split(5) == []


def test_a_condition_that_nothing_meets_has_no_splits(place: Place) -> None:
    people(place, 3)
    assert sum(place.sizes(where="id > 1000")) == 0
    assert sum(place.sizes(where="id > 1000", partitionColumn="id")) == 0


def test_more_splits_than_rows_are_never_read(place: Place) -> None:
    people(place, 2)
    sizes = place.sizes(partitionColumn="id", advice=10)
    assert sum(sizes) == 2
    assert len(sizes) <= 10


@ours()
def test_skewed_keys_of_any_source_make_even_splits(place: Place) -> None:
    """99 % of the keys are in 1 % of their range: the largest split is at most 1.3 times the smallest."""
    rows = list(skewed.rows())
    place.create("ints", {"id": "int"}, [(number,) for number, _, _, _ in rows], "id")
    columns = {"id": "int", "name": "text", "a": "text", "b": "int"}
    place.create("texts", columns, rows, "name")
    place.create(
        "pairs",
        {"a": "text", "b": "int", "id": "int"},
        [(a, b, id_) for id_, _, a, b in rows],
        "a, b",
    )
    place.run("CREATE VIEW v AS SELECT * FROM texts")
    assert skewed.uneven(place.reader) == {}


@pytest.mark.parametrize("column", ["id", "name", "price", "day"])
def test_a_partition_column_of_any_type_makes_even_splits(place: Place, column: str) -> None:
    columns = {"id": "int NOT NULL", "name": "text", "price": "real", "day": "day"}
    rows = [
        (n, f"k{n:04d}", n / 7, f"2024-{1 + n % 12:02d}-{1 + n % 28:02d}") for n in range(1, 1001)
    ]
    place.create("t", columns, rows, "id")
    sizes = place.sizes(partitionColumn=column.upper(), advice=5)
    assert sum(sizes) == 1000
    assert len(sizes) == 5
    assert max(sizes) <= 1.35 * min(sizes)


def test_rows_without_a_key_are_a_split_of_their_own(place: Place) -> None:
    place.create(
        "t", {"id": "int", "k": "int"}, [(n, None if n % 4 == 0 else n) for n in range(100)]
    )
    reader = place.reader(partitionColumn="k")
    reader.schema()
    splits = reader.split(3)
    assert [split.params["kind"] for split in splits] == ["range"] * 3 + ["null"]
    (keys,) = [{v for b in reader.read(splits[-1]) for v in b["k"].to_pylist()}]
    assert keys == {None}
    *ranges, nulls = place.sizes(partitionColumn="k", advice=3)
    assert (sum(ranges), nulls) == (75, 25)
    assert max(ranges) - min(ranges) <= 2
    place.run("UPDATE t SET k = NULL")
    assert place.sizes(partitionColumn="k", advice=3) == [100]


def test_no_row_is_lost_of_a_value_that_most_have(place: Place) -> None:
    place.create("t", {"k": "int"}, [(5 if n < 900 else n,) for n in range(1000)])
    sizes = place.sizes(partitionColumn="k", advice=8)
    assert sum(sizes) == 1000
    assert all(sizes)


def test_bounds_are_a_stride_and_filter_nothing(place: Place) -> None:
    rows = [(n, f"2024-01-{1 + n:02d}", f"2024-01-{1 + n:02d} 12:00:00") for n in range(28)]
    place.create("t", {"k": "int", "d": "day", "ts": "time"}, [*rows, (None, None, None)])
    options = {"lowerBound": "8", "upperBound": "16", "partitionColumn": "k"}
    assert place.sizes(advice=4, **options) == [10, 2, 2, 14, 1]
    if not place.kind.startswith("adbc"):  # whose drivers read SQLite's as texts
        days = {"lowerBound": "2024-01-09", "upperBound": "2024-01-17"}
        assert place.sizes(advice=4, partitionColumn="d", **days) == [10, 2, 2, 14, 1]
        assert place.sizes(advice=4, partitionColumn="ts", **days) == [10, 2, 2, 14, 1]


@ours()
def test_estimates_are_about_what_is_read(place: Place) -> None:
    place.create(
        "t", {"id": "int NOT NULL", "v": "text"}, [(n**2, "x" * 50) for n in range(500)], "id"
    )
    reader = place.reader()
    schema = reader.schema()
    for split in reader.split(4):
        table = pa.Table.from_batches(list(reader.read(split)), schema)
        assert split.rows == pytest.approx(table.num_rows, rel=0.05)
        assert split.nbytes == pytest.approx(table.nbytes, rel=0.25)


@ours()
def test_rows_inserted_later_are_in_the_outer_splits(place: Place) -> None:
    people(place, 100)
    reader = place.reader(partitionColumn="id", columns="id")
    reader.schema()
    splits = reader.split(3)
    place.run("INSERT INTO t VALUES (-5, 'x', 0, '2024-01-01'), (5000, 'x', 0, '2024-01-01')")
    found = sorted(
        value
        for split in splits
        for batch in reader.read(split)
        for value in batch["id"].to_pylist()
    )
    assert found == [-5, *range(100), 5000]


@pytest.mark.parametrize(
    "name", ['x"; drop table t; --', "x`; drop table t; --", "order", "naïve", "50% %s ?", "My T"]
)
def test_any_name_is_only_a_name(place: Place, name: str) -> None:
    people(place, 3)
    place.create(name, {"id": "int"}, [(7,)])
    named = place.quoted(name) if place.schema else name
    assert place.reader(named).schema().names == ["id"]
    assert place.read(named, partitionColumn="id", where="id = 7").to_pylist() == [{"id": 7}]
    assert place.read().num_rows == 3


def test_a_batch_holds_no_more_than_the_limit(place: Place) -> None:
    people(place)
    reader = place.reader(fetchsize="90")
    reader.schema()
    (split,) = reader.split(1)
    assert sum(batch.num_rows for batch in reader.read(split)) == ROWS
    if place.kind not in ("postgresql", "duckdb"):  # cut by bytes, or by DuckDB's own vectors
        assert max(batch.num_rows for batch in reader.read(split)) == 90
    reader.fetch_size = FetchSize(rows=7)
    assert max(batch.num_rows for batch in reader.read(split)) <= 7


def test_a_read_that_is_closed_early_leaves_no_session(place: Place) -> None:
    rows = 6_000 if place.kind == "firebird" else 60_000  # Firebird takes them one by one
    place.create(
        "t", {"id": "int NOT NULL", "v": "text"}, [(n, "x" * 50) for n in range(rows)], "id"
    )
    reader = place.reader(fetchsize="1000")
    reader.schema()
    split = reader.split(1)[0]
    batches = reader.read(split)
    next(batches)
    batches.close()  # type: ignore[attr-defined] # a generator
    assert place.connections() == 0
    place.run("DROP TABLE t")  # which a lock would stop


def test_statements_of_a_session_run_first(place: Place) -> None:
    people(place, 3)
    with pytest.raises((OptionError, ChannelError), match="transaction"):
        place.read(sessionInitStatement="BEGIN")
    with pytest.raises(ChannelError):
        place.read(sessionInitStatement="SELECT nope FROM nowhere")


def ids(place: Place, feed: Any, after: Any, upto: Any) -> list[int]:
    """As executors read: from copies of the feed and its splits."""
    feed, splits = pickle.loads(pickle.dumps((feed, feed.changes(after, upto))))
    return sorted(
        row["id"] for split in splits for batch in feed.read(split) for row in batch.to_pylist()
    )


@ours()
@pytest.mark.parametrize("column", ["id", "name", "at"])
def test_a_cursor_feed_hands_out_each_row_once(place: Place, column: str) -> None:
    """Also the row with the highest value of a column without a unique index, which a position names by its key."""
    columns = {"id": "int NOT NULL", "name": "text NOT NULL", "at": "time NOT NULL"}
    rows = [(n, f"item {n:04d}", f"2024-01-01 00:00:00.{n:0{place.ticks}d}") for n in range(1, 66)]
    place.create("t", columns, rows[:60], "id")
    order = "text" if column == "name" else None
    feed = place.reader().feed(
        FeedOptions(cursor_column=column, cursor_order=order, late_seconds=0)
    )
    (start,), (now,) = feed.earliest(), feed.now()
    token = start
    seen: list[list[int]] = []
    while (cut := feed.latest(token, FeedLimit(rows=25), now)) != token:
        seen.append(ids(place, feed, token, cut))
        token = cut
    assert seen == [list(range(1, 26)), list(range(26, 51)), list(range(51, 61))]
    base = [
        row["id"]
        for split in feed.base([now], 3)
        for b in feed.read(split)
        for row in b.to_pylist()
    ]
    assert Counter(base) == Counter(range(1, 61))
    assert (feed.lag(now).rows, feed.lag(start).rows) == (0, 60)
    values = ", ".join(f"({n}, '{name}', '{at}')" for n, name, at in rows[60:])
    place.run(f"INSERT INTO t VALUES {values}")
    (after,) = feed.now()
    assert feed.latest(now, FeedLimit(), after) == after
    assert ids(place, feed, now, after) == list(range(61, 66))
    assert feed.changes(after, after) == []
    place.run("DELETE FROM t WHERE id > 40")
    with pytest.raises(SourceError, match="the column does not only grow"):
        feed.latest(after, FeedLimit())
    assert place.connections() == 0


@pytest.mark.parametrize("place", ["adbc-sqlite"], indirect=True)
def test_a_driver_that_does_not_say_how_values_compare_has_no_feed(place: Place) -> None:
    people(place, 3)
    with pytest.raises(UnsupportedError, match="AdbcReader has no change feed"):
        place.reader().feed(FeedOptions(cursor_column="id"))


@ours()
def test_a_feed_without_a_cursor_says_how_to_name_one(place: Place) -> None:
    people(place, 3)
    with pytest.raises(OptionError, match="cursorColumn"):
        place.reader().feed(FeedOptions())
    with pytest.raises(OptionError, match=r"'nope', which table .* does not have; it has id, name"):
        place.reader().feed(FeedOptions(cursor_column="nope"))
    with pytest.raises(OptionError, match="'price' of type double, whose values have no order"):
        place.reader().feed(FeedOptions(cursor_column="price"))
