"""How a write changes an existing table and rows with existing keys, and that it changes nothing else."""

from typing import Any

import duckdb
import pyarrow as pa
import pytest

from spark_channel.connectors import load_reader, load_writer
from spark_channel.errors import CommitError, OptionError, SchemaError, TargetError
from tests.connectors.duckdb.conftest import Duck
from tests.connectors.sql.odd_names import hold_to_names
from tests.connectors.sql.one_database import run_task

ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})


@pytest.fixture
def keyed(duck: Duck) -> Duck:
    duck.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR, kept INTEGER DEFAULT 7)")
    duck.sql("INSERT INTO t VALUES (1, 'old', 1), (3, 'three', 3)")
    return duck


def rows(duck: Duck) -> list[tuple[object, ...]]:
    return duck.sql("SELECT * FROM t ORDER BY id")


def test_upsert_and_skip_existing(keyed: Duck) -> None:
    keyed.write(ROWS, writeMode="upsert", keyColumns="id")
    assert rows(keyed) == [(1, "a", 1), (2, "b", 7), (3, "three", 3)]
    more = pa.table({"id": [2, 4], "name": ["x", "y"]})
    keyed.write(more, writeMode="skipExisting", keyColumns="id")
    assert rows(keyed) == [(1, "a", 1), (2, "b", 7), (3, "three", 3), (4, "y", 7)]


def test_apply_takes_the_last_row_of_each_key(keyed: Duck) -> None:
    feed = pa.table(
        {
            "id": [1, 1, 3, 5, 5, 6],
            "name": ["x", "y", None, "five", None, "six"],
            "_op": ["update", "update", "delete", "insert", "delete", "insert"],
        }
    )
    keyed.write(feed, writeMode="apply", keyColumns="id")
    assert rows(keyed) == [(1, "y", 1), (6, "six", 7)]
    with pytest.raises(CommitError, match="'truncate' in _op"):
        keyed.write(
            pa.table({"id": [1], "name": ["x"], "_op": ["truncate"]}),
            writeMode="apply",
            keyColumns="id",
        )
    with pytest.raises(SchemaError, match="needs column '_op'"):
        keyed.write(ROWS, writeMode="apply", keyColumns="id")


def test_tasks_of_a_feed_come_in_their_order(keyed: Duck) -> None:
    """Whichever receipt comes first."""
    writer = keyed.writer(writeMode="apply")
    tasks = [
        pa.table({"id": [1], "name": [name], "_op": [op]})
        for name, op in (("x", "d"), ("last", "i"))
    ]
    plan = writer.prepare(keyed.context(), tasks[0].schema)
    receipts = [run_task(writer, plan, number, table) for number, table in enumerate(tasks)]
    writer.commit(plan, receipts[::-1])
    assert rows(keyed) == [(1, "last", 1), (3, "three", 3)]


@pytest.mark.parametrize(
    ("ids", "what"), [([1, 1], "2 rows have the key"), ([1, None], "NULL in its key")]
)
def test_doubtful_keys_are_refused(keyed: Duck, ids: list[int | None], what: str) -> None:
    with pytest.raises(CommitError, match=what):
        keyed.write(pa.table({"id": ids, "name": ["x", "y"]}), writeMode="upsert", keyColumns="id")
    assert rows(keyed) == [(1, "old", 1), (3, "three", 3)]


def test_the_key_is_the_tables_own_when_none_is_named(duck: Duck) -> None:
    duck.sql(
        "CREATE TABLE t (name VARCHAR UNIQUE, a BIGINT DEFAULT 1, b BIGINT, PRIMARY KEY (b, a))"
    )
    table = pa.table({"B": [1, 2], "a": [1, 1], "name": ["x", "y"]})
    duck.write(table, writeMode="upsert")
    duck.write(table.slice(1).set_column(2, "name", pa.array(["z"])), writeMode="upsert")
    assert sorted(duck.sql("SELECT b, a, name FROM t")) == [(1, 1, "x"), (2, 1, "z")]
    duck.write(table.slice(1), writeMode="skipExisting")
    duck.write(table.append_column("_op", pa.array(["delete", "update"])), writeMode="apply")
    assert duck.sql("SELECT b, a, name FROM t") == [(2, 1, "y")]
    with pytest.raises(
        OptionError, match="the primary key of table 't' names 'a', which the rows do not"
    ):
        duck.write(table.drop_columns(["a"]), writeMode="upsert")
    duck.sql("CREATE TABLE keyless (name VARCHAR UNIQUE)")
    with pytest.raises(
        OptionError, match="needs 'keyColumns', since table 'keyless' has no primary key"
    ):
        duck.write(table.select(["name"]), writeMode="upsert", dbtable="keyless")
    with pytest.raises(OptionError, match="needs 'keyColumns', since table 'made' is to be made"):
        duck.write(table, writeMode="upsert", dbtable="made")


