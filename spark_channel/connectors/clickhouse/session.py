"""The options of ClickHouse, and a session over its HTTP interface."""

import http.client
import inspect
import io
import re
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import clickhouse_connect
import pyarrow as pa
import urllib3
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError
from clickhouse_connect.driver.httpclient import HttpClient
from clickhouse_connect.driver.httputil import get_pool_manager

from spark_channel.connectors.clickhouse.options import ClickhouseAddress
from spark_channel.connectors.sql.session import HIDDEN, BatchSize, DriverSession, session_script
from spark_channel.errors import ChannelError
from spark_channel.final_errors import final, of_input

__all__ = ["ClickhouseSession", "is_lost"]


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
        f"{mode.removesuffix('_leaf')}_overflow_mode{'_leaf' if mode.endswith('_leaf') else ''}": "throw"
        for mode in _OVERFLOW_MODES
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
_HAS_POOLS = "dedicated_pool" in inspect.signature(HttpClient.__init__).parameters
_OWN_POOL: dict[str, Any] = {"dedicated_pool": True} if _HAS_POOLS else {}
"""A session's connections end with it, from clickhouse-connect 1.12 on. Before, sessions of a process share a pool."""
_CODE = re.compile(r"[Cc]ode:? (\d+)|\((\d+)\)\s*$")
_QUOTE_NO_VALUE = frozenset({60, 81, 159, 164, 192, 193, 194, 202, 210, 241, 243, 252, 497, 516})
"""Missing tables, logins, rights and limits."""
_OF_INPUT = frozenset({60, 81, 192, 193, 497, 516})
"""ClickHouse's errors: no such table, database or user, a wrong password, no right."""
_FULL = 243


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
        tail = self._source.read(1 << 16)
        if tail or self.last != _END:
            raise _CutError(f"the server ended the answer early: {(self.last + tail)[-400:]!r}")


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
        server_settings = self._connection.server_settings
        for name, value in _SETTINGS.items():
            if name in server_settings and str(server_settings[name].value) != value:
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
            summary = self._connection.raw_insert(
                table, names, sink.getvalue().to_pybytes(), settings=settings, fmt="ArrowStream"
            )
        # Rows that materialized views make of them are counted, too.
        if "written_rows" in summary.summary and summary.written_rows < batch.num_rows:
            raise self._failure(
                f"{self.place}: table {table} stored {summary.written_rows} of {batch.num_rows} rows of an INSERT and "
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
        failure = self._failure(f"{self.place}: {text[:600]}")
        return final(of_input(failure, is_of_input=number in _OF_INPUT), is_final=number == _FULL)
