"""Asks a web service for its rows, one page after another."""

import http.client
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urljoin, urlsplit

from spark_channel.connectors.exact_json import Number, parsed, written
from spark_channel.connectors.http.options import HttpReadOptions
from spark_channel.connectors.http_client import (
    BUSY,
    AnswerTooLargeError,
    Busy,
    basic,
    connection_to,
    untrusted,
    whole,
)
from spark_channel.connectors.records.paths import MISSING, found_at, path_of
from spark_channel.errors import SourceError
from spark_channel.masking import without_login
from spark_channel.retry import Retry

__all__ = ["Page", "WebService"]

Page = list[dict[str, Any]]
_MOST_REDIRECTS = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_NOT_FOUND, _NO_CONTENT = 404, 204
_SAFE = "/%:@!$&'()*+,;=~-._"
_HINTS = {
    400: "; check 'params'",
    401: "; check 'token', or 'user' and 'password'",
    403: "; the login lacks a right",
    404: "; check 'url'",
    405: "; check 'method'",
    407: "; check the login in 'proxy'",
}


class _Wait(Busy):
    """`seconds`: what the server asks to wait; None = it does not say."""

    def __init__(self, message: str, seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds


class WebService:
    """One connection, which is kept open between pages. `answered_object`: the answer was one row, without an array."""

    def __init__(self, options: HttpReadOptions) -> None:
        self._options, self._login = options, options.login
        self._url = urlsplit(options.url)
        self.answered_object = False
        self._retry = Retry(options.retry_timeout, what=f"asking {options.address}")
        self._open: tuple[tuple[str, str, int], http.client.HTTPConnection] | None = None

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].close()

    def __enter__(self) -> "WebService":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pages(self) -> Iterator[Page]:
        """The rows of each page, until one is empty.

        Some services answer a request behind their end with HTTP 404, or with their last page again: behind a page
        that is not full, that is the end, too.
        """
        options = self._options
        if options.page_param is None:
            yield self._page(None) or []
            return
        before: Page = []
        number, full = options.first_page, options.page_size if options.page_size_param else None
        while True:
            ended = full is not None and 0 < len(before) < full
            page = self._page(number, may_lack=ended)
            if not page or (ended and page == before):
                return
            if page == before:
                raise SourceError(
                    f"{options.address}: page {number} has the same rows as the page before it, so the server does not "
                    f"go by parameter {options.page_param!r}, and rows would be missing or doubled: check 'pageParam', "
                    "or omit it if the server has one page"
                )
            yield page
            full = full or len(page)
            before, number = page, number + 1

    def _page(self, number: int | None, *, may_lack: bool = False) -> Page | None:
        """None: the server has no such page."""
        options = self._options
        given = options.parameters
        if number is not None and options.page_param is not None:
            given[options.page_param] = number
            if options.page_size_param is not None:
                given[options.page_size_param] = options.page_size

        def ask() -> tuple[int, bytes]:
            return self._asked(given)

        try:
            if options.method == "POST":  # whether it may be repeated, only the service knows
                status, text = ask()
            else:
                status, text = self._retry.call(ask, _passes)
        except Busy as error:
            once = "; a POST is not repeated" if options.method == "POST" else ""
            raise SourceError(f"{options.address}: {error}{once}") from error
        later = number is not None and number > options.first_page
        if (may_lack and status == _NOT_FOUND) or (later and status == options.end_status):
            return None
        if status >= 300:
            hint = _HINTS.get(status, "")
            if later and status == _NOT_FOUND:
                hint = "; if this is how the server says that there are no more pages, set endStatus=404"
            raise self._refused(f"HTTP {status}", text, hint)
        return [] if status == _NO_CONTENT else self._rows(text)

    def _asked(self, given: dict[str, Any]) -> tuple[int, bytes]:
        """(status, answer) of the service, or of where it redirects."""
        options = self._options
        if options.method == "POST":
            body = options.body.get_secret_value() if options.body else written(given)
            status, headers, text = self._once(self._url, body.encode(), with_login=True)
            if status in _REDIRECTS:
                raise self._redirected(headers, "and a POST is not sent on")
            return self._judged(status, headers, text)
        url, with_login = _with_parameters(self._url, given), True
        for _ in range(_MOST_REDIRECTS + 1):
            status, headers, text = self._once(url, None, with_login=with_login)
            if status not in _REDIRECTS:
                return self._judged(status, headers, text, redirected=not with_login)
            target = self._target(url, headers)
            # Behind another server it stays away, also if that one redirects back.
            with_login = with_login and _origin(target) == _origin(self._url)
            url = target
        raise self._redirected(headers, f"after {_MOST_REDIRECTS} other redirects")

    def _target(self, url: SplitResult, headers: http.client.HTTPMessage) -> SplitResult:
        try:
            target = urlsplit(urljoin(url.geturl(), headers.get("Location") or ""))
            good = target.scheme in ("http", "https") and bool(target.hostname) and (target.port or 1) > 0
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
        place = self._login.shown(without_login(headers.get("Location") or "nowhere"))[:200]
        return SourceError(
            f"{self._options.address}: the server redirects to {place}, {how}; give that address in option 'url', if "
            "you trust it"
        )

    def _judged(
        self, status: int, headers: http.client.HTTPMessage, text: bytes, *, redirected: bool = False
    ) -> tuple[int, bytes]:
        if status in BUSY:
            told, seconds = f"HTTP {status} {self._login.beginning(text)}", _retry_after(headers)
            if seconds is not None:
                told += f"; it asks to wait {seconds:g} s, and 'retryTimeout' is {self._options.retry_timeout:g} s"
            raise _Wait(f"the server is busy: {told}", seconds)
        if status in (401, 403) and redirected:
            raise self._refused(
                f"HTTP {status}", text, "; the server redirected to another address, which gets no login: give its "
                "address in 'url', if you trust it",
            )  # fmt: skip
        if headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
            raise SourceError(
                f"{self._options.address}: the answer is compressed ({headers['Content-Encoding']!r:.40}), which was "
                "not asked for"
            )
        return status, text

    def _refused(self, what: str, text: bytes, hint: str = "") -> SourceError:
        told = self._login.beginning(text)
        return SourceError(f"{self._options.address}: {what}: {told!r}{hint}")

    def _once(
        self, url: SplitResult, body: bytes | None, *, with_login: bool
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        options = self._options
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if with_login:
            given = {name.title(): text for name, text in options.header_texts.items()}
            headers = {**headers, **given, **self._login.headers}
        try:
            opened, headers = self._connected(url, headers)
            opened.request(options.method, _request_target(url, options.proxy), body, headers)
            with opened.getresponse() as response:
                text = whole(response, options.max_answer_bytes)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise SourceError(f"{options.address}: {untrusted(error)}") from error
        except AnswerTooLargeError as error:
            self.close()
            raise SourceError(
                f"{options.address}: {error}: ask for fewer rows with 'params' or pages, or "
                "raise 'maxAnswerBytes'"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            told = self._login.shown(str(error))[:200]
            if "Tunnel connection failed: 4" in told:
                raise SourceError(f"{options.address}: the proxy refuses: {told}; check 'proxy'") from error
            raise _Wait(f"the server does not answer: {type(error).__name__} {told}") from error
        except ValueError as error:
            self.close()
            told = self._login.shown(str(error))[:200]
            raise SourceError(
                f"{options.address}: this address cannot be asked: {told}; check 'url'"
            ) from error
        if body is not None:  # a kept connection may be closed when it is used again, and a POST is sent once
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
        made = connection_to(scheme, host, port, timeout=options.timeout, sslrootcert=options.sslrootcert)
        if options.proxy is not None and scheme == "https":
            made.set_tunnel(origin[1], origin[2], through)
        self._open = (origin, made)
        return made, headers

    def _rows(self, text: bytes) -> Page:
        options = self._options
        encoding = "utf-8-sig" if options.encoding == "utf-8" else options.encoding
        try:
            found = parsed(text.decode(encoding))
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{options.address}: the answer is not {options.encoding} text ({error.reason} at byte {error.start}); "
                "name its encoding in option 'encoding'"
            ) from None
        except (ValueError, RecursionError):
            raise self._refused("the answer is not JSON", text, "; check 'url' and the login") from None
        for name, value in options.expected.items():
            got = found_at(found, path_of(name))
            if got is MISSING or isinstance(got, bool) != isinstance(value, bool) or got != value:
                shown = "nothing" if got is MISSING else self._login.shown(written(got))[:80]
                raise self._refused(
                    f"an answer has {shown} at {name!r}, where 'expect' says {written(value)}", text
                )
        rows = found_at(found, path_of(options.result_key))
        if (rows is MISSING or rows is None) and options.expect is not None:
            return []
        if isinstance(rows, dict) and options.page_param is None:
            rows, self.answered_object = [rows], True
        if not isinstance(rows, list):
            raise self._refused(self._without_rows(found, rows), text, f"; {self._instead(rows)}")
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                shown = self._login.shown(written(row))[:80]
                raise SourceError(
                    f"{options.address}: row {number} of an answer is {shown}, which has no columns: it takes an object"
                )
        return rows

    def _without_rows(self, found: Any, rows: Any) -> str:
        place = f"at {self._options.result_key!r} ('resultKey')" if self._options.result_key else "as a whole"
        if rows is MISSING:
            names = ", ".join(map(repr, list(found)[:20])) if isinstance(found, dict) else "no names"
            return f"an answer has nothing {place}; it has {self._login.shown(names)[:200]}"
        kind = {type(None): "null", dict: "one object"}.get(type(rows), "a single value")
        return f"an answer is {kind} {place}, where rows are an array"

    def _instead(self, rows: Any) -> str:
        if isinstance(rows, dict):
            return "pages have arrays of rows: name the array in 'resultKey'"
        if rows is None or rows is MISSING:
            return "if that means no rows, tell by 'expect' how an answer without an error looks, such as {\"code\": 0}"
        return "name the array of rows in 'resultKey'"


def _passes(error: Exception) -> bool | float:
    if not isinstance(error, Busy):
        return False
    return getattr(error, "seconds", None) or True


def _retry_after(headers: http.client.HTTPMessage) -> float | None:
    """Header Retry-After: seconds, or a date by the clock of this machine."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isdigit() and len(text) < 10:
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds())


def _origin(url: SplitResult) -> tuple[str, str, int]:
    return url.scheme, (url.hostname or "").lower(), url.port or (443 if url.scheme == "https" else 80)


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


def _with_parameters(url: SplitResult, given: dict[str, Any]) -> SplitResult:
    """A parameter replaces that of the same name in the url."""
    kept = [
        part
        for part in url.query.split("&")
        if part and not {name for name, _ in parse_qsl(part, True)} & set(given)
    ]
    made = [f"{quote(name, safe='')}={quote(_text(value), safe='')}" for name, value in given.items()]
    return url._replace(query="&".join([*kept, *made]), netloc=url.netloc.rpartition("@")[2])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.text if isinstance(value, Number) else str(value)
