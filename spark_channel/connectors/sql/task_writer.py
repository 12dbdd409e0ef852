"""One attempt of one task: its rows are gathered, loaded, and noted beside the claim.

`SqlTaskWriter` is for every database, and `TableTaskWriter` for one without a faster way than `WriteSession.load`.
"""

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.contract import Receipt, RowTally, TaskWriter
from spark_channel.connectors.base.feed import OPERATION
from spark_channel.connectors.base.types import plain_kind
from spark_channel.connectors.sql.claims import Claims
from spark_channel.connectors.sql.encode import BadValueError
from spark_channel.connectors.sql.publish import PLACE
from spark_channel.connectors.sql.row_counts import hold_stored
from spark_channel.connectors.sql.session import WriteSession
from spark_channel.connectors.sql.write_protocol import HeartbeatThread, SqlPlan, WriteProtocol
from spark_channel.errors import BatchRefusedError, TargetError

__all__ = [
    "ATTEMPT",
    "BatchBuffer",
    "NothingWriter",
    "SqlTaskWriter",
    "TableTaskWriter",
]

_log = logging.getLogger(__name__)
_MOST_BYTES = 16 << 20
_SPREAD = 1 / 3
"""Of the time in which rows have gathered: the next ones gather meanwhile."""
_LIMITED_SPREAD, _LONGEST_SPREAD = 0.85, 0.75
"""Of the time since the last ones were sent, under a limit; and in seconds."""
_LIMITED_SECONDS = 0.25
ATTEMPT = "spark_channel_attempt"
"""The column of a staging table that says which attempt a row is of, by a random number.

A driver that begins the same job again counts its attempts from the start.
"""
_ROWS_OF_A_TASK = 1 << 40


