"""The options of web services, and their requests with retries, redirects, logins and proxies."""

import codecs
import http.client
import re
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urljoin, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from spark_channel.connectors.base.network import (
    BUSY,
    AnswerTooLargeError,
    Busy,
    Login,
    Seconds,
    TlsOptions,
    basic,
    connection_to,
    server_url,
    untrusted,
    whole,
)
from spark_channel.connectors.records.columns import path_of
from spark_channel.connectors.records.reader import RecordReadOptions
from spark_channel.errors import OptionError, SourceError
from spark_channel.masking import is_secret_name, without_login
from spark_channel.options import Amount, ByteAmount, Secret, Trait, Url, resolve_secret
from spark_channel.retry import Retry
from spark_channel.serialization import Number, parsed, written

__all__ = [
    "Client",
    "HttpReadOptions",
]


_TAKES = "http://host/path or https://host/path"
_TOKEN = re.compile(r"[!-~]+")
_PROXY = "http://host:port, or http://user:password@host:port"
_PLAIN_HEADERS = frozenset(
    {"accept", "accept-charset", "accept-language", "content-type", "user-agent"}
)
_OURS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def _url(value: object) -> str:
    server_url(str(value), ("http", "https"), _TAKES, parameters=None)
    return str(value).strip()


def _proxy(value: object) -> str:
    if server_url(str(value), ("http",), _PROXY).path.strip("/"):
        raise ValueError(_PROXY)
    return str(value).strip()


def _method(value: object) -> str:
    return str(value).strip().upper()


def _encoding(value: object) -> str:
    try:
        return codecs.lookup(str(value)).name
    except LookupError:
        raise ValueError("an encoding, such as utf-8 or gbk") from None


def _path(value: object) -> str:
    text = re.sub(r"\A\$\.?", "", str(value).strip())
    path_of(text)
    return text


