"""The contract of a connector: a `Reader` and a `Writer`, which never see Spark.

One reader or writer object is made on the driver from its parsed options, pickled, and used in other
processes; it holds plain data, and opens connections and files only inside the calls below.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import pyarrow as pa

from spark_channel.arrow_schema import TextLengths
from spark_channel.connectors.base.claims import Follows, HeldClaim, StreamNote, StreamProgress
from spark_channel.connectors.base.feed import ChangeFeed, FeedOptions, Read, SplitReader, Token
from spark_channel.connectors.base.overlap import FreeConnections, Stored
from spark_channel.errors import BatchRefusedError, ChannelError, TargetError, UnsupportedError
from spark_channel.options import CommitMode, ReadOptions, WriteOptions
from spark_channel.planning import Split

if TYPE_CHECKING:
    from spark_channel.connectors.base.compaction import Compaction
    from spark_channel.connectors.base.definition import Defines, TableDefinition
    from spark_channel.connectors.base.health import Health
    from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim

__all__ = [
    "NATIVE",
    "ColumnFact",
    "DirtyRow",
    "FetchSize",
    "Increment",
    "NativeRows",
    "PartialWrite",
    "Read",
    "Reader",
    "Receipt",
    "RowTally",
    "SourceTable",
    "SplitReader",
    "TaskWriter",
    "Token",
    "ValueCheck",
    "WriteContext",
    "WritePlan",
    "Writer",
    "bisect_refused",
    "is_row_refusal",
    "native_batch",
    "native_data",
]


NATIVE = pa.schema([pa.field("row", pa.large_binary(), nullable=False)])
"""The schema of batches of such rows. Each value is a whole row: they are counted, limited and sliced as any."""


@dataclass(frozen=True, slots=True)
class NativeRows:
    """The format of a reader's native rows, on which source and target must agree before a row moves.

    `schema` is what the reader would give of the same rows in Arrow. `types` are the columns' types in the words of
    `system`.
    """

    system: str
    schema: pa.Schema
    types: tuple[Any, ...]


def native_batch(data: bytes | memoryview, bounds: Any) -> pa.RecordBatch:
    """The rows that lie in `data` between each two neighbours of `bounds` (int64); copies nothing."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    rows = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers, null_count=0)
    return pa.RecordBatch.from_arrays([rows], schema=NATIVE)


def native_data(batch: pa.RecordBatch) -> memoryview:
    """The bytes of all rows of a batch, one behind the other; copies nothing."""
    rows = batch.column(0)
    if not len(rows):
        return memoryview(b"")
    _, bounds, data = rows.buffers()
    ends = memoryview(bounds).cast("q")
    return memoryview(data)[ends[rows.offset] : ends[rows.offset + len(rows)]]


