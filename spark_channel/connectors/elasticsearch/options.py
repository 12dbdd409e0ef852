"""Options of the Elasticsearch connector, and the address that they name."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

from spark_channel.connectors.base.network import Seconds, TlsOptions
from spark_channel.connectors.base.server_url import server_url
from spark_channel.connectors.records.direct_writer import DirectOptions
from spark_channel.connectors.records.reader import RecordReadOptions, Zone, texts_by_name
from spark_channel.errors import OptionError
from spark_channel.options import Secret, Trait, Url

__all__ = ["ElasticAddress", "ElasticReadOptions", "ElasticWriteOptions"]

_TAKES = (
    "http://host:9200 or https://host:9200; give a login in 'user' and 'password', "
    "or write / ? # @ in it as %2F %3F %23 %40"
)

_KEY = re.compile(r"[!-~]+")


def _url(value: object) -> str:
    server_url(str(value), ("http", "https"), _TAKES)
    return str(value).strip().rstrip("/")


def _object(value: object) -> str:
    try:
        parsed = json.loads(str(value))
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError('a JSON object, such as {"term": {"status": "paid"}}')
    return str(value)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(map(str, value))
    text = str(value)
    try:
        names = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [name.strip() for name in text.split(",")]
        )
    except (ValueError, RecursionError):
        raise ValueError("column names separated by commas, or a JSON list of them") from None
    return tuple(str(name) for name in names if name)


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
