"""Append, overwrite, create, upsert: which rows the table contains, and which jobs are refused."""

# ruff: noqa: E501 - a case is one line of its table

import sqlite3
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_channel.connectors.base.overlap import MOST_COUNTED
from spark_channel.connectors.sql.write.file_database import FilePlan
from spark_channel.connectors.sqlite.session import SqliteSession
from spark_channel.errors import CommitError, OptionError, SchemaError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.sql.odd_names import hold_to_names
from tests.connectors.sql.one_database import run_task
from tests.connectors.sqlite.conftest import Db

pytestmark = pytest.mark.real_server("SQLite", "sqlite")

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})
MORE = pa.table({"id": [4], "name": ["d"]})
MODES: list[CommitMode] = ["job", "task"]


def test_a_new_table_is_made_from_the_schema(db: Db) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ('odd "name', pa.string()),
            ("x", pa.float64()),
        ]
    )
    db.write(schema.empty_table())
    assert db.sql("SELECT name, type, \"notnull\", pk FROM pragma_table_info('t')") == [
        ("id", "BIGINT", 1, 0),
        ('odd "name', "TEXT", 0, 0),
        ("x", "DOUBLE", 0, 0),
    ]


@pytest.mark.parametrize("name", ['x"; drop table y; --', "a b", "order", 'main."t t"'])
def test_a_new_table_may_have_any_name(db: Db, name: str) -> None:
    db.sql("CREATE TABLE y (id INTEGER)")
    db.write(ROWS, dbtable=name)
    assert db.read(name).num_rows == 3
    db.write(MORE, dbtable=name)
    assert db.read(name).num_rows == 4
    assert db.sql("SELECT count(*) FROM y") == [(0,)]


def test_another_schema_is_refused(db: Db) -> None:
    with pytest.raises(OptionError, match="one schema, main"):
        db.write(ROWS, dbtable="other.t")


def test_defaults_of_the_commit_mode(db: Db) -> None:
    assert db.write(ROWS).commit == "job"
    assert db.write(MORE).commit == "job"
    assert db.write(ROWS, overwrite=True).commit == "job"
    assert db.write(MORE, commit="job").commit == "job"


@pytest.mark.parametrize("commit", MODES)
def test_append_matches_columns_by_name(db: Db, commit: CommitMode) -> None:
    db.sql(
        "CREATE TABLE t (NAME TEXT DEFAULT 'none', id INTEGER PRIMARY KEY, extra TEXT DEFAULT 'x', up TEXT AS (upper(name)))"
    )
    db.write(
        pa.table({"id": [1], "name": ["a"]}), pa.table({"id": [2], "name": ["b"]}), commit=commit
    )
    assert db.sql("SELECT * FROM t ORDER BY id") == [("a", 1, "x", "A"), ("b", 2, "x", "B")]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"id": [1], "nmae": ["a"]},
            "column 'nmae' is not in table 't', which has id, name, amount, day",
        ),
        ({"name": ["a"]}, r"needs column 'amount' \(NOT NULL without a default\)"),
        (
            {"amount": ["1"]},
            r"column 'amount' is string, and the table's column 'amount' is REAL \(double\)",
        ),
        ({"amount": pa.array([1], pa.int64())}, "column 'amount' is int64.*cannot hold it exactly"),
        ({"amount": [1.0], "day": ["2024-01-01"]}, "column 'day' is string.* DATE"),
        ({"amount": [1.0], "name": [1]}, "column 'name' is int64.* TEXT"),
        (
            {"amount": [1.0], "ts": pa.array([0], pa.timestamp("us", "UTC"))},
            "has a time zone.* TIMESTAMPTZ",
        ),
        ({"amount": [1.0], "small": [1]}, "column 'small' is int64.* INT1"),
        ({"amount": [1.0], "twice": [2]}, "column 'twice' is computed by SQLite"),
        (
            {"amount": [1.0], "Amount": [1.0]},
            "columns 'amount' and 'Amount' are one name to SQLite",
        ),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_columns_that_do_not_fit_are_refused_by_name(
    db: Db, table: dict[str, Any], message: str, overwrite: bool
) -> None:
    db.sql(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, amount REAL NOT NULL, day DATE, ts TIMESTAMP, small INT1, "
        "twice AS (id * 2))"
    )
    if overwrite is False and "nmae" in table:
        message = message.replace("day", "day, ts, small, twice")
    with pytest.raises(SchemaError, match=message):
        db.writer().prepare(db.context(overwrite=overwrite), pa.table(table).schema)
    assert db.staged() == []


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (pa.int8(), "INT2"),
        (pa.int32(), "INTEGER"),
        (pa.uint32(), "INTEGER"),
        (pa.int32(), "REAL"),
        (pa.bool_(), "INTEGER"),
        (pa.float32(), "REAL"),
        (pa.decimal128(10, 2), "DECIMAL(12,2)"),
        (pa.decimal128(5, 0), "INTEGER"),
        (pa.int32(), "DECIMAL(10,0)"),
        (pa.string(), "VARCHAR(10)"),
        (pa.large_string(), "TEXT"),
        (pa.null(), "TEXT"),
        (pa.int64(), ""),
        (pa.string(), "GEOMETRY"),
        (pa.int64(), "DECIMAL_TEXT(38,18)"),
    ],
    ids=str,
)
def test_types_that_fit_without_loss_are_appended(db: Db, kind: pa.DataType, declared: str) -> None:
    db.sql(f"CREATE TABLE t (v {declared})")
    if pa.types.is_null(kind):
        values = pa.nulls(1)
    elif pa.types.is_decimal(kind):
        values = pa.array(["1"]).cast(kind)
    else:
        values = pa.array(["one"] if "string" in str(kind) else [1]).cast(kind)
    db.write(pa.table({"v": values}))
    (back,) = db.read().column("v").to_pylist()
    assert str(back) in {str(values[0].as_py()), "1", "1.0", "1.00", "1.000000000000000000"}


