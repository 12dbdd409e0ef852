"""The cast after which every value is equal, whatever the types, and however deep the value is."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.arrow_schema import InexactError, cast_exactly, numpy_name
from spark_channel.connectors.sql.catalog import Column, WriteColumn
from spark_channel.connectors.sql.write.encode import BadValueError, convert
from spark_channel.errors import SchemaError
from spark_channel.pipeline.dirty import row_text
from spark_channel.serialization import Number

NOW = dt.datetime(2024, 1, 1, 13, 5)
DAY = dt.date(2024, 1, 1)
NAN = float("nan")

CHANGED: list[tuple[Any, pa.DataType, pa.DataType]] = [
    (1.123456789012, pa.float64(), pa.float32()),
    (1e300, pa.float64(), pa.float32()),
    (1.1, pa.float32(), pa.float16()),
    (2**24 + 1, pa.int32(), pa.float32()),
    (2**53 + 1, pa.int64(), pa.float64()),
    (NAN, pa.float64(), pa.int64()),
    (1.5, pa.float64(), pa.int64()),
    (300, pa.int64(), pa.int8()),
    (-1, pa.int64(), pa.uint64()),
    (1.2345, pa.float64(), pa.decimal128(3, 2)),
    (50, pa.int64(), pa.decimal128(3, 2)),
    (Decimal("1.234"), pa.decimal128(4, 3), pa.decimal128(3, 2)),
    (Decimal("0.12345678901234567"), pa.decimal128(17, 17), pa.float64()),
    (NOW, pa.timestamp("us"), pa.date32()),
    (NOW, pa.timestamp("us"), pa.time64("us")),
    (NOW, pa.timestamp("us"), pa.int64()),
    (dt.datetime(2024, 1, 1, 0, 0, 0, 1), pa.timestamp("us"), pa.timestamp("ms")),
    (dt.datetime(9999, 12, 31), pa.timestamp("us"), pa.timestamp("ns")),
    (NOW, pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (NOW, pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (DAY, pa.date32(), pa.timestamp("us")),
    (DAY, pa.date32(), pa.int32()),
    (dt.time(1, 2, 3, 4), pa.time64("us"), pa.time32("s")),
    (dt.timedelta(days=1), pa.duration("us"), pa.int64()),
    (5, pa.int64(), pa.bool_()),
    (True, pa.bool_(), pa.int64()),
    (5, pa.int64(), pa.string()),
    ("007", pa.string(), pa.int64()),
    ("5", pa.string(), pa.int64()),
    ("2024-01-01", pa.string(), pa.date32()),
    ("a", pa.string(), pa.binary()),
    (b"a", pa.binary(), pa.string()),
]
EQUAL: list[tuple[Any, pa.DataType, pa.DataType]] = [
    (1.5, pa.float64(), pa.float32()),
    (1.5, pa.float16(), pa.float32()),
    (NAN, pa.float64(), pa.float32()),
    (float("-inf"), pa.float64(), pa.float32()),
    (2**53, pa.int64(), pa.float64()),
    (5.0, pa.float64(), pa.int8()),
    (5, pa.int64(), pa.decimal128(3, 2)),
    (2**64 - 1, pa.uint64(), pa.decimal128(20, 0)),
    (Decimal("9.50000"), pa.decimal128(6, 5), pa.decimal128(3, 2)),
    (Decimal("9.00"), pa.decimal128(3, 2), pa.int32()),
    (NOW, pa.timestamp("us"), pa.timestamp("s")),
    (DAY, pa.date32(), pa.date64()),
    (dt.time(1, 2), pa.time64("ns"), pa.time32("s")),
    ("a", pa.string(), pa.large_string()),
    ("a", pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (b"a", pa.binary(1), pa.binary()),
    (None, pa.string(), pa.int64()),
    (None, pa.null(), pa.list_(pa.int64())),
]


def nested(value: Any, kind: pa.DataType) -> list[tuple[Any, pa.DataType]]:
    """The value inside a list, a struct, a map and all of them."""
    return [
        ([value], pa.list_(kind)),
        ([value, value], pa.list_(kind, 2)),
        ({"x": value}, pa.struct([("x", kind)])),
        ([("k", value)], pa.map_(pa.string(), kind)),
        ([{"x": [("k", value)]}], pa.list_(pa.struct([("x", pa.map_(pa.string(), kind))]))),
    ]


@pytest.mark.parametrize(("value", "given", "wanted"), CHANGED)
def test_a_value_that_would_change_is_refused_with_value_and_type(
    value: Any, given: pa.DataType, wanted: pa.DataType
) -> None:
    values = pa.concat_arrays([pa.nulls(3, given), pa.array([value], given)])

    with pytest.raises(InexactError) as raised:
        cast_exactly(values, wanted)

    assert str(wanted) in str(raised.value)
    assert repr(values[3].as_py()) in str(raised.value)


@pytest.mark.parametrize(("value", "given", "wanted"), CHANGED)
def test_a_value_inside_another_is_refused_too(
    value: Any, given: pa.DataType, wanted: pa.DataType
) -> None:
    for (deep, there), (_, here) in zip(nested(value, given), nested(value, wanted), strict=True):
        with pytest.raises(InexactError):
            cast_exactly(pa.array([None, deep], there), here)


@pytest.mark.parametrize(("value", "given", "wanted"), EQUAL)
def test_an_equal_value_is_cast(value: Any, given: pa.DataType, wanted: pa.DataType) -> None:
    if pa.types.is_float16(given):  # of Python's numbers not before pyarrow 21
        values = pa.array([None, value], pa.float32()).cast(given)
    else:
        values = pa.array([None, value], given)
    plain = values[1].as_py()

    made = cast_exactly(values, wanted)

    made.validate(full=True)
    assert made.type.equals(wanted)
    found = made.to_pylist()
    assert found[0] is None
    assert found[1] == plain or (plain != plain and found[1] != found[1])


@pytest.mark.parametrize("given", [pa.list_view(pa.int32()), pa.large_list_view(pa.int32())])
def test_a_list_view_is_refused_since_arrows_cast_loses_its_last_values(given: pa.DataType) -> None:
    values = pa.array([[1], None, [2, 3], [4]], given)
    for kind in (pa.list_(pa.int32()), pa.large_list(pa.int64())):
        with pytest.raises(InexactError, match="list_view"):
            cast_exactly(values, kind)
    assert cast_exactly(values, given).to_pylist() == values.to_pylist()


def test_a_field_of_a_struct_is_dropped_only_by_a_type_that_was_asked_for() -> None:
    both = pa.array([{"a": 1, "b": 2}])
    for kind in (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("c", pa.int64())])):
        with pytest.raises(InexactError, match="b"):
            cast_exactly(both, kind)
    chosen = cast_exactly(both, pa.struct([("a", pa.int64())]), declared=True)
    assert chosen.to_pylist() == [{"a": 1}]
    more = cast_exactly(pa.array([{"a": 1}]), both.type)
    assert more.to_pylist() == [{"a": 1, "b": None}]


def test_fields_inside_are_found_in_another_case() -> None:
    row = [{"A": 1, "b": [("k", {"C": 2})]}, None]
    values = pa.array(
        row,
        pa.struct([("A", pa.int64()), ("b", pa.map_(pa.string(), pa.struct([("C", pa.int8())])))]),
    )
    kind = pa.struct(
        [("B", pa.map_(pa.string(), pa.struct([("c", pa.int64())]))), ("a", pa.int32())]
    )
    for declared in (True, False):
        made = cast_exactly(values.slice(0), kind, declared=declared)
        assert made.to_pylist() == [{"B": [("k", {"c": 2})], "a": 1}, None]
    two = pa.array([{"Id": 1, "ID": 2}], pa.struct([("Id", pa.int64()), ("ID", pa.int64())]))
    with pytest.raises(SchemaError, match="'Id' or 'ID'"):
        cast_exactly(two, pa.struct([("id", pa.int64())]))


@pytest.mark.parametrize("wrap", ["struct", "list", "fixed", "large", "map", "struct in struct"])
def test_the_fields_of_a_struct_may_come_in_another_order_or_be_new(wrap: str) -> None:
    """Arrow casts neither before pyarrow 21 and 20."""

    def wrapped(kind: pa.DataType) -> pa.DataType:
        return {
            "struct": kind,
            "list": pa.list_(kind),
            "fixed": pa.list_(kind, 1),
            "large": pa.large_list(kind),
            "map": pa.map_(pa.string(), kind),
            "struct in struct": pa.struct([("s", kind)]),
        }[wrap]

    def value(row: dict[str, Any] | None) -> Any:
        if wrap == "struct":
            return row
        return [("k", row)] if wrap == "map" else {"s": row} if "struct" in wrap else [row]

    given = pa.struct([("a", pa.int32()), ("B", pa.int64())])
    wanted = pa.struct([("c", pa.string()), ("B", pa.int64()), ("a", pa.int64())])
    rows = [{"a": 1, "B": 2}, None, {"a": None, "B": 3}, {"a": 4, "B": 5}, None]
    values = pa.array([None, *map(value, rows), None, value(rows[0])], wrapped(given))[1:-1]

    made = cast_exactly(values, wrapped(wanted))

    made.validate(full=True)
    assert made.type == wrapped(wanted)
    assert made.to_pylist() == [
        *(value(row and {"c": None, "B": row["B"], "a": row["a"]}) for row in rows),
        None,
    ]
    strict = pa.struct([pa.field("c", pa.string(), nullable=False), ("B", pa.int64())])
    with pytest.raises(InexactError, match="struct<"):
        cast_exactly(values, wrapped(strict), declared=True)


def test_a_type_that_was_asked_for_may_be_the_text_or_the_bytes_of_a_value() -> None:
    for values, kind, expected in (
        (pa.array([7]), pa.string(), "7"),
        (pa.array([dt.time(1, 2, 3)]), pa.string(), "01:02:03.000000"),
        (pa.array(["é"]), pa.binary(), "é".encode()),
        (pa.array(["é".encode()]), pa.string(), "é"),
    ):
        assert cast_exactly(values, kind, declared=True).to_pylist() == [expected]
    with pytest.raises(InexactError):
        cast_exactly(pa.array([b"\xff"]), pa.string(), declared=True)
    with pytest.raises(InexactError):
        cast_exactly(pa.array(["007"]), pa.int64(), declared=True)


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_time_that_python_does_not_have_is_named(zone: str | None, inside: bool) -> None:
    values = pa.array([2**40 * 1000], pa.timestamp("ms", zone))
    kind: pa.DataType = pa.timestamp("ns", zone)
    if inside:
        values = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), values)
        kind = pa.list_(kind)
    with pytest.raises(InexactError, match="is not equal to any value"):
        cast_exactly(values, kind)


def test_an_error_of_a_time_has_all_its_digits() -> None:
    """Python's time of day ends at microseconds."""
    values = pa.array([45_296_123_456_789], pa.time64("ns"))
    with pytest.raises(InexactError, match=r"^12:34:56\.123456789 of type time64\[ns\]"):
        cast_exactly(values, pa.time64("us"))
    column = WriteColumn("at", Column("at", "time"), values.type)
    with pytest.raises(BadValueError) as refused:
        convert(values, pa.time64("us"), column)
    assert refused.value.value == "12:34:56.123456789"
    assert json.loads(row_text(pa.record_batch({"at": values}))) == {"at": "12:34:56.123456789"}


