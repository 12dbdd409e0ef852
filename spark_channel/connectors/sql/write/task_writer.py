"""One attempt of one task: its rows are gathered, loaded, and noted beside the claim.

`StagedTaskWriter` is for `commit=job`, `DirectTaskWriter` for `commit=task`. Both work as they are for a database whose
fastest way is `WriteSession.load`; one with a faster way overrides single steps.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.contract import Receipt, RowTally, TaskWriter
from spark_channel.connectors.base.feed import OPERATION
from spark_channel.connectors.base.types import plain_kind
from spark_channel.connectors.sql.catalog import Column, Table
from spark_channel.connectors.sql.pacing import spread_of
from spark_channel.connectors.sql.session import S, WriteSession
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.heartbeat import HeartbeatThread
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.publish import PLACE, check_planned, check_stored
from spark_channel.errors import BatchRefusedError, TargetError
from spark_channel.lazy import compute as pc
from spark_channel.plain_text import log_of

if TYPE_CHECKING:
    from spark_channel.connectors.sql.write.writer import SqlWriter

__all__ = [
    "ATTEMPT",
    "LOCKED_SECONDS",
    "BatchBuffer",
    "DirectTaskWriter",
    "NothingWriter",
    "OnePassTask",
    "SqlTaskWriter",
    "StagedTaskWriter",
]

_log = log_of(__name__)
_MOST_BYTES = 16 << 20
_LIMITED_SECONDS = 0.25
ATTEMPT = "spark_channel_attempt"
"""The column of a staging table that says which attempt a row is of, by a random number.

A driver that begins the same job again counts its attempts from the start.
"""
_ROWS_OF_A_TASK = 1 << 40
LOCKED_SECONDS = 3_600
"""How long a server keeps the locks of an append in one pass whose client is silent, such as one whose host is lost.

