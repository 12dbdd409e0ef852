"""Rows' columns to a table's: found by name, and only types that hold every value."""

import re
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from spark_channel.arrow_schema import InexactError, cast_exactly, is_list, match_names, null_inside
from spark_channel.errors import OptionError, SchemaError, TargetError, UnsupportedError
from spark_channel.lazy import compute as pc

__all__ = [
    "LENGTH_NOTE",
    "Widen",
    "char_length",
    "check_no_char",
    "check_partition_column",
    "conform",
    "find_names",
    "holds",
    "is_length",
    "match",
    "with_blanks",
]

_SHOWN = 100
"""Characters of a value in a message."""
LENGTH_NOTE = "__CHAR_VARCHAR_TYPE_STRING"
"""Where Spark notes that a column of text is a CHAR or VARCHAR, in the metadata of its field."""
_LENGTH = re.compile(r"(char|varchar)\((\d+)\)")


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
        return bool(
            pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
        )

    def data(kind: pa.DataType) -> bool:
        types = pa.types
        return bool(
            types.is_binary(kind) or types.is_large_binary(kind) or kind == pa.binary_view()
        )

    if pa.types.is_fixed_size_binary(narrow):
        return data(wide)
    return (text(wide) and text(narrow)) or (data(wide) and data(narrow))


def _nested(wide: pa.DataType, narrow: pa.DataType) -> bool:
    types = pa.types
    if types.is_struct(wide) and types.is_struct(narrow):
        both = [
            (wide.field(i), narrow.field(i)) for i in range(min(wide.num_fields, narrow.num_fields))
        ]
        same = wide.num_fields == narrow.num_fields and all(a.name == b.name for a, b in both)
        return same and all(holds(a.type, b.type) for a, b in both)
    if is_list(wide) and not types.is_fixed_size_list(wide) and is_list(narrow):
        return holds(wide.value_type, narrow.value_type)
    if types.is_map(wide) and types.is_map(narrow):
        return holds(wide.key_type, narrow.key_type) and holds(wide.item_type, narrow.item_type)
    return False


def check_partition_column(field: pa.Field, label: str) -> None:
    """
    Raises:
        SchemaError: its values have no text that every reader reads alike.
    """
    kind, types = field.type, pa.types
    if (
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_date32(kind)
        or types.is_boolean(kind)
    ):
        return
    raise SchemaError(
        f"partition column {field.name!r} of {label} is {kind}; "
        "whole numbers, texts, dates and booleans can be partition columns here"
    )


def find_names(names: Sequence[str], columns: pa.Schema, option: str) -> tuple[str, ...]:
    """`names` as `columns` spells them.

    Raises:
        OptionError: the column does not exist.
    """
    spelled = match_names(names, columns.names)
    for name in names:
        if name not in spelled:
            raise OptionError(
                f"option {option!r} names {name!r}, which is not a column; there are {', '.join(columns.names)}",
                option=option,
                got=name,
                takes=", ".join(columns.names),
            )
    return tuple(spelled[name] for name in names)


Widen = Callable[[pa.Field, pa.DataType], pa.Field | None]
"""(a column of the table, the type of the rows') -> the column as it can hold the rows; None = it cannot."""


def match(
    schema: pa.Schema, columns: pa.Schema, label: str, widen: Widen
) -> tuple[dict[str, str], list[pa.Field], list[pa.Field]]:
    """(the rows' name of each of the table's columns that they have, the rows' columns that the table lacks, columns
    of the table as they must become to hold the rows).

    Raises:
        SchemaError: a type that its column cannot hold exactly, or a column that must not be NULL is missing.
    """
    names: dict[str, str] = {}
    new: list[pa.Field] = []
    wider: list[pa.Field] = []
    spelled = match_names(schema.names, columns.names, label)
    for field in schema:
        name = spelled.get(field.name)
        if name is None:
            _check_new(field.name, schema, columns, label)
            new.append(field)
            continue
        column = columns.field(name)
        if not holds(column.type, field.type):
            wide = widen(column, field.type)
            if wide is None or not (holds(wide.type, column.type) and holds(wide.type, field.type)):
                raise SchemaError(
                    f"column {field.name!r} is {field.type}, and {label} has it as {column.type}, which does not hold "
                    "every value; cast it first"
                )
            wider.append(wide)
        names[name] = field.name
    missing = [field.name for field in columns if field.name not in names and not field.nullable]
    if missing:
        raise SchemaError(
            f"{label} needs a value in column {missing[0]!r}, which the rows lack; add the column"
        )
    return names, new, wider


