"""DataX's column lists: by index, as constants, by name; and its types."""

import re
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BeforeValidator

from spark_channel.jobs.document import ColumnFormats
from spark_channel.jobs.place import Place, at
from spark_channel.jobs.values import NotNegative, Section, Text, parse_section, refusal, refused
from spark_channel.transform import Labelled, Output, Select, strptime_pattern

__all__ = [
    "NamedColumn",
    "column_type",
    "is_every_column",
    "picked_columns",
    "text_positions",
    "time_patterns",
]

_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int64(),
    "double": pa.float64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "date": pa.timestamp("us"),
    "bytes": pa.binary(),
}
_HIVE_TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "binary": pa.binary(),
}
_DECIMAL = re.compile(r"(?:decimal|numeric)\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_LENGTH = re.compile(r"\(\s*\d+\s*\)$")


class PickedColumn(Section):
    """One column that a file reader gives: column `index` of the file, or a constant `value`."""

    index: NotNegative | None = None
    name: Text | None = None
    type: Text = "string"
    value: Text | None = None
    format: Text | None = None


class NamedColumn(Section):
    """One column that a file writer writes."""

    name: Text
    type: Text


def is_every_column(columns: Any) -> bool:
    """`["*"]`, `"*"`, or nothing."""
    return columns in (None, "*", ["*"])


def column_type(text: str, path: str, *, hive: bool = False) -> pa.DataType:
    """A DataX type, or a Hive type where files for Hive are written.

    Raises:
        JobFileError: another type.
    """
    types = _HIVE_TYPES if hive else _TYPES
    name = text.strip().lower()
    if hive:
        decimal = _DECIMAL.fullmatch(name)
        if decimal is not None:
            precision, scale = int(decimal.group(1)), int(decimal.group(2) or 0)
            if 1 <= precision <= 38 and scale <= precision:
                return pa.decimal128(precision, scale)
            raise refusal(path, text, "a decimal of 1 to 38 digits")
        name = _LENGTH.sub("", name)
    if name not in types:
        raise refusal(path, text, "one of " + ", ".join([*types, *(["decimal(p, s)"] if hive else [])]))
    return types[name]


def time_patterns(formats: ColumnFormats) -> tuple[str, ...]:
    """The patterns of `common.column` for text that becomes a time; none of them set: ISO 8601."""
    given = {
        "common.column.datetimeFormat": formats.datetime_format,
        "common.column.dateFormat": formats.date_format,
        "common.column.timeFormat": formats.time_format,
        **{f"common.column.extraFormats[{n}]": text for n, text in enumerate(formats.extra_formats)},
    }
    patterns = []
    for path, text in given.items():
        if text is not None:
            with at(path):
                patterns.append(strptime_pattern(text))
    return tuple(dict.fromkeys(patterns))


def picked_columns(columns: Any, place: Place) -> Labelled | None:
    """The step that a file reader's `column` list means; None = every column as text.

    Raises:
        JobFileError: names the column at fault.
    """
    path = place.key("column")
    if is_every_column(columns):
        return None
    if not isinstance(columns, list) or not columns:
        raise refusal(path, columns, 'a list of {"index": 0, "type": "long"}, or ["*"]')
    outputs = []
    seen: set[int] = set()
    for number, given in enumerate(columns):
        here = f"{path}[{number}]"
        column = parse_section(PickedColumn, given, here)
        place.left.extend(f"{here}.{key} (unknown)" for key in column.model_extra or {})
        if (column.index is None) == (column.value is None):
            got = "neither index nor value" if column.index is None else "both index and value"
            raise refused(here, got, "one of them")
        kind = column_type(column.type, f"{here}.type")
        patterns: tuple[str, ...] = ()
        if pa.types.is_timestamp(kind):
            patterns = time_patterns(place.formats)
            if column.format is not None:
                with at(f"{here}.format"):
                    patterns = (strptime_pattern(column.format),)
        name = column.name
        if name is None and (column.index is None or column.index in seen):
            name = f"c{number}"
        if column.index is not None:
            seen.add(column.index)
        outputs.append(Output(column.index, name, kind, patterns, column.value))
    with at(path):
        return Labelled(Select(tuple(outputs)), path)


def _named(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise ValueError('a list of {"name": "id", "type": "bigint"}')
    return value


NamedColumns = Annotated[tuple[NamedColumn, ...], BeforeValidator(_named)]


def text_positions(columns: tuple[NamedColumn, ...]) -> frozenset[int]:
    """Where columns are declared as texts."""
    words = ("string", "varchar", "char")
    return frozenset(
        number
        for number, column in enumerate(columns)
        if column.type.partition("(")[0].strip().lower() in words
    )


def written_columns(columns: tuple[NamedColumn, ...], place: Place) -> Labelled:
    """The step that gives a file writer's columns their names and Hive types, by position."""
    path = place.key("column")
    outputs = []
    for number, column in enumerate(columns):
        kind = column_type(column.type, f"{path}[{number}].type", hive=True)
        outputs.append(Output(number, column.name, kind, time_patterns(place.formats)))
    names = [column.name for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise refused(path, f"{twice!r} twice", "each name once")
    return Labelled(Select(tuple(outputs), exhaustive=True), path)
