"""JSON whose numbers are kept as they are written: `1.10`, `1E3` and `-0` come back unchanged."""

import json
from decimal import Decimal, InvalidOperation
from typing import Any, Self

__all__ = ["Number", "parsed", "written"]


class Number(Decimal):
    """A number, and how it is written."""

    text: str

    def __new__(cls, text: str) -> Self:
        try:
            made = super().__new__(cls, text)
        except InvalidOperation:
            raise ValueError(f"{text[:60]!r} has an exponent that no number here has") from None
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


def written(value: Any, comma: str = ", ", colon: str = ": ") -> str:
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
