"""Keys, overwrite, SQL around the rows, splits, names, secrets, TLS; nothing else happens."""

import datetime
import logging
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import load_reader, load_writer
from spark_channel.connectors.base.registry import describe
from spark_channel.connectors.mysql.write.merge import insert_staged as insert
from spark_channel.errors import (
    BatchRefusedError,
    CommitError,
    OptionError,
    SchemaError,
    SourceError,
    TargetError,
)
from spark_channel.options import CommitMode
from tests.connectors.mysql.shop import Shop
from tests.connectors.sql import skewed
from tests.connectors.sql.odd_names import hold_to_names
from tests.connectors.sql.one_database import run_task
from tests.servers.mariadb import MariadbServer

ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})


@pytest.fixture
def keyed(shop: Shop) -> Shop:
    shop.sql(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(50), kept INT DEFAULT 7); "
        "INSERT INTO t VALUES (1, 'old', 1), (3, 'three', 3)"
    )
    return shop


def rows(shop: Shop) -> list[tuple[str, ...]]:
    return shop.rows("SELECT * FROM t ORDER BY id")


@pytest.mark.parametrize("commit", ["job", "task"])
def test_upsert_skip_existing_and_apply(keyed: Shop, commit: str) -> None:
    options: dict[str, Any] = {"keyColumns": "id", "commit": commit}
    keyed.write(ROWS, writeMode="upsert", **options)
    assert rows(keyed) == [("1", "a", "1"), ("2", "b", "7"), ("3", "three", "3")]
    keyed.write(pa.table({"id": [2, 4], "name": ["x", "y"]}), writeMode="skipExisting", **options)
    assert rows(keyed) == [("1", "a", "1"), ("2", "b", "7"), ("3", "three", "3"), ("4", "y", "7")]
    feed = pa.table(
        {
            "id": [1, 1, 3, 5, 5, 6],
            "name": ["x", "y", None, "five", None, "six"],
            "_op": ["update", "update", "delete", "insert", "delete", "insert"],
        }
    )
    keyed.write(feed, writeMode="apply", **options)
    assert rows(keyed) == [("1", "y", "1"), ("2", "b", "7"), ("4", "y", "7"), ("6", "six", "7")]
    for ids, what in (([1, 1], "2 rows have the key"), ([1, None], "NULL in its key")):
        with pytest.raises(TargetError, match=what):
            keyed.write(pa.table({"id": ids, "name": ["x", "y"]}), writeMode="upsert", **options)
    assert len(rows(keyed)) == 4
    assert keyed.staged() == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_table_that_is_altered_behind_all_looks_at_it_is_refused(
    shop: Shop, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an ALTER for which the statement that brings the rows waits: the server would round values."""
    shop.sql("CREATE TABLE t (id BIGINT, n DECIMAL(20, 6))")
    kind = pa.decimal128(20, 6)
    rows = pa.table({"id": pa.array([1], pa.int64()), "n": pa.array([Decimal("1.26")], kind)})
    writer = shop.writer()
    plan = writer.prepare(shop.context(overwrite=overwrite), rows.schema)
    receipt = run_task(writer, plan, 0, rows)

    def insert_staged(*given: Any, **more: Any) -> None:
        if not overwrite:  # whose DELETE holds the definition
            shop.sql("ALTER TABLE t MODIFY n DECIMAL(20, 1)")
        insert(*given, **more)

    monkeypatch.setattr(
        "spark_channel.connectors.mysql.write.database.insert_staged", insert_staged
    )
    if overwrite:
        shop.sql("ALTER TABLE t MODIFY n DECIMAL(20, 1)")
    with pytest.raises(CommitError, match="was altered while its rows were written"):
        writer.commit(plan, [receipt])
    writer.abort(plan, None)
    assert shop.rows("SELECT COUNT(*) FROM t") == [("0",)]
    assert shop.staged() == []


@pytest.mark.parametrize("commit", ["job", "task"])
def test_the_key_is_the_tables_own_when_none_is_named(shop: Shop, commit: CommitMode) -> None:
    shop.sql(
        "CREATE TABLE t (name VARCHAR(9) NOT NULL UNIQUE, a INT DEFAULT 1, b INT, PRIMARY KEY (b, a)); "
        "CREATE TABLE keyless (name VARCHAR(9) NOT NULL UNIQUE)"
    )
    table = pa.table(
        {"B": pa.array([1, 2], pa.int32()), "a": pa.array([1, 1], pa.int32()), "name": ["x", "y"]}
    )
    shop.write(table, writeMode="upsert", commit=commit)
    changed = table.slice(1).set_column(2, "name", pa.array(["z"]))
    shop.write(changed, writeMode="upsert", commit=commit)
    assert shop.rows("SELECT b, a, name FROM t ORDER BY b") == [("1", "1", "x"), ("2", "1", "z")]
    shop.write(table.slice(1), writeMode="skipExisting", commit=commit)
    shop.write(
        table.append_column("_op", pa.array(["delete", "update"])), writeMode="apply", commit=commit
    )
    assert shop.rows("SELECT b, a, name FROM t") == [("2", "1", "y")]
    with pytest.raises(
        OptionError, match=r"the primary key of table .* names 'a', which the rows do not"
    ):
        shop.write(table.drop_columns(["a"]), writeMode="upsert")
    with pytest.raises(OptionError, match=r"needs 'keyColumns', since table .* has no primary key"):
        shop.write(table.select(["name"]), writeMode="upsert", dbtable="keyless")
    with pytest.raises(OptionError, match=r"needs 'keyColumns', since table .* is to be made"):
        shop.write(table, writeMode="upsert", dbtable="made")


def test_twins_in_two_tasks_are_found(keyed: Shop) -> None:
    with pytest.raises(CommitError, match="2 rows have the key"):
        keyed.write(ROWS, ROWS, writeMode="upsert", keyColumns="id")


def test_a_new_table_gets_the_key(shop: Shop) -> None:
    table = pa.table({"k": ["a", "b"], "v": [1, 2]})
    shop.write(table, writeMode="upsert", keyColumns="k", tableComment="it's")
    shop.write(table, writeMode="upsert", keyColumns="k")
    assert shop.rows("SELECT k, v FROM t ORDER BY k") == [("a", "1"), ("b", "2")]
    assert "COMMENT='it''s'" in shop.sql("SHOW CREATE TABLE t")


def test_overwrite_keeps_the_table(keyed: Shop) -> None:
    keyed.sql("CREATE INDEX by_name ON t (name)")
    keyed.write(ROWS, overwrite=True)
    assert rows(keyed) == [("1", "a", "7"), ("2", "b", "7")]
    assert "by_name" in keyed.sql("SHOW CREATE TABLE t")
    with pytest.raises(OptionError, match="DDL commits"):
        keyed.writer(truncate="false")


def test_pre_and_post_sql_run_inside(keyed: Shop) -> None:
    keyed.write(
        ROWS.slice(1),
        commit="job",
        preSql="DELETE FROM t WHERE name = 'x;y'; DELETE FROM t WHERE id = 3 -- three; gone",
        postSql='["UPDATE t SET kept = 9 WHERE id = 2"]',
    )
    assert rows(keyed) == [("1", "old", "1"), ("2", "b", "9")]
    with pytest.raises(CommitError, match="Nothing of this job is in table"):
        keyed.write(
            pa.table({"id": [8], "name": ["x"]}), commit="job", postSql="DELETE FROM nowhere"
        )
    assert len(rows(keyed)) == 2
    for statement in ("COMMIT", "TRUNCATE TABLE t", "/* x */ ALTER TABLE t ADD x INT"):
        with pytest.raises(OptionError, match="may not end it"):
            keyed.write(ROWS, commit="job", preSql=statement)


@pytest.mark.parametrize("commit", ["job", "task"])
def test_statements_of_a_session_run_where_rows_are_written(shop: Shop, commit: CommitMode) -> None:
    """What they set of the session's zone and mode does not change a value."""
    shop.sql(
        "CREATE TABLE t (id BIGINT, at TIMESTAMP(6) NULL, tenant INT); "
        "CREATE TRIGGER filled BEFORE INSERT ON t FOR EACH ROW SET NEW.tenant = @tenant"
    )
    moment = datetime.datetime(2024, 1, 31, 12, tzinfo=datetime.UTC)
    table = pa.table({"id": [1], "at": pa.array([moment], pa.timestamp("us", "UTC"))})
    session = "[\"SET @tenant = 7; SET time_zone = '+08:00'\", \"SET SESSION sql_mode = 'ANSI'\"]"
    shop.write(table, commit=commit, sessionInitStatement=session)
    assert shop.rows("SELECT * FROM t") == [("1", "2024-01-31 12:00:00.000000", "7")]
    assert shop.read(sessionInitStatement=session)["at"].to_pylist() == [moment]
    with pytest.raises(OptionError, match="may not begin a transaction"):
        shop.write(table, commit=commit, sessionInitStatement="START TRANSACTION")


def test_a_rerun_of_a_pair_writes_nothing(shop: Shop) -> None:
    shop.write(ROWS, txn=("app", 1))
    again = shop.write(ROWS, txn=("app", 1))
    assert again.published_at is not None
    assert shop.sql("SELECT COUNT(*) FROM t") == "2"


def test_a_partially_committed_version_is_told(keyed: Shop) -> None:
    writer = keyed.writer()
    plan = writer.prepare(keyed.context(commit="task", txn=("app", 1)), ROWS.schema)
    run_task(writer, plan, 0, ROWS.slice(1))
    with pytest.raises(TargetError, match="is partially committed"):
        keyed.writer().prepare(keyed.context(commit="task", txn=("app", 1)), ROWS.schema)
    run_task(writer, plan, 1, pa.table({"id": [9], "name": ["i"]}))
    writer.abort(plan, None)
    assert len(rows(keyed)) == 4


@pytest.mark.parametrize("local", [None, "false"])
def test_refused_batches_leave_the_writer_usable(keyed: Shop, local: str | None) -> None:
    writer = keyed.writer(maxDirtyRows="10", localInfile=local)
    plan = writer.prepare(keyed.context(), ROWS.schema)
    assert plan.commit == "task"
    task = writer.open(plan, 0, 0)
    task.tolerant = True
    task.write(ROWS.slice(1).combine_chunks().to_batches()[0])
    for ids, name in (([3], "dup"), ([4], "x" * 51), ([2], "twice")):
        batch = pa.RecordBatch.from_pydict({"id": ids, "name": [name]})
        with pytest.raises(BatchRefusedError):
            task.write(batch)
    task.write(pa.RecordBatch.from_pydict({"id": [5], "name": ["five"]}))
    receipt = task.close()
    assert receipt.rows == 2
    writer.commit(plan, [receipt])
    assert rows(keyed) == [
        ("1", "old", "1"),
        ("2", "b", "7"),
        ("3", "three", "3"),
        ("5", "five", "7"),
    ]


def test_a_row_without_its_key_is_refused_alone(keyed: Shop) -> None:
    writer = keyed.writer(maxDirtyRows="10", writeMode="upsert")
    plan = writer.prepare(keyed.context(), ROWS.schema)
    task = writer.open(plan, 0, 0)
    task.tolerant = True
    with pytest.raises(BatchRefusedError, match="NULL in its key"):
        task.write(pa.RecordBatch.from_pydict({"id": pa.array([None], pa.int64()), "name": ["x"]}))
    task.write(pa.RecordBatch.from_pydict({"id": [5], "name": ["five"]}))
    writer.commit(plan, [task.close()])
    assert ("5", "five", "7") in rows(keyed)


def test_columns_and_keys_are_checked_before_any_task(keyed: Shop) -> None:
    with pytest.raises(SchemaError, match="column 'nme' is not in table"):
        keyed.write(pa.table({"id": [5], "nme": ["x"]}))
    with pytest.raises(SchemaError, match="needs column 'id'"):
        keyed.write(pa.table({"name": ["x"]}))
    with pytest.raises(TargetError, match="create a unique index"):
        keyed.write(ROWS, writeMode="upsert", keyColumns="name")
    keyed.sql(
        "CREATE TABLE m (id BIGINT, name TEXT) ENGINE=MyISAM; CREATE VIEW v AS SELECT * FROM t"
    )
    with pytest.raises(TargetError, match="no transactions"):
        keyed.write(ROWS, dbtable="m")
    with pytest.raises(TargetError, match="is a view"):
        keyed.write(ROWS, dbtable="v")
    assert keyed.staged() == []


def test_splits_are_even_when_keys_are_not(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('z','y','x','w'), n INT); "
        "INSERT INTO t SELECT IF(seq <= 9900, seq, seq * 1000), 1 + seq % 4, IF(seq % 3, seq, NULL) FROM seq_1_to_10000"
    )
    for options, nulls in (
        ({}, 0),
        ({"partitionColumn": "id"}, 0),
        ({"partitionColumn": "e"}, 0),
        ({"partitionColumn": "n"}, 1),
    ):
        reader = shop.reader(**options)
        reader.schema()
        splits = reader.split(4)
        counts = [sum(batch.num_rows for batch in reader.read(split)) for split in splits]
        assert len(counts) == 4 + nulls, options
        assert sum(counts) == 10_000
        keys = counts[:4]
        assert max(keys) <= 1.3 * min(keys), (options, counts)


