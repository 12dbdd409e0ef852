"""What only a real MySQL does: its own statements, settings and keys. The other tests of this folder run on it, too."""

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_channel
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.mysql.dialect import MysqlDialect, table_named
from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.errors import OptionError, SchemaError, SourceError, TargetError
from tests.connectors.mysql.log.test_feed import all_after
from tests.connectors.mysql.shop import Shop
from tests.servers.mariadb import MysqlServer, NewestMariadb

pytestmark = [
    pytest.mark.real_server("MySQL", "mysql"),
]

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})


def numbers(shop: Shop, rows: int = 20_000) -> None:
    shop.sql(
        f"CREATE TABLE t (id INT PRIMARY KEY, x INT); INSERT INTO t SELECT seq, seq FROM seq_1_to_{rows}"
    )


def test_the_versions_are_printed(mysql: Shop, record_property: Any) -> None:
    """Debian's unstable suite moves: the summary of a run says which servers it has met."""
    newest = NewestMariadb.create()
    try:
        versions = [server.sql("SELECT VERSION()") for server in (mysql.server, newest)]
    finally:
        newest.close()
    print(f"MySQL {versions[0]}, MariaDB {versions[1]}")
    record_property("versions", versions)
    assert int(versions[0].split(".")[0]) >= 9
    assert "MariaDB" in versions[1]
    assert int(versions[1].split(".")[0]) >= 11


def test_all_rows_are_read_with_and_without_a_limit(mysql: Shop) -> None:
    numbers(mysql)
    for options in ({}, {"rowsPerSecond": "1000k"}, {"partitionColumn": "x"}):
        read = mysql.read(advice=4, **options)
        assert sorted(read["id"].to_pylist()) == list(range(1, 20_001)), options
    assert len(mysql.reader(rowsPerSecond="1000k").split(4)) == 4


def test_a_table_is_split_whatever_the_optimizer_is(mysql: Shop) -> None:
    numbers(mysql)
    switch = {"sessionVariables": "optimizer_switch='hypergraph_optimizer=on'"}
    reader = mysql.reader(rowsPerSecond="1000k", **switch)
    splits = reader.split(4)
    read = [n for split in splits for batch in reader.read(split) for n in batch["id"].to_pylist()]
    assert (len(splits), sorted(read)) == (4, list(range(1, 20_001)))


def test_sizes_of_tables_are_the_present_ones(mysql: Shop) -> None:
    """MySQL's catalog shows them as they were up to a day ago."""
    numbers(mysql, 10)
    with MysqlSession(mysql.reader().options, SourceError) as session:
        size = "SELECT table_rows FROM information_schema.tables WHERE table_schema = 'warehouse'"
        assert int(session.value(size)) == 10
        mysql.sql("INSERT INTO t SELECT seq, seq FROM seq_11_to_5000; ANALYZE TABLE t")
        assert int(session.value(size)) > 1_000


