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
        done = {
            "added to the target": self.added,
            "widened in the target": self.widened,
            "left out": self.left_out,
        }
        return "; ".join(
            f"{'columns' if len(names) > 1 else 'column'} {', '.join(map(repr, names))} {what}"
            for what, names in done.items()
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
    known = {name.lower() for name in target.names}
    new = [each for each in arriving if each.name.lower() not in known]
    changed = [
        (each, there)
        for each, there in _shared(arriving, target)
        if not _holds(there.type, each.type)
    ]
    discards = contract.data_type in ("discard_row", "discard_value")
    if discards:
        changed += [
            (each, there)
            for each, there in _shared(arriving, target)
            if not there.type.equals(each.type)
            and _may_convert(each.type, there.type)
            and all(each is not other for other, _ in changed)
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
    if discards and check is not None:
        schema = prepare(steps, arriving).output_schema
        shared = pa.schema([each for each in schema if each.name.lower() in known])
        if (found := check(shared)) is not None:
            judged = tuple(each.name for each in shared if each.name not in _OF_FEED)
            steps.append(FitColumns(judged, found, drops_rows=contract.data_type == "discard_row"))
    is_narrow = changed or refused
    arrive = {name.lower() for name in arriving.names}
    lacks = any(name.lower() not in arrive for name in target.names)
    evolves = ((new or lacks or is_stricter) and contract.columns == "evolve") or (
        is_narrow and contract.data_type == "evolve"
    )
    options = (("onSchemaChange", "evolve"),) if evolves and keeps_columns else ()
    new_names = tuple(each.name for each in new)
    adds = contract.columns == "evolve"
    widens = contract.data_type == "evolve" and bool(options)
    return Decision(
        tuple(steps),
        options,
        added=new_names if adds else (),
        widened=tuple(each.name for each, _ in changed) if widens else (),
        left_out=() if adds else new_names,
    )


def _shared(arriving: pa.Schema, target: pa.Schema) -> list[tuple[pa.Field, pa.Field]]:
    """The columns of both: that of the rows, and that of the target."""
    known = {name.lower(): place for place, name in enumerate(target.names)}
    return [
        (each, target.field(known[each.name.lower()]))
        for each in arriving
        if each.name.lower() in known
    ]


def _may_convert(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of the type `given` may be equal to some of `wanted`: a time in no zone is no instant."""
    types = pa.types
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    return is_list(given) == is_list(wanted) and types.is_nested(given) == types.is_nested(wanted)


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
            made = _fitted(values, types[field.name])
            arrays.append(made)
            fits.append(pc.or_(pc.is_valid(made), pc.is_null(values)))
        made_batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if self.drops_rows:
            made_batch = made_batch.filter(_or_ends(batch, _all(fits)))
        return TransformResult(made_batch)


def _fitted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Each value as `kind`; NULL for those that `kind` does not hold exactly."""
    made: list[pa.Array] = []
    parts = [values]
    while parts:
        part = parts.pop()
        try:
            # Arrow's cast of a slice of lists looks at the values of the others, too: a copy has none of them.
            made.append(_converted(pa.concat_arrays([part]), kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            if len(part) == 1:
                made.append(pa.nulls(1, kind))
                continue
            middle = len(part) // 2
            parts += [part.slice(middle), part.slice(0, middle)]
    return pa.concat_arrays(made)


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
        made = cast_exactly(values.cast(wide), kind)
        differs = changed_by(values.cast(pa.string()), kind)
    else:
        made = values.cast(kind)
        differs = pc.not_equal(made.cast(values.type), values)
    if pc.any(differs).as_py():
        raise InexactError(f"a value of type {values.type} is not equal to any of type {kind}")
    return made


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
            [each.with_nullable(True) if each.name in self.names else each for each in schema]
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        arrays, bad = list(batch.columns), set[int]()
        for name in self.names:
            place = batch.schema.names.index(name)
            found = self._bad(name, arrays[place])
            if found:
                mask = pa.array([row in found for row in range(batch.num_rows)])
                arrays[place] = pc.if_else(mask, pa.scalar(None, arrays[place].type), arrays[place])
                bad |= found
        made = pa.RecordBatch.from_arrays(arrays, schema=self.output_schema(batch.schema))
        if self.drops_rows and bad:
            fits = pa.array([row not in bad for row in range(batch.num_rows)])
            made = made.filter(_or_ends(batch, fits))
        return TransformResult(made)

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
