"""Options of the Redis connector, and the address that they name."""

from typing import Annotated, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, Field

from spark_channel.connectors.base.network import Seconds, TlsOptions
from spark_channel.connectors.base.server_url import server_url
from spark_channel.connectors.records.direct_writer import DirectOptions
from spark_channel.connectors.records.reader import RecordReadOptions, Zone
from spark_channel.errors import OptionError
from spark_channel.options import Amount, ColumnList, CommitMode, Secret, Trait, Url

__all__ = ["RedisAddress", "RedisReadOptions", "RedisWriteOptions", "ValueType"]

_TAKES = "redis://host:6379/0 or rediss://host:6379/0 (TLS)"


def _url(value: object) -> str:
    number = server_url(str(value), ("redis", "rediss"), _TAKES).path.strip("/")
    if number and not number.isdigit():
        raise ValueError(_TAKES)
    return str(value).strip()


ValueType = Literal["hash", "string", "list", "set", "zset"]


class RedisAddress(TlsOptions):
    """The address of a database of keys, and the login."""

    tls_url: ClassVar[str] = "use rediss://"

    url: Annotated[Url, BeforeValidator(_url)] = Field(
        description="`redis://host:6379/0`, or `rediss://` for TLS; the number is the database"
    )
    user: str | None = Field(
        None, description="user name; default: from the url, else the server's `default`"
    )
    password: Secret | None = Field(
        None,
        description="password, or `${env:NAME}` or `${file:PATH}`; default: from the url, else none",
    )
    cluster: bool = Field(
        False, description="the server is a member of a Redis Cluster, which names the others"
    )
    connect_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        10.0, description="seconds to wait for a connection"
    )
    socket_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        60.0, description="seconds to wait for one answer of the server"
    )
    retry_timeout: Annotated[Seconds, Trait.SAME_ROWS] = Field(
        60.0, description="seconds for which a server that went away is tried again"
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.cluster and self.database:
            raise OptionError(
                f"option 'url' names database {self.database}; with 'cluster' it takes 0: a cluster has one database",
                option="url",
                takes="redis://host:6379",
            )

    @property
    def is_secure(self) -> bool:
        return urlsplit(self.url).scheme == "rediss"

    @property
    def database(self) -> int:
        return int(urlsplit(self.url).path.strip("/") or 0)

    @property
    def login(self) -> tuple[str | None, str | None]:
        parts = urlsplit(self.url)
        user = self.user or (unquote(parts.username) if parts.username else None)
        if self.password is not None:
            return user, self.password.get_secret_value()
        return user, unquote(parts.password) if parts.password else None

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def address(self) -> str:
        """Without a login."""
        return f"{urlsplit(self.url).scheme}://{self.host}/{self.database}"


class RedisReadOptions(RedisAddress, RecordReadOptions):
    """Options of the Redis reader."""

    no_where: ClassVar[str] = (
        "Redis has no conditions on values; 'keys' takes a pattern, such as user:*"
    )

    keys: str = Field("*", description="a pattern of keys, as SCAN takes it, such as `user:*`")
    key_type: ValueType | None = Field(
        None, description="only keys with values of this type; default: all"
    )


class RedisWriteOptions(RedisAddress, DirectOptions):
    """Options of the Redis writer."""

    stages: ClassVar[bool] = True

    commit: CommitMode | None = Field(
        None,
        description="`task`: rows are visible as they are written; `job`: all rows of a job at once, by one script; "
        "default: `job` with `txn`, else `task`",
    )
    value_type: ValueType = Field(
        "hash",
        description="what a key holds: `hash` with a field for each column, `string` with the one value column, or "
        "JSON of several; `list` and `set` with the items of one column; `zset` with `scoreColumn`",
    )
    write_mode: Literal["upsert", "replace", "delete"] = Field(
        "upsert",
        description="`upsert` sets fields and members, and keeps others (items of a list are appended); `replace` "
        "removes the key first; `delete` removes the keys of the rows, or their `hashFields`",
    )
    key_columns: ColumnList = Field(description="the columns whose values are the key")
    key_delimiter: str = Field(
        ":", description="the text between the values of several key columns"
    )
    key_prefix: str = Field("", description="the beginning of all keys; default: none")
    key_suffix: str = Field("", description="the end of all keys; default: none")
    value_columns: ColumnList | None = Field(
        None,
        description="the columns that are written; default: all but the key's and `scoreColumn`",
    )
    value_delimiter: str | None = Field(
        None,
        description="the text between the items in a text column, for `list` and `set`; default: one item",
    )
    score_column: str | None = Field(
        None, description="the column of the scores of a `zset`; default: none"
    )
    hash_fields: ColumnList | None = Field(
        None,
        description="with `writeMode=delete`: these fields are removed from the hash; default: the whole key",
    )
    expire_seconds: Annotated[int, Field(ge=1, le=3_153_600_000)] | None = Field(
        None, description="keys that are written expire after this time; default: never"
    )
    time_zone: Zone = Field("UTC", description="zone in which instants are shown")
    job_rows: Amount = Field(
        1_000_000,
        description="with `commit=job`: most rows of a job; the server does nothing else while they are published",
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if (self.value_type == "zset") != (self.score_column is not None):
            raise OptionError(
                "option 'scoreColumn' goes together with valueType=zset",
                option="scoreColumn",
                got=self.score_column,
            )
        if self.value_type == "zset" and self.write_mode == "replace":
            raise OptionError(
                "option 'writeMode' got 'replace'; with valueType=zset it takes upsert or delete: "
                "each row is one member, and would remove the ones before",
                option="writeMode",
                got="replace",
                takes="upsert, delete",
            )
        if self.hash_fields is not None and self.write_mode != "delete":
            raise OptionError("option 'hashFields' is for writeMode=delete", option="hashFields")
        if self.is_staged and self.cluster:
            raise OptionError(
                "option 'commit' got 'job'; with 'cluster' it takes task: the keys of a job are on several servers, "
                "and no transaction spans them",
                option="commit",
                got="job",
                takes="task",
            )

    @property
    def is_staged(self) -> bool:
        return self.commit == "job" or self.txn_app_id is not None

    @property
    def is_repeatable(self) -> bool:
        """Whether the same rows written twice leave the same values."""
        return self.value_type != "list" or self.write_mode != "upsert"
