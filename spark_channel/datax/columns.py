"""DataX's column lists: by index, as constants, by name; and its types."""

import re
from dataclasses import replace
from typing import Annotated

import pyarrow as pa
from pydantic import BeforeValidator

from spark_channel.datax.document import ColumnFormats
from spark_channel.datax.plugin_context import PluginContext, at
from spark_channel.datax.sections import JobSection, parse_section, refusal, refuse_twice, refused
from spark_channel.datax.value_types import NotNegative, Text
from spark_channel.transform import Labelled, Output, Select, Transformer, strptime_pattern
from spark_channel.transform.convert import ShortDecimals

__all__ = [
    "NamedColumn",
    "column_type",
    "in_64_bits",
    "is_every_column",
    "max_index",
    "picked_columns",
    "text_positions",
    "time_patterns",
    "time_texts",
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
    "integer": pa.int32(),
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
_SHIPPED = {"datetime": "yyyy-MM-dd HH:mm:ss", "date": "yyyy-MM-dd", "time": "HH:mm:ss"}
_SHIPPED_EXTRA = ("yyyyMMdd",)
"""The patterns of the core.json that DataX is shipped with."""


class PickedColumn(JobSection):
    """One column that a file reader gives: column `index` of the file, or a constant `value`."""

    index: NotNegative | None = None
    name: Text | None = None
    type: Text = "string"
    value: Text | None = None
    format: Text | None = None


class NamedColumn(JobSection):
    """One column that a file writer writes."""

    name: Text
    type: Text


def is_every_column(columns: object) -> bool:
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
        raise refusal(
            path, text, "one of " + ", ".join([*types, *(["decimal(p, s)"] if hive else [])])
        )
    return types[name]


def time_patterns(formats: ColumnFormats) -> tuple[str, ...]:
    """The patterns of `common.column` for text that becomes a time, in DataX's order; else DataX's own."""
    patterns_given = {
        "common.column.datetimeFormat": formats.datetime_format or _SHIPPED["datetime"],
        "common.column.dateFormat": formats.date_format or _SHIPPED["date"],
        "common.column.timeFormat": formats.time_format or _SHIPPED["time"],
        **{
            f"common.column.extraFormats[{n}]": text
            for n, text in enumerate(formats.extra_formats or _SHIPPED_EXTRA)
        },
    }
    patterns = []
    for path, text in patterns_given.items():
        with at(path):
            patterns.append(strptime_pattern(text))
    return tuple(dict.fromkeys(patterns))


def time_texts(formats: ColumnFormats) -> tuple[str, ...]:
    """The patterns of `common.column` that write timestamps, dates and times of day into text columns."""
    texts = []
    for kind, shipped in _SHIPPED.items():
        with at(f"common.column.{kind}Format"):
            texts.append(strptime_pattern(getattr(formats, f"{kind}_format") or shipped))
    return tuple(texts)


def picked_columns(columns: object, context: PluginContext) -> Labelled | None:
    """The step that a file reader's `column` list means; None = every column as text.

    Raises:
        JobFileError: names the column at fault.
    """
    path = context.key("column")
    if is_every_column(columns):
        return None
    if not isinstance(columns, list) or not columns:
        raise refusal(path, columns, 'a list of {"index": 0, "type": "long"}, or ["*"]')
    outputs = []
    indexes: set[int] = set()
    for number, column_given in enumerate(columns):
        here = f"{path}[{number}]"
        column = parse_section(PickedColumn, column_given, here)
        context.ineffective.extend(f"{here}.{key} (unknown)" for key in column.model_extra or {})
        if (column.index is None) == (column.value is None):
            got = "neither index nor value" if column.index is None else "both index and value"
            raise refused(here, got, "one of them")
        kind = column_type(column.type, f"{here}.type")
        patterns: tuple[str, ...] = ()
        if pa.types.is_timestamp(kind):
            patterns = time_patterns(context.formats)
            if column.format is not None:
                with at(f"{here}.format"):
                    patterns = (strptime_pattern(column.format),)
        name = column.name
        if name is None and (column.index is None or column.index in indexes):
            name = f"c{number}"
        if column.index is not None:
            indexes.add(column.index)
        outputs.append(Output(column.index, name, kind, patterns, column.value, exact=True))
    with at(path):
        return Labelled(Select(tuple(outputs)), path)


def in_64_bits(steps: tuple[Transformer, ...]) -> tuple[Transformer, ...]:
    """The reader's steps for a writer that takes numbers of 64 bits.

    Raises:
        JobFileError: a constant that has more.
    """
    return tuple(
        _in_64_bits(step, step.inner)
        if isinstance(step, Labelled) and isinstance(step.inner, Select)
        else step
        for step in steps
        if not isinstance(step, ShortDecimals)
    )


def _in_64_bits(step: Labelled, select: Select) -> Labelled:
    with at(step.label):
        outputs = tuple(replace(output, exact=False) for output in select.outputs)
        return replace(step, inner=replace(select, outputs=outputs))


def max_index(columns: object) -> int:
    """The largest index of a column list that `picked_columns` has read; -1 = it holds constants alone."""
    assert isinstance(columns, list)
    return max(
        (int(column.get("index", -1)) for column in columns if column.get("index") is not None),
        default=-1,
    )


def _named(value: object) -> object:
    if not isinstance(value, list) or not value:
        raise ValueError('a list of {"name": "id", "type": "bigint"}')
    return value


NamedColumns = Annotated[tuple[NamedColumn, ...], BeforeValidator(_named)]


def text_positions(columns: tuple[NamedColumn, ...]) -> frozenset[int]:
    """Where columns are declared as texts."""
    texts = ("string", "varchar", "char")
    return frozenset(
        number
        for number, column in enumerate(columns)
        if column.type.partition("(")[0].strip().lower() in texts
    )


def written_columns(columns: tuple[NamedColumn, ...], context: PluginContext) -> Labelled:
    """The step that gives a file writer's columns their names and Hive types, by position."""
    path = context.key("column")
    outputs = []
    for number, column in enumerate(columns):
        kind = column_type(column.type, f"{path}[{number}].type", hive=True)
        outputs.append(Output(number, column.name, kind, time_patterns(context.formats)))
    refuse_twice(path, [column.name for column in columns])
    return Labelled(Select(tuple(outputs), exhaustive=True), path)