The client is so also while its source brings no rows, as the scan of a large table may for long.
"""


class BatchBuffer:
    """Batches that wait to be sent together. Used by one thread.

    `add` says when it is time: at `rows` rows, at 16 MiB, or when the first of them has waited for `seconds`. The
    time matters under a limit: without it a slow job would hit the target with a burst of `rows` rows every few
    seconds, at whatever speed the target takes them.
    """

    def __init__(self, rows: int, seconds: float, *, clock: Clock | None = None) -> None:
        self._most_rows = rows
        self._most_seconds = seconds
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._since = 0.0
        self._batches: list[pa.RecordBatch] = []
        self._nbytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """True when all of it should be sent now."""
        if not self._batches:
            self._since = self._clock.now()
        self._batches.append(batch)
        self.rows += batch.num_rows
        self._nbytes += batch.nbytes
        return (
            self.rows >= self._most_rows
            or self._nbytes >= _MOST_BYTES
            or self._clock.now() - self._since >= self._most_seconds
        )

    @property
    def waited(self) -> float:
        """Seconds for which rows have gathered that are not enough yet, since they come slowly; 0.0 = enough."""
        if not self._batches or self.rows >= self._most_rows or self._nbytes >= _MOST_BYTES:
            return 0.0
        return min(self._most_seconds, self._clock.now() - self._since)

    def take(self) -> list[pa.RecordBatch]:
        """Returns and removes the gathered batches, in their order."""
        batches, self._batches = self._batches, []
        self.rows = self._nbytes = 0
        return batches


class SqlTaskWriter(TaskWriter, Generic[S]):
    """Gathers batches until they are worth a call of the database; each database has its own way to load them.

    A database implements `store`, `finish`, and `judge` where it takes refused rows back one by one; it sets
    `_session`, which ends with the attempt, and `_done` when another attempt has committed: this one's rows are then
    dropped.
    """

    seconds: ClassVar[float] = 0.5
    """How long rows may be gathered. See `BatchBuffer`."""

    def __init__(self, writer: "SqlWriter[S]", plan: SqlPlan, task: int, attempt: int) -> None:
        self._writer, self._plan, self._task, self._attempt = writer, plan, task, attempt
        self._options = writer.options
        self._tally = RowTally(task, attempt)
        self._clock: Clock = SYSTEM_CLOCK
        seconds = min(self.seconds, _LIMITED_SECONDS) if self._is_limited else self.seconds
        self._gathered = BatchBuffer(writer.options.batch_size, seconds)
        self._sent_at = self._clock.now()
        self._done: Receipt | None = None
        self._session: S | None = None
        self._sign: HeartbeatThread | None = None
        self._closes = False
        self._mark = secrets.randbits(62)

    spread: float = 0.0
    """Seconds over which what is stored may be sent: slow rows need not keep a core of the server busy."""

    # --- what a database implements ---

    def store(self, rows: pa.Table, before: int) -> None:
        """Put `rows` into staging, or into the open transaction; the attempt took `before` rows before them."""
        raise NotImplementedError

    def judge(self, batch: pa.RecordBatch) -> None:
        """Dirty rows are allowed: put the batch into the open transaction, all of it or nothing.

        Raises:
            BatchRefusedError: the database refuses a row of it, and holds none.
        """
        raise BatchRefusedError("rows are judged one by one with commit=task alone")

    def finish(self) -> dict[str, Any]:
        """All rows are stored: make them durable, or commit them. Returns the receipt's details."""
        raise NotImplementedError

    def _chunks(self, rows: pa.Table) -> Iterator[pa.RecordBatch | pa.Table]:
        """`rows` in the pieces that are loaded by one call."""
        return iter(rows.combine_chunks().to_batches())

    def _load(
        self, session: S, rows: pa.RecordBatch | pa.Table, before: int, *, staged: bool
    ) -> None:
        """Load rows into the run's staging table, where the attempt has `before` rows, or into the table itself.

        Raises:
            BatchRefusedError: a value that the database would change, or a row that it has not stored.
        """
        plan, count = self._plan, rows.num_rows
        names = [self._writer.dialect.quoted(name) for name in plan.target.staged_names]
        columns = [self._values(each.name, rows.column(each.name)) for each in plan.target.columns]
        if plan.target.operation is not None:
            columns.append(rows.column(OPERATION))
        table = plan.target.sql
        if staged:
            first = self._task * _ROWS_OF_A_TASK + before
            mark, places = pa.repeat(self._mark, count), pa.array(range(first, first + count))
            names, columns = [ATTEMPT, PLACE, *names], [mark, places, *columns]
            table = self._writer.staging(plan)
        assert isinstance(session, WriteSession)
        stored = session.load(table, pa.RecordBatch.from_arrays(columns, names))
        if stored is not None:
            check_stored(plan.target.label, count, stored)

    def _values(self, name: str, array: pa.Array) -> pa.Array:
        """A column as `WriteSession.load` takes it.

        Raises:
            BatchRefusedError: a value that the database would change.
        """
        dialect = self._writer.dialect
        try:
            array = pc.cast(array, plain_kind(array.type))
            if dialect.tick > 1 and (
                pa.types.is_timestamp(array.type) or pa.types.is_time(array.type)
            ):
                ticks = pc.cast(array, pa.int64())
                whole = pc.multiply(pc.divide(ticks, dialect.tick), dialect.tick)
                if pc.any(pc.not_equal(whole, ticks)).as_py():
                    raise pa.ArrowInvalid(
                        f"{dialect.product} keeps multiples of {dialect.tick} microseconds"
                    )
        except pa.ArrowInvalid as error:
            label = self._plan.target.label
            where = f"column {name!r} cannot be stored in table {label!r} exactly"
            raise BatchRefusedError(f"{where}: {error}") from None
        return array

    # --- what they share ---

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.check_open()
        if batch.num_rows == 0:
            return
        if self.tolerant:
            self.judge(batch)
            self._tally.add(batch)
            return
        self._tally.add(batch)
        if self._gathered.add(batch):
            self._send()

    def flush(self) -> None:
        self._tally.check_open()
        self._send()

    def close(self) -> Receipt:
        self._closes = True
        self.flush()
        details = self.finish()
        receipt, done = self._tally.receipt(**details), self._done
        self._end()
        if done is None or done.attempt == receipt.attempt:
            return receipt
        # An attempt before this one has committed, and its answer was lost. The rows that it left out were refused.
        dirty = max(0, receipt.rows - done.rows) if self.tolerant else 0
        return Receipt(receipt.task, done.attempt, done.rows, done.nbytes, {}, dirty)

    def rollback(self) -> None:
        self._tally.ended = True
        self._gathered.take()
        self._end()

    @property
    def _is_limited(self) -> bool:
        return bool(getattr(self._options, "is_limited", False))

    def _send(self) -> None:
        before = self._tally.rows - self._gathered.rows
        now, rows = self._clock.now(), self._gathered.rows
        since, self._sent_at = now - self._sent_at, now
        room = self._options.batch_size / 2 * since / rows if rows else 0.0
        # The end of a task is not spread: the limit would not be used, since what waits for it reads nothing meanwhile.
        self.spread = (
            0.0
            if self._closes and not self.overlapped
            else spread_of(self._gathered.waited, since, room, is_limited=self._is_limited)
        )
        if batches := self._gathered.take():
            self.store(pa.Table.from_batches(batches), before)

    def _end(self) -> None:
        if self._sign is not None:
            self._sign.end()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def _open(self) -> S:
        """The session, which is there."""
        assert self._session is not None
        return self._session

    def _new_session(self) -> S:
        return self._writer.session(TargetError, f"write {self._plan.job}", patient=False)

    def _show_life(self) -> None:
        self._sign = HeartbeatThread(partial(self._writer.heartbeat, self._plan))

    def _claims(self, session: S) -> Claims:
        return self._writer.claims(session, self._plan.place)

    def _committed(self, claims: Claims) -> Receipt | None:
        """The receipt of an attempt that has committed these rows; None = none has."""
        return claims.task(self._plan.claim, self._task)

    def _add_task(self, session: S) -> bool:
        """Fence, and note the task beside the claim, before COMMIT. False: another attempt has committed, see `_done`.

        Raises:
            SupersededError: the claim is another run's.
        """
        claims, held, tally = self._claims(session), self._plan.claim, self._tally
        try:
            claims.fence(held)
            claims.add_task(held, Receipt(tally.task, tally.attempt, tally.rows, tally.nbytes))
        except TargetError as error:
            if not self._writer.is_conflict(error):
                raise
            session.undo()
            self._done = self._committed(claims)
            if self._done is None:
                raise
            return False
        return True

    def _commit(self, session: S) -> None:
        """COMMIT. Without an answer: the receipt with which the task committed.

        Raises:
            TargetError: it did not commit.
        """
        try:
            session.commit()
        except Exception as error:  # what a lost connection raises need not be a TargetError
            if not self._writer.is_lost(error) or self._writer.is_conflict(error):
                raise
            session.close()
            self._done = self._writer.settle(self._plan, self._task)
            if self._done is None:
                raise

    def _done_or_raise(self, session: S, error: TargetError) -> None:
        """Another attempt has committed these rows, so that their keys are there: this one is done with them."""
        with suppress(Exception):  # a session that is lost, or was closed, has nothing to undo
            session.undo()
        if self._writer.is_conflict(error) and not self._writer.is_lost(error):
            claims = self._claims(session)
            self._done = self._committed(claims)
            if self._done is not None:
                return
            claims.peek(self._plan.claim)
        raise error

    @contextmanager
    def _judged(self, session: S) -> Iterator[None]:
        """Around a batch that is put into the open transaction: all of it or nothing.

        Raises:
            BatchRefusedError: the database refuses a row.
        """
        session.rows("SAVEPOINT spark_channel_batch")
        try:
            yield
        except TargetError as error:
            # A refusal that was found here counts, however a database classifies its errors.
            if not isinstance(error, BatchRefusedError) and not self._writer.is_refusal(error):
                raise
            try:
                session.rows("ROLLBACK TO SAVEPOINT spark_channel_batch")
                session.rows("RELEASE SAVEPOINT spark_channel_batch")
            except TargetError:
                raise error from None  # it has ended the transaction itself
            if isinstance(error, BatchRefusedError):
                raise
            raise BatchRefusedError(str(error)) from error
        session.rows("RELEASE SAVEPOINT spark_channel_batch")

    def _new_stage(self) -> str:
        """A staging table of this attempt alone."""
        return f"{self._plan.stage}{self._task}_{self._attempt}_{secrets.token_hex(2)}"

    def _widening(self, column: Column, wider: str) -> str:
        """How to give a column the type `wider`, for people; "" = it is in an index, which may not take that type."""
        target = self._plan.target
        if not wider or column.name in target.indexed:
            return ""
        retyped = self._writer.dialect.retyped(target.sql, column, wider)
        return f". To widen the column, run {retyped}"

    def _refused(self, error: BadValueError, before: int | None = None) -> BatchRefusedError:
        """The error for a value that cannot be stored; `before` rows were accepted before its batch."""
        row = "" if before is None else f", row {before + error.index + 1} of task {self._task}"
        target, column = self._plan.target, error.column.column
        cure = self._widening(column, error.wider)
        return BatchRefusedError(
            f"column {error.column.name!r}{row}: {error.value!r} cannot be stored in table "
            f"{target.label!r}: {error.why}{cure}"
        )


