"""What is done where a source and its target differ, by the contract of the stream. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import pyarrow as pa

from spark_channel.arrow_schema import InexactError, cast_exactly, is_list, is_number, is_text
from spark_channel.connectors.base.contract import ValueCheck
from spark_channel.connectors.base.feed import BEGIN, CLOSE_ALL, CLOSES, DELETES, ENDS, OPERATION
from spark_channel.connectors.base.types import changed_by
from spark_channel.errors import SchemaError
from spark_channel.lazy import compute as pc
from spark_channel.replication.config import Contract
from spark_channel.transform.transformer import Flow, Transformer, TransformResult, prepare

__all__ = ["AddNulls", "Decision", "LeaveOut", "LoadColumns", "decide"]

_OF_FEED = (OPERATION, BEGIN, *ENDS)
"""Columns that a feed adds to rows, which are no values of the source."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`steps` change the rows, `options` are the writer's. `skip`: the table is left out, and why.

    `added`, `widened` and `left_out` are columns of the rows, by what is done with them.
    """

    steps: tuple[Transformer, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    skip: str = ""
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What is done with the columns, for the report; empty = nothing."""
        columns_by_action = {
            "added to the target": self.added,
            "widened in the target": self.widened,
            "left out": self.left_out,
        }
        return "; ".join(
            f"{'columns' if len(names) > 1 else 'column'} {', '.join(map(repr, names))} {action}"
            for action, names in columns_by_action.items()
            if names
        )


