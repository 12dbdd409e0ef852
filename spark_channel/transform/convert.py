"""Converts values to the target's column types by DataX's rules (`convert=lenient`), and to text as DataX writes it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from zoneinfo import available_timezones

import pyarrow as pa

from spark_channel.lazy import compute as pc
from spark_channel.transform.exact_numbers import (
    Converted,
    as_carried,
    carried_type,
    exact_field,
    java_double,
)
from spark_channel.transform.time_patterns import formatted, parsed
from spark_channel.transform.transformer import Flow, Refused, Transformer, TransformResult

__all__ = [
    "BytesAsText",
    "Convert",
    "CsvTexts",
    "FloatsAsText",
    "JavaTexts",
    "ShortDecimals",
    "TimesAsText",
    "can_convert",
    "cast_or_refuse",
    "convert",
    "local_zone",
    "refusals",
]


_NUMBER_TEXT = r"^\s*-?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,2})?\s*$"
_WIDE = pa.decimal256(76, 38)
_MOMENT, _DAY = "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"
_FRACTION = r"^(\d{4}-\d\d?-\d\d? \d\d?:\d\d?:\d\d?\.\d{1,6})\d*$"
_WHOLE = r"^[-+]?\d+$"
_NUMBER = r"^[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,2})?$"
_TIMES = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d", "%H:%M:%S")
"""DataX's own: `datetimeFormat`, `dateFormat` and `timeFormat` of `common.column` when a job does not set them."""
_EARLIEST, _LATEST = -62_135_596_800_000, 253_402_300_799_999
"""The milliseconds of the years 1 to 9999."""
_NANOS = (1 << 63) // 1_000_000 - 86_400_000
"""The milliseconds that nanoseconds since 1970 hold, in any zone."""


