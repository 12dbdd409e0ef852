"""One attempt of one task: `commit=job` puts its rows into a staging table, `commit=task` into the table itself."""

import secrets
from functools import partial
from typing import Any

import pyarrow as pa

from spark_channel.connectors.contracts import Receipt, Tally, TaskWriter
from spark_channel.connectors.sql.gather import Gathered
from spark_channel.connectors.sql.ledger import PUBLISHED, Entry, TableLedger
from spark_channel.connectors.sql.life import SignOfLife
from spark_channel.connectors.sql.mysql.encode import BadValueError
from spark_channel.connectors.sql.mysql.ledger import ledger_of
from spark_channel.connectors.sql.mysql.load import Loader, RefusedRowsError
from spark_channel.connectors.sql.mysql.options import MysqlWriteOptions
from spark_channel.connectors.sql.mysql.publish import hold, insert_staged, take_over, transaction
from spark_channel.connectors.sql.mysql.session import LostConnectionError, Session, quoted
from spark_channel.connectors.sql.mysql.staging import Staging, create_stage, show_life
from spark_channel.connectors.sql.mysql.target import MysqlPlan
from spark_channel.errors import BatchRefusedError, ChannelError, TargetError

__all__ = ["open_task"]

_BUFFER_SECONDS = 0.5
_MOST_LOSSES = 5
_TEMPORARY = "spark_channel_rows"
_DATA_ERRORS = (
    1048, 1062, 1136, 1264, 1265, 1292, 1364, 1366, 1406, 1411, 1452, 1526, 1644, 1690, 3140, 3819, 4025, 4161,
)  # fmt: skip
"""What the server says of rows, rather than of itself: NULL, duplicate, range, length, foreign key, check."""


class _Attempt(TaskWriter):
    """What both commit modes share: counts, the buffer, and how a refusal is told."""

    def __init__(self, options: MysqlWriteOptions, plan: MysqlPlan, task: int, attempt: int) -> None:
        self._options = options
        self._plan = plan
        self._task = task
        self._attempt = attempt
        self._staging = Staging(plan.target.database, plan.staging)
        self._buffer = Gathered(options.batch_size, _BUFFER_SECONDS)
        self._tally = Tally(task, attempt)
        self._session: Session | None = None
        self._sign: SignOfLife | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        if self.tolerant:
            self._judge(batch)
            self._count(batch)
            return
        self._count(batch)
        if self._buffer.add(batch):
            self._send()

    def flush(self) -> None:
        self._tally.hold_open()
        self._send()

    def rollback(self) -> None:
        self._tally.ended = True
        self._buffer.take()
        self._end_life()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _count(self, batch: pa.RecordBatch) -> None:
        self._tally.add(batch)

    def _send(self) -> None:
        sent = self._tally.rows - self._buffer.rows
        if not (batches := self._buffer.take()):
            return
        rows = pa.Table.from_batches(batches).combine_chunks().to_batches()
        for batch in rows:
            try:
                self._store(batch, sent)
            except BadValueError as error:
                raise TargetError(self._refusal(error, sent)) from None
            except RefusedRowsError as error:
                raise TargetError(
                    f"rows {sent + 1} to {sent + batch.num_rows} of task {self._task} cannot be stored in table "
                    f"{self._plan.target.label!r} as they are: {error}"
                ) from None
            sent += batch.num_rows

    def _refusal(self, error: BadValueError, before: int) -> str:
        return (
            f"column {error.column.name!r}, row {before + error.index + 1} of task {self._task}: {error.value!r} "
            f"cannot be stored in table {self._plan.target.label!r}: {error.why}"
        )

    def _store(self, batch: pa.RecordBatch, before: int) -> None:
        """Put `batch` into staging; `before` rows of the attempt are there."""
        raise NotImplementedError

    def _judge(self, batch: pa.RecordBatch) -> None:
        raise BatchRefusedError("rows are judged one by one with commit=task alone")

    def _check(self, session: Session) -> None:
        """The job lives, and shows it from here on."""
        self._staging.check(session)
        self._sign = SignOfLife(partial(show_life, self._options, self._staging))

    def _end_life(self) -> None:
        if self._sign is not None:
            self._sign.end()

    def _open(self) -> Session:
        return Session(self._options, TargetError, local_infile=self._options.local_infile is not False)

    def _receipt(self, details: dict[str, Any] | None = None) -> Receipt:
        return Receipt(self._task, self._attempt, self._tally.rows, self._tally.nbytes, details or {})