@dataclass(frozen=True, slots=True)
class FetchSize:
    """The most that one fetch from the source should return, so that the limit slows the source.

    None = the connector's choice. The channel slices larger batches, but the source has already
    sent them. `guessed`: no limit says how fast the job will be. `per_second`: how many fetches are the channel's part
    of the limit.
    """

    rows: int | None = None
    nbytes: int | None = None
    guessed: bool = False
    per_second: int = 2

    @property
    def rows_per_second(self) -> float:
        """The channel's part of the limit; 0.0 = unknown."""
        return 0.0 if self.rows is None or self.guessed else float(self.per_second * self.rows)

    def lasts(self, split: Split) -> float | None:
        """Seconds for which the rows of `split` last at the channel's part of the limit; None = unknown."""
        lasts = [
            amount / (self.per_second * most)
            for amount, most in ((split.rows, self.rows), (split.nbytes, self.nbytes))
            if amount is not None and most is not None
        ]
        return max(lasts, default=None)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of a catalog. `dbtable` is its name as the option takes it; `rows`, `nbytes`: the catalog's estimates.

    `own_rows` is the condition of its rows that are not of tables that inherit from it; "" = no table does.
    `is_elsewhere`: it is in another database than the one that the url names.
    """

    schema: str
    name: str
    dbtable: str
    rows: int | None = None
    nbytes: int | None = None
    own_rows: str = ""
    is_elsewhere: bool = False

    @property
    def label(self) -> str:
        """The table, for people."""
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, slots=True)
class ColumnFact:
    """A column of a table, as its catalog has it now.

    `number` stays the same when the column is renamed, and no other column ever has it; "" = the catalog has none.
    `filled`: rows that were there before the column may have a value in it. `altered` is another text after each
    statement that may change its values, and `rows` after each that rewrites all rows of the table; "" = not known.
    `types` has the parts of its type's definition, such as an enum's labels: one that is another one under its name
    changes how existing values are read, without a change of their rows.
    """

    number: str
    filled: bool
    altered: str = ""
    rows: str = ""
    types: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Increment:
    """The rows of a table that a batch of a stream adds: those for which the SQL `condition` is true.

    `position` is the batch's; None = there are no new rows. A row up to it may become visible `waits_seconds` later.
    `went_back`: all rows are below the position that was given: the last ones were deleted, or the table is another.
    """

    position: int | None
    condition: str
    waits_seconds: float
    went_back: bool = False


class Reader(SplitReader):
    """Turns one source into splits and batches.

    `Options` is its option model. The host sets `fetch_size` before `read`, from the limit; `native` is set, too,
    by a transfer whose writer accepts this reader's `native_rows`: then `read` returns batches of `NATIVE`.
    """

    Options: ClassVar[type[ReadOptions]] = ReadOptions
    fetch_size: FetchSize = FetchSize()
    schema_is_own: bool = False
    """Set by the host: what `with_schema` was given is what `schema()` said, and no wish of the user's."""
    native: bool = False
    native_system: ClassVar[str] = ""
    """The system of its native rows; "" = it has none."""
    no_native: str = ""
    """After `native_rows` returned None: why, for people."""
    has_other_writers: ClassVar[bool] = True
    """Whether another process may write what this one has open."""
    stored_is_asked: bool = True
    """Set by the host: `stored` is called later, so that `split` may look for it."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Driver. The schema of every batch, after `columns`. May read the source.

        Raises:
            SourceError: missing or unreadable. SchemaError: a column that cannot be carried.
        """

    def with_schema(self, schema: pa.Schema) -> Self:
        """Driver. The reader that returns batches of `schema`: the user's, or `schema()`.

        The host casts the batches of `read` and selects their columns by name, so the default is this reader.
        """
        return self

    def hold(self) -> AbstractContextManager[None]:
        """Driver, only in a transfer: a context around `split` and every `read`. Keeps open what all splits share.

        An example is a database's exported snapshot. The splits contain what executors need of it.
        """
        return nullcontext()

    def tables(self) -> list[SourceTable]:
        """Driver. The tables of the database that this role may see, except those of the system and of spark-channel.

        Raises:
            UnsupportedError: the source has no catalog of tables.
        """
        raise UnsupportedError(
            f"{type(self).__name__} has no catalog of tables; it reads one table, folder or topic"
        )

    def named_tables(self, labels: Collection[str]) -> list[SourceTable]:
        """Driver. Those of `tables` that have one of these labels; others may be among them.

        A reader whose catalog can look up a name overrides it: three tables of many cost what three of few do.
        """
        return self.tables()

    def primary_key(self) -> tuple[str, ...]:
        """Driver. The columns of the table's primary key; () = it has none, or the source knows no keys."""
        return ()

    def definition(self, *, keys_only: bool = False) -> "TableDefinition | None":
        """Driver. The definition of the table that is read; None = it reads no table, or the source has no such.

        `keys_only`: NOT NULL and the primary key are enough.
        """
        return None

    def definitions(self, readers: Sequence["Reader"]) -> "list[TableDefinition | None]":
        """Driver. The `definition` of each of `readers`, whose options are this one's, but for the table's name.

        A reader whose catalog describes several tables by one statement overrides it.
        """
        return [reader.definition() for reader in readers]

    def column_types(self) -> Mapping[str, pa.DataType]:
        """Driver. Return the types of the columns that have one; a column that cannot be carried is left out.

        Raises:
            SourceError: missing or unreadable.
        """
        return {field.name: field.type for field in self.schema()}

    def column_facts(self) -> Mapping[str, ColumnFact]:
        """Driver. Return each column as the catalog has it now; {} = the source has no such catalog."""
        return {}

    def unlogged(self) -> Sequence[str]:
        """Driver. Columns with values that the log leaves out of an update which does not change them."""
        return ()

    def increment(self, column: str, after: int | None, *, again: bool) -> Increment:
        """Driver. The rows that are past position `after` of a column that grows; None = all.

        `again`: the write distinguishes rows, so that rows at `after` may be read again.

        Raises:
            UnsupportedError: the source has no such columns. OptionError, SchemaError: this one is not such a column.
        """
        raise UnsupportedError(f"{type(self).__name__} cannot read the new rows of a table alone")

    @abstractmethod
    def split(self, advice: int) -> list[Split]:
        """Driver, after `schema`. Splits that cover the source once, of about equal rows.

        `advice` is the planner's preferred number; more or fewer are allowed. Empty source: [].
        """

    def may_be_finer(self, splits: Sequence[Split]) -> bool:
        """Driver, after `split`. Whether more and smaller splits than these would cost the source no more."""
        return False

    def joined(self, splits: Sequence[Split]) -> Sequence[Split]:
        """Driver, after `split`, in a read through Spark without option `channels`: one split where the rows are few.

        A Spark task takes longer to start than to read a few thousand rows.
        """
        return splits

    def remarks(self, splits: Sequence[Split]) -> Sequence[str]:
        """Driver, after `split`, with `fetch_size` set: messages for the user before the read starts."""
        return ()

    def native_rows(self, splits: Sequence[Split]) -> NativeRows | None:
        """Driver, only in a transfer without steps, after `split`. What `read` could return instead of Arrow values.

        None = nothing else, for these splits with this `fetch_size`.
        """
        return None

    def has_values(self, columns: Sequence[str]) -> bool:
        """Driver. Whether a row may have a value other than NULL in one of the columns."""
        return True

    def lasts(self, split: Split) -> bool:
        """Whether `split` returns the same splits in a later run, after `hold` has ended."""
        return True

    def resource_mark(self, split: Split) -> str | None:
        """The resource (a host) that reading `split` loads; None = no mark."""
        return None

    def free_connections(self) -> FreeConnections | None:
        """Driver. How many more connections the server takes from this login now; None = not known, or no bound."""
        return None

    def stored(self) -> Stored | None:
        """Driver. Where the rows come from, so that a write can find that it goes there, too; None = not known."""
        return None

    def health(self) -> "Health | None":
        """Executor. The health check of the source, for option `protect`; None = without one. Does not connect yet."""
        return None

    def feed(self, options: FeedOptions) -> ChangeFeed:
        """Stream. The source's changes from now on, or since a token.

        Raises:
            UnsupportedError: it has no change feed.
            OptionError: options that do not fit the source.
        """
        raise UnsupportedError(f"{type(self).__name__} has no change feed; it reads in batch only")


