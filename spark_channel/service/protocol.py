"""The protocol of the service: addresses, tokens, strictly checked JSON, and calls that wait for changes."""

import hashlib
import hmac
import json
import math
import os
import re
import secrets
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, NoReturn, Self

from pydantic import ConfigDict, Field

from spark_channel.errors import OptionError
from spark_channel.serialization import from_plain, to_plain

if TYPE_CHECKING:
    from spark_channel.limits import HealthSample

__all__ = [
    "CHANGE_SCOPE",
    "FLUSH_SECONDS",
    "GRACE_SECONDS",
    "LARGEST_BODY",
    "LISTEN_SECONDS",
    "NO_SCOPE",
    "READ_SCOPE",
    "SERVICE_SCOPE",
    "RequestError",
    "ServiceAddress",
    "SharedLimitAddress",
    "Subscriptions",
    "TlsFiles",
    "Tokens",
    "decode",
    "encode",
    "fields",
    "identifier",
    "new_job_id",
    "owns_jobs",
    "run_id",
    "sample_from_json",
    "sample_to_json",
    "scoped_token",
    "token_of_file",
]


LARGEST_BODY = 4 << 20
"""Bytes of one request or answer: 10 000 snapshots of 400 bytes."""

LARGEST_INTEGER = 2**63 - 1

_LONGEST_IDENTIFIER = 200
LISTEN_SECONDS = 60.0
FLUSH_SECONDS = 2.0
GRACE_SECONDS = 0.5
"""The longest time that a call listens. A lost client occupies a thread for this long."""
MOST_LISTENERS = 2_000
"""Each listener needs a sleeping thread of the server."""
_JOBS_OF = "jobs-of:"
_JOBS_OF_ONE = re.compile(_JOBS_OF + "[0-9a-f]{24}")
SERVICE_SCOPE = ""
"""The scope of the service's own token, which may do everything."""
READ_SCOPE = "read"
"""The scope of tokens that read metrics and the page, and change nothing."""
CHANGE_SCOPE = "change"
"""The scope of a token that reads the page, and changes, pauses and resumes limits."""
NO_SCOPE = "-"
"""The scope of a caller without a token, who reads what everyone may know."""
_READ_TOKEN_FILE = "SPARK_CHANNEL_READ_TOKEN_FILE"  # noqa: S105 - the name of a variable
_SHORTEST_TOKEN = 16
_MOST_NAMES = 50
_MOST_DELAYS = 1_000
_LONGEST_TEXT = 200
_LARGEST = float(1 << 62)


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


def fields(
    data: Mapping[str, Any], *, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
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


def identifier(value: object, name: str) -> str:
    """A text of 1 to 200 printable characters, spaces included.

    Raises:
        RequestError: anything else.
    """
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= _LONGEST_IDENTIFIER
        or not value.isprintable()
    ):
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


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Host, port and bearer token of one service; plain data that travels to the executors.

    `tls_root` is the PEM certificate that the service's is checked against; None = no TLS. Neither it
    nor the token is in the `repr`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="ignore", strict=True, hide_input_in_errors=True
    )

    host: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(gt=0, lt=65536)]
    token: Annotated[str, Field(min_length=1)] = field(repr=False)
    tls_root: str | None = field(default=None, repr=False)

    @property
    def location(self) -> str:
        """As a url."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls_root else ''}://{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def for_jobs_of(self, owner: str) -> Self:
        """The same service, with a token for the jobs that `owner` opens, and for nothing else.

        Two calls with one owner return the same. A token that is not the service's own stays as it is.
        """
        if self.token.startswith(_JOBS_OF):
            return self
        scope = _JOBS_OF + hashlib.blake2s(owner.encode(), digest_size=12).hexdigest()
        return replace(self, token=f"{scope}.{scoped_token(self.token, scope)}")

    def to_json(self) -> dict[str, Any]:
        """Plain data, token included: for a 0600 file, or a pickled reader."""
        return to_plain(self)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read what `to_json` made.

        Raises:
            ValueError: not such data.
        """
        return from_plain(cls, data, "an address")


