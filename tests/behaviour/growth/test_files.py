"""How many files a job of few rows makes: each later reader opens them all."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

import spark_channel
from spark_channel.connectors.base import compaction
from tests.connectors.iceberg.helpers import create, options_of, shop

_FORMATS = {
    "parquet": "*.parquet",
    "csv": "*.csv",
    "json": "*.json*",
    "orc": "*.orc",
    "arrow": "*.arrow",
    "delta": "*.parquet",
}


def _source(path: Path, rows: int) -> Mapping[str, object]:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, part INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", ((n, n % 2) for n in range(rows)))
    return {"reader": "sqlite", "path": str(path), "dbtable": "t"}


def _copied(tmp_path: Path, form: str, rows: int, channels: int | None = None) -> int:
    """The files of a job without options of its own."""
    target = {"writer": form, "path": str(tmp_path / "out")}
    report = spark_channel.transfer(
        None, _source(tmp_path / "source.db", rows), target, channels=channels
    )
    assert report.rows == rows
    assert channels is None or report.tasks >= channels
    inside = (tmp_path / "out").rglob(_FORMATS[form])
    return sum(
        "_spark_channel" not in path.parts and "_delta_log" not in path.parts for path in inside
    )


@pytest.mark.parametrize("rows", [1, 10, 100, 1000])
@pytest.mark.parametrize("form", _FORMATS)
def test_few_rows_become_one_file(tmp_path: Path, form: str, rows: int) -> None:
    assert _copied(tmp_path, form, rows) == 1


def test_few_rows_become_one_file_for_each_partition_value(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64())])
    DeltaTable.create(str(tmp_path / "out"), Schema.from_arrow(schema), partition_by=["part"])
    assert _copied(tmp_path, "delta", 100) == 2


@pytest.mark.parametrize("divided", [False, True])
def test_few_rows_become_one_file_for_each_partition_value_of_iceberg(
    tmp_path: Path, divided: bool
) -> None:
    with shop(tmp_path) as catalog:
        columns = [pa.field("id", pa.int64(), False), pa.field("part", pa.int64())]
        create(catalog, "shop.t", pa.schema(columns))
        table = catalog.load_table("shop.t")
        if divided:
            with table.update_spec() as spec:
                spec.add_identity("part")
        target = {"writer": "iceberg", **options_of(tmp_path, "shop.t")}
        spark_channel.transfer(None, _source(tmp_path / "source.db", 100), target)
        files = [task.file for task in table.refresh().scan().plan_files()]
        assert sum(file.record_count for file in files) == 100
        assert len(files) == (2 if divided else 1)


def test_one_channel_makes_one_file_of_few_rows(tmp_path: Path) -> None:
    assert _copied(tmp_path, "parquet", 1000, channels=1) == 1


@pytest.mark.parametrize("form", _FORMATS)
def test_channels_that_the_user_asks_for_are_opened_and_make_one_file(
    tmp_path: Path, form: str
) -> None:
    assert _copied(tmp_path, form, 1000, channels=8) == 1


def test_more_rows_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FEW_ROWS", 999)
    assert _copied(tmp_path, "parquet", 1000) > 1