@pytest.mark.parametrize(
    "name",
    [
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        "float16",
        "float32",
        "float64",
    ],
)
def test_a_number_s_values_are_named_as_numpy_names_them(name: str) -> None:
    """Without pandas, which pyarrow 18 imports to say it."""
    np = pytest.importorskip("numpy")
    kind = pa.from_numpy_dtype(np.dtype(name))
    assert np.dtype(numpy_name(kind)) == np.dtype(name)


def test_the_value_inside_another_is_shown_with_all_its_digits() -> None:
    """Not the whole value, which is cut after a hundred characters, nor a time of Python, which has microseconds."""
    given, wanted = pa.time64("ns"), pa.time64("us")
    times = [0] * 50 + [45_296_123_456_789]
    entries = [(str(number), time) for number, time in enumerate(times)]
    deep: list[tuple[Any, pa.DataType, pa.DataType]] = [
        (times, pa.list_(given), pa.list_(wanted)),
        ({"a": 0, "x": times[-1]}, *(pa.struct([("a", k), ("x", k)]) for k in (given, wanted))),
        (entries, pa.map_(pa.string(), given), pa.map_(pa.string(), wanted)),
        (
            [{"m": entries}],
            *(pa.list_(pa.struct([("m", pa.map_(pa.string(), k))])) for k in (given, wanted)),
        ),
    ]
    for value, there, here in deep:
        with pytest.raises(InexactError) as raised:
            cast_exactly(pa.array([None, value], there), here)
        assert str(raised.value).startswith("12:34:56.123456789 of type time64[ns] is not equal to")


def test_the_last_digits_of_a_long_value_are_shown() -> None:
    value = Decimal("1" * 37 + "." + "1" * 38 + "9")
    text = "1" * 130 + ".5"
    with pytest.raises(InexactError, match=r"1119'\) of type decimal256"):
        cast_exactly(pa.array([value], pa.decimal256(76, 39)), pa.decimal128(38, 0))
    with pytest.raises(InexactError, match=r"'1+\.\.\.1+\.5' of type string is not equal"):
        cast_exactly(pa.array([text]), pa.int64())
    with pytest.raises(ValueError, match=r"'1\.1+\.\.\.1*E9999999999999999999' has an exponent"):
        Number(f"1.{text[:130]}E9999999999999999999")
