"""Every type that Arrow has: files of it are read with equal values in a type that targets hold, or refused by name."""

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.errors import SchemaError
from tests.connectors.files.helpers import FORMATS, read, read_all, reader_of, write

ONE = uuid.UUID(int=1)
UUIDS = pa.array([ONE.bytes, None, ONE.bytes], pa.uuid())
DICTIONARY = pa.dictionary(pa.int8(), pa.string())
TENSOR = pa.fixed_shape_tensor(pa.int32(), [2])

READ: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
    (UUIDS, pa.string(), [str(ONE), None, str(ONE)]),
    (pa.array([1, None, 0], pa.bool8()), pa.bool_(), [True, None, False]),
    (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
    (pa.array([["a"], None], pa.list_(DICTIONARY)), pa.list_(pa.string()), [["a"], None]),
    (pa.array(["a", None], pa.string_view()), pa.string(), ["a", None]),
    (pa.array([b"a", None], pa.binary_view()), pa.binary(), [b"a", None]),
    (pa.array([[1], None, []], pa.list_view(pa.int8())), pa.list_(pa.int8()), [[1], None, []]),
    (pa.array([["a"]], pa.large_list_view(pa.string_view())), pa.large_list(pa.string()), [["a"]]),
    (
        pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", None])),
        pa.string(),
        ["a", "a", None],
    ),
    (
        pa.ExtensionArray.from_storage(TENSOR, pa.array([[1, 2], None], pa.list_(pa.int32(), 2))),
        pa.list_(pa.int32(), 2),
        [[1, 2], None],
    ),
    (
        pa.ListArray.from_arrays(
            pa.array([0, 1, 1, 3], pa.int32()), UUIDS, mask=pa.array([False, True, False])
        ),
        pa.list_(pa.string()),
        [[str(ONE)], None, [None, str(ONE)]],
    ),
    (
        pa.StructArray.from_arrays([UUIDS], ["u"], mask=pa.array([False, False, True])),
        pa.struct([("u", pa.string())]),
        [{"u": str(ONE)}, {"u": None}, None],
    ),
    (
        pa.MapArray.from_arrays(
            pa.array([0, 2, None, 3], pa.int32()), pa.array(list("abc")), UUIDS
        ),
        pa.map_(pa.string(), pa.string()),
        [[("a", str(ONE)), ("b", None)], [("c", str(ONE))], None],
    ),
    (
        pa.FixedSizeListArray.from_arrays(UUIDS, 1, mask=pa.array([True, False, False])),
        pa.list_(pa.string(), 1),
        [None, [None], [str(ONE)]],
    ),
]
if hasattr(pa, "json_"):  # from pyarrow 19 on, as short decimals
    decimals = pa.list_(pa.decimal64(9, 2))
    READ += [
        (pa.array(['{"a": 1}', None], pa.json_()), pa.string(), ['{"a": 1}', None]),
        (pa.array([1, None], pa.decimal32(5, 2)), pa.decimal128(5, 2), [Decimal(1), None]),
        (pa.array([[1]], decimals), pa.list_(pa.decimal128(9, 2)), [[Decimal(1)]]),
    ]


@pytest.mark.parametrize(("values", "kind", "expected"), READ)
def test_a_type_that_targets_do_not_know_is_read_as_one_that_they_hold(
    tmp_path: Path, values: pa.Array, kind: pa.DataType, expected: list[Any]
) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"v": pa.chunked_array([values, values.slice(1)])})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)

    found = read("arrow", path)

    found.validate(full=True)
    assert found.schema.field("v").type == kind
    assert found["v"].to_pylist() == expected + expected[1:]


def test_bytes_of_a_uuid_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": UUIDS}), tmp_path / "a.parquet")
    reader = reader_of("parquet", tmp_path).with_schema(pa.schema([("v", pa.binary())]))
    assert read_all(reader)["v"].to_pylist() == [ONE.bytes, None, ONE.bytes]


def test_types_of_other_writers_of_parquet_are_read_as_they_show_them(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    duckdb.sql(
        f"COPY (SELECT '{ONE}'::UUID AS u, '{{\"a\":1}}'::JSON AS j, INTERVAL '14 months 3 days 4.5 seconds' AS i, "
        f"[UUID '{ONE}'] AS deep) TO '{path}' (FORMAT parquet)"
    )

    assert read("parquet", path).to_pylist() == [
        {"u": str(ONE), "j": '{"a":1}', "i": "P14M3DT4.5S", "deep": [str(ONE)]}
    ]
    assert read("parquet", path, where=f"u = '{ONE}'").num_rows == 1
    assert read("parquet", path, where="u = 'x'").num_rows == 0


UNION = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array("ab")])
REFUSED = {
    "union": UNION,
    "calendar": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "negative scale": pa.array([Decimal("1E3"), None], pa.decimal128(5, -2)),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("form", FORMATS)
def test_a_type_without_a_counterpart_is_refused_by_its_column(
    tmp_path: Path, form: str, what: str
) -> None:
    table = pa.table({"fine": [1, 2], "odd": REFUSED[what]})
    if form == "arrow" or (what == "negative scale" and form in ("csv", "json")):
        write(form, tmp_path / "out", table)
        assert read(form, tmp_path / "out").num_rows == 2
        return
    with pytest.raises(SchemaError, match="column 'odd'"):
        write(form, tmp_path / "out", table)


def test_days_of_other_types_are_equal(tmp_path: Path) -> None:
    day = dt.date(2024, 2, 29)
    pq.write_table(pa.table({"v": pa.array([day], pa.date64())}), tmp_path / "1.parquet")
    assert read("parquet", tmp_path)["v"].to_pylist() == [day]
