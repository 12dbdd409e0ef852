"""The buffers of an Arrow array, whatever its offset and its encoding."""

import numpy as np
import pyarrow as pa
import pytest

from spark_channel.verification.arrow_buffers import (
    decoded,
    fixed_width,
    null_mask,
    unpacked_bits,
)


@pytest.mark.parametrize("first", [0, 1, 7, 8, 9])
def test_bits_and_nulls_begin_at_the_offset(first: int) -> None:
    values = [
        number % 3 == 0 or None if number % 5 == 0 else number % 2 == 0 for number in range(40)
    ]
    array = pa.array(values, pa.bool_()).slice(first, 20)
    assert null_mask(array).tolist() == [value is None for value in array.to_pylist()]
    bits = unpacked_bits(array.buffers()[1], array.offset, len(array))
    assert [
        bool(bit) for bit, value in zip(bits, array.to_pylist(), strict=True) if value is not None
    ] == [value for value in array.to_pylist() if value is not None]


def test_no_bitmap_is_all_true() -> None:
    assert unpacked_bits(None, 3, 4).tolist() == [True] * 4


def test_numbers_are_those_of_the_slice() -> None:
    assert fixed_width(pa.array([1, 2, 3, 4], pa.int32()).slice(1, 2), np.int32).tolist() == [2, 3]


def test_an_encoding_is_undone() -> None:
    array = pa.array(["a", "b", "a"])
    assert decoded(array.dictionary_encode()).equals(array)
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", "b"]))
    assert decoded(runs).to_pylist() == ["a", "a", "b"]
