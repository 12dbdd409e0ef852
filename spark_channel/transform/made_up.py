"""Generated values: DataX streamreader's `random`."""

import random
import zlib
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.errors import OptionError

__all__ = ["RandomValues"]

_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_BYTE_TO_LETTER = bytes(_LETTERS[byte % len(_LETTERS)] for byte in range(256))


@dataclass(frozen=True, slots=True)
class RandomValues:
    """Values from `low` to `high`, both included; for text and bytes, that is their length.

    Times are microseconds since 1970. Booleans are true with probability high / (low + high). The same
    batch gets the same values, so a retried task moves the same rows.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise OptionError(
                f"random got {self.low}, {self.high}; it takes the smaller number first",
                option="random", got=f"{self.low}, {self.high}", takes="the smaller number first",
            )  # fmt: skip

    def make(self, batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
        """One value of `kind` for each row of `batch`."""
        seed = _seed(batch, self)
        if pa.types.is_boolean(kind):
            share = self.high / (self.low + self.high) if self.low + self.high else 0.5
            return pc.less(pc.random(batch.num_rows, initializer=seed), share)
        if pa.types.is_floating(kind):
            spread = pc.multiply(pc.random(batch.num_rows, initializer=seed), float(self.high - self.low))
            return pc.cast(pc.add(spread, float(self.low)), kind)
        numbers = self._numbers(batch.num_rows, seed)
        if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
            return pc.cast(numbers, kind)
        return _letters(numbers, seed, kind)

    def _numbers(self, rows: int, seed: int) -> pa.Array:
        spread = pc.multiply(pc.random(rows, initializer=seed), float(self.high - self.low + 1))
        steps = pc.cast(pc.floor(spread), pa.int64())
        return pc.min_element_wise(pc.add(steps, self.low), self.high)


def _seed(batch: pa.RecordBatch, values: RandomValues) -> int:
    first = batch.slice(0, 1).to_pylist() if batch.num_columns else []
    return zlib.crc32(repr((first, values.low, values.high)).encode())


def _letters(lengths: pa.Array, seed: int, kind: pa.DataType) -> pa.Array:
    ends = pc.cumulative_sum(lengths)
    total = ends[-1].as_py() if len(ends) else 0
    offsets = pc.cast(pa.concat_arrays([pa.array([0], pa.int64()), ends]), pa.int32())
    letters = random.Random(seed).randbytes(total).translate(_BYTE_TO_LETTER)  # noqa: S311 - made-up rows
    made = pa.StringArray.from_buffers(len(lengths), offsets.buffers()[1], pa.py_buffer(letters))
    return pc.cast(made, kind)
