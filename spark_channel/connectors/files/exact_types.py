"""Which type an inferred column may have: one that changes no value.

A text belongs to a type when it can be rebuilt from the value, but for the spaces around a number and zeros at the
end of a fraction. So `007`, `+49`, `0x10` and `1e5` are texts, and a number of more digits than a double keeps is
a decimal.
"""

import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "SMALL_INT", "changed_by", "exact_type", "is_number", "is_plain", "keeps", "may_hold_changed", "merge_numbers",
    "number_type",
]  # fmt: skip

SMALL_INT = pa.int32()
"""Among inferred types: whole numbers that a double holds, too. It is read as int64."""

_DIGITS = 38
_SAFE_DIGITS = 15
"""A number of so many significant digits comes back from a double."""
_DOUBLE_INTS = 2**53
_INT = r"^(0|-?[1-9][0-9]*)$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"
_FLOAT = r"^(-?(0|[1-9][0-9]*)(\.[0-9]+)?|NaN|-?Infinity)$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?$"
_ZONED_TIME = _TIME.removesuffix("?$") + "$"
_SUSPECT = re.compile(
    rb"(?:\A|[^\w.+-])(?:\+|-?(?:0[0-9xX]|\.[0-9]|[iI][nN][fF]|[nN][aA][nN])|-0(?!\.))|[0-9.]{16}|"
    rb"[0-9](?:[eE]|\.(?![0-9]))"
)


def may_hold_changed(data: bytes) -> bool:
    """Whether text in `data` may be a number that a type would change: a quick look, sure only when it says no."""
    return _SUSPECT.search(data) is not None


def is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def exact_type(texts: pa.Array, found: pa.DataType) -> pa.DataType:
    """`found`, which a parser took `texts` (without NULL) for, or the type that changes none of them."""
    types = pa.types
    if types.is_integer(found) or types.is_floating(found):
        return _number_type(pc.utf8_trim_whitespace(texts))
    if types.is_date(found):
        return found if _all(texts, _DATE) else pa.string()
    if types.is_timestamp(found):
        return found if _all(texts, _TIME) else pa.string()
    return found


def changed_by(texts: pa.Array, kind: pa.DataType) -> pa.BooleanArray:
    """Which of `texts` a number or time of type `kind` would not give back; NULL where there is none."""
    texts = pc.utf8_trim_whitespace(texts)
    if pa.types.is_integer(kind):
        return pc.invert(pc.match_substring_regex(texts, _INT))
    if pa.types.is_decimal(kind):
        return pc.invert(pc.match_substring_regex(texts, _NUMBER))
    if pa.types.is_floating(kind):
        return pc.or_(pc.invert(pc.match_substring_regex(texts, _FLOAT)), _rounded(texts))
    if pa.types.is_timestamp(kind):
        return pc.invert(pc.match_substring_regex(texts, _TIME if kind.tz is None else _ZONED_TIME))
    return pc.and_(pc.is_null(texts), False)


def is_plain(text: str, kind: pa.DataType) -> bool:
    """Whether one text is written as a value of `kind` is, so that the value gives it back."""
    types = pa.types
    if types.is_integer(kind) or types.is_decimal(kind):
        return re.fullmatch(_INT, text) is not None
    if types.is_floating(kind):
        return re.fullmatch(_NUMBER, text) is not None and keeps(text)
    if types.is_date(kind):
        return re.fullmatch(_DATE, text) is not None
    return not types.is_timestamp(kind) or re.fullmatch(_TIME, text) is not None


def number_type(text: str) -> pa.DataType:
    """The type of one number as JSON writes it, where an exponent is a number's usual form."""
    if re.match(_INT, text):
        whole = int(text) if len(text) < _DIGITS + 2 else None
        if whole is None or not -(2**63) <= whole < 2**63:
            return _decimal_type(len(text.lstrip("-")), 0)
        return SMALL_INT if abs(whole) <= _DOUBLE_INTS else pa.int64()
    value = Decimal(text)
    if keeps(text):
        return pa.float64()
    scale = max(0, -int(value.as_tuple().exponent))
    return _decimal_type(max(value.adjusted() + 1, 1) + scale, scale)


def _decimal_type(digits: int, scale: int) -> pa.DataType:
    """The widest decimal of that scale, if `digits` fit; else text."""
    return pa.decimal128(_DIGITS, scale) if digits <= _DIGITS else pa.string()


def merge_numbers(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The number that holds the numbers of both exactly; None = there is none, or they are no numbers."""
    kinds = {one, other}
    types = pa.types
    if kinds == {SMALL_INT, pa.int64()}:
        return pa.int64()
    if kinds == {SMALL_INT, pa.float64()}:
        return pa.float64()
    decimals = [kind for kind in kinds if types.is_decimal(kind)]
    rest = [kind for kind in kinds if not types.is_decimal(kind)]
    if not decimals or any(not types.is_integer(kind) for kind in rest):
        return None
    scale = max(kind.scale for kind in decimals)
    whole = 19 if rest else 0
    whole = max([whole, *(kind.precision - kind.scale for kind in decimals if kind.scale < scale)])
    return _decimal_type(whole + scale, scale) if rest or len(decimals) > 1 else decimals[0]


def _number_type(texts: pa.Array) -> pa.DataType:
    if _all(texts, _INT):
        longest = pc.max(pc.utf8_length(texts)).as_py()
        if longest <= _SAFE_DIGITS:
            return SMALL_INT
        values = [int(text) for text in texts.to_pylist()] if longest <= _DIGITS + 1 else None
        if values is None:
            return pa.string()
        low, high = min(values), max(values)
        if low >= -_DOUBLE_INTS and high <= _DOUBLE_INTS:
            return SMALL_INT
        return pa.int64() if low >= -(2**63) and high < 2**63 else _decimal_type(len(str(max(high, -low))), 0)
    if not _all(texts, _FLOAT):
        return pa.string()
    if not pc.any(_rounded(texts)).as_py():
        return pa.float64()
    if not _all(texts, _NUMBER):
        return pa.string()
    parts = [text.lstrip("-").partition(".") for text in texts.to_pylist()]
    scale = max(len(fraction) for _, _, fraction in parts)
    return _decimal_type(max(len(whole) for whole, _, _ in parts) + scale, scale)


def _all(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _rounded(texts: pa.Array) -> pa.BooleanArray:
    """Numbers that a double does not give back. Few have so many digits that they must be looked at."""
    digits = pc.replace_substring_regex(texts, r"^-?0*\.?0*|\.", "")
    long = pc.greater(pc.utf8_length(digits), _SAFE_DIGITS)
    if not pc.any(long).as_py():
        return long
    found = [
        None if text is None else bool(is_long) and not keeps(text)
        for text, is_long in zip(texts.to_pylist(), long.to_pylist(), strict=True)
    ]
    return pa.array(found, pa.bool_())


def keeps(text: str) -> bool:
    """Whether a double gives the number back."""
    try:
        value = float(text)
        return abs(value) != float("inf") and Decimal(repr(value)) == Decimal(text)
    except (ValueError, ArithmeticError):
        return text in ("NaN", "Infinity", "-Infinity")