def is_length(note: str) -> bool:
    """Whether a note is of the column itself, and not of a type inside it."""
    return _LENGTH.fullmatch(note) is not None


def char_length(field: pa.Field) -> int | None:
    """The length of a CHAR; None: another type."""
    note = (field.metadata or {}).get(LENGTH_NOTE.encode(), b"").decode()
    length_match = _LENGTH.fullmatch(note)
    return None if length_match is None or length_match[1] != "char" else int(length_match[2])


def with_blanks(values: pa.Array, field: pa.Field) -> pa.Array:
    """The stored values of a column as Spark reads them: those of a CHAR have blanks up to its length."""
    length = char_length(field)
    return values if length is None else pc.utf8_rpad(values, length, " ")


def check_no_char(names: Iterable[str], columns: pa.Schema, option: str) -> None:
    """Check that a condition names no CHAR, whose values are in files with and without blanks at their ends.

    Raises:
        UnsupportedError: names the column.
    """
    for name in sorted(names):
        if char_length(columns.field(name)) is not None:
            raise UnsupportedError(
                f"option {option!r} names column {name!r}, which is a CHAR: its values are compared with the blanks "
                "at their ends in Spark, and without them here. Filter by another column, or after the read"
            )


def _of_length(values: pa.Array, field: pa.Field, label: str) -> pa.Array:
    """The values of a CHAR(n), with blanks to its length as Spark writes them, or of a VARCHAR(n).

    Raises:
        TargetError: a longer value. Spark would cut blanks at its end.
    """
    note = (field.metadata or {}).get(LENGTH_NOTE.encode(), b"").decode()
    note_match = _LENGTH.fullmatch(note)
    if note_match is None:
        return values
    kind, length = note_match[1], int(note_match[2])
    counts = pc.utf8_length(values)
    longer = pc.index(pc.greater(counts, length), True).as_py()
    if longer >= 0:
        text = values[longer].as_py()
        raise TargetError(
            f"column {field.name!r} is {note} in {label}, and a row has {counts[longer]} characters in it: "
            f"{text[:_SHOWN]!r}. Shorten the value, or change the column's type to STRING in Spark"
        )
    return pc.utf8_rpad(values, length, " ") if kind == "char" else values


def _check_new(name: str, schema: pa.Schema, columns: pa.Schema, label: str) -> None:
    """Tables do not distinguish names by case."""
    others = [other for other in (*columns.names, *schema.names) if other != name]
    for other in others:
        if other.lower() == name.lower():
            raise SchemaError(
                f"columns {other!r} and {name!r} are both column {name.lower()!r} of {label}; rename one"
            )


def conform(
    batch: pa.RecordBatch, columns: pa.Schema, names: Sequence[str], label: str
) -> pa.RecordBatch:
    """`batch`, whose columns `names` are those of `columns`, in the table's types.

    Raises:
        TargetError: a value that does not fit, or NULL where the table has none.
    """
    arrays = []
    for field, name in zip(columns, names, strict=True):
        values = batch.column(batch.schema.get_field_index(name))
        if not field.nullable and values.null_count:
            raise TargetError(f"column {name!r} holds NULL, and {label} does not allow it")
        if null_path := null_inside(values, field.type, name):
            raise TargetError(f"column {null_path!r} holds NULL, and {label} does not allow it")
        try:
            arrays.append(_of_length(cast_exactly(values, field.type), field, label))
        except InexactError as error:
            raise TargetError(
                f"column {name!r} holds a value that does not fit {field.type} of {label}: {error}; "
                "cast or truncate it first"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
