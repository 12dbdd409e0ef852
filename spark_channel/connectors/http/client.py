"""The options of web services, and their requests with retries, redirects, logins and proxies."""

import http.client
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urljoin, urlsplit

from spark_channel.connectors.base.network import (
    BUSY,
    AnswerTooLargeError,
    Busy,
    basic,
    connection_to,
    untrusted,
    whole,
)
from spark_channel.connectors.http.options import HttpReadOptions
from spark_channel.errors import SourceError
from spark_channel.masking import without_login
from spark_channel.retry import Retry
from spark_channel.serialization import Number, written

__all__ = ["Client"]


_MOST_REDIRECTS = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_SAFE = "/%:@!$&'()*+,;=~-._"


class _Wait(Busy):
    """`seconds`: what the server asks to wait; None = it does not say."""

    def __init__(self, message: str, seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds


class Client:
    """One connection, which is kept open between requests."""

    def __init__(self, options: HttpReadOptions) -> None:
        self._options, self._login = options, options.login
        self._url = urlsplit(options.url)
        self._retry = Retry(options.retry_timeout, what=f"asking {options.address}")
        self._open: tuple[tuple[str, str, int], http.client.HTTPConnection] | None = None

    def close(self) -> None:
        connection, self._open = self._open, None
        if connection is not None:
            connection[1].close()

    def ask(self, parameters: dict[str, Any]) -> tuple[int, bytes]:
        """(status, answer) of a request with these parameters; a GET is repeated while the service is busy.

        Raises:
            SourceError: the service does not answer, or redirects where the request may not go.
        """
        try:
            if self._options.method == "POST":  # whether it may be repeated, only the service knows
                return self._asked(parameters)
            return self._retry.call(lambda: self._asked(parameters), _passes)
        except Busy as error:
            once = "; a POST is not repeated" if self._options.method == "POST" else ""
            raise SourceError(f"{self._options.address}: {error}{once}") from error

    def refused(self, problem: str, text: bytes, hint: str = "") -> SourceError:
        """An error that shows the beginning of an answer."""
        return SourceError(
            f"{self._options.address}: {problem}: {self._login.beginning(text)!r}{hint}"
        )

    def _asked(self, parameters: dict[str, Any]) -> tuple[int, bytes]:
        """(status, answer) of the service, or of where it redirects."""
        options = self._options
        if options.method == "POST":
            body = options.body.get_secret_value() if options.body else written(parameters)
            status, headers, text = self._once(self._url, body.encode(), with_login=True)
            if status in _REDIRECTS:
                raise self._redirected(headers, "and a POST is not sent on")
            return self._judged(status, headers, text)
        url, with_login = _with_parameters(self._url, parameters), True
        for _ in range(_MOST_REDIRECTS + 1):
            status, headers, text = self._once(url, None, with_login=with_login)
            if status not in _REDIRECTS:
                return self._judged(status, headers, text, redirected=not with_login)
            target = self._target(url, headers)
            # Once a redirect has left the url's own server the login is not sent again, not even back to it.
            with_login = with_login and _origin(target) == _origin(self._url)
            url = target
        raise self._redirected(headers, f"after {_MOST_REDIRECTS} other redirects")

    def _target(self, url: SplitResult, headers: http.client.HTTPMessage) -> SplitResult:
        try:
            target = urlsplit(urljoin(url.geturl(), headers.get("Location") or ""))
            good = (
                target.scheme in ("http", "https")
                and bool(target.hostname)
                and (target.port or 1) > 0
            )
        except ValueError:
            good = False
        if not good:
            raise SourceError(
                f"{self._options.address}: the server redirects to something that is not a url; check 'url'"
            )
        if url.scheme == "https" and target.scheme != "https":
            raise self._redirected(headers, "without TLS")
        return target._replace(netloc=target.netloc.rpartition("@")[2], fragment="")

    def _redirected(self, headers: http.client.HTTPMessage, how: str) -> SourceError:
        location = self._login.shown(without_login(headers.get("Location") or "nowhere"))[:200]
        return SourceError(
            f"{self._options.address}: the server redirects to {location}, {how}; "
            "give that address in option 'url', if you trust it"
        )

    def _judged(
        self,
        status: int,
        headers: http.client.HTTPMessage,
        text: bytes,
        *,
        redirected: bool = False,
    ) -> tuple[int, bytes]:
        if status in BUSY:
            busy, seconds = f"HTTP {status} {self._login.beginning(text)}", _retry_after(headers)
            if seconds is not None:
                busy += f"; it asks to wait {seconds:g} s, and 'retryTimeout' is {self._options.retry_timeout:g} s"
            raise _Wait(f"the server is busy: {busy}", seconds)
        if status in (401, 403) and redirected:
            raise self.refused(
                f"HTTP {status}",
                text,
                "; the server redirected to another address, which gets no login: give its "
                "address in 'url', if you trust it",
            )
        if headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
            raise SourceError(
                f"{self._options.address}: the answer is compressed ({headers['Content-Encoding']!r:.40}), "
                "which was not asked for"
            )
        return status, text

    def _once(
        self, url: SplitResult, body: bytes | None, *, with_login: bool
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        options = self._options
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if with_login:
            own_headers = {name.title(): text for name, text in options.header_texts.items()}
            headers = {**headers, **own_headers, **self._login.headers}
        try:
            connection, headers = self._connected(url, headers)
            connection.request(options.method, _request_target(url, options.proxy), body, headers)
            with connection.getresponse() as response:
                text = whole(response, options.max_answer_bytes)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise SourceError(f"{options.address}: {untrusted(error)}") from error
        except AnswerTooLargeError as error:
            self.close()
            raise SourceError(
                f"{options.address}: {error}: ask for fewer rows with 'params' or pages, "
                "or raise 'maxAnswerBytes'"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            hidden = options.hidden(error)
            reason = self._login.shown(str(hidden))[:200]
            if "Tunnel connection failed: 4" in reason:
                raise SourceError(
                    f"{options.address}: the proxy refuses: {reason}; check 'proxy'"
                ) from hidden
            raise _Wait(f"the server does not answer: {type(error).__name__} {reason}") from hidden
        except ValueError as error:
            self.close()
            reason = self._login.shown(str(error))[:200]
            raise SourceError(
                f"{options.address}: this address cannot be asked: {reason}; check 'url'"
            ) from options.hidden(error)
        if body is not None:
            # A kept connection may be closed when it is used again, and a POST is sent once.
            self.close()
        return response.status, response.headers, text

    def _connected(
        self, url: SplitResult, headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        """An open connection to the url's server, or its proxy, and what to send."""
        options, origin = self._options, _origin(url)
        through = {} if options.proxy is None else _proxy_login(options.proxy)
        if url.scheme == "http":
            headers = {**headers, **through}
        if self._open is not None and self._open[0] == origin:
            return self._open[1], headers
        self.close()
        scheme, host, port = origin
        if options.proxy is not None:
            parts = urlsplit(options.proxy)
            host, port = parts.hostname or "", parts.port or 80
        connection = connection_to(
            scheme, host, port, timeout=options.timeout, sslrootcert=options.sslrootcert
        )
        if options.proxy is not None and scheme == "https":
            connection.set_tunnel(origin[1], origin[2], through)
        self._open = (origin, connection)
        return connection, headers


def _passes(error: Exception) -> bool | float:
    if not isinstance(error, Busy):
        return False
    return getattr(error, "seconds", None) or True


def _retry_after(headers: http.client.HTTPMessage) -> float | None:
    """Header Retry-After: seconds, or a date by the clock of this machine."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isdecimal() and len(text) < 10:
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return max(
        0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    )


def _origin(url: SplitResult) -> tuple[str, str, int]:
    return (
        url.scheme,
        (url.hostname or "").lower(),
        url.port or (443 if url.scheme == "https" else 80),
    )


def _request_target(url: SplitResult, proxy: str | None) -> str:
    target = quote(url.path, safe=_SAFE) or "/"
    if url.query:
        target += f"?{quote(url.query, safe=_SAFE + '?')}"
    if proxy is None or url.scheme == "https":
        return target
    return f"http://{url.netloc.rpartition('@')[2]}{target}"


def _proxy_login(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy)
    if not parts.username:
        return {}
    header = basic(unquote(parts.username), unquote(parts.password or "")).headers["Authorization"]
    return {"Proxy-Authorization": header}


def _with_parameters(url: SplitResult, parameters: dict[str, Any]) -> SplitResult:
    """A parameter replaces that of the same name in the url."""
    others = [
        part
        for part in url.query.split("&")
        if part and not {name for name, _ in parse_qsl(part, True)} & set(parameters)
    ]
    replaced = [
        f"{quote(name, safe='')}={quote(_text(value), safe='')}"
        for name, value in parameters.items()
    ]
    return url._replace(query="&".join([*others, *replaced]), netloc=url.netloc.rpartition("@")[2])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.text if isinstance(value, Number) else str(value)
