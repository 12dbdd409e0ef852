"""Tokens and split parameters as JSON text, and back: what JSON has not is tagged."""

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

__all__ = ["dump", "load"]

_TAG = "$"


def dump(value: Any) -> str:
    """`value` as text; equal values of the same making give equal texts.

    Raises:
        TypeError: something that is not plain data.
    """
    return json.dumps(_tagged(value), separators=(",", ":"), ensure_ascii=False)


def load(text: str) -> Any:
    """What `dump` was given; tuples come back as lists.

    Raises:
        ValueError: not such a text.
    """
    return json.loads(text, object_hook=_untagged)


def _tagged(value: Any) -> Any:
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


def _untagged(found: dict[str, Any]) -> Any:
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
