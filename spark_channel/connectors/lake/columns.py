"""Rows' columns to a table's: found by name, and only types that hold every value."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from spark_channel.errors import OptionError, SchemaError, TargetError

__all__ = ["Widen", "conform", "find_names", "holds", "match", "spell"]


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether `wide` has every value of `narrow`. Finer times are cut only if nothing is lost, row by row."""
    types = pa.types
    if types.is_dictionary(narrow):
        return holds(wide, narrow.value_type)
    if wide.equals(narrow):
        return True
    if types.is_signed_integer(wide) and types.is_integer(narrow):
        return bool(wide.bit_width >= narrow.bit_width + types.is_unsigned_integer(narrow))
    if types.is_floating(wide) and types.is_floating(narrow):
        return bool(wide.bit_width >= narrow.bit_width)
    if types.is_decimal128(wide) and types.is_decimal(narrow):
        whole = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(whole and wide.scale >= narrow.scale)
    if types.is_timestamp(wide) and types.is_timestamp(narrow):
        return (wide.tz is None) == (narrow.tz is None)
    if types.is_time(wide) and types.is_time(narrow):
        return True
    return _same_kind(wide, narrow) or _nested(wide, narrow)


def _same_kind(wide: pa.DataType, narrow: pa.DataType) -> bool:
    def text(kind: pa.DataType) -> bool:
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())

    def data(kind: pa.DataType) -> bool:
        types = pa.types
        return bool(types.is_binary(kind) or types.is_large_binary(kind) or kind == pa.binary_view())

    if pa.types.is_fixed_size_binary(narrow):
        return data(wide)
    return (text(wide) and text(narrow)) or (data(wide) and data(narrow))


def _nested(wide: pa.DataType, narrow: pa.DataType) -> bool:
    types = pa.types
    if types.is_struct(wide) and types.is_struct(narrow):
        both = [(wide.field(i), narrow.field(i)) for i in range(min(wide.num_fields, narrow.num_fields))]
        same = wide.num_fields == narrow.num_fields and all(a.name == b.name for a, b in both)
        return same and all(holds(a.type, b.type) for a, b in both)
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(each(wide) for each in lists[:2]) and any(each(narrow) for each in lists):
        return holds(wide.value_type, narrow.value_type)
    if types.is_map(wide) and types.is_map(narrow):
        return holds(wide.key_type, narrow.key_type) and holds(wide.item_type, narrow.item_type)
    return False


def find_names(names: Sequence[str], columns: pa.Schema, option: str) -> tuple[str, ...]:
    """`names` as `columns` spells them.

    Raises:
        OptionError: the column does not exist.
    """
    found = []
    for name in names:
        spelled = spell(name, columns)
        if spelled is None:
            raise OptionError(
                f"option {option!r} names {name!r}, which is not a column; there are {', '.join(columns.names)}",
                option=option, got=name, takes=", ".join(columns.names),
            )  # fmt: skip
        found.append(spelled)
    return tuple(found)


def spell(name: str, columns: pa.Schema) -> str | None:
    """A column's own name: spelled exactly so, else the only one that differs in case alone."""
    if name in columns.names:
        return name
    near = [each for each in columns.names if each.lower() == name.lower()]
    return near[0] if len(near) == 1 else None


Widen = Callable[[pa.Field, pa.DataType], pa.Field | None]
"""(a column of the table, the type of the rows') -> the column as it can hold the rows; None = it cannot."""


def match(
    schema: pa.Schema, columns: pa.Schema, shown: str, widen: Widen
) -> tuple[dict[str, str], list[pa.Field], list[pa.Field]]:
    """(the rows' name of each of the table's columns that they have, the rows' columns that the table lacks, columns
    of the table as they must become to hold the rows).

    Raises:
        SchemaError: a type that its column cannot hold exactly, or a column that must not be NULL is missing.
    """
    found: dict[str, str] = {}
    new: list[pa.Field] = []
    wider: list[pa.Field] = []
    for field in schema:
        name = spell(field.name, columns)
        if name is None:
            new.append(field)
            continue
        if name in found:
            raise SchemaError(
                f"columns {found[name]!r} and {field.name!r} are both column {name!r} of {shown}; rename one"
            )
        there = columns.field(name)
        if not holds(there.type, field.type):
            wide = widen(there, field.type)
            if wide is None or not (holds(wide.type, there.type) and holds(wide.type, field.type)):
                raise SchemaError(
                    f"column {field.name!r} is {field.type}, and {shown} has it as {there.type}, which does not hold "
                    "every value; cast it first"
                )
            wider.append(wide)
        found[name] = field.name
    missing = [field.name for field in columns if field.name not in found and not field.nullable]
    if missing:
        raise SchemaError(
            f"{shown} needs a value in column {missing[0]!r}, which the rows lack; add the column"
        )
    return found, new, wider


def conform(batch: pa.RecordBatch, columns: pa.Schema, names: Sequence[str], shown: str) -> pa.RecordBatch:
    """`batch`, whose columns `names` are those of `columns`, in the table's types.

    Raises:
        TargetError: a value that does not fit, or NULL where the table has none.
    """
    made = []
    for field, name in zip(columns, names, strict=True):
        values = batch.column(batch.schema.get_field_index(name))
        if not field.nullable and values.null_count:
            raise TargetError(f"column {name!r} holds NULL, and {shown} does not allow it")
        if not values.type.equals(field.type):
            try:
                values = values.cast(field.type, safe=True)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise TargetError(
                    f"column {name!r} holds a value that does not fit {field.type} of {shown}: {error}; "
                    "cast or truncate it first"
                ) from error
        made.append(values)
    return pa.RecordBatch.from_arrays(made, schema=columns)
