"""The Delta connector keeps the contract that every connector keeps."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable

from spark_channel.testing import reader_conformance, writer_conformance
from tests.connectors.delta.helpers import leftovers, reader_of, rows_by_deltalake, write, writer_of

pytestmark = pytest.mark.real_server("deltalake", "delta")


def test_the_reader(tmp_path: Path) -> None:
    table = pa.table({"id": range(600), "name": [f"name {n}" for n in range(600)]})
    write(tmp_path / "t", *[table.slice(n * 120, 120) for n in range(5)])
    reader_conformance(partial(reader_of, tmp_path / "t", splitBytes="800"), expected=table)
    some = table.filter(pc.less(table["id"], 140))
    reader_conformance(partial(reader_of, tmp_path / "t", where="id < 140"), expected=some)


def test_a_partitioned_table(tmp_path: Path) -> None:
    table = pa.table({"day": [f"2024-01-0{n % 3 + 1}" for n in range(300)], "id": range(300)})
    write(tmp_path / "t", table, partitionBy="day")
    assert DeltaTable(str(tmp_path / "t")).metadata().partition_columns == ["day"]
    reader_conformance(partial(reader_of, tmp_path / "t"), expected=table)
    some = table.filter(pc.equal(table["day"], "2024-01-02"))
    reader_conformance(
        partial(reader_of, tmp_path / "t", where="day = '2024-01-02'"), expected=some
    )


def test_an_empty_table(tmp_path: Path) -> None:
    nothing = pa.schema([("id", pa.int64()), ("name", pa.string())]).empty_table()
    write(tmp_path / "t", nothing)
    reader_conformance(partial(reader_of, tmp_path / "t"), expected=nothing)


@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
@pytest.mark.parametrize("partition", [None, "name"])
def test_the_writer(tmp_path: Path, there: bool, partition: str | None) -> None:
    path = tmp_path / "t"
    options: dict[str, Any] = {} if partition is None else {"partitionBy": partition}
    if there:
        write(path, pa.table({"id": [0], "name": ["name 0"]}), **options)

    def seen() -> pa.Table | None:
        return rows_by_deltalake(path) if (path / "_delta_log").exists() else None

    writer_conformance(
        partial(writer_of, path, **options),
        read_back=seen,
        commits=["job"],
        leftovers=lambda: leftovers(path),
    )
