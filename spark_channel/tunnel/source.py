"""The source of a tunnel: its change feed, and the channels that it is divided into."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_channel import serialization
from spark_channel.connectors import Reader, find_connector
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import ChangeFeed, FollowsTables
from spark_channel.connectors.base.registry import describe, experiment_remark
from spark_channel.errors import OptionError, TunnelError, UnsupportedError
from spark_channel.plain_text import log_of
from spark_channel.planning import Split
from spark_channel.tunnel.options import split_options
from spark_channel.tunnel.records import UNTIL, Channel, TunnelRecord, TunnelType

__all__ = [
    "READ",
    "StreamSource",
    "base_split",
    "held_base",
    "paused_base",
    "place_of",
    "slot_of",
]

_log = log_of(__name__)

NOT_READ: Token = {"done": False}
READ: Token = {"done": True}
"""The two positions in a base channel."""
_SLOT = "; slot="


class StreamSource:
    """A source as options describe it: its reader, its feed, and what distinguishes it from other sources.

    `experiment`: a warning to log once, if the connector is experimental.

    Raises:
        ChannelError: options that do not fit, or a source without a change feed.
    """

    def __init__(self, options: Mapping[str, Any], schema: pa.Schema | None = None) -> None:
        self.options, self.reader_options = split_options(options)
        tables = self.options.tables
        if tables is not None:
            for name in self.reader_options:
                if name.lower() in ("dbtable", "query"):
                    raise OptionError(
                        f"options 'tables' and {name!r} exclude each other: give one", option=name
                    )
            self.reader_options["dbtable"] = tables  # no reader looks it up
        connector = find_connector(self.reader_options, "reader")
        reader, warnings = connector.reader_with(self.reader_options)
        for warning in warnings:
            _log.warning(warning)
        self.experiment = experiment_remark([(connector, self.reader_options)])
        self.reader: Reader = reader if schema is None else reader.with_schema(schema)
        self.feed: ChangeFeed = self._feed(connector.name)
        mode = self.options.on_schema_change
        if mode != "fail" and not self.feed.can_evolve:
            raise OptionError(
                f"option 'onSchemaChange' got {mode!r}, and only a stream of a database's log "
                "can take columns that change: omit it, or follow the table by 'slot' or 'binlog'",
                option="onSchemaChange",
                got=mode,
                takes="fail",
            )
        location = describe(reader.options)
        if tables is not None:  # which ones it has is in its tokens, and changes
            location = f"{location.removesuffix(f'#{tables}')}#(tables)"
        about = [f"{connector.name} {location}"]
        settings = {
            name: getattr(reader.options, name, None) for name in ("columns", "where", "query")
        }
        about += [f"{name}={value}" for name, value in settings.items() if value]
        about += [f"cursor={self.options.cursor_column}"] if self.options.cursor_column else []
        self.about = "; ".join(about)
        slot = self.options.slot
        self._recorded = self.about if slot is None else f"{self.about}{_SLOT}{slot}"

    def _feed(self, connector: str) -> ChangeFeed:
        settings = self.options.feed()
        if settings.tables is None:
            return self.reader.feed(settings)
        if not isinstance(self.reader, FollowsTables):
            raise UnsupportedError(
                f"option 'tables' got {settings.tables!r}, and {connector} follows one table: name it with 'dbtable'. "
                "PostgreSQL follows several by one slot, and MySQL and MariaDB by the binary log"
            )
        return self.reader.tables_feed(settings)

    def schema(self) -> pa.Schema:
        """The columns of all its rows.

        Raises:
            UnsupportedError: it has several tables.
        """
        if self.feed.has_tables:
            raise UnsupportedError(
                "option 'tables' gives rows of several tables, and a streaming DataFrame has one schema: use "
                "spark_channel.tunnel.Tunnel(...).consume, or follow each table by 'dbtable' and its own slot"
            )
        return self.feed.schema()

    @property
    def keeps_columns(self) -> bool:
        """Whether what began with other columns than those of now is refused."""
        return self.options.on_schema_change == "fail"

    def schema_text(self) -> str:
        """The columns as text, to be compared."""
        return ", ".join(f"{field.name} {field.type}" for field in self.feed.schema())

    def record(self, name: str) -> TunnelRecord:
        """A new tunnel's definition."""
        kind = self.options.type
        return TunnelRecord(
            name, uuid.uuid4().hex[:16], kind, self._recorded, self.schema_text(), 0.0
        )

    def channels(self, advice: int) -> list[Channel]:
        """A new tunnel's channels: `base` splits first, then the feed's partitions, which wait for them."""
        kind = self.options.type
        ends: Sequence[Token] | None = None
        if kind is TunnelType.STREAM:
            tokens, splits = self._start(), []
            ends = self._ends(tokens)
        else:
            tokens = self.feed.now()
            beside = self._beside(tokens) if kind is TunnelType.BASE_AND_STREAM else None
            splits = self.feed.base(tokens, advice) if beside is None else []
            self.feed.settled(tokens)
            tokens = tokens if beside is None else beside
        channels = [
            Channel(f"base-{index:04d}", index, {"split": _packed(split)}, token=NOT_READ)
            for index, split in enumerate(splits)
        ]
        if kind is not TunnelType.BASE:
            parents = tuple(channel.id for channel in channels)
            channels += [
                Channel(
                    f"stream-{number}",
                    len(parents) + number,
                    {} if ends is None else {UNTIL: ends[number]},
                    parents,
                    token=token,
                )
                for number, token in enumerate(tokens)
            ]
        return channels

    def _beside(self, tokens: Sequence[Token]) -> Sequence[Token] | None:
        """Tokens of ranges that have the base beside the changes; None = the base is read first."""
        mode = self.options.base_mode
        base_tokens = None if mode == "initial" else self.feed.with_base(tokens)
        if base_tokens is None and mode == "incremental":
            raise OptionError(
                "option 'baseMode' got 'incremental', and this source cannot be read beside its changes: "
                "omit the option to read its existing rows first. A log line says why",
                option="baseMode",
                got=mode,
            )
        return base_tokens

    def check(self, record: TunnelRecord) -> None:
        """Check that `record` is a tunnel of this source and its present columns.

        Raises:
            TunnelError: of another source, or of another schema; says what differs.
        """
        self.check_source(record)
        if self.feed.missing is not None:
            # Assigned ranges have the columns that the table had then.
            return
        now = self.schema_text()
        if record.schema != now and self.keeps_columns:
            advice = "Reset the tunnel to take the new columns"
            if self.feed.can_evolve:
                advice += ", or continue with them by option 'onSchemaChange' evolve"
            raise TunnelError(
                f"tunnel {record.name!r} was made for columns ({record.schema}), and its source has ({now}) "
                f"now: {_difference(record.schema, now)}. {advice}"
            )

    def check_source(self, record: TunnelRecord) -> None:
        """The same, whatever columns it has now.

        Raises:
            TunnelError: of another source; says what differs.
        """
        if record.source != self._recorded:
            raise TunnelError(
                f"tunnel {record.name!r} is of {record.source}, and the options name {self._recorded}: name "
                "another tunnel, or make one with `spark-channel tunnel create`"
            )

    def _start(self) -> Sequence[Token]:
        if self.options.starting_timestamp is not None:
            return self.feed.at(self.options.starting_timestamp)
        text = (self.options.starting_offsets or "latest").strip()
        if text == "latest":
            return self.feed.now()
        if text == "earliest":
            return self.feed.earliest()
        tokens = _given_tokens("startingOffsets", text, "latest, earliest")
        with self.feed.shared_look():
            for token in tokens:
                self.feed.lag(token)  # raises now for a damaged token
        return tokens

    def _ends(self, starts: Sequence[Token]) -> Sequence[Token] | None:
        """Where each channel ends for good; None: never."""
        text = (self.options.ending_offsets or "").strip()
        if self.options.ending_timestamp is not None:
            name, ends = "endingTimestamp", self.feed.at(self.options.ending_timestamp)
        elif not text:
            return None
        else:
            name = "endingOffsets"
            ends = self.feed.now() if text == "latest" else _given_tokens(name, text, "latest")
        if len(ends) != len(starts):
            raise OptionError(
                f"option {name!r} names {len(ends)} positions for {len(starts)} channels: give one for each",
                option=name,
                got=text,
            )
        for start, end in zip(starts, ends, strict=True):
            self.feed.reaches(start, end)  # raises now for a damaged token
        return ends


