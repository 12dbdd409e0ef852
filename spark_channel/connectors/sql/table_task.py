"""One attempt of one task: into the run's staging table, or in one transaction into the table itself."""

import secrets
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.merge import PLACE
from spark_channel.connectors.sql.row_counts import hold_stored
from spark_channel.connectors.sql.task import SqlTask
from spark_channel.connectors.sql.write_session import WriteSession
from spark_channel.connectors.sql.writer import SqlPlan, SqlWriter
from spark_channel.errors import BatchRefusedError, TargetError

__all__ = ["ATTEMPT", "TableTask"]

ATTEMPT = "spark_channel_attempt"
"""The column of a staging table that says which attempt a row is of, by a random number.

A driver that begins the same job again counts its attempts from the start.
"""
_ROWS_OF_A_TASK = 1 << 40


class TableTask(SqlTask):
    """`commit=job`: each batch is staged in a separate session, so that nothing stays locked between two."""

    def __init__(self, writer: SqlWriter, plan: SqlPlan, task: int, attempt: int) -> None:
        super().__init__(writer, plan, task, attempt)
        self._host: Any = writer  # a `TableWriter`
        self._stored, self._mark = 0, secrets.randbits(62)
        self._show_life()

    def rollback(self) -> None:
        drops = self._plan.commit == "job" and self._stored and not self._tally.ended
        super().rollback()
        if drops:
            self._host.forget(self._plan, self._mark)

    def store(self, rows: pa.Table, before: int) -> None:
        for batch in rows.combine_chunks().to_batches():
            self.judge(batch)

    def judge(self, batch: pa.RecordBatch) -> None:
        """Rows of one batch: all of them, or none."""
        plan, held = self._plan, self._plan.claim
        columns = [
            self._host.values(each.name, batch.column(each.name), plan) for each in plan.target.columns
        ]
        if plan.target.operation is not None:
            columns.append(batch.column(OPERATION).to_pylist())
        if plan.commit == "job":
            with self._host.session(TargetError) as session, session.transaction():
                claims = self._claims(session)
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
            if self.tolerant and self._host.is_refusal(error):
                raise BatchRefusedError(str(error)) from error
            raise

    def finish(self) -> dict[str, Any]:
        if self._plan.commit == "task":
            self._commit(self._begun())
        return {"mark": self._mark}

    def _load(self, session: WriteSession, columns: Sequence[Sequence[Any]], *, staged: bool) -> None:
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
            self._session = self._host.session(TargetError)
            claims = self._claims(self._session)
            claims.peek(self._plan.claim)
            self._done = claims.task(self._plan.claim, self._task)
            self._session.begin()
        session: WriteSession = self._session
        return session

    def _bring(self, session: WriteSession) -> None:
        self._host.bring(session, self._plan, self._stored)
        session.rows(f"DELETE FROM {self._host.staging(self._plan)}")  # noqa: S608 - a quoted name

    def _commit(self, session: WriteSession) -> None:
        if self._done is not None:
            return
        if self._plan.target.key and not self.tolerant:
            self._bring(session)
        if not self._add_task(session):
            return
        try:
            session.commit()
        except TargetError as error:
            if not self._host.is_lost(error):
                raise
            self._settle(error)
