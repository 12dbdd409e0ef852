"""Which columns go on, in which order, under which name and type: DataX's `column` lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.errors import OptionError, SchemaError
from spark_channel.text_length import TEXT_LENGTH, length_in
from spark_channel.transform.cast import cast_or_refuse
from spark_channel.transform.contract import Column, Outcome, Refused, Transformer, column_index
from spark_channel.transform.made_up import RandomValues

__all__ = ["Output", "Rename", "Select", "refusals"]


@dataclass(frozen=True, slots=True)
class Output:
    """One column that `Select` returns: an input column, a constant, or generated values.

    `source` None: `constant` in every row, or `random` values. `kind` None: the source's type. `patterns`
    (strptime's letters) read text as a time, the first that fits. `name` None: the source's name.
    """

    source: Column | None = None
    name: str | None = None
    kind: pa.DataType | None = None
    patterns: tuple[str, ...] = ()
    constant: Any = None
    random: RandomValues | None = None

    def output_field(self, schema: pa.Schema, position: int, step: str) -> pa.Field:
        if self.source is None:
            nullable = self.random is None and self.constant is None
            return pa.field(self.name or f"c{position}", self.kind or pa.string(), nullable=nullable)
        given = schema.field(column_index(schema, self.source, step))
        kind = given.type if self.kind is None else self.kind
        length = length_in(given.metadata, TEXT_LENGTH.encode()) if kind == given.type else None
        notes = None if length is None else {TEXT_LENGTH: length}
        return pa.field(self.name or given.name, kind, nullable=given.nullable, metadata=notes)


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
            made = output.output_field(schema, position, self.step)
            if output.source is not None and output.kind is not None:
                given = schema.field(column_index(schema, output.source, self.step))
                try:
                    cast_or_refuse(pa.array([], given.type), output.kind, output.patterns)
                except pa.ArrowException:
                    raise SchemaError(
                        f"{self.step} {position}: column {given.name!r} is {given.type}, "
                        f"which cannot become {output.kind}"
                    ) from None
            fields.append(made)
        return pa.schema(fields)

    def apply(self, batch: pa.RecordBatch) -> Outcome:
        schema = pa.schema(
            [output.output_field(batch.schema, n, self.step) for n, output in enumerate(self.outputs)]
        )
        arrays: list[pa.Array] = []
        guilty: pa.BooleanArray | None = None
        reasons: list[tuple[pa.BooleanArray, str]] = []
        for output, made in zip(self.outputs, schema, strict=True):
            if output.source is None:
                arrays.append(_without_source(output, made.type, batch))
                continue
            array = batch.column(column_index(batch.schema, output.source, self.step))
            if output.kind is not None and array.type != output.kind:
                array, bad = cast_or_refuse(array, output.kind, output.patterns)
                if bad is not None:
                    reasons.append((bad, f"{self.step} {made.name!r}: not a value of type {output.kind}"))
                    guilty = bad if guilty is None else pc.or_(guilty, bad)
            arrays.append(array)
        if guilty is None:
            return Outcome(pa.RecordBatch.from_arrays(arrays, schema=schema))
        good = pc.invert(guilty)
        kept = [array.filter(good) for array in arrays]
        return Outcome(pa.RecordBatch.from_arrays(kept, schema=schema), refusals(batch, reasons))


def constant_of(output: Output) -> pa.Scalar:
    """The constant in the output's type.

    Raises:
        OptionError: it has no such value.
    """
    kind = output.kind or pa.string()
    text = pa.array([None if output.constant is None else _as_text(output.constant)], pa.string())
    made, bad = cast_or_refuse(text, kind, output.patterns)
    if bad is not None:
        raise OptionError(
            f"column value {output.constant!r} is not a value of type {kind}",
            option="value", got=str(output.constant), takes=f"a value of type {kind}",
        )  # fmt: skip
    return made[0]


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without_source(output: Output, kind: pa.DataType, batch: pa.RecordBatch) -> pa.Array:
    if output.random is not None:
        return output.random.make(batch, kind)
    return pa.repeat(constant_of(output), batch.num_rows)


def refusals(batch: pa.RecordBatch, reasons: Sequence[tuple[pa.BooleanArray, str]]) -> tuple[Refused, ...]:
    """Each guilty row once, under the first reason that it met."""
    refused = []
    seen = pa.repeat(pa.scalar(False), batch.num_rows)
    for bad, reason in reasons:
        new = pc.and_not(bad, seen)
        if pc.any(new, min_count=0).as_py():
            refused.append(Refused(batch.filter(new), reason))
        seen = pc.or_(seen, bad)
    return tuple(refused)


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
        return pa.schema([part.with_name(name) for part, name in zip(schema, self.names, strict=True)])

    def apply(self, batch: pa.RecordBatch) -> Outcome:
        return Outcome(pa.RecordBatch.from_arrays(batch.columns, schema=self.output_schema(batch.schema)))
