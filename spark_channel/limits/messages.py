"""The messages between clients and the coordinator: plain data, one request, one reply.

Amounts are rows and bytes, times are seconds. No message holds an instant of another host's clock that
the other has to read: a grant says how long it lasts, and the client counts from when it asked, so it
stops no later than the coordinator believes.
"""

import json
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from spark_channel.errors import ServiceDeniedError

__all__ = [
    "OLD_GRANT_SECONDS",
    "Acknowledged",
    "ClientStatus",
    "Grant",
    "GrantRequest",
    "GrantReturn",
    "Heartbeat",
    "Join",
    "Joined",
    "Leave",
    "LimitChanged",
    "LimitStatus",
    "Pause",
    "Permit",
    "PermitRequest",
    "PermitReturn",
    "Rejected",
    "Reply",
    "Request",
    "Resume",
    "RetryLater",
    "SetRates",
    "StatusRequest",
    "Subscribe",
    "decode_reply",
    "decode_request",
    "encode",
]


OLD_GRANT_SECONDS = 1.0
"""The longest time for which a client spends the grant named in a `GrantRequest` after sending it."""
_LONGEST_MESSAGE = 4 << 20
_LONGEST_TEXT = 256
_LARGEST_NUMBER = float(1 << 62)


@dataclass(frozen=True, slots=True)
class Join:
    """A new client of `limit`, working for `job`; `show` lists it as `name`. Answer: `Joined`.

    `before`: its id before it was cut off.
    """

    limit: str
    job: str
    name: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True)
