"""Casts that keep the good rows: they return the rows that cannot be cast, and do not fail the batch."""

from collections.abc import Callable

import pyarrow as pa

from spark_channel.lazy import compute as pc
from spark_channel.transform.time_patterns import parsed

__all__ = ["cast_or_refuse"]


_NUMBER = r"^\s*-?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,2})?\s*$"
_WIDE = pa.decimal256(76, 38)


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
    likely = pc.and_(
        pc.match_substring_regex(text, _NUMBER), pc.match_substring_regex(text, "[.eE]")
    )
    if not pc.any(likely, min_count=0).as_py():
        return text
    wide, _ = cast_or_refuse(pc.if_else(likely, text, pa.scalar(None, text.type)), _WIDE)
    found = pc.equal(pc.round(wide, ndigits=0, round_mode="towards_zero"), wide)
    numbers = pc.cast(pc.cast(wide, pa.decimal256(76, 0), safe=False), text.type)
    return pc.if_else(pc.fill_null(found, False), numbers, text)


def _by_pattern(
    array: pa.Array, kind: pa.DataType, patterns: tuple[str, ...]
) -> tuple[pa.Array, pa.BooleanArray | None]:
    text = pc.utf8_trim_whitespace(array)
    moments = pc.coalesce(*(parsed(text, pattern) for pattern in patterns))
    bad = pc.and_(pc.is_null(moments), pc.is_valid(array))
    made = pc.cast(moments, kind, safe=not pa.types.is_date(kind))
    return made, bad if pc.any(bad, min_count=0).as_py() else None


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
        characters = r"^\s*[-+]?[0-9a-fA-FxX]+\s*$"
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        characters = r"^\s*[-+]?[0-9.eE+\-a-zA-Z]*[0-9fFnNyY.]\s*$"
    elif pa.types.is_boolean(kind):
        characters = r"^\s*(?i:true|false|0|1)\s*$"
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
