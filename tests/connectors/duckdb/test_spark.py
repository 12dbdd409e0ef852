"""A round trip through Spark."""

import pytest
from pyspark.sql import SparkSession

from tests.connectors.duckdb.conftest import Duck

pytestmark = [pytest.mark.spark, pytest.mark.newest]


def test_a_round_trip(spark: SparkSession, duck: Duck) -> None:
    frame = spark.range(10_000).selectExpr(
        "id",
        "concat('n', id) AS name",
        "CAST(id AS DECIMAL(20,4)) / 3 AS part",
        "array(id) AS list",
        "timestamp_micros(id) AS at",
        "IF(id % 3 = 0, NULL, id % 2 = 0) AS even",
    )
    frame.write.format("channel").option("dbtable", "t").mode("append").save(str(duck.path))
    assert duck.sql("SELECT count(*), count(DISTINCT id), sum(id) FROM t") == [
        (10_000, 10_000, 49_995_000)
    ]
    back = spark.read.format("channel").option("dbtable", "t").load(str(duck.path))
    assert back.dtypes == frame.dtypes
    assert back.exceptAll(frame).count() == frame.exceptAll(back).count() == 0
    assert duck.staged() == []
