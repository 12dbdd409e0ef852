"""The options of Elasticsearch, and a client that sends JSON over one HTTP connection."""

import http.client
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote, unquote, urlsplit

from pydantic import BeforeValidator, Field

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
from spark_channel.connectors.base.stored import Stored
from spark_channel.connectors.records.direct_writer import DirectOptions
from spark_channel.connectors.records.reader import RecordReadOptions, Zone, texts_by_name
from spark_channel.errors import ChannelError, OptionError
from spark_channel.masking import without_login
from spark_channel.options import Secret, Trait, Url
from spark_channel.retry import Retry

__all__ = [
    "MOST_BYTES",
    "Busy",
    "ElasticReadOptions",
    "ElasticWriteOptions",
    "Server",
    "path_of",
    "stored_at",
]


_TAKES = (
    "http://host:9200 or https://host:9200; give a login in 'user' and 'password', "
    "or write / ? # @ in it as %2F %3F %23 %40"
)


def _url(value: object) -> str:
    server_url(str(value), ("http", "https"), _TAKES)
    return str(value).strip().rstrip("/")


def _object(value: object) -> str:
    try:
        found = json.loads(str(value))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError('a JSON object, such as {"term": {"status": "paid"}}')
    return str(value)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(map(str, value))
    text = str(value)
    try:
        found = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [each.strip() for each in text.split(",")]
        )
    except (ValueError, RecursionError):
        raise ValueError("column names separated by commas, or a JSON list of them") from None
    return tuple(str(name) for name in found if name)


_KEY = re.compile(r"[!-~]+")
Json = Annotated[str, BeforeValidator(_object)]


class ElasticAddress(TlsOptions):
    """The address of an index, and the login."""

    url: Annotated[Url, BeforeValidator(_url)] = Field(
        description="`http://host:9200` or `https://host:9200`"
    )
    index: str = Field(
        description="the index, or an alias; to read also a pattern such as `logs-*`"
    )
    user: str | None = Field(None, description="user name")
    password: Secret | None = Field(
        None, description="password, or `${env:NAME}` or `${file:PATH}`"
    )
    api_key: Secret | None = Field(
        None, description="an API key, base64, in place of user and password"
    )
    timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        60.0, description="seconds for one answer of the server"
    )
    retry_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        60.0, description="seconds for which a server that is busy is asked again"
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if (
            not self.index.strip()
            or re.search(r'[\\/?"<>| #]', self.index)
            or self.index.startswith(("_", "-", "+"))
            or self.index in (".", "..")
        ):
            raise OptionError(
                f"option 'index' got {self.index!r}; it takes the name of an index",
                option="index",
                got=self.index,
            )
        if (self.user is None) != (self.password is None):
            raise OptionError("options 'user' and 'password' go together", option="user")
        if self.api_key is not None and not _KEY.fullmatch(self.api_key.get_secret_value().strip()):
            raise OptionError(
                "option 'apiKey' holds a character that no key has, such as a blank or a line end in it; "
                "it takes the 'encoded' form that Elasticsearch shows once",
                option="apiKey",
            )

    @property
    def is_secure(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def dbtable(self) -> str:
        """For messages."""
        return self.index

    @property
    def address(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{self.index}"


class ElasticReadOptions(ElasticAddress, RecordReadOptions):
    """Options of the Elasticsearch reader."""

    aliases: ClassVar[Mapping[str, str]] = {**RecordReadOptions.aliases, "dbtable": "index"}
    no_where: ClassVar[str] = (
        'use \'filter\' with a query of Elasticsearch, such as {"term": {"status": "paid"}}'
    )

    filter: Json = Field(
        '{"match_all": {}}', description="a query of Elasticsearch; default: all documents"
    )
    scroll_seconds: Annotated[int, Field(ge=1, le=86_400), Trait.SAME_ROWS] = Field(
        600,
        description="how long the server keeps a search between two portions, such as while a limit is paused",
    )


class ElasticWriteOptions(ElasticAddress, DirectOptions):
    """Options of the Elasticsearch writer."""

    aliases: ClassVar[Mapping[str, str]] = {**DirectOptions.aliases, "dbtable": "index"}

    write_mode: Literal["insert", "replace", "upsert"] = Field(
        "insert",
        description="`insert`: a document whose id exists is a refused row; `replace`: the row becomes the whole "
        "document; `upsert`: the columns are set, and other fields stay",
    )
    id_column: str | None = Field(
        None,
        description="the column that is the document's `_id`; default: `_id`, if the rows have it, else new ids",
    )
    json_columns: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (), description="columns of JSON text that become objects and arrays"
    )
    array_separators: Annotated[Mapping[str, str], BeforeValidator(texts_by_name)] = Field(
        default_factory=dict,
        description='JSON object of columns and separators, such as `{"tags": ","}`: these texts become arrays; '
        "default: none",
    )
    time_zone: Zone = Field("UTC", description="zone of timestamps without a zone")
    create_index: Json | None = Field(
        None,
        description="settings and mappings with which an index that does not exist is made; default: the server's",
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if re.search(r"[*,]", self.index):
            raise OptionError(
                f"option 'index' got {self.index!r}; a write takes one index or alias: "
                "an overwrite of a pattern would empty every index that matches",
                option="index",
                got=self.index,
            )


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
        found = server.ask("GET", path_of(options, "/_alias"), missing=True, again=False) or {}
        indexes = {
            name for name, about in found.items() if isinstance(about, dict) and "aliases" in about
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
        opened, self._connection = self._connection, None
        if opened is not None:
            opened.close()

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
        opened = self._connection or self._connected()
        try:
            opened.request(method, (self._parts.path.rstrip("/") + path), data, headers)
            response = opened.getresponse()
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
            place = without_login(response.headers.get("Location") or "another address")[:200]
            raise self._failure(
                f"{self._options.address}: HTTP {response.status}: the server sends callers on to {place}, "
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
