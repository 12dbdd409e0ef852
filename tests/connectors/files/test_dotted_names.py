"""Columns whose names have dots, beside structs and lists whose fields have the same paths."""

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import spark_channel
from spark_channel.errors import ChannelError
from tests.connectors.files.helpers import read

BESIDE: dict[str, list[Any]] = {
    "struct before": [{"x": 7, "b": 100}, {"x": 7, "b": 101}, {"x": 7, "b": 102}],
    "list before": [[100], [101], [102]],
}
NAMES = {"struct before": "a.b", "list before": "a.list.element"}


def _table(beside: str, *, behind: bool) -> tuple[str, pa.Table]:
    name = NAMES[beside]
    columns = {"a": pa.array(BESIDE[beside]), name: pa.array([1, 5, 9])}
    order = ["a", name] if behind else [name, "a"]
    return name, pa.table({each: columns[each] for each in order})


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("beside", list(BESIDE))
@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_a_column_is_not_the_field_of_its_path(
    tmp_path: Path, form: str, beside: str, behind: bool
) -> None:
    name, table = _table(beside, behind=behind)
    file = tmp_path / f"t.{form}"
    (pq.write_table if form == "parquet" else orc.write_table)(table, file)
    assert read(form, file).to_pydict() == table.to_pydict()
    assert read(form, file, columns=name).to_pydict() == {name: [1, 5, 9]}
    assert read(form, file, columns="a").to_pydict() == {"a": BESIDE[beside]}
    for value in (1, 5, 9):
        found = read(form, file, columns=name, where=f'"{name}" = {value}')
        assert found.to_pydict() == {name: [value]}


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("beside", list(BESIDE))
def test_other_readers_find_the_rows_of_a_delta_table(
    tmp_path: Path, beside: str, behind: bool
) -> None:
    name, table = _table(beside, behind=behind)
    pq.write_table(table, tmp_path / "s.parquet")
    spark_channel.transfer(
        None,
        {"path": str(tmp_path / "s.parquet")},
        {"name": "delta", "path": str(tmp_path / "t")},
    )
    rows = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_dataset()
    for value in (1, 5, 9):
        assert rows.to_table(filter=ds.field(name) == value).num_rows == 1


@pytest.mark.parametrize("name", [".a", "row", "[0]"])
def test_a_partition_column_of_a_name_that_arrow_takes_for_a_path(
    tmp_path: Path, name: str
) -> None:
    table = pa.table({name: ["x", "y", "x"], "id": [1, 2, 3]})
    pq.write_table(table, tmp_path / "s.parquet")
    target = {"name": "delta", "path": str(tmp_path / "t"), "partitionBy": f"`{name}`"}
    spark_channel.transfer(None, {"path": str(tmp_path / "s.parquet")}, target)
    found = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().sort_by("id")
    assert found.select(table.column_names).to_pydict() == table.to_pydict()


def test_json_sees_a_rounded_number_in_a_column_with_a_dot(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    lines = ['{"a.b": 0.5}'] * 3 + ['{"a.b": 0.1234567890123456789012}']
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(ChannelError, match=r"'a\.b'"):
        read("json", file, sampleBytes="20")