class StagedTaskWriter(SqlTaskWriter[S]):
    """`commit=job`: rows go into staging in chunks, a transaction each.

    When the connection is lost, a new one asks whether the chunk is there, and it is staged again or not. All attempts
    of a run stage in one table, where a random number says which rows are whose. A database that stages elsewhere
    overrides `_stage`, `_is_staged`, `_forget` and `finish`; one that keeps its session, `_connect`.
    """

    def __init__(self, writer: "SqlWriter[S]", plan: SqlPlan, task: int, attempt: int) -> None:
        super().__init__(writer, plan, task, attempt)
        self._lost = self._has_staged = False
        self._prepare()
        self._show_life()

    def _prepare(self) -> None:
        """Before the attempt shows life for the first time."""

    def store(self, rows: pa.Table, before: int) -> None:
        for chunk in self._chunks(rows):

            def stage(
                again: bool, chunk: pa.RecordBatch | pa.Table = chunk, before: int = before
            ) -> None:
                if not (again and self._is_staged(before, before + chunk.num_rows)):
                    self._has_staged = True
                    self._stage(chunk, before)

            self._lasting(stage)
            before += chunk.num_rows

    def _lasting(self, work: Callable[[bool], object]) -> None:
        """`work(False)`; when the connection is lost, `work(True)` on a new one, for `retryTimeout` seconds.

        A connection that ends in a limit's pause is not a failure: the task makes another, also with `retryTimeout` 0.
        """
        begun = False

        def attempt() -> None:
            nonlocal begun
            self._ensure_session()
            again, begun = begun, True
            try:
                work(again)
            except BaseException:
                self._lost = True
                raise

        try:
            attempt()
        except Exception as error:  # what a lost connection raises need not be a TargetError
            if not self._writer.is_lost(error):
                raise
            self._writer.retry(f"staging task {self._task}").call(attempt, self._writer.is_lost)

    def _ensure_session(self) -> None:
        """Have a session, which is another one after a failure."""
        if self._lost or self._session is None:
            self._connect()
            self._lost = False

    def _connect(self) -> None:
        """A new session; one that is there is closed."""
        if self._session is not None:
            self._session.close()
        self._session = self._new_session()

    def _stage(self, rows: pa.RecordBatch | pa.Table, before: int) -> None:
        """Put a chunk into staging, where the attempt has `before` rows."""
        session, held = self._open, self._plan.claim
        with self._writer.transaction(session):
            claims = self._claims(session)
            claims.show_life(held, claims.peek(held))
            self._load(session, rows, before, staged=True)
            claims.fence(held)  # while the counted rows are published, none is added
        self._session = None
        session.close()  # nothing stays locked until the next chunk

    def _is_staged(self, before: int, after: int) -> bool:
        """Whether the chunk whose COMMIT was not answered is in staging.

        Raises:
            TargetError: staging holds neither `before` rows of the attempt nor `after`.
        """
        found = int(self._open.value(self._count()))
        if found not in (before, after):
            raise TargetError(
                f"task {self._task}: staging holds {found} of its rows after a lost connection, "
                f"neither {before} nor {after}: another process has changed it. Spark runs the task again"
            )
        return found == after

    def _count(self) -> str:
        """The query of how many rows the attempt has staged."""
        staging = self._writer.staging(self._plan)
        return f"SELECT COUNT(*) FROM {staging} WHERE {ATTEMPT} = {self._mark}"  # noqa: S608 - a quoted name

    def finish(self) -> dict[str, Any]:
        return {"mark": self._mark}

    def rollback(self) -> None:
        ended, self._tally.ended = self._tally.ended, True
        if self._has_staged and not ended:
            try:
                self._forget()
            except TargetError as error:  # the job's end removes it
                _log.debug("rows of task %d stay in staging: %s", self._task, error)
        super().rollback()

    def _forget(self) -> None:
        """Remove what the attempt has staged."""
        with self._new_session() as session:
            session.rows(self._writer.forgets(self._plan, self._mark))


