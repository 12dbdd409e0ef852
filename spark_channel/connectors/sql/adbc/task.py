"""One attempt of one task that writes through an ADBC driver."""

import secrets
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.contracts import Receipt
from spark_channel.connectors.sql.adbc.merge import arranged, placed
from spark_channel.connectors.sql.adbc.session import AdbcSession, is_busy, is_conflict, is_lost
from spark_channel.connectors.sql.task import SqlTask
from spark_channel.connectors.sql.writer import SqlPlan, SqlWriter
from spark_channel.errors import BatchRefusedError, TargetError
from spark_channel.retry import Retry

__all__ = ["AdbcTask"]

_BUSY_SECONDS = 60.0


class AdbcTask(SqlTask):
    """`commit=job` commits batches into a staging table; `commit=task` buffers, and ingests everything with the
    task's row beside the claim in one transaction at the end, so that no lock is held meanwhile. With `tolerant` that
    transaction is open from the first row on, and the target judges each batch under a savepoint.
    """

    seconds: ClassVar[float] = 3600.0  # a driver's call is worth more rows than come in a second

    def __init__(self, writer: SqlWriter, plan: SqlPlan, task: int, attempt: int) -> None:
        super().__init__(writer, plan, task, attempt)
        self._host: Any = writer  # an `AdbcWriter`
        self._stage: str | None = None
        self._kept: list[pa.Table] = []
        self._judging = False
        self._session = AdbcSession(self._options, TargetError)
        try:
            self._peek()
            if plan.commit == "job":
                self._show_life()
        except BaseException:
            self.rollback()
            raise

    def store(self, rows: pa.Table, before: int) -> None:
        target = self._plan.target
        rows = arranged(rows, target)
        if self._plan.commit == "task":
            self._kept.append(rows)
            return
        if target.key:
            rows = placed(rows, before)
        new = self._stage is None
        if self._stage is None:
            self._peek()
            self._stage = f"{self._plan.stage}{self._task}_{self._attempt}_{secrets.token_hex(2)}"
        self._session.ingest(target.schema, self._stage, rows, "create" if new else "append")
        self._session.commit()

    def judge(self, batch: pa.RecordBatch) -> None:
        target, self._judging = self._plan.target, True
        self._session.rows("SAVEPOINT spark_channel_batch")
        try:
            rows = arranged(pa.Table.from_batches([batch]), target)
            self._host.append(self._session, self._plan, rows)
        except TargetError as error:
            try:
                self._session.rows("ROLLBACK TO SAVEPOINT spark_channel_batch")
            except TargetError:
                raise TargetError(
                    f"{error}. ADBC driver {self._session.name} cannot take back a refused batch, so option "
                    "'maxDirtyRows' cannot be kept with it: use the database's own connector"
                ) from None
            raise BatchRefusedError(str(error)) from None

    def finish(self) -> dict[str, Any]:
        if self._plan.commit == "job":
            return {"table": self._stage}
        retry = Retry(
            0.0 if self._judging else _BUSY_SECONDS,
            first=0.05,
            longest=2.0,
            what=f"committing task {self._task}",
        )
        retry.call(self._commit, lambda error: isinstance(error, TargetError) and is_busy(error))
        return {}

    def rollback(self) -> None:
        session, stage = self._session, self._stage
        if session is not None:
            try:
                session.rollback()
                if stage is not None:
                    self._writer.drop_stage(session, self._plan.place, stage)
            except TargetError:
                pass  # the database cannot be reached: the end of the job removes the table
        super().rollback()

    def _peek(self) -> None:
        """Hold the claim to be this run's: one that was overtaken need not go on."""
        claims = self._claims(self._session)
        found = claims.peek(self._plan.claim)
        if self._plan.commit == "job":
            claims.show_life(self._plan.claim, found)
        self._session.commit()

    def _commit(self) -> None:
        session, held = self._session, self._plan.claim
        claims = self._claims(session)
        try:
            if not self._judging:
                if self._is_done():
                    return
                session.rollback()  # a transaction of SQLite that has read may not be able to write
                self._insert()
            claims.fence(held)
            # Again, under the lock: not every database holds a primary key unique.
            self._done = claims.task(held, self._task)
            if self._done is not None:
                session.rollback()
                return
            tally = self._tally
            claims.add_task(held, Receipt(tally.task, tally.attempt, tally.rows, tally.nbytes))
        except TargetError as error:
            if is_conflict(error) and not is_lost(error) and self._is_done():
                return
            raise
        try:
            session.commit()
        except TargetError as error:
            if not is_lost(error):
                raise
            self._settle(error)

    def _is_done(self) -> bool:
        """Whether another attempt has committed these rows meanwhile."""
        self._session.rollback()
        self._done = self._claims(self._session).task(self._plan.claim, self._task)
        return self._done is not None

    def _insert(self) -> None:
        if not self._kept:
            return
        rows, target = pa.concat_tables(self._kept), self._plan.target
        if target.key:
            self._host.merge(self._session, self._plan, self._host.stage_all(self._session, self._plan, rows))
        else:
            self._host.append(self._session, self._plan, rows)