@dataclass(frozen=True, slots=True)
class WriteContext:
    """Identifies a write. `job` is unique to this run.

    `commit` is None if the user did not set it. `txn` is a transaction id's name and version. `stream` is a streaming
    query (or a tunnel channel) and the number of its batch: numbers grow, and each is published once; None is the last
    batch once more, after `follows`, with the rows that belong to it by now. `resume` is the
    epoch of `PartialWrite`, of a run that continues what that one committed. `native`: the rows can be sent in this
    form, if the plan accepts it. `text_lengths`: how long the source's columns let their texts be, by the names of the
    rows' columns. `reads`: where the rows come from, as far as that is known; `reads_surely`: they do, and not only
    perhaps. `follows`: the stream's batch is published only after that one. `alone`: one task brings all rows.
    `one_pass`: that task may also publish them, see `Writer.one_pass_rows`.
    `gathers`: few rows of several tasks become one file, of a writer that makes files.
    `definition`: how the one table is defined whose rows come unchanged; None = they come from elsewhere.
    `leaves_builds`: a later step makes the indexes and constraints of a new table.
    """

    job: str
    commit: CommitMode | None = None
    overwrite: bool = False
    txn: tuple[str, int] | None = None
    native: NativeRows | None = None
    stream: tuple[str, int | None] | None = None
    resume: int | None = None
    text_lengths: TextLengths = field(default_factory=dict, hash=False)
    reads: tuple[Stored, ...] = ()
    reads_surely: bool = True
    follows: Follows | None = None
    alone: bool = False
    one_pass: bool = False
    gathers: bool = False
    definition: "Defines | None" = field(default=None, hash=False)
    leaves_builds: bool = False


