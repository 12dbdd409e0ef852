"""Steps that select columns and rows, and add constants or generated values."""

import random
import zlib
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Literal, get_args

import pyarrow as pa

from spark_channel.arrow_schema import TEXT_LENGTH, length_in
from spark_channel.errors import OptionError, SchemaError
from spark_channel.lazy import compute as pc
from spark_channel.transform.convert import can_convert, cast_or_refuse, convert, refusals
from spark_channel.transform.exact_numbers import (
    as_carried,
    carried_type,
    exact_field,
    is_exact,
    kept,
)
from spark_channel.transform.text import as_text, has_text
from spark_channel.transform.transformer import (
    Column,
    Flow,
    Refused,
    Transformer,
    TransformResult,
    checked_column,
    column_index,
)

__all__ = [
    "DropRows",
    "Output",
    "RandomColumn",
    "RefuseMalformed",
    "Rename",
    "Select",
    "marked",
]


_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_BYTE_TO_LETTER = bytes(_LETTERS[byte % len(_LETTERS)] for byte in range(256))
_MARK = "\0spark-channel 6f0c1d3e-malformed\0"
"""Prefix of the first column's value for such a line: the mark, the reason, another mark, and the line."""
_COMPARE = {
    "=": "equal",
    "!=": "not_equal",
    ">": "greater",
    "<": "less",
    ">=": "greater_equal",
    "<=": "less_equal",
}


