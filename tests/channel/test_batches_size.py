"""The size of a batch is `RecordBatch.nbytes`, exactly, however it is found out."""

import decimal
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.channel import batches as size
from spark_channel.channel.batches import arrow_bytes

PLAIN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 65_535),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.date32(): st.integers(0, 20_000),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.timestamp("us", "UTC"): st.integers(0, 2**50),
    pa.duration("ms"): st.integers(0, 2**50),
    pa.decimal128(12, 2): st.decimals(-1_000_000, 1_000_000, places=2),
    pa.decimal256(50, 0): st.integers(0, 10**20).map(decimal.Decimal),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.string(): st.text(max_size=6),
    pa.binary(): st.binary(max_size=6),
    pa.large_string(): st.text(max_size=6),
    pa.large_binary(): st.binary(max_size=6),
}
OTHER: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.list_(pa.int16()): st.lists(st.integers(0, 9), max_size=3),
    pa.struct([("a", pa.int32()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.integers(0, 9), "b": st.text(max_size=2)}
    ),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["x", "yy"]),
    pa.map_(pa.string(), pa.int8()): st.lists(
        st.tuples(st.text(max_size=2), st.integers(0, 9)), max_size=2
    ),
    pa.month_day_nano_interval(): st.tuples(
        st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)
    ),
}


@st.composite
def batches(draw: st.DrawFn, kinds: dict[pa.DataType, st.SearchStrategy[Any]]) -> pa.RecordBatch:
    """Of any columns, with and without nulls, whole or each column cut from a longer one."""
    rows = draw(st.integers(0, 40))
    cut = draw(st.booleans())
    columns = []
    for kind in draw(st.lists(st.sampled_from(list(kinds)), max_size=5)):
        before, after = (draw(st.integers(0, 10)), draw(st.integers(0, 10))) if cut else (0, 0)
        length = before + rows + after
        values = st.none() | kinds[kind] if draw(st.booleans()) else kinds[kind]
        column = pa.array(draw(st.lists(values, min_size=length, max_size=length)), kind)
        columns.append(column.slice(before, rows))
    return pa.record_batch(columns, names=[f"c{number}" for number in range(len(columns))])


@settings(deadline=None, max_examples=300)
@given(batches(PLAIN))
def test_plain_columns(batch: pa.RecordBatch) -> None:
    assert arrow_bytes(batch) == batch.nbytes


@settings(deadline=None, max_examples=150)
@given(batches(PLAIN | OTHER))
def test_any_columns(batch: pa.RecordBatch) -> None:
    assert arrow_bytes(batch) == batch.nbytes


@settings(deadline=None, max_examples=150)
@given(batches(PLAIN), st.data())
def test_slices_and_what_came_over_a_wire(batch: pa.RecordBatch, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, batch.num_rows))
    piece = batch.slice(start, data.draw(st.integers(0, batch.num_rows - start)))
    assert arrow_bytes(piece) == piece.nbytes
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    (again,) = pa.ipc.open_stream(stream.getvalue()).read_all().to_batches() or [batch]
    assert arrow_bytes(again) == again.nbytes


def test_text_whose_first_offset_is_not_zero() -> None:
    offsets = pa.py_buffer(
        (3).to_bytes(4, "little") + (5).to_bytes(4, "little") + (9).to_bytes(4, "little")
    )
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"...aabbbb")])
    batch = pa.record_batch([text], names=["t"])
    assert text.to_pylist() == ["aa", "bbbb"]
    assert arrow_bytes(batch) == batch.nbytes


def test_columns_that_share_memory_count_each() -> None:
    column = pa.array(range(100))
    batch = pa.record_batch([column, column], names=["a", "b"])
    assert arrow_bytes(batch) == batch.nbytes == 1_600


@pytest.mark.parametrize("kind", list(PLAIN), ids=str)
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_plain_batches_are_not_asked_for_nbytes(kind: pa.DataType, data: st.DataObject) -> None:
    """It is what the shorter way is there for."""
    values = data.draw(st.lists(PLAIN[kind], min_size=1, max_size=20))
    whole, with_null = pa.array(values, kind), pa.array([*values[1:], None], kind)
    batch = pa.record_batch([whole, with_null], names=["a", "b"])
    with mock.patch.object(size, "_nbytes", side_effect=AssertionError("nbytes was read")):
        found = arrow_bytes(batch)
    assert found == batch.nbytes


def test_a_thread_that_sees_several_schemas() -> None:
    ints = pa.record_batch({"a": [1, 2, 3]})
    text = pa.record_batch({"a": ["x", None, "zzz"]})
    for _ in range(3):
        for batch in (ints, text, ints.slice(1), ints.select([]), text.slice(0, 0)):
            assert arrow_bytes(batch) == batch.nbytes


def test_batches_of_one_schema_with_and_without_nulls() -> None:
    schema = pa.schema({"a": pa.int64(), "t": pa.string(), "u": pa.large_string()})
    whole = pa.record_batch([[1, 2, 3], ["x", "", "zzz"], ["y", "yy", ""]], schema=schema)
    nulls = pa.record_batch([[1, None, 3], ["x", "y", "z"], ["y", None, ""]], schema=schema)
    text_nulls = pa.record_batch([[1, 2, 3], [None, "y", None], ["y", "x", ""]], schema=schema)
    slices = [pa.concat_batches([whole, whole]).slice(at, 3) for at in range(4)]
    for batch in (whole, nulls, whole, text_nulls, whole, *slices, whole):
        assert arrow_bytes(batch) == batch.nbytes
