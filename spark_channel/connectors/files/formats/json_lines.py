"""JSON lines one by one, in Python: every type, and a reason for every line that does not fit."""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_channel.arrow_schema import match_names
from spark_channel.connectors.base.types import keeps, number_type
from spark_channel.connectors.files.file_errors import not_text
from spark_channel.connectors.files.formats.base import ReadRequest
from spark_channel.connectors.files.formats.text_decode import from_text, merge_inferred
from spark_channel.connectors.files.options import JsonReadOptions
from spark_channel.errors import SchemaError
from spark_channel.serialization import Number, parsed, written

__all__ = [
    "LONG_NUMBER",
    "MOST_LEVELS",
    "LineError",
    "count_objects",
    "has_line_of",
    "infer_lines",
    "nests_deeply",
    "parse_lines",
    "rounded_numbers",
    "why_no_objects",
]

LONG_NUMBER = re.compile(
    rb'(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*:|[\[,])\s*(-?[0-9.]{16,}(?:[eE][+-]?[0-9]+)?|-?[0-9.]+[eE][+-]?[0-9]+)'
)
"""A number that a double may round, or a text that looks like one."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_DEEPEST = 50
"""Levels of an inferred type. A value inside the last one is text: Arrow and Spark exchange at most 64 levels."""
MOST_LEVELS = 500
"""A line of more is refused, wherever it is: Python parses up to some 1000, by the depth of its calls."""

_FLOATS = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
    "INF": math.inf,
    "-INF": -math.inf,
}

_MOST_SPELLINGS = 1_000
_YEAR_1 = "0001-01-02"
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?")


def rounded_numbers(data: bytes, doubles: Collection[bytes]) -> bool:
    """Whether a double does not give back a number in a list, in a field of `doubles`, or of a name with an escape.

    `doubles` are in lower case.
    """
    for match in LONG_NUMBER.finditer(data):
        name, number = match.groups()
        if (name is None or b"\\" in name or lower_ascii(name) in doubles) and not keeps(
            number.decode()
        ):
            return True
    return False


def lower_ascii(name: bytes) -> bytes:
    return name.decode(errors="replace").lower().encode()


def count_objects(data: bytes, newline: bytes = b"\n") -> int | None:
    """Lines that are not blank, if each begins and ends as an object does; None if one does not.

    Arrow's parser is given objects alone, and ignores where lines end
    (findings/arrow-json-ignores-line-ends.sh): it must see nothing else, and return as many rows.
    """
    end = b"\r\n" if newline == b"\n" and data.endswith(b"\r\n") else newline
    edges = data.count(b"}" + end + b"{")
    if data.startswith(b"{") and edges + data.endswith(end) == data.count(newline):
        return edges + 1
    lines = [line for line in map(bytes.strip, data.split(newline)) if line]
    return (
        len(lines) if all(line.startswith(b"{") and line.endswith(b"}") for line in lines) else None
    )


def nests_deeply(lines: Collection[bytes], most: int = _DEEPEST) -> bool:
    """Whether a line has more levels than `most`: depth is bounded here, and not left to Arrow's parser."""
    return any(
        _levels(line) > most
        for line in lines
        if len(line) > 2 * most and line.count(b"[") + line.count(b"{") > most
    )


def has_line_of(size: int, data: bytes, newline: bytes) -> bool:
    """Whether a line has more bytes than `size`. It looks at the last line end within each `size` bytes alone."""
    begin = 0
    while len(data) - begin > size:
        end = data.rfind(newline, begin, begin + size + 1)
        if end < 0:
            return True
        begin = end + 1
    return False


def _levels(line: bytes) -> int:
    """An upper bound: brackets that close nothing, in a line that is not JSON, count as none."""
    depth = most = 0
    for byte in _TEXT.sub(b"", line):
        if byte in b"[{":
            depth += 1
            most = max(most, depth)
        elif byte in b"]}":
            depth = max(0, depth - 1)
    return most