def test_any_source_with_skewed_keys_makes_even_splits(shop: Shop) -> None:
    values = ", ".join(f"({number}, '{name}', '{a}', {b})" for number, name, a, b in skewed.rows())
    name, a = (
        f"VARCHAR(40) COLLATE {collation}"
        for collation in ("utf8mb4_general_ci", "latin1_swedish_ci")
    )
    shop.sql(
        f"CREATE TABLE texts (id INT, name {name} PRIMARY KEY, a {a}, b INT); INSERT INTO texts VALUES {values};"
        "CREATE TABLE ints (id INT PRIMARY KEY) AS SELECT id FROM texts; CREATE VIEW v AS SELECT * FROM texts;"
        f"CREATE TABLE pairs (a {a}, b INT, id INT, PRIMARY KEY (a, b)) AS SELECT a, b, id FROM texts"
    )
    assert skewed.uneven(shop.reader) == {}


def test_a_partitioned_table_is_read_whole(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 4; "
        "INSERT INTO t SELECT seq FROM seq_1_to_1000"
    )
    assert sorted(shop.read(advice=3)["id"].to_pylist()) == list(range(1, 1001))


def test_a_unique_index_of_a_text_is_said_to_need_a_length_on_mysql(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id BIGINT, name TEXT NOT NULL)")
    with pytest.raises(TargetError, match="MySQL only of a type with a length") as raised:
        shop.write(ROWS, writeMode="upsert", keyColumns="name")
    statement = str(raised.value).partition("create a unique index (")[2].partition("))")[0] + ")"
    if "MariaDB" not in shop.sql("SELECT VERSION()"):
        with pytest.raises(RuntimeError, match="1170"):
            shop.sql(statement)
        shop.sql("ALTER TABLE t MODIFY COLUMN name varchar(255) NOT NULL")
    shop.sql(statement)
    shop.write(ROWS, writeMode="upsert", keyColumns="name")
    shop.write(ROWS, writeMode="upsert", keyColumns="name")
    assert rows(shop) == [("1", "a"), ("2", "b")]


