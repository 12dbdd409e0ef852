"""Plain JSON data: dataclasses, exact numbers, tagged values."""

import base64
import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Annotated, Any, Self, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from spark_channel.plain_text import shortened

__all__ = [
    "LARGEST",
    "Count",
    "Limit",
    "Number",
    "Seconds",
    "Strict",
    "Text",
    "Waits",
    "dump_tagged",
    "from_plain",
    "load_tagged",
    "parsed",
    "to_plain",
    "written",
]


# Converts frozen dataclasses to plain JSON data and back, by the types of their fields.


_T = TypeVar("_T")
LARGEST = 2**63 - 1

Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
"""A whole number from 0 to 2**63-1; a bool or a float is none."""
Limit = Annotated[int, Field(strict=True, ge=1, le=LARGEST)]
"""A whole number from 1 to 2**63-1."""
Text = Annotated[str, Field(strict=True, max_length=4096)]
Seconds = Annotated[float, Field(strict=True, ge=0, lt=1e15)]
"""A finite number of seconds, 0 or more."""
Waits = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Seconds], Field(max_length=64)
]
"""Seconds by reason."""
Strict = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)
"""As `__pydantic_config__` of a dataclass: no value is made into another type, and no field is unknown."""


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once a class, when it is first needed; twice when two threads are the first, which changes nothing."""
    found = _adapters.get(kind)
    if found is None:
        found = _adapters[kind] = TypeAdapter(kind)
    return found


def to_plain(value: object, *, always: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The fields of `value` as JSON data. With `always`, those that hold their default are left out but for these."""
    adapter, some = _adapter(type(value)), always is not None
    found: dict[str, Any] = adapter.dump_python(value, mode="json", exclude_defaults=some)
    for name in always or ():
        given = getattr(value, name)
        found.setdefault(name, given.value if isinstance(given, Enum) else given)
    return found


def from_plain(kind: Callable[..., _T], data: Any, what: str, *, text: bool = False) -> _T:
    """A `kind` of what `to_plain` made; `text`: of that as JSON text.

    Raises:
        ValueError: an unknown or missing field, or a value that the field does not take. It names the field, and
            shows no value: one may be a secret.
    """
    adapter = _adapter(kind)
    try:  # as JSON, which has no tuples and no enums: strictness is about what JSON tells apart
        found: _T = adapter.validate_json(data if text else json.dumps(data))
    except TypeError:
        raise ValueError(f"{what} is JSON data, and this is not") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(each) for each in first["loc"])
        raise ValueError(
            f"{what} has {place[:64]!r} wrong: {first['msg']}"
            if place
            else f"{what}: {first['msg']}"
        ) from None
    return found


class Number(Decimal):
    """A number of JSON, and how it is written: `1.10`, `1E3` and `-0` come back unchanged."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        try:
            made = super().__new__(cls, text)
        except InvalidOperation:
            raise ValueError(
                f"{shortened(text, 60)!r} has an exponent that no number here has"
            ) from None
        made.text = text
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text,)


def _whole(text: str) -> int | Number:
    return Number(text) if text == "-0" else int(text)


def parsed(text: str | bytes) -> Any:
    """Whole numbers are `int`, others `Number`.

    Raises:
        ValueError: it is not JSON. RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_float=Number, parse_int=_whole)


def written(value: object, comma: str = ", ", colon: str = ": ") -> str:
    """The JSON of a value, with its numbers as they are written."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, dict):
        pairs = [
            f"{json.dumps(name, ensure_ascii=False)}{colon}{written(inner, comma, colon)}"
            for name, inner in value.items()
        ]
        return "{" + comma.join(pairs) + "}"
    if isinstance(value, list):
        return "[" + comma.join(written(each, comma, colon) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)


# Tokens and split parameters as JSON text, and back: values that JSON lacks are tagged.


_TAG = "$"


def dump_tagged(value: object) -> str:
    """`value` as text; equal values of the same making give equal texts.

    Raises:
        TypeError: something that is not plain data.
    """
    return json.dumps(_tagged(value), separators=(",", ":"), ensure_ascii=False)


def load_tagged(text: str) -> Any:
    """What `dump_tagged` was given; tuples come back as lists.

    Raises:
        ValueError: not such a text.
    """
    return json.loads(text, object_hook=_untagged)


def _tagged(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {_TAG: "bytes", "v": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return {_TAG: "datetime", "v": value.isoformat()}
    if isinstance(value, date):
        return {_TAG: "date", "v": value.isoformat()}
    if isinstance(value, Decimal):
        return {_TAG: "decimal", "v": str(value)}
    if isinstance(value, list | tuple):
        return [_tagged(each) for each in value]
    if hasattr(value, "items"):
        return {str(key): _tagged(each) for key, each in value.items()}
    raise TypeError(f"{type(value).__name__} is not plain data, so it cannot be kept in a tunnel")


def _untagged(found: dict[str, Any]) -> object:
    match found.get(_TAG):
        case None:
            return found
        case "bytes":
            return base64.b64decode(found["v"], validate=True)
        case "datetime":
            return datetime.fromisoformat(found["v"])
        case "date":
            return date.fromisoformat(found["v"])
        case "decimal":
            return Decimal(found["v"])
    raise ValueError(f"{found!r} is of a kind that this version does not know")
