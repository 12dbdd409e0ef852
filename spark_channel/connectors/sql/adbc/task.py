"""One attempt of one task that writes through an ADBC driver."""

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from spark_channel.connectors.contracts import Receipt, Tally, TaskWriter
from spark_channel.connectors.sql.adbc.merge import Merged, placed
from spark_channel.connectors.sql.adbc.options import AdbcWriteOptions
from spark_channel.connectors.sql.adbc.plan import AdbcPlan
from spark_channel.connectors.sql.adbc.session import Session, is_busy, is_conflict, is_lost
from spark_channel.connectors.sql.life import SignOfLife
from spark_channel.connectors.sql.writer import SqlWriter
from spark_channel.errors import BatchRefusedError, TargetError
from spark_channel.retry import Retry

__all__ = ["AdbcTaskWriter"]

_BUSY_SECONDS = 60.0


class AdbcTaskWriter(TaskWriter):
    """`commit=job` commits batches into a staging table; `commit=task` buffers, and ingests everything with the
    task's row beside the claim in one transaction at the end, so that no lock is held meanwhile. With `tolerant` that
    transaction is open from the first row on, and the target judges each batch under a savepoint.
    """

    def __init__(
        self,
        writer: SqlWriter,
        options: AdbcWriteOptions,
        merged: Callable[[Session, AdbcPlan, pa.Table], Merged],
        plan: AdbcPlan,
        task: int,
        attempt: int,
    ) -> None:
        self._writer, self._plan, self._task, self._attempt = writer, plan, task, attempt
        self._merged, self._batch_rows = merged, options.batch_size
        self._stage: str | None = None
        self._buffer: list[pa.RecordBatch] = []
        self._buffered = 0
        self._tally = Tally(task, attempt)
        self._judging = False
        self._life: SignOfLife | None = None
        self._session: Any = Session(options, TargetError)
        self._claims = writer.claims(self._session, plan.place)
        try:
            self._peek()
            if plan.commit == "job":
                self._life = SignOfLife(partial(writer.beat, plan))
        except BaseException:
            self.rollback()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        if batch.num_rows:
            renamed = batch.rename_columns(list(self._plan.names))
            if self.tolerant:
                self._judge(renamed)
            else:
                self._buffer.append(renamed)
                self._buffered += renamed.num_rows
        self._tally.add(batch)
        if self._plan.commit == "job" and self._buffered >= self._batch_rows:
            self._send()

    def flush(self) -> None:
        self._tally.hold_open()
        if self._plan.commit == "job":
            self._send()

    def close(self) -> Receipt:
        self._tally.hold_open()
        if self._plan.commit == "job":
            self._send()
            receipt = Receipt(
                self._task, self._attempt, self._tally.rows, self._tally.nbytes, {"table": self._stage}
            )
        else:
            receipt = self._commit()
        self._end()
        return receipt

    def rollback(self) -> None:
        session, stage = self._session, self._stage
        if session is not None:
            try:
                session.rollback()
                if stage is not None:
                    self._writer.drop_stage(session, self._plan.place, stage)
            except TargetError:
                pass  # the database cannot be reached: the end of the job removes the table
        self._end()

    def _end(self) -> None:
        self._tally.ended = True
        if self._life is not None:
            self._life.end()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _peek(self) -> None:
        """Hold the claim to be this run's: one that was overtaken need not go on."""
        found = self._claims.peek(self._plan.claim)
        if self._plan.commit == "job":
            self._claims.show_life(self._plan.claim, found)
        self._session.commit()

    def _send(self) -> None:
        if not self._buffer:
            return
        rows, self._buffer, self._buffered = pa.Table.from_batches(self._buffer), [], 0
        if self._plan.key:
            rows = placed(rows, self._tally.rows - rows.num_rows)
        new = self._stage is None
        if self._stage is None:
            self._peek()
            self._stage = f"{self._plan.stage}{self._task}_{self._attempt}_{secrets.token_hex(2)}"
        self._session.ingest(self._plan.table_schema, self._stage, rows, "create" if new else "append")
        self._session.commit()

    def _judge(self, batch: pa.RecordBatch) -> None:
        self._judging = True
        self._session.rows("SAVEPOINT spark_channel_batch")
        try:
            self._session.ingest(self._plan.table_schema, self._plan.table, batch, "append")
        except TargetError as error:
            try:
                self._session.rows("ROLLBACK TO SAVEPOINT spark_channel_batch")
            except TargetError:
                raise TargetError(
                    f"{error}. ADBC driver {self._session.name} cannot take back a refused batch, so option "
                    "'maxDirtyRows' cannot be kept with it: use the database's own connector"
                ) from None
            raise BatchRefusedError(str(error)) from None

    def _commit(self) -> Receipt:
        if self._judging:
            return self._commit_once()
        return Retry(_BUSY_SECONDS, first=0.05, longest=2.0, what=f"committing task {self._task}").call(
            self._commit_once, lambda error: isinstance(error, TargetError) and is_busy(error)
        )

    def _commit_once(self) -> Receipt:
        receipt = Receipt(self._task, self._attempt, self._tally.rows, self._tally.nbytes)
        held = self._plan.claim
        try:
            if not self._judging:
                if (done := self._by_another()) is not None:
                    return done
                self._session.rollback()  # a transaction of SQLite that has read may not be able to write
                self._insert()
            self._claims.fence(held)
            # Again, under the lock: not every database holds a primary key unique.
            if (done := self._claims.task(held, self._task)) is not None:
                self._session.rollback()
                return done
            self._claims.add_task(held, receipt)
        except TargetError as error:
            if is_conflict(error) and not is_lost(error) and (done := self._by_another()) is not None:
                return done
            raise
        try:
            self._session.commit()
        except TargetError as error:
            if not is_lost(error):
                raise
            settled = self._writer.settle(self._plan, self._task)
            if settled is None:
                raise
            return settled
        return receipt

    def _by_another(self) -> Receipt | None:
        """The receipt of an attempt that has committed these rows meanwhile."""
        self._session.rollback()
        return self._claims.task(self._plan.claim, self._task)

    def _insert(self) -> None:
        if not self._buffer:
            return
        rows = pa.Table.from_batches(self._buffer)
        if self._plan.key:
            self._merged(self._session, self._plan, rows).merge()
        else:
            self._session.ingest(self._plan.table_schema, self._plan.table, rows, "append")