class DirectTaskWriter(SqlTaskWriter[S]):
    """`commit=task`: the rows and the task's row beside the claim in one transaction.

    A task that has committed is not written again: its rows are taken and dropped. When dirty rows are allowed, each
    batch is judged at once, under a savepoint. A database with a faster way overrides `_begin`, `_insert`, `_complete`.
    """

    def __init__(self, writer: "SqlWriter[S]", plan: SqlPlan, task: int, attempt: int) -> None:
        super().__init__(writer, plan, task, attempt)
        self._is_begun = False
        self._prepare()
        self._show_life()

    def _prepare(self) -> None:
        """Before the attempt shows life for the first time."""

    def store(self, rows: pa.Table, before: int) -> None:
        for chunk in self._chunks(rows):
            self._add(chunk, before)
            before += chunk.num_rows

    def judge(self, batch: pa.RecordBatch) -> None:
        self._add(batch, self._tally.rows)

    def _add(self, rows: pa.RecordBatch | pa.Table, before: int) -> None:
        session = self._begun()
        if self._done is not None:
            return
        try:
            with self._judged(session) if self.tolerant else nullcontext():
                self._insert(session, rows, before)
        except TargetError as error:
            if self.tolerant and isinstance(error, BatchRefusedError):
                raise
            self._done_or_raise(session, error)

    def finish(self) -> dict[str, Any]:
        session = self._begun()
        if self._done is None:
            try:
                self._conclude(session)
            except TargetError as error:
                self._done_or_raise(session, error)
        return {}

    def _begun(self) -> S:
        """The session with the transaction; `_done` when another attempt has committed."""
        if self._session is None:
            self._session = self._new_session()
        if not self._is_begun:
            self._begin(self._session)
            self._is_begun = True
        return self._session

    def _begin(self, session: S) -> None:
        """Begin the transaction, unless the task has committed."""
        claims = self._claims(session)
        self._done = self._committed(claims)
        if self._done is None:
            claims.peek(self._plan.claim)
            session.start(self._writer.dialect.begin)

    def _insert(self, session: S, rows: pa.RecordBatch | pa.Table, before: int) -> None:
        """Put rows into the open transaction; when dirty rows are allowed, into the table itself."""
        keyed = bool(self._plan.target.key)
        self._load(session, rows, before, staged=keyed)
        if keyed and self.tolerant:
            self._bring(session, rows.num_rows)

    def _conclude(self, session: S) -> None:
        """All rows are in the transaction: note the task, and commit."""
        self._complete(session)
        if self._add_task(session):
            self._commit(session)

    def _complete(self, session: S) -> None:
        """Bring what is staged in the transaction into the table."""
        if self._plan.target.key and not self.tolerant:
            self._bring(session, self._tally.rows)

    def _bring(self, session: S, rows: int) -> None:
        self._writer.bring(session, self._plan, rows)
        session.rows(f"DELETE FROM {self._writer.staging(self._plan)}")  # noqa: S608 - a quoted name


