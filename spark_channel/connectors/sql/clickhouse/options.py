"""The options of ClickHouse."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import Field

from spark_channel.connectors.network_options import check_tls
from spark_channel.connectors.sql.options import ServerOptions, SqlReadOptions, SqlWriteOptions
from spark_channel.connectors.url_text import check_no_fragment, decoded
from spark_channel.errors import OptionError
from spark_channel.options import Amount

__all__ = ["ClickhouseAddress", "ClickhouseReadOptions", "ClickhouseWriteOptions"]

_TAKES = "clickhouse://host:8123/database, or with ?ssl=true for https"
_SECURE = ("secure", "ssl")


class ClickhouseAddress(ServerOptions):
    """The address of the HTTP interface, and the login."""

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        check_no_fragment(str(getattr(self, "url", None) or "").partition("?")[0])
        try:
            parts = self._parts
            good = bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise OptionError(f"option 'url' names no server; it takes {_TAKES}", option="url", takes=_TAKES)
        check_tls(self, is_secure=self.secure, how="add ?ssl=true to it")

    @property
    def _parts(self) -> SplitResult:
        url = str(getattr(self, "url", None) or "")
        rest = url[len("jdbc:") :] if url.lower().startswith("jdbc:") else url
        # ClickHouse's JDBC driver names the protocol, too: jdbc:clickhouse:http://host:8123/base
        rest = rest.replace("clickhouse:http", "http", 1) if rest.startswith("clickhouse:http") else rest
        return urlsplit(rest)

    @property
    def secure(self) -> bool:
        given = {name.lower(): value.lower() for name, value in parse_qsl(self._parts.query)}
        return self._parts.scheme == "https" or any(given.get(name) in ("true", "1") for name in _SECURE)

    @property
    def server(self) -> tuple[str, int]:
        return self._parts.hostname or "", self._parts.port or (8443 if self.secure else 8123)

    @property
    def database(self) -> str:
        parts = self._parts
        named = {name.lower(): value for name, value in parse_qsl(parts.query)}.get("database")
        return decoded(parts.path.strip("/"), "database") or named or "default"

    @property
    def login(self) -> tuple[str, str]:
        parts = self._parts
        given = None if self.password is None else self.password.get_secret_value()
        user = self.user or (decoded(parts.username, "user") if parts.username else "default")
        return user, given if given is not None else decoded(parts.password or "", "password")

    @property
    def place(self) -> str:
        """Without a login."""
        host, port = self.server
        return f"{host}:{port}/{self.database}"


class ClickhouseReadOptions(ClickhouseAddress, SqlReadOptions):
    """Options of the ClickHouse reader."""

    timestamps_as: Literal["instant", "local"] = Field(
        "instant",
        description="read DateTime as an `instant`, or as `local` time of the column's zone, else of the server's",
    )


class ClickhouseWriteOptions(ClickhouseAddress, SqlWriteOptions):
    """Options of the ClickHouse writer."""

    keeps_table: ClassVar[str] = "an overwrite empties the table"
    refused: ClassVar[Mapping[str, str]] = {
        **SqlWriteOptions.refused,
        "onSchemaChange": "add the columns yourself: only you know the table's columns",
    }

    batch_size: Amount = Field(
        100_000, alias="batchsize", description="rows of one INSERT; ClickHouse merges small ones slowly"
    )
    create_table: bool = Field(
        False, description="`true` is refused: only you know the table's engine and order"
    )

    def model_post_init(self, context: Any) -> None:
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
                str(self.create_table).lower(),
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
                "options 'txnAppId' and 'txnVersion' are not supported by ClickHouse: "
                "it has no transaction in which a published write could be recorded. "
                "A ReplacingMergeTree keeps one row of each key",
                option="txnAppId", got=self.txn_app_id,
            )  # fmt: skip