@dataclass(frozen=True, slots=True)
class RandomColumn:
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
                option="random",
                got=f"{self.low}, {self.high}",
                takes="the smaller number first",
            )

    def make(self, batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
        """One value of `kind` for each row of `batch`."""
        seed = _seed(batch, self)
        if pa.types.is_boolean(kind):
            share = self.high / (self.low + self.high) if self.low + self.high else 0.5
            return pc.less(pc.random(batch.num_rows, initializer=seed), share)
        if pa.types.is_floating(kind):
            spread = pc.multiply(
                pc.random(batch.num_rows, initializer=seed), float(self.high - self.low)
            )
            return pc.cast(pc.add(spread, float(self.low)), kind)
        numbers = self._numbers(batch.num_rows, seed)
        if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
            return pc.cast(numbers, kind)
        return _letters(numbers, seed, kind)

    def _numbers(self, rows: int, seed: int) -> pa.Array:
        spread = pc.multiply(pc.random(rows, initializer=seed), float(self.high - self.low + 1))
        steps = pc.cast(pc.floor(spread), pa.int64())
        return pc.min_element_wise(pc.add(steps, self.low), self.high)


def _seed(batch: pa.RecordBatch, values: RandomColumn) -> int:
    first = batch.slice(0, 1).to_pylist() if batch.num_columns else []
    return zlib.crc32(repr((first, values.low, values.high)).encode())


def _letters(lengths: pa.Array, seed: int, kind: pa.DataType) -> pa.Array:
    ends = pc.cumulative_sum(lengths)
    total = ends[-1].as_py() if len(ends) else 0
    offsets = pc.cast(pa.concat_arrays([pa.array([0], pa.int64()), ends]), pa.int32())
    letters = random.Random(seed).randbytes(total).translate(_BYTE_TO_LETTER)  # noqa: S311 - made-up rows
    texts = pa.StringArray.from_buffers(len(lengths), offsets.buffers()[1], pa.py_buffer(letters))
    return pc.cast(texts, kind)


@dataclass(frozen=True, slots=True)
class Output:
    """One column that `Select` returns: an input column, a constant, or generated values.

    `source` None: `constant` in every row, or `random` values. `kind` None: the source's type. `patterns`
    (strptime's letters) read text as a time, the first that fits. `name` None: the source's name. `exact`: numbers keep
    all that was read (`exact_numbers`).
    """

    source: Column | None = None
    name: str | None = None
    kind: pa.DataType | None = None
    patterns: tuple[str, ...] = ()
    constant: Any = None
    random: RandomColumn | None = None
    exact: bool = False

    @property
    def keeps_all(self) -> bool:
        return self.exact and is_exact(self.kind) and self.random is None

    def output_field(self, schema: pa.Schema, position: int, step: str) -> pa.Field:
        """Return the field of this column in the output, for input of `schema`; `step` names the step in errors."""
        field = self._field(schema, position, step)
        return exact_field(field) if self.keeps_all else field

    def _field(self, schema: pa.Schema, position: int, step: str) -> pa.Field:
        if self.source is None:
            nullable = self.random is None and self.constant is None
            return pa.field(
                self.name or f"c{position}", self.kind or pa.string(), nullable=nullable
            )
        field = schema.field(column_index(schema, self.source, step))
        kind = field.type if self.kind is None else self.kind
        length = length_in(field.metadata, TEXT_LENGTH.encode()) if kind == field.type else None
        notes = None if length is None else {TEXT_LENGTH: length}
        return pa.field(self.name or field.name, kind, nullable=field.nullable, metadata=notes)


@dataclass(frozen=True, slots=True)
class Select(Transformer):
    """Exactly `outputs`, in this order. A row with a value that cannot be cast is refused.

    `exhaustive`: the input must have as many columns as there are outputs, so that no column is omitted silently.
    """

    outputs: tuple[Output, ...]
    exhaustive: bool = False
    step: ClassVar[str] = "column"

    def __post_init__(self) -> None:
        if not self.outputs:
            raise OptionError("column is empty; it takes 1 column or more", option="column")
        for output in self.outputs:
            if output.source is None and output.random is None:
                constant_of(output)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.exhaustive and len(schema) != len(self.outputs):
            raise SchemaError(
                f"{self.step}: {len(schema)} columns arrive ({', '.join(schema.names)}) and the writer "
                f"has {len(self.outputs)}; they go one to one, by position"
            )
        fields = []
        for position, output in enumerate(self.outputs):
            field = output.output_field(schema, position, self.step)
            if output.source is not None and output.kind is not None:
                source = schema.field(column_index(schema, output.source, self.step))
                try:
                    _of_kind(pa.array([], source.type), source, output)
                except pa.ArrowException:
                    raise SchemaError(
                        f"{self.step} {position}: column {source.name!r} is {source.type}, "
                        f"which cannot become {output.kind}"
                    ) from None
            fields.append(field)
        return pa.schema(fields)

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...]:
        flows = []
        for output in self.outputs:
            if output.source is None:
                flows.append(Flow((), "constant" if output.random is None else "random values"))
                continue
            index = column_index(schema, output.source, self.step)
            same = output.kind is None or output.kind == schema.field(index).type
            flows.append(Flow((index,), "" if same else "cast"))
        return tuple(flows)

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        schema = pa.schema(
            [
                output.output_field(batch.schema, n, self.step)
                for n, output in enumerate(self.outputs)
            ]
        )
        arrays: list[pa.Array] = []
        guilty: pa.BooleanArray | None = None
        reasons: list[tuple[pa.BooleanArray, str]] = []
        for output, field in zip(self.outputs, schema, strict=True):
            if output.source is None:
                arrays.append(_without_source(output, field.type, batch))
                continue
            index = column_index(batch.schema, output.source, self.step)
            array = batch.column(index)
            if output.kind is not None and (array.type != output.kind or output.keeps_all):
                array, bad = _of_kind(array, batch.schema.field(index), output)
                if bad is not None:
                    reasons.append(
                        (bad, f"{self.step} {field.name!r}: not a value of type {output.kind}")
                    )
                    guilty = bad if guilty is None else pc.or_(guilty, bad)
            arrays.append(array)
        if guilty is None:
            return TransformResult(pa.RecordBatch.from_arrays(arrays, schema=schema))
        good = pc.invert(guilty)
        good_arrays = [array.filter(good) for array in arrays]
        return TransformResult(
            pa.RecordBatch.from_arrays(good_arrays, schema=schema), refusals(batch, reasons)
        )


