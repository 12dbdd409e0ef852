"""Options of the MongoDB connector, and the address that they name."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote, unquote_plus, urlsplit

import bson.json_util
from bson.errors import BSONError
from pydantic import BeforeValidator, Field
from pymongo.errors import PyMongoError
from pymongo.uri_parser import split_options

from spark_channel.connectors.base.network import Seconds
from spark_channel.connectors.base.server_url import contradicted, decoded
from spark_channel.connectors.mongodb.shell import parse_query
from spark_channel.connectors.records.direct_writer import DirectOptions
from spark_channel.connectors.records.reader import RecordReadOptions, Zone, texts_by_name
from spark_channel.errors import OptionError
from spark_channel.options import ColumnList, Options, Secret, Trait, Url
from spark_channel.working_directory import absolute_path

__all__ = ["MongoAddress", "MongoReadOptions", "MongoWriteOptions", "query_document"]

FIELD_TYPES = (
    "objectId",
    "int",
    "long",
    "double",
    "decimal",
    "string",
    "bool",
    "date",
    "binary",
    "json",
    "array",
)

_URL = re.compile(r"mongodb(?:\+srv)?://\S+", re.IGNORECASE)

_FILE = re.compile(
    r"((?<=[?&;])(?:tlsCAFile|tlsCertificateKeyFile|tlsCRLFile)=)([^&#]+)", re.IGNORECASE
)

_TAKES = "mongodb://host:27017/database, mongodb://host1,host2/database?replicaSet=rs or mongodb+srv://host/database"


def _url(value: object) -> str:
    text = str(value)
    if not _URL.fullmatch(text):
        raise ValueError(_TAKES)
    hosts, _, path = re.sub(r"[?#]", "/?", text.partition("://")[2]).partition("/")
    if "@" in path.partition("?")[0] or ("@" in path and "@" not in hosts):
        # The part before the "/" would be taken for the host, and shown.
        raise ValueError(f"{_TAKES}; in a login / ? # @ : are written %2F %3F %23 %40 %3A")
    if "#" in text.partition("?")[0]:
        raise ValueError(f"{_TAKES}; in the name of a database # is written %23")
    _check_parameters(_FILE.sub("", text).partition("?")[2])
    return _FILE.sub(
        lambda match: match[1] + quote(absolute_path(unquote_plus(match[2]), uri=False)), text
    )


def _check_parameters(text: str) -> None:
    """
    Raises:
        ValueError: the driver only warns of one that is misspelt or is there twice, and connects without what it asks
            for, such as TLS.
    """
    twice = contradicted(text.replace(";", "&"))
    if twice is not None:
        raise ValueError(f"{_TAKES}; parameter {twice[:40]!r} is there twice, with two values")
    names = {part.partition("=")[0].lower() for part in re.split("[&;]", text)}
    if "tlsdisableocspendpointcheck" in names and not names & {"tls", "ssl"}:
        raise ValueError(f"{_TAKES}; 'tlsDisableOCSPEndpointCheck' is for TLS: add tls=true")
    for part in filter(None, re.split("[&;]", text)):
        try:
            split_options(part, warn=False)
        except (PyMongoError, ValueError):
            name = part.partition("=")[0][:40]
            raise ValueError(
                f"{_TAKES}; parameter {name!r} is not one of MongoDB's, or its value is not"
            ) from None


def _query(value: object) -> str:
    """A query document as extended JSON; it holds only values of BSON."""
    takes = 'a query document of MongoDB, such as {"status": "paid", "n": {"$gt": 5}}'
    try:
        text = json.dumps(parse_query(str(value)), ensure_ascii=False)
    except ValueError as error:
        raise ValueError(f"{takes}; {error}") from None
    try:
        bson.encode(query_document(text))
    except (
        BSONError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(f"{takes}, with values of extended JSON: {error}") from None
    return text


def query_document(text: str) -> dict[str, Any]:
    """The query document that extended JSON describes."""
    document: dict[str, Any] = json.loads(text, object_hook=_special)
    return document


def _special(document: dict[str, Any]) -> object:
    if "$undefined" in document:
        raise ValueError("$undefined has no counterpart; use null")
    if "$regex" in document and not _is_regular(document):
        return document  # as a value, it would lose the conditions beside it
    return bson.json_util.object_hook(document)


def _is_regular(document: dict[str, Any]) -> bool:
    options = document.get("$options", "")
    has_options = isinstance(options, str) and set(options) <= set("imsx")
    return has_options and document.keys() <= {"$regex", "$options"}


def _field_types(value: object) -> dict[str, str]:
    types = texts_by_name(value)
    for name, kind in types.items():
        word = kind.partition(":")[0]
        if word not in FIELD_TYPES:
            raise ValueError(
                f"types for columns, each one of {', '.join(FIELD_TYPES)}; {name!r} has {kind!r}"
            )
    return types


Query = Annotated[str, BeforeValidator(_query)]


class MongoAddress(Options):
    """The address of a collection, and the login."""

    url: Annotated[Url, BeforeValidator(_url)] = Field(
        description="`mongodb://host:27017/database`, `mongodb://host1,host2/database?replicaSet=rs` or "
        "`mongodb+srv://host/database`"
    )
    database: str | None = Field(None, description="the database; default: from the url")
    collection: str = Field(description="the collection, or a view to read")
    user: str | None = Field(None, description="user name; default: from the url, else none")
    password: Secret | None = Field(
        None,
        description="password, or `${env:NAME}` or `${file:PATH}`; default: from the url, else none",
    )
    auth_source: str | None = Field(
        None,
        description="the database that knows the user; default: from the url, else MongoDB's own rules",
    )
    connect_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        30.0, description="seconds to wait for a server"
    )
    socket_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        600.0, description="seconds to wait for one answer of the server"
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if not self.database_name:
            raise OptionError(
                "option 'database' is missing, and the url names none",
                option="database",
                takes="a database's name",
            )
        if self.password is not None and self.user is None:
            raise OptionError("option 'password' needs 'user'", option="user")

    @property
    def database_name(self) -> str:
        return self.database or decoded(urlsplit(self.url).path.strip("/"), "database")

    @property
    def hosts(self) -> str:
        """Without a login."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def dbtable(self) -> str:
        """For messages."""
        return self.collection

    @property
    def address(self) -> str:
        return f"mongodb://{self.hosts}/{self.database_name}#{self.collection}"


