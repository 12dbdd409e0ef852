"""Options of streams and tunnels."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator

from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.errors import OptionError
from spark_channel.options import Amount, ByteAmount, Options, Secret
from spark_channel.tunnel.records import TunnelType
from spark_channel.working_directory import absolute_path

__all__ = [
    "STREAM_OPTIONS",
    "TunnelOptions",
    "is_stream",
    "split_options",
]


# Each read asks whether it has a stream option. This module imports only what that needs.
STREAM_OPTIONS = frozenset(
    {
        "basemode",
        "checkpointinterval",
        "clienttag",
        "cursorcolumn",
        "cursororder",
        "endingoffsets",
        "endingtimestamp",
        "heartbeatinterval",
        "heartbeattimeout",
        "lateseconds",
        "maxbytespertrigger",
        "maxretryinterval",
        "maxrowspertrigger",
        "maxslotlag",
        "onerror",
        "onschemachange",
        "outagetimeout",
        "publication",
        "shutdowngrace",
        "slot",
        "startingoffsets",
        "startingtimestamp",
        "tables",
        "tunnel",
        "tunnelchannels",
        "tunnelstore",
        "tunneltype",
    }
)
"""Lower-cased names of the fields of `TunnelOptions`."""


def is_stream(options: Mapping[str, Any]) -> bool:
    """Whether an option is given that only a stream accepts."""
    return any(key.lower() in STREAM_OPTIONS for key in options)


def _store(value: SecretStr) -> SecretStr:
    """Make the path of a file absolute; leave the url of a server unchanged."""
    text = value.get_secret_value().strip()
    if not text or re.match(r"(jdbc:)?postgres(ql)?:", text):
        return value
    prefix = re.match(r"([a-z]+://|sqlite:)?", text)
    start = prefix.end() if prefix else 0
    return SecretStr(text[:start] + absolute_path(text[start:], uri=False))


class TunnelOptions(Options):
    """Options of every stream."""

    tunnel: str | None = Field(
        None,
        description="the tunnel's name: several queries share its channels; default: none, a plain stream",
    )
    tunnel_type: Literal["base", "stream", "base_and_stream"] = Field(
        "base_and_stream",
        description="`base`: existing rows; `stream`: new rows; `base_and_stream`: existing rows, then new rows",
    )
    base_mode: Literal["auto", "incremental", "initial"] = Field(
        "auto",
        description="with `slot` or `binlog`, and `tunnelType=base_and_stream`: `incremental` reads existing rows in "
        "chunks beside the changes, `initial` reads them before the changes; `auto`: incremental where that is "
        "possible",
    )
    tunnel_store: Annotated[Secret, AfterValidator(_store)] | None = Field(
        None,
        description="the store of tunnels: a SQLite file, or `postgresql://user:password@host/db`; default: "
        "`~/.spark_channel/tunnels.db`",
    )
    client_tag: str = Field(
        "", description="the client's name in `spark-channel tunnel describe`; default: none"
    )
    cursor_column: str | None = Field(
        None, description="a column whose values only grow; default: none"
    )
    cursor_order: Literal["text"] | None = Field(
        None,
        description="`text`: the cursor column contains strings, and each new one sorts last; "
        "default: numbers, dates or timestamps",
    )
    late_seconds: Annotated[float, Field(ge=0, le=604_800)] | None = Field(
        None,
        description="how many seconds after their cursor value or modification time rows and files may appear; "
        "default: 10 for server databases, 600 for files, 0 for SQLite and DuckDB",
    )
    tunnel_channels: Annotated[int, Field(ge=1, le=1_000)] = Field(
        1, description="number of tunnel channels of a feed of files"
    )
    slot: str | None = Field(
        None,
        description="PostgreSQL: the logical replication slot, created if missing; default: none",
    )
    publication: str | None = Field(
        None, description="PostgreSQL: the publication that the slot decodes; default: none"
    )
    tables: str | None = Field(
        None,
        description="a tunnel of several tables by one `slot` (PostgreSQL) or by `binlog` (MySQL, MariaDB), such as "
        "`shop.orders, shop.items` or `shop.*`, instead of `dbtable`; default: none",
    )
    max_slot_lag: ByteAmount | None = Field(
        None,
        description="PostgreSQL: bytes of WAL that the slot may keep before the reading of existing rows pauses; "
        "changes are still read; default: unlimited",
    )
    on_schema_change: Literal["fail", "ignore", "evolve"] = Field(
        "fail",
        description="with `slot` or `binlog`, when the table gets, loses or widens columns: `fail` ends the stream, "
        "which needs a reset; `evolve` ends it, and started again it continues with the table's columns; `ignore` "
        "leaves new columns out and has NULL for lost ones, and ends only where a type or the key changes. With "
        "`tables`, `fail` needs no reset, and `evolve` no restart",
    )
    starting_offsets: str | None = Field(
        None,
        description="with `tunnelType=stream`: `latest`, `earliest`, or a JSON token; default: `latest`",
    )
    starting_timestamp: datetime | None = Field(
        None,
        description="with `tunnelType=stream`: start with changes at this time or later, in UTC unless it has a zone; "
        "for files, topics, and cursor columns of dates or timestamps; default: none",
    )
    ending_offsets: str | None = Field(
        None,
        description="with `tunnelType=stream` and a tunnel: where its channels end: `latest`, or a JSON token; "
        "default: never",
    )
    ending_timestamp: datetime | None = Field(
        None,
        description="as `endingOffsets`: end before changes at this time or later; default: never",
    )
    max_rows_per_trigger: Amount | None = Field(
        None, description="approximate most rows of a micro-batch; default: unlimited"
    )
    max_bytes_per_trigger: ByteAmount | None = Field(
        None, description="approximate most bytes of a micro-batch; default: unlimited"
    )
    heartbeat_interval: Annotated[float, Field(ge=5, le=3_600)] = Field(
        30.0, description="seconds between two heartbeats of a client"
    )
    heartbeat_timeout: Annotated[float, Field(ge=10, le=86_400)] = Field(
        300.0,
        description="seconds without a heartbeat after which other clients get the client's channels",
    )
    on_error: Literal["park", "stop"] = Field(
        "park",
        description="`park`: a channel whose range fails repeatedly waits for `tunnel resume`, the others continue; "
        "`stop`: the first error ends `consume`",
    )
    max_retry_interval: Annotated[float, Field(ge=0.01, le=3_600)] = Field(
        10.0, description="longest pause before a failed range is retried, in seconds"
    )
    outage_timeout: Annotated[float, Field(ge=0, le=604_800)] | None = Field(
        None,
        description="seconds that store, source or `sharedLimit` may be unavailable before `consume` ends; default: "
        "unlimited (`sharedLimit` with `drained=True`: 60)",
    )
    shutdown_grace: Annotated[float, Field(ge=0, le=3_600)] = Field(
        8.0, description="seconds that ranges in progress have to finish after SIGTERM"
    )
    checkpoint_interval: Annotated[float, Field(gt=0, le=3_600)] = Field(
        5.0, description="approximate seconds between two checkpoints of a channel"
    )

    def model_post_init(self, _context: object) -> None:
        if self.heartbeat_timeout < 2 * self.heartbeat_interval:
            raise OptionError(
                f"option 'heartbeatTimeout' ({self.heartbeat_timeout:g} s) must be at least twice "
                f"'heartbeatInterval' ({self.heartbeat_interval:g} s), or one lost heartbeat ends a client",
                option="heartbeatTimeout",
                got=f"{self.heartbeat_timeout:g}",
            )
        for name, does in (
            ("starting_offsets", "begins with what is there"),
            ("starting_timestamp", "begins with what is there"),
            ("ending_offsets", "is read to its end"),
            ("ending_timestamp", "is read to its end"),
        ):
            if getattr(self, name) is not None and self.tunnel_type != "stream":
                option = type(self).model_fields[name].alias or name
                raise OptionError(
                    f"option {option!r} goes with tunnelType stream; {self.tunnel_type} {does}",
                    option=option,
                    got=str(getattr(self, name)),
                )
        for one, other in (
            (self.starting_offsets, self.starting_timestamp),
            (self.ending_offsets, self.ending_timestamp),
        ):
            if one is not None and other is not None:
                which = "starting" if other is self.starting_timestamp else "ending"
                raise OptionError(
                    f"options '{which}Offsets' and '{which}Timestamp' are given, and name one position: "
                    "omit one of them",
                    option=f"{which}Timestamp",
                )
        if self.tables is not None:
            self._check_tables(self.tables)
        if self.tunnel is not None and not self.tunnel.strip():
            raise OptionError(
                "option 'tunnel' is empty: give the tunnel's name, or omit the option",
                option="tunnel",
                got=self.tunnel,
            )

    def _check_tables(self, tables: str) -> None:
        for name, does, value in (
            ("tunnelType", "has no changes", self.tunnel_type == "base" and "base"),
            (
                "baseMode",
                "reads existing rows before the changes",
                self.base_mode == "initial" and "initial",
            ),
            ("cursorColumn", "follows one table", self.cursor_column),
        ):
            if value:
                raise OptionError(
                    f"option {name!r} got {value!r}, which {does}; 'tables' reads existing rows beside the changes "
                    f"only: omit {name!r}, or follow each table by 'dbtable'",
                    option=name,
                    got=value,
                )

    @field_validator("starting_timestamp", "ending_timestamp")
    @classmethod
    def _with_zone(cls, value: datetime | None) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value

    @property
    def type(self) -> TunnelType:
        return TunnelType(self.tunnel_type)

    @property
    def store(self) -> str | None:
        return None if self.tunnel_store is None else self.tunnel_store.get_secret_value()

    def limit(self) -> FeedLimit:
        """The limit of one micro-batch."""
        return FeedLimit(self.max_rows_per_trigger, self.max_bytes_per_trigger)

    def feed(self) -> FeedOptions:
        return FeedOptions(
            cursor_column=self.cursor_column,
            cursor_order=self.cursor_order,
            late_seconds=self.late_seconds,
            partitions=self.tunnel_channels,
            slot=self.slot,
            publication=self.publication,
            max_slot_lag=self.max_slot_lag,
            evolves=self.on_schema_change == "evolve",
            ignores=self.on_schema_change == "ignore",
            tables=self.tables,
            has_base=self.tunnel_type != "stream",
        )


def split_options(options: Mapping[str, Any]) -> tuple[TunnelOptions, dict[str, Any]]:
    """Split a stream's options into its own and the reader's.

    Raises:
        OptionError: a value that is not taken, or options that contradict each other.
    """
    ours = {key: value for key, value in options.items() if key.lower() in STREAM_OPTIONS}
    reader_options = {
        key: value for key, value in options.items() if key.lower() not in STREAM_OPTIONS
    }
    return TunnelOptions.parse(ours)[0], reader_options
