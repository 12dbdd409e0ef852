"""SQL: temporary views read and write with their options; values that Spark cannot hold are refused."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_channel.errors import UnsupportedError
from spark_channel.spark.source import ChannelDataSource

pytestmark = [pytest.mark.spark, pytest.mark.newest]


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A database with two tables of ten rows, and a view on each."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("orders", "customers"):
            connection.execute(f"CREATE TABLE {table} (id INTEGER, name TEXT)")
            connection.executemany(
                f"INSERT INTO {table} VALUES (?, ?)", [(n, f"{table} {n}") for n in range(10)]
            )
    for table in ("orders", "customers"):
        spark.sql(
            f"CREATE TEMPORARY VIEW {table} USING channel OPTIONS (path '{path}', dbtable '{table}')"
        )
    yield path
    for table in ("orders", "customers"):
        spark.catalog.dropTempView(table)


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_two_views_are_joined(spark: SparkSession, shop: Path) -> None:
    found = spark.sql(
        "SELECT o.name, c.name FROM orders o JOIN customers c USING (id) WHERE id = 7"
    ).collect()
    assert [tuple(row) for row in found] == [("orders 7", "customers 7")]


def test_rows_are_inserted_once(spark: SparkSession, shop: Path) -> None:
    spark.sql("INSERT INTO orders VALUES (11, 'by hand')")
    spark.sql("INSERT INTO orders SELECT id + 100, name FROM customers")
    assert rows(shop, "SELECT count(*), count(DISTINCT id), max(id) FROM orders") == [(21, 21, 109)]


def test_spark_drops_the_options_of_a_statement(spark: SparkSession, shop: Path) -> None:
    """So a transaction id does not protect there, as docs/deploy.md says; nothing of it reaches the data source."""
    for _ in range(2):
        spark.sql("INSERT INTO orders WITH (txn = 'with:1', noSuchOption = '1') VALUES (10, 'a')")
        row = spark.createDataFrame([(10, "b")], "id long, name string")
        row.write.options(txn="later:1", noSuchOption="1").insertInto("orders")
    found = rows(shop, "SELECT name, count(*) FROM orders WHERE id = 10 GROUP BY name")
    assert found == [("a", 2), ("b", 2)]


def test_all_rows_are_replaced(spark: SparkSession, shop: Path) -> None:
    spark.sql("INSERT OVERWRITE orders SELECT id, name FROM customers WHERE id < 3")
    assert rows(shop, "SELECT id FROM orders ORDER BY id") == [(0,), (1,), (2,)]


def test_a_table_is_refused_with_what_to_use_instead(spark: SparkSession, shop: Path) -> None:
    options = f"OPTIONS (url 'sqlite:{shop}', dbtable 'orders')"
    spark.sql(f"CREATE TABLE kept (id BIGINT, name STRING) USING channel {options}")
    try:
        for statement in ("SELECT * FROM kept", "INSERT INTO kept VALUES (5, 'x')"):
            with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
                spark.sql(statement).collect()
    finally:
        spark.sql("DROP TABLE kept")
    assert rows(shop, "SELECT count(*) FROM orders") == [(10,)]


@pytest.mark.parametrize("side", ["streamWriter", "streamReader"])
def test_a_table_of_a_pipeline_is_refused_with_the_sink_to_use_instead(side: str) -> None:
    """As `@dp.table(format="channel")` has it: Spark adds the checkpoint, and drops what the table was given."""
    options = {"checkpointLocation": "/tmp/c"} if side == "streamWriter" else {}
    more = {"overwrite": False} if side == "streamWriter" else {}
    made = getattr(ChannelDataSource(options), side)
    with pytest.raises(UnsupportedError, match=r"dp\.table\(format='channel'\).*dp\.create_sink"):
        made(StructType().add("id", "long"), **more)


@pytest.mark.parametrize("way", ["saveAsTable", "create"])
def test_a_frame_is_not_made_a_table(spark: SparkSession, shop: Path, way: str) -> None:
    frame = spark.range(3).withColumnRenamed("id", "n")
    options = {"url": f"sqlite:{shop}", "dbtable": "made"}

    def make_and_read() -> None:
        if way == "saveAsTable":
            frame.write.format("channel").options(**options).saveAsTable("made_here")
        else:
            frame.writeTo("made_here").using("channel").options(**options).create()
        spark.table("made_here").collect()

    try:
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            make_and_read()
    finally:
        spark.sql("DROP TABLE IF EXISTS made_here")


def test_a_variant_is_refused_by_column(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 1L AS id, parse_json('{\"a\": 1}') AS doc")
    with pytest.raises(PySparkException, match=r"column 'doc' is of type VARIANT.*to_json"):
        frame.write.format("channel").option("dbtable", "t").mode("append").save(
            str(tmp_path / "v.db")
        )
    frame.selectExpr("id", "to_json(doc) AS doc").write.format("channel").option(
        "dbtable", "t"
    ).mode("append").save(str(tmp_path / "v.db"))
    assert rows(tmp_path / "v.db", "SELECT doc FROM t") == [('{"a":1}',)]
