"""One form for equal values of two types, and hashes that see every changed bit."""

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.errors import SchemaError
from spark_channel.verification.forms import Form, common_form
from spark_channel.verification.hashes import hash_columns, hash_values
from spark_channel.verification.ordinals import has_ordinals

EQUAL: list[tuple[list[Any], pa.DataType, list[Any], pa.DataType]] = [
    ([1, -1, None, 0], pa.int8(), [1, -1, None, 0], pa.int64()),
    ([1, 255, None], pa.uint8(), [1, 255, None], pa.int32()),
    ([2**64 - 1, 7], pa.uint64(), [Decimal(2**64 - 1), Decimal(7)], pa.decimal128(20, 0)),
    ([True, False, None], pa.bool_(), [1, 0, None], pa.int8()),
    ([True, None], pa.bool_(), [Decimal("1.00"), None], pa.decimal128(5, 2)),
    (
        [Decimal("1.50"), None],
        pa.decimal128(5, 2),
        [Decimal("1.500000"), None],
        pa.decimal128(38, 6),
    ),
    ([Decimal(-3)], pa.decimal128(3, 0), [Decimal("-3.0000")], pa.decimal256(60, 4)),
    ([5, -5], pa.int64(), [Decimal("5.0"), Decimal("-5.0")], pa.decimal128(30, 1)),
    ([0.5, -0.0, float("nan"), None], pa.float32(), [0.5, 0.0, -float("nan"), None], pa.float64()),
    ([1.5, 2.0], pa.float64(), [Decimal("1.5"), Decimal(2)], pa.decimal128(10, 1)),
    (
        [Decimal("8170772.02"), Decimal("-7605379205.61"), None],
        pa.decimal128(12, 2),
        [8170772.02, -7605379205.61, None],
        pa.float64(),
    ),
    ([Decimal("2864766.03")], pa.decimal256(50, 2), [2864766.03], pa.float64()),
    (["é", "", None], pa.string(), ["é", "", None], pa.large_string()),
    (["a" * 40, "b"], pa.string(), ["a" * 40, "b"], pa.string_view()),
    (["a", "b", "a"], pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"], pa.string()),
    ([b"ab", b"\0\0"], pa.binary(2), [b"ab", b"\0\0"], pa.large_binary()),
    ([date(1969, 12, 31)], pa.date32(), [date(1969, 12, 31)], pa.date64()),
    ([date(2024, 2, 29)], pa.date32(), [datetime(2024, 2, 29)], pa.timestamp("us")),
    ([-1, 1000], pa.timestamp("s"), [-1_000_000_000, 10**12], pa.timestamp("ns")),
    (
        [datetime(2024, 1, 1, tzinfo=UTC)],
        pa.timestamp("ms", "Asia/Tokyo"),
        [datetime(2024, 1, 1)],
        pa.timestamp("us"),
    ),
    ([1, 2], pa.time32("s"), [10**9, 2 * 10**9], pa.time64("ns")),
    ([[1, None], [], None], pa.list_(pa.int8()), [[1, None], [], None], pa.large_list(pa.int64())),
    ([[1, 2], None], pa.list_(pa.int8(), 2), [[1, 2], None], pa.list_(pa.int64())),
    (
        [{"a": 1, "b": "x"}, None],
        pa.struct({"a": pa.int8(), "b": pa.string()}),
        [{"b": "x", "a": 1}, None],
        pa.struct({"b": pa.large_string(), "a": pa.int64()}),
    ),
    (
        [[("k", 1), ("l", 2)]],
        pa.map_(pa.string(), pa.int8()),
        [[("l", 2), ("k", 1)]],
        pa.map_(pa.string(), pa.int64()),
    ),
    (
        ["6F9619FF-8B86-D011-B42D-00CF4FC964FF"],
        pa.string(),
        [bytes.fromhex("6f9619ff8b86d011b42d00cf4fc964ff")],
        pa.binary(16),
    ),
    ([None, None], pa.null(), [None, None], pa.string()),
]


@pytest.mark.parametrize(("one", "kind", "other", "other_kind"), EQUAL)
def test_equal_values_of_two_types_have_one_hash(
    one: list[Any], kind: pa.DataType, other: list[Any], other_kind: pa.DataType
) -> None:
    form = common_form(kind, other_kind, "c")
    assert common_form(other_kind, kind, "c").name.split(" (")[0] == form.name.split(" (")[0]
    left, right = pa.array(one, kind), pa.array(other, other_kind)
    assert hash_values(left, form).tolist() == hash_values(right, form).tolist()
    padded = pa.concat_arrays([pa.nulls(3, other_kind), right, right]).slice(3, len(right))
    assert hash_values(padded, form).tolist() == hash_values(left, form).tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.string(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.bool_(), pa.string()),
        (pa.list_(pa.int8()), pa.int8()),
        (pa.struct({"a": pa.int8()}), pa.struct({"b": pa.int8()})),
    ],
)
def test_types_without_a_common_form_are_refused_by_column(
    one: pa.DataType, other: pa.DataType
) -> None:
    with pytest.raises(SchemaError, match="'total'"):
        common_form(one, other, "total")


def test_texts_are_compared_as_they_are_unless_nfc_is_asked_for() -> None:
    texts = pa.array(["e\u0301", "\u00e9"])
    exact, nfc = (common_form(pa.string(), pa.string(), "c", form) for form in ("exact", "nfc"))
    assert len(set(hash_values(texts, exact).tolist())) == 2
    assert len(set(hash_values(texts, nfc).tolist())) == 1