def test_a_column_of_an_index_is_not_told_to_become_a_text(shop: Shop) -> None:
    """Which has no length, so that no index of MySQL takes it, and no key of MariaDB."""
    shop.sql(
        "CREATE TABLE t (id VARCHAR(2) PRIMARY KEY, a VARCHAR(2), b VARCHAR(2), INDEX (a)); "
        "CREATE TABLE u (id VARCHAR(2) NOT NULL, n INT)"
    )
    for column in ("id", "a", "b"):
        values = {"id": ["x"], "a": ["x"], "b": ["x"], column: ["long"]}
        with pytest.raises(BatchRefusedError, match=f"'{column}'") as raised:
            shop.write(pa.table(values))
        _, said, statement = str(raised.value).partition("To widen the column, run ")
        assert bool(said) is (column == "b"), str(raised.value)
        if said:
            shop.sql(statement)
            shop.write(pa.table(values))
    with pytest.raises(BatchRefusedError, match="To widen the column, run ALTER TABLE"):
        shop.write(pa.table({"id": ["long"]}), dbtable="u")


def test_a_login_that_is_refused_is_tried_once(shop: Shop) -> None:
    def refused() -> int:
        return int(shop.rows("SHOW GLOBAL STATUS LIKE 'Aborted_connects'")[0][1])

    before = refused()
    table = f"{shop.database}.t"
    with pytest.raises(SourceError, match="the login was refused") as raised:
        load_reader({**shop.login, "password": "wrong", "dbtable": table})[0].schema()
    assert raised.value.is_of_input
    assert refused() == before + 1