class GrantRequest:
    """A client asks for a grant. Answer: `Grant` or `RetryLater`.

    `number` counts this client's asks and returns from 1 up: a repeated number gets the same answer
    again, a lower one is refused. `grant`: the grant that it spends (0 = none), until it has the answer,
    and for `OLD_GRANT_SECONDS` at most; of it `spent_*` were used, and `missed_*` fell due with nothing to
    spend them on. `waiting` says what the client waits for, for people to read.
    """

    limit: str
    client: str
    epoch: str
    number: int
    grant: int = 0
    spent_rows: float = 0.0
    spent_bytes: float = 0.0
    missed_rows: float = 0.0
    missed_bytes: float = 0.0
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class GrantReturn:
    """A client that needs no more of `grant` gives the rest back immediately. Answer: `Acknowledged`."""

    limit: str
    client: str
    epoch: str
    number: int
    grant: int
    spent_rows: float = 0.0
    spent_bytes: float = 0.0
    missed_rows: float = 0.0
    missed_bytes: float = 0.0
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A client that needs no grant is alive. Answer: `Acknowledged`."""

    limit: str
    client: str
    epoch: str
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A client subscribes to changes, to learn of them before its next request. Answer: `LimitChanged`.

    The shell answers as soon as `version`, which the client heard last (-1 = never), is out of date, and
    again at each change, until the client leaves or a minute has passed; and when `calls`, how often the client
    was called so far, is out of date. Clients listen that ask seldom, or could use more than they have.
    """

    limit: str
    client: str
    epoch: str
    version: int = -1
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Leave:
    """The client has finished, and gives back the rest of `grant` (0 = none). Answer: `Acknowledged`."""

    limit: str
    client: str
    epoch: str
    grant: int = 0
    spent_rows: float = 0.0
    spent_bytes: float = 0.0
    missed_rows: float = 0.0
    missed_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class SetRates:
    """New rates, both of them (None = unlimited in that dimension). Answer: `LimitStatus`."""

    limit: str
    rows_per_second: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop all clients of the limit until `Resume`. Answer: `LimitStatus`."""

    limit: str


@dataclass(frozen=True, slots=True)
class Resume:
    """End of `Pause`. Answer: `LimitStatus`."""

    limit: str


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """Asks for the state of the limit. Answer: `LimitStatus`."""

    limit: str


@dataclass(frozen=True, slots=True)
class PermitRequest:
    """`holder` wants one of the permits called `limit`, or renews its own. Answer: `Permit` or `RetryLater`."""

    limit: str
    holder: str


@dataclass(frozen=True, slots=True)
class PermitReturn:
    """`holder` gives back its permit, or its place in the queue. Answer: `Acknowledged`."""

    limit: str
    holder: str


@dataclass(frozen=True, slots=True)
class Permit:
    """The permit is granted. Ask again, as the same holder, within `renew_in` seconds while it is needed."""

    renew_in: float


@dataclass(frozen=True, slots=True)
class Grant:
    """`rows` and `nbytes` (None = unlimited) to be spent evenly, at the pace given, and then void.

    It begins `starts_in` seconds after it arrived and lasts `lasts` seconds more; the client asks again
    `ask_in` seconds after it arrived. `use_by` is when it is void, on the coordinator's own clock. It
    replaces the grant named in the `GrantRequest`, as soon as it begins.

    `saved_*`, of it, may be spent as soon as it begins.

    It is a part of the limit, which was `limit_*` at `version`: who hears of a later one (`LimitChanged`) spends the
    same part of that.
    """

    grant: int
    rows: int | None
    nbytes: int | None
    rows_per_second: float | None
    bytes_per_second: float | None
    starts_in: float
    lasts: float
    ask_in: float
    use_by: float
    epoch: str
    version: int = -1
    limit_rows_per_second: float | None = None
    limit_bytes_per_second: float | None = None
    saved_rows: float = 0.0
    saved_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryLater:
    """No grant yet: ask again in `retry_in` seconds. `drop`: stop spending the grant you hold, too.

    `reason`: "turn" (others have it), "share" (others have it, and give up a part when they ask next), "paused",
    "pressure", "restart", or "connections" (permits).
    """

    reason: str
    retry_in: float
    drop: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """The client's secret name, the coordinator's epoch, and the answer to a first `GrantRequest`.

    `version` is that of the limit which the answer is made from; see `LimitChanged`.
    """

    client: str
    epoch: str
    heartbeat_in: float
    answer: Grant | RetryLater
    version: int = -1


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The request was carried out. Send a message again within `heartbeat_in` seconds."""

    heartbeat_in: float


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """The limit's present values (None = unlimited, 0 = nothing moves, for the `reason` "paused" or "pressure").

    `version` counts how often it was set, paused, resumed or pressed. A client whose grant depends on it asks within
    `ask_within` seconds. `again_in`: the answer ends here, listen again after this many seconds. `calls` counts how
    often this client was called to ask immediately, since a part of the limit became free that it could use.
    """

    version: int
    rows_per_second: float | None = None
    bytes_per_second: float | None = None
    reason: str = ""
    ask_within: float = 0.0
    again_in: float | None = None
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request was refused and changed nothing. `rejoin`: join again and all is well."""

    message: str
    rejoin: bool = False


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """One client, as `show` lists it. Speeds are what it may spend now; `waiting` is in its own words."""

    name: str
    job: str
    rows_per_second: float
    bytes_per_second: float
    waiting: str
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """A limit at one instant.

    `rows_per_second` and `bytes_per_second` are what was set; `effective_*` what is left of it under
    pressure or a pause; `granted_*` what the live grants may spend per second. `horizon`: seconds that a
    grant lasts. Amounts since the coordinator started: issued = spent + returned + void + outstanding.
    `clients` holds at most 200 of the `client_count`.
    """

    limit: str
    epoch: str
    rows_per_second: float | None
    bytes_per_second: float | None
    effective_rows_per_second: float | None
    effective_bytes_per_second: float | None
    granted_rows_per_second: float
    granted_bytes_per_second: float
    paused: bool
    pressure: str
    horizon: float
    jobs: int
    client_count: int
    waiting_count: int
    issued_rows: float
    spent_rows: float
    returned_rows: float
    void_rows: float
    outstanding_rows: float
    issued_bytes: float
    spent_bytes: float
    returned_bytes: float
    void_bytes: float
    outstanding_bytes: float
    clients: tuple[ClientStatus, ...]

    @property
    def shown(self) -> tuple[int | None, int | None, str]:
        """Rows and bytes per second for people, None = unlimited, and why they hold, such as "paused"."""
        rows, nbytes = (
            None if rate is None else max(1, round(rate))
            for rate in (self.rows_per_second, self.bytes_per_second)
        )
        return rows, nbytes, "paused" if self.paused else self.pressure


Request = (
    Join
    | GrantRequest
    | GrantReturn
    | Heartbeat
    | Subscribe
    | Leave
    | SetRates
    | Pause
    | Resume
    | StatusRequest
    | PermitRequest
    | PermitReturn
)
Reply = Joined | Grant | RetryLater | Acknowledged | LimitChanged | LimitStatus | Permit | Rejected


_Message = TypeVar("_Message")
_REQUESTS: dict[str, type[Request]] = {kind.__name__: kind for kind in get_args(Request)}
_REPLIES: dict[str, type[Reply]] = {kind.__name__: kind for kind in get_args(Reply)}


def encode(message: Request | Reply) -> bytes:
    """`message` as UTF-8 JSON: its class's name under "type", and the fields that differ from their default."""
    return _to_json(_plain(message)).encode()


