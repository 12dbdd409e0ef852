"""The options of Elasticsearch, and a client that sends JSON over one HTTP connection."""

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from spark_channel.connectors.base.network import (
    BUSY,
    AnswerTooLargeError,
    Busy,
    Login,
    basic,
    connection_to,
    untrusted,
    whole,
)
from spark_channel.connectors.base.overlap import Stored
from spark_channel.connectors.elasticsearch.options import ElasticAddress
from spark_channel.errors import ChannelError
from spark_channel.masking import without_login
from spark_channel.retry import Retry

__all__ = ["MOST_BYTES", "Busy", "Server", "path_of", "stored_at"]


MOST_BYTES = 256 << 20
"""The largest answer: it is held in memory."""
_MARGIN = 8
"""How many times larger than the first documents others may be."""


def path_of(options: ElasticAddress, action: str = "") -> str:
    return f"/{quote(options.index, safe=',*:-')}{action}"


def stored_at(options: ElasticAddress, failure: type[ChannelError]) -> Stored:
    """The indexes behind a name, an alias or a pattern, by the number that their cluster gives itself."""
    names, indexes = {f"at {urlsplit(options.url).netloc.rpartition('@')[2]}"}, set[str]()
    with (
        suppress(ChannelError),
        Server(options, failure) as server,
    ):
        # The role may lack these rights.
        aliases = server.ask("GET", path_of(options, "/_alias"), missing=True, again=False) or {}
        indexes = {
            name
            for name, about in aliases.items()
            if isinstance(about, dict) and "aliases" in about
        }
        cluster = server.ask("GET", "/", missing=True, again=False) or {}
        if "cluster_uuid" in cluster:
            names.add(f"cluster {cluster['cluster_uuid']}")
    parts = frozenset((name,) for name in (*indexes, options.index))
    return Stored("elasticsearch", frozenset(names), parts, complete=bool(indexes))


class Server:
    """`failure` is the class of its errors."""

    def __init__(self, options: ElasticAddress, failure: type[ChannelError]) -> None:
        self._options, self._failure = options, failure
        self._parts = urlsplit(options.url)
        self._retry = Retry(options.retry_timeout, what=f"asking {options.address}")
        self._connection: http.client.HTTPConnection | None = None
        self._login = self._known_login()
        self._headers = {"Accept": "application/json", **self._login.headers}
        self._answered = 0

    def _known_login(self) -> Login:
        options = self._options
        if options.api_key is not None:
            key = options.api_key.get_secret_value().strip()
            return Login(f"ApiKey {key}", key)
        user, password = (
            options.user,
            options.password.get_secret_value() if options.password else "",
        )
        if user is None and self._parts.username:
            user, password = unquote(self._parts.username), unquote(self._parts.password or "")
        return Login() if user is None else basic(user, password)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        missing: bool = False,
        again: bool = True,
    ) -> Any:
        """The answer as JSON; None for a thing that does not exist, if `missing` is allowed.

        `again`: whether the request may be repeated when it is not known to have been carried out.
        """
        try:
            if not again:
                return self._once(method, path, body, missing)
            return self._retry.call(
                lambda: self._once(method, path, body, missing), lambda e: isinstance(e, Busy)
            )
        except Busy as error:
            raise self._failure(f"{self._options.address}: {error}") from error

    def _once(self, method: str, path: str, body: object, missing: bool) -> Any:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        headers = {**self._headers, **({"Content-Type": kind} if data is not None else {})}
        connection = self._connection or self._connected()
        try:
            connection.request(method, (self._parts.path.rstrip("/") + path), data, headers)
            response = connection.getresponse()
            text = whole(response, MOST_BYTES)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise self._failure(f"{self._options.address}: {untrusted(error)}") from error
        except AnswerTooLargeError as error:
            self.close()
            raise self._failure(
                f"{self._options.address}: {error}: documents are too large, "
                "or some much larger than the first ones. To find columns name them in option 'schema', "
                "or lower 'sampleRows'; to read fewer at a time lower 'rowsPerSecond'"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Busy(
                f"the server does not answer: {type(error).__name__} {self._login.shown(str(error))[:200]}"
            ) from self._options.hidden(error)
        self._answered = len(text)
        if response.status in BUSY:
            raise Busy(f"the server is busy: HTTP {response.status} {self._login.beginning(text)}")
        if response.status == 404 and missing:
            return None
        if response.status >= 400:
            raise self._failure(self._explained(response.status, text))
        if response.status >= 300:
            location = without_login(response.headers.get("Location") or "another address")[:200]
            raise self._failure(
                f"{self._options.address}: HTTP {response.status}: the server sends callers on to {location}, "
                "where a login is not taken; give the address of Elasticsearch itself in option 'url'"
            )
        try:
            return json.loads(text) if text else {}
        except (ValueError, RecursionError):
            raise self._failure(
                f"{self._options.address}: the answer is not JSON, so this is not Elasticsearch: "
                f"{self._login.shown(text[:80].decode(errors='replace'))!r}"
            ) from None

    def fitting(self, documents: int) -> int:
        """How many documents to ask for at a time, where the last answer had so many."""
        return max(1, MOST_BYTES // _MARGIN * documents // max(1, self._answered))

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Take an answer apart: one of another form is an error that says so."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._failure(
                f"{self._options.address}: the answer has not the form of Elasticsearch's: {type(error).__name__} "
                f"{self._login.shown(str(error))[:100]}; check 'url'"
            ) from None

    def _connected(self) -> http.client.HTTPConnection:
        parts, options = self._parts, self._options
        self._connection = connection_to(
            parts.scheme,
            parts.hostname or "",
            parts.port or 9200,
            timeout=options.timeout,
            sslrootcert=options.sslrootcert,
        )
        return self._connection

    def _explained(self, status: int, text: bytes) -> str:
        try:
            error = json.loads(text).get("error")
        except (ValueError, AttributeError, RecursionError):
            error = text.decode(errors="replace")
        reason = error.get("reason") or error.get("type") if isinstance(error, dict) else error
        hint = {
            401: "; check 'user' and 'password', or 'apiKey'",
            403: "; the role lacks a right on this index",
            404: "; check 'index'",
        }.get(status, "")
        return (
            f"{self._options.address}: HTTP {status}: {self._login.shown(str(reason))[:400]}{hint}"
        )