@dataclass(frozen=True)
class WritePlan:
    """The plan that `Writer.prepare` returns, picklable. Connectors subclass it with their own fields.

    `published_at`: the time the same job, or the same `txn`, was published before; then nothing is written.
    `native`: the tasks receive the context's native rows, and nothing else. `held` is the claim under which the
    rows are written, of a writer that keeps claims. `stored`: a task must not commit rows that it read from there.
    `one_pass`: the only task publishes its rows, in the transaction that writes them. `gathers` as the context has it.
    """

    job: str
    schema: pa.Schema
    commit: CommitMode
    overwrite: bool = False
    txn: tuple[str, int] | None = None
    published_at: str | None = None
    native: bool = False
    held: HeldClaim | None = None
    stored: Stored | None = None
    one_pass: bool = False
    gathers: bool = False

    @property
    def at_least_once(self) -> bool:
        """Whether nothing keeps the rows of a task (with `job`: of a job) that is run again from being added twice."""
        return False

    @property
    def arriving(self) -> pa.Schema:
        """The schema of the batches that a task receives."""
        return NATIVE if self.native else self.schema


@dataclass(frozen=True, slots=True)
class DirtyRow:
    """One row that the target refused: its values as JSON text, and why."""

    row: str
    reason: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The rows that one attempt of a task staged or committed. Plain data, which is sent to the driver.

    `details` belongs to the connector (file names, row ranges); `dirty_reasons` counts refused rows by kind of reason.
    """

    task: int
    attempt: int
    rows: int
    nbytes: int
    details: Mapping[str, Any] = field(default_factory=dict)
    dirty_rows: int = 0
    dirty_samples: tuple[DirtyRow, ...] = ()
    dirty_reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class RowTally:
    """Counts the rows of one attempt, and ensures that it ends once. A `TaskWriter` has one, and checks it first."""

    task: int
    attempt: int
    rows: int = 0
    nbytes: int = 0
    ended: bool = False

    def check_open(self) -> None:
        """Check that the attempt is open.

        Raises:
            TargetError: it has ended.
        """
        if self.ended:
            raise TargetError(
                f"task {self.task}, attempt {self.attempt} has ended: open another attempt"
            )

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch.

        Raises:
            TargetError: the attempt has ended.
        """
        self.check_open()
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes

    def receipt(self, **details: Any) -> Receipt:
        """End the attempt. Returns what it accepted, with the connector's own `details`.

        Raises:
            TargetError: it has ended before.
        """
        self.check_open()
        self.ended = True
        return Receipt(self.task, self.attempt, self.rows, self.nbytes, details)


@dataclass(frozen=True, slots=True)
class PartialWrite:
    """A target's record of a `commit=task` run that did not end: its name and its committed tasks.

    `plan` is the text given to `Writer.keep`; None = none. `epoch` is the value for `WriteContext.resume`.
    """

    job: str
    plan: str | None
    receipts: tuple[Receipt, ...]
    epoch: int | None = None


class ValueCheck(Protocol):
    """What the columns of a target hold, beside their Arrow types: lengths, digits, members. Picklable."""

    def holds(self, name: str, values: pa.Array) -> bool:
        """Whether column `name` holds all `values`, unchanged."""


