"""Options, client and its errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

import redis
from pydantic import BeforeValidator, Field
from redis.backoff import NoBackoff
from redis.retry import Retry as NoRetry

from spark_channel.connectors.base.network import Seconds, TlsOptions, server_url
from spark_channel.connectors.records.direct_writer import DirectOptions
from spark_channel.connectors.records.reader import RecordReadOptions, Zone
from spark_channel.errors import ChannelError, OptionError
from spark_channel.options import Amount, ColumnList, CommitMode, Secret, Trait, Url

__all__ = [
    "RedisAddress",
    "RedisReadOptions",
    "RedisWriteOptions",
    "ValueType",
    "connected",
    "explained",
    "is_busy",
    "is_of_row",
    "is_passing",
]


# The options of Redis.


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


# A client of Redis, and its errors as ours.

_DENIED = (redis.AuthenticationError, redis.exceptions.NoPermissionError)

_BUSY = re.compile(r"(^|: )BUSY \w+ is busy")
"""A script is running. The driver puts the command before it."""


@contextmanager
def connected(options: RedisAddress, failure: type[ChannelError]) -> Iterator[Any]:
    """A client, closed at the end; errors of the driver become `failure`."""
    client: Any = None
    try:
        with explained(options, failure):
            client = _client(options)
            if not options.cluster:
                _check_single(options, client, failure)
            yield client
    finally:
        if client is not None:
            client.close()


def _client(options: RedisAddress) -> Any:
    parts = urlsplit(options.url)
    user, password = options.login
    settings: dict[str, Any] = {
        "host": parts.hostname,
        "port": parts.port or 6379,
        "username": user,
        "password": password,
        "socket_connect_timeout": options.connect_timeout,
        "socket_timeout": options.socket_timeout,
        "client_name": "spark-channel",
    }
    if options.is_secure:
        settings |= {
            "ssl": True,
            "ssl_ca_certs": options.sslrootcert,
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,  # which older versions of the driver do not by themselves
        }
    if options.cluster:
        return redis.RedisCluster(**settings)
    # The driver would send a command again after an error, also one that is not repeatable:
    # findings/redis-py-sends-again.sh
    return redis.Redis(**settings, db=options.database, retry=NoRetry(NoBackoff(), 0))


def _check_single(options: RedisAddress, client: Any, failure: type[ChannelError]) -> None:
    """Check that the server has all keys: a member of a cluster shows its own as if these were all."""
    try:
        answer = client.execute_command("HELLO")  # which every user may ask
    except redis.ResponseError:
        return  # before Redis 6
    pairs = (
        answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
    )
    about = {_word(name): _word(value) for name, value in pairs}
    if about.get("mode") == "cluster":
        raise failure(
            f"{options.address} is a member of a Redis Cluster, which has a part of the keys: set option 'cluster' to "
            "true, which reaches all members"
        )


def _word(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


@contextmanager
def explained(options: RedisAddress, failure: type[ChannelError]) -> Iterator[None]:
    try:
        yield
    except _DENIED as error:
        raise failure(
            f"{options.address}: {_text(options, error)}; check 'user', 'password' and the user's ACL"
        ) from options.hidden(error)
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise failure(
            f"{options.address}: the server does not answer: {_text(options, error)}; "
            "check 'url', and 'socketTimeout' for a server that is busy"
        ) from options.hidden(error)
    except redis.exceptions.RedisClusterException as error:  # which is not a RedisError
        if denied := _denied(error):
            raise failure(
                f"{options.address}: {_text(options, denied)}; check 'user', 'password' and the user's ACL, which must "
                "allow CLUSTER SLOTS and COMMAND with 'cluster'"
            ) from options.hidden(error)
        raise failure(
            f"{options.address}: {_text(options, error)}; with 'cluster' the server must be a member of a cluster "
            "whose slots are all covered: omit it for a single server"
        ) from options.hidden(error)
    except redis.RedisError as error:
        raise failure(f"{options.address}: {_text(options, error)}") from options.hidden(error)


def _denied(error: BaseException | None) -> Exception | None:
    """The refusal of a login, or for want of a right, which the driver tells as that of a server without a cluster."""
    while error is not None and not isinstance(error, _DENIED):
        error = error.__cause__ or error.__context__
    return error


def is_passing(error: Exception) -> bool:
    """Whether the connection was lost, or the server is loading its data or running a script."""
    lost = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError)
    denied = isinstance(error, redis.AuthenticationError)
    return (isinstance(error, lost) and not denied) or is_busy(error)


def is_busy(error: Exception) -> bool:
    """Whether the server runs a script, and has done nothing: a transaction that met it is dropped whole."""
    return isinstance(error, redis.ResponseError) and _BUSY.search(str(error)) is not None


def is_of_row(error: Exception) -> bool:
    """Whether the answer is about one value. Others, of memory, rights or a replica, would meet every row.

    The driver leaves the code out where it is ERR, and makes a class of those that it knows.
    """
    code = str(error).partition(" ")[0]
    return type(error) is redis.ResponseError and (code == "WRONGTYPE" or not code.isupper())


def _text(options: RedisAddress, error: Exception) -> str:
    return options.hide(str(error))[:400]
