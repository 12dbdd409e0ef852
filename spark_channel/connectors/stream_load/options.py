"""Options of Stream Load, and the address that they name."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, Field

from spark_channel.connectors.base.network import Seconds, TlsOptions
from spark_channel.connectors.base.server_url import server_url
from spark_channel.connectors.records.direct_writer import DirectOptions
from spark_channel.connectors.records.reader import Zone, texts_by_name
from spark_channel.errors import OptionError
from spark_channel.options import ByteAmount, Secret, Trait, Url

__all__ = ["StreamLoadOptions", "host_and_port"]

_TAKES = "http://fe:8030 or https://fe:8443; several are separated by commas"

_OURS = frozenset(
    {
        "authorization",
        "label",
        "expect",
        "format",
        "columns",
        "column_separator",
        "row_delimiter",
        "line_delimiter",
        "content-length",
        "host",
        "transfer-encoding",
        "max_filter_ratio",
        "strict_mode",
        "two_phase_commit",
        "timeout",
        "compress_type",
        "enclose",
        "escape",
        "trim_double_quotes",
        "trim_space",
        "skip_lines",
        "skip_header",
    }
)


def _urls(value: object) -> str:
    urls = []
    for text in str(value).split(","):
        if server_url(text, ("http", "https"), _TAKES).path.strip("/"):
            raise ValueError(_TAKES)
        urls.append(text.strip().rstrip("/"))
    return ",".join(urls)


def _headers(value: object) -> dict[str, str]:
    texts = texts_by_name(value)
    for name, text in texts.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or "\n" in text or "\r" in text:
            raise ValueError(f"names and values of HTTP headers; {name!r} is not one")
        if name.lower() in _OURS:
            raise ValueError(f"headers that the connector does not set itself; it sets {name!r}")
    return texts


def _hosts(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(map(str, value))
    text = str(value).strip()
    hosts = _statements(text) if text.startswith("[") else text.split(",")
    return tuple(host.strip().lower() for host in hosts if host.strip())


def host_and_port(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "", parts.port or port


def _server(value: object) -> str:
    try:
        host, _ = host_and_port(str(value), 0)
    except ValueError:
        host = ""
    if not host or "/" in str(value) or "@" in str(value):
        raise ValueError("host:port, such as fe:9030")
    return str(value)


def _statements(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(map(str, value))
    text = str(value).strip()
    statements = json.loads(text) if text.startswith("[") else [text]
    return tuple(str(statement) for statement in statements if str(statement).strip())


Statements = Annotated[tuple[str, ...], BeforeValidator(_statements)]


class StreamLoadOptions(TlsOptions, DirectOptions):
    """Options of the Stream Load writer."""

    url: Annotated[Url, BeforeValidator(_urls)] = Field(
        description="`http://fe:8030`: the HTTP port of the frontends, several with commas; the next one is asked if "
        "one does not answer"
    )
    database: str = Field(description="the database")
    dbtable: str = Field(description="the table; it must exist")
    user: str | None = Field(None, description="user name; default: from the url")
    password: Secret | None = Field(
        None,
        description="password, or `${env:NAME}` or `${file:PATH}`; default: from the url, else empty",
    )
    backends: Annotated[tuple[str, ...], BeforeValidator(_hosts)] = Field(
        (),
        description="hosts to which a frontend may redirect a load, and with it the login, separated by commas; "
        "`*.example.com` takes each host below; default: the frontends' hosts and hosts with private addresses",
    )
    headers: Annotated[Mapping[str, str], BeforeValidator(_headers)] = Field(
        default_factory=dict,
        description='JSON object of more headers of a load, such as `{"partial_update": "true"}`; default: none',
    )
    query_server: Annotated[str | None, BeforeValidator(_server)] = Field(
        None,
        description="`fe:9030`: where SQL is asked, for an overwrite, `startSql` and `endSql`; default: none",
    )
    start_sql: Statements = Field((), description="SQL that runs before the write; default: none")
    end_sql: Statements = Field(
        (), description="SQL that runs when the rows are written; default: none"
    )
    max_bytes_per_load: ByteAmount = Field(
        1 << 30,
        description="most bytes of one load; a task with more rows is written in several loads",
    )
    time_zone: Zone = Field("UTC", description="zone in which instants are written")
    timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        60.0, description="seconds to wait for a connection, and for a server to accept a load"
    )
    load_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        600.0, description="seconds for a load, once its rows are sent"
    )
    retry_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        120.0, description="seconds for which a load is sent again, under the same label"
    )

    aliases: ClassVar[Mapping[str, str]] = {**DirectOptions.aliases, "table": "dbtable"}

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        for name, text in (("database", self.database), ("dbtable", self.dbtable)):
            if not text.strip() or re.search(r"[/?#`\s]", text):
                raise OptionError(
                    f"option {name!r} got {text!r}; it takes a name", option=name, got=text
                )
        if (self.start_sql or self.end_sql) and self.query_server is None:
            raise OptionError(
                "options 'startSql' and 'endSql' need 'queryServer'", option="queryServer"
            )

    @property
    def is_secure(self) -> bool:
        return any(frontend.startswith("https:") for frontend in self.frontends)

    @property
    def frontends(self) -> tuple[str, ...]:
        return tuple(self.url.split(","))

    @property
    def login(self) -> tuple[str, str]:
        parts = urlsplit(self.frontends[0])
        user = self.user or unquote(parts.username or "") or "root"
        if self.password is not None:
            return user, self.password.get_secret_value()
        return user, unquote(parts.password or "")

    @property
    def address(self) -> str:
        """Without a login."""
        parts = urlsplit(self.frontends[0])
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{self.database}.{self.dbtable}"