def test_keys_must_be_unique_in_the_table(keyed: Duck) -> None:
    with pytest.raises(TargetError, match="create a unique index"):
        keyed.write(ROWS, writeMode="upsert", keyColumns="name")
    keyed.sql("CREATE UNIQUE INDEX by_name ON t (name)")
    keyed.write(pa.table({"id": [1], "name": ["old"]}), writeMode="skipExisting", keyColumns="name")
    assert rows(keyed) == [(1, "old", 1), (3, "three", 3)]


def test_overwrite_keeps_the_table_or_makes_it_anew(keyed: Duck) -> None:
    keyed.sql("CREATE VIEW v AS SELECT id FROM t")
    keyed.write(ROWS, overwrite=True)
    assert rows(keyed) == [(1, "a", 7), (2, "b", 7)]
    keyed.write(pa.table({"id": ["k"]}), overwrite=True, truncate="false")
    assert rows(keyed) == [("k",)]


def test_pre_and_post_sql_run_inside(keyed: Duck) -> None:
    keyed.write(
        ROWS.slice(1),
        preSql="DELETE FROM t WHERE name = 'old; not';; DELETE FROM t WHERE id = 3 -- three; gone",
        postSql='["UPDATE t SET kept = 9 WHERE id = 2"]',
    )
    assert rows(keyed) == [(1, "old", 1), (2, "b", 9)]
    with pytest.raises(OptionError, match="holds COMMIT"):
        keyed.write(ROWS, preSql="/* x */ COMMIT")


def test_statements_of_a_session_run_where_rows_are_written(duck: Duck) -> None:
    duck.sql(
        "CREATE TABLE t (id BIGINT, name VARCHAR, tenant VARCHAR DEFAULT getvariable('tenant'))"
    )
    duck.write(
        ROWS, sessionInitStatement="[\"SET VARIABLE tenant = 7; SET TimeZone = 'Asia/Tokyo'\"]"
    )
    assert rows(duck) == [(1, "a", "7"), (2, "b", "7")]
    with pytest.raises(OptionError, match="may not begin a transaction"):
        duck.write(ROWS, sessionInitStatement="BEGIN")


@pytest.mark.parametrize(
    "options",
    [
        {"maxDirtyRows": 1},
        {"maxDirtyRows": "unlimited", "commit": "job"},
        {"maxDirtyFraction": 0.5},
        {"maxDirtyRows": 0, "maxDirtyFraction": 0.5},
        {"dirtyRowsPath": "/kept"},
        {"createTableOptions": "WITH x"},
    ],
)
def test_no_commit_mode_bears_dirty_rows(duck: Duck, options: dict[str, Any]) -> None:
    """The advice is never a commit mode that the next run would refuse."""
    with pytest.raises(OptionError, match=r"option '\w+' is not supported: ") as raised:
        duck.writer(**options)
    assert raised.value.option in options
    assert "commit=task" not in str(raised.value)


def test_no_dirty_rows_is_what_it_does_anyway(duck: Duck) -> None:
    for commit in ({}, {"commit": "job"}):
        writer = duck.writer(maxDirtyRows=0, maxDirtyFraction=0, **commit)
        assert not writer.options.tolerates_dirty_rows
        assert writer.options.dirty_commit is None
    with pytest.raises(OptionError, match=r"'commit' got 'task'.*It takes 'job'"):
        duck.writer(commit="task")


def test_a_refused_row_refuses_all(keyed: Duck) -> None:
    with pytest.raises(CommitError, match="Duplicate key"):
        keyed.write(pa.table({"id": [9, 3], "name": ["x", "y"]}))
    assert rows(keyed) == [(1, "old", 1), (3, "three", 3)]
    assert keyed.staged() == []


