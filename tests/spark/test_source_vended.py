"""Iceberg tables of a REST catalog under Spark: executors write and read files with the keys that it vends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from tests.servers.vending_rest import VendingCatalog, vending_catalog

pytestmark = [pytest.mark.spark, pytest.mark.newest, pytest.mark.timeout(280)]


@pytest.fixture
def vending(tmp_path: Path) -> Iterator[VendingCatalog]:
    with vending_catalog(tmp_path) as found:
        yield found


def test_dataframes_round_trip(spark: SparkSession, vending: VendingCatalog) -> None:
    table = vending.options("shop.frames")

    def read() -> DataFrame:
        return spark.read.format("channel").options(reader="iceberg", **table).load()

    df = spark.range(0, 1000, numPartitions=4)
    once = {"txnAppId": "nightly", "txnVersion": "1"}
    for _ in range(2):
        df.write.format("channel").options(writer="iceberg", **table, **once).mode("append").save()
    assert (read().count(), read().distinct().count()) == (1000, 1000)
    df.limit(10).write.format("channel").options(writer="iceberg", **table).mode("overwrite").save()
    assert read().count() == 10
    shown = read()._jdf.queryExecution().toString()
    assert not [secret for secret in vending.secrets if secret in shown]
    assert vending.keys.seen()["refused"] == []