class TaskWriter(ABC):
    """One attempt of one task. Used by one thread; ends with exactly one of `close`, `rollback`.

    The host sets `tolerant` before the first `write` when dirty rows are allowed, and then `refused`, too. A writer
    that can check rows only in `close` calls `refused` for each row that the target refuses (a batch of one row in
    the plan's schema, and the reason); it raises when there are too many. Other writers do not call it.
    """

    tolerant: bool = False
    refused: Callable[[pa.RecordBatch, str], None] | None = None
    overlapped: bool = False
    """The host reads the next task's rows while `close` runs, or this is the last task of many. Under a limit it may
    then spread its work."""
    arrived_seconds: float = 0.0
    """How long the host paid for this task's rows, from when those of the task before were paid; 0.0 = not known. That
    may begin before the writer is opened. Set before `close`."""
    arrived_parts: Sequence[tuple[float, float]] = ()
    """(part of the rows, part of that time in which they were paid), between (0, 0) and (1, 1); empty = evenly. The
    speed of a task changes when another one begins or ends."""
    spreads: bool = False
    """Whether `close` brings the rows to the target over nearly the time in which they came, if it is `overlapped`. The
    host then calls it as long after the rows came for one task as for another."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Accept a batch of the schema `plan.arriving`. It may be kept until `flush` or `close`.

        With `tolerant` (dirty rows are allowed) the target must have checked the batch on return.

        Raises:
            BatchRefusedError: the target refuses data in it and stored none of it (a savepoint, if the
                target has them); the writer stays usable. Any other error ends the attempt.
        """

    def flush(self) -> None:  # noqa: B027 - optional: a writer that buffers nothing has nothing to do
        """Send all accepted batches to the target or to staging."""

    @abstractmethod
    def close(self) -> Receipt:
        """Finish the attempt: staged and durable (`job`), or committed with a record of the task (`task`)."""

    @abstractmethod
    def rollback(self) -> None:
        """Discard the attempt, without leftovers. Safe after a failed `write` or `close`, and twice."""


