"""Column lists, transformers, Java's formats."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BeforeValidator

from spark_channel.datax.document import ColumnFormats, Step
from spark_channel.datax.place import PluginContext, at
from spark_channel.datax.values import (
    JobSection,
    NotNegative,
    Text,
    parse_section,
    refusal,
    refuse_twice,
    refused,
)
from spark_channel.errors import JobFileError
from spark_channel.transform import (
    Calculate,
    Digest,
    DropRows,
    Labelled,
    Output,
    Pad,
    Replace,
    Select,
    Substr,
    Transformer,
    strptime_pattern,
)
from spark_channel.transform.convert import ShortDecimals, local_zone

__all__ = [
    "NamedColumn",
    "column_type",
    "in_64_bits",
    "is_every_column",
    "job_transformers",
    "max_index",
    "picked_columns",
    "text_positions",
    "time_patterns",
    "time_texts",
    "with_unique_names",
]


# DataX's column lists: by index, as constants, by name; and its types.


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


_SHIPPED = {"datetime": "yyyy-MM-dd HH:mm:ss", "date": "yyyy-MM-dd", "time": "HH:mm:ss"}
_SHIPPED_EXTRA = ("yyyyMMdd",)
"""The patterns of the core.json that DataX is shipped with."""


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


# Names for the columns of a `querySql` that have none, or share one: DataX uses positions.


_OPEN, _CLOSE = ("L_PAREN", "L_BRACKET", "L_BRACE"), ("R_PAREN", "R_BRACKET", "R_BRACE")


def with_unique_names(query: str, dialect: str) -> str:
    """`query` with an alias for each column whose name occurs before; everything else stays as written.

    Unchanged where no name occurs twice, and where the text cannot be taken apart with certainty.
    """
    import sqlglot

    try:
        tree = sqlglot.parse_one(query, read=dialect)
        if not _is_ambiguous(tree, dialect):
            return query
        aliased = _with_aliases(query, tree, dialect)
        return aliased if _is_same(tree, sqlglot.parse_one(aliased, read=dialect)) else query
    except (sqlglot.errors.SqlglotError, RecursionError):
        return query


def _is_ambiguous(tree: object, dialect: str) -> bool:
    from sqlglot import exp

    if not isinstance(tree, exp.Select) or tree.is_star:
        return False
    counted = Counter(_name(select) for select in tree.selects)
    # PostgreSQL names `max(a)` and `max(b)` max; MySQL names them by their texts.
    nameless = counted.pop("", 0)
    return any(count > 1 for count in counted.values()) or (nameless > 1 and dialect == "postgres")


def _name(column: Any) -> str:
    return str(column.alias_or_name).lower()


def _with_aliases(query: str, tree: Any, dialect: str) -> str:
    from sqlglot import exp

    items = _items(query, dialect)
    if len(items) != len(tree.selects):
        return query
    names = {_name(select) for select in tree.selects}
    before: set[str] = set()
    edits: list[tuple[int, int, str]] = []
    for number, (tokens, column) in enumerate(zip(items, tree.selects, strict=True)):
        name = _name(column)
        if name and name not in before:
            before.add(name)
            continue
        last = len(tokens) - 1
        if isinstance(column, exp.Alias):
            last -= 2 if tokens[last - 1].token_type.name == "ALIAS" else 1
        alias = next(
            free_alias
            for n in range(number, number + len(names) + 1)
            if (free_alias := f"{name or 'c'}_{n}") not in names
        )
        names.add(alias)
        written = (
            f'"{alias}"' if dialect == "postgres" else f"`{alias}`" if dialect == "mysql" else alias
        )
        edits.append((tokens[last].end + 1, tokens[-1].end + 1, f" AS {written}"))
    for start, end, text in reversed(edits):
        query = query[:start] + text + query[end:]
    return query


def _items(query: str, dialect: str) -> list[list[Any]]:
    """The tokens of each column of the outermost SELECT."""
    import sqlglot

    items: list[list[Any]] = []
    depth, inside = 0, False
    for token in sqlglot.tokenize(query, read=dialect):
        kind = token.token_type.name
        if depth == 0 and not inside:
            if kind == "SELECT":
                inside = True
                items.append([])
        elif depth == 0 and kind in ("FROM", "INTO", "WHERE", "ORDER_BY", "LIMIT", "SEMICOLON"):
            break
        elif depth == 0 and kind == "COMMA":
            items.append([])
        elif inside:
            items[-1].append(token)
        depth += (kind in _OPEN) - (kind in _CLOSE)
    return items if all(items) else []


def _is_same(one: Any, other: Any) -> bool:
    """Whether the queries differ in the aliases of their columns only."""
    columns = [[select.unalias() for select in tree.selects] for tree in (one, other)]
    trees = [tree.copy() for tree in (one, other)]
    for tree in trees:
        tree.set("expressions", [])
    names = [_name(select) for select in other.selects]
    return (
        columns[0] == columns[1]
        and trees[0] == trees[1]
        and len({n for n in names if n}) == len(names)
    )


# DataX's transformer list: dx_substr, dx_pad, dx_replace, dx_filter, dx_digest, and Addax's dx_map.


_GROOVY = (
    "its Groovy code would need a JVM and run row by row; "
    "pass a Python function on Arrow batches to spark_channel.transfer(transformers=[...])"
)


class StepParameter(JobSection):
    column_index: NotNegative
    paras: tuple[Text, ...] = ()


def _substr(column: int, start: str, length: str) -> Transformer:
    return Substr(column, _number(start), _number(length))


def _pad(column: int, side: str, length: str, fill: str) -> Transformer:
    return Pad(column, side.lower(), _number(length), fill)  # type: ignore[arg-type]  # Pad checks it


def _replace(column: int, start: str, length: str, text: str) -> Transformer:
    return Replace(column, _number(start), _number(length), text)


def _filter(column: int, operator: str, value: str) -> Transformer:
    name = " ".join(operator.lower().split())
    return DropRows(column, "=" if name == "==" else name, value, local_zone())  # type: ignore[arg-type]  # DropRows checks it


def _digest(column: int, algorithm: str, case: str) -> Transformer:
    cases = {"touppercase": True, "tolowercase": False}
    if case.lower() not in cases:
        raise ValueError(f"case {case!r}; it takes 'toUpperCase' or 'toLowerCase'")
    return Digest(column, algorithm.lower(), cases[case.lower()])  # type: ignore[arg-type]  # Digest checks it


def _map(column: int, operation: str, number: str) -> Transformer:
    return Calculate(column, operation, number)  # type: ignore[arg-type]  # Calculate checks it


_STEPS: dict[str, tuple[Callable[..., Transformer], tuple[str, ...]]] = {
    "dx_substr": (_substr, ("start", "length")),
    "dx_pad": (_pad, ("l or r", "length", "fill")),
    "dx_replace": (_replace, ("start", "length", "text")),
    "dx_filter": (_filter, ("operator", "value")),
    "dx_digest": (_digest, ("md5 or sha1", "toUpperCase or toLowerCase")),
    "dx_map": (_map, ("+, -, *, /, % or ^", "number")),
}


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r}; it takes a whole number") from None


def job_transformers(
    steps: tuple[Step, ...], root: str, ineffective: list[str]
) -> tuple[Transformer, ...]:
    """The steps of one content; their errors carry their place in the job file.

    Raises:
        JobFileError: an unknown transformer, a missing column number, or parameters that make no sense.
    """
    transformers = []
    for number, step in enumerate(steps):
        path = f"{root}[{number}]"
        if step.name in ("dx_groovy", "dx_fackGroovy"):
            raise JobFileError(f"{path}: {step.name} is not supported: {_GROOVY}")
        if step.name not in _STEPS:
            raise refusal(f"{path}.name", step.name, "one of " + ", ".join(_STEPS))
        parameter = parse_section(StepParameter, _spread(step.parameter), f"{path}.parameter")
        ineffective.extend(
            f"{path}.parameter.{key} (unknown)" for key in parameter.model_extra or {}
        )
        build, takes = _STEPS[step.name]
        paras = f"{path}.parameter.paras"
        if len(parameter.paras) != len(takes):
            raise refused(
                paras, f"{len(parameter.paras)} values", f"{len(takes)}: {', '.join(takes)}"
            )
        with at(path):
            try:
                inner = build(parameter.column_index, *parameter.paras)
            except ValueError as error:
                raise JobFileError(f"{paras} got {error}") from None
        transformers.append(Labelled(inner, f"{path} ({step.name})"))
    return tuple(transformers)


def _spread(parameter: dict[str, Any]) -> dict[str, Any]:
    """One value without a list around it is a list of one, as DataX reads it."""
    paras = parameter.get("paras")
    return (
        parameter if paras is None or isinstance(paras, list) else {**parameter, "paras": [paras]}
    )