def test_secrets_are_shown_nowhere(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    place = f"127.0.0.1:{shop.server.port}/{shop.database}"
    secret = "s3cret%20of%2Ftester%3A%25"
    for url in (
        f"jdbc:mysql://tester:{secret}@{place}",
        f"jdbc:mariadb://{place}?user=tester&password={secret}",
    ):
        reader, _ = load_reader({"url": url, "dbtable": "t"})
        writer, _ = load_writer({"url": url, "dbtable": "t"})
        with caplog.at_level(logging.DEBUG), pytest.raises(SourceError) as caught:
            reader.schema()
        plan = writer.prepare(shop.context(), ROWS.schema)
        shown = [
            repr(reader.options),
            repr(writer.options),
            str(caught.value),
            caplog.text,
            repr(plan),
            describe(reader.options),
        ]
        assert not any("s3cret" in text for text in shown)
        assert (
            pickle.loads(pickle.dumps(reader)).options.password.get_secret_value()
            == "s3cret of/tester:%"
        )
        writer.abort(plan, None)
    with pytest.raises(SourceError, match="the login was refused") as caught:
        load_reader({**shop.login, "password": "wr0ng", "dbtable": "t"})[0].schema()
    assert "wr0ng" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("jdbc:mysql://h:1/d?oddity=1", "oddity"),
        ("postgresql://h/d", "scheme"),
        ("mysql://a,b/d", "several hosts"),
    ],
)
def test_urls_that_are_none(url: str, wrong: str) -> None:
    with pytest.raises(OptionError, match=wrong):
        load_writer({"writer": "mysql", "url": url, "dbtable": "t"})


