"""The declared type of a new column, which returns its values unchanged. Pure."""

from collections.abc import Callable, Mapping

import pyarrow as pa

from spark_channel.errors import SchemaError

__all__ = ["declared_as", "plain_kind"]


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


def declared_as(
    name: str,
    kind: pa.DataType,
    product: str,
    types: Mapping[pa.DataType, str],
    decimal: Callable[[int, int], str | None],
    nested: str = " holds no nested values",
) -> str:
    """The declared type of column `name`: one of `types` by its plain kind, or what `decimal` says of (digits, scale).

    Raises:
        SchemaError: nested types, intervals, and whatever else the database cannot hold.
    """
    plain = plain_kind(kind)
    if plain in types:
        return types[plain]
    fits = pa.types.is_decimal(plain) and 0 <= plain.scale <= plain.precision
    if fits and (found := decimal(plain.precision, plain.scale)) is not None:
        return found
    if pa.types.is_nested(plain):
        why = f"{product}{nested}; write it as text, with Spark's to_json for one"
    elif pa.types.is_null(plain):
        why = "it has no type; cast it to the type it should have"
    else:
        why = f"{product} has no such type; cast it to a number or to text"
    raise SchemaError(f"column {name!r} is {kind}: {why}")