class BatchBuffer:
    """Batches that wait to be sent together. Of one thread.

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


class SqlTaskWriter(TaskWriter):
    """Gathers batches until they are worth a call of the database; each database has its own way to load them.

    A database implements `store`, `finish`, and `judge` where it takes refused rows back one by one; it sets
    `_session`, which ends with the attempt, and `_done` when another attempt has committed: this one's rows are then
    dropped.
    """

    seconds: ClassVar[float] = 0.5
    """How long rows may be gathered. See `BatchBuffer`."""

    def __init__(self, writer: WriteProtocol, plan: Any, task: int, attempt: int) -> None:
        self._writer, self._plan, self._task, self._attempt = writer, plan, task, attempt
        self._options: Any = writer.options
        self._tally = RowTally(task, attempt)
        self._clock: Clock = SYSTEM_CLOCK
        seconds = min(self.seconds, _LIMITED_SECONDS) if self._is_limited else self.seconds
        self._gathered = BatchBuffer(writer.options.batch_size, seconds)
        self._sent_at = self._clock.now()
        self._done: Receipt | None = None
        self._session: Any = None
        self._sign: HeartbeatThread | None = None

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

    # --- what they share ---

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
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
        self._tally.hold_open()
        self._send()

    def close(self) -> Receipt:
        self.flush()
        details = self.finish()
        receipt, done = self._tally.receipt(**details), self._done
        self._end()
        if done is None or done.attempt == receipt.attempt:
            return receipt
        # An attempt before this one has committed, and its answer was lost: what it left out was refused.
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
        self.spread = self._spread()
        self._sent_at = self._clock.now()
        if batches := self._gathered.take():
            self.store(pa.Table.from_batches(batches), before)

    def _spread(self) -> float:
        """Under a limit nearly all of the time until the next rows are sent; as long as the channel's rows wait.

        Rows that come faster than they are sent are not kept waiting.
        """
        waited = self._gathered.waited
        if not self._is_limited or not waited:
            return waited * _SPREAD
        since = self._clock.now() - self._sent_at
        room: float = self._options.batch_size / 2 * since / self._gathered.rows
        return min(_LIMITED_SPREAD * since, _LONGEST_SPREAD, room)

    def _end(self) -> None:
        if self._sign is not None:
            self._sign.end()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _new_session(self) -> Any:
        return self._writer.session(TargetError, f"write {self._plan.job}", patient=False)

    def _show_life(self) -> None:
        self._sign = HeartbeatThread(partial(self._writer.beat, self._plan))

    def _claims(self, session: Any) -> Claims:
        return self._writer.claims(session, self._plan.place)

    def _add_task(self, session: Any) -> bool:
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
            self._done = claims.task(held, self._task)
            if self._done is None:
                raise
            return False
        return True

    def _commit(self, session: Any) -> None:
        """COMMIT. Without an answer: the receipt with which the task committed.

        Raises:
            TargetError: it did not commit.
        """
        try:
            session.commit()
        except TargetError as error:
            if not self._writer.is_lost(error) or self._writer.is_conflict(error):
                raise
            session.close()
            self._done = self._writer.settle(self._plan, self._task)
            if self._done is None:
                raise

    @contextmanager
    def _judged(self, session: Any) -> Iterator[None]:
        """Around a batch that is put into the open transaction: all of it or nothing.

        Raises:
            BatchRefusedError: the database refuses a row.
        """
        session.rows("SAVEPOINT spark_channel_batch")
        try:
            yield
        except TargetError as error:
            # A refusal that was found here is one, whatever a database makes of its own errors.
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

    def _refused(self, error: BadValueError, before: int | None = None) -> BatchRefusedError:
        """The error for a value that cannot be stored; `before` rows were accepted before its batch."""
        row = "" if before is None else f", row {before + error.index + 1} of task {self._task}"
        return BatchRefusedError(
            f"column {error.column.name!r}{row}: {error.value!r} cannot be stored in table "
            f"{self._plan.target.label!r}: {error.why}"
        )


class TableTaskWriter(SqlTaskWriter):
    """`commit=job`: each batch goes into the run's staging table in a separate session, so that nothing stays locked
    between two. `commit=task`: one transaction, with all rows of the task.
    """

    def __init__(self, writer: WriteProtocol, plan: SqlPlan, task: int, attempt: int) -> None:
        super().__init__(writer, plan, task, attempt)
        self._host: Any = writer  # an `SqlWriter`, whose module imports this one
        self._stored, self._mark = 0, secrets.randbits(62)
        self._show_life()

    def rollback(self) -> None:
        drops = self._plan.commit == "job" and self._stored and not self._tally.ended
        super().rollback()
        if drops:
            try:
                with self._new_session() as session:
                    session.rows(self._host.forgets(self._plan, self._mark))
            except TargetError as error:  # the job's end removes it all
                _log.debug("rows of attempt %d stay in staging: %s", self._mark, error)

    def store(self, rows: pa.Table, before: int) -> None:
        for batch in rows.combine_chunks().to_batches():
            self.judge(batch)

    def judge(self, batch: pa.RecordBatch) -> None:
        """Rows of one batch: all of them, or none."""
        plan, held = self._plan, self._plan.claim
        columns = [self._values(each.name, batch.column(each.name)) for each in plan.target.columns]
        if plan.target.operation is not None:
            columns.append(batch.column(OPERATION).to_pylist())
        if plan.commit == "job":
            with self._new_session() as session, session.transaction():
                claims = self._claims(session)
                claims.show_life(held, claims.peek(held))
                self._load(session, columns, staged=True)
                claims.fence(held)  # while the counted rows are published, none is added
            return
        session = self._begun()
        if self._done is not None:
            return
        with self._judged(session) if self.tolerant else nullcontext():
            self._load(session, columns, staged=bool(plan.target.key))
            if plan.target.key and self.tolerant:
                self._bring(session)

    def _values(self, name: str, array: pa.Array) -> list[Any]:
        """A column as `WriteSession.load` takes it.

        Raises:
            BatchRefusedError: a value that the database would change.
        """
        dialect = self._host.dialect
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
        return list(array.to_pylist())

    def finish(self) -> dict[str, Any]:
        if self._plan.commit == "task":
            session = self._begun()
            if self._done is None:
                if self._plan.target.key and not self.tolerant:
                    self._bring(session)
                if self._add_task(session):
                    self._commit(session)
        return {"mark": self._mark}

    def _load(
        self, session: WriteSession, columns: Sequence[Sequence[Any]], *, staged: bool
    ) -> None:
        plan, count = self._plan, len(columns[0])
        names = [self._host.dialect.quoted(name) for name in plan.target.staged_names]
        table = plan.target.sql
        if staged:
            first = self._tally.task * _ROWS_OF_A_TASK + self._stored
            columns = [[self._mark] * count, list(range(first, first + count)), *columns]
            names, table = [ATTEMPT, PLACE, *names], self._host.staging(plan)
        stored = session.load(table, names, list(zip(*columns, strict=True)))
        if stored is not None:
            hold_stored(plan.target.label, count, stored)
        self._stored += count

    def _begun(self) -> WriteSession:
        """The session with the transaction of `commit=task`; `_done` when another attempt has committed."""
        if self._session is None:
            self._session = self._new_session()
            claims = self._claims(self._session)
            claims.peek(self._plan.claim)
            self._done = claims.task(self._plan.claim, self._task)
            self._session.begin()
        session: WriteSession = self._session
        return session

    def _bring(self, session: WriteSession) -> None:
        self._host.bring(session, self._plan, self._stored)
        session.rows(f"DELETE FROM {self._host.staging(self._plan)}")  # noqa: S608 - a quoted name


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
