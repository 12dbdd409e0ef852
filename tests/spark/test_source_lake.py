"""Delta and Iceberg tables under Spark: DataFrames, transfers and streams, without a jar."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from spark_channel import transfer
from tests.spark.test_write import TYPES

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from deltalake import DeltaTable

from tests.connectors.iceberg.helpers import options_of, shop

pytestmark = [pytest.mark.spark, pytest.mark.newest, pytest.mark.timeout(280)]


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The options of a table that is not there yet."""
    if request.param == "delta":
        return {"name": "delta", "path": str(tmp_path / "t")}
    with shop(tmp_path):
        return {"name": "iceberg", **options_of(tmp_path, "shop.t")}


def _read(spark: SparkSession, table: dict[str, str], **more: str) -> DataFrame:
    options = {name: value for name, value in table.items() if name != "name"}
    return spark.read.format("channel").options(reader=table["name"], **options, **more).load()


def _write(df: DataFrame, table: dict[str, str], mode: str = "append", **more: str) -> None:
    options = {name: value for name, value in table.items() if name != "name"}
    df.write.format("channel").options(writer=table["name"], **options, **more).mode(mode).save()


def test_dataframes_round_trip(spark: SparkSession, table: dict[str, str]) -> None:
    df = spark.sql(TYPES)
    if table["name"] == "iceberg":
        df = df.withColumn("t", df["t"].cast("int"))
    _write(df, table)
    again = _read(spark, table)
    assert again.schema.simpleString() == df.schema.simpleString()
    assert_df_equality(df, again, ignore_row_order=True, ignore_nullable=True)
    pair = {"txnAppId": "nightly", "txnVersion": "1"}
    for _ in range(2):
        _write(df, table, **pair)
    assert _read(spark, table).count() == 2000
    _write(df.limit(10), table, "overwrite")
    assert _read(spark, table, where="id >= 0", columns="id").count() == 10


def test_spark_reads_the_files_of_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql(TYPES)
    path = tmp_path / "t"
    _write(df, {"name": "delta", "path": str(path)})
    files = DeltaTable(str(path)).file_uris()
    assert_df_equality(df, spark.read.parquet(*files), ignore_row_order=True, ignore_nullable=True)


@pytest.mark.soak  # its parts are a transfer through Spark, and these targets
def test_transfers(spark: SparkSession, table: dict[str, str], tmp_path: Path) -> None:
    source: dict[str, Any] = {"name": "generator", "rows": 10_000}
    for _ in range(2):
        transfer(spark, source, {**table, "txnAppId": "nightly", "txnVersion": 1})
        assert _read(spark, table).count() == 10_000
    transfer(spark, table, {"name": "parquet", "path": str(tmp_path / "out")})
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10_000


@pytest.mark.parametrize(
    "table", [pytest.param("delta", marks=pytest.mark.soak), "iceberg"], indirect=True
)
def test_streams(spark: SparkSession, table: dict[str, str], tmp_path: Path) -> None:
    """New rows of a table, micro-batch by micro-batch, into another one; a query that is started again adds nothing."""
    _write(spark.range(100).toDF("id"), table)
    copy = dict(table)
    if table["name"] == "delta":
        copy["path"] = str(tmp_path / "copy")
    else:
        copy["dbtable"] = "shop.copy"
    options = {name: value for name, value in table.items() if name != "name"}
    sink = {name: value for name, value in copy.items() if name != "name"}
    checkpoint = str(tmp_path / f"checkpoint-{uuid.uuid4().hex}")

    def run() -> None:
        frame = (
            spark.readStream.format("channel")
            .options(
                reader=table["name"], startingOffsets="earliest", tunnelType="stream", **options
            )
            .load()
        )
        query = (
            frame.writeStream.format("channel")
            .options(writer=copy["name"], **sink)
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
    assert _read(spark, copy).count() == 100
    _write(spark.range(100, 150).toDF("id"), table)
    run()
    found = _read(spark, copy)
    assert (found.count(), found.distinct().count()) == (150, 150)