@pytest.mark.parametrize("text", ["007", "1e5", " 12 ", "-3.0", ".5"])
def test_text_that_sqlite_would_turn_into_a_number_is_refused_by_row(db: Db, text: str) -> None:
    db.sql("CREATE TABLE t (code STRING)")
    db.write(pa.table({"code": ["fine", "7a", "", "0x10"]}))
    with pytest.raises(
        TargetError, match=r"column 'code', row 2 of task 0: .* declared STRING; declare it TEXT"
    ):
        db.write(pa.table({"code": ["fine", text]}))
    assert db.sql("SELECT count(*), count(*) FILTER (WHERE typeof(code) = 'text') FROM t") == [
        (4, 4)
    ]


def test_a_decimal_that_sqlite_would_round_is_refused_by_row(db: Db) -> None:
    from decimal import Decimal

    db.sql("CREATE TABLE t (v DECIMAL(30,10))")
    kind = pa.decimal128(30, 10)
    exact = [Decimal("12345.0123456789"), Decimal(123456789012345), Decimal("0.0000000001")]
    db.write(pa.table({"v": pa.array(exact, kind)}))
    assert db.read().column("v").to_pylist() == exact
    with pytest.raises(TargetError, match=r"row 2 .*keeps 15 digits.*DECIMAL_TEXT"):
        db.write(pa.table({"v": pa.array([Decimal(1), Decimal("123456.0123456789")], kind)}))


@pytest.mark.parametrize("commit", MODES)
def test_overwrite_replaces_rows_and_keeps_the_table(db: Db, commit: CommitMode) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, extra TEXT DEFAULT 'kept')")
    db.sql("CREATE UNIQUE INDEX by_name ON t (name)")
    db.sql("CREATE VIEW v AS SELECT name FROM t")
    db.sql("INSERT INTO t VALUES (9, 'old', 'gone')")
    db.write(ROWS, overwrite=True, commit=commit)
    assert db.sql("SELECT * FROM t ORDER BY id") == [
        (1, "a", "kept"),
        (2, "b", "kept"),
        (3, None, "kept"),
    ]
    assert db.sql("SELECT name FROM sqlite_master WHERE name IN ('by_name', 'v') ORDER BY 1") == [
        ("by_name",),
        ("v",),
    ]


def test_overwrite_without_truncate_makes_the_table_anew(db: Db) -> None:
    db.sql("CREATE TABLE t (other BLOB)")
    with pytest.raises(SchemaError, match="column 'id' is not in table 't'"):
        db.write(ROWS, overwrite=True)
    db.write(ROWS, overwrite=True, truncate="false")
    assert db.read() == ROWS