def decide(
    contract: Contract,
    arriving: pa.Schema,
    target: pa.Schema | None,
    *,
    keeps_columns: bool,
    refused: bool = False,
    is_stricter: bool = False,
    check: Callable[[pa.Schema], ValueCheck | None] | None = None,
) -> Decision:
    """What the contract says of rows with the columns `arriving`; `target` None: the table is not there.

    `keeps_columns`: the writer adds its rows to the columns that are there, as a database does. `refused`: it has
    refused values, although its columns have the types of the rows. `is_stricter`: a column of the target is NOT NULL,
    and its source's is not. `check` returns what else the target's columns
    do not hold, such as long texts.

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
    target_names = {name.lower() for name in target.names}
    new = [column for column in arriving if column.name.lower() not in target_names]
    changed = [
        (column, existing)
        for column, existing in _shared(arriving, target)
        if not _holds(existing.type, column.type)
    ]
    discards = contract.data_type in ("discard_row", "discard_value")
    if discards:
        changed += [
            (column, existing)
            for column, existing in _shared(arriving, target)
            if not existing.type.equals(column.type)
            and _may_convert(column.type, existing.type)
            and all(column is not other for other, _ in changed)
        ]
    steps: list[Transformer] = []
    if new and contract.columns != "evolve":
        names = ", ".join(repr(column.name) for column in new)
        if contract.columns == "freeze":
            added = "; ".join(f"ADD COLUMN {column.name} ({column.type})" for column in new)
            raise SchemaError(
                f"the target has no column {names}, and contract.columns is freeze: add it ({added}), mask it with "
                "'drop', or write evolve"
            )
        steps.append(
            LeaveOut(
                tuple(column.name for column in new), drops_rows=contract.columns == "discard_row"
            )
        )
    if changed and contract.data_type != "evolve":
        differences = ", ".join(
            f"{column.name!r} is {column.type} and was {existing.type}"
            for column, existing in changed
        )
        if contract.data_type == "freeze":
            raise SchemaError(
                f"{differences}, and contract.data_type is freeze: change the target's column, or write evolve, "
                "which widens it where the target can"
            )
        steps.append(
            FitTypes(
                tuple((column.name, existing.type) for column, existing in changed),
                drops_rows=contract.data_type == "discard_row",
            )
        )
    if discards and check is not None:
        schema = prepare(steps, arriving).output_schema
        shared = pa.schema([column for column in schema if column.name.lower() in target_names])
        if (value_check := check(shared)) is not None:
            judged = tuple(column.name for column in shared if column.name not in _OF_FEED)
            steps.append(
                FitColumns(judged, value_check, drops_rows=contract.data_type == "discard_row")
            )
    is_narrow = changed or refused
    arrive = {name.lower() for name in arriving.names}
    lacks = any(name.lower() not in arrive for name in target.names)
    evolves = ((new or lacks or is_stricter) and contract.columns == "evolve") or (
        is_narrow and contract.data_type == "evolve"
    )
    options = (("onSchemaChange", "evolve"),) if evolves and keeps_columns else ()
    new_names = tuple(column.name for column in new)
    adds = contract.columns == "evolve"
    widens = contract.data_type == "evolve" and bool(options)
    return Decision(
        tuple(steps),
        options,
        added=new_names if adds else (),
        widened=tuple(column.name for column, _ in changed) if widens else (),
        left_out=() if adds else new_names,
    )


def _shared(arriving: pa.Schema, target: pa.Schema) -> list[tuple[pa.Field, pa.Field]]:
    """The columns of both: that of the rows, and that of the target."""
    positions = {name.lower(): position for position, name in enumerate(target.names)}
    return [
        (column, target.field(positions[column.name.lower()]))
        for column in arriving
        if column.name.lower() in positions
    ]


def _may_convert(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of the type `source` may be equal to some of `target`: a time in no zone is no instant."""
    types = pa.types
    if types.is_timestamp(source) and types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    return is_list(source) == is_list(target) and types.is_nested(source) == types.is_nested(target)


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a column of `wide` can hold values of `narrow`, as far as that is clear; the writer judges the rest."""
    types = pa.types
    if wide.equals(narrow):
        return True
    if is_list(wide) and is_list(narrow):
        return _holds(wide.value_type, narrow.value_type)
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
        return pa.schema([column for column in schema if column.name not in self.names])

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
        arrays = [*batch.columns, *(pa.nulls(batch.num_rows, field.type) for field in self.fields)]
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
                pa.field(column.name, types[column.name]) if column.name in types else column
                for column in schema
            ]
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        types, arrays, fits = dict(self.columns), [], []
        schema = self.output_schema(batch.schema)
        for field, values in zip(batch.schema, batch.columns, strict=True):
            if field.name not in types:
                arrays.append(values)
                continue
            fitted = _fitted(values, types[field.name])
            arrays.append(fitted)
            fits.append(pc.or_(pc.is_valid(fitted), pc.is_null(values)))
        made_batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if self.drops_rows:
            made_batch = made_batch.filter(_or_ends(batch, _all(fits)))
        return TransformResult(made_batch)


def _fitted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Each value as `kind`; NULL for those that `kind` does not hold exactly."""
    converted: list[pa.Array] = []
    parts = [values]
    while parts:
        part = parts.pop()
        try:
            # Arrow's cast of a slice of lists looks at the values of the others, too: a copy has none of them.
            converted.append(_converted(pa.concat_arrays([part]), kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            if len(part) == 1:
                converted.append(pa.nulls(1, kind))
                continue
            middle = len(part) // 2
            parts += [part.slice(middle), part.slice(0, middle)]
    return pa.concat_arrays(converted)


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """
    Raises:
        ArrowInvalid: a value that `kind` does not hold exactly.
    """
    try:
        return cast_exactly(values, kind)
    except InexactError:
        if pa.types.is_nested(values.type) or pa.types.is_nested(kind):
            raise
    types = pa.types
    if is_text(values.type) and (is_number(kind) or types.is_timestamp(kind)):
        wide = (
            pa.decimal256(76, 38)
            if types.is_decimal(kind)
            else pa.float64()
            if types.is_floating(kind)
            else kind
        )
        converted = cast_exactly(values.cast(wide), kind)
        differs = changed_by(values.cast(pa.string()), kind)
    else:
        converted = values.cast(kind)
        differs = pc.not_equal(converted.cast(values.type), values)
    if pc.any(differs).as_py():
        raise InexactError(f"a value of type {values.type} is not equal to any of type {kind}")
    return converted


@dataclass(frozen=True, slots=True)
class FitColumns(Transformer):
    """Takes out values that the target's columns do not hold, whatever their types: NULL, or no row (`drops_rows`)."""

    names: tuple[str, ...]
    check: ValueCheck
    drops_rows: bool = False
    step: ClassVar[str] = "contract.data_type"
    in_place: ClassVar[bool] = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema(
            [
                column.with_nullable(True) if column.name in self.names else column
                for column in schema
            ]
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        arrays, bad = list(batch.columns), set[int]()
        for name in self.names:
            index = batch.schema.names.index(name)
            bad_rows = self._bad(name, arrays[index])
            if bad_rows:
                mask = pa.array([row in bad_rows for row in range(batch.num_rows)])
                arrays[index] = pc.if_else(mask, pa.scalar(None, arrays[index].type), arrays[index])
                bad |= bad_rows
        fitted = pa.RecordBatch.from_arrays(arrays, schema=self.output_schema(batch.schema))
        if self.drops_rows and bad:
            fits = pa.array([row not in bad for row in range(batch.num_rows)])
            fitted = fitted.filter(_or_ends(batch, fits))
        return TransformResult(fitted)

    def _bad(self, name: str, values: pa.Array) -> set[int]:
        """The rows whose value the column does not hold."""
        bad, parts = set[int](), [(0, len(values))] if len(values) else []
        while parts:
            first, count = parts.pop()
            if self.check.holds(name, values.slice(first, count)):
                continue
            if count == 1:
                bad.add(first)
                continue
            half = count // 2
            parts += [(first, half), (first + half, count - half)]
        return bad


def _or_ends(batch: pa.RecordBatch, fits: pa.Array) -> pa.Array:
    """`fits`, and the changes that end a row: the target has it, whatever values it had in the end."""
    if OPERATION not in batch.schema.names:
        return fits
    ends = pa.array((*DELETES, *CLOSES, *CLOSE_ALL))
    return pc.or_(fits, pc.is_in(batch.column(OPERATION), ends))


def _all(masks: Sequence[pa.Array]) -> pa.Array:
    combined = masks[0]
    for mask in masks[1:]:
        combined = pc.and_(combined, mask)
    return combined


@dataclass(frozen=True, slots=True)
class LoadColumns(Transformer):
    """Adds `_loaded_at`, the start of the run, and `_run_id`."""

    run_id: str
    at: datetime
    step: ClassVar[str] = "load_columns"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        clashing = {name.lower() for name in schema.names} & {"_loaded_at", "_run_id"}
        if clashing:
            raise SchemaError(
                f"load_columns adds {min(clashing)!r}, and the table has such a column: mask it with 'drop', or set "
                "load_columns to false"
            )
        return pa.schema([*schema, *self._fields()])

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...]:
        return (*(Flow((n,)) for n in range(len(schema))), *(Flow((), self.step),) * 2)

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        fields = self._fields()
        arrays = [
            pa.repeat(pa.scalar(value, field.type), batch.num_rows)
            for value, field in zip((self.at, self.run_id), fields, strict=True)
        ]
        extended = pa.RecordBatch.from_arrays(
            [*batch.columns, *arrays], schema=pa.schema([*batch.schema, *fields])
        )
        return TransformResult(extended)

    @staticmethod
    def _fields() -> list[pa.Field]:
        return [
            pa.field("_loaded_at", pa.timestamp("us", tz="UTC")),
            pa.field("_run_id", pa.string()),
        ]
