"""Converts frozen dataclasses to plain JSON data and back, by the types of their fields; numbers stay exact."""

import json
from collections.abc import Callable
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
    "from_plain",
    "parsed",
    "to_plain",
    "written",
]

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
    adapter = _adapters.get(kind)
    if adapter is None:
        adapter = _adapters[kind] = TypeAdapter(kind)
    return adapter


def to_plain(value: object, *, always: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The fields of `value` as JSON data. With `always`, those that hold their default are left out but for these."""
    adapter, some = _adapter(type(value)), always is not None
    plain: dict[str, Any] = adapter.dump_python(value, mode="json", exclude_defaults=some)
    for name in always or ():
        value_now = getattr(value, name)
        plain.setdefault(name, value_now.value if isinstance(value_now, Enum) else value_now)
    return plain


def from_plain(kind: Callable[..., _T], data: Any, subject: str, *, text: bool = False) -> _T:
    """A `kind` of what `to_plain` made; `text`: of that as JSON text.

    Raises:
        ValueError: an unknown or missing field, or a value that the field does not take. It names the field, and
            shows no value: one may be a secret.
    """
    adapter = _adapter(kind)
    try:  # as JSON, which has no tuples and no enums: strictness is about what JSON tells apart
        parsed_data: _T = adapter.validate_json(data if text else json.dumps(data))
    except TypeError:
        raise ValueError(f"{subject} is JSON data, and this is not") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = ".".join(str(step) for step in first["loc"])
        raise ValueError(
            f"{subject} has {path[:64]!r} wrong: {first['msg']}"
            if path
            else f"{subject}: {first['msg']}"
        ) from None
    return parsed_data


class Number(Decimal):
    """A number of JSON, and how it is written: `1.10`, `1E3` and `-0` come back unchanged."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        try:
            number = super().__new__(cls, text)
        except InvalidOperation:
            raise ValueError(
                f"{shortened(text, 60)!r} has an exponent that no number here has"
            ) from None
        number.text = text
        return number

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
        return "[" + comma.join(written(item, comma, colon) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