class Writer(ABC):
    """Writes batches to one target. Spark may run each task more than once, at the same time."""

    Options: ClassVar[type[WriteOptions]] = WriteOptions

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    native_system: str = ""
    """The system whose native rows it takes; "" = it takes none."""
    makes_files: ClassVar[bool] = False
    """Whether each task makes separate files, so that few rows by many tasks are many small files."""
    left_out: tuple[str, ...] = ()
    """Driver, after `prepare` or `rehearse`. What the new table lacks of its source's definition, for people."""
    renamed: tuple[str, ...] = ()
    """Driver, likewise. The parts of the new table that have other names than the source's, and these names."""
    builds: tuple[str, ...] = ()
    """Driver, likewise. The indexes and constraints of the new table, which no limit slows down."""
    on_build: Callable[[str], None] | None = None
    """Driver, in `commit`: called with each of `builds` when it begins, and with "" when all are there."""

    @property
    def task_seconds(self) -> float | None:
        """Driver, only in a transfer. How long a task should last at most under a limit; None = it does not matter.

        There are more and smaller tasks then, where the source can be split so.
        """
        return None

    @property
    def one_pass_rows(self) -> int | None:
        """Driver, only in a transfer. How many rows one task may write and publish in one transaction; None = none.

        Opens nothing. `prepare` decides, see `WritePlan.one_pass`: it may stage the rows of that task all the same.
        """
        return None

    def exists(self) -> bool | None:
        """Driver, before `prepare`. Whether the target exists, according to its catalog; None = unknown."""
        return None

    def is_parent(self) -> bool:
        """Driver, before `prepare`. Whether other tables inherit from the target, which keep their rows."""
        return False

    def value_check(self, schema: pa.Schema) -> ValueCheck | None:
        """Driver, before `prepare`. What the target's columns hold of rows in `schema`; None = their types say all.

        A value that only the server can judge, as by a CHECK of a domain, may pass.
        """
        return None

    def stored(self) -> Stored | None:
        """Driver, before `prepare`. Where the rows go, if the target exists; None = not known, or nowhere yet."""
        return None

    def asks_reads(self, commit: CommitMode | None) -> bool:
        """Whether `prepare` looks at the context's `reads` with option `commit`."""
        return True

    def begin(self) -> None:  # noqa: B027 - optional: most targets have nothing to run
        """Driver, once, before `prepare`: runs what the user wants done first. A transfer calls it before it reads.

        It may create the source's tables, or the target. It is not part of the write, and is never undone.
        """

    def is_refusal(self, error: BaseException) -> bool:
        """Whether a row is the matter of what a writing call raised, and not the target as a whole."""
        return isinstance(error, BatchRefusedError)

    def existing_rows(self) -> int | None:
        """Driver, before `prepare`. The target's rows, counted up to `MOST_COUNTED` and one more; None: unknown."""
        return None

    def foreign_content(self, schema: pa.Schema) -> str:
        """Driver, before `prepare` of an overwrite. What of others goes with it, for people; "" = nothing, or unknown.

        What a write of spark-channel made is not of others. `schema` is that of the rows.
        """
        return ""

    def rehearse(self, context: WriteContext, schema: pa.Schema) -> WritePlan | None:
        """Driver. What `prepare` would refuse, without a claim, and with nothing changed; also missing rights.

        Returns the plan as far as it is known; None = not before the target is there.
        """
        return None

    @abstractmethod
    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        """Driver, once, before any task: check the target, choose the commit mode, remove orphaned staging.

        Changes nothing that readers of the target can see, except what `commit=task` needs
        (create the table, truncate, `preSql`).

        Raises:
            TargetError: not writable.
            SchemaError: a type that the target cannot store without loss.
        """

    @abstractmethod
    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        """Executor. `attempt` is unique among all attempts of the job."""

    def writing(self) -> AbstractContextManager[None]:
        """Executor. A context around the tasks that one thread writes: it keeps what they share, say a connection."""
        return nullcontext()

    def resource_mark(self) -> str | None:
        """Driver, before `prepare`. The resource (a host) that writing to this target loads; None = no mark.

        Opens nothing. A transfer with more target hosts than source hosts spreads its tasks by it.
        """
        return None

    def free_connections(self) -> FreeConnections | None:
        """Driver. How many more connections the server takes from this login now; None = not known, or no bound."""
        return None

    def health(self) -> "Health | None":
        """Executor. The health check of the target, for option `protect`; None = without one. Does not connect yet."""
        return None

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        """Executor, before `open`, with `commit=task`. The receipt of a task that an earlier attempt committed.

        None = not committed, or unknown. With a receipt, a transfer does not read the task's rows.
        """
        return None

    def unfinished(self, context: WriteContext) -> PartialWrite | None:
        """Driver, only in a transfer, before `prepare`. The run of `context.txn` that committed tasks and did not end.

        With its epoch as the context's `resume`, `prepare` continues it: its tasks are inherited, and its truncate,
        CREATE TABLE and SQL are not repeated.
        """
        return None

    def stream_progress(self, stream: str) -> StreamProgress | None:
        """Driver, before `prepare`. Return what a stream has published to this target; None = nothing yet.

        Raises:
            UnsupportedError: the target keeps no such record.
        """
        raise UnsupportedError(f"{type(self).__name__} keeps no record of what was published to it")

    def stream_or_target(self, stream: str) -> tuple[StreamProgress | None, bool | None]:
        """Driver, before `prepare`. Return `stream_progress`, and without any what `exists` returns."""
        progress = self.stream_progress(stream)
        return progress, self.exists() if progress is None else None

    def forget_stream(self, stream: str) -> None:
        """Driver. Let a stream begin again, and fence off its runs. The rows that it has published stay.

        Raises:
            UnsupportedError: as `stream_progress`.
        """
        self.stream_progress(stream)

    def note_stream(self, stream: str, text: str) -> bool:
        """Driver, after `commit`. Keep `text` for `stream_note`, at most 500 characters; False = it keeps none."""
        return False

    def stream_note(self, stream: str) -> StreamNote | None:
        """Driver. Return what `note_stream` kept last; None = nothing."""
        return None

    def end_stream(self, stream: str) -> None:
        """Driver. Drop what the target records of a stream that no run continues. The rows that it has published stay.

        A target whose log keeps what was written lets the stream begin again instead.

        Raises:
            UnsupportedError: as `stream_progress`.
        """
        self.forget_stream(stream)

    def kept_claims(self, names: "Sequence[ClaimName]" = ()) -> "list[KeptClaim]":
        """Return what the target keeps of earlier writes. A log that lists no names is asked for `names`, too.

        Raises:
            UnsupportedError: it keeps nothing.
        """
        raise UnsupportedError(
            f"{type(self).__name__} keeps no record of what was written to its target: each run writes its rows again, "
            "and there is nothing to list or forget"
        )

    def forget_claims(self, claims: "Sequence[KeptClaim]") -> "list[KeptClaim]":
        """Forget claims, so that a run of these writes adds its rows again. Return those that were forgotten.

        Left are those that a run holds by now, and those that changed since they were listed.

        Raises:
            UnsupportedError: as `kept_claims`.
        """
        self.kept_claims()
        return []

    def compact(self, target_bytes: int, *, dry_run: bool = False) -> "Compaction":
        """Merge the target's small files into files of about `target_bytes`; every row stays as it is.

        Raises:
            UnsupportedError: it has no files, or not one step in which readers see others.
        """
        raise UnsupportedError(
            f"{type(self).__name__} cannot merge files: it is for folders that spark-channel writes, Delta and Iceberg "
            "tables"
        )

    def keep(self, plan: WritePlan, text: str) -> None:  # noqa: B027 - optional, as `unfinished` is
        """Driver, only in a transfer, after `prepare`, with `commit=task` and a `txn`: store `text` in the target.

        Until the job is published, `unfinished` returns it.
        """

    @abstractmethod
    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> bool | None:
        """Driver. Publish exactly `receipts`, one per task, and record that it was published. A second call is a no-op.

        Returns False where another run has published the same write, so that no row of this one was added.

        Raises:
            CommitError: says what the target contains.
        """

    @abstractmethod
    def abort(
        self, plan: WritePlan, receipts: Sequence[Receipt | None] | None
    ) -> Sequence[Receipt] | None:
        """Driver. Remove what the job staged, unless it was published.

        `receipts` may be None, or contain None for tasks that did not finish; tasks may still be
        running. Called any number of times. Returns the receipts of the tasks whose rows stay (`commit=task`), where
        the target records them; else None.
        """


