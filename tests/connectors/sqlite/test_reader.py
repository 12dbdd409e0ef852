"""What a read sees: columns, conditions, queries, one state of the file, and errors that say what to do."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import FetchSize, load_reader
from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.sqlite.session import SqliteSession
from spark_channel.errors import OptionError, SourceError, TargetError
from spark_channel.testing import reader_conformance
from tests.connectors.sqlite.conftest import AsNobody, Db

pytestmark = pytest.mark.real_server("SQLite", "sqlite")


@pytest.fixture
def orders(db: Db) -> Db:
    db.sql(
        'CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, price DECIMAL(10,2), "odd ""name" REAL, tag TEXT)'
    )
    db.many(
        "INSERT INTO t VALUES (?, ?, ?, ?, ?)",
        [
            (number, f"name-{number % 10}", f"{number}.25", number / 2, None)
            for number in range(100)
        ],
    )
    return db


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:sqlite:{path}",
        "sqlite:{path}",
        "sqlite://{path}",
        "SQLITE://localhost{path}",
        "jdbc:sqlite:file:{path}",
    ],
)
def test_urls(orders: Db, url: str) -> None:
    reader, _ = load_reader({"url": url.format(path=orders.path), "dbtable": "t"})
    assert "price" in reader.schema().names


def test_columns_are_read_in_the_order_asked_for(orders: Db) -> None:
    table = orders.read(columns="PRICE, id")
    assert table.schema.names == ["price", "id"]
    assert orders.read(columns='["odd \\"name"]').column(0).to_pylist()[3] == 1.5
    with pytest.raises(
        OptionError,
        match=r"'columns' names column 'prize', which is not there; columns: id, name, price",
    ):
        orders.read(columns="id,prize")


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("id < 10", 10),
        ("name = 'name-3' AND price > 50", 5),
        ("name LIKE 'NAME-_' OR id IS NULL", 100),
        ("NOT (id BETWEEN 5 AND 94)", 10),
        ("id IN (1, 2, 500)", 2),
        ('"odd ""name" >= 49.5', 1),
        ("tag IS NULL", 100),
        ("T.id = 1", 1),
        ("rowid = 4", 1),
        ("id IN (SELECT max(id) FROM t)", 1),
        ("EXISTS (SELECT 1 FROM t AS o WHERE o.id = t.id + 1)", 99),
        ("name GLOB '*-7' -- a comment", 10),
        ("length(name) > 0 AND CASE WHEN id > 50 THEN 1 ELSE 0 END = 1", 49),
    ],
)
def test_where_runs_in_sqlite(orders: Db, where: str, rows: int) -> None:
    assert orders.read(where=where, advice=3).num_rows == rows


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("id = 1; DROP TABLE t", "not a condition"),
        ("1 = 1) UNION SELECT * FROM t --", "not a condition"),
        ("id = 1 GROUP BY id", "not a condition"),
        ("SELECT 1", "not a condition|no query|it is"),
        ("id = ?", "a parameter that nothing would fill"),
        ("id = :id", "a parameter that nothing would fill"),
        ('name = "name-3"', "column 'name-3', which is not there.*single quotes"),
        ("nosuch = 1", "column 'nosuch', which is not there"),
        ("other.id = 1", "column 'other.id', which is not there"),
    ],
)
def test_a_where_that_is_more_or_less_than_a_condition(
    orders: Db, where: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        orders.read(where=where)
    assert caught.value.option == "where"
    assert orders.sql("SELECT count(*) FROM t") == [(100,)]


def test_where_on_decimals_kept_as_text_is_refused(db: Db) -> None:
    """'9.5' > '10' as text: a wrong answer would come without a word."""
    db.sql("CREATE TABLE t (d DECIMAL_TEXT(38,18))")
    db.sql("INSERT INTO t VALUES ('9.5'), ('10')")
    with pytest.raises(OptionError, match=r"write CAST\(d AS REAL\)"):
        db.read(where="d > 9.7")
    assert db.read(where="CAST(d AS REAL) > 9.7 AND d IS NOT NULL").num_rows == 1


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE t",
        "SELECT 1; SELECT 2",
        "DELETE FROM t RETURNING *",
        "PRAGMA user_version",
        "ATTACH 'x' AS y",
        "SELECT * INTO u FROM t",
        "SELECT ?",
        "",
        "SELEC 1",
        "WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d",
        "VACUUM",
        "BEGIN",
    ],
)
def test_a_query_is_one_select(orders: Db, query: str) -> None:
    with pytest.raises(OptionError) as caught:
        orders.read(None, query=query)
    assert caught.value.option == "query"
    assert orders.sql("SELECT count(*) FROM t") == [(100,)]


def test_a_query_and_a_subquery_give_their_columns_types(orders: Db) -> None:
    query = "WITH a AS (SELECT price, count(*) AS n FROM t GROUP BY name) SELECT price AS p, n, 'x' AS x FROM a"
    schema = orders.read(None, query=query).schema
    assert schema == pa.schema([("p", pa.decimal128(10, 2)), ("n", pa.int64()), ("x", pa.string())])
    assert orders.read(f"({query}) AS q", where="q.n = 10", columns="n").num_rows == 10


@pytest.mark.parametrize(
    "name", ['x"; drop table t; --', "a.b", "my table", "order", "naïve", "t--", "main.x"]
)
def test_a_table_may_have_any_name(db: Db, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    db.sql(f"CREATE TABLE {quoted} (id INTEGER)")
    db.sql(f"INSERT INTO {quoted} VALUES (7)")
    assert db.read(name).to_pylist() == [{"id": 7}]


def test_tables_that_were_looked_up_together_are_what_each_is(db: Db) -> None:
    """Until one changes: then the session asks again."""
    for statement in (
        "CREATE TABLE Plain (id INTEGER PRIMARY KEY, v TEXT COLLATE NOCASE)",
        "CREATE TRIGGER plain AFTER INSERT ON Plain BEGIN SELECT 1; END",
        "CREATE TABLE keyed (k TEXT PRIMARY KEY) WITHOUT ROWID",
        'CREATE TABLE "a.b" (id INTEGER)',
        'CREATE TABLE "ÄÖ" (id INTEGER)',
        "CREATE VIEW seen AS SELECT v FROM Plain",
    ):
        db.sql(statement)
    names = ["plain", '"PLAIN"', "main.Plain", "keyed", '"a.b"', '"ÄÖ"', '"äö"', "Seen", "none"]
    reader, asked, rows = db.reader(), list[str](), SqliteSession.rows

    def noted(session: SqliteSession, sql: str, *more: Any) -> Any:
        asked.append(sql)
        return rows(session, sql, *more)

    def tables() -> list[object]:
        with reader.connect("plan") as session:
            return [reader.dialect.find_table(session, name) for name in names]

    before = tables()
    assert [table is None for table in before] == [name in ('"äö"', "none") for name in names]
    with sessions.keeping(), pytest.MonkeyPatch.context() as patch:
        reader.look_up(names)
        patch.setattr(SqliteSession, "rows", noted)
        assert tables() == before
        assert not any("pragma_table_list" in sql or "sqlite_master" in sql for sql in asked)
        db.sql("DROP TABLE keyed")
        db.sql("CREATE TABLE none (id INTEGER)")
        db.sql("ALTER TABLE Plain ADD COLUMN w")
        after = tables()
    assert after == tables() != before


def test_a_table_of_that_name_is_not_there(orders: Db) -> None:
    with pytest.raises(
        SourceError,
        match=r"""table 'x"; drop table t; --' does not exist in .*orders.db; its tables: t""",
    ):
        orders.read('x"; drop table t; --')
    assert orders.sql("SELECT count(*) FROM t") == [(100,)]
    assert orders.read("main.t").num_rows == 100
    assert orders.read('main."T"').num_rows == 100
    with pytest.raises(SourceError, match=r"table 'other.t' does not exist"):
        orders.read("other.t")


def test_generated_columns_are_read(db: Db) -> None:
    db.sql(
        "CREATE TABLE t (a INTEGER, b INTEGER GENERATED ALWAYS AS (a * 2) STORED, c TEXT AS ('x' || a))"
    )
    db.sql("INSERT INTO t (a) VALUES (4)")
    assert db.read().to_pylist() == [{"a": 4, "b": 8, "c": "x4"}]


def test_fetch_size_is_what_a_batch_holds(orders: Db) -> None:
    reader = orders.reader(fetchsize="40")
    reader.schema()
    (split,) = reader.split(1)
    assert max(batch.num_rows for batch in reader.read(split)) <= 40
    reader.fetch_size = FetchSize(rows=7)
    assert max(batch.num_rows for batch in reader.read(split)) <= 7
    reader.fetch_size = FetchSize(nbytes=1)
    assert {batch.num_rows for batch in reader.read(split)} == {1}


def test_wide_rows_come_in_small_batches(db: Db) -> None:
    db.sql("CREATE TABLE t (v BLOB)")
    db.many("INSERT INTO t VALUES (?)", [(bytes(1 << 20),)] * 40)
    reader = db.reader()
    reader.schema()
    (split,) = reader.split(1)
    assert max(batch.nbytes for batch in reader.read(split)) <= 9 << 20


def test_one_read_sees_one_state(db: Db) -> None:
    db.sql("PRAGMA journal_mode = WAL")
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)")
    db.many("INSERT INTO t VALUES (?, 0)", [(number,) for number in range(5000)])
    reader = db.reader(fetchsize="100")
    reader.schema()
    (split,) = reader.split(1)
    batches = reader.read(split)
    seen = next(batches).column("v").to_pylist()
    with SqliteSession(db.path, "rw", lock_timeout=5, failure=TargetError) as other:
        other.execute("UPDATE t SET v = 1")
    for batch in batches:
        seen += batch.column("v").to_pylist()
    assert seen == [0] * 5000


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    reader, _ = load_reader({"path": str(path), "dbtable": "t"})
    with pytest.raises(SourceError, match=f"database file {path} does not exist"):
        reader.schema()
    assert list(tmp_path.iterdir()) == []


def test_a_relative_file_in_an_url_is_hinted_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nearby-orders.db").touch()
    reader, _ = load_reader({"url": "sqlite:///nearby-orders.db", "dbtable": "t"})
    with pytest.raises(SourceError, match=r"a relative path is written sqlite:nearby-orders.db"):
        reader.schema()


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "a.db", "is not a SQLite database, or it is encrypted"),
        (tmp_path, "is a directory"),
    ):
        if path != tmp_path:
            path.write_bytes(b"no database at all, by its first bytes")
        reader, _ = load_reader({"reader": "sqlite", "path": str(path), "dbtable": "t"})
        with pytest.raises(SourceError, match=message):
            reader.schema()


def test_a_damaged_file_is_told(orders: Db) -> None:
    content = bytearray(orders.path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    orders.path.write_bytes(content)
    with pytest.raises(SourceError, match="damaged"):
        orders.read()


def test_an_empty_file_is_an_empty_database(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    reader, _ = load_reader({"path": str(path), "dbtable": "t"})
    with pytest.raises(SourceError, match="its tables: none"):
        reader.schema()


def test_an_unreadable_file_is_told(orders: Db, as_nobody: AsNobody) -> None:
    orders.path.chmod(0)
    with (
        as_nobody(),
        pytest.raises(SourceError, match="Permission denied; let this user read the file"),
    ):
        orders.read()


def test_a_locked_file_is_waited_for_and_then_told(orders: Db) -> None:
    with SqliteSession(orders.path, "rw", lock_timeout=1, failure=TargetError) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            SourceError, match=r"longer than lockTimeout \(0.2 s\).*raise 'lockTimeout'"
        ):
            orders.reader(lockTimeout="0.2").schema()
        ended = threading.Timer(0.3, lambda: None)
        ended.start()
        ended.join()
    assert orders.reader(lockTimeout="5").schema().names[0] == "id"


def test_reading_changes_nothing(orders: Db) -> None:
    before = orders.path.read_bytes()
    orders.read(advice=4)
    with pytest.raises(SourceError, match=r"readonly|may not write"):
        orders.reader(sessionInitStatement="DELETE FROM t").schema()
    assert orders.path.read_bytes() == before
    assert [path.name for path in orders.path.parent.iterdir()] == ["orders.db"]


def test_a_session_is_begun_as_asked(orders: Db) -> None:
    assert (
        orders.read(
            sessionInitStatement="CREATE TEMP VIEW mine AS SELECT id FROM t LIMIT 3",
            dbtable="temp.mine",
        ).num_rows
        == 3
    )


def test_a_file_that_vanishes_while_it_is_read_is_told(orders: Db) -> None:
    reader = orders.reader()
    reader.schema()
    splits = reader.split(2)
    orders.path.unlink()
    with pytest.raises(SourceError, match=r"database file .* does not exist"):
        list(reader.read(splits[1]))
    assert not orders.path.exists()


def test_the_reader_keeps_its_contract(orders: Db) -> None:
    reader_conformance(orders.reader, expected=orders.read())
    reader_conformance(lambda: orders.reader(None, query="SELECT id, name FROM t WHERE id > 10"))
    reader_conformance(lambda: orders.reader(partitionColumn="name"))
    orders.sql("DELETE FROM t")
    reader_conformance(orders.reader)