def test_a_failed_overwrite_leaves_the_old_rows(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    db.sql("INSERT INTO t VALUES (9, 'old')")
    cases: list[dict[str, Any]] = [
        {},
        {"truncate": "false", "postSql": "INSERT INTO nosuch VALUES (1)"},
    ]
    for options in cases:
        with pytest.raises(CommitError, match="Nothing of this job is in table 't'"):
            db.write(ROWS, overwrite=True, **options)
        assert db.sql("SELECT * FROM t") == [(9, "old")]
    assert db.staged() == []


def test_a_row_that_breaks_a_constraint_fails_its_job(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    db.write(MORE)
    with pytest.raises(TargetError, match=r"UNIQUE constraint failed: t\.id"):
        db.write(ROWS, MORE, commit="task")
    with pytest.raises(CommitError, match=r"UNIQUE constraint failed: t\.id"):
        db.write(pa.table({"id": [7, 4], "name": ["g", "h"]}), commit="job")
    assert db.sql("SELECT id FROM t WHERE id > 3") == [(4,)]


def test_a_missing_table_is_not_made_where_it_should_not(db: Db) -> None:
    with pytest.raises(TargetError, match=r"table 't' does not exist.*'createTable' is false"):
        db.write(ROWS, createTable="false")
    assert not db.path.exists()


def test_views_and_the_ledger_are_no_targets(db: Db) -> None:
    db.write(ROWS)
    db.sql("CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(TargetError, match="'v' is a view; name the table behind it"):
        db.write(ROWS, dbtable="v")
    with pytest.raises(TargetError, match="belongs to spark-channel"):
        db.write(ROWS, dbtable="spark_channel_claims")


def test_types_of_a_new_table_can_be_chosen(db: Db) -> None:
    db.write(ROWS, createTableColumnTypes="NAME VARCHAR(20), id DECIMAL(20, 0)")
    assert db.sql("SELECT name, type FROM pragma_table_info('t')") == [
        ("id", "DECIMAL_TEXT(20,0)"),
        ("name", "VARCHAR(20)"),
    ]
    with pytest.raises(OptionError, match="names column 'nmae', which the rows do not have"):
        db.write(ROWS, dbtable="u", createTableColumnTypes="nmae VARCHAR(20)")
    with pytest.raises(SchemaError, match="column 'name' is string"):
        db.write(ROWS, dbtable="u", createTableColumnTypes="name INT")


def test_options_of_a_new_table(db: Db) -> None:
    options: dict[str, Any] = {"writeMode": "upsert", "keyColumns": "id"}
    db.write(ROWS, createTableOptions="without rowid", **options)
    assert db.sql("SELECT wr FROM pragma_table_list('t')") == [(1,)]
    for text, message in (
        ("STRICT", "STRICT tables know none"),
        ("; DROP TABLE t", "SQLite has no other"),
    ):
        with pytest.raises(OptionError, match=message):
            db.write(ROWS, dbtable="u", createTableOptions=text, **options)
    with pytest.raises(OptionError, match="needs a primary key"):
        db.write(ROWS, dbtable="u", createTableOptions="WITHOUT ROWID")


@pytest.mark.parametrize("commit", MODES)
def test_upsert_and_skip_existing(db: Db, commit: CommitMode) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, extra TEXT DEFAULT 'kept')")
    db.write(ROWS)
    newer = pa.table({"id": [2, 4], "name": ["B", "D"]})
    db.write(newer, writeMode="skipExisting", keyColumns="ID", commit=commit)
    assert db.sql("SELECT id, name FROM t ORDER BY id") == [(1, "a"), (2, "b"), (3, None), (4, "D")]
    db.write(newer, writeMode="upsert", keyColumns="id", commit=commit)
    assert db.sql("SELECT id, name, extra FROM t ORDER BY id") == [
        (1, "a", "kept"),
        (2, "B", "kept"),
        (3, None, "kept"),
        (4, "D", "kept"),
    ]


@pytest.mark.parametrize("mode", ["upsert", "skipExisting"])
def test_two_rows_of_one_key_are_an_error(db: Db, mode: str) -> None:
    db.sql("CREATE TABLE t (id INTEGER, name TEXT, UNIQUE (name, id))")
    twice = pa.table({"id": [1, 1], "name": ["a", "a"]})
    with pytest.raises(CommitError, match=r"2 rows have the key \(id, name\) = \(1, 'a'\)"):
        db.write(twice, writeMode=mode, keyColumns="id,name")
    across = [pa.table({"id": [5], "name": ["x"]})] * 2
    with pytest.raises(CommitError, match="2 rows have the key"):
        db.write(*across, writeMode=mode, keyColumns="id,name")
    with pytest.raises(CommitError, match="NULL in its key"):
        db.write(
            pa.table({"id": [None, 1], "name": ["x", "y"]}, schema=ROWS.schema),
            writeMode=mode,
            keyColumns="id,name",
        )
    assert db.sql("SELECT count(*) FROM t") == [(0,)]


@pytest.mark.parametrize("commit", MODES)
def test_the_key_is_the_tables_own_when_none_is_named(db: Db, commit: CommitMode) -> None:
    db.sql("CREATE TABLE t (name TEXT UNIQUE, a INTEGER, b INTEGER, PRIMARY KEY (b, a))")
    table = pa.table({"B": [1, 2], "a": [1, 1], "name": ["x", "y"]})
    db.write(table, writeMode="upsert", commit=commit)
    db.write(
        table.slice(1).set_column(2, "name", pa.array(["z"])), writeMode="upsert", commit=commit
    )
    assert db.sql("SELECT b, a, name FROM t ORDER BY b") == [(1, 1, "x"), (2, 1, "z")]
    db.write(table.slice(1), writeMode="skipExisting", commit=commit)
    assert db.sql("SELECT name FROM t WHERE b = 2") == [("z",)]
    with pytest.raises(
        OptionError, match="the primary key of table 't' names 'a', which the rows do not"
    ):
        db.write(table.drop_columns(["a"]), writeMode="upsert", commit=commit)
    db.sql("CREATE TABLE keyless (name TEXT UNIQUE)")
    with pytest.raises(
        OptionError, match="needs 'keyColumns', since table 'keyless' has no primary key"
    ):
        db.write(table.select(["name"]), writeMode="upsert", dbtable="keyless")
    with pytest.raises(OptionError, match="needs 'keyColumns', since table 'made' is to be made"):
        db.write(table, writeMode="upsert", dbtable="made")


def test_upsert_needs_a_key_that_the_table_holds_unique(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER, name TEXT)")
    db.sql("CREATE UNIQUE INDEX part ON t (id) WHERE id > 5")
    with pytest.raises(TargetError, match=r"does not hold \(id\) unique.*create a unique index"):
        db.write(ROWS, writeMode="upsert", keyColumns="id")
    with pytest.raises(OptionError, match="'keyColumns' names 'key'"):
        db.write(ROWS, writeMode="upsert", keyColumns="key")


def test_upsert_of_keys_alone_changes_nothing(db: Db) -> None:
    keys = pa.table({"id": [1, 2]})
    db.write(keys, writeMode="upsert", keyColumns="id")
    db.write(keys, writeMode="upsert", keyColumns="id")
    assert db.read().num_rows == 2


@pytest.mark.parametrize("commit", MODES)
def test_sql_before_and_after_runs_once(db: Db, commit: CommitMode) -> None:
    db.sql("CREATE TABLE t (id INTEGER, name TEXT)")
    db.sql("CREATE TABLE log (what TEXT)")
    db.write(
        ROWS,
        MORE,
        commit=commit,
        preSql="INSERT INTO log VALUES ('before; ' || (SELECT count(*) FROM t)); -- that's it",
        postSql='["INSERT INTO log SELECT \'after \' || count(*) FROM t", "CREATE INDEX i ON t (id)"]',
    )
    assert db.sql("SELECT what FROM log") == [("before; 0",), ("after 4",)]
    assert db.sql("SELECT count(*) FROM sqlite_master WHERE name = 'i'") == [(1,)]


@pytest.mark.parametrize(
    "statement",
    ["COMMIT", "/* x */ rollback", "-- x\nEND", "VACUUM", "ATTACH 'x' AS y", "SAVEPOINT a"],
)
def test_sql_that_would_leave_the_transaction_is_refused(db: Db, statement: str) -> None:
    for name in ("preSql", "postSql"):
        with pytest.raises(OptionError, match="may not end it or leave it"):
            db.write(ROWS, **cast(dict[str, Any], {name: f"SELECT 1; {statement}"}))
    assert not db.path.exists()


@pytest.mark.parametrize("commit", MODES)
def test_statements_of_a_session_run_where_rows_are_written(db: Db, commit: CommitMode) -> None:
    """SQLite looks at foreign keys in a connection that asks for it, and nowhere else."""
    db.sql("CREATE TABLE known (id INTEGER PRIMARY KEY)")
    db.sql("CREATE TABLE t (id INTEGER REFERENCES known, name TEXT)")
    with pytest.raises(TargetError, match="FOREIGN KEY constraint failed"):
        db.write(ROWS, commit=commit, sessionInitStatement="PRAGMA foreign_keys = ON")
    assert db.sql("SELECT count(*) FROM t") == [(0,)]
    db.write(ROWS, commit=commit)
    assert db.sql("SELECT count(*) FROM t") == [(ROWS.num_rows,)]
    with pytest.raises(OptionError, match="may not begin a transaction"):
        db.write(ROWS, sessionInitStatement="SELECT 1; BEGIN")
    db.write(ROWS, commit=commit, sessionInitStatement="ATTACH ':memory:' AS more; DETACH more")


def test_a_table_that_changes_under_a_job_is_not_written(db: Db) -> None:
    for change, message in (
        ("ALTER TABLE t ADD COLUMN extra TEXT NOT NULL DEFAULT 'x'", "was altered"),
        ("DROP TABLE t", "was dropped"),
    ):
        db.sql("CREATE TABLE IF NOT EXISTS t (id BIGINT, name TEXT)")
        writer = db.writer()
        plan = writer.prepare(db.context(commit="job"), ROWS.schema)
        receipt = run_task(writer, plan, 0, ROWS)
        db.sql(change)
        with pytest.raises(CommitError, match=message):
            writer.commit(plan, [receipt])
        writer.abort(plan, [receipt])
    assert db.staged() == []


def test_two_jobs_that_make_one_table_both_arrive(db: Db) -> None:
    writer = db.writer()
    one = writer.prepare(db.context(), ROWS.schema)
    two = writer.prepare(db.context(), ROWS.schema)
    assert isinstance(one, FilePlan)
    receipts = [run_task(writer, plan, 0, table) for plan, table in ((one, ROWS), (two, MORE))]
    writer.commit(one, receipts[:1])
    writer.commit(two, receipts[1:])
    assert db.read().num_rows == 4


def test_small_batches_and_a_small_batch_size(db: Db) -> None:
    table = pa.table({"id": range(1000), "name": [str(number) for number in range(1000)]})
    db.write(pa.Table.from_batches(table.to_batches(max_chunksize=7)), batchsize="13")
    assert db.read() == table


@pytest.mark.parametrize("columns", [1, 3, 400])
@pytest.mark.parametrize("rows", [1, 100, 351])
def test_many_rows_go_by_one_statement(
    db: Db, monkeypatch: pytest.MonkeyPatch, columns: int, rows: int
) -> None:
    """Python's lock changed hands with each row. A statement has as many parameters as SQLite takes."""
    table = pa.table({f"c{number}": pa.array(range(rows)) for number in range(columns)})
    db.write(table)
    steps = list[str]()

    def limited(session: SqliteSession) -> sqlite3.Connection:
        connection = session._connection
        assert connection is not None
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        connection.set_trace_callback(steps.append)
        return connection

    monkeypatch.setattr(SqliteSession, "_open", property(limited))
    db.write(table, commit="task")
    assert db.read() == pa.concat_tables([table, table])
    inserts = [step for step in steps if step.startswith("INSERT") and "c0" in step]
    assert len(inserts) == -(-rows // min(100, 999 // columns))


def test_odd_names_are_names_everywhere(db: Db) -> None:
    db.sql("CREATE TABLE y AS SELECT 1 AS a")
    hold_to_names(
        db.reader,
        db.write,
        lambda name: '"' + name.replace('"', '""') + '"',
        modes=["upsert", "skipExisting", "apply"],
    )
    assert db.sql("SELECT * FROM y") == [(1,)]
    assert db.staged() == []


def test_a_plan_says_what_of_others_an_overwrite_replaces(db: Db) -> None:
    schema = pa.schema([("a", pa.int64())])
    assert db.writer().foreign_content(schema) == ""
    db.sql("CREATE TABLE t (A INTEGER, b TEXT, c TEXT)")
    assert db.writer().foreign_content(schema) == ""
    db.many("INSERT INTO t VALUES (?, 'x', 'y')", [(number,) for number in range(3)])
    said = db.writer().foreign_content(schema)
    assert said == (
        "3 rows of a table that no job of spark-channel has claimed, which has columns that the rows lack: b, c"
    )
    db.many("INSERT INTO t VALUES (?, 'x', 'y')", [(number,) for number in range(MOST_COUNTED)])
    assert db.writer().foreign_content(schema).startswith("more than 10000 rows of a table")
    db.write(pa.table({"a": [1]}), overwrite=True)
    assert db.writer().foreign_content(schema) == ""