def test_a_url_without_a_database_takes_tables_with_theirs(shop: Shop) -> None:
    url = shop.login["url"].rpartition("/")[0]
    with pytest.raises(OptionError, match="names no database"):
        shop.writer("new", url=url).prepare(shop.context(), pa.schema({"id": pa.int64()}))
    database = shop.login["url"].rpartition("/")[2]
    assert (
        shop.writer(f"{database}.new", url=url)
        .prepare(shop.context(), pa.schema({"id": pa.int64()}))
        .commit
        == "job"
    )


def test_jdbc_parameters_are_understood() -> None:
    url = "jdbc:mysql://h:3307/d?useSSL=true&rewriteBatchedStatements=true&zeroDateTimeBehavior=convertToNull&user=u"
    reader: Any = load_reader({"url": url, "dbtable": "t"})[0]
    assert (reader.options.sslmode, reader.options.zero_dates, reader.options.user) == (
        "require",
        "null",
        "u",
    )


def test_tls_is_checked(server_class: type[MariadbServer]) -> None:
    server = server_class.create(ssl=True)
    try:
        server.sql("CREATE TABLE t (a INT)", database="shop")
        login = {**server.login, "dbtable": "t"}
        for options in ({"sslMode": "required"}, {"sslrootcert": str(server.certificate)}):
            query = {
                **login,
                "dbtable": "(SELECT VARIABLE_VALUE AS c FROM information_schema.SESSION_STATUS "
                "WHERE VARIABLE_NAME = 'Ssl_cipher') s",
                **options,
            }
            reader, _ = load_reader({name.lower(): value for name, value in query.items()})
            reader.schema()
            (split,) = reader.split(1)
            (batch,) = reader.read(split)
            assert batch["c"][0].as_py()
        with pytest.raises(
            SourceError, match=r"certificate is not trusted; .*certificate verify failed"
        ) as raised:
            load_reader({**login, "sslmode": "verify-ca"})[0].schema()
        assert "no server answers" not in str(raised.value)
    finally:
        server.close()


@pytest.mark.parametrize("local", [None, "false"], ids=["load", "insert"])
def test_odd_names_are_names_everywhere(shop: Shop, local: str | None) -> None:
    shop.sql("CREATE TABLE y AS SELECT 1 AS a")
    hold_to_names(
        shop.reader,
        lambda rows, **options: shop.write(rows, localInfile=local, **options),
        lambda name: "`" + name.replace("`", "``") + "`",
        modes=["upsert", "skipExisting", "apply"],
    )
    assert shop.sql("SELECT * FROM y") == "1"
    assert shop.staged() == []
