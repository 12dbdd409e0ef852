"""One attempt of one task: into the run's staging table, or in one transaction into the table itself."""

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from spark_channel.connectors.contracts import Receipt, Tally, TaskWriter
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.claims import Claims
from spark_channel.connectors.sql.gather import Gathered
from spark_channel.connectors.sql.life import SignOfLife
from spark_channel.connectors.sql.merge import PLACE
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.write_dialect import WriteDialect
from spark_channel.connectors.sql.write_session import WriteSession
from spark_channel.connectors.sql.writer import Place, SqlPlan
from spark_channel.errors import BatchRefusedError, TargetError

__all__ = ["ATTEMPT", "TableTask"]

ATTEMPT = "spark_channel_attempt"
"""The column of a staging table that says which attempt a row is of: by a number of its own.

A driver that begins the same job again counts its attempts anew.
"""
_SECONDS = 0.5
_ROWS_OF_A_TASK = 1 << 40


class TaskHost(Protocol):
    """The writer, as its tasks use it: see `TableWriter`."""

    options: SqlWriteOptions
    dialect: ClassVar[WriteDialect]

    def session(self, failure: type[TargetError]) -> WriteSession: ...
    def claims(self, session: Any, place: Place) -> Claims: ...
    def staging(self, plan: SqlPlan) -> str: ...
    def values(self, name: str, array: pa.Array, plan: SqlPlan) -> list[Any]: ...
    def bring(self, session: WriteSession, plan: SqlPlan) -> None: ...
    def forget(self, plan: SqlPlan, mark: int) -> None: ...
    def is_refusal(self, error: BaseException) -> bool: ...
    def is_lost(self, error: BaseException) -> bool: ...
    def beat(self, plan: SqlPlan) -> None: ...
    def settle(self, plan: SqlPlan, task: int) -> Receipt | None: ...


class TableTask(TaskWriter):
    """`commit=job`: each batch is staged in a separate session, so that nothing stays locked between two."""

    def __init__(self, writer: TaskHost, plan: SqlPlan, task: int, attempt: int) -> None:
        self._writer, self._plan, self._tally = writer, plan, Tally(task, attempt)
        self._buffer = Gathered(writer.options.batch_size, _SECONDS)
        self._stored, self._mark = 0, secrets.randbits(62)
        self._done: Receipt | None = None
        self._direct: WriteSession | None = None
        self._sign = SignOfLife(partial(writer.beat, plan))

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        if self.tolerant:
            self._store(batch)
            self._tally.add(batch)
            return
        self._tally.add(batch)
        if self._buffer.add(batch):
            self.flush()

    def flush(self) -> None:
        self._tally.hold_open()
        if batches := self._buffer.take():
            for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
                self._store(batch)

    def close(self) -> Receipt:
        self.flush()
        if self._plan.commit == "task":
            self._commit()
        self._sign.end()
        receipt = self._tally.receipt(mark=self._mark)
        if self._done is None or self._done.attempt == receipt.attempt:
            return receipt
        dirty = max(0, receipt.rows - self._done.rows) if self.tolerant else 0
        return Receipt(receipt.task, self._done.attempt, self._done.rows, self._done.nbytes, {}, dirty)

    def rollback(self) -> None:
        ended, self._tally.ended = self._tally.ended, True
        self._sign.end()
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()  # the server rolls back
        elif self._plan.commit == "job" and self._stored and not ended:
            self._writer.forget(self._plan, self._mark)

    def _store(self, batch: pa.RecordBatch) -> None:
        """Rows of one batch: all of them, or none."""
        plan, held = self._plan, self._plan.claim
        columns = [
            self._writer.values(each.name, batch.column(each.name), plan) for each in plan.target.columns
        ]
        if plan.target.operation is not None:
            columns.append(batch.column(OPERATION).to_pylist())
        if plan.commit == "job":
            with self._writer.session(TargetError) as session, session.transaction():
                claims = self._writer.claims(session, plan.place)
                claims.show_life(held, claims.peek(held))
                self._load(session, columns, staged=True)
            return
        session = self._begun()
        if self._done is not None:
            return
        try:
            with session.savepoint():
                self._load(session, columns, staged=bool(plan.target.key))
                if plan.target.key and self.tolerant:
                    self._bring(session)
        except TargetError as error:
            if self.tolerant and self._writer.is_refusal(error):
                raise BatchRefusedError(str(error)) from error
            raise

    def _load(self, session: WriteSession, columns: Sequence[Sequence[Any]], *, staged: bool) -> None:
        plan, count = self._plan, len(columns[0])
        names = [self._writer.dialect.quoted(name) for name in plan.target.staged_names]
        table = plan.target.sql
        if staged:
            first = self._tally.task * _ROWS_OF_A_TASK + self._stored
            columns = [[self._mark] * count, list(range(first, first + count)), *columns]
            names, table = [ATTEMPT, PLACE, *names], self._writer.staging(plan)
        session.load(table, names, list(zip(*columns, strict=True)))
        self._stored += count

    def _begun(self) -> WriteSession:
        """The session with the transaction of `commit=task`; `_done` when another attempt has committed."""
        if self._direct is None:
            session = self._direct = self._writer.session(TargetError)
            claims = self._writer.claims(session, self._plan.place)
            claims.peek(self._plan.claim)
            self._done = claims.task(self._plan.claim, self._tally.task)
            session.begin()
        return self._direct

    def _bring(self, session: WriteSession) -> None:
        self._writer.bring(session, self._plan)
        session.rows(f"DELETE FROM {self._writer.staging(self._plan)}")  # noqa: S608 - a quoted name

    def _commit(self) -> None:
        session, plan, tally = self._begun(), self._plan, self._tally
        try:
            if self._done is None:
                if plan.target.key and not self.tolerant:
                    self._bring(session)
                claims = self._writer.claims(session, plan.place)
                claims.fence(plan.claim)
                claims.add_task(plan.claim, Receipt(tally.task, tally.attempt, tally.rows, tally.nbytes))
            session.commit()
        except TargetError as error:
            session.close()
            if not self._writer.is_lost(error):
                raise
            self._done = self._writer.settle(plan, tally.task)
            if self._done is None:
                raise
        session.close()
