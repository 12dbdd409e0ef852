"""The change feed of a reader: the changes of a source since a token.

A feed has partitions, each with separate tokens: a token is plain JSON data that the feed alone
understands, and the range between two tokens names the same changes forever. Ranges are open at their
start and closed at their end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from spark_channel.errors import OptionError, SchemaError, SourceError, UnsupportedError
from spark_channel.planning import Split

__all__ = [
    "BASE",
    "BEGIN",
    "CLOSES",
    "CLOSE_ALL",
    "DELETES",
    "ENDS",
    "OPENS",
    "OPERATION",
    "READS",
    "TABLE",
    "TRUNCATES",
    "WRITES",
    "ChangeFeed",
    "FeedLag",
    "FeedLimit",
    "FeedOptions",
    "FollowsTables",
    "LogFacts",
    "Read",
    "RetainedLog",
    "RetainsLogs",
    "SplitReader",
    "TableLag",
    "Token",
    "change_schema",
    "has_base",
    "missing_source",
    "new_columns_advice",
    "row_fields",
]


Token = Mapping[str, Any]
"""A position in a change feed: plain JSON data, understood by the reader that made it."""

Read = Callable[[Split], Iterator[pa.RecordBatch]]
"""`Reader.read`, or one that shares something with the splits before."""
BASE = "base"
"""A name in tokens: how much of the existing rows was read beside the changes; without it, no more are to be read."""
TABLE = "_table"
"""The column with the name of a row's table, in batches of a feed of several."""
OPERATION = "_op"
"""The column that says what a row does to the row of its key."""
READS = ("read", "r")
"""A write of a row that was there before the changes."""
WRITES = ("insert", "update", "upsert", "create", "i", "u", "c", *READS)
"""The row is there afterwards, with these values."""
DELETES = ("delete", "d")
"""The row is gone afterwards."""
OPENS = ("open",)
"""The row is added, unless one of its key has no end (`ENDS`). Here and of a close, a key is without `_valid_from`."""
CLOSES = ("close",)
"""The row of this key that has no end gets that of this row."""
CLOSE_ALL = ("close_all",)
"""All rows that have no end get that of this row, which has nothing else."""
ENDS = ("_deleted_at", "_valid_to")
BEGIN = "_valid_from"
TRUNCATES = ("truncate", "t")
"""No row of before is there afterwards."""


class SplitReader(ABC):
    """Reads splits. `Reader` also makes them."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Executor, in a separate thread, any number of times per split. Batches in `schema()`.

        A generator. It must release its resources in `finally`, because the host closes it early when it needs
        no more rows. It runs in several threads of one process at the same time, each with its own split.

        Raises:
            SourceError: removed, unreadable, or a row that does not fit; the message names its position.
        """

    def reading(self) -> AbstractContextManager[Read]:
        """Executor: a context that gives one thread a `read` for several splits, one after another.

        It opens what they share, such as a connection, when first needed, and releases it at the end. The
        default shares nothing.
        """
        return nullcontext(self.read)


def has_base(token: Token) -> bool:
    """Whether existing rows are left to read beside the changes."""
    return BASE in token


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """The user's options of a feed; each feed uses those that apply to it.

    `cursor_column`: the column that only grows. `cursor_order`: "text" if it may be a column of texts.
    `late_seconds`: how long after their cursor value, or their time of change, rows and files may still come to
    light; None = the feed's default. `partitions`: how many partitions the feed should have, where it can choose.
    `slot` and `publication`: of logical replication. `max_slot_lag`: bytes of log that the slot may keep before the
    reading of existing rows stops. `evolves`: columns that the source gets or loses are no error of a feed that begins
    with the new ones, and whose log has rows with the old ones. `ignores`: nor are they of a feed that has begun: it
    leaves new ones out, and has NULL for lost ones. `tables`: the tables of a feed of several, as the user lists
    them. `has_base`: existing rows are asked for.
    """

    cursor_column: str | None = None
    cursor_order: str | None = None
    late_seconds: float | None = None
    partitions: int = 1
    slot: str | None = None
    publication: str | None = None
    max_slot_lag: int | None = None
    evolves: bool = False
    ignores: bool = False
    tables: str | None = None
    has_base: bool = False