def _of_kind(
    array: pa.Array, field: pa.Field, output: Output
) -> tuple[pa.Array, pa.BooleanArray | None]:
    """The values of an input column as those of an output that has a type, and which are none."""
    kind = output.kind
    assert kind is not None
    if output.keeps_all:
        return kept(array, kind, cast_or_refuse)
    carried = carried_type(field)
    if carried == field.type:
        return cast_or_refuse(array, kind, output.patterns)
    if can_convert(field.type, kind) and not pa.types.is_temporal(kind):
        return convert(array, kind)
    array, unfit = as_carried(array, field, cast_or_refuse)
    values, bad = cast_or_refuse(array, kind, output.patterns)
    return values, bad if unfit is None else unfit if bad is None else pc.or_(unfit, bad)


def constant_of(output: Output) -> pa.Scalar:
    """The constant in the output's type.

    Raises:
        OptionError: it has no such value.
    """
    kind = output.kind or pa.string()
    text = pa.array([None if output.constant is None else _as_text(output.constant)], pa.string())
    if output.keeps_all:
        values, bad = kept(text, kind, cast_or_refuse)
    else:
        values, bad = cast_or_refuse(text, kind, output.patterns)
    if bad is not None:
        raise OptionError(
            f"column value {output.constant!r} is not a value of type {kind}",
            option="value",
            got=str(output.constant),
            takes=f"a value of type {kind}",
        )
    return values[0]


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without_source(output: Output, kind: pa.DataType, batch: pa.RecordBatch) -> pa.Array:
    if output.random is not None:
        return output.random.make(batch, kind)
    return pa.repeat(constant_of(output), batch.num_rows)


@dataclass(frozen=True, slots=True)
class Rename(Transformer):
    """The same columns under other names, by position: column 0 becomes `names[0]`."""

    names: tuple[str, ...]
    step: ClassVar[str] = "column"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if len(schema) != len(self.names):
            raise SchemaError(
                f"{self.step}: {len(schema)} columns arrive ({', '.join(schema.names)}) and the writer names "
                f"{len(self.names)} ({', '.join(self.names)}); they go one to one, by position"
            )
        return pa.schema(
            [part.with_name(name) for part, name in zip(schema, self.names, strict=True)]
        )

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...]:
        return tuple(Flow((number,)) for number in range(len(schema)))

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        return TransformResult(
            pa.RecordBatch.from_arrays(batch.columns, schema=self.output_schema(batch.schema))
        )


def marked(reason: str, line: str) -> str:
    """The value of the first column in place of the line."""
    return f"{_MARK}{reason}{_MARK}{line}"


@dataclass(frozen=True, slots=True)
class RefuseMalformed(Transformer):
    """Each marked line is one refused row, with its text and why."""

    step: ClassVar[str] = "line"
    in_place: ClassVar[bool] = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        if not batch.num_columns or not pa.types.is_string(batch.schema.field(0).type):
            return TransformResult(batch)
        bad = pc.fill_null(pc.starts_with(batch.column(0), _MARK), False)
        if not pc.any(bad, min_count=0).as_py():
            return TransformResult(batch)
        refused = []
        for text in batch.column(0).filter(bad).to_pylist():
            reason, line = text.removeprefix(_MARK).split(_MARK, 1)
            refused.append(Refused(pa.record_batch({"line": [line]}), reason))
        return TransformResult(batch.filter(pc.invert(bad)), tuple(refused))


Operator = Literal["=", "!=", ">", "<", ">=", "<=", "like", "not like"]


