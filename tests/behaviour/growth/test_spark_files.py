"""How many files a DataFrame of few rows makes, whatever its partitions."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from tests.connectors.iceberg.helpers import options_of, shop

pytestmark = [pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(280)]


def save(frame: DataFrame, form: str, mode: str = "append", **options: str) -> None:
    frame.write.format("channel").options(writer=form, **options).mode(mode).save()


def listed(path: Path) -> int:
    """The files that the log of a folder names; no others are there."""
    entry = max((path / "_spark_channel").glob("*.json"))
    names = {file["path"] for file in json.loads(entry.read_text())["state"]["files"]}
    assert names == {each.name for each in path.iterdir() if each.name.startswith("part-")}
    return len(names)


@pytest.mark.parametrize("form", ["parquet", "csv", "json", "orc", "arrow"])
def test_ten_rows_of_nine_partitions_are_one_file(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    ten = spark.range(0, 10, 1, 9)
    for number in (1, 2):
        save(ten, form, path=str(tmp_path / "t"))
        assert listed(tmp_path / "t") == number
    save(ten, form, "overwrite", path=str(tmp_path / "t"))
    assert listed(tmp_path / "t") == 1
    there = spark.read.format("channel").option("reader", form).load(str(tmp_path / "t"))
    assert sorted(row.id for row in there.collect()) == list(range(10))


def test_a_delta_table_gets_one_file_for_each_partition_value(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    rows = spark.range(0, 100, 1, 9).selectExpr("id", "id % 3 AS part")
    save(rows, "delta", path=path, partitionBy="part")
    files = DeltaTable(path).file_uris()
    assert len(files) == 3
    found = sorted(
        (row["id"], row["part"]) for row in DeltaTable(path).to_pyarrow_table().to_pylist()
    )
    assert found == [(number, number % 3) for number in range(100)]
    more = spark.range(50, 150, 1, 9).selectExpr("id", "id % 3 AS part")
    save(more, "delta", path=path, writeMode="upsert", keyColumns="id")
    assert sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist()) == list(range(150))
    staged = [each for each in tmp_path.rglob("*.parquet") if each.name.startswith("part-")]
    assert staged == []


def test_an_iceberg_table_gets_one_file(spark: SparkSession, tmp_path: Path) -> None:
    with shop(tmp_path) as catalog:
        save(spark.range(0, 100, 1, 9), "iceberg", **options_of(tmp_path, "shop.t"))
        table = catalog.load_table("shop.t")
        (task,) = table.scan().plan_files()
        assert task.file.record_count == 100
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(100))


@pytest.mark.parametrize(
    "form",
    [
        "parquet",
        "delta",
        *(pytest.param(form, marks=pytest.mark.soak) for form in ("csv", "json", "orc")),
    ],
)
def test_each_micro_batch_is_one_file(spark: SparkSession, tmp_path: Path, form: str) -> None:
    source, path = tmp_path / "source", tmp_path / "t"
    for _ in range(2):
        spark.range(0, 90, 1, 9).write.mode("append").parquet(str(source))
        query = (
            spark.readStream.schema("id long")
            .parquet(str(source))
            .repartition(7)
            .writeStream.format("channel")
            .options(writer=form, checkpointLocation=str(tmp_path / "state"))
            .trigger(availableNow=True)
            .start(str(path))
        )
        try:
            assert query.awaitTermination(200)
        finally:
            query.stop()
    if form == "delta":
        files = [Path(uri) for uri in DeltaTable(str(path)).file_uris()]
        assert [pq.read_metadata(each).num_rows for each in files] == [90, 90]
    else:
        assert listed(path) == 2
        assert spark.read.format("channel").option("reader", form).load(str(path)).count() == 180
