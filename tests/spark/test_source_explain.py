"""What `explain` says of a DataFrame that is read through this format."""

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark_channel
from spark_channel.errors import UnsupportedError
from spark_channel.spark.source import scan_lines


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL)")
        database.execute("INSERT INTO orders VALUES (1, 2.5)")
    return path


@pytest.mark.spark
def test_source_table_columns_filter_and_limit_are_shown(
    spark: SparkSession, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = spark.read.format("channel").option("dbtable", "orders").option("columns", "id")
    limited = asked.option("where", "total > 2").option("rowsPerSecond", "100k").load(str(shop))
    spark_channel.explain(limited.filter("id > 3"))
    shown = capsys.readouterr().out
    assert shown.startswith(
        f"channel: sqlite {shop}#orders\n  columns: id\n  where: total > 2\n  limit 100k rows/s for the whole job\n\n"
    )
    assert "== Physical Plan ==" in shown
    assert "(id#" in shown.partition("== Physical Plan ==")[2], "what Spark filters is in its plan"


@pytest.mark.spark
def test_each_scan_is_shown_and_what_is_not_ours_is_not(
    spark: SparkSession, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read = spark.read.format("channel").option("dbtable", "orders").load(str(shop))
    read.createOrReplaceTempView("orders_of_the_shop")
    twice = spark.sql(
        "SELECT id FROM orders_of_the_shop UNION ALL SELECT id FROM orders_of_the_shop"
    )
    spark_channel.explain(twice.union(spark.range(3)), mode="extended")
    shown = capsys.readouterr().out
    assert shown.count("channel: sqlite ") == 2
    assert "== Parsed Logical Plan ==" in shown
    spark_channel.explain(spark.range(3).toDF("id"))
    assert "channel" not in capsys.readouterr().out


@pytest.mark.spark
def test_a_stream_is_shown(
    spark: SparkSession, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = (
        spark.readStream.format("channel").option("dbtable", "orders").option("cursorColumn", "id")
    )
    spark_channel.explain(stream.option("rowsPerSecond", 500).load(str(shop)))
    assert capsys.readouterr().out.startswith(
        f"channel: sqlite {shop}#orders\n  columns: all\n  where: all rows\n  limit 500 rows/s for the whole job\n"
    )


def test_a_login_is_not_shown() -> None:
    shown = "\n".join(
        scan_lines(
            {
                "url": "postgresql://ada:secret@db:5432/shop",
                "dbtable": "orders",
                "password": "secret",
            }
        )
    )
    assert shown.startswith("channel: postgresql postgresql://db:5432/shop#orders\n")
    assert "secret" not in shown
    assert shown.endswith("\n  no limit")


def test_spark_connect_is_told_apart() -> None:
    with pytest.raises(
        UnsupportedError, match=r"is of Spark Connect: df\.explain\(\) shows Spark's part"
    ):
        spark_channel.explain(cast(DataFrame, SimpleNamespace()))