class OnePassTask(SqlTaskWriter[S]):
    """`commit=job` by one task: the transaction that takes its rows into the table publishes the write.

    Put before the database's `DirectTaskWriter`. An attempt after one that has published takes the rows and drops them.
    """

    def _committed(self, claims: Claims) -> Receipt | None:
        return claims.own_publication(self._plan.claim, self._task)

    def _check_table(self, session: S) -> Table:
        """The table, which is as the plan found it: rows that are in it keep its definition until the transaction ends.

        Raises:
            TargetError: it was dropped, altered or made again.
        """
        target, dialect = self._plan.target, self._writer.dialect
        table = dialect.find_table(session, target.sql)
        check_planned(dialect, target, table)
        assert table is not None
        return table

    def _add_task(self, session: S) -> bool:
        self._check_table(session)
        claims, held, tally = self._claims(session), self._plan.claim, self._tally
        if not claims.begin_publish(held):
            session.undo()
            self._done = self._committed(claims)
            if self._done is None:
                claims.peek(held)  # raises: another run has published
            return False
        receipt = Receipt(tally.task, tally.attempt, tally.rows, tally.nbytes)
        self._writer.note_published(session, self._plan, claims, [receipt])
        return True


class NothingWriter(TaskWriter):
    """For a task, or a job, that was committed before: takes rows, keeps none, and gives `receipt`."""

    def __init__(self, receipt: Receipt) -> None:
        self._receipt = receipt

    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def close(self) -> Receipt:
        return self._receipt

    def rollback(self) -> None:
        pass
