"""A replication on a Spark session: the same tables, with each task in Spark's workers."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_channel


@pytest.mark.spark
@pytest.mark.newest
def test_the_tables_are_copied_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PII_KEY", "0123456789abcdef0123")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(
            "CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT);"
            "INSERT INTO users VALUES (1, 'open-1'), (2, 'open-2');"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (1), (2), (3);"
        )
    file = {
        "source": {"url": f"sqlite:{tmp_path}/shop.db"},
        "target": {"path": str(tmp_path / "lake"), "writer": "parquet"},
        "defaults": {"columns": {"*.email": "hmac(${env:PII_KEY})"}},
        "streams": {"users": {}, "orders": {"mode": "incremental", "update_key": "id"}, "gone": {}},
        "limit": {"rows_per_second": "1k"},
    }
    for rows in ({"users": 2, "orders": 3}, {"users": 2, "orders": 0}):
        report = spark_channel.replicate(spark, file)
        found = {each.stream: each.rows for each in report.tables if each.state != "parked"}
        assert found == rows, [each.why for each in report.parked]
        assert [each.stream for each in report.parked] == ["gone"]
    lake = spark.read.format("channel").option("reader", "parquet")
    emails = lake.load(str(tmp_path / "lake" / "users")).collect()
    assert {row.id for row in emails} == {1, 2}
    assert all("open" not in row.email and len(row.email) == 64 for row in emails)