@dataclass(frozen=True, slots=True)
class DropRows(Transformer):
    """Drop every row whose column matches `operator` and `value`; the other rows do not change.

    Numbers compare as numbers, times as times (`value` = milliseconds since 1970-01-01 UTC, which for a time without a
    zone is what `zone` shows then, or an ISO text), everything else as text. `like` takes a regular expression (RE2)
    that must match the whole text. A null is dropped by `!=`, `not like` and `= null`, and kept by the
    others; `!= null` drops every other value.
    """

    column: Column
    operator: Operator
    value: str
    zone: str = "UTC"
    step: ClassVar[str] = "drop_rows"
    in_place: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_column(self.column, self.step)
        if self.operator not in get_args(Operator):
            raise self._wrong("operator", self.operator, "one of " + ", ".join(get_args(Operator)))
        if not isinstance(self.value, str) or not self.value:
            raise self._wrong("value", self.value, "a text of 1 character or more")
        if self.operator in ("like", "not like"):
            try:
                pc.match_substring_regex(pa.array([""]), self._pattern)
            except pa.ArrowInvalid as error:
                raise self._wrong(
                    "value", self.value, f"a regular expression of RE2 ({error})"
                ) from None

    def _wrong(self, subject: str, got: object, takes: str) -> OptionError:
        return OptionError(
            f"{self.step} got {subject} {got!r}; it takes {takes}",
            option=self.step,
            got=str(got),
            takes=takes,
        )

    @property
    def _pattern(self) -> str:
        return rf"\A(?:{self.value})\z"

    @property
    def _is_null(self) -> bool:
        return self.value.lower() == "null" and self.operator in ("=", "!=")

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        field = schema.field(column_index(schema, self.column, self.step))
        if not has_text(field.type):
            raise SchemaError(
                f"{self.step}: column {field.name!r} has type {field.type}, whose values are not "
                "compared: name a column of numbers, texts or times"
            )
        kind = carried_type(field)
        try:
            self._hits(pa.array([], field.type), field)
        except (ValueError, pa.ArrowException):
            takes = "a whole number" if pa.types.is_integer(kind) else f"a value of type {kind}"
            raise SchemaError(
                f"{self.step}: column {field.name!r} is {kind}, "
                f"which does not compare to {self.value!r}; it takes {takes}"
            ) from None
        return schema

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        index = column_index(batch.schema, self.column, self.step)
        hits = self._hits(batch.column(index), batch.schema.field(index))
        if not pc.any(hits, min_count=0).as_py():
            return TransformResult(batch)
        return TransformResult(batch.filter(pc.invert(hits)))

    def _hits(self, array: pa.Array, field: pa.Field) -> pa.BooleanArray:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if self._is_null and not _is_text(carried_type(field)):
            return pc.is_null(array) if self.operator == "=" else pc.is_valid(array)
        if self.operator in ("like", "not like"):
            matches = pc.fill_null(
                pc.match_substring_regex(as_text(array, field.name), self._pattern), False
            )
            return matches if self.operator == "like" else pc.invert(matches)
        compared = pc.call_function(_COMPARE[self.operator], self._comparable(array, field))
        if self._is_null:
            return pc.fill_null(compared, self.operator == "=")
        return pc.fill_null(compared, self.operator == "!=")

    def _comparable(self, array: pa.Array, field: pa.Field) -> list[Any]:
        kind = carried_type(field)
        if pa.types.is_integer(kind) and kind != array.type:
            return [array, pa.scalar(Decimal(int(self.value)))]
        if pa.types.is_integer(kind):
            number = int(self.value)
            if pa.types.is_signed_integer(kind) and -(2**63) <= number < 2**63:
                return [array, pa.scalar(number, pa.int64())]
            return [pc.cast(array, pa.decimal128(20, 0)), pa.scalar(Decimal(number))]
        if pa.types.is_floating(kind):
            return [cast_or_refuse(array, pa.float64())[0], pa.scalar(float(self.value))]
        if pa.types.is_decimal(kind):
            return [array, pa.scalar(_decimal(self.value))]
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            instants = pc.cast(array, pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
            return [pc.cast(instants, pa.int64()), pa.scalar(self._moment(kind), pa.int64())]
        return [as_text(array, field.name), pa.scalar(self.value)]

    def _moment(self, kind: pa.DataType) -> int:
        """`value` in microseconds since 1970, as the times of `kind` count them."""
        if not self.value.lstrip("-").isdigit():
            moment = datetime.fromisoformat(self.value)
            stamp = pa.scalar(moment, pa.timestamp("us", "UTC" if moment.tzinfo else None))
            return int(stamp.cast(pa.int64()).as_py())
        micros = int(self.value) * 1000
        if getattr(kind, "tz", None):
            return micros
        local = pc.local_timestamp(pa.scalar(micros, pa.timestamp("us", self.zone)))
        return int(local.cast(pa.int64()).as_py())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None
