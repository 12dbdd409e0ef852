"""Options of the ClickHouse connector, and the address that they name."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import Field

from spark_channel.connectors.base.network import check_tls
from spark_channel.connectors.base.server_url import check_no_fragment, decoded, flag, server_url
from spark_channel.connectors.sql.options import (
    CreateTable,
    ServerOptions,
    SqlReadOptions,
    SqlWriteOptions,
)
from spark_channel.errors import OptionError
from spark_channel.options import Amount

__all__ = ["ClickhouseAddress", "ClickhouseReadOptions", "ClickhouseWriteOptions"]

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
        parameters = self._given
        protocol, mode = (
            parameters.get("protocol", "http").lower(),
            parameters.get("sslmode", "").lower(),
        )
        if protocol not in ("http", "https"):
            raise ValueError("http or https for parameter 'protocol'")
        if mode not in ("", "strict"):
            raise ValueError("strict for parameter 'sslmode': certificates are always verified")
        flags = [flag(parameters[name], name) for name in _SECURE if name in parameters]
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
        password = None if self.password is None else self.password.get_secret_value()
        inside = self._given
        user = self.user or decoded(parts.username or "", "user") or inside.get("user") or "default"
        if password is None:
            password = decoded(parts.password or "", "password") or inside.get("password", "")
        return user, password

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
        for option, value, takes, reason in (
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
            if value != takes:
                raise OptionError(
                    f"option {option!r} got {value!r}; it takes {takes}: {reason}",
                    option=option,
                    got=value,
                    takes=takes,
                )
        if self.txn_app_id is not None:
            raise OptionError(
                "option 'txn' is not supported by ClickHouse: "
                "it has no transaction in which a published write could be recorded. "
                "A ReplacingMergeTree keeps one row of each key",
                option="txn",
                got=self.txn_app_id,
            )