def test_rows_are_compared_in_the_server(mysql: Shop) -> None:
    numbers(mysql, 3)
    mysql.sql("CREATE TABLE u LIKE t; INSERT INTO u SELECT * FROM t")
    place = f"mysql://127.0.0.1:{mysql.server.port}/warehouse?dbtable="
    command = [str(Path(sys.executable).with_name("spark-channel")), "verify"]
    login = {name: value for name, value in mysql.login.items() if name != "url"}
    for side, role, table in (("source", "reader", "t"), ("target", "writer", "u")):
        command += [f"--{side}", place + table]
        command += [part for name in login for part in ("-o", f"{role}.{name}={login[name]}")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_tagged_gtid_is_told(mysql: Shop) -> None:
    """One such transaction, in any table and at any time, is in the server's set of transactions for ever."""
    server = MysqlServer.create(**MysqlServer.log_settings)
    try:
        shop = Shop(server, "shop")
        shop.sql("CREATE TABLE t (id INT PRIMARY KEY); CREATE TABLE other (id INT PRIMARY KEY)")
        feed = shop.reader(binlog="true").feed(FeedOptions())
        (start,) = feed.now()
        shop.sql("SET gtid_next = 'AUTOMATIC:maintenance'; INSERT INTO other VALUES (1)")
        with pytest.raises(SourceError, match=r"the tag 'maintenance'.*cursorColumn"):
            feed.latest(start, FeedLimit())
        with pytest.raises(SourceError, match=r"the tag 'maintenance'.*cursorColumn"):
            shop.reader(binlog="true").feed(FeedOptions())
    finally:
        server.close()


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_key_that_the_server_adds_is_no_column_of_the_rows(mysql: Shop, commit: Any) -> None:
    mysql.sql("SET GLOBAL sql_generate_invisible_primary_key = ON")
    try:
        for count in (3, 6):
            mysql.write(ROWS, commit=commit)
            assert mysql.rows("SELECT COUNT(*) FROM t") == [(str(count),)]
        assert mysql.rows("SELECT my_row_id FROM t ORDER BY 1 LIMIT 1") == [("1",)]
    finally:
        mysql.sql("SET GLOBAL sql_generate_invisible_primary_key = DEFAULT")


def test_a_server_that_asks_for_keys_is_told_before_rows_move(mysql: Shop) -> None:
    mysql.sql("SET GLOBAL sql_require_primary_key = ON")
    try:
        with pytest.raises(OptionError, match=r"sql_require_primary_key = ON.*keyColumns"):
            mysql.writer().prepare(mysql.context(commit="job"), ROWS.schema)
        mysql.write(ROWS, commit="job", writeMode="upsert", keyColumns="id")
        mysql.write(ROWS, commit="job", writeMode="upsert", keyColumns="id")
        assert mysql.rows("SELECT COUNT(*) FROM t") == [("3",)]
        mysql.sql("CREATE TABLE there (id BIGINT PRIMARY KEY, name TEXT)")
        mysql.write(ROWS, dbtable="there")
    finally:
        mysql.sql("SET GLOBAL sql_require_primary_key = DEFAULT")


def test_rows_that_foreign_keys_change_are_in_the_log(mysql: Shop) -> None:
    mysql.sql(
        "CREATE TABLE p (id INT PRIMARY KEY); CREATE TABLE t (id INT PRIMARY KEY, p INT, "
        "CONSTRAINT c FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE); "
        "INSERT INTO p VALUES (1); INSERT INTO t VALUES (1, 1)"
    )
    feed = mysql.reader(binlog="true").feed(FeedOptions())
    (start,) = feed.now()
    mysql.sql(
        "DELETE FROM p; ALTER TABLE t DROP FOREIGN KEY c, "
        "ADD FOREIGN KEY (p) REFERENCES p (id) ON UPDATE CASCADE"
    )
    mysql.sql("INSERT INTO p VALUES (2); INSERT INTO t VALUES (2, 2); UPDATE p SET id = 3")
    changes = [(row["_op"], row["id"], row["p"]) for row in all_after(feed, start)]
    assert changes == [("delete", 1, 1), ("insert", 2, 2), ("update", 2, 3)]


def test_the_login_is_checked_over_tls(mysql: Shop) -> None:
    mysql.sql("CREATE TABLE t (id INT PRIMARY KEY)")
    assert mysql.read().num_rows == 0
    new = "CREATE USER new@'127.0.0.1' IDENTIFIED BY 'x'; GRANT SELECT ON *.* TO new@'127.0.0.1'"
    mysql.sql(f"DROP USER IF EXISTS new@'127.0.0.1'; {new}")
    with pytest.raises(SourceError, match=r"its certificate was not verified.*sslrootcert"):
        mysql.reader(sslmode="require", sslrootcert=None, user="new", password="x").schema()
    with pytest.raises(SourceError, match=r"the login was refused.*\(1045\)"):
        mysql.read(password="wrong")


def test_the_catalog_has_keys_of_expressions_and_of_parts(mysql: Shop) -> None:
    mysql.sql(
        "CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, code VARCHAR(9) NOT NULL, n INT, note TEXT, "
        "twice INT AS (n * 2) STORED, hidden INT DEFAULT 1 INVISIBLE, UNIQUE KEY code (code), UNIQUE KEY loose (n), "
        "UNIQUE KEY part (note(5)), UNIQUE KEY made ((n + 1)))"
    )
    with MysqlSession(mysql.reader().options, SourceError) as session:
        table = table_named(session, "warehouse", "t")
    assert table is not None
    assert (table.primary, table.unique, table.loose) == (("id",), (("id",), ("code",)), (("n",),))
    assert {each.name for each in table.columns if each.generated} == {"twice"}
    assert {each.name for each in table.columns if each.invisible} == {"hidden"}


def test_a_vector_is_refused_with_the_function_that_shows_it(mysql: Shop) -> None:
    mysql.sql("CREATE TABLE t (id INT PRIMARY KEY, e VECTOR(2)); INSERT INTO t VALUES (1, NULL)")
    with pytest.raises(SchemaError, match=r"'e' is vector\(2\).*VECTOR_TO_STRING"):
        mysql.reader().schema()
    shown = mysql.read(None, query="SELECT id, VECTOR_TO_STRING(e) AS e FROM t")
    assert shown.to_pylist() == [{"id": 1, "e": None}]


@pytest.mark.parametrize("together", [True, False], ids=["in a group", "alone"])
def test_a_table_that_is_made_as_its_source_is_gets_the_key_that_the_server_adds(
    mysql: Shop, *, together: bool
) -> None:
    mysql.sql(
        "CREATE DATABASE plain; CREATE TABLE plain.a (id INT, j JSON);"
        "CREATE TABLE plain.b LIKE plain.a; INSERT INTO plain.a VALUES (1, '{}'), (2, NULL)"
    )
    source = {**mysql.login, "url": mysql.login["url"].replace("/warehouse", "/plain")}
    mysql.sql("SET GLOBAL sql_generate_invisible_primary_key = ON")
    try:
        for _ in range(2):
            report = spark_channel.replicate(
                None,
                {
                    "source": source,
                    "target": mysql.login,
                    "defaults": {"object": "{table}", "schema": "full"},
                    "streams": {"*": {}},
                    "parallel": 1,
                },
                select=() if together else ["*.a"],
            )
            assert report.exit_code == 0, report
            assert mysql.sql("SELECT * FROM a ORDER BY id") == "1\t{}\n2\tNULL"
            assert "`my_row_id`" in mysql.sql("SHOW CREATE TABLE a")
    finally:
        mysql.sql("SET GLOBAL sql_generate_invisible_primary_key = DEFAULT; DROP DATABASE plain")


@pytest.mark.parametrize("local", [None, "false"], ids=["load", "insert"])
@pytest.mark.parametrize("commit", ["job", "task"])
def test_timestamps_go_as_far_as_the_servers_do(
    mysql: Shop, commit: Any, local: str | None
) -> None:
    """Until 2038 on MySQL, and until 2106 on MariaDB from 11.5 on."""
    last = dt.datetime(2106, 2, 7, 6, 28, 15, 999999, dt.UTC)
    rows = pa.table({"id": [1], "at": pa.array([last], pa.timestamp("us", "UTC"))})
    later = pa.table(
        {"id": [2], "at": pa.array([last + dt.timedelta(seconds=1)], pa.timestamp("us", "UTC"))}
    )
    with pytest.raises(TargetError, match="1970 to 2038"):
        mysql.write(rows, commit=commit, localInfile=local)
    newest = NewestMariadb.create()
    try:
        shop = Shop(newest, "shop")
        shop.write(rows, commit=commit, localInfile=local)
        assert shop.read()["at"].to_pylist() == [last]
        with pytest.raises(TargetError, match="1970 to 2106"):
            shop.write(later, commit=commit, localInfile=local)
    finally:
        newest.close()


def test_a_table_without_rows_has_none_in_the_list_of_tables(shop: Shop) -> None:
    """A plan takes 0 rows of some bytes for a number that is not known."""
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY)")
    with MysqlSession(shop.reader().options, SourceError) as session:
        listed = session.rows(MysqlDialect().list_tables())
    assert [row[1:4] for row in listed if row[0] == shop.database] == [("t", 0, 0)]
