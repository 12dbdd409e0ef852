"""Options of the HTTP reader."""

import codecs
import re
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from spark_channel.connectors.base.network import Login, Seconds, TlsOptions, basic
from spark_channel.connectors.base.server_url import server_url
from spark_channel.connectors.records.paths import path_of
from spark_channel.connectors.records.reader import RecordReadOptions
from spark_channel.errors import OptionError
from spark_channel.masking import is_secret_name
from spark_channel.options import Amount, ByteAmount, Secret, Trait, Url, resolve_secret
from spark_channel.serialization import parsed, written

__all__ = ["HttpReadOptions"]

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
        parsed_object = parsed(text)
    except (ValueError, RecursionError):
        parsed_object = None
    if not isinstance(parsed_object, dict):
        raise ValueError('a JSON object, such as {"day": "2024-01-31"}')
    return parsed_object


def _object(value: SecretStr) -> SecretStr:
    """With the values that `${env:NAME}` and `${file:PATH}` name."""
    resolved = {
        name: resolve_secret(text).get_secret_value() if isinstance(text, str) else text
        for name, text in _object_in(value.get_secret_value()).items()
    }
    return SecretStr(written(resolved))


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
            isinstance(value, (dict, list)) for value in self.parameters.values()
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
        parameters = {} if self.params is None else _object_in(self.params.get_secret_value())
        return {
            name: value
            for name, value in parameters.items()
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
        password = (
            self.password.get_secret_value() if self.password else unquote(parts.password or "")
        )
        return basic(user, password, *secrets)

    def _secrets(self) -> list[str]:
        """Texts beside the login, as a server may repeat them."""
        parameters = [*parse_qsl(urlsplit(self.url).query), *self.parameters.items()]
        secrets = [str(value) for name, value in parameters if is_secret_name(name)]
        secrets += [
            text for name, text in self.header_texts.items() if name.lower() not in _PLAIN_HEADERS
        ]
        if self.proxy is not None:
            secrets.append(unquote(urlsplit(self.proxy).password or ""))
        return [*secrets, *(quote(text, safe="") for text in secrets)]

    @property
    def address(self) -> str:
        """Without a login, and without a query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
