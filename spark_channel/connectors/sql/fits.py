"""Arrow types compared: whether one holds every value of another. Pure."""

import pyarrow as pa

__all__ = ["fits", "integer_digits", "is_list", "plain_kind"]

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_WIDER = {pa.uint8(): 16, pa.uint16(): 32, pa.uint32(): 64}


def plain_kind(kind: pa.DataType) -> pa.DataType:
    """The one type that stands for all which hold the same values: of texts, bytes, dates, times and timestamps."""
    if pa.types.is_dictionary(kind):
        return plain_kind(kind.value_type)
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return kind


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def integer_digits(kind: pa.DataType) -> int:
    """Decimal digits that the largest value of an integer type has."""
    return 20 if kind == pa.uint64() else _DIGITS[kind.bit_width]


def fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether `wanted` holds each value of `given` exactly, so that reading it back gives an equal value."""
    if given.equals(wanted):
        return True
    if pa.types.is_integer(wanted):
        return _fits_integer(given, wanted)
    if pa.types.is_floating(wanted):
        if pa.types.is_floating(given):
            return bool(given.bit_width <= wanted.bit_width)
        return bool(pa.types.is_integer(given) and given.bit_width <= (32 if wanted == pa.float64() else 16))
    if pa.types.is_decimal(wanted):
        whole = wanted.precision - wanted.scale
        if pa.types.is_integer(given):
            return bool(integer_digits(given) <= whole)
        if pa.types.is_decimal(given):
            return bool(given.scale <= wanted.scale and given.precision - given.scale <= whole)
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(given):
        units = ("s", "ms", "us", "ns")
        return bool(
            (given.tz is None) == (wanted.tz is None) and units.index(given.unit) <= units.index(wanted.unit)
        )
    return False


def _fits_integer(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_boolean(given):
        return True
    if pa.types.is_decimal(given):
        return bool(given.scale == 0 and given.precision < integer_digits(wanted))
    if not pa.types.is_integer(given):
        return False
    if pa.types.is_unsigned_integer(wanted):
        return bool(pa.types.is_unsigned_integer(given) and given.bit_width <= wanted.bit_width)
    if pa.types.is_unsigned_integer(given):
        return given in _WIDER and _WIDER[given] <= wanted.bit_width
    return bool(given.bit_width <= wanted.bit_width)