class UnknownFieldError(Exception):
    """An object inside a column has a field that its inferred type does not have."""


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a line does not fit."""

    reason: str
    cause: BaseException | None


def _shown(text: bytes) -> str:
    text_shown = text.decode("utf-8", "replace")
    return text_shown if len(text_shown) <= 200 else text_shown[:197] + "..."


def _object_in(text: bytes, parse: Callable[[str], Any] = parsed) -> dict[str, Any] | LineError:
    """The object that a line is, or why it is none."""
    if nests_deeply((text,), MOST_LEVELS):
        return LineError(f"nested too deeply: {_shown(text)}", None)
    try:
        row = parse(text.decode("utf-8-sig"))
        if not isinstance(row, dict):
            return LineError(f"not an object: {_shown(text)}", None)
        if _SURROGATE.search(text):
            written(row).encode("utf-8")
    except UnicodeDecodeError as error:
        return LineError(f"{not_text(error)}. The line: {_shown(text)}", error)
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        return LineError(
            f"{half} is half of a character (a lone surrogate), so it is not text: {_shown(text)}",
            error,
        )
    except RecursionError as error:
        return LineError(f"nested too deeply: {_shown(text)}", error)
    except ValueError as error:
        return LineError(f"not JSON ({error}): {_shown(text)}", error)
    return row


def why_no_objects(lines: Iterable[bytes]) -> tuple[int, LineError] | None:
    """(number of the first line that is not blank, why it is not an object), if no line is one.

    None for lines of `null` alone, too, which have no columns, as for Spark: the read decides whether they are rows.
    """
    first: tuple[int, LineError] | None = None
    has_other = False
    for number, line in enumerate(lines):
        if text := line.strip():
            has_other = has_other or text != b"null"
            outcome = _object_in(text)
            if not isinstance(outcome, LineError):
                return None
            first = first or (number, outcome)
    return first if has_other else None


def parse_lines(
    lines: list[bytes], request: ReadRequest, options: JsonReadOptions
) -> Iterator[tuple[int, list[Any] | LineError]]:
    """(number of the line, its values in the order of the schema, or why not); blank lines are left out."""
    as_double = _kept_float if request.inferred else _float
    converters = [
        (
            field.name,
            field.type,
            _converter(field.type, options, as_double, closed=request.inferred),
        )
        for field in request.schema
    ]
    names = _Spelling(request.all.names)
    for number, line in enumerate(lines):
        text = line.strip()
        if not text:
            continue
        row = _object_in(text)
        if isinstance(row, LineError):
            yield number, row
            continue
        try:
            spelled = names.spellings(row)
        except SchemaError as error:
            yield number, LineError(f"{error}: {_shown(text)}", error)
            continue
        if request.strict and (unknown := row.keys() - spelled.values()):
            yield number, LineError(f"{_not_sampled(unknown)}: {_shown(text)}", None)
            continue
        values: list[Any] = []
        for name, kind, convert in converters:
            value = row.get(spelled.get(name, name))
            try:
                values.append(None if value is None else convert(value))
            except (UnknownFieldError, SchemaError) as error:
                yield number, LineError(f"column {name!r}: {error}: {_shown(text)}", None)
                break
            except RecursionError as error:
                yield (
                    number,
                    LineError(f"column {name!r} is nested too deeply: {_shown(text)}", error),
                )
                break
            except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
                got = written(value)
                got = got if len(got) <= 80 else got[:77] + "..."
                yield (
                    number,
                    LineError(
                        f"column {name!r} ({kind}) cannot hold {got}. The line: {_shown(text)}",
                        error,
                    ),
                )
                break
        else:
            yield number, values


class _Spelling:
    """How objects spell `names`: exactly so, else in another case."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._known: dict[tuple[str, ...], dict[str, str]] = {}

    def spellings(self, row: Mapping[str, Any]) -> dict[str, str]:
        """
        Raises:
            SchemaError: see `match_names`.
        """
        fields = tuple(row)
        if fields not in self._known:
            if len(self._known) >= _MOST_SPELLINGS:
                self._known.clear()
            self._known[fields] = match_names(self._names, fields, "the line")
        return self._known[fields]


def infer_lines(lines: Iterable[bytes]) -> pa.Schema:
    """The fields of lines that Arrow's parser does not take: a field of several kinds is text.

    Lines that are no object are left to the read, which names their place.
    """
    kinds: dict[str, pa.DataType] = {}
    for line in lines:
        row = _object_in(line.strip(), _with_numbers)
        if isinstance(row, dict):
            for name, value in row.items():
                kinds[name] = merge_inferred(kinds.get(name, pa.null()), _kind_of(value))
    return pa.schema(list(kinds.items()))


def _with_numbers(text: str) -> object:
    return json.loads(text, parse_float=Number, parse_int=Number)


