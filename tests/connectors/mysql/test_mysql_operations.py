"""MySQL as it is operated: keys of bytes, global settings of its log, and a replica that is read or promoted."""

from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import find_connector
from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.errors import BatchRefusedError, SourceError
from tests.connectors.mysql.log.test_feed import all_after, feed_of
from tests.connectors.mysql.shop import Shop
from tests.servers.mariadb import MysqlServer

pytestmark = [pytest.mark.real_server("MySQL", "mysql")]


def test_keys_of_sixteen_bytes_are_split_matched_and_followed(mysql: Shop) -> None:
    """As applications keep UUIDs. The log leaves out zeros at the end of such a value."""
    mysql.sql(
        "CREATE TABLE t (id BINARY(16) PRIMARY KEY, v INT); "
        "INSERT INTO t SELECT UNHEX(LEFT(SHA2(seq, 256), 32)), 0 FROM seq_1_to_3000"
    )
    for options in ({"advice": 4}, {"rowsPerSecond": "100k"}, {"partitionColumn": "id"}):
        assert mysql.read("t", **options).num_rows == 3_000
    feed = feed_of(mysql)
    (start,) = feed.now()
    ends = [bytes(16), b"\xff" * 16, b"\xaa" + bytes(15)]
    kinds = pa.schema([("id", pa.binary()), ("v", pa.int32())])
    for number in (1, 2):
        mysql.write(pa.table([ends, [number] * 3], schema=kinds), writeMode="upsert")
    assert mysql.sql("SELECT COUNT(*), SUM(v) FROM t") == "3003\t6"
    with pytest.raises(BatchRefusedError, match=r"binary\(16\), which pads with zeros"):
        mysql.write(pa.table([[b"\1"], [3]], schema=kinds), writeMode="upsert")
    changes = all_after(feed, start)
    assert sorted({row["id"] for row in changes}) == sorted(ends)
    assert [row["v"] for row in changes if row["_op"] == "update"] == [2, 2, 2]


def test_parts_of_json_values_are_refused_by_the_setting(mysql: Shop) -> None:
    setting = "SET GLOBAL binlog_row_value_options = "
    mysql.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, d JSON); "
        f"""INSERT INTO t VALUES (1, '{{"a": 1, "b": "{"x" * 100}"}}')"""
    )
    feed = feed_of(mysql)
    (start,) = feed.now()
    try:
        mysql.sql(f"{setting}'PARTIAL_JSON'")
        mysql.sql("UPDATE t SET d = JSON_SET(d, '$.a', 2)")
        with pytest.raises(
            SourceError, match=r"parts of a JSON value only: run SET GLOBAL binlog_row"
        ):
            all_after(feed, start)
        with pytest.raises(SourceError, match="binlog_row_value_options = PARTIAL_JSON"):
            feed_of(mysql).now()
    finally:
        mysql.sql(f"{setting}''")
    (again,) = feed_of(mysql).now()
    mysql.sql("UPDATE t SET d = JSON_SET(d, '$.a', 3)")
    assert [row["_op"] for row in all_after(feed_of(mysql), again)] == ["update"]


def test_transactions_that_the_server_compresses_are_read(mysql: Shop) -> None:
    mysql.sql("CREATE TABLE t (id INT PRIMARY KEY, item TEXT, n INT)")
    feed = feed_of(mysql)
    (start,) = feed.now()
    try:
        mysql.sql("SET GLOBAL binlog_transaction_compression = ON")
        mysql.sql(
            "INSERT INTO t SELECT seq, REPEAT('x', 50), 0 FROM seq_1_to_1000; UPDATE t SET n = 1; "
            "DELETE FROM t WHERE id > 10"
        )
    finally:
        mysql.sql("SET GLOBAL binlog_transaction_compression = DEFAULT")
    found = [row["_op"] for row in all_after(feed, start)]
    assert found == ["insert"] * 1000 + ["update"] * 1000 + ["delete"] * 990


def test_a_replica_is_followed_watched_and_promoted(mysql: Shop) -> None:
    """The last test of this file: its primary dies."""
    primary = mysql.server
    replica = MysqlServer.create(**{**MysqlServer.log_settings, "server_id": "2"})
    try:
        primary.sql("CREATE USER copier@'127.0.0.1' IDENTIFIED BY 'x'")
        primary.sql("GRANT REPLICATION SLAVE ON *.* TO copier@'127.0.0.1'")
        done = executed(primary)
        replica.sql(
            f"RESET BINARY LOGS AND GTIDS; SET GLOBAL gtid_purged = '{done}'; SET sql_log_bin = 0; "
            "CREATE DATABASE warehouse; SET sql_log_bin = 1; CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', "
            f"SOURCE_PORT = {primary.port}, SOURCE_USER = 'copier', SOURCE_PASSWORD = 'x', SOURCE_AUTO_POSITION = 1, "
            "SOURCE_SSL = 1; START REPLICA"
        )
        mysql.sql("CREATE TABLE t (id INT PRIMARY KEY, item TEXT); INSERT INTO t VALUES (1, 'a')")
        wait_for(replica, executed(primary))
        other = Shop(replica, "warehouse")
        assert other.read("t").num_rows == 1
        state = other.state()
        feed, of_replica = feed_of(mysql), feed_of(other)
        (start,), (start_there,) = feed.now(), of_replica.now()
        mysql.sql("INSERT INTO t VALUES (2, 'b')")
        middle = feed.latest(start, FeedLimit())
        mysql.sql("UPDATE t SET item = 'c' WHERE id = 1")
        wait_for(replica, executed(primary))
        assert brief(all_after(of_replica, start_there)) == [("insert", 2, "b"), ("update", 1, "c")]
        assert other.state() == state
        assert {"threads_running", "history_length", "replication_lag"} <= signals(other)
        assert "replication_lag" not in signals(mysql)
        primary.stop(crash=True)
        replica.sql("STOP REPLICA; RESET REPLICA ALL")
        other.sql("INSERT INTO t VALUES (3, 'd')")
        found = brief(all_after(feed_of(other), middle))
        assert found == [("update", 1, "c"), ("insert", 3, "d")]
    finally:
        replica.close()
        primary.start()


def executed(server: MysqlServer | Any) -> str:
    return "".join(server.sql("SELECT @@gtid_executed").replace("\\n", "").split())


def wait_for(server: MysqlServer, gtids: str) -> None:
    assert server.sql(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{gtids}', 60)") == "0"


def brief(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["_op"], row["id"], row["item"]) for row in rows]


def signals(mysql: Shop) -> set[str]:
    """What `protect=auto` looks at."""
    connector = find_connector({"url": mysql.login["url"]}, "reader")
    health = connector.reader_with({**mysql.login, "dbtable": "t"})[0].health()
    assert health is not None
    with health:
        sample = health.sample()
    assert not sample.missing
    return set(sample.values)