def _object_in(text: str) -> dict[str, Any]:
    try:
        found = parsed(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError('a JSON object, such as {"day": "2024-01-31"}')
    return found


def _object(value: SecretStr) -> SecretStr:
    """With the values that `${env:NAME}` and `${file:PATH}` name."""
    found = {
        name: resolve_secret(text).get_secret_value() if isinstance(text, str) else text
        for name, text in _object_in(value.get_secret_value()).items()
    }
    return SecretStr(written(found))


def _headers(value: SecretStr) -> SecretStr:
    resolved = _object(value)
    for name, text in _object_in(resolved.get_secret_value()).items():
        if not isinstance(text, str) or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ValueError(f"a JSON object of headers and texts; {name!r} is not one")
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", text) or not text.isascii():
            raise ValueError(f"headers whose values are printable ASCII; that of {name!r} is not")
        if name.lower() in _OURS:
            raise ValueError(f"headers that the connector does not set itself; it sets {name!r}")
    return resolved


def _expected(value: object) -> str:
    for name in _object_in(str(value)):
        path_of(name)
    return str(value)


Object = Annotated[Secret, AfterValidator(_object), Trait.NAMES_SOURCE]
Headers = Annotated[Secret, AfterValidator(_headers), Trait.NAMES_SOURCE]


class HttpReadOptions(TlsOptions, RecordReadOptions):
    """Options of the reader."""

    no_where: ClassVar[str] = "a web service understands no SQL; its own filters go into 'params'"

    url: Annotated[Url, BeforeValidator(_url)] = Field(
        description="`https://host/path`, with or without a query"
    )
    method: Annotated[Literal["GET", "POST"], BeforeValidator(_method)] = Field(
        "GET", description="`GET`, or `POST`, which is not repeated when the service is busy"
    )
    params: Object | None = Field(
        None,
        description='JSON object of parameters, such as `{"day": "2024-01-31"}`: in the url\'s query, or with `POST` '
        "the JSON that is sent; default: none",
    )
    body: Annotated[Secret, Trait.NAMES_SOURCE] | None = Field(
        None, description="what a `POST` sends, in place of `params`; default: none"
    )
    headers: Headers | None = Field(
        None,
        description='JSON object of headers, such as `{"X-Api-Key": "${env:KEY}"}`; default: none',
    )
    user: str | None = Field(None, description="user name; default: from the url, else none")
    password: Secret | None = Field(
        None,
        description="password, or `${env:NAME}` or `${file:PATH}`; default: from the url, else none",
    )
    token: Secret | None = Field(
        None, description="a token, sent as `Authorization: Bearer`; default: none"
    )
    result_key: Annotated[str, BeforeValidator(_path)] = Field(
        "",
        description="where the rows are in an answer, such as `data.items`: an array of objects, or one object; "
        "default: the whole answer",
    )
    expect: Annotated[str, BeforeValidator(_expected)] | None = Field(
        None,
        description='JSON object of paths and values that each answer must have, such as `{"code": 0}`; default: none',
    )
    page_param: str | None = Field(
        None, description="the parameter with a page's number; default: there is one page"
    )
    first_page: Annotated[int, Field(ge=0, le=1_000_000_000)] = Field(
        1, description="the number of the first page"
    )
    page_size_param: str | None = Field(
        None, description="the parameter with the number of rows of a page; default: not sent"
    )
    page_size: Amount = Field(100, description="rows of a page, with `pageSizeParam`")
    end_status: Annotated[int, Field(ge=400, le=499)] | None = Field(
        None,
        description="HTTP status of the answer after the last page, such as 404; default: that answer has no rows",
    )
    infer_schema: bool = Field(
        True, description="infer types from the sample; `false`: all columns are STRING"
    )
    encoding: Annotated[str, BeforeValidator(_encoding)] = Field(
        "utf-8", description="encoding of the answers"
    )
    proxy: Annotated[Url | None, BeforeValidator(_proxy), Trait.SAME_ROWS] = Field(
        None,
        description="`http://host:port` of an HTTP proxy, with its login; default: none; the environment's is not used",
    )
    timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        60.0, description="seconds for one answer of the server"
    )
    retry_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        60.0,
        description="seconds for which a `GET` is repeated while the service is busy or does not answer",
    )
    max_answer_bytes: Annotated[ByteAmount, Trait.SAME_ROWS] = Field(
        64 << 20, description="size of one answer, which is held in memory, at most"
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.password is not None and self.user is None:
            raise OptionError("option 'password' needs 'user'", option="user")
        if self.token is not None and (self.user is not None or urlsplit(self.url).username):
            raise OptionError(
                "options 'token' and 'user' (also in 'url') are two logins: omit one of them",
                option="token",
            )
        if self.token is not None and not _TOKEN.fullmatch(self.token.get_secret_value().strip()):
            raise OptionError(
                "option 'token' contains a character that a token cannot have, such as a space or a line end: "
                "check its value",
                option="token",
            )
        if self.login.headers and any(
            name.lower() == "authorization" for name in self.header_texts
        ):
            raise OptionError(
                "option 'headers' has Authorization, which 'token' and 'user' set, too; give one of them",
                option="headers",
            )
        if self.body is not None and (
            self.method != "POST" or self.params is not None or self.page_param
        ):
            raise OptionError(
                "option 'body' is what a POST sends in place of 'params'; it needs method=POST, and goes with neither "
                "'params' nor 'pageParam'",
                option="body",
            )
        if self.page_size_param is not None and self.page_param is None:
            raise OptionError("option 'pageSizeParam' needs 'pageParam'", option="pageSizeParam")
        if self.method == "GET" and any(
            isinstance(each, (dict, list)) for each in self.parameters.values()
        ):
            raise OptionError(
                "option 'params' holds an object or an array, which has no place in a url's query; it takes texts, "
                "numbers, true and false",
                option="params",
            )

    @property
    def is_secure(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of each request, in order."""
        given = {} if self.params is None else _object_in(self.params.get_secret_value())
        return {
            name: value
            for name, value in given.items()
            if value is not None or self.method == "POST"
        }

    @property
    def header_texts(self) -> dict[str, str]:
        return {} if self.headers is None else _object_in(self.headers.get_secret_value())

    @property
    def expected(self) -> dict[str, Any]:
        return {} if self.expect is None else _object_in(self.expect)

    @property
    def login(self) -> Login:
        """The credentials of the service, which are never shown."""
        parts, secrets = urlsplit(self.url), self._secrets()
        if self.token is not None:
            token = self.token.get_secret_value().strip()
            return Login(f"Bearer {token}", token, *secrets)
        user = self.user if self.user is not None else unquote(parts.username or "")
        if not user:
            return Login("", *secrets)
        given = self.password.get_secret_value() if self.password else unquote(parts.password or "")
        return basic(user, given, *secrets)

    def _secrets(self) -> list[str]:
        """Texts beside the login, as a server may repeat them."""
        given = [*parse_qsl(urlsplit(self.url).query), *self.parameters.items()]
        found = [str(value) for name, value in given if is_secret_name(name)]
        found += [
            text for name, text in self.header_texts.items() if name.lower() not in _PLAIN_HEADERS
        ]
        if self.proxy is not None:
            found.append(unquote(urlsplit(self.proxy).password or ""))
        return [*found, *(quote(text, safe="") for text in found)]

    @property
    def address(self) -> str:
        """Without a login, and without a query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


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
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].close()

    def ask(self, given: dict[str, Any]) -> tuple[int, bytes]:
        """(status, answer) of a request with these parameters; a GET is repeated while the service is busy.

        Raises:
            SourceError: the service does not answer, or redirects where the request may not go.
        """
        try:
            if self._options.method == "POST":  # whether it may be repeated, only the service knows
                return self._asked(given)
            return self._retry.call(lambda: self._asked(given), _passes)
        except Busy as error:
            once = "; a POST is not repeated" if self._options.method == "POST" else ""
            raise SourceError(f"{self._options.address}: {error}{once}") from error

    def refused(self, what: str, text: bytes, hint: str = "") -> SourceError:
        """An error that shows the beginning of an answer."""
        return SourceError(
            f"{self._options.address}: {what}: {self._login.beginning(text)!r}{hint}"
        )

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
        place = self._login.shown(without_login(headers.get("Location") or "nowhere"))[:200]
        return SourceError(
            f"{self._options.address}: the server redirects to {place}, {how}; "
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
        made = connection_to(
            scheme, host, port, timeout=options.timeout, sslrootcert=options.sslrootcert
        )
        if options.proxy is not None and scheme == "https":
            made.set_tunnel(origin[1], origin[2], through)
        self._open = (origin, made)
        return made, headers


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


def _with_parameters(url: SplitResult, given: dict[str, Any]) -> SplitResult:
    """A parameter replaces that of the same name in the url."""
    kept = [
        part
        for part in url.query.split("&")
        if part and not {name for name, _ in parse_qsl(part, True)} & set(given)
    ]
    made = [
        f"{quote(name, safe='')}={quote(_text(value), safe='')}" for name, value in given.items()
    ]
    return url._replace(query="&".join([*kept, *made]), netloc=url.netloc.rpartition("@")[2])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.text if isinstance(value, Number) else str(value)