def _kind_of(value: object, level: int = 1) -> pa.DataType:
    if isinstance(value, dict | list) and level >= _DEEPEST:
        return pa.string()
    if isinstance(value, dict):
        return pa.struct([(name, _kind_of(inner, level + 1)) for name, inner in value.items()])
    if isinstance(value, list):
        element = pa.null()
        for inner in value:
            element = merge_inferred(element, _kind_of(inner, level + 1))
        return pa.list_(element)
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, Number):
        return number_type(value.text)
    if isinstance(value, float):
        return pa.float64()
    return pa.null() if value is None else pa.string()


def _converter(
    kind: pa.DataType, options: JsonReadOptions, as_double: Callable[[Any], float], *, closed: bool
) -> Callable[[Any], Any]:
    """`closed`: an object's field that its type does not have is an error."""
    types = pa.types

    def inside(inner: pa.DataType) -> Callable[[Any], Any]:
        return _converter(inner, options, as_double, closed=closed)

    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        inner = [(field.name, _optional(inside(field.type))) for field in fields]
        names = _Spelling(name for name, _ in inner)

        def as_struct(value: object) -> dict[str, Any]:
            members = _dict(value)
            spelled = names.spellings(members)
            if closed and (unknown := members.keys() - spelled.values()):
                raise UnknownFieldError(_not_sampled(unknown))
            return {name: convert(members.get(spelled.get(name, name))) for name, convert in inner}

        return as_struct
    if types.is_map(kind):
        item, key = _optional(inside(kind.item_type)), inside(kind.key_type)
        return lambda value: [
            (key(name), item(item_value)) for name, item_value in _dict(value).items()
        ]
    if types.is_list(kind) or types.is_large_list(kind):
        element = _optional(inside(kind.value_type))
        return lambda value: [element(item) for item in _list(value)]
    if types.is_boolean(kind):
        return _boolean
    if types.is_integer(kind):
        return lambda value: pa.scalar(_integer(value), kind).as_py()
    if types.is_floating(kind):
        return lambda value: pa.scalar(as_double(value), kind).as_py()
    if types.is_decimal(kind):
        return lambda value: pa.scalar(_decimal(value), kind).as_py()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _binary
    if types.is_date(kind) or types.is_timestamp(kind):
        return _time_converter(kind, options)
    return _as_text


def _time_converter(kind: pa.DataType, options: JsonReadOptions) -> Callable[[Any], Any]:
    """Python reads the usual forms as Arrow does, 50 times as fast one by one; Arrow reads the rest."""

    def by_arrow(value: object) -> object:
        # As a number: Python's times begin with year 1 and end at microseconds.
        return from_text(pa.array([_text(value)], pa.string()), kind, options)[0].value

    def as_date(value: Any) -> object:
        plain = isinstance(value, str) and _ISO_DATE.fullmatch(value) and value > _YEAR_1
        return date.fromisoformat(value) if plain else by_arrow(value)

    def as_time(value: object) -> object:
        if not (isinstance(value, str) and _ISO_TIME.fullmatch(value) and value > _YEAR_1):
            return by_arrow(value)
        moment = datetime.fromisoformat(value)
        if kind.tz is None:
            return moment if moment.tzinfo is None else by_arrow(value)
        if moment.tzinfo is None:
            return moment.replace(tzinfo=UTC) if options.time_zone == "UTC" else by_arrow(value)
        return moment

    if pa.types.is_date32(kind) and options.date_format is None:
        return as_date
    if pa.types.is_timestamp(kind) and options.timestamp_format is None and kind.unit == "us":
        return as_time
    return by_arrow


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _dict(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value


def _not_sampled(names: Iterable[str]) -> str:
    return f"field {', '.join(sorted(names))} was not in the sample; raise sampleBytes, or give a schema"


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not an array")
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not true or false")
    return value


def _integer(value: object) -> int:
    if isinstance(value, Number) and value.text == "-0":
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a whole number")
    return value


def _float(value: object) -> float:
    if isinstance(value, str) and value in _FLOATS:
        return _FLOATS[value]
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise TypeError("not a number")
    return float(value)


def _kept_float(value: object) -> float:
    """Raises ValueError for a number that a double would round."""
    number = _float(value)
    if isinstance(value, int | Decimal) and not (
        math.isfinite(number) and Decimal(repr(number)) == value
    ):
        raise ValueError("a double does not hold it exactly; give another type in a schema")
    return number


def _decimal(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal, str)):
        raise TypeError("not a number")
    return Decimal(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _binary(value: object) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else written(value)