class StagedWriter(_Attempt):
    """`commit=job`: a staging table of its own, filled in chunks that are committed one by one.

    After a lost connection the rows of the table are counted: a chunk is there whole or not at all.
    """

    def __init__(self, options: MysqlWriteOptions, plan: MysqlPlan, task: int, attempt: int) -> None:
        super().__init__(options, plan, task, attempt)
        self._table: str | None = None
        self._life = ""
        self._loader: Loader | None = None
        self._connect()
        assert self._session is not None
        try:
            self._check(self._session)
        except BaseException:
            self.rollback()
            raise

    def close(self) -> Receipt:
        self._tally.hold_open()
        self._send()
        assert self._session is not None
        try:
            self._staging.check(self._session)
        except LostConnectionError:
            self._connect()
            self._staging.check(self._session)
        self._tally.ended = True
        self._end_life()
        self._session.close()
        self._session = None
        return self._receipt({"table": self._table})

    def rollback(self) -> None:
        ended, self._tally.ended = self._tally.ended, True
        table, self._table = self._table, None
        if table is not None and not (ended and self._session is None):
            try:
                if self._session is None:
                    self._session = self._open()
                self._staging.drop(self._session, table)
            except (ChannelError, LostConnectionError):
                pass  # the server is away: the job's end removes the table
        super().rollback()

    def _connect(self) -> None:
        """A session whose end can be waited for, by the lock that it holds."""
        if self._session is not None:
            self._session.close()
        for loss in range(_MOST_LOSSES):
            self._session = self._open()
            try:
                before, self._life = self._life, f"spark_channel:{secrets.token_hex(16)}"
                if before:
                    hold(self._session, before)
                hold(self._session, self._life)
                if self._loader is not None:  # the table is there
                    self._loader = self._new_loader()
                return
            except LostConnectionError as error:
                self._life = before
                self._session.close()
                if loss + 1 == _MOST_LOSSES:
                    raise TargetError(error.text) from error

    def _new_loader(self) -> Loader:
        assert self._session is not None
        assert self._table is not None
        return Loader(
            self._session,
            self._staging.sql(self._table),
            self._plan.target.staged,
            self._options.local_infile,
        )

    def _store(self, batch: pa.RecordBatch, before: int) -> None:
        for loss in range(_MOST_LOSSES):
            try:
                if self._loader is None:
                    self._create()
                assert self._loader is not None
                assert self._session is not None
                with transaction(self._session):
                    self._loader.load(batch)
                return
            except LostConnectionError as error:
                if loss + 1 == _MOST_LOSSES:
                    raise TargetError(error.text) from error
                self._connect()
                if self._stands(before + batch.num_rows, before):
                    return

    def _create(self) -> None:
        assert self._session is not None
        if self._table is None:
            self._table = self._staging.new_table(self._task, self._attempt)
        self._staging.check(self._session)
        try:
            create_stage(
                self._session, self._staging.sql(self._table), self._plan.target.staged, temporary=False
            )
        except TargetError as error:
            if "(1050)" not in str(error):  # there already: its CREATE was not answered
                raise
        self._loader = self._new_loader()

    def _stands(self, after: int, before: int) -> bool:
        """Whether the chunk whose load was not answered is in the table."""
        assert self._session is not None
        assert self._table is not None
        if self._loader is None:
            return False
        try:
            count = int(self._session.value(f"SELECT COUNT(*) FROM {self._staging.sql(self._table)}"))  # noqa: S608
        except LostConnectionError as error:
            raise TargetError(error.text) from error
        if count not in (before, after):
            raise TargetError(
                f"staging table {self._table} holds {count} rows after a lost connection, neither {before} nor {after}"
            )
        return count == after


