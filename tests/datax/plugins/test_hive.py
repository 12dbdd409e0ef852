"""Plugins that are formats of Spark's, as whole jobs: by a JDBC driver (Derby, which Spark contains), and Hive."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.errors import TargetError
from tests.datax.small_jobs import make_job

pytestmark = [pytest.mark.spark, pytest.mark.newest]


@pytest.fixture(scope="module", autouse=True)
def _derby_log(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Derby writes one into the working directory otherwise."""
    log = tmp_path_factory.mktemp("derby") / "derby.log"
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(log))


class Derby:
    """A database in memory, in Spark's JVM, by Derby's own driver."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.url = f"jdbc:derby:memory:{name}"
        jvm: Any = spark._jvm
        self._manager = jvm.java.sql.DriverManager
        self._connection = self._manager.getConnection(f"{self.url};create=true", "shop", "s3cret")

    def sql(self, *statements: str) -> None:
        statement = self._connection.createStatement()
        for text in statements:
            statement.execute(text)
        statement.close()

    def rows(self, query: str) -> list[tuple[str | None, ...]]:
        statement = self._connection.createStatement()
        result = statement.executeQuery(query)
        width = range(1, result.getMetaData().getColumnCount() + 1)
        found = []
        while result.next():
            found.append(tuple(result.getString(number) for number in width))
        statement.close()
        return found

    def close(self) -> None:
        from py4j.protocol import Py4JJavaError

        self._connection.close()
        with pytest.raises(Py4JJavaError, match="dropped"):
            self._manager.getConnection(f"{self.url};drop=true", "shop", "s3cret")


@pytest.fixture
def derby(spark: SparkSession) -> Iterator[Derby]:
    made = Derby(spark, "jobs")
    yield made
    made.close()


def test_a_database_by_its_jdbc_driver(spark: SparkSession, derby: Derby) -> None:
    derby.sql(
        "CREATE TABLE src (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(10,2), placed TIMESTAMP, note CLOB)",
        "INSERT INTO src VALUES (1, 'ada', 12.50, '2024-01-31 10:00:05.25', 'x'), (2, NULL, NULL, NULL, NULL), "
        "(3, 'eve', 0.10, '2024-07-31 23:59:59', 'y'), (9, 'filtered', 1, NULL, NULL)",
        # Spark's dialect of Derby takes every text for a CLOB.
        "CREATE TABLE dst (id BIGINT PRIMARY KEY, name CLOB, price DECIMAL(12,2), placed TIMESTAMP, "
        "loud CLOB, origin VARCHAR(9) DEFAULT 'new')",
        "INSERT INTO dst VALUES (1, 'old', 0, NULL, NULL, 'old')",
    )
    login = {"username": "shop", "password": "s3cret"}
    reader = {
        **login,
        "column": ["id", "name", "price", "placed", "upper(name)"],
        "where": "id < 9",
        "splitPk": "id",
        "lowerBound": "1",
        "upperBound": "4",
        "fetchSize": 2,
        "connection": [{"jdbcUrl": [derby.url], "table": ["src"]}],
    }
    writer = {
        **login,
        "column": ["id", "name", "price", "placed", "loud"],
        "preSql": ["delete from @table"],
        "batchSize": 2,
        "connection": [{"jdbcUrl": derby.url, "table": ["dst"]}],
    }
    job = make_job("rdbmsreader", reader, "rdbmswriter", writer, setting={"speed": {"channel": 2}})
    assert spark_channel.run(spark, job).rows == 3
    assert derby.rows("SELECT * FROM dst ORDER BY id") == [
        ("1", "ada", "12.50", "2024-01-31 10:00:05.25", "ADA", "new"),
        ("2", None, None, None, None, "new"),
        ("3", "eve", "0.10", "2024-07-31 23:59:59.0", "EVE", "new"),
    ]
    writer["connection"] = [{"jdbcUrl": derby.url, "table": ["missing"]}]
    with pytest.raises(
        TargetError, match=r"table missing cannot be read: .*'MISSING' does not exist.*create it"
    ):
        spark_channel.run(spark, make_job("rdbmsreader", reader, "rdbmswriter", writer))
    assert derby.rows("SELECT tablename FROM sys.systables WHERE tablename = 'MISSING'") == []


@pytest.fixture
def hive(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with its own metastore, in the JVM of the tests' session."""
    jvm: Any = spark._jvm
    options = jvm.java.util.HashMap()
    options.put("spark.sql.catalogImplementation", "hive")
    options.put("javax.jdo.option.ConnectionURL", "jdbc:derby:memory:metastore;create=true")
    before: Any = spark._jsparkSession
    classic = jvm.org.apache.spark.sql.classic.SparkSession
    session = SparkSession(spark.sparkContext, classic(spark._jsc.sc(), options))
    try:
        yield session
    finally:
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(before)
        jvm.org.apache.spark.sql.classic.SparkSession.setDefaultSession(before)


def test_tables_of_hive(hive: SparkSession, tmp_path: Path) -> None:
    hive.sql(f"CREATE DATABASE ods LOCATION '{tmp_path}'")
    hive.sql(
        "CREATE TABLE ods.src (id BIGINT, name STRING, price DECIMAL(10,2), dt STRING) STORED AS TEXTFILE"
    )
    hive.sql("INSERT INTO ods.src VALUES (1, 'ada', 12.50, 'd1'), (2, NULL, NULL, 'd2')")
    columns = "(id BIGINT, name STRING, price DECIMAL(10,2)) PARTITIONED BY (dt STRING)"
    hive.sql(f"CREATE TABLE ods.dst {columns} STORED AS TEXTFILE")
    writer = {
        "databaseName": "ods",
        "tableName": "dst",
        "writeMode": "insert",
        "partition": ["dt"],
        "column": ["dt", {"name": "id", "type": "bigint"}, "name", "price"],
    }

    def run(where: str, **more: str) -> int:
        query = f"select dt, id, name, price from ods.src where {where};"
        reader = {"sqls": [query], "jdbcUrl": "jdbc:hive2://h:10000/ods"}
        return spark_channel.run(
            hive, make_job("hivereader", reader, "hivewriter", {**writer, **more})
        ).rows

    def rows() -> list[tuple[Any, ...]]:
        found = hive.sql(
            "SELECT id, name, CAST(price AS STRING), dt FROM ods.dst ORDER BY id, dt"
        ).collect()
        return list(map(tuple, found))

    with pytest.raises(TargetError, match=r"is partitioned, .*partition\.mode to nonstrict"):
        run("id < 9")
    hive.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")
    assert run("id < 9") == 2
    assert rows() == [(1, "ada", "12.50", "d1"), (2, None, None, "d2")]
    assert run("dt = 'd1'", writeMode="overwrite") == 1
    assert rows() == [(1, "ada", "12.50", "d1"), (2, None, None, "d2")], (
        "only partitions of the rows are replaced"
    )
    described = {row[0]: row[1] for row in hive.sql("DESCRIBE FORMATTED ods.dst").collect()}
    assert "LazySimpleSerDe" in described["Serde Library"]
    assert sorted(path.name for path in (tmp_path / "dst").glob("dt=*")) == ["dt=d1", "dt=d2"]
