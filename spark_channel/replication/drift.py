"""What is done where a source and its target differ, by the contract of the stream. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.feed import CLOSE_ALL, CLOSES, DELETES, OPERATION
from spark_channel.errors import SchemaError
from spark_channel.lazy import compute as pc
from spark_channel.replication.config import Contract
from spark_channel.transform.transformer import Flow, Transformer, TransformResult

__all__ = ["AddNulls", "Decision", "LeaveOut", "LoadColumns", "decide"]


@dataclass(frozen=True, slots=True)
class Decision:
    """`steps` change the rows, `options` are the writer's. `skip`: the table is left out, and why."""

    steps: tuple[Transformer, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    skip: str = ""


def decide(
    contract: Contract, arriving: pa.Schema, target: pa.Schema | None, *, keeps_columns: bool
) -> Decision:
    """What the contract says of rows with the columns `arriving`; `target` None: the table is not there.

    `keeps_columns`: the writer adds its rows to the columns that are there, as a database does.

    Raises:
        SchemaError: the contract refuses the difference; says what to do.
    """
    if target is None:
        if contract.tables == "evolve":
            return Decision()
        if contract.tables == "freeze":
            raise SchemaError(
                "the target has no such table, and contract.tables is freeze: create it, or write evolve"
            )
        return Decision(
            skip=f"the target has no such table, and contract.tables is {contract.tables}"
        )
    known = {name.lower(): place for place, name in enumerate(target.names)}
    new = [each for each in arriving if each.name.lower() not in known]
    changed = [
        (each, target.field(known[each.name.lower()]))
        for each in arriving
        if each.name.lower() in known
        and not _holds(target.field(known[each.name.lower()]).type, each.type)
    ]
    steps: list[Transformer] = []
    if new and contract.columns != "evolve":
        names = ", ".join(repr(each.name) for each in new)
        if contract.columns == "freeze":
            added = "; ".join(f"ADD COLUMN {each.name} ({each.type})" for each in new)
            raise SchemaError(
                f"the target has no column {names}, and contract.columns is freeze: add it ({added}), mask it with "
                "'drop', or write evolve"
            )
        steps.append(
            LeaveOut(tuple(each.name for each in new), drops_rows=contract.columns == "discard_row")
        )
    if changed and contract.data_type != "evolve":
        said = ", ".join(
            f"{each.name!r} is {each.type} and was {there.type}" for each, there in changed
        )
        if contract.data_type == "freeze":
            raise SchemaError(
                f"{said}, and contract.data_type is freeze: change the target's column, or write evolve, "
                "which widens it where the target can"
            )
        steps.append(
            FitTypes(
                tuple((each.name, there.type) for each, there in changed),
                drops_rows=contract.data_type == "discard_row",
            )
        )
    evolves = (new and contract.columns == "evolve") or (changed and contract.data_type == "evolve")
    options = (("onSchemaChange", "evolve"),) if evolves and keeps_columns else ()
    return Decision(tuple(steps), options)


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a column of `wide` can hold values of `narrow`, as far as that is clear; the writer judges the rest."""
    types = pa.types
    if wide.equals(narrow):
        return True
    if types.is_integer(narrow):
        if types.is_integer(wide):
            signed = types.is_signed_integer(wide)
            unsigned = types.is_unsigned_integer(narrow)
            return bool(wide.bit_width >= narrow.bit_width + (unsigned and signed))
        return bool(types.is_decimal(wide) or types.is_floating(wide))
    if types.is_floating(narrow):
        return bool(types.is_floating(wide) and wide.bit_width >= narrow.bit_width)
    if types.is_decimal(narrow) and types.is_decimal(wide):
        return bool(
            wide.scale >= narrow.scale
            and wide.precision - wide.scale >= narrow.precision - narrow.scale
        )
    texts = (types.is_string(narrow) or types.is_large_string(narrow)) and (
        types.is_integer(wide) or types.is_temporal(wide) or types.is_floating(wide)
    )
    return not texts


@dataclass(frozen=True, slots=True)
class LeaveOut(Transformer):
    """Leaves columns out; `drops_rows`: also the rows that have a value in one of them."""

    names: tuple[str, ...]
    drops_rows: bool = False
    step: ClassVar[str] = "contract.columns"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([each for each in schema if each.name not in self.names])

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...]:
        return tuple(Flow((n,)) for n, name in enumerate(schema.names) if name not in self.names)

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        if self.drops_rows:
            fits = _all([pc.is_null(batch.column(name)) for name in self.names])
            batch = batch.filter(_or_ends(batch, fits))
        names = [name for name in batch.schema.names if name not in self.names]
        return TransformResult(batch.select(names))


@dataclass(frozen=True, slots=True)
class AddNulls(Transformer):
    """Adds columns that the target has and the rows lack, of NULLs: a write of whole rows names every column."""

    fields: tuple[pa.Field, ...]
    step: ClassVar[str] = "contract.columns"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([*schema, *self.fields])

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...]:
        return (
            *(Flow((n,)) for n in range(len(schema))),
            *(Flow((), self.step),) * len(self.fields),
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        arrays = [*batch.columns, *(pa.nulls(batch.num_rows, each.type) for each in self.fields)]
        return TransformResult(
            pa.RecordBatch.from_arrays(arrays, schema=self.output_schema(batch.schema))
        )


@dataclass(frozen=True, slots=True)
class FitTypes(Transformer):
    """Casts columns to the target's types; a value that does not fit is NULL, or its row is dropped (`drops_rows`)."""

    columns: tuple[tuple[str, pa.DataType], ...]
    drops_rows: bool = False
    step: ClassVar[str] = "contract.data_type"
    in_place: ClassVar[bool] = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        types = dict(self.columns)
        return pa.schema(
            [
                pa.field(each.name, types[each.name]) if each.name in types else each
                for each in schema
            ]
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        types, arrays, fits = dict(self.columns), [], []
        schema = self.output_schema(batch.schema)
        for field, values in zip(batch.schema, batch.columns, strict=True):
            if field.name not in types:
                arrays.append(values)
                continue
            made = _cast_each(values, types[field.name])
            arrays.append(made)
            fits.append(pc.or_(pc.is_valid(made), pc.is_null(values)))
        made_batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if self.drops_rows:
            made_batch = made_batch.filter(_or_ends(batch, _all(fits)))
        return TransformResult(made_batch)


def _cast_each(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Each value cast alone where the whole array cannot be; NULL for those that do not fit."""
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass

    def one(value: pa.Scalar) -> Any:
        try:
            return value.cast(kind).as_py()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None

    return pa.array([one(each) for each in values], kind)


def _or_ends(batch: pa.RecordBatch, kept: pa.Array) -> pa.Array:
    """`kept`, and the changes that end a row: the target has it, whatever values it had in the end."""
    if OPERATION not in batch.schema.names:
        return kept
    ends = pa.array((*DELETES, *CLOSES, *CLOSE_ALL))
    return pc.or_(kept, pc.is_in(batch.column(OPERATION), ends))


def _all(masks: Sequence[pa.Array]) -> pa.Array:
    made = masks[0]
    for each in masks[1:]:
        made = pc.and_(made, each)
    return made


@dataclass(frozen=True, slots=True)
class LoadColumns(Transformer):
    """Adds `_loaded_at`, the start of the run, and `_run_id`."""

    run_id: str
    at: datetime
    step: ClassVar[str] = "load_columns"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        taken = {name.lower() for name in schema.names} & {"_loaded_at", "_run_id"}
        if taken:
            raise SchemaError(
                f"load_columns adds {min(taken)!r}, and the table has such a column: mask it with 'drop', or set "
                "load_columns to false"
            )
        return pa.schema([*schema, *self._fields()])

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...]:
        return (*(Flow((n,)) for n in range(len(schema))), *(Flow((), self.step),) * 2)

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        fields = self._fields()
        arrays = [
            pa.repeat(pa.scalar(value, each.type), batch.num_rows)
            for value, each in zip((self.at, self.run_id), fields, strict=True)
        ]
        made = pa.RecordBatch.from_arrays(
            [*batch.columns, *arrays], schema=pa.schema([*batch.schema, *fields])
        )
        return TransformResult(made)

    @staticmethod
    def _fields() -> list[pa.Field]:
        return [
            pa.field("_loaded_at", pa.timestamp("us", tz="UTC")),
            pa.field("_run_id", pa.string()),
        ]