def test_columns_meet_by_name(keyed: Duck) -> None:
    keyed.write(pa.table({"NAME": ["b"], "Id": [2]}))
    assert rows(keyed)[1] == (2, "b", 7)
    with pytest.raises(SchemaError, match="column 'nme' is not in table 't'"):
        keyed.write(pa.table({"id": [5], "nme": ["x"]}))
    with pytest.raises(SchemaError, match="needs column 'id'"):
        keyed.write(pa.table({"name": ["x"]}))


def test_splits_are_even_when_keys_are_not(duck: Duck) -> None:
    duck.sql("CREATE TABLE t AS SELECT range AS id, 1 AS a FROM range(400_000)")
    duck.sql("DELETE FROM t WHERE id BETWEEN 4_000 AND 396_000 AND id % 50 > 0")
    for options in ({}, {"partitionColumn": "id"}):
        reader = duck.reader(**options)
        reader.schema()
        splits = reader.split(4)
        counts = [sum(batch.num_rows for batch in reader.read(split)) for split in splits]
        assert len(counts) == 4
        assert sum(counts) == duck.sql("SELECT count(*) FROM t")[0][0]
        assert max(counts) <= 1.3 * min(counts), (options, counts)


def test_splits_are_even_when_most_rows_are_in_a_hundredth_of_the_row_numbers(duck: Duck) -> None:
    # B: no name of our own.
    duck.sql("CREATE TABLE t AS SELECT range AS b, 'x' AS k FROM range(1_000_000)")
    reader = duck.reader(where="b < 10000 OR b % 9900 = 0")
    reader.schema()
    splits = reader.split(8)
    counts = [sum(batch.num_rows for batch in reader.read(split)) for split in splits]
    assert len(counts) == 8
    assert sum(counts) == duck.sql("SELECT count(*) FROM t WHERE b < 10000 OR b % 9900 = 0")[0][0]
    assert max(counts) <= 1.3 * min(counts), counts


@pytest.mark.parametrize("url", ["jdbc:duckdb:{}", "duckdb://{}", "duckdb:{}", "JDBC:DUCKDB:{}"])
def test_urls(keyed: Duck, url: str) -> None:
    reader, _ = load_reader({"url": url.format(keyed.path), "dbtable": "t"})
    assert reader.schema().names == ["id", "name", "kept"]


@pytest.mark.parametrize(
    "url", ["duckdb:", "duckdb::memory:", "jdbc:duckdb:x.duckdb?a=s3cret", "duckdb:md:x"]
)
def test_urls_that_name_no_file(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        load_writer({"url": url, "dbtable": "t"})
    assert "s3cret" not in str(caught.value)


def test_odd_names_are_names_everywhere(duck: Duck) -> None:
    duck.sql("CREATE TABLE y AS SELECT 1 AS a")
    hold_to_names(
        duck.reader,
        lambda rows, commit, **options: duck.write(rows, **options),
        lambda name: '"' + name.replace('"', '""') + '"',
        modes=["upsert", "skipExisting", "apply"],
    )
    assert duck.sql("SELECT * FROM y") == [(1,)]
    assert duck.staged() == []


def test_what_another_connection_of_this_process_sets_changes_no_rows(duck: Duck) -> None:
    duck.sql("CREATE TABLE t AS SELECT * FROM (VALUES ('a'), ('A')) given (v)")
    with duckdb.connect(str(duck.path), read_only=True) as other:
        other.execute("SET GLOBAL default_collation = 'nocase'; SET GLOBAL integer_division = true")
        assert duck.read(where="v = 'a'", externalAccess="true").num_rows == 1
        half = duck.read(None, query="SELECT 1 / 2 AS half", externalAccess="true")
        assert half["half"].to_pylist() == [0.5]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (pa.timestamp("ns"), "its times have other digits; .* TIMESTAMP_NS"),
        (pa.timestamp("us", "UTC"), "one has a time zone and the other has none; .*"),
    ],
)
def test_a_refused_type_of_times_says_what_differs(duck: Duck, kind: pa.DataType, why: str) -> None:
    duck.sql("CREATE TABLE t (at_time TIMESTAMP)")
    with pytest.raises(SchemaError, match=why):
        duck.write(pa.table({"at_time": pa.array([1], kind)}))
