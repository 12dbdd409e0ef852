"""Strict reading of plain JSON data into the dataclasses that travel."""

from collections.abc import Mapping
from typing import Any

__all__ = ["LARGEST", "amount", "optional_amount", "refuse_unknown", "seconds", "text", "waits"]

LARGEST = 2**63 - 1
_LONGEST_TEXT = 4096
_MOST_REASONS = 64


def refuse_unknown(data: Any, known: frozenset[str], what: str) -> Mapping[str, Any]:
    """`data` as a mapping with string keys out of `known`.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{what} is a JSON object, not {type(data).__name__}")
    unknown = data.keys() - known
    if unknown:
        raise ValueError(f"{what} has no field {min(map(str, unknown))[:64]!r}")
    return data


def amount(data: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number from 0 to 2**63-1; a bool or a float is none.

    Raises:
        ValueError: missing without a default, or not such a number.
    """
    value = data.get(name, default)
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{name} is a whole number from 0 to 2**63-1")
    return value


def optional_amount(data: Mapping[str, Any], name: str) -> int | None:
    """As `amount`, or None where the field is absent or null."""
    return None if data.get(name) is None else amount(data, name)


def seconds(value: Any, name: str) -> float:
    """A finite number of seconds, 0 or more.

    Raises:
        ValueError: anything else.
    """
    if type(value) not in (int, float) or not 0 <= value < 1e15:
        raise ValueError(f"{name} is a number of seconds, 0 or more")
    return float(value)


def text(data: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A string of at most 4096 characters.

    Raises:
        ValueError: anything else.
    """
    value = data.get(name, default)
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise ValueError(f"{name} is a text of at most {_LONGEST_TEXT} characters")
    return value


def waits(data: Mapping[str, Any], name: str) -> dict[str, float]:
    """Seconds by reason, at most 64 reasons."""
    value = data.get(name, {})
    if not isinstance(value, dict) or len(value) > _MOST_REASONS:
        raise ValueError(f"{name} is an object of at most {_MOST_REASONS} reasons")
    found = {}
    for reason, spent in value.items():
        if not isinstance(reason, str) or not 0 < len(reason) <= 64:
            raise ValueError(f"{name} has a reason that is not a text of 1 to 64 characters")
        found[reason] = seconds(spent, f"{name}[{reason}]")
    return found