class DirectWriter(_Attempt):
    """`commit=task`: rows and the task's ledger row in one transaction.

    `writeMode=insert` loads batches straight into the table. The other modes gather rows in a temporary table, and
    bring them in at the end; when refused rows are allowed, at once, since the target itself judges each batch. A task
    that the ledger has is not written again: its rows are taken and dropped.
    """

    def __init__(self, options: MysqlWriteOptions, plan: MysqlPlan, task: int, attempt: int) -> None:
        super().__init__(options, plan, task, attempt)
        self._straight = options.write_mode == "insert"
        self._begun = False
        self._done: Entry | None = None
        self._session = self._open()
        try:
            self._check(self._session)
            self._loader = self._new_loader(self._session)
        except LostConnectionError as error:
            self.rollback()
            raise TargetError(error.text) from error
        except BaseException:
            self.rollback()
            raise

    def close(self) -> Receipt:
        self._tally.hold_open()
        self._send()
        session = self._session
        assert session is not None
        try:
            self._publish(session)
        except LostConnectionError as error:
            self._done = self._settle(error)
        self._tally.ended = True
        self._end_life()
        session.close()
        self._session = None
        done = self._done
        if done is not None and done.attempt != self._attempt:
            dirty = max(0, self._tally.rows - done.rows) if self.tolerant else 0
            return Receipt(self._task, done.attempt, done.rows, done.nbytes, {}, dirty)
        return self._receipt()

    def _new_loader(self, session: Session) -> Loader:
        target, table = self._plan.target, self._plan.target.sql
        if not self._straight:
            table = quoted(_TEMPORARY)
            create_stage(session, table, target.staged, temporary=True, key=target.key)
        return Loader(session, table, target.staged, self._options.local_infile)

    def _begin(self, session: Session) -> None:
        """Begin the transaction in which the table is written, unless the ledger has the task. Safe twice.

        No other attempt of the task has one then: its locks on keys would stop this one.
        """
        if self._begun:
            return
        plan = self._plan
        take_over(session, _task_lock(plan, self._task))
        ledger = self._ledger(session)
        self._done = ledger.entry(plan, self._task)
        if self._done is None:
            if ledger.entry(plan, PUBLISHED) is not None:
                raise TargetError(
                    f"job {plan.job!r} is published already, without task {self._task}: this attempt is too late, "
                    "and its rows were not written"
                )
            session.rows("START TRANSACTION")
        self._begun = True

    def _store(self, batch: pa.RecordBatch, before: int) -> None:
        session = self._session
        assert session is not None
        try:
            if self._straight:
                self._begin(session)
                if self._done is None:
                    self._loader.load(batch)
            else:
                with transaction(session):
                    self._loader.load(batch)
        except LostConnectionError as error:
            raise TargetError(f"{error.text}. The attempt's rows went with the connection") from error

    def _judge(self, batch: pa.RecordBatch) -> None:
        session = self._session
        assert session is not None
        try:
            self._begin(session)
            if self._done is not None:
                return
            session.rows("SAVEPOINT spark_channel_batch")
            try:
                self._loader.load(batch)
                if not self._straight:
                    self._bring_in(session)
                    session.rows(f"DELETE FROM {quoted(_TEMPORARY)}")  # noqa: S608 - a constant
            except (BadValueError, RefusedRowsError, TargetError) as error:
                if isinstance(error, TargetError) and not _is_of_rows(error):
                    raise
                session.rows("ROLLBACK TO SAVEPOINT spark_channel_batch")
                told = (
                    self._refusal(error, self._tally.rows) if isinstance(error, BadValueError) else str(error)
                )
                raise BatchRefusedError(told) from None
        except LostConnectionError as error:
            raise TargetError(f"{error.text}. The attempt's rows went with the connection") from error

    def _bring_in(self, session: Session) -> None:
        insert_staged(session, self._plan.target, self._options, [quoted(_TEMPORARY)], indexed=True)

    def _publish(self, session: Session) -> None:
        """Commit, unless another attempt was first."""
        self._staging.check(session)
        self._begin(session)
        if self._done is not None:
            return
        try:
            if not self._straight and not self.tolerant:
                self._bring_in(session)
            self._ledger(session).add(
                self._plan,
                self._task,
                attempt=self._attempt,
                rows=self._tally.rows,
                nbytes=self._tally.nbytes,
            )
            session.rows("COMMIT")
        except LostConnectionError:
            raise
        except BaseException:
            try:
                session.rows("ROLLBACK")
            except (ChannelError, LostConnectionError):
                pass  # the connection's end rolls back too
            raise

    def _settle(self, lost: LostConnectionError) -> Entry:
        """A COMMIT without an answer: the ledger says whether it went through, once the old session has ended."""
        try:
            with self._open() as session:
                hold(session, _task_lock(self._plan, self._task))
                done = self._ledger(session).entry(self._plan, self._task)
        except LostConnectionError as error:
            raise TargetError(error.text) from error
        if done is None:
            raise TargetError(
                f"{lost.text}. The attempt's rows were not committed: the ledger has none of them"
            )
        return done

    def _ledger(self, session: Session) -> TableLedger:
        return ledger_of(session, self._plan.target.database, self._plan.target.label)


def _task_lock(plan: MysqlPlan, task: int) -> str:
    return f"{plan.staging.removeprefix('spark_channel_stage_')}{task}"[:64]


def _is_of_rows(error: TargetError) -> bool:
    return any(f"({code})" in str(error) for code in _DATA_ERRORS)


def open_task(options: MysqlWriteOptions, plan: MysqlPlan, task: int, attempt: int) -> TaskWriter:
    """The writer of an attempt, as the plan's commit mode asks."""
    try:
        return (DirectWriter if plan.commit == "task" else StagedWriter)(options, plan, task, attempt)
    except LostConnectionError as error:
        raise TargetError(error.text) from error
