"""Files of one folder whose columns have other types or spellings: equal values, or an error that names them."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from spark_channel.errors import SchemaError, SourceError
from tests.connectors.files.helpers import read, read_all, reader_of


def write_file(form: str, path: Path, table: pa.Table) -> None:
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "orc":
        orc.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)


@pytest.mark.parametrize("form", ["parquet", "arrow", "orc"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1.5], pa.float32()), 1.123456789012),
        (pa.array([1.5], pa.float32()), 1e300),
        (pa.array([Decimal("1.23")]), 1.2345),
        (pa.array([dt.date(2024, 1, 1)]), dt.datetime(2024, 1, 1, 13, 5)),
        (pa.array([True]), 5),
        (pa.array([5]), "007"),
        (pa.array([1]), dt.datetime(2024, 1, 1)),
        (pa.array([{"x": [True]}]), {"x": [5]}),
    ],
)
def test_a_value_that_the_first_file_has_no_type_for_is_refused_by_file_and_column(
    tmp_path: Path, form: str, first: pa.Array, second: Any
) -> None:
    write_file(form, tmp_path / f"1.{form}", pa.table({"v": first}))
    write_file(form, tmp_path / f"2.{form}", pa.table({"v": pa.array([second])}))

    with pytest.raises(SourceError) as raised:
        read(form, tmp_path)

    message = str(raised.value)
    assert f"2.{form}" in message
    assert "'v'" in message
    assert repr(second if not isinstance(second, dict) else 5) in message


def test_equal_values_of_other_types_are_read(tmp_path: Path) -> None:
    write_file("parquet", tmp_path / "1.parquet", pa.table({"v": pa.array([1.5], pa.float32())}))
    write_file("parquet", tmp_path / "2.parquet", pa.table({"v": pa.array([7, None])}))
    write_file("parquet", tmp_path / "3.parquet", pa.table({"v": pa.nulls(1, pa.string())}))

    assert read("parquet", tmp_path)["v"].to_pylist() == [1.5, 7.0, None, None]


def test_columns_that_differ_in_case_alone_are_all_read(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "A": ["x"], "Other": [2.5]})
    write_file("parquet", tmp_path / "1.parquet", table)
    reader = reader_of("parquet", tmp_path)

    again = reader_of("parquet", tmp_path).with_schema(reader.schema())

    assert read_all(reader).equals(table)
    assert read_all(again).equals(table)
    write_file("parquet", tmp_path / "2.parquet", pa.table({"OTHER": [1.5], "other": [2.5]}))
    with pytest.raises(SchemaError, match="'OTHER' or 'other'"):
        read("parquet", tmp_path)
