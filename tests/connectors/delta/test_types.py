"""Every type both ways: deltalake and this reader read back what was written; values that do not fit are refused."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable

from spark_channel.errors import SchemaError, TargetError
from tests.connectors.delta.helpers import read, rows_by_deltalake, write

_TIME = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)
_ZONED = _TIME.replace(tzinfo=dt.UTC)
EXACT: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (pa.bool_(), pa.bool_(), [True, False]),
    (pa.int8(), pa.int8(), [-128, 127]),
    (pa.int16(), pa.int16(), [-(2**15), 2**15 - 1]),
    (pa.int32(), pa.int32(), [-(2**31), 2**31 - 1]),
    (pa.int64(), pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.uint8(), pa.int16(), [0, 255]),
    (pa.uint16(), pa.int32(), [0, 2**16 - 1]),
    (pa.uint32(), pa.int64(), [0, 2**32 - 1]),
    (pa.float16(), pa.float32(), [0.5, -2.0]),
    (pa.float32(), pa.float32(), [1.5, float("inf")]),
    (pa.float64(), pa.float64(), [0.1, -1e300]),
    (
        pa.decimal128(38, 10),
        pa.decimal128(38, 10),
        [Decimal("-1234567890123456789012345678.0123456789")],
    ),
    (pa.decimal128(5, 0), pa.decimal128(5, 0), [Decimal(99999)]),
    (pa.date32(), pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.timestamp("us"), pa.timestamp("us"), [_TIME, dt.datetime(1, 1, 1)]),
    (pa.timestamp("ms"), pa.timestamp("us"), [_TIME.replace(microsecond=123000)]),
    (pa.timestamp("ns"), pa.timestamp("us"), [_TIME]),
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), [_ZONED]),
    (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC"), [_ZONED]),
    (pa.string(), pa.string(), ["", "ü\n\0", "x" * 100]),
    (pa.large_string(), pa.string(), ["a"]),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), ["a", "b", "a"]),
    (pa.binary(), pa.binary(), [b"", b"\0\xff"]),
    (pa.binary(2), pa.binary(), [b"ab"]),
    (pa.list_(pa.int32()), pa.list_(pa.int32()), [[], [1, None]]),
    (pa.list_(pa.uint8(), 2), pa.list_(pa.int16()), [[1, 255]]),
    (
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [{"x": 1, "y": None}, {"x": None, "y": "a"}],
    ),
    (
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1), ("b", None)], []],
    ),
]
REFUSED = [
    pa.uint64(),
    pa.decimal256(40, 2),
    pa.time64("us"),
    pa.duration("s"),
    pa.month_day_nano_interval(),
    pa.null(),
    pa.date64(),
    pa.list_(pa.uint64()),
    pa.struct([("x", pa.time32("s"))]),
]


@pytest.mark.parametrize(("given", "kept", "values"), EXACT, ids=[str(case[0]) for case in EXACT])
def test_values_come_back(
    tmp_path: Path, given: pa.DataType, kept: pa.DataType, values: list[Any]
) -> None:
    path = tmp_path / "t"
    column = pa.array([*values, None], pa.float32() if pa.types.is_float16(given) else given)
    table = pa.table({"n": range(len(values) + 1), "x": column.cast(given)})
    write(path, table)
    write(path, table)  # into a table that is there
    expected = table["x"].to_pylist() * 2
    for found in (read(path), rows_by_deltalake(path)):
        rows = found["x"].to_pylist()
        assert sorted(rows, key=repr) == sorted(expected, key=repr)
    assert read(path).schema.field("x").type.equals(kept)


_STRUCT = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
_NESTED: list[tuple[str, pa.DataType, Any]] = [
    ("x.a", _STRUCT, lambda value: value),
    ("x.element.a", pa.list_(pa.field("element", _STRUCT)), lambda value: [value]),
    ("x.value.a", pa.map_(pa.string(), _STRUCT), lambda value: [("k", value)]),
    ("x.s.a", pa.struct([("s", _STRUCT)]), lambda value: {"s": value}),
    (
        "x.value.element.a",
        pa.map_(pa.string(), pa.list_(pa.field("element", _STRUCT))),
        lambda value: [("k", [value, {"a": 1, "b": None}]), ("l", None)],
    ),
]


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    return pa.list_(_nullable(kind.value_type)) if pa.types.is_list(kind) else kind


def _as_spark_sends(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Each field of a NULL struct is NULL, as Spark and Parquet have it; pyarrow makes it 0."""
    file = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": pa.array(values, _nullable(kind))}), file)
    return pq.read_table(pa.BufferReader(file.getvalue()))["x"].combine_chunks()


