"""Generated rows, for tests and benchmarks.

Every value is a function of the seed, its column and its row number, so the rows are the same
whatever the splits, the batches and the retries.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, ClassVar

import pyarrow as pa
from pydantic import BeforeValidator, Field

from spark_channel.connectors.base.contract import (
    Reader,
    Receipt,
    RowTally,
    TaskWriter,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.errors import OptionError, SourceError
from spark_channel.lazy import compute as pc
from spark_channel.options import Amount, ByteAmount, ReadOptions, WriteOptions, parse_amount
from spark_channel.planning import Split

__all__ = [
    "DiscardOptions",
    "DiscardWriter",
    "GeneratorOptions",
    "GeneratorReader",
]


_SCHEMA = "id BIGINT, value DOUBLE, name STRING"
_BIGINT = re.compile(r"([A-Za-z]\w*) BIGINT")
"""What a stream of DataX reads: its start has tenths of a second."""
_PADDING = "padding"
_POOL = 256
_LONGEST_PADDING = 1 << 20
_PROBE_ROWS = 1024
# Constants of splitmix64, https://prng.di.unimi.it/splitmix64.c
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _count(value: object) -> int:
    return 0 if str(value).strip() == "0" else parse_amount(value)


class GeneratorOptions(ReadOptions):
    """Options of the generator."""

    url: str | None = Field(None, description="`generator:`; default: none")
    rows: Annotated[int, BeforeValidator(_count)] = Field(
        1_000_000, description="number of rows; 0: an empty source"
    )
    generator_schema: str = Field(
        _SCHEMA,
        alias="schema",
        description="columns in Spark's syntax; an integer column `id` contains the row's number",
    )
    row_bytes: ByteAmount | None = Field(
        None,
        description="Arrow bytes per row, filled up by a column `padding` of at most 1 MiB; default: no padding",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="seed of the values")
    rows_per_batch: Amount = Field(65_536, description="most rows per batch")
    skew: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="share of the rows in the first split, 0 to 1; 0: equal splits"
    )
    null_every: Amount | None = Field(
        None, description="every nth row is NULL in all columns but `id`; default: never"
    )
    fail_at_row: Annotated[int, Field(ge=0)] | None = Field(
        None, description="the row, counted from 0, at which reading fails; default: never"
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.where is not None:
            raise OptionError(
                "option 'where' is not supported by the generator: omit it",
                option="where",
                got=self.where,
            )
        if (
            self.url is not None
            and self.url.lower().removeprefix("jdbc:").rstrip("/") != "generator:"
        ):
            raise OptionError(
                f"option 'url' got {self.url!r}; it takes generator:",
                option="url",
                got=self.url,
                takes="generator:",
            )


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


class DiscardOptions(WriteOptions):
    """The options of every write: discard adds none."""

    url: str | None = Field(None, description="`discard:`; default: none")


class DiscardWriter(Writer):
    """Accepts every type and stores nothing, so a repeated task changes nothing."""

    Options: ClassVar[type[WriteOptions]] = DiscardOptions

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        return WritePlan(
            job=context.job,
            schema=schema,
            commit=context.commit or "job",
            overwrite=context.overwrite,
            txn=context.txn,
        )

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        return _Counter(RowTally(task, attempt))

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        pass

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        pass


class _Counter(TaskWriter):
    def __init__(self, tally: RowTally) -> None:
        self._tally = tally

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.add(batch)

    def close(self) -> Receipt:
        return self._tally.receipt()

    def rollback(self) -> None:
        self._tally.ended = True
