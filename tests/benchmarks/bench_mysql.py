"""MySQL to MySQL on one server: this project beside Spark's JDBC source with `rewriteBatchedStatements`.

The target is there and empty, with a primary key, as in production; both copies are appends. Needs the JDBC driver
(Debian's libmariadb-java).
"""

import importlib
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import spark_channel
from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from tests.benchmarks.harness import Row, alternate, print_table, ratio, spark_session
from tests.servers.mariadb import BINLOG, MariadbServer

JAR = Path("/usr/share/java/mariadb-java-client.jar")
ROWS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROWS", "1500000"))
ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "3"))
COLUMNS = (
    "o_orderkey BIGINT PRIMARY KEY, o_custkey BIGINT NOT NULL, o_orderstatus VARCHAR(1) NOT NULL, "
    "o_totalprice DECIMAL(15,2) NOT NULL, o_orderdate DATE NOT NULL, o_orderpriority VARCHAR(15) NOT NULL, "
    "o_clerk VARCHAR(15) NOT NULL, o_shippriority INT NOT NULL, o_comment VARCHAR(79) NOT NULL"
)

CHANGES = {
    "followed": "INSERT INTO followed SELECT seq, CONCAT('item ', seq), seq / 100, NOW(6) FROM seq_1_to_100000; "
    "UPDATE followed SET item = 'other' WHERE id <= 50000; DELETE FROM followed WHERE id > 80000",
    "orders": "INSERT INTO orders SELECT seq, seq % 150000, 'O', seq % 50000 / 100, '1992-01-01' + INTERVAL seq % 2400 "
    "DAY, '1-URGENT', CONCAT('Clerk#', seq % 1000), 0, CONCAT('carefully final deposits ', MD5(seq)) "
    "FROM seq_1_to_120000; UPDATE orders SET o_totalprice = o_totalprice + 1 WHERE o_orderkey <= 50000",
}
"""170 000 changes of each table, those of the first as `bench_tunnel` has PostgreSQL make them."""


def fill(server: MariadbServer) -> None:
    """Rows of the shape of TPC-H's orders."""
    server.sql(
        f"CREATE TABLE orders ({COLUMNS}); CREATE TABLE copy ({COLUMNS}); "
        "INSERT INTO orders SELECT seq * 4, seq * 7919 % 150000, ELT(1 + seq % 3, 'O', 'F', 'P'), "
        "seq * 7919 % 50000000 / 100, "
        "'1992-01-01' + INTERVAL seq % 2400 DAY, ELT(1 + seq % 5, '1-URGENT', '2-HIGH', '3-MEDIUM', '4-NOT SPECIFIED', "
        "'5-LOW'), CONCAT('Clerk#', LPAD(seq % 1000, 9, '0')), 0, CONCAT('carefully final deposits among ', MD5(seq)) "
        f"FROM seq_1_to_{ROWS}",
        database="shop",
    )


def transfer(spark: SparkSession, server: MariadbServer) -> None:
    end = {"name": "mysql", **server.login}
    reader, writer = {**end, "dbtable": "orders"}, {**end, "dbtable": "copy"}
    spark_channel.transfer(spark, reader, writer, channels=2, commit="task")


def copy(spark: SparkSession, server: MariadbServer, form: str) -> None:
    login: dict[str, Any] = dict(server.login)
    read: dict[str, Any] = {"dbtable": "orders", "numPartitions": 2}
    write: dict[str, Any] = {"dbtable": "copy"}
    if form == "jdbc":
        login["url"] = (
            f"jdbc:{login['url']}?rewriteBatchedStatements=true"  # Spark quotes names rightly for mysql: alone
        )
        read |= {
            "partitionColumn": "o_orderkey",
            "lowerBound": 1,
            "upperBound": 4 * ROWS,
            "fetchsize": 10_000,
        }
        write |= {"batchsize": 10_000}
        login["driver"] = "org.mariadb.jdbc.Driver"
    frame = spark.read.format(form).options(**login, **read).load()
    frame.write.format(form).options(**login, **write).mode("append").save()


def emptied(server: MariadbServer) -> None:
    server.sql("TRUNCATE copy", database="shop")