class MongoReadOptions(MongoAddress, RecordReadOptions):
    """Options of the MongoDB reader."""

    aliases: ClassVar[Mapping[str, str]] = {**RecordReadOptions.aliases, "dbtable": "collection"}
    no_where: ClassVar[str] = (
        'MongoDB understands no SQL; use \'filter\', such as {"status": "paid"}'
    )

    filter: Query = Field(
        "{}",
        description="MongoDB's query document, as (extended) JSON or in the syntax of its shell; "
        "default: all documents",
    )
    retry_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        60.0,
        description="seconds for which a server that went away is tried again, without progress",
    )


class MongoWriteOptions(MongoAddress, DirectOptions):
    """Options of the MongoDB writer."""

    aliases: ClassVar[Mapping[str, str]] = {**DirectOptions.aliases, "dbtable": "collection"}

    write_mode: Literal["insert", "upsert", "replace"] = Field(
        "insert",
        description="`insert`; `upsert`: set the columns of the document with this key, and keep its other fields; "
        "`replace`: the row becomes the whole document",
    )
    key_columns: ColumnList = Field(
        ("_id",),
        description="the columns that identify a document, with `upsert` and `replace`; default: `_id`",
    )
    field_types: Annotated[Mapping[str, str], BeforeValidator(_field_types)] = Field(
        default_factory=dict,
        description='JSON object of columns and types, such as `{"_id": "objectId"}`: objectId, int, long, double, '
        "decimal, string, bool, date, binary, json, and `array:,:long` for a text of values that are separated by a "
        "comma. An empty text is NULL, but for string and binary; default: by the columns' own types",
    )
    time_zone: Zone = Field("UTC", description="zone of timestamps without a zone, and of days")
    truncate_times: bool = Field(
        False,
        description="cut times to the milliseconds that MongoDB keeps; `false`: a finer time is a refused row",
    )
    delete_filter: Query | None = Field(
        None,
        description="documents that are deleted before the write, as MongoDB's query document; default: none",
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if "." in self.collection and self.collection.startswith("system."):
            raise OptionError(
                f"option 'collection' got {self.collection!r}; MongoDB's own collections are not written: name another",
                option="collection",
                got=self.collection,
            )