class SharedLimitAddress:
    """Where a shared limit is kept, and its name there. Plain data."""

    __slots__ = ("name", "service")

    def __init__(self, service: ServiceAddress, name: str) -> None:
        self.service = service
        self.name = name

    def __repr__(self) -> str:
        return f"SharedLimitAddress({self.service}, {self.name!r})"


def new_job_id() -> str:
    """Unique among all runs."""
    return uuid.uuid4().hex[:12]


def run_id(plan: str, execution: str | None, stage: int) -> str:
    """The job that a task of a lazily read plan belongs to; every task of a run computes the same.

    `plan` is unique per `load()`. One SQL execution (Spark's local property `spark.sql.execution.id`) is
    one run: an action on the DataFrame. Its stages, retried stages, retried and speculative tasks
    share the id, and with it the limit, also when a self-join reads the plan in two stages at
    once. Without an execution (`df.rdd`) each stage is a run.
    """
    return f"{plan}-{execution}" if execution else f"{plan}-stage{stage}"


class Subscriptions:
    """One event for each client that listens to a limit. Thread-safe."""

    def __init__(self, most: int = MOST_LISTENERS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._subscriptions: dict[str, dict[str, threading.Event]] = {}
        self._count = 0
        self._ended = False

    def subscribe(self, limit: str, client: str) -> threading.Event | None:
        """Return an event for `client`; None when there are too many, or the service ends.

        Subscribe before looking for changes, so that none is missed. An earlier event of the same client is set.
        """
        event = threading.Event()
        with self._lock:
            if self._ended or self._count >= self._most:
                return None
            subscriptions = self._subscriptions.setdefault(limit, {})
            before = subscriptions.get(client)
            subscriptions[client] = event
            if before is None:
                self._count += 1
            else:
                before.set()
        return event

    def is_subscribed(self, limit: str, client: str, event: threading.Event) -> bool:
        """Whether `event` is still the one of that client, and the service runs."""
        with self._lock:
            return not self._ended and self._subscriptions.get(limit, {}).get(client) is event

    def unsubscribe(self, limit: str, client: str, event: threading.Event) -> None:
        """Forget `event`, unless the client has another one by now."""
        with self._lock:
            subscriptions = self._subscriptions.get(limit, {})
            if subscriptions.get(client) is event:
                del subscriptions[client]
                self._count -= 1
                if not subscriptions:
                    del self._subscriptions[limit]

    def notify(self, limit: str, client: str | None = None) -> None:
        """Wake the calls that listen to `limit` and its resources: all, or `client` alone."""
        with self._lock:
            if client is not None:
                event = self._subscriptions.get(limit, {}).get(client)
                notified = [] if event is None else [event]
            else:
                notified = [
                    event
                    for name, subscriptions in self._subscriptions.items()
                    if name.partition("@")[0] == limit.partition("@")[0]
                    for event in subscriptions.values()
                ]
        for event in notified:
            event.set()

    def end(self) -> None:
        """Wake all, and accept no more."""
        with self._lock:
            self._ended = True
            notified = [
                event
                for subscriptions in self._subscriptions.values()
                for event in subscriptions.values()
            ]
        for event in notified:
            event.set()


class TlsFiles(NamedTuple):
    """Paths of a PEM certificate (with its chain) and of its private key.

    Clients trust `root`, by default the certificate itself, as fits a self-signed one.
    """

    certificate: str
    key: str
    root: str | None = None


def owns_jobs(scope: str) -> bool:
    """Whether a token of `scope` is for the jobs that were opened with it: see `ServiceAddress.for_jobs_of`."""
    return _JOBS_OF_ONE.fullmatch(scope) is not None


def scoped_token(service_token: str, scope: str) -> str:
    """The token of `scope` that the service with `service_token` accepts; the same after a restart."""
    return hmac.new(service_token.encode(), scope.encode(), hashlib.sha256).hexdigest()


def token_of_file() -> str | None:
    """The token that reads metrics, from the file that the environment names; None = it names none.

    Raises:
        OptionError: the file cannot be read, or holds no token.
    """
    path = os.environ.get(_READ_TOKEN_FILE)
    if not path:
        return None
    try:
        token = Path(path).read_text(encoding="ascii").strip()
        fault = f"a token has {_SHORTEST_TOKEN} printable characters or more"
    except (OSError, UnicodeError) as error:
        token, fault = "", str(error)
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise OptionError(
            f"{_READ_TOKEN_FILE} is {path!r}, which holds no token: {fault}. "
            "Write one with `openssl rand -hex 32`",
            option=_READ_TOKEN_FILE,
            got=path,
        )
    return token


class Tokens:
    """Random tokens, each for one scope. Thread-safe; no token is ever in a message."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scopes: dict[str, str] = {}

    def add(self, scope: str, token: str | None = None) -> str:
        """Accept `token`, or a new random one, for `scope`; an earlier one of the scope is void."""
        token = token or secrets.token_urlsafe(32)
        with self._lock:
            self._scopes[scope] = token
        return token

    def remove(self, scope: str) -> None:
        with self._lock:
            self._scopes.pop(scope, None)

    def scope_of(self, authorization: str) -> str | None:
        """The scope of an `Authorization` header; None when it opens nothing."""
        header = authorization.encode("utf-8", "surrogateescape")
        with self._lock:
            accepted = list(self._scopes.items())
            service_token = self._scopes.get(SERVICE_SCOPE)
        scope, _, _ = authorization.removeprefix("Bearer ").partition(".")
        if service_token is not None and owns_jobs(scope):  # these are made without asking
            accepted.append((scope, f"{scope}.{scoped_token(service_token, scope)}"))
        scope_found = None
        for scope, token in accepted:
            if hmac.compare_digest(header, b"Bearer " + token.encode()):
                scope_found = scope
        return scope_found

    def __repr__(self) -> str:
        return f"Tokens({len(self._scopes)})"


def sample_to_json(sample: "HealthSample") -> dict[str, Any]:
    return {
        "values": {name: list(pair) for name, pair in sample.values.items()},
        "delays": {name: list(numbers) for name, numbers in sample.delays.items()},
        "missing": [_shown(signal) for signal in sample.missing],
        "error": _shown(sample.error),
        "row_seconds": sample.row_seconds,
    }


def sample_from_json(data: Mapping[str, Any]) -> "HealthSample":
    """Return the sample in the fields of a request, which come from another process.

    Raises:
        RequestError: a field is missing, has another type, or is too large.
    """
    from spark_channel.limits import HealthSample

    values, delays = _named(data["values"], "values"), _named(data["delays"], "delays")
    missing, error = data["missing"], data["error"]
    if any(len(_numbers(pair)) != 2 for pair in values.values()):
        raise RequestError("a value is a number and what it may be")
    if not isinstance(missing, list) or len(missing) > _MOST_NAMES:
        raise RequestError("missing is a list of texts")
    return HealthSample(
        {name: (float(pair[0]), float(pair[1])) for name, pair in values.items()},
        {name: tuple(_numbers(numbers)) for name, numbers in delays.items()},
        tuple(_text(signal) for signal in missing),
        _text(error),
        _numbers([data.get("row_seconds", 0.0)])[0],
    )


def _named(data: object, name: str) -> Mapping[str, Any]:
    if not isinstance(data, dict) or len(data) > _MOST_NAMES:
        raise RequestError(f"{name} is an object of at most {_MOST_NAMES} names")
    for key in data:
        _text(key)
    return data


def _numbers(data: object) -> list[float]:
    if not isinstance(data, list) or len(data) > _MOST_DELAYS:
        raise RequestError(f"a signal has at most {_MOST_DELAYS} numbers")
    for number in data:
        if type(number) not in (int, float) or not 0 <= number <= _LARGEST:
            raise RequestError("a signal is a number of 0 or more")
    return [float(number) for number in data]


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or not value.isprintable():
        raise RequestError(f"a text has at most {_LONGEST_TEXT} printable characters")
    return value


def _shown(text: str) -> str:
    """Return a driver's message in one line."""
    return "".join(character if character.isprintable() else " " for character in text)[
        :_LONGEST_TEXT
    ]
