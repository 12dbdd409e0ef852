"""Values as Java shows them: what DataX writes into text files."""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.errors import OptionError
from spark_channel.transform.time_patterns import java_parts
from spark_channel.transform.transformer import Flow, Transformer, TransformResult

__all__ = [
    "CsvTexts",
    "JavaTexts",
    "strptime_pattern",
]


_LEAST_PLAIN, _LEAST_LARGE = 1e-3, 1e7
"""Between them Java writes a double without an exponent."""


@dataclass(frozen=True, slots=True)
class JavaTexts(Transformer):
    """Timestamps in the format of `java.sql.Timestamp`, to the millisecond, and floats in that of `Double.toString`."""

    step: ClassVar[str] = "texts of Java"
    in_place: ClassVar[bool] = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema(
            [part.with_type(pa.string()) if _is_shown(part.type) else part for part in schema]
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        columns = [_shown(column) if _is_shown(column.type) else column for column in batch.columns]
        return TransformResult(
            pa.RecordBatch.from_arrays(columns, schema=self.output_schema(batch.schema))
        )


def _is_shown(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_floating(kind))


def _shown(column: pa.Array) -> pa.Array:
    return _timestamps(column) if pa.types.is_timestamp(column.type) else _doubles(column)


def _timestamps(column: pa.Array) -> pa.Array:
    local = pc.local_timestamp(column) if column.type.tz else column
    local = pc.cast(pc.floor_temporal(local, unit="millisecond"), pa.timestamp("ms"))
    # At least one digit of a second is shown, and no zero after it.
    return pc.replace_substring_regex(pc.strftime(local, format="%Y-%m-%d %H:%M:%S"), "0{1,2}$", "")


def _doubles(column: pa.Array) -> pa.Array:
    texts = pc.cast(column, pa.string())
    size = pc.abs(pc.cast(column, pa.float64()))
    plain = pc.or_(
        pc.equal(size, 0),
        pc.and_(pc.greater_equal(size, _LEAST_PLAIN), pc.less(size, _LEAST_LARGE)),
    )
    whole = pc.invert(pc.match_substring_regex(texts, r"[.eE]"))
    made = pc.if_else(pc.and_(plain, whole), pc.binary_join_element_wise(texts, ".0", ""), texts)
    others = pc.invert(pc.fill_null(plain, True))
    if not pc.any(others, min_count=0).as_py():
        return made
    wanted = [_java_double(text) for text in texts.filter(others).to_pylist()]
    return pc.replace_with_mask(made, others, pa.array(wanted, pa.string()))


def _java_double(text: str) -> str:
    """The shortest digits of a number, as Java shows what is very small or large."""
    if text.lower() in ("nan", "-nan"):
        return "NaN"
    if "inf" in text.lower():
        return "-Infinity" if text.startswith("-") else "Infinity"
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    shown = "".join(map(str, digits))
    power = int(exponent) + len(shown) - 1
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{power}"


@dataclass(frozen=True, slots=True)
class CsvTexts(Transformer):
    """Texts as DataX's CSV library writes them: without leading and trailing blanks, and quoted if they contain the
    separator, a quote or a line end. In the first column an empty text and one that begins with `#` are quoted, too.
    """

    separator: str = ","
    quote: str = '"'
    step: ClassVar[str] = "texts of CSV"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...]:
        return tuple(
            Flow((number,), self.step if pa.types.is_string(field.type) else "")
            for number, field in enumerate(schema)
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        columns: list[Any] = []
        for position, column in enumerate(batch.columns):
            columns.append(
                self._quoted(column, position == 0) if pa.types.is_string(column.type) else column
            )
        return TransformResult(pa.RecordBatch.from_arrays(columns, schema=batch.schema))

    def _quoted(self, column: pa.Array, first: bool) -> pa.Array:
        texts = pc.utf8_trim_whitespace(column)
        special = "".join(f"\\x{{{ord(each):x}}}" for each in (self.separator, self.quote, "\n"))
        needed = pc.match_substring_regex(texts, f"[{special}]{'|^$|^#' if first else ''}")
        doubled = pc.replace_substring(texts, self.quote, self.quote * 2)
        return pc.if_else(
            needed, pc.binary_join_element_wise(self.quote, doubled, self.quote, ""), texts
        )


_LETTERS = {
    "yyyy": "%Y",
    "yyy": "%Y",
    "yy": "%y",
    "y": "%Y",
    **dict.fromkeys(("MM", "LL"), "%m"),
    **dict.fromkeys(("M", "L"), "%-m"),
    **dict.fromkeys(("MMM", "LLL"), "%b"),
    **dict.fromkeys(("MMMM", "LLLL"), "%B"),
    "dd": "%d",
    "d": "%-d",
    "HH": "%H",
    "H": "%-H",
    "hh": "%I",
    "h": "%-I",
    "mm": "%M",
    "m": "%-M",
    "ss": "%S",
    "s": "%-S",
    "SSS": "%L",
    "S": "%-L",
    "a": "%p",
    **dict.fromkeys(("E", "EE", "EEE"), "%a"),
    "EEEE": "%A",
}
_REFUSED = {
    "S": "S counts milliseconds in Java, so write SSS",
    "y": "a year has four digits, so write yyyy",
    "Y": "Y is the year of a week; write yyyy",
    "D": "D is the day of the year; write dd for the day of the month",
    "k": "k counts hours from 1 to 24; write HH",
    "K": "K counts hours from 0 to 11; write hh",
    **dict.fromkeys("zZX", "times have no zone in a job"),
    **dict.fromkeys("GwWFu", "eras, and days and weeks by their numbers, are not read"),
}
"""Letters of SimpleDateFormat that are not read, or not so often, with what to do."""
_TWO_NUMBERS = re.compile(r"(?=%-[a-zA-Z]%-?[YymdHIMSL]|%[YymdHIMSL]%-)")


def strptime_pattern(pattern: str) -> str:
    """Java's date pattern as one of `time_patterns`: `yyyy-MM-dd` is `%Y-%m-%d`; text in single quotes is literal.

    Raises:
        OptionError: a letter without a counterpart (`Z`, `w`, ...), or an unterminated quote.
    """
    made: list[str] = []
    try:
        for text, is_letters in java_parts(pattern):
            if not is_letters:
                made.append(text.replace("%", "%%"))
            elif text in _LETTERS:
                made.append(_LETTERS[text])
            else:
                raise _unknown(pattern, text)
    except ValueError as error:
        raise _unknown(pattern, str(error)) from None
    found = "".join(made)
    parts = re.findall(r"%-?([A-Za-z])", found.replace("%%", ""))
    if len(parts) != len({_SAME.get(part, part) for part in parts}):
        raise _refused(pattern, "names a part of the time twice", "each part once")
    if not parts:
        raise _refused(pattern, "names no part of a time", "letters such as yyyy-MM-dd")
    if _TWO_NUMBERS.search(found.replace("%%", "")):
        raise _refused(
            pattern, "does not say where a number ends", "two letters for each, such as yyyyMMdd"
        )
    return found


_SAME = {"y": "Y", "b": "m", "B": "m", "A": "a", "I": "H"}
"""Directives of one part of a time."""


def _unknown(pattern: str, part: str) -> OptionError:
    known = ", ".join(dict.fromkeys(_LETTERS))
    why = _REFUSED.get(part[:1], "")
    return _refused(
        pattern, f"has {part!r}, which cannot be read", f"a date pattern of {known}", why
    )


def _refused(pattern: str, what: str, takes: str, why: str = "") -> OptionError:
    reason = f" ({why})" if why else ""
    return OptionError(
        f"date pattern {pattern!r} {what}{reason}; it takes {takes}",
        option="format",
        got=pattern,
        takes=takes,
    )
