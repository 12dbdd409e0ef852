"""The type that a column is widened to, so that it holds the values that it has and those of the rows. Pure."""

import re

import pyarrow as pa

from spark_channel.connectors.sql.fits import fits, integer_digits, plain_kind

__all__ = ["is_longer", "widened"]

_INTEGERS = (
    pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64(),
)  # fmt: skip
_FLOATS = (pa.float32(), pa.float64())
_DIGITS = 38
_TEXT = re.compile(r"(?:character varying|varchar)\s*\(\s*(\d+)\s*\)", re.IGNORECASE)
_ENDLESS = frozenset({"text", "longtext", "mediumtext", "varchar", "character varying", "string", "clob"})


def widened(column: pa.DataType, rows: pa.DataType) -> pa.DataType | None:
    """The smallest number type in which each value of both is the same number; None = there is none.

    Texts, times and other types have none: they do not differ by which numbers they hold.
    """
    kinds = plain_kind(column), plain_kind(rows)
    if not all(map(_is_number, kinds)):
        return None
    if any(map(pa.types.is_floating, kinds)):
        return next((each for each in _FLOATS if all(fits(kind, each) for kind in kinds)), None)
    if not any(map(pa.types.is_decimal, kinds)):
        found = next((each for each in _INTEGERS if all(fits(kind, each) for kind in kinds)), None)
        return pa.decimal128(integer_digits(pa.uint64()), 0) if found is None else found
    scale = max(_scale(kind) for kind in kinds)
    digits = scale + max(_whole_digits(kind) for kind in kinds)
    return pa.decimal128(digits, scale) if digits <= _DIGITS else None


def is_longer(was: str, now: str) -> bool:
    """Whether a column declared `now` holds every text of one declared `was`, and longer ones."""
    before, after = _TEXT.fullmatch(was.strip()), _TEXT.fullmatch(now.strip())
    if before is None:
        return False
    if after is None:
        return now.strip().lower() in _ENDLESS
    return int(after[1]) > int(before[1])


def _is_number(kind: pa.DataType) -> bool:
    is_decimal = pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision
    is_float = pa.types.is_float32(kind) or pa.types.is_float64(kind) or pa.types.is_float16(kind)
    return bool(pa.types.is_integer(kind) or is_decimal or is_float)


def _scale(kind: pa.DataType) -> int:
    return int(kind.scale) if pa.types.is_decimal(kind) else 0


def _whole_digits(kind: pa.DataType) -> int:
    return int(kind.precision - kind.scale) if pa.types.is_decimal(kind) else integer_digits(kind)