def decode_request(data: bytes) -> Request:
    """The request in `data`; `ServiceDeniedError` says what is wrong with it."""
    return _decode(data, _REQUESTS, _LONGEST_TEXT)


def decode_reply(data: bytes) -> Reply:
    """Return the reply in `data`. Raises `ServiceDeniedError` when it is not a valid reply."""
    return _decode(data, _REPLIES, _LONGEST_MESSAGE)


def _plain(message: object) -> dict[str, Any]:
    kind = type(message)
    record = {
        name: value
        for name, default in _DEFAULTS[kind]
        if (value := getattr(message, name)) != default
    }
    for name in _DEEP.get(kind, ()):
        value = record[name]
        record[name] = (
            [_plain(item) for item in value] if isinstance(value, tuple) else _plain(value)
        )
    record["type"] = kind.__name__
    return record


def _decode(data: bytes, kinds: dict[str, type[_Message]], longest_text: int) -> _Message:
    if len(data) > _LONGEST_MESSAGE:
        raise ServiceDeniedError(f"a message of {len(data)} bytes is too long")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise ServiceDeniedError("a message is JSON, and this is not") from None
    return _build(record, kinds, longest_text)


def _build(record: object, kinds: dict[str, type[_Message]], longest_text: int) -> _Message:
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
        value_type = type(value)
        if (
            value_type is float
            and value_type in allowed
            and -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER
        ):
            continue  # most fields of most messages
        record[field] = _value(kind, field, allowed, value, longest_text)
    try:
        return kind(**record)
    except TypeError:
        missing = [field for field in shape if field not in record]
        raise ServiceDeniedError(f"{kind.__name__} lacks some of {', '.join(missing)}") from None


def _value(
    kind: type[object], field: str, allowed: frozenset[Any], value: Any, longest_text: int
) -> object:
    value_type = type(value)
    if (
        value_type is int
        and int not in allowed
        and float in allowed
        and -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER
    ):
        return float(value)
    if value_type not in allowed:
        if value_type is dict and allowed & _NESTED:
            return _build(
                value, {nested.__name__: nested for nested in allowed & _NESTED}, longest_text
            )
        if value_type is list and tuple in allowed:
            return tuple(
                _build(item, {"ClientStatus": ClientStatus}, longest_text) for item in value
            )
        raise ServiceDeniedError(f"{kind.__name__}.{field} is of a wrong type or size")
    if value_type is str:
        if len(value) > longest_text:
            raise ServiceDeniedError(
                f"{kind.__name__}.{field} is longer than {longest_text} characters"
            )
    elif value is not None and not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
        raise ServiceDeniedError(f"{kind.__name__}.{field} is not a number below 2**62")
    return value


def _alternatives(hint: object) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, UnionType):
        return tuple(part for arg in get_args(hint) for part in _alternatives(arg))
    if get_origin(hint) is tuple:
        return (tuple,)
    return (hint,)


def _shape(kind: type[Any]) -> dict[str, frozenset[Any]]:
    hints = get_type_hints(kind)
    return {field.name: frozenset(_alternatives(hints[field.name])) for field in fields(kind)}


_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_NESTED = frozenset({Grant, RetryLater})
_DEEP: dict[type[object], tuple[str, ...]] = {Joined: ("answer",), LimitStatus: ("clients",)}
"""Fields that hold messages themselves."""
_KINDS = (*_REQUESTS.values(), *_REPLIES.values(), ClientStatus)
_SHAPES: dict[type[object], dict[str, frozenset[Any]]] = {kind: _shape(kind) for kind in _KINDS}
"""The fields of each message, and the types that each field takes."""
_DEFAULTS: dict[type[object], tuple[tuple[str, object], ...]] = {
    kind: tuple((field.name, field.default) for field in fields(kind)) for kind in _KINDS
}
"""The fields of each message and their defaults; a field without a default has a value that equals nothing."""
