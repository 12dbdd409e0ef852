"""Numbers that keep what was read: `double` as its text, `long` with up to 38 digits.

DataX carries both so (its DoubleColumn holds a text, its LongColumn a BigInteger): 12345678901234567.89 has more digits
than a 64-bit float, 1.50 more than its number. A note in the field says that a text or decimal is such a number.
"""

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa

from spark_channel.lazy import compute as pc

__all__ = [
    "Converted",
    "as_carried",
    "carried_type",
    "exact_field",
    "is_exact",
    "java_double",
    "kept",
]

_NOTE = b"spark_channel.exact_number"
_DOUBLE, _LONG = b"double", b"long"
_WHOLE = pa.decimal128(38, 0)
_NUMBER = r"^(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,9})?|(?i:nan|-?infinity))$"
"""What Java's BigDecimal reads, and the three words that DataX's DoubleColumn takes beside."""

_LEAST_PLAIN, _LEAST_LARGE = 1e-3, 1e7
"""Between them Java writes a double without an exponent."""

Converted = tuple[pa.Array, pa.BooleanArray | None]
"""The array as the other type, and which values had none there; None if all had."""
Cast = Callable[[pa.Array, pa.DataType], Converted]


def is_exact(kind: pa.DataType | None) -> bool:
    """Whether values of this type can be kept exactly: `double` and `long` of DataX."""
    return kind in (pa.float64(), pa.int64())


def exact_field(field: pa.Field) -> pa.Field:
    """The field that keeps numbers of a `float64` or `int64` field exactly."""
    double = pa.types.is_floating(field.type)
    note = {_NOTE: _DOUBLE if double else _LONG}
    return pa.field(field.name, pa.string() if double else _WHOLE, field.nullable, note)


def carried_type(field: pa.Field) -> pa.DataType:
    """What a field is to steps that ask for its kind: a number, also where it is carried as text."""
    note = (field.metadata or {}).get(_NOTE)
    if note == _DOUBLE and pa.types.is_string(field.type):
        return pa.float64()
    return pa.int64() if note == _LONG and field.type == _WHOLE else field.type


def kept(array: pa.Array, kind: pa.DataType, cast: Cast) -> Converted:
    """`array` as `exact_field` of a field of `kind` has it, and which values are none; `cast` refuses values."""
    if pa.types.is_integer(kind):
        if pa.types.is_string(array.type):
            # Arrow reads 0x1F nowhere here, and 1e3 as 1000; DataX cuts 1.9, and here it is refused.
            array = pc.utf8_trim_whitespace(array)
        return cast(array, _WHOLE)
    if pa.types.is_floating(array.type):
        return java_double(array), None
    if not pa.types.is_string(array.type):
        return cast(array, pa.string())
    fits = pc.match_substring_regex(array, _NUMBER)
    if pc.all(fits, min_count=0).as_py():
        return array, None
    return pc.if_else(fits, array, pa.scalar(None, array.type)), pc.fill_null(
        pc.invert(fits), False
    )


def as_carried(array: pa.Array, field: pa.Field, cast: Cast) -> Converted:
    """The values of a field in `carried_type`, and which do not fit it."""
    kind = carried_type(field)
    return (array, None) if kind == array.type else cast(array, kind)


def java_double(column: pa.Array) -> pa.Array:
    """Floats as Java's `Double.toString` writes them, and -0.0 as 0.0: the numbers of DataX have no such zero."""
    texts = pc.cast(column, pa.string())
    size = pc.abs(pc.cast(column, pa.float64()))
    plain = pc.or_(
        pc.equal(size, 0),
        pc.and_(pc.greater_equal(size, _LEAST_PLAIN), pc.less(size, _LEAST_LARGE)),
    )
    whole = pc.invert(pc.match_substring_regex(texts, r"[.eE]"))
    java_texts = pc.if_else(
        pc.and_(plain, whole), pc.binary_join_element_wise(texts, ".0", ""), texts
    )
    java_texts = pc.if_else(pc.equal(size, 0), pa.scalar("0.0", java_texts.type), java_texts)
    others = pc.invert(pc.fill_null(plain, True))
    if not pc.any(others, min_count=0).as_py():
        return java_texts
    with_exponents = [_with_exponent(text) for text in texts.filter(others).to_pylist()]
    return pc.replace_with_mask(java_texts, others, pa.array(with_exponents, pa.string()))


def _with_exponent(text: str) -> str:
    """The shortest digits of a number, as Java shows what is very small or large."""
    if text.lower() in ("nan", "-nan"):
        return "NaN"
    if "inf" in text.lower():
        return "-Infinity" if text.startswith("-") else "Infinity"
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    digit_text = "".join(map(str, digits))
    power = int(exponent) + len(digit_text) - 1
    return f"{'-' if sign else ''}{digit_text[0]}.{digit_text[1:] or '0'}E{power}"
