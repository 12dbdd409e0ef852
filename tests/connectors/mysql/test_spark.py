"""Round trips through Spark, and what the server sees of them."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.connectors.mysql.shop import Shop

pytestmark = [pytest.mark.spark, pytest.mark.newest]


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_round_trip(spark: SparkSession, shop: Shop, commit: str) -> None:
    frame = spark.range(10_000).selectExpr(
        "id",
        "concat('n', id) AS name",
        "CAST(CAST(id AS DECIMAL(20,4)) / 3 AS DECIMAL(30,10)) AS part",
        "timestamp_micros(1000000 + id) AS at",
        "IF(id % 3 = 0, NULL, id % 2 = 0) AS even",
        "id / 7e0D AS share",
    )
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


@pytest.mark.timeout(300)
def test_a_stream_of_the_binary_log_continues_when_it_is_started_again(
    spark: SparkSession, logged: Shop, tmp_path: Path
) -> None:
    logged.sql(
        "CREATE TABLE source (id BIGINT PRIMARY KEY, item VARCHAR(40), n DECIMAL(12,2), at DATETIME(6));"
        "CREATE TABLE target LIKE source; INSERT INTO source SELECT seq, 'old', seq, NOW(6) FROM seq_1_to_3000"
    )

    def catch_up() -> list[int]:
        source = {
            **logged.login,
            "dbtable": "source",
            "binlog": "true",
            "maxRowsPerTrigger": "1000",
        }
        frame = spark.readStream.format("channel").options(**source, channels="1").load()
        target = {**logged.login, "dbtable": "target", "writeMode": "apply", "keyColumns": "id"}
        query = (
            frame.drop("_lsn", "_commit_ts")
            .writeStream.format("channel")
            .options(**target, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        rows = "SELECT * FROM {} ORDER BY id"
        assert logged.rows(rows.format("target")) == logged.rows(rows.format("source"))
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    assert sum(catch_up()) == 3000
    logged.sql(
        "UPDATE source SET item = 'é', at = NOW(6) WHERE id <= 500; DELETE FROM source WHERE id > 2900;"
        "UPDATE source SET id = id + 10000 WHERE id BETWEEN 600 AND 700;"
        "INSERT INTO source VALUES (5000, NULL, 1.25, NULL)"
    )
    assert sum(catch_up()) == 500 + 100 + 2 * 101 + 1
    assert catch_up() == []