def _given_tokens(name: str, text: str, words: str) -> list[Token]:
    takes = f"{words}, or a JSON token (or a list of them, one per channel)"
    try:
        parsed = serialization.load_tagged(text)
    except ValueError:
        parsed = None
    tokens = parsed if isinstance(parsed, list) else [parsed]
    if not all(isinstance(token, dict) and token for token in tokens):
        raise OptionError(
            f"option {name!r} got {text!r}; it takes {takes}", option=name, got=text, takes=takes
        )
    return tokens


def slot_of(record: TunnelRecord) -> str:
    """Return the replication slot that the source holds for the tunnel; empty without one, or when it is unknown."""
    return record.source.rpartition(_SLOT)[2] if _SLOT in record.source else ""


def place_of(about: str) -> str:
    """Return the connector and server in a record's description of its source, without the table."""
    return about.partition("#")[0]


def base_split(channel: Channel) -> Split:
    """The split of a base channel."""
    packed = channel.params["split"]
    return Split(packed["params"], packed["rows"], packed["nbytes"])


def paused_base(source: str) -> TunnelError:
    """Why a reader that is to end when all is read ends with existing rows left."""
    return TunnelError(
        f"all changes of {source} are read, and not all existing rows, whose reading is paused: by "
        "`spark-channel tunnel pause-base`, which `resume-base` ends, or by option 'maxSlotLag', "
        "while the slot keeps more WAL than that. "
        "Start it again then: it continues where it is"
    )


def held_base(source: str, seconds: float) -> TunnelError:
    """Why a reader that is to end when all is read ends with existing rows left, whose reading the source delays."""
    return TunnelError(
        f"all changes of {source} are read, but not all existing rows: for {seconds:g} s, "
        "the slot has kept more WAL than option 'maxSlotLag' allows. Either a transaction runs for long, "
        "or the server writes that much in about 15 s. "
        "End the transaction (the oldest xact_start in pg_stat_activity), or raise 'maxSlotLag', "
        "and start the reader again: it continues where it is"
    )


def _packed(split: Split) -> dict[str, Any]:
    return {"params": dict(split.params), "rows": split.rows, "nbytes": split.nbytes}


def _difference(was: str, now: str) -> str:
    old, new = was.split(", "), now.split(", ")
    lost = [name for name in old if name not in new]
    added = [name for name in new if name not in old]
    parts = [f"without {', '.join(lost)}"] if lost else []
    parts += [f"with {', '.join(added)}"] if added else []
    return " and ".join(parts) or "in another order"
