"""Messages as bytes: JSON, checked field by field, so that no bytes from outside can harm the coordinator."""

import json
from dataclasses import fields
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from spark_channel.errors import ServiceDeniedError
from spark_channel.limits import messages
from spark_channel.limits.messages import ClientStatus, Reply, Request

__all__ = ["decode_reply", "decode_request", "encode"]

_REQUESTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Request)}
_REPLIES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Reply)}
_LONGEST_MESSAGE = 4 << 20
_LONGEST_TEXT = 256
_LARGEST_NUMBER = float(1 << 62)


def encode(message: Request | Reply) -> bytes:
    """`message` as UTF-8 JSON: its class's name under "type", and the fields that differ from their default."""
    return _to_json(_plain(message)).encode()


def decode_request(data: bytes) -> Request:
    """The request in `data`; `ServiceDeniedError` says what is wrong with it."""
    message: Request = _decode(data, _REQUESTS, _LONGEST_TEXT)
    return message


def decode_reply(data: bytes) -> Reply:
    """The reply in `data`; `ServiceDeniedError` when it is none of ours."""
    message: Reply = _decode(data, _REPLIES, _LONGEST_MESSAGE)
    return message


def _plain(message: Any) -> dict[str, Any]:
    kind = type(message)
    record = {
        name: value for name, default in _DEFAULTS[kind] if (value := getattr(message, name)) != default
    }
    for name in _DEEP.get(kind, ()):
        value = record[name]
        record[name] = [_plain(each) for each in value] if isinstance(value, tuple) else _plain(value)
    record["type"] = kind.__name__
    return record


def _decode(data: bytes, kinds: dict[str, type[Any]], longest_text: int) -> Any:
    if len(data) > _LONGEST_MESSAGE:
        raise ServiceDeniedError(f"a message of {len(data)} bytes is too long")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise ServiceDeniedError("a message is JSON, and this is not") from None
    return _build(record, kinds, longest_text)


def _build(record: Any, kinds: dict[str, type[Any]], longest_text: int) -> Any:
    if not isinstance(record, dict):
        raise ServiceDeniedError("a message is a JSON object, and this is not")
    name = record.pop("type", None)
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ServiceDeniedError("a message names its type, and this one is unknown")
    shape = _SHAPES[kind]
    for field, value in record.items():
        allowed = shape.get(field)
        if allowed is None:
            raise ServiceDeniedError(f"{kind.__name__} has no field {field[:40]!r}")
        given = type(value)
        if given is float and given in allowed and -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
            continue  # most fields of most messages
        record[field] = _value(kind, field, allowed, value, longest_text)
    try:
        return kind(**record)
    except TypeError:
        missing = [field.name for field in fields(kind) if field.name not in record]
        raise ServiceDeniedError(f"{kind.__name__} lacks some of {', '.join(missing)}") from None


def _value(kind: type[Any], field: str, allowed: frozenset[Any], value: Any, longest_text: int) -> Any:
    given = type(value)
    if (
        given is int
        and int not in allowed
        and float in allowed
        and -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER
    ):
        return float(value)
    if given not in allowed:
        if given is dict and allowed & _NESTED:
            return _build(value, {nested.__name__: nested for nested in allowed & _NESTED}, longest_text)
        if given is list and tuple in allowed:
            return tuple(_build(item, {"ClientStatus": ClientStatus}, longest_text) for item in value)
        raise ServiceDeniedError(f"{kind.__name__}.{field} is of a wrong type or size")
    if given is str:
        if len(value) > longest_text:
            raise ServiceDeniedError(f"{kind.__name__}.{field} is longer than {longest_text} characters")
    elif value is not None and not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
        raise ServiceDeniedError(f"{kind.__name__}.{field} is not a number below 2**62")
    return value


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, UnionType):
        return tuple(part for arg in get_args(hint) for part in _alternatives(arg))
    if get_origin(hint) is tuple:
        return (tuple,)
    return (hint,)


def _shape(kind: type[Any]) -> dict[str, frozenset[Any]]:
    hints = get_type_hints(kind)
    return {field.name: frozenset(_alternatives(hints[field.name])) for field in fields(kind)}


_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_NESTED = frozenset({messages.Grant, messages.Hold})
_DEEP = {messages.Joined: ("answer",), messages.LimitStatus: ("clients",)}
"""Fields that hold messages themselves."""
_SHAPES = {kind: _shape(kind) for kind in (*_REQUESTS.values(), *_REPLIES.values(), ClientStatus)}
"""Of each message, its fields and the types that each takes."""
_DEFAULTS = {kind: tuple((field.name, field.default) for field in fields(kind)) for kind in _SHAPES}
"""Of each message, its fields and what they are when nothing is said; without a default, nothing equals it."""
