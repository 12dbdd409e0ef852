"""Generated rows, for tests and benchmarks.

Every value is a function of the seed, its column and its row number, so the rows are the same
whatever the splits, the batches and the retries.
"""

import hashlib
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.base.contract import Reader
from spark_channel.connectors.generator.options import GeneratorOptions
from spark_channel.errors import OptionError, SourceError
from spark_channel.lazy import compute as pc
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["GeneratorReader"]


_BIGINT = re.compile(r"([A-Za-z]\w*) BIGINT")
"""What a stream of DataX reads: its start has tenths of a second."""
_PADDING = "padding"
_POOL = 256
_LONGEST_PADDING = 1 << 20
_PROBE_ROWS = 1024
# Constants of splitmix64, https://prng.di.unimi.it/splitmix64.c
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class GeneratorReader(Reader):
    """Rows without a source."""

    Options: ClassVar[type[ReadOptions]] = GeneratorOptions
    options: GeneratorOptions

    def __init__(self, options: GeneratorOptions) -> None:
        super().__init__(options)
        self._schema = _schema(options)
        self._padding = 0
        if options.row_bytes is not None:
            self._padding = _padding_bytes(options, self._schema)
            self._schema = self._schema.append(pa.field(_PADDING, pa.string()))
        if options.columns is not None:
            self._schema = _picked(self._schema, options.columns)

    def schema(self) -> pa.Schema:
        return self._schema

    def split(self, advice: int) -> list[Split]:
        rows = self.options.rows
        parts = max(1, min(advice, rows))
        edges = [rows * part // parts for part in range(parts + 1)]
        if self.options.skew and parts > 1:
            first = round(rows * self.options.skew)
            edges = [0, *(first + (rows - first) * part // (parts - 1) for part in range(parts))]
        probe = min(rows, _PROBE_ROWS)
        row_bytes = self.batch(0, probe).nbytes / probe if probe else 0
        return [
            Split({"start": start, "end": end}, end - start, round((end - start) * row_bytes))
            for start, end in pairwise(edges)
            if end > start
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        start, end = int(split.params["start"]), int(split.params["end"])
        fail = self.options.fail_at_row
        fails = fail is not None and start <= fail < end
        stop = fail if fail is not None and fails else end
        step = self._batch_rows(split)
        for begin in range(start, stop, step):
            yield self.batch(begin, min(step, stop - begin))
        if fails:
            raise SourceError(f"row {fail} cannot be read: option 'failAtRow' asks for it")

    def _batch_rows(self, split: Split) -> int:
        rows = [self.options.rows_per_batch]
        if self.fetch_size.rows is not None:
            rows.append(self.fetch_size.rows)
        if self.fetch_size.nbytes is not None and split.rows and split.nbytes:
            rows.append(self.fetch_size.nbytes * split.rows // split.nbytes)
        return max(1, min(rows))

    def batch(self, start: int, rows: int) -> pa.RecordBatch:
        """`rows` rows from number `start` on."""
        numbers = pc.add(_numbers(rows), start)
        empty = None
        if self.options.null_every is not None:
            every = self.options.null_every
            remainder = pc.subtract(numbers, pc.multiply(pc.divide(numbers, every), every))
            empty = pc.equal(remainder, every - 1)
        arrays = []
        for field in self._schema:
            if field.name.lower() == "id" and pa.types.is_integer(field.type):
                arrays.append(pc.cast(numbers, field.type, safe=False))
                continue
            values = self._values(field, numbers)
            arrays.append(
                values if empty is None else pc.if_else(empty, pa.scalar(None, field.type), values)
            )
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _values(self, field: pa.Field, numbers: pa.Array) -> pa.Array:
        salt = hashlib.blake2b(f"{self.options.seed}/{field.name}".encode(), digest_size=8).digest()
        noise = _noise(numbers, int.from_bytes(salt, "little"))
        if field.name == _PADDING and self.options.row_bytes is not None:
            return pc.take(
                _pool(self._padding), pc.bit_wise_and(noise, pa.scalar(_POOL - 1, pa.uint64()))
            )
        return _shaped(noise, field.type)


def _schema(options: GeneratorOptions) -> pa.Schema:
    columns = _columns(options.generator_schema)
    if options.row_bytes is not None and _PADDING in columns:
        raise OptionError(
            f"options 'rowBytes' and 'schema' both make a column {_PADDING!r}", option="schema"
        )
    return pa.schema(list(columns.items()))


def _columns(text: str) -> dict[str, pa.DataType]:
    plain = _BIGINT.fullmatch(text)
    if plain is not None:
        return {plain[1]: pa.int64()}
    from spark_channel.connectors.base.types import (
        arrow_columns,  # a parser of SQL, which takes long to import
    )

    return arrow_columns(text, "schema")


def _picked(schema: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    columns = set(schema.names)
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise OptionError(
            f"option 'columns' names {unknown[0]!r}, which is not there; columns: {', '.join(schema.names)}",
            option="columns",
            got=unknown[0],
            takes=", ".join(schema.names),
        )
    return pa.schema([schema.field(name) for name in names])


def _padding_bytes(options: GeneratorOptions, schema: pa.Schema) -> int:
    """The length of `padding` that fills a row up to `rowBytes`: an offset of 4 bytes comes with it."""
    assert options.row_bytes is not None
    plain = GeneratorReader(
        options.model_copy(update={"row_bytes": None, "columns": None, "null_every": None})
    )
    others = plain.batch(0, _PROBE_ROWS).nbytes / _PROBE_ROWS
    padding: int = options.row_bytes - round(others) - 4
    if not 0 <= padding <= _LONGEST_PADDING:
        least = round(others) + 4
        raise OptionError(
            f"option 'rowBytes' got {options.row_bytes}; "
            f"the columns {', '.join(schema.names)} take it from {least} to {least + _LONGEST_PADDING} bytes",
            option="rowBytes",
            got=str(options.row_bytes),
            takes=f"{least} to {least + _LONGEST_PADDING}",
        )
    return padding


class _Arange:
    """0, 1, 2, ... as an array that grows with the largest batch asked for, and is sliced without a copy."""

    array = pa.nulls(0, pa.int64())


def _numbers(rows: int) -> pa.Array:
    if len(_Arange.array) < rows:
        _Arange.array = pa.array(range(rows), pa.int64())
    return _Arange.array.slice(0, rows)


def _noise(numbers: pa.Array, salt: int) -> pa.Array:
    """64 even bits per row number; arithmetic wraps, as splitmix64 wants it."""
    word = partial(pa.scalar, type=pa.uint64())
    state = pc.add(pc.multiply(pc.cast(numbers, pa.uint64()), word(_MIX[0])), word(salt))
    state = pc.multiply(pc.bit_wise_xor(state, pc.shift_right(state, word(30))), word(_MIX[1]))
    state = pc.multiply(pc.bit_wise_xor(state, pc.shift_right(state, word(27))), word(_MIX[2]))
    return pc.bit_wise_xor(state, pc.shift_right(state, word(31)))


def _below(noise: pa.Array, limit: int) -> pa.Array:
    """int64 from 0 to `limit` - 1."""
    small = pc.shift_right(noise, pa.scalar(1, pa.uint64())).view(pa.int64())
    return pc.subtract(small, pc.multiply(pc.divide(small, limit), limit))


def _shaped(noise: pa.Array, kind: pa.DataType) -> pa.Array:
    """Noise as values of `kind`: all integers, reals in [0, 1), days and times of 1970 to 2037."""
    if pa.types.is_boolean(kind):
        return pc.equal(
            pc.bit_wise_and(noise, pa.scalar(1, pa.uint64())), pa.scalar(1, pa.uint64())
        )
    if pa.types.is_integer(kind):
        return pc.cast(noise.view(pa.int64()), kind, safe=False)
    if pa.types.is_floating(kind):
        bits = 53 if kind == pa.float64() else 24
        whole = pc.shift_right(noise, pa.scalar(64 - bits, pa.uint64()))
        return pc.cast(pc.divide(pc.cast(whole, pa.float64()), float(1 << bits)), kind)
    if pa.types.is_decimal(kind):
        unscaled = _below(noise, 10 ** min(kind.precision, 18))
        return pc.cast(unscaled, pa.decimal128(19, 0)).view(kind)
    if pa.types.is_date(kind):
        return pc.cast(pc.cast(_below(noise, 24_855), pa.int32()), kind)
    if pa.types.is_timestamp(kind):
        return pc.cast(_below(noise, 2**31 * 1_000_000), kind)
    text = pc.cast(_below(noise, 10**9), pa.string())
    return text if pa.types.is_string(kind) else pc.cast(text, kind)


def _pool(length: int) -> pa.Array:
    return pa.array(
        [
            (hashlib.sha256(bytes([n])).hexdigest() * (length // 64 + 1))[:length]
            for n in range(_POOL)
        ]
    )