def test_json_is_compared_by_value() -> None:
    texts = [
        '{"a": 1.0, "b": [1e2, "x"]}',
        '{"b":[100,"x"],"a":1}',
        '{"b":["x",100],"a":1}',
        '"1"',
        "1",
        "no json",
        "[1e99999999999999999999]",
        "[1e88888888888888888888]",
    ]
    texts += ["12345678901234567890123456789012345", "12345678901234567890123456789012346"]
    hashes = hash_values(pa.array(texts), Form("json")).tolist()
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == len(texts) - 1


def _ninths(number: int) -> Decimal:
    """The number with nine digits behind the point, whatever the precision of this thread's context."""
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -9))


KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=False).filter(lambda value: value != 0),
    pa.decimal128(38, 9): st.integers(-(10**38) + 1, 10**38 - 1).map(_ninths),
    pa.decimal256(60, 9): st.integers(-(10**60) + 1, 10**60 - 1).map(_ninths),
    pa.timestamp("us"): st.integers(-(2**53), 2**53),
    pa.timestamp("ns"): st.integers(-(2**60), 2**60),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.string(): st.text(max_size=40),
    pa.binary(): st.binary(max_size=40),
    pa.binary(7): st.binary(min_size=7, max_size=7),
    pa.bool_(): st.booleans(),
    pa.list_(pa.int16()): st.lists(st.integers(-9, 9) | st.none(), max_size=5),
    pa.list_(pa.string()): st.lists(st.text(max_size=3) | st.none(), max_size=5),
    pa.struct({"a": pa.int8(), "b": pa.string()}): st.fixed_dictionaries(
        {"a": st.integers(-9, 9) | st.none(), "b": st.text(max_size=3) | st.none()}
    ),
}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_other_values_have_another_hash(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(KINDS)))
    values = data.draw(st.lists(KINDS[kind] | st.none(), min_size=1, max_size=20))
    array = pa.array(values, kind)
    hashes = hash_values(array, common_form(kind, kind, "c")).tolist()
    plain = array.cast(pa.int64()) if pa.types.is_timestamp(kind) else array
    shown = list(map(repr, plain.to_pylist()))
    assert len(set(hashes)) == len(set(shown))
    assert len(dict.fromkeys(zip(shown, hashes, strict=True))) == len(set(shown))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_changed_bit_of_a_text_of_any_length_is_seen(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 7, 8, 9, 16, 63, 64, 65_535, 65_536, 65_537, 70_001]))
    value = bytearray(data.draw(st.binary(min_size=8, max_size=8)) * (size // 8 + 1))[:size]
    bit = data.draw(st.integers(0, size * 8 - 1))
    other = bytearray(value)
    other[bit // 8] ^= 1 << bit % 8
    one, changed, shorter = hash_values(
        pa.array([bytes(value), bytes(other), bytes(value[:-1])]), Form("binary")
    )
    assert len({one, changed, shorter}) == 3


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 63), st.floats(allow_nan=False, allow_infinity=False))
def test_a_changed_bit_of_a_double_is_seen(bit: int, value: float) -> None:
    (word,) = struct.unpack("<Q", struct.pack("<d", value))
    (other,) = struct.unpack("<d", struct.pack("<Q", word ^ 1 << bit))
    hashes = hash_values(pa.array([value, other]), Form("double"))
    is_same = value == other == 0 or (other != other and value != value)
    assert (hashes[0] == hashes[1]) == is_same


def test_rows_depend_on_the_place_of_each_value() -> None:
    a, b = pa.array([1, 2, None, 0]), pa.array([2, 1, 0, None])
    form = common_form(pa.int64(), pa.int64(), "c")
    hashes = hash_columns([a, b], [form, form])
    assert len(set(hashes.tolist())) == 4
    assert np.array_equal(hashes, hash_columns([b, a], [form, form])[[1, 0, 3, 2]])


def test_numbers_beyond_those_with_a_sign_have_no_ranges() -> None:
    forms = [common_form(kind, kind, "id") for kind in (pa.int64(), pa.uint64(), pa.uint32())]
    assert [has_ordinals(form) for form in forms] == [True, False, True]
    assert not has_ordinals(common_form(pa.bool_(), pa.int8(), "id"))


def test_no_hash_of_two_million_neighbours_is_shared() -> None:
    form = common_form(pa.int64(), pa.int64(), "c")
    numbers = pa.array(np.arange(1_000_000))
    assert len(np.unique(hash_values(numbers, form))) == 1_000_000
    assert len(np.unique(hash_columns([numbers, numbers], [form, form]))) == 1_000_000


def test_a_time_beyond_the_range_of_microseconds_is_refused_unless_it_is_null() -> None:
    form = common_form(pa.timestamp("s"), pa.timestamp("us"), "c")
    with pytest.raises(pa.ArrowInvalid, match="out of the range"):
        hash_values(pa.array([2**62], pa.timestamp("s")), form)
    found = pa.Array.from_buffers(
        pa.timestamp("s"), 2, [pa.py_buffer(b"\1"), pa.py_buffer(struct.pack("<qq", 1, 2**62))]
    )
    assert len(hash_values(found, form)) == 2
