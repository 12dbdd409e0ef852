"""The kinds of values that a job file holds. DataX reads numbers and flags from strings too; so do these."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from spark_channel.option_types import LARGEST_AMOUNT

__all__ = [
    "Delimiter",
    "Encoding",
    "Flag",
    "Fraction",
    "NotNegative",
    "Object",
    "Positive",
    "Speed",
    "Text",
    "Texts",
]


_ESCAPED = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(0[0-7]{0,2})|(t))")
_LARGEST = 2**63 - 1
_WHOLE = re.compile(r"[-+]?\d{1,20}")


def _whole(value: object, takes: str) -> int:
    if isinstance(value, bool):
        raise ValueError(takes)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    if not isinstance(value, int) or abs(value) > _LARGEST:
        raise ValueError(takes)
    return value


def _positive(value: object) -> int:
    takes = "a whole number from 1 to 2**63-1"
    number = _whole(value, takes)
    if number < 1:
        raise ValueError(takes)
    return number


def _not_negative(value: object) -> int:
    takes = "a whole number from 0 to 2**63-1"
    number = _whole(value, takes)
    if number < 0:
        raise ValueError(takes)
    return number


def _speed(value: object) -> int | None:
    takes = "a whole number from 1 to 10**18; 0 or -1: no limit"
    number = _whole(value, takes)
    if not -1 <= number <= LARGEST_AMOUNT:
        raise ValueError(takes)
    return number if number > 0 else None


def _fraction(value: object) -> float:
    takes = "a number from 0 to 1; 0.02 is 2 %"
    try:
        number = float(value) if isinstance(value, (int, float, str)) else -1.0
    except (ValueError, OverflowError):
        raise ValueError(takes) from None
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise ValueError(takes)
    return number


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError("a text")


def _texts(value: object) -> tuple[str, ...]:
    takes = "a text, or a list of texts"
    if not isinstance(value, (list, tuple)):
        value = [value]
    try:
        texts = [_text(one) for one in value]
    except ValueError:
        raise ValueError(takes) from None
    return tuple(text for text in texts if text.strip())


def _delimiter(value: object) -> str:
    """Job files also name a character by its escape, `\\\\u0001` in JSON."""
    text = _text(value)
    match = _ESCAPED.fullmatch(text)
    if match is None:
        return text
    code, short, octal, _ = match.groups()
    hexadecimal = code or short
    return chr(int(hexadecimal, 16)) if hexadecimal else chr(int(octal, 8)) if octal else "\t"


def _encoding(value: object) -> str:
    return _text(value).strip() or "utf-8"


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("true or false")


def _object(value: object) -> object:
    if not isinstance(value, dict):
        raise ValueError("an object")
    return value


Positive = Annotated[int, BeforeValidator(_positive)]
NotNegative = Annotated[int, BeforeValidator(_not_negative)]
Speed = Annotated[int | None, BeforeValidator(_speed)]
"""A limit per second; DataX's 0 and -1 mean none."""
Fraction = Annotated[float, BeforeValidator(_fraction)]
Text = Annotated[str, BeforeValidator(_text)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
"""One text or a list; blank ones, which job generators leave behind, are dropped."""
Delimiter = Annotated[str, BeforeValidator(_delimiter)]
Encoding = Annotated[str, BeforeValidator(_encoding)]
"""A blank one is UTF-8, as in DataX."""
Flag = Annotated[bool, BeforeValidator(_flag)]
Object = Annotated[dict[str, Any], BeforeValidator(_object)]