def cast_or_refuse(
    array: pa.Array, kind: pa.DataType, patterns: tuple[str, ...] = ()
) -> tuple[pa.Array, pa.BooleanArray | None]:
    """`array` as `kind`, null where a value cannot be; and which values those are (None = none).

    `patterns` (see `time_patterns`) read text as a time, the first that fits; none: ISO 8601.

    Raises:
        pyarrow.ArrowNotImplementedError: no value of the array's type can become `kind`.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is_text(array.type) and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        array = _as_java_reads_it(array, whole=pa.types.is_integer(kind))
    elif _is_text(array.type) and pa.types.is_boolean(kind):
        array = pc.replace_substring_regex(array, r"^\s*[01]\s*$", "?")  # Arrow's false and true
    if patterns and _is_text(array.type) and pa.types.is_temporal(kind):
        return _by_pattern(array, kind, patterns)
    cast = _caster(kind)
    try:
        return cast(array), None
    except pa.ArrowInvalid:
        if not len(array):
            raise
    likely = _likely(array, kind)
    pieces, guilty = _bisect(pc.if_else(likely, array, pa.scalar(None, array.type)), cast, kind)
    return pa.concat_arrays(pieces), pc.or_(pc.invert(likely), pa.array(guilty, pa.bool_()))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_java_reads_it(array: pa.Array, *, whole: bool) -> pa.Array:
    """Texts of numbers as Arrow reads them: `+5` is 5; and where whole ones are wanted, `12.0` is 12 and `1e3` 1000."""
    text = pc.replace_substring_regex(array, r"^\s*\+(\d|\.)", r"\1")
    if not whole:
        return text
    text = pc.replace_substring_regex(text, r"^\s*-?0[xX]", "?")  # Arrow's 31 of 0x1F
    likely = pc.and_(
        pc.match_substring_regex(text, _NUMBER_TEXT), pc.match_substring_regex(text, "[.eE]")
    )
    if not pc.any(likely, min_count=0).as_py():
        return text
    wide, _ = cast_or_refuse(pc.if_else(likely, text, pa.scalar(None, text.type)), _WIDE)
    is_whole = pc.equal(pc.round(wide, ndigits=0, round_mode="towards_zero"), wide)
    numbers = pc.cast(pc.cast(wide, pa.decimal256(76, 0), safe=False), text.type)
    return pc.if_else(pc.fill_null(is_whole, False), numbers, text)


def _by_pattern(
    array: pa.Array, kind: pa.DataType, patterns: tuple[str, ...]
) -> tuple[pa.Array, pa.BooleanArray | None]:
    """The first pattern that fits the whole text. A fraction may follow the seconds, of which microseconds are kept.

    Where the patterns are those of ISO 8601, all of its texts are read.
    """
    text = pc.utf8_trim_whitespace(array)
    moments, bad = pa.nulls(len(text), pa.timestamp("us")), pc.is_valid(text)
    if _MOMENT in patterns:
        if _DAY not in patterns:
            cut = pc.if_else(
                pc.match_substring_regex(text, _FRACTION), text, pa.scalar(None, text.type)
            )
        else:
            cut = text
        cut = pc.replace_substring_regex(cut, _FRACTION, r"\1")
        moments, _ = cast_or_refuse(cut, pa.timestamp("us"))
        bad = pc.and_(pc.is_null(moments), pc.is_valid(text))
    if pc.any(bad, min_count=0).as_py():
        unparsed = text.filter(bad)
        parsed_texts = pc.coalesce(*(parsed(unparsed, pattern) for pattern in patterns))
        moments = pc.replace_with_mask(moments, bad, pc.cast(parsed_texts, pa.timestamp("us")))
        bad = pc.and_(pc.is_null(moments), pc.is_valid(array))
    if pa.types.is_date(kind):
        parsed_texts, outside = pc.cast(moments, kind, safe=False), None
    else:
        parsed_texts, outside = cast_or_refuse(moments, kind)
    bad = bad if outside is None else pc.or_(bad, outside)
    return parsed_texts, bad if pc.any(bad, min_count=0).as_py() else None


def _caster(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    def cast(array: pa.Array) -> pa.Array:
        if not _is_text(array.type) or _is_text(kind) or pa.types.is_binary(kind):
            return pc.cast(array, kind)
        text = pc.utf8_trim_whitespace(array)
        if pa.types.is_date(kind):
            return pc.cast(pc.cast(text, pa.timestamp("us")), kind, safe=False)
        return pc.cast(text, kind)

    return cast


def _likely(array: pa.Array, kind: pa.DataType) -> pa.BooleanArray:
    """False for texts that cannot be a value of `kind`, by their characters alone; never null.

    A column of nothing but garbage is refused by one kernel instead of by halving.
    """
    characters = None
    if pa.types.is_integer(kind):
        characters = r"^\s*[-+]?[0-9]+\s*$"
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        characters = r"^\s*[-+]?[0-9.eE+\-a-zA-Z]*[0-9fFnNyY.]\s*$"
    elif pa.types.is_boolean(kind):
        characters = r"^\s*(?i:true|false)\s*$"
    elif pa.types.is_temporal(kind):
        characters = r"[0-9]"
    if characters is None or not _is_text(array.type):
        return pa.repeat(pa.scalar(True), len(array))
    return pc.fill_null(pc.match_substring_regex(array, characters), True)


def _bisect(
    array: pa.Array, cast: Callable[[pa.Array], pa.Array], kind: pa.DataType
) -> tuple[list[pa.Array], list[bool]]:
    """Halve until the guilty values stand alone: about 2 log2(rows) casts for each of them."""
    pieces: list[pa.Array] = []
    guilty: list[bool] = []
    waiting = [array]
    while waiting:
        part = waiting.pop()
        try:
            pieces.append(cast(part))
            guilty.extend([False] * len(part))
        except pa.ArrowInvalid:
            if len(part) == 1:
                pieces.append(pa.nulls(1, kind))
                guilty.append(True)
                continue
            half = len(part) // 2
            waiting.extend((part.slice(half), part.slice(0, half)))
    return pieces, guilty


def refusals(
    batch: pa.RecordBatch, reasons: Sequence[tuple[pa.BooleanArray, str]]
) -> tuple[Refused, ...]:
    """Each guilty row once, under the first reason that it met."""
    refused = []
    met = pa.repeat(pa.scalar(False), batch.num_rows)
    for bad, reason in reasons:
        new = pc.and_not(bad, met)
        if pc.any(new, min_count=0).as_py():
            refused.append(Refused(batch.filter(new), reason))
        met = pc.or_(met, bad)
    return tuple(refused)


@dataclass(frozen=True, slots=True)
class TimesAsText(Transformer):
    """Format every timestamp, date and time as text by its pattern (see `time_patterns`), cut to the second.

    `only`: the columns of these positions; None = all.
    """

    timestamps: str = "%Y-%m-%d %H:%M:%S"
    dates: str = "%Y-%m-%d"
    times: str = "%H:%M:%S"
    only: frozenset[int] | None = None
    step: ClassVar[str] = "times as text"
    in_place: ClassVar[bool] = True

    def _pattern(self, position: int, kind: pa.DataType) -> str | None:
        if self.only is not None and position not in self.only:
            return None
        if pa.types.is_timestamp(kind):
            return self.timestamps
        if pa.types.is_date(kind):
            return self.dates
        return self.times if pa.types.is_time(kind) else None

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema(
            [
                part if self._pattern(position, part.type) is None else part.with_type(pa.string())
                for position, part in enumerate(schema)
            ]
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        columns = []
        for position, column in enumerate(batch.columns):
            pattern = self._pattern(position, column.type)
            columns.append(column if pattern is None else formatted(column, pattern))
        schema = self.output_schema(batch.schema)
        return TransformResult(pa.RecordBatch.from_arrays(columns, schema=schema))


@dataclass(frozen=True, slots=True)
class BytesAsText(Transformer):
    """Bytes as the UTF-8 text that they are, as DataX writes them into texts; a row with other bytes is refused."""

    step: ClassVar[str] = "bytes as text"
    in_place: ClassVar[bool] = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema(
            [part.with_type(pa.string()) if _is_bytes(part.type) else part for part in schema]
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        columns: list[pa.Array] = []
        reasons: list[tuple[pa.BooleanArray, str]] = []
        bad: pa.BooleanArray | None = None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if _is_bytes(column.type):
                column, guilty = cast_or_refuse(column, pa.string())
                if guilty is not None:
                    reasons.append((guilty, f"column {name!r}: bytes that are no UTF-8 text"))
                    bad = _either(bad, guilty)
            columns.append(column)
        changed = pa.RecordBatch.from_arrays(columns, schema=self.output_schema(batch.schema))
        if bad is None:
            return TransformResult(changed)
        return TransformResult(changed.filter(pc.invert(bad)), refusals(batch, reasons))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


@dataclass(frozen=True, slots=True)
class FloatsAsText(Transformer):
    """Floats as DataX writes them into texts: 0.1, 100.0, and all digits in place of an exponent."""

    step: ClassVar[str] = "floats as text"
    in_place: ClassVar[bool] = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema(
            [
                part.with_type(pa.string()) if pa.types.is_floating(part.type) else part
                for part in schema
            ]
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        schema = self.output_schema(batch.schema)
        columns = [
            _text(column, pa.string(), _TimeSettings())[0]
            if pa.types.is_floating(column.type)
            else column
            for column in batch.columns
        ]
        return TransformResult(pa.RecordBatch.from_arrays(columns, schema=schema))


@dataclass(frozen=True, slots=True)
class ShortDecimals(Transformer):
    """Decimals as `double` of DataX has those of ORC, Parquet and ClickHouse: all digits, without zeros at the end."""

    step: ClassVar[str] = "decimals as text"
    in_place: ClassVar[bool] = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema(
            [
                exact_field(part.with_type(pa.float64()))
                if pa.types.is_decimal(part.type)
                else part
                for part in schema
            ]
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        columns = [
            _short(column) if pa.types.is_decimal(column.type) else column
            for column in batch.columns
        ]
        return TransformResult(
            pa.RecordBatch.from_arrays(columns, schema=self.output_schema(batch.schema))
        )


def _short(column: pa.Array) -> pa.Array:
    text = _plain(pc.cast(column, pa.string()))
    return pc.replace_substring_regex(text, r"(\.[0-9]*[1-9])0+$|\.0+$", r"\1")


@dataclass(frozen=True, slots=True)
class _TimeSettings:
    """`patterns` read texts as times; `zone` shows milliseconds since 1970 as local times.

    `texts` write timestamps, dates and times of day as texts.
    """

    patterns: tuple[str, ...] = ()
    zone: str = "UTC"
    texts: tuple[str, ...] = _TIMES


@dataclass(frozen=True, slots=True)
class Convert(Transformer):
    """The columns that `fields` names, in these types. Others, and types that cannot become one another, stay.

    `patterns` (strptime's letters) read text as a time, the first that fits. `zone` is that of local times that whole
    numbers become: they are milliseconds since 1970, as DataX reads them. `texts` write timestamps, dates and times of
    day as texts.
    """

    fields: tuple[tuple[str, pa.DataType], ...]
    patterns: tuple[str, ...] = ()
    zone: str = "UTC"
    texts: tuple[str, ...] = _TIMES
    step: ClassVar[str] = "convert"
    in_place: ClassVar[bool] = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        types_wanted = dict(self.fields)
        return pa.schema(
            [
                field.with_type(types_wanted[field.name]).with_nullable(True)
                if self._converts(field)
                else field
                for field in schema
            ]
        )

    def _converts(self, field: pa.Field) -> bool:
        kind = dict(self.fields).get(field.name)
        return kind is not None and kind != field.type and can_convert(carried_type(field), kind)

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        schema = self.output_schema(batch.schema)
        arrays: list[pa.Array] = []
        reasons: list[tuple[pa.BooleanArray, str]] = []
        guilty: pa.BooleanArray | None = None
        for array, field, target in zip(batch.columns, batch.schema, schema, strict=True):
            if field.type == target.type:
                arrays.append(array)
                continue
            array, bad = self._converted(array, field, target.type)
            arrays.append(array)
            if bad is not None:
                reasons.append(
                    (
                        bad,
                        f"column {field.name!r}: {field.type} that is not a value of {target.type}",
                    )
                )
                guilty = bad if guilty is None else pc.or_(guilty, bad)
        if guilty is None:
            return TransformResult(pa.RecordBatch.from_arrays(arrays, schema=schema))
        good = pc.invert(guilty)
        good_rows = pa.RecordBatch.from_arrays(
            [array.filter(good) for array in arrays], schema=schema
        )
        return TransformResult(good_rows, refusals(batch, reasons))

    def _converted(self, array: pa.Array, field: pa.Field, kind: pa.DataType) -> "Converted":
        how = _TimeSettings(self.patterns, self.zone, self.texts)
        if _rule(field.type, kind) is None:  # a number of 38 digits, where 64 bits have a rule
            array, unfit = as_carried(array, field, cast_or_refuse)
            values, bad = _by_rule(array, kind, how)
            return values, _either(unfit, bad)
        return _by_rule(array, kind, how)


def can_convert(source: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values of one type can become values of the other."""
    return _rule(source, kind) is not None


def convert(
    array: pa.Array, kind: pa.DataType, patterns: tuple[str, ...] = (), zone: str = "UTC"
) -> Converted:
    """`array` as `kind`, null where a value cannot be; and which values those are (None = none).

    Raises:
        TypeError: no value of the array's type can become `kind`.
    """
    return _by_rule(array, kind, _TimeSettings(patterns, zone))


def _by_rule(array: pa.Array, kind: pa.DataType, how: _TimeSettings) -> Converted:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    rule = _rule(array.type, kind)
    if rule is None:
        raise TypeError(f"{array.type} cannot become {kind}")
    values, bad = rule(array, kind, how)
    if bad is not None:
        bad = pc.fill_null(bad, False)
        if not pc.any(bad, min_count=0).as_py():
            bad = None
    return values, bad


_Rule = Callable[[pa.Array, pa.DataType, _TimeSettings], Converted]


def _rule(source: pa.DataType, kind: pa.DataType) -> _Rule | None:
    return _RULES.get((_family(source), _family(kind))) if _zones_agree(source, kind) else None


def _family(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_dictionary(kind):
        return _family(kind.value_type)
    tests: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
        ("integer", types.is_integer),
        ("float", types.is_floating),
        ("decimal", types.is_decimal),
        ("bool", types.is_boolean),
        (
            "text",
            lambda arrow_type: types.is_string(arrow_type) or types.is_large_string(arrow_type),
        ),
        (
            "bytes",
            lambda arrow_type: types.is_binary(arrow_type) or types.is_large_binary(arrow_type),
        ),
        ("timestamp", types.is_timestamp),
        ("date", types.is_date),
        ("time", types.is_time),
    )
    return next((name for name, test in tests if test(kind)), "")


def _zones_agree(source: pa.DataType, kind: pa.DataType) -> bool:
    """Whether both types are instants, or both local times: one does not convert to the other. Numbers are either."""
    if pa.types.is_integer(source):
        return True
    zones = [bool(either.tz) for either in (source, kind) if pa.types.is_timestamp(either)]
    return zones == [False] * len(zones) or (len(zones) == 2 and zones[0] == zones[1])


def _cast(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    return cast_or_refuse(array, kind)


def _loosely(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    """Rounded and cut as databases do, but no time out of range becomes another, and no number infinite."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return cast_or_refuse(array, kind)
    values = pc.cast(array, kind, safe=False)
    if not pa.types.is_floating(kind):
        return values, None
    infinite = pc.is_inf(values)
    if pa.types.is_floating(array.type):
        infinite = pc.and_(infinite, pc.is_finite(array))
    if not pc.any(infinite, min_count=0).as_py():
        return values, None
    bad = pc.fill_null(infinite, False)
    return pc.if_else(bad, pa.scalar(None, kind), values), bad


def _whole_of_text(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    text = _numbers(array)
    if not pc.all(pc.match_substring_regex(text, _WHOLE), min_count=0).as_py():
        return _through_decimal(text, kind)
    return cast_or_refuse(pc.replace_substring_regex(text, r"^\+", ""), kind)


def _float_of_text(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    """A text of digits that a float does not reach, such as 1E400, is none of its values."""
    text = pc.replace_substring_regex(_numbers(array), r"^\+", "")
    values, bad = cast_or_refuse(text, kind)
    beyond = pc.and_(pc.is_inf(values), pc.match_substring_regex(text, "[0-9]"))
    return values, _either(bad, beyond)


def _decimal_of_text(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    return _through_decimal(_numbers(array), kind)


def _numbers(array: pa.Array) -> pa.Array:
    """Texts of numbers, without space around them; an empty one is NULL, as DataX has it for numbers."""
    text = pc.utf8_trim_whitespace(pc.cast(array, pa.string()))
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _through_decimal(text: pa.Array, kind: pa.DataType) -> Converted:
    likely = pc.match_substring_regex(text, _NUMBER)
    wide, too_wide = cast_or_refuse(pc.if_else(likely, text, pa.scalar(None, pa.string())), _WIDE)
    values, bad = _of_decimal(wide, kind, _TimeSettings())
    return values, _either(_either(pc.invert(likely), too_wide), bad)


def _of_decimal(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    """Whole numbers as they are, refused with a fraction; decimals rounded half up, as databases do."""
    if pa.types.is_integer(kind):
        fraction = pc.not_equal(pc.round(array, ndigits=0, round_mode="towards_zero"), array)
        values, bad = cast_or_refuse(
            pc.if_else(pc.fill_null(fraction, False), pa.scalar(None, array.type), array), kind
        )
        return values, _either(fraction, bad)
    if array.type.scale > kind.scale:
        array = pc.round(array, ndigits=kind.scale, round_mode="half_towards_infinity")
    return cast_or_refuse(array, kind)


def _decimal_of_whole(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    return cast_or_refuse(pc.cast(array, pa.decimal256(76, kind.scale)), kind)


def _decimal_of_float(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    """By its shortest text, as DataX reads it: 0.1 is 0.1."""
    return _through_decimal(pc.cast(array, pa.string()), kind)


def _text(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    text = _plain(pc.cast(array, pa.string()))
    if pa.types.is_floating(array.type):  # 1.0 is "1.0" up to ten million, as Java has it
        bare = pc.and_(pc.match_substring_regex(text, _WHOLE), pc.less(pc.abs(array), 1e7))
        text = pc.if_else(bare, pc.binary_join_element_wise(text, ".0", ""), text)
    return pc.cast(text, kind), None


def _plain(text: pa.Array) -> pa.Array:
    """Numbers without an exponent, as DataX writes them; these are few, so each is written by itself."""
    if not pc.any(pc.match_substring_regex(text, "[eEnN]"), min_count=0).as_py():
        return text
    return pa.array(
        [None if number is None else _plainly(number) for number in text.to_pylist()], pa.string()
    )


def _plainly(text: str) -> str:
    names = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return names.get(text) or format(Decimal(text), "f")


def _words(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    return pc.cast(pc.cast(array, pa.string()), kind), None


def _time_text(array: pa.Array, kind: pa.DataType, how: _TimeSettings) -> Converted:
    family = _family(array.type)
    pattern = dict(zip(("timestamp", "date", "time"), how.texts, strict=True))[family]
    return pc.cast(formatted(array, pattern), kind), None


def _bool_of_number(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    return pc.not_equal(array, pa.scalar(0, array.type)), None


def _bool_of_text(array: pa.Array, kind: pa.DataType, _how: _TimeSettings) -> Converted:
    text = pc.ascii_lower(_numbers(array))
    true, false = (pc.is_in(text, pa.array(words)) for words in (["true", "1"], ["false", "0"]))
    is_word = pc.or_(true, false)
    values = pc.if_else(pc.and_(is_word, pc.is_valid(text)), true, pa.scalar(None, pa.bool_()))
    return values, pc.and_(pc.is_valid(text), pc.invert(is_word))


def _time_of_text(array: pa.Array, kind: pa.DataType, how: _TimeSettings) -> Converted:
    """By the job's patterns, else ISO 8601 with or without a time, or a time alone. An empty text is NULL."""
    text = _numbers(array)
    patterns = how.patterns
    moments, bad = cast_or_refuse(text, pa.timestamp("us"), patterns)
    if bad is not None:
        unparsed = pc.if_else(pc.fill_null(bad, False), text, pa.scalar(None, pa.string()))
        # Patterns leave out fractions of a second; and without them, a time of day is not an ISO 8601 moment.
        second_try, bad = cast_or_refuse(
            unparsed, pa.timestamp("us"), () if patterns else _TIMES[2:]
        )
        moments = pc.coalesce(moments, second_try)
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        values, outside = cast_or_refuse(moments, kind)
        return values, _either(bad, outside)
    return pc.cast(moments, kind, safe=False), bad


def _time_of_millis(array: pa.Array, kind: pa.DataType, how: _TimeSettings) -> Converted:
    """Milliseconds since 1970: an instant, or the local time that DataX's machine shows then."""
    millis, bad = cast_or_refuse(array, pa.int64())
    least, most = _EARLIEST, _LATEST
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        least, most = -_NANOS, _NANOS
    outside = pc.or_(pc.less(millis, least), pc.greater(millis, most))
    millis = pc.if_else(pc.fill_null(outside, False), pa.scalar(None, pa.int64()), millis)
    bad = _either(bad, outside)
    if pa.types.is_timestamp(kind) and kind.tz:
        return pc.cast(pc.cast(millis, pa.timestamp("ms", "UTC")), kind, safe=False), bad
    local = pc.local_timestamp(pc.cast(millis, pa.timestamp("ms", how.zone)))
    return pc.cast(local, kind, safe=False), bad


def _either(one: pa.BooleanArray | None, other: pa.BooleanArray | None) -> pa.BooleanArray | None:
    masks = [pc.fill_null(mask, False) for mask in (one, other) if mask is not None]
    return None if not masks else masks[0] if len(masks) == 1 else pc.or_(*masks)


_RULES: dict[tuple[str, str], _Rule] = {
    ("integer", "integer"): _cast,
    ("integer", "float"): _loosely,
    ("integer", "decimal"): _decimal_of_whole,
    ("integer", "bool"): _bool_of_number,
    ("integer", "text"): _words,
    ("integer", "timestamp"): _time_of_millis,
    ("integer", "date"): _time_of_millis,
    ("integer", "time"): _time_of_millis,
    ("float", "integer"): _cast,
    ("float", "float"): _loosely,
    ("float", "decimal"): _decimal_of_float,
    ("float", "text"): _text,
    ("decimal", "integer"): _of_decimal,
    ("decimal", "float"): _loosely,
    ("decimal", "decimal"): _of_decimal,
    ("decimal", "text"): _text,
    ("bool", "integer"): _cast,
    ("bool", "text"): _words,
    ("text", "integer"): _whole_of_text,
    ("text", "float"): _float_of_text,
    ("text", "decimal"): _decimal_of_text,
    ("text", "bool"): _bool_of_text,
    ("text", "text"): _cast,
    ("text", "bytes"): _cast,
    ("text", "timestamp"): _time_of_text,
    ("text", "date"): _time_of_text,
    ("text", "time"): _time_of_text,
    ("bytes", "text"): _cast,
    ("bytes", "bytes"): _cast,
    ("timestamp", "timestamp"): _loosely,
    ("timestamp", "date"): _loosely,
    ("timestamp", "time"): _loosely,
    ("timestamp", "text"): _time_text,
    ("date", "timestamp"): _loosely,
    ("date", "date"): _loosely,
    ("date", "text"): _time_text,
    ("time", "time"): _loosely,
    ("time", "text"): _time_text,
}


def local_zone() -> str:
    """The zone of this machine, in which DataX shows times; UTC where it has no name."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if not named:
        parts = Path("/etc/localtime").resolve().parts
        named = "/".join(parts[parts.index("zoneinfo") + 1 :]) if "zoneinfo" in parts else ""
    return named if named in available_timezones() else "UTC"


@dataclass(frozen=True, slots=True)
class JavaTexts(Transformer):
    """Timestamps in the format of `java.sql.Timestamp`, to the millisecond, and floats in that of `Double.toString`.

    `whole_seconds`: without a fraction of zero, as Hive's Timestamp has it.
    """

    whole_seconds: bool = False
    step: ClassVar[str] = "texts of Java"
    in_place: ClassVar[bool] = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema(
            [part.with_type(pa.string()) if _is_shown(part.type) else part for part in schema]
        )

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        columns = [
            self._shown(column) if _is_shown(column.type) else column for column in batch.columns
        ]
        return TransformResult(
            pa.RecordBatch.from_arrays(columns, schema=self.output_schema(batch.schema))
        )

    def _shown(self, column: pa.Array) -> pa.Array:
        if not pa.types.is_timestamp(column.type):
            return java_double(column)
        # Zeros at the end of the milliseconds are not shown; the first one only if no digit is.
        return _timestamps(column, r"\.?0{1,3}$" if self.whole_seconds else "0{1,2}$")


def _is_shown(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_floating(kind))


def _timestamps(column: pa.Array, zeros: str) -> pa.Array:
    local = pc.local_timestamp(column) if column.type.tz else column
    local = pc.cast(pc.floor_temporal(local, unit="millisecond"), pa.timestamp("ms"))
    return pc.replace_substring_regex(pc.strftime(local, format="%Y-%m-%d %H:%M:%S"), zeros, "")


@dataclass(frozen=True, slots=True)
class CsvTexts(Transformer):
    """Texts as DataX's CSV library writes them (findings/javacsv-cuts-blanks.sh): without leading and trailing blanks,
    and quoted if they contain the separator, a quote or a line end. In the first column an empty text and one that
    begins with `#` are quoted, too. So is `null`, the text of NULL in columns of texts.
    """

    separator: str = ","
    quote: str = '"'
    null: str | None = None
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

    def texts(self, names: Sequence[str]) -> tuple[str, ...]:
        """`names` as the first line of a file has them."""
        return tuple(
            self._quoted(pa.array([name]), number == 0)[0].as_py()
            for number, name in enumerate(names)
        )

    def _quoted(self, column: pa.Array, first: bool) -> pa.Array:
        texts = pc.utf8_trim_whitespace(column)
        if self.null is not None:
            texts = pc.fill_null(texts, self.null.strip())
        special = "".join(
            f"\\x{{{ord(character):x}}}" for character in (self.separator, self.quote, "\n")
        )
        needed = pc.match_substring_regex(texts, f"[{special}]{'|^$|^#' if first else ''}")
        doubled = pc.replace_substring(texts, self.quote, self.quote * 2)
        return pc.if_else(
            needed, pc.binary_join_element_wise(self.quote, doubled, self.quote, ""), texts
        )
