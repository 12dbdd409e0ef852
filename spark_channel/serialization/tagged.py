"""Tokens and split parameters as JSON text, and back: values that JSON lacks are tagged."""

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

__all__ = [
    "dump_tagged",
    "load_tagged",
]

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
        return [_tagged(item) for item in value]
    if hasattr(value, "items"):
        return {str(key): _tagged(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} is not plain data, so it cannot be kept in a tunnel")


def _untagged(data: dict[str, Any]) -> object:
    match data.get(_TAG):
        case None:
            return data
        case "bytes":
            return base64.b64decode(data["v"], validate=True)
        case "datetime":
            return datetime.fromisoformat(data["v"])
        case "date":
            return date.fromisoformat(data["v"])
        case "decimal":
            return Decimal(data["v"])
    raise ValueError(f"{data!r} is of a kind that this version does not know")
