"""Round trips through Spark, and what the server sees of them."""

import pytest
from pyspark.sql import SparkSession

from tests.connectors.sql.mysql.conftest import Shop

pytestmark = [pytest.mark.spark, pytest.mark.newest]


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_round_trip(spark: SparkSession, shop: Shop, commit: str) -> None:
    frame = spark.range(10_000).selectExpr(
        "id", "concat('n', id) AS name", "CAST(CAST(id AS DECIMAL(20,4)) / 3 AS DECIMAL(30,10)) AS part",
        "timestamp_micros(1000000 + id) AS at", "IF(id % 3 = 0, NULL, id % 2 = 0) AS even", "id / 7e0D AS share",
    )  # fmt: skip
    write = frame.write.format("channel").options(**shop.login, dbtable="t", commit=commit)
    write.mode("append").save()
    assert shop.rows("SELECT COUNT(*), COUNT(DISTINCT id), SUM(id) FROM t") == [
        ("10000", "10000", "49995000")
    ]
    back = spark.read.format("channel").options(**shop.login, dbtable="t").load()
    assert back.dtypes == frame.dtypes
    assert back.exceptAll(frame).count() == frame.exceptAll(back).count() == 0
    assert back.limit(3).count() == 3
    assert shop.staged() == []
