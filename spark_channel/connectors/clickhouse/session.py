"""The options of ClickHouse, and a session over its HTTP interface."""

import http.client
import inspect
import io
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Literal
from urllib.parse import SplitResult, parse_qsl, urlsplit

import clickhouse_connect
import pyarrow as pa
import urllib3
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError
from clickhouse_connect.driver.httpclient import HttpClient
from clickhouse_connect.driver.httputil import get_pool_manager
from pydantic import Field

from spark_channel.connectors.base.network import (
    check_no_fragment,
    check_tls,
    decoded,
    flag,
    server_url,
)
from spark_channel.connectors.sql.options import (
    CreateTable,
    ServerOptions,
    SqlReadOptions,
    SqlWriteOptions,
)
from spark_channel.connectors.sql.session import HIDDEN, BatchSize, DriverSession, session_script
from spark_channel.errors import ChannelError, OptionError
from spark_channel.final_errors import final, of_input
from spark_channel.options import Amount

__all__ = [
    "ClickhouseReadOptions",
    "ClickhouseSession",
    "ClickhouseWriteOptions",
    "is_lost",
]


_TAKES = "clickhouse://host:8123/database, or with ?ssl=true for https"
_SCHEMES = ("clickhouse", "http", "https")
_OF_DRIVER = re.compile(r"(clickhouse|ch):(?=https?:)", re.IGNORECASE)
"""ClickHouse's JDBC driver names the protocol, too: jdbc:clickhouse:http://host:8123/base."""
_SECURE = ("secure", "ssl")
_PARAMETERS = {*_SECURE, "protocol", "sslmode", "database", "user", "password"}
_WITHOUT_EFFECT = frozenset(
    {
        "client_name",
        "compress",
        "compress_algorithm",
        "compress_level",
        "connect_timeout",
        "connection_timeout",
        "decompress",
        "decompress_algorithm",
        "max_execution_time",
        "max_rows_to_read",
        "receive_timeout",
        "send_timeout",
        "server_time_zone",
        "session_id",
        "session_timeout",
        "socket_keepalive",
        "socket_timeout",
        "use_server_time_zone",
        "use_server_time_zone_for_dates",
        "use_time_zone",
    }
)
"""Parameters of the drivers about themselves, or that an option has: they change neither rows nor the way to them."""


def _plain(url: str) -> str:
    """Without what JDBC puts before it."""
    bare = url.strip()
    bare = bare[len("jdbc:") :] if bare.lower().startswith("jdbc:") else bare
    return _OF_DRIVER.sub("", bare, count=1)


class ClickhouseAddress(ServerOptions):
    """The address of the HTTP interface, and the login."""

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        url = str(getattr(self, "url", None) or "")
        check_no_fragment(url.partition("?")[0])
        try:
            server_url(_plain(url), _SCHEMES, _TAKES, _PARAMETERS | _WITHOUT_EFFECT)
            self.secure  # noqa: B018 - its parameters are read here
        except ValueError as error:
            raise OptionError(
                f"option 'url' names no server as this connector knows it; it takes {error}",
                option="url",
                takes=_TAKES,
            ) from None
        check_tls(self, is_secure=self.secure, how="add ?ssl=true to it")

    session_time_zone: str | None = Field(
        None,
        description="time zone of the local times that a DateTime is read as or written from; "
        "default: the column's, else the server's",
    )

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(_plain(str(getattr(self, "url", None) or "")))

    @property
    def _given(self) -> dict[str, str]:
        """The url's parameters, with names in lower case."""
        return {
            name.lower(): value
            for name, value in parse_qsl(self._parts.query, keep_blank_values=True)
        }

    @property
    def secure(self) -> bool:
        """Whether any part of the url asks for TLS.

        Raises:
            ValueError: a part might be meant so.
        """
        given = self._given
        protocol, mode = given.get("protocol", "http").lower(), given.get("sslmode", "").lower()
        if protocol not in ("http", "https"):
            raise ValueError("http or https for parameter 'protocol'")
        if mode not in ("", "strict"):
            raise ValueError("strict for parameter 'sslmode': certificates are always verified")
        flags = [flag(given[name], name) for name in _SECURE if name in given]
        return "https" in (self._parts.scheme, protocol) or bool(mode) or any(flags)

    @property
    def server(self) -> tuple[str, int]:
        return self._parts.hostname or "", self._parts.port or (8443 if self.secure else 8123)

    @property
    def database(self) -> str:
        parts = self._parts
        return (
            decoded(parts.path.strip("/"), "database") or self._given.get("database") or "default"
        )

    @property
    def login(self) -> tuple[str, str]:
        parts = self._parts
        given = None if self.password is None else self.password.get_secret_value()
        inside = self._given
        user = self.user or decoded(parts.username or "", "user") or inside.get("user") or "default"
        if given is None:
            given = decoded(parts.password or "", "password") or inside.get("password", "")
        return user, given

    @property
    def place(self) -> str:
        """Without a login."""
        host, port = self.server
        return f"{host}:{port}/{self.database}"


