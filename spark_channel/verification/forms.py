"""The form in which the values of a column of two systems are compared: decided by both types, once for a run."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from spark_channel.arrow_schema import is_binary, is_number, is_text, plain_type
from spark_channel.errors import SchemaError
from spark_channel.verification.report import TextForm

__all__ = ["Form", "common_form"]

_ALIKE: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("text", is_text),
    ("binary", is_binary),
    ("date", pa.types.is_date),
    ("time", pa.types.is_time),
    ("duration", pa.types.is_duration),
    ("interval", pa.types.is_interval),
)


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of one column are compared. `name` is shown to people.

    `scale` is a decimal's; `parts` are the forms of an array's items, of a map's keys and values, or of a struct's
    `fields`.
    """

    name: str
    scale: int = 0
    parts: tuple["Form", ...] = ()
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.fields:
            named = zip(self.fields, self.parts, strict=True)
            return f"{self.name}<{', '.join(f'{name}: {part}' for name, part in named)}>"
        inside = ", ".join(map(str, self.parts)) or (str(self.scale) if self.scale else "")
        return f"{self.name}<{inside}>" if inside else self.name


def common_form(
    one: pa.DataType, other: pa.DataType, column: str, text: TextForm = "exact"
) -> Form:
    """The form in which values of both types are compared.

    Raises:
        SchemaError: values of these types are not compared.
    """
    one, other = plain_type(one), plain_type(other)
    types = pa.types
    if types.is_null(one) or types.is_null(other):
        kind = other if types.is_null(one) else one
        return Form("null") if types.is_null(kind) else common_form(kind, kind, column, text)
    both = (one, other)
    numbers = sum(map(is_number, both))
    if all(map(types.is_boolean, both)):
        return Form("boolean")
    if numbers + sum(map(types.is_boolean, both)) == 2:
        return _number_form(one, other)
    for name, belongs in _ALIKE:
        if all(map(belongs, both)):
            return Form(f"{name}, NFC" if name == "text" and text == "nfc" else name)
    if all(types.is_date(kind) or types.is_timestamp(kind) for kind in both):
        return Form("timestamp")
    if {is_text(kind) for kind in both} == {True, False} and any(map(_is_uuid, both)):
        return Form("uuid")
    nested = _nested_form(one, other, column, text)
    if nested is not None:
        return nested
    raise SchemaError(
        f"column {column!r} is {one} on one side and {other} on the other, and values of these types are not "
        "compared. Read it as one type on both sides, with option 'schema' or 'customSchema' or a query, or leave it "
        "out with 'exclude'"
    )


def _nested_form(one: pa.DataType, other: pa.DataType, column: str, text: TextForm) -> Form | None:
    if _is_list(one) and _is_list(other):
        part = common_form(one.value_type, other.value_type, f"{column}[]", text)
        return Form("array", parts=(part,))
    if pa.types.is_map(one) and pa.types.is_map(other):
        key = common_form(one.key_type, other.key_type, f"{column} (key)", text)
        item = common_form(one.item_type, other.item_type, f"{column} (value)", text)
        return Form("map", parts=(key, item))
    if not (pa.types.is_struct(one) and pa.types.is_struct(other)):
        return None
    names = [field.name for field in one]
    if sorted(names) != sorted(field.name for field in other) or len(set(names)) < len(names):
        raise SchemaError(
            f"column {column!r} has fields {', '.join(names)} on one side and "
            f"{', '.join(field.name for field in other)} on the other: the fields must be the same. Leave the "
            "column out with 'exclude', or read the same fields on both sides with a query"
        )
    parts = [
        common_form(one.field(name).type, other.field(name).type, f"{column}.{name}", text)
        for name in names
    ]
    return Form("struct", parts=tuple(parts), fields=tuple(names))


def _number_form(one: pa.DataType, other: pa.DataType) -> Form:
    both = (one, other)
    if any(map(pa.types.is_floating, both)):
        if all(map(pa.types.is_floating, both)):
            return Form("double")
        return Form("double (the other side's numbers are rounded to it)")
    if not any(map(pa.types.is_decimal, both)) and (
        one.equals(other) or not any(map(pa.types.is_uint64, both))
    ):
        if any(map(pa.types.is_boolean, both)):
            return Form("integer (true is 1)")
        return Form("unsigned integer" if pa.types.is_uint64(one) else "integer")
    digits = [_digits(kind) for kind in both]
    scale = max(0, *(scale for _, scale in digits))
    whole = max(precision - decimals for precision, decimals in digits)
    return Form("decimal" if whole + scale <= 38 else "wide decimal", scale)


def _digits(kind: pa.DataType) -> tuple[int, int]:
    return (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (20, 0)


def _is_uuid(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(kind)) and kind.byte_width == 16


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )
