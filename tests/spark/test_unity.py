"""Delta tables of Unity Catalog under Spark: executors get credentials from the driver, and renew them themselves."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_channel import transfer

pytest.importorskip("deltalake")
pytest.importorskip("obstore")

from tests.servers.unity import TOKEN, UnityServer, unity_server

pytestmark = [pytest.mark.spark, pytest.mark.newest, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def unity() -> Iterator[UnityServer]:
    with unity_server() as found:
        yield found


def _read(spark: SparkSession, unity: UnityServer, uri: str) -> DataFrame:
    return spark.read.format("channel").options(reader="delta", **unity.options()).load(uri)


def _write(df: DataFrame, unity: UnityServer, uri: str, mode: str = "append", **more: str) -> None:
    df.write.format("channel").options(writer="delta", **unity.options(), **more).mode(mode).save(
        uri
    )


def test_dataframes_round_trip(spark: SparkSession, unity: UnityServer) -> None:
    uri = unity.add("main.spark.frames")
    df = spark.range(0, 1000, numPartitions=4)
    for _ in range(2):
        _write(df, unity, uri, txnAppId="nightly", txnVersion="1")
    found = _read(spark, unity, uri)
    assert (found.count(), found.distinct().count()) == (1000, 1000)
    _write(df.limit(10), unity, uri, "overwrite")
    found = _read(spark, unity, uri)
    assert found.count() == 10
    shown = found._jdf.queryExecution().toString()
    assert not [secret for secret in (TOKEN, *unity.secrets) if secret in shown]
    assert unity.keys.seen()["refused"] == []


def test_a_transfer_that_outlives_its_credentials(
    spark: SparkSession, unity: UnityServer, tmp_path: Path
) -> None:
    """Limited, so that tasks begin files, and ask for their run's notes, after the first credentials expired."""
    uri = unity.add("main.spark.transfer")
    unity.life = 4.0
    source = {"name": "generator", "rows": 24_000}
    target = {
        "name": "delta",
        "path": uri,
        "txnAppId": "nightly",
        "txnVersion": 1,
        "maxBytesPerFile": "50kB",
    }
    try:
        unity.vended.clear()
        report = transfer(spark, {**source, "rowsPerSecond": 3000}, {**target, **unity.options()})
        assert unity.vended.count("READ_WRITE") >= 3
        vended = len(unity.vended)
        transfer(spark, source, {**target, **unity.options()})
        assert _read(spark, unity, uri).count() == 24_000
        assert len(unity.vended) > vended
    finally:
        unity.life = 3600.0
    assert uri in str(report.to_dict() if hasattr(report, "to_dict") else report)
    assert not [secret for secret in (TOKEN, *unity.secrets) if secret in repr(report)]
    transfer(
        spark,
        {"name": "delta", "path": uri, **unity.options()},
        {"name": "parquet", "path": str(tmp_path / "out")},
    )
    assert spark.read.parquet(str(tmp_path / "out")).count() == 24_000
    assert unity.keys.seen()["refused"] == []


def test_streams(spark: SparkSession, unity: UnityServer, tmp_path: Path) -> None:
    uri, copy = unity.add("main.spark.rows"), unity.add("main.spark.copy")
    _write(spark.range(100).toDF("id"), unity, uri)
    checkpoint = str(tmp_path / f"checkpoint-{uuid.uuid4().hex}")

    def run() -> None:
        frame = (
            spark.readStream.format("channel")
            .options(
                reader="delta", startingOffsets="earliest", tunnelType="stream", **unity.options()
            )
            .load(uri)
        )
        query = (
            frame.writeStream.format("channel")
            .options(writer="delta", path=copy, **unity.options())
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    run()
    run()
    _write(spark.range(100, 150).toDF("id"), unity, uri)
    run()
    found = _read(spark, unity, copy)
    assert (found.count(), found.distinct().count()) == (150, 150)