def is_row_refusal(writer: Writer, error: ChannelError) -> bool:
    """Whether a row is the matter of `error`, or of what it was raised from, as where a publish fails."""
    causes = (error, error.__cause__)
    return any(isinstance(cause, ChannelError) and writer.is_refusal(cause) for cause in causes)


def bisect_refused(
    batch: pa.RecordBatch,
    write: Callable[[pa.RecordBatch], None],
    refused: Callable[[pa.RecordBatch, str], None],
) -> None:
    """Write `batch`; when it is refused, smaller and smaller pieces of it, down to the rows that are refused alone.

    `write` takes all of what it is given, or raises `BatchRefusedError` and has taken none of it. `refused`
    gets each row that cannot be written, as a batch of one row, with the reason. Rows are written and
    refused in their order: of two rows with one key the first one stays. One bad row among n costs about
    2 log2(n) calls, and writes no good row twice. Where many rows are bad, the next piece begins with one row and
    doubles: n bad rows cost about n calls.

    Raises:
        BatchRefusedError: of a batch without rows, which has nothing to refuse. Whatever else `write`
            and `refused` raise.
    """
    start, size, bad_before = 0, batch.num_rows, 0
    while True:
        piece = batch.slice(start, size)
        size = piece.num_rows
        try:
            write(piece)
        except BatchRefusedError as error:
            if size == 0:
                raise
            if size == 1:
                refused(piece, str(error))
                start = bad_before = start + 1
            else:
                bad_before, size = start + size, size // 2
        else:
            start += size
            size = max(1, (bad_before - start) // 2) if start < bad_before else 2 * size
        if start >= batch.num_rows:
            return
