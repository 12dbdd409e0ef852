"""JSON over one HTTP connection, which is kept open."""

import base64
import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from spark_channel.connectors.elasticsearch.options import ElasticAddress
from spark_channel.errors import ChannelError, OptionError
from spark_channel.masking import MASK, without_login
from spark_channel.retry import Retry

__all__ = ["MOST_BYTES", "Busy", "Server", "path_of"]

_BUSY = (429, 502, 503, 504)
MOST_BYTES = 256 << 20
"""Of one answer: it is held in memory whole."""
_MARGIN = 8
"""So many times larger than the first documents others may be."""
_PART = 1 << 20


class Busy(Exception):  # noqa: N818 - a state of the server
    """The server does not answer now; what was asked may have been carried out."""


def path_of(options: ElasticAddress, action: str = "") -> str:
    return f"/{quote(options.index, safe=',*:-')}{action}"


class Server:
    """`failure` is the class of its errors."""

    def __init__(self, options: ElasticAddress, failure: type[ChannelError]) -> None:
        self._options, self._failure = options, failure
        self._parts = urlsplit(options.url)
        self._retry = Retry(options.retry_timeout, what=f"asking {options.address}")
        self._connection: http.client.HTTPConnection | None = None
        self._headers = {"Accept": "application/json"}
        self._secrets: list[str] = []
        self._answered = 0
        user, password = options.user, options.password.get_secret_value() if options.password else ""
        if user is None and self._parts.username:
            user, password = unquote(self._parts.username), unquote(self._parts.password or "")
        if options.api_key is not None:
            key = options.api_key.get_secret_value().strip()
            self._headers["Authorization"] = f"ApiKey {key}"
            self._secrets = [key]
        elif user is not None:
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
            self._secrets = [token, password]

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self, method: str, path: str, body: Any = None, *, missing: bool = False, again: bool = True
    ) -> Any:
        """The answer as JSON; None for a thing that is not there, if `missing` is allowed.

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

    def _once(self, method: str, path: str, body: Any, missing: bool) -> Any:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        headers = {**self._headers, **({"Content-Type": kind} if data is not None else {})}
        connection = self._connection or self._connected()
        try:
            connection.request(method, (self._parts.path.rstrip("/") + path), data, headers)
            response = connection.getresponse()
            text = self._read(response)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise self._failure(
                f"{self._options.address}: the server's certificate is not trusted: {error.verify_message}; name the "
                "CA's file in option 'sslrootcert'"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Busy(
                f"the server does not answer: {type(error).__name__} {self._shown(str(error))[:200]}"
            ) from error
        if response.status in _BUSY:
            told = self._shown(text[:2_000].decode(errors="replace"))[:200]
            raise Busy(f"the server is busy: HTTP {response.status} {told}")
        if response.status == 404 and missing:
            return None
        if response.status >= 400:
            raise self._failure(self._explained(response.status, text))
        if response.status >= 300:
            place = without_login(response.headers.get("Location") or "another address")[:200]
            raise self._failure(
                f"{self._options.address}: HTTP {response.status}: the server sends callers on to {place}, where a "
                "login is not taken; give the address of Elasticsearch itself in option 'url'"
            )
        try:
            return json.loads(text) if text else {}
        except (ValueError, RecursionError):
            raise self._failure(
                f"{self._options.address}: the answer is not JSON, so this is not Elasticsearch: "
                f"{self._shown(text[:80].decode(errors='replace'))!r}"
            ) from None

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := response.read(_PART):
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                self.close()
                raise self._failure(
                    f"{self._options.address}: an answer has more than {MOST_BYTES >> 20} MiB, and is held in memory: "
                    "documents are too large, or some much larger than the first ones. To find columns name them in "
                    "option 'schema', or lower 'sampleRows'; to read fewer at a time lower 'rowsPerSecond'"
                )
        if response.length:  # `read` of some bytes does not say that more were announced
            raise http.client.IncompleteRead(b"", response.length)
        self._answered = size
        return b"".join(parts)

    def fitting(self, documents: int) -> int:
        """How many documents to ask for at a time, where the last answer had so many."""
        return max(1, MOST_BYTES // _MARGIN * documents // max(1, self._answered))

    def _shown(self, text: str) -> str:
        """What a server says, without the login, which it may repeat."""
        for secret in self._secrets:
            if len(secret) > 3:
                text = text.replace(secret, MASK)
        return text

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Take an answer apart: one of another form is an error that says so."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._failure(
                f"{self._options.address}: the answer has not the form of Elasticsearch's: {type(error).__name__} "
                f"{self._shown(str(error))[:100]}; check 'url'"
            ) from None

    def _connected(self) -> http.client.HTTPConnection:
        host, port, timeout = self._parts.hostname or "", self._parts.port or 9200, self._options.timeout
        if self._parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=self._options.sslrootcert)
            except OSError as error:
                raise OptionError(
                    f"option 'sslrootcert' got {self._options.sslrootcert!r}, which cannot be read: {error}",
                    option="sslrootcert",
                ) from None
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout)
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
        return f"{self._options.address}: HTTP {status}: {self._shown(str(reason))[:400]}{hint}"
