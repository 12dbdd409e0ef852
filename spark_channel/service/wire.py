"""JSON bodies of requests and answers: bounded in size, and checked strictly."""

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["LARGEST_BODY", "LARGEST_INTEGER", "RequestError", "decode", "encode", "fields", "identifier"]

LARGEST_BODY = 4 << 20
"""Bytes of one request or answer: 10 000 snapshots of 400 bytes."""

LARGEST_INTEGER = 2**63 - 1

_LONGEST_IDENTIFIER = 200


class RequestError(ValueError):
    """A request that makes no sense; the message says why and holds no secret."""


def encode(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def decode(body: bytes) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        RequestError: too large, not UTF-8, not JSON, NaN or infinity, not an object, a key twice,
            or an integer outside of -2**63 to 2**63-1.
    """
    if len(body) > LARGEST_BODY:
        raise RequestError(f"a body has at most {LARGEST_BODY} bytes, this one {len(body)}")
    try:
        data = json.loads(
            body,
            parse_constant=_constant,
            parse_float=_finite,
            parse_int=_integer,
            object_pairs_hook=_unique,
        )
    except RequestError:
        raise
    except (ValueError, RecursionError):
        raise RequestError("the body is not JSON") from None
    if not isinstance(data, dict):
        raise RequestError("the body is not a JSON object")
    return data


def fields(data: Mapping[str, Any], *, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Check which fields a request has.

    Raises:
        RequestError: one is missing, or unknown.
    """
    for name in required:
        if name not in data:
            raise RequestError(f"the field {name!r} is missing")
    unknown = data.keys() - set(required) - set(optional)
    if unknown:
        raise RequestError(f"unknown field {min(unknown)[:64]!r}")


def identifier(value: Any, name: str) -> str:
    """A text of 1 to 200 printable characters, spaces included.

    Raises:
        RequestError: anything else.
    """
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_IDENTIFIER or not value.isprintable():
        raise RequestError(f"{name} is a text of 1 to {_LONGEST_IDENTIFIER} printable characters")
    return value


def _constant(_name: str) -> NoReturn:
    raise RequestError("the body has a number that is not finite")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _constant(text)


def _integer(text: str) -> int:
    value = int(text) if len(text) <= 20 else LARGEST_INTEGER + 1
    if not -LARGEST_INTEGER - 1 <= value <= LARGEST_INTEGER:
        raise RequestError("the body has an integer outside of -2**63 to 2**63-1")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise RequestError("the body has a key twice")
    return data