@dataclass(frozen=True, slots=True)
class FeedLimit:
    """The most that a range should contain; None = no limit. A feed returns more where it cannot cut finer."""

    rows: int | None = None
    nbytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.nbytes is not None

    def most_rows(self, row_bytes: int) -> int | None:
        """Return the most rows that keep both limits, at least 1, where a row has `row_bytes`; None = no limit."""
        most = [] if self.rows is None else [self.rows]
        if self.nbytes is not None:
            most.append(max(1, self.nbytes // row_bytes))
        return min(most, default=None)


@dataclass(frozen=True, slots=True)
class TableLag:
    """One table of several. `stage`: `waits` for its existing rows to be read, reads its `base`, or its `changes` only;
    or was `dropped`.

    `changes` of the table after the token, `nbytes` of them as the log's decoder sends them, and `seconds` since the
    commit of the first one. `base_read`, `base_rows` and `base_chunks`: see `FeedLag`. None = not known.
    """

    name: str
    stage: str
    base_read: int | None = None
    base_rows: int | None = None
    base_chunks: int | None = None
    changes: int | None = None
    nbytes: int | None = None
    seconds: float | None = None

    @property
    def chunks(self) -> int | None:
        """See `FeedLag.chunks`."""
        return _chunks(self.base_chunks, self.base_read, self.base_rows)


@dataclass(frozen=True, slots=True)
class FeedLag:
    """The lag of a token; unknown values are None.

    `kept`: bytes of log that the source keeps for its reader. `base_read` and `base_rows`: existing rows that were read
    beside the changes, and how many there are, about; `base_chunks`: in how many chunks. None where the base is not
    read so, or is read. `base_held`: the source keeps so much that no chunks are read. `tables`: of a feed of several.
    `backfill_blocked_by`: see `ChangeFeed.backfill_blocked_by`.
    """

    rows: int | None = None
    nbytes: int | None = None
    seconds: float | None = None
    kept: int | None = None
    base_read: int | None = None
    base_rows: int | None = None
    base_chunks: int | None = None
    base_held: bool = False
    tables: tuple[TableLag, ...] = ()
    backfill_blocked_by: str = ""

    @property
    def chunks(self) -> int | None:
        """How many chunks there will be in all, if the others are as large as those that were read; None = unknown."""
        return _chunks(self.base_chunks, self.base_read, self.base_rows)


def _chunks(chunks: int | None, read: int | None, rows: int | None) -> int | None:
    if not chunks or not read or rows is None:
        return None
    return max(chunks + 1, -(-chunks * rows // read))


@dataclass(frozen=True, slots=True)
class RetainedLog:
    """The log that a source keeps for one reader. `kept`: bytes; None = not known.

    `named_by`: what reads from a slot of this name, at a place that has another name than this source.
    """

    slot: str
    is_active: bool
    kept: int | None
    named_by: str = ""


@runtime_checkable
class RetainsLogs(Protocol):
    """A reader whose source keeps its log for readers that it knows by name."""

    def retained_logs(self) -> list[RetainedLog]:
        """All of the reader's database, also those of other programs."""
        ...


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a server's log asks for, before it is followed.

    `missing`: rights and settings, each with what to do. `keeps`: which log the server keeps, and for how long.
    `bytes_per_second`: how much log it writes, on average; None = it does not say.
    """

    missing: tuple[str, ...]
    keeps: str
    bytes_per_second: float | None = None


@runtime_checkable
class FollowsTables(Protocol):
    """A reader whose log has the changes of several tables in one order."""

    def tables_feed(self, options: FeedOptions) -> "ChangeFeed":
        """Return a feed with `has_tables` of `FeedOptions.tables`; it ignores the table in the reader's own options."""
        ...

    def log_facts(self, slot: str | None) -> LogFacts:
        """Ask the server; changes nothing. `slot` is the replication slot that would be used.

        Raises:
            SourceError: the server does not answer.
        """
        ...


class ChangeFeed(SplitReader):
    """One source's changes. Plain data, pickled into tasks; used by one thread at a time on the driver."""

    can_evolve: ClassVar[bool] = False
    """Whether it takes `FeedOptions.evolves` and `ignores`."""
    has_tables: ClassVar[bool] = False
    """Whether each batch of `read` is of one of several tables: it has its table's columns, and those of `schema`, of
    which `TABLE` is one. `tables` names all that a range from a token may have."""
    range_seconds: ClassVar[float | None] = None
    """The longest time that a range should take, where a longer one would delay the changes in it."""
    has_one_schema: ClassVar[bool] = True
    """Whether a `SchemaError` about changes is of all of them; False: of a file, say, and the others can be read."""
    missing: SourceError | None = None
    """The error of a feed whose only table was dropped: it delivers only ranges that were already assigned. Call
    `changes` of such a range before `schema`."""
    reads_base: bool = True
    """Whether `latest` continues with existing rows beside the changes; False: its reader has paused that."""
    is_followed: bool = False
    """Whether this process alone plans and reads its ranges, one after another, until `release`: what it opens for one
    may stay open for the next."""
    base_held: bool = False
    """Whether the last call of `latest` planned changes, and no existing rows, since the source keeps more of its log
    for its reader than `FeedOptions.max_slot_lag` allows."""

    @property
    def waits_seconds(self) -> float:
        """For so long the newest changes wait for others that come to light late; 0 = they do not."""
        return 0.0

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of every batch of `read`, of `base` splits as of `changes`."""

    @abstractmethod
    def earliest(self) -> list[Token]:
        """The start of each partition: before the first change that the source still has."""

    @abstractmethod
    def now(self) -> list[Token]:
        """The present end of each partition. Earlier changes may still appear: see `settled`."""

    def end(self) -> list[Token]:
        """The present end of each partition, for a reader that has started before: creates nothing in the source."""
        return self.now()

    def end_of(self, token: Token) -> Token:
        """The present end of the partition of `token`, as `end`: all that was committed before is at or before it."""
        (end,) = self.end()
        return end

    def settled(self, upto: Sequence[Token]) -> None:
        """Wait until all that belongs up to these tokens, which `now` gave, has come to light.

        Asked before rows up to there are read, so that it passes while other things are done.
        """

    @abstractmethod
    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        """The end of the partition of `after`, or the position that `limit` allows; `after` itself without new rows.

        The result is not after `upto`, a token that `now`, `end` or `end_of` returned; it is `settled` then.

        Raises:
            SourceError: `after` is damaged, of another source, from the future, or no longer in the log.
            SchemaError: the source's columns have changed; names the column.
        """

    def at(self, time: datetime) -> list[Token]:
        """The position of each partition at `time`: exactly the changes at that time or later follow the token.

        Raises:
            OptionError: this feed does not support it.
        """
        raise OptionError(
            f"options 'startingTimestamp' and 'endingTimestamp' do not go with {type(self).__name__}, whose positions "
            "are not times: use 'startingOffsets' and 'endingOffsets'",
            option="startingTimestamp",
        )

    def reaches(self, token: Token, end: Token) -> bool:
        """Whether `token` is `end` or comes after it.

        Raises:
            OptionError: this feed does not support it.
        """
        raise OptionError(
            f"options 'endingOffsets' and 'endingTimestamp' do not go with {type(self).__name__}, whose positions "
            "cannot be compared: omit them",
            option="endingOffsets",
        )

    def before(
        self, after: Token, limit: FeedLimit, end: Token, upto: Token | None = None
    ) -> Token | None:
        """As `latest`, but never past `end`; None when everything up to `end` is at or before `after`, for good.

        `end` may lie ahead of what the source has now.
        """
        position = self.latest(after, limit, upto)
        if not self.reaches(position, end):
            return position
        cut = self.latest(after, limit, end)  # everything up to `end` exists, as before `position`
        return None if cut == after else cut

    def divide(self, token: Token) -> list[Token]:
        """Tokens of partitions that replace the one of `token` from there on: together they have its changes, each
        change once. Pure, and quick: called inside a transaction of the tunnel's store.

        Raises:
            UnsupportedError: this feed's partitions cannot be divided.
        """
        raise UnsupportedError(
            f"a channel of {type(self).__name__} cannot be split, since its changes have one order: "
            "feeds of files can be split, and tables by a cursor column"
        )

    def shared_look(self) -> AbstractContextManager[None]:
        """A context in which calls of `latest`, `before` and `lag`, one for each partition, may share one look at the
        source. The default shares nothing.
        """
        return nullcontext()

    def share(self, other: "ChangeFeed") -> None:
        """Use the connections of `other`, a feed of the same source in another thread. The default has its own."""

    def rest(self, *, ends: bool = False) -> None:
        """Close shared connections that no feed has used for a while; `ends`: all. Called from time to time."""

    @contextmanager
    def reading_ahead(self) -> Iterator[tuple[Read, Callable[[], None]]]:
        """As `reading`, for rows that wait in memory: the second part is called when all of them are processed but for
        the end of the last call of `read`, in any thread, and raises what is wrong with them.
        """
        with self.reading() as read:
            yield read, lambda: None

    @abstractmethod
    def changes(self, after: Token, upto: Token) -> list[Split]:
        """Splits that cover what changed after `after` up to and with `upto`, once; [] for nothing."""

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        """Splits that cover what was there at `upto`: with the changes after it, every row once or, for a
        source that changes rows, its last state at the end.
        """
        raise NotImplementedError

    def with_base(self, tokens: Sequence[Token]) -> list[Token] | None:
        """Tokens in the place of `tokens`, which `now` gave, whose ranges have the existing rows beside the changes.

        None: this feed, or this source, has none; `base` is read before the changes then.
        """
        return None

    def joining(self, table: str, *, again: bool) -> Callable[[Token], Token]:
        """Return a function that adds a table to a token; `again`: one that has its existing rows read again.

        The function is pure and quick: it is called inside a transaction of the tunnel's store. It raises
        `TunnelError` where the token already has the table, or (`again`) does not have it.

        Raises:
            UnsupportedError: a feed of one table. SourceError, OptionError: the table cannot be followed.
        """
        raise UnsupportedError(
            "this tunnel is of one table, and takes no others: make one with option 'tables'; `spark-channel tunnel "
            "reset` reads its one table again"
        )

    def leaving(self, table: str) -> Callable[[Token], Token]:
        """Return a function that removes a table from a token. The source may have dropped the table.

        Raises:
            UnsupportedError: a feed of one table. OptionError: not a table's name.
        """
        raise UnsupportedError(
            "this tunnel is of one table, which cannot be removed from it: `spark-channel tunnel delete` removes the "
            "tunnel"
        )

    def backfill_blocked_by(self, token: Token) -> str:
        """Return why existing rows are not read beside the changes at `token`. Asks the source.

        Empty: they are read, or the reason is not known.
        """
        return ""

    def tables(self, token: Token) -> Collection[str]:
        """The names of the tables that a token of a feed of several has; none of any other token."""
        return ()

    def is_passing(self, error: BaseException) -> bool:
        """Whether `error`, which a call of this feed raised, is of the moment: a connection was lost, or another
        holds a lock. The same call may succeed later; all but `read` are then made again with back-off.
        """
        return False

    def settle(self, upto: Token) -> None:
        """Everything up to `upto` is done with for good: the source may forget it."""

    @abstractmethod
    def lag(self, token: Token) -> FeedLag:
        """The lag of `token`."""

    def release(self) -> None:
        """Close what is held open for the next range: after an error, and at the end. Another thread may be reading."""

    def close(self) -> None:
        """The tunnel is deleted: release what the source holds for it."""


def change_schema(columns: pa.Schema) -> pa.Schema:
    """The table's columns, all nullable (a truncate has none), with `_op`, `_lsn` and `_commit_ts`.

    `_lsn` is the position in the log, as the database writes it.
    """
    return pa.schema(
        [
            *(pa.field(column.name, column.type) for column in columns),
            pa.field(OPERATION, pa.string()),
            pa.field("_lsn", pa.string()),
            pa.field("_commit_ts", pa.timestamp("us", "UTC")),
        ]
    )


def new_columns_advice(*, goes_on: bool) -> str:
    """Return advice for a table whose columns changed after its stream began. `goes_on`: its log may have both."""
    if goes_on:
        return "Start it again: it continues where it is, with the columns that the table has then (onSchemaChange)"
    return (
        "Start it again with onSchemaChange=evolve to continue with its new columns; or begin a new stream, or reset "
        "the tunnel, to read all rows again"
    )


def missing_source(error: SourceError, advice: str = "") -> SourceError:
    """Return the error that ends a stream whose table was dropped. `error` names the table; `advice`: a remedy."""
    return SourceError(
        f"{error}. Ranges of its stream that were assigned before are delivered from the log. "
        f"{advice}Remove the tunnel (`spark-channel tunnel delete`); or reset it, or begin with a new checkpoint "
        "directory, when there is a new table of that name"
    )


def row_fields(schema: pa.Schema) -> list[pa.Field]:
    """The columns of the rows themselves.

    Raises:
        SchemaError: nothing says what each row does.
    """
    if OPERATION not in schema.names:
        raise SchemaError(
            f"writeMode apply needs column {OPERATION!r}, which says what each row does; the rows have "
            f"{', '.join(schema.names)}"
        )
    return [field for field in schema if field.name != OPERATION]