class ClickhouseReadOptions(ClickhouseAddress, SqlReadOptions):
    """Options of the ClickHouse reader."""

    timestamps_as: Literal["instant", "local"] = Field(
        "instant",
        description="read DateTime as an `instant`, or as `local` time of `sessionTimeZone`",
    )
    floats_as: Literal["number", "text"] = Field(
        "number",
        description="read floats as a `number`, or as the `text` that the server shows: `100`, `1.5`",
    )


class ClickhouseWriteOptions(ClickhouseAddress, SqlWriteOptions):
    """Options of the ClickHouse writer."""

    keeps_table: ClassVar[str] = "an overwrite empties the table"
    refused: ClassVar[Mapping[str, str]] = {
        **SqlWriteOptions.refused,
        "onSchemaChange": "add the columns yourself: only you know the table's columns",
    }

    batch_size: Amount = Field(
        100_000,
        alias="batchsize",
        description="rows of one INSERT; ClickHouse merges small ones slowly",
    )
    create_table: CreateTable = Field(
        "false", description="`true` is refused: only you know the table's engine and order"
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        for option, found, wanted, why in (
            (
                "commit",
                self.commit or "task",
                "task",
                "ClickHouse has no transaction that spans a job's inserts",
            ),
            (
                "writeMode",
                self.write_mode,
                "insert",
                "ClickHouse updates no rows by key; use a ReplacingMergeTree",
            ),
            (
                "createTable",
                "true" if self.create_table == "columns" else self.create_table,
                "false",
                "only you know the table's engine and order",
            ),
        ):
            if found != wanted:
                raise OptionError(
                    f"option {option!r} got {found!r}; it takes {wanted}: {why}",
                    option=option,
                    got=found,
                    takes=wanted,
                )
        if self.txn_app_id is not None:
            raise OptionError(
                "option 'txn' is not supported by ClickHouse: "
                "it has no transaction in which a published write could be recorded. "
                "A ReplacingMergeTree keeps one row of each key",
                option="txn",
                got=self.txn_app_id,
            )


_FAILURES = (
    ClickHouseError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    pa.ArrowException,
)
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The last bytes of an Arrow stream. A stream without them was cut, which Arrow's reader does not detect
(findings/arrow-stream-cut-short.sh).
"""
_OVERFLOW_MODES = (
    "result",
    "read",
    "read_leaf",
    "timeout",
    "timeout_leaf",
    "group_by",
    "sort",
    "distinct",
    "join",
    "set",
    "transfer",
)
_SETTINGS = {
    **{
        f"{each.removesuffix('_leaf')}_overflow_mode{'_leaf' if each.endswith('_leaf') else ''}": "throw"
        for each in _OVERFLOW_MODES
    },
    "limit": "0",
    "offset": "0",
    "skip_unavailable_shards": "0",
    "apply_deleted_mask": "1",
    "use_query_cache": "0",
    "input_format_allow_errors_num": "0",
    "input_format_allow_errors_ratio": "0",
}
"""Settings that override those of a user's profile that would silently omit or change rows of a read or a write."""
_READ = {
    "output_format_arrow_string_as_string": 1,
    "output_format_arrow_low_cardinality_as_dictionary": 0,
    "cancel_http_readonly_queries_on_client_close": 1,
}
_INSERT = {"input_format_arrow_allow_missing_columns": 0, "async_insert": 0}
_NEEDED = frozenset({*_READ, *_INSERT, "insert_deduplication_token"})
"""Settings of reads and writes, without which values or promises would be others."""


def is_lost(error: BaseException) -> bool:
    """Whether the server is away, or too busy: the same again may succeed."""
    cause = error.__cause__ or error
    lost = (
        OperationalError,
        urllib3.exceptions.HTTPError,
        http.client.HTTPException,
        ConnectionError,
        TimeoutError,
    )
    names = ("TOO_MANY_SIMULTANEOUS_QUERIES", "MEMORY_LIMIT_EXCEEDED", "NETWORK_ERROR")
    return isinstance(cause, lost) or any(name in str(cause) for name in names)


class _CutError(OSError):
    """The answer ended before its end."""


class _Watched(io.RawIOBase):
    """Remembers the last bytes that were read."""

    def __init__(self, source: Any) -> None:
        self._source, self.last = source, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        self.last = (self.last + bytes(data[-len(_END) :]))[-len(_END) :]
        return len(data)

    def check_end(self) -> None:
        rest = self._source.read(1 << 16)
        if rest or self.last != _END:
            raise _CutError(f"the server ended the answer early: {(self.last + rest)[-400:]!r}")


_HAS_POOLS = "dedicated_pool" in inspect.signature(HttpClient.__init__).parameters
_OWN_POOL: dict[str, Any] = {"dedicated_pool": True} if _HAS_POOLS else {}
"""A session's connections end with it, from clickhouse-connect 1.12 on. Before, sessions of a process share a pool."""

_CODE = re.compile(r"[Cc]ode:? (\d+)|\((\d+)\)\s*$")
_QUOTE_NO_VALUE = frozenset({60, 81, 159, 164, 192, 193, 194, 202, 210, 241, 243, 252, 497, 516})
"""Missing tables, logins, rights and limits."""


_OF_INPUT = frozenset({60, 81, 192, 193, 497, 516})
"""ClickHouse's errors: no such table, database or user, a wrong password, no right."""
_FULL = 243


class ClickhouseSession(DriverSession):
    """`failure` is the class of its errors."""

    failures = _FAILURES

    def __init__(self, options: ClickhouseAddress, failure: type[ChannelError]) -> None:
        self.place, self._failure, self._options = options.place, failure, options
        host, port = options.server
        limit = options.query_timeout
        with self.explained(), self._old_refused():
            self._connection = clickhouse_connect.get_client(
                host=host,
                port=port,
                # Not by variables: they would stay in the frame of an error.
                username=options.login[0],
                password=options.login[1],
                database=options.database,
                interface="https" if options.secure else "http",
                secure=options.secure,
                ca_cert=options.sslrootcert,
                client_cert=options.sslcert,
                client_cert_key=options.sslkey,
                connect_timeout=max(1, round(options.connect_timeout)),
                send_receive_timeout=limit or 600,
                settings={"max_execution_time": limit} if limit else {},
                query_limit=0,
                query_retries=0,
                client_name="spark-channel",
                **_OWN_POOL,
            )
        with self.closed_on_failure():
            if missing := _NEEDED.difference(self._connection.server_settings):
                raise self._too_old(
                    str(self._connection.server_version), f"setting {min(missing)!r}"
                )
            with self.explained():
                self._set_all()
            for statement in session_script(options, "clickhouse"):
                self.command(statement)

    def _set_all(self) -> None:
        """Set those of `_SETTINGS` that this server has, and that its profile of the user changes."""
        found = self._connection.server_settings
        for name, value in _SETTINGS.items():
            if name in found and str(found[name].value) != value:
                self._connection.set_client_setting(name, value)

    @contextmanager
    def _old_refused(self) -> Iterator[None]:
        """Name the version of a server on which the client cannot begin: in 2018 settings had no column `readonly`."""
        try:
            yield
        except ClickHouseError as error:
            if "Unknown identifier: readonly" not in str(error):
                raise
            raise self._too_old(self._version(), "column 'readonly' of system.settings") from None

    def _version(self) -> str:
        """By a separate request, for a server on which the client cannot begin."""
        options = self._options
        host, port = options.server
        pool = get_pool_manager(
            ca_cert=options.sslrootcert, client_cert=options.sslcert, client_cert_key=options.sslkey
        )
        with pool:
            answer = pool.request(
                "GET",
                f"{'https' if options.secure else 'http'}://{host}:{port}/",
                fields={"query": "SELECT version()"},
                headers={
                    "X-ClickHouse-User": options.login[0],
                    "X-ClickHouse-Key": options.login[1],
                },
                timeout=options.connect_timeout,
            )
            return str(answer.data.decode(errors="replace")).strip()

    def _too_old(self, version: str, lacks: str) -> ChannelError:
        return self._failure(
            f"{self.place}: ClickHouse {version} is too old: this connector and its client, clickhouse-connect, need "
            f"{lacks}. Upgrade the server, or copy files that it exports"
        )

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.explained():
            return [tuple(row) for row in self._connection.query(sql).result_rows]

    def command(self, sql: str) -> None:
        with self.explained():
            self._connection.command(sql)

    def stream(self, sql: str, size: BatchSize) -> Iterator[pa.RecordBatch]:
        settings = {**_READ, "max_block_size": max(1, size.rows)}
        with self.explained():
            source = self._connection.raw_stream(sql, fmt="ArrowStream", settings=settings)
            with closing(source):
                watched = _Watched(source)
                for batch in pa.ipc.open_stream(
                    pa.PythonFile(io.BufferedReader(watched, 1 << 16), "r")
                ):
                    for start in range(0, batch.num_rows, max(1, size.rows)):
                        yield batch.slice(start, size.rows)
                watched.check_end()

    def insert(self, table: str, names: list[str], batch: pa.RecordBatch) -> None:
        """One INSERT of one block, which is stored when this returns.

        Its token is new. Replicated tables store a block once, and without a token they compare the blocks' rows, so a
        second block of equal rows would be dropped. The client sends a block again after a connection reset.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        settings = {
            **_INSERT,
            "max_insert_block_size": max(batch.num_rows, 1),
            "insert_deduplication_token": uuid.uuid4().hex,
        }
        with self.explained():
            said = self._connection.raw_insert(
                table, names, sink.getvalue().to_pybytes(), settings=settings, fmt="ArrowStream"
            )
        # Rows that materialized views make of them are counted, too.
        if "written_rows" in said.summary and said.written_rows < batch.num_rows:
            raise self._failure(
                f"{self.place}: table {table} stored {said.written_rows} of {batch.num_rows} rows of an INSERT and "
                "reported success. These rows stay in the table. Look for settings of the profile that leave rows out"
            )

    def explain(self, error: BaseException) -> ChannelError:
        text = self._options.hide(str(error)).strip()
        code = _CODE.search(text)
        if getattr(self._options, "hide_values", False) and code is not None:
            number = int(code[1] or code[2])
            if number not in _QUOTE_NO_VALUE:
                text = f"ClickHouse's error {number}; {HIDDEN}"
                error.args = (text,)
        number = 0 if code is None else int(code[1] or code[2])
        made = self._failure(f"{self.place}: {text[:600]}")
        return final(of_input(made, is_of_input=number in _OF_INPUT), is_final=number == _FULL)