@pytest.mark.parametrize(("place", "kind", "around"), _NESTED, ids=[case[0] for case in _NESTED])
def test_a_null_struct_has_no_field_that_is_not_null(
    tmp_path: Path, place: str, kind: pa.DataType, around: Any
) -> None:
    path = tmp_path / "t"
    given = _as_spark_sends([around(None), around({"a": 5, "b": "x"}), None], kind)
    DeltaTable.create(str(path), pa.schema([("id", pa.int64()), pa.field("x", kind)]))
    write(path, pa.table({"id": [1, 2, 3], "x": given}))
    later = pa.table({"id": [3, 4], "x": given.slice(0, 2)})
    write(path, later, writeMode="upsert", keyColumns="id")
    expected = [given[number].as_py() for number in (0, 1, 0, 1)]
    for found in (read(path), rows_by_deltalake(path)):
        rows = sorted(zip(found["id"].to_pylist(), found["x"].to_pylist(), strict=True))
        assert rows == list(enumerate(expected, 1))
    wrong = _as_spark_sends([around({"a": None, "b": "x"})], kind)
    with pytest.raises(
        TargetError, match=rf"column '{place}' holds NULL, and .* does not allow it"
    ):
        write(path, pa.table({"id": [9], "x": wrong}))


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_types_that_delta_lacks_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    with pytest.raises(
        SchemaError, match=r"column 'x' of type .* has no exact counterpart in Delta"
    ):
        write(tmp_path / "t", pa.table({"n": [1], "x": pa.nulls(1, kind)}))
    assert not (tmp_path / "t").exists()


def test_a_table_is_not_made_unreadable_by_local_times_inside_a_map(tmp_path: Path) -> None:
    """deltalake notes the table feature of such times for columns, lists and structs alone."""
    time, path = pa.timestamp("us"), tmp_path / "t"
    pairs = pa.array([[("a", [dt.datetime(2024, 1, 31)])]], pa.map_(pa.string(), pa.list_(time)))
    with pytest.raises(SchemaError, match=r"column 'm' is map<.*timestampNtz"):
        write(path, pa.table({"n": [1], "m": pairs}))
    assert not path.exists()
    write(path, pa.table({"n": [1]}))
    with pytest.raises(SchemaError, match=r"column 'm' is map<.*timestampNtz"):
        write(path, pa.table({"n": [2], "m": pairs}), onSchemaChange="evolve")
    for number, kind in enumerate((time, pa.list_(time), pa.struct([("t", time)]))):
        other = tmp_path / str(number)
        write(other, pa.table({"n": [1]}))
        write(other, pa.table({"n": [2], "x": pa.nulls(1, kind)}), onSchemaChange="evolve")
        write(other, pa.table({"n": [3], "m": pairs}), onSchemaChange="evolve")
        assert sorted(read(other)["n"].to_pylist()) == [1, 2, 3]
        assert pairs[0].as_py() in read(other)["m"].to_pylist()


def test_values_that_would_be_cut_are_refused(tmp_path: Path) -> None:
    fine = pa.table({"x": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(TargetError, match="column 'x' holds a value that does not fit timestamp"):
        write(tmp_path / "t", fine)


def test_types_that_a_table_does_not_hold_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, pa.table({"x": pa.array([1], pa.int32())}))
    write(path, pa.table({"x": pa.array([2], pa.int16())}))
    for kind in (pa.int64(), pa.uint32(), pa.float64(), pa.string()):
        with pytest.raises(SchemaError, match=f"column 'x' is {kind}, and .* has it as int32"):
            write(path, pa.table({"x": pa.nulls(1, kind)}))
    assert sorted(read(path)["x"].to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.int8(), -3), (pa.int64(), 2**60), (pa.date32(), dt.date(2024, 2, 29)), (pa.bool_(), True)],
)
def test_partition_columns_of_each_type(tmp_path: Path, kind: pa.DataType, value: Any) -> None:
    path = tmp_path / "t"
    table = pa.table({"p": pa.array([value, None], kind), "id": [1, 2]})
    write(path, table, partitionBy="p")
    for found in (read(path), rows_by_deltalake(path)):
        assert found.sort_by("id").select(["p", "id"]).to_pylist() == table.to_pylist()
    write(path, table, overwrite=True)
    assert read(path).num_rows == 2


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.timestamp("us"), pa.binary(), pa.decimal128(5, 2)], ids=str
)
def test_partition_columns_without_an_exact_text_are_refused(
    tmp_path: Path, kind: pa.DataType
) -> None:
    with pytest.raises(SchemaError, match="partition column 'p'"):
        write(tmp_path / "t", pa.table({"p": pa.nulls(1, kind), "id": [1]}), partitionBy="p")