def arrived(server: MariadbServer) -> None:
    found = server.sql("SELECT COUNT(*), COUNT(DISTINCT o_orderkey) FROM copy", database="shop")
    assert found == f"{ROWS}\t{ROWS}", found


def timed(
    server: MariadbServer, peer: Callable[[], object], ours: Callable[[], object]
) -> tuple[list[float], list[float]]:
    return alternate(
        peer, ours, ROUNDS, before=lambda: emptied(server), after=lambda: arrived(server)
    )


def decode() -> list[Row]:
    """The binary log of `CHANGES`, decoded."""
    server = MariadbServer.create(**BINLOG)
    try:
        server.sql(
            f"CREATE TABLE orders ({COLUMNS}); "
            "CREATE TABLE followed (id INT PRIMARY KEY, item TEXT, price DECIMAL(8,2), at TIMESTAMP(6))",
            database="shop",
        )
        found = []
        for table, changes in CHANGES.items():
            reader, _ = load_reader({**server.login, "dbtable": table, "binlog": "true"})
            feed = reader.feed(FeedOptions())
            (start,) = feed.now()
            file, place = server.sql("SHOW MASTER STATUS").split("\t")[:2]
            server.sql(changes, database="shop")
            end = feed.latest(start, FeedLimit())
            own = []
            for _ in range(3):
                cpu = time.process_time()
                count = sum(
                    batch.num_rows
                    for split in feed.changes(start, end)
                    for batch in feed.read(split)
                )
                own.append(count / (time.process_time() - cpu))
                assert count == 170_000
            note = f"per second of one core; {len(reader.schema())} columns"
            found.append(
                Row(
                    f"binlog decoded, {table}",
                    statistics.median(own),
                    ">= 30000",
                    "changes/s",
                    note,
                )
            )
            found += peer(server, table, file, int(place))
    finally:
        server.close()
    return found


def peer(server: MariadbServer, table: str, file: str, place: int) -> list[Row]:
    """The same log, decoded by python-mysql-replication into its rows, where it is installed."""
    if importlib.util.find_spec("pymysqlreplication") is None:
        return []
    theirs: Any = importlib.import_module("pymysqlreplication")
    events: Any = importlib.import_module("pymysqlreplication.row_event")
    kinds = [events.WriteRowsEvent, events.UpdateRowsEvent, events.DeleteRowsEvent]
    login = {
        "host": "127.0.0.1",
        "port": server.port,
        "user": server.user,
        "passwd": server.password,
    }
    cpu, count = time.process_time(), 0
    stream = theirs.BinLogStreamReader(
        login,
        server_id=4242,
        only_events=kinds,
        log_file=file,
        log_pos=place,
        only_tables=[table],
        resume_stream=True,
    )
    try:
        for event in stream:
            count += len(event.rows)
    finally:
        stream.close()
    rate = count / (time.process_time() - cpu)
    assert count == 170_000
    return [
        Row(
            f"the same by python-mysql-replication, {table}",
            rate,
            "",
            "changes/s",
            "dicts of Python values",
        )
    ]


def main() -> list[Row]:
    if not JAR.exists():
        raise RuntimeError(f"{JAR} is missing: install Debian's libmariadb-java")
    server = MariadbServer.create()
    try:
        fill(server)
        spark = spark_session(JAR)
        try:
            jdbc, ours = timed(
                server, lambda: copy(spark, server, "jdbc"), lambda: transfer(spark, server)
            )
            again, frames = timed(
                server, lambda: copy(spark, server, "jdbc"), lambda: copy(spark, server, "channel")
            )
        finally:
            spark.stop()
    finally:
        server.close()
    best = f"JDBC {min(jdbc):.1f} s, ours {min(ours):.1f} s at best"
    note = f"{ROWS:,} rows of orders; {best}; commit=task"
    return [
        *decode(),
        Row("MySQL to MySQL: JDBC / transfer", ratio(jdbc, ours), ">= 1.3", "x", note),
        Row(
            "MySQL to MySQL: JDBC / our DataFrame path",
            ratio(again, frames),
            "",
            "x",
            "commit=task",
        ),
    ]


if __name__ == "__main__":
    print_table(main())
