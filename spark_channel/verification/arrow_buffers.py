"""The buffers of an Arrow array as numpy arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_channel.lazy import compute as pc

__all__ = ["decoded", "fixed_width", "null_mask", "unpacked_bits"]


def decoded(values: pa.Array) -> pa.Array:
    while True:
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        elif pa.types.is_run_end_encoded(values.type):
            values = pc.run_end_decode(values)
        elif pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        else:
            return values


def unpacked_bits(buffer: pa.Buffer | None, start: int, count: int) -> npt.NDArray[np.bool_]:
    if buffer is None:
        return np.ones(count, np.bool_)
    packed = np.frombuffer(buffer, np.uint8)[start // 8 : (start + count + 7) // 8]
    bits = np.unpackbits(packed, bitorder="little")[start % 8 : start % 8 + count]
    return bits.astype(np.bool_)


def null_mask(values: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = ~unpacked_bits(values.buffers()[0], values.offset, len(values))
    return nulls


def fixed_width(values: pa.Array, kind: npt.DTypeLike, width: int = 1) -> npt.NDArray[Any]:
    """The fixed-width values as they are in memory."""
    start = values.offset * width
    return np.frombuffer(values.buffers()[1], kind)[start : start + len(values) * width]
