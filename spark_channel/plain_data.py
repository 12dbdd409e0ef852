"""Converts frozen dataclasses to plain JSON data and back, by the types of their fields."""

import json
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

__all__ = ["LARGEST", "Count", "Limit", "Seconds", "Strict", "Text", "Waits", "from_plain", "to_plain"]

_T = TypeVar("_T")
LARGEST = 2**63 - 1

Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
"""A whole number from 0 to 2**63-1; a bool or a float is none."""
Limit = Annotated[int, Field(strict=True, ge=1, le=LARGEST)]
"""A whole number from 1 to 2**63-1."""
Text = Annotated[str, Field(strict=True, max_length=4096)]
Seconds = Annotated[float, Field(strict=True, ge=0, lt=1e15)]
"""A finite number of seconds, 0 or more."""
Waits = Annotated[dict[Annotated[str, Field(min_length=1, max_length=64)], Seconds], Field(max_length=64)]
"""Seconds by reason."""
Strict = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)
"""As `__pydantic_config__` of a dataclass: no value is made into another type, and no field is unknown."""


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once a class, when it is first needed; twice when two threads are the first, which is harmless."""
    found = _adapters.get(kind)
    if found is None:
        found = _adapters[kind] = TypeAdapter(kind)
    return found


def to_plain(value: Any, *, always: tuple[str, ...] | None = None) -> dict[str, Any]:
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
            f"{what} has {place[:64]!r} wrong: {first['msg']}" if place else f"{what}: {first['msg']}"
        ) from None
    return found
