"""A round trip through Spark, by SQLite's driver."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.newest]


def test_a_round_trip(spark: SparkSession, tmp_path: Path) -> None:
    options = {"driver": "sqlite", "uri": f"file:{tmp_path / 'shop.sqlite'}", "dbtable": "t"}
    frame = (
        spark.range(1000)
        .selectExpr("id", "concat('n', id) AS name", "id / 7e0D AS share")
        .coalesce(1)
    )
    frame.write.format("channel").options(**options, writer="adbc").mode("append").save()
    back = spark.read.format("channel").options(**options, reader="adbc").load()
    assert back.dtypes == frame.dtypes
    assert back.exceptAll(frame).count() == frame.exceptAll(back).count() == 0
