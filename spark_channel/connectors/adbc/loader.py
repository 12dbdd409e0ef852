"""How a task's rows are ingested by an ADBC driver.

`commit=job` commits them into a staging table of the attempt. `commit=task` holds them, and ingests all of them with
the task's note beside the claim in one transaction at the end, so that no lock is held meanwhile. When dirty rows are
allowed, that transaction is open from the first row on, and the target judges each batch under a savepoint.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, final

import pyarrow as pa

from spark_channel.connectors.adbc.dialect import arranged, placed
from spark_channel.connectors.adbc.options import AdbcWriteOptions
from spark_channel.connectors.adbc.session import AdbcSession, is_busy
from spark_channel.connectors.sql.pacing import Spread
from spark_channel.connectors.sql.write.loading import Loading, RefuseRow, Rows
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import BatchRefusedError, TargetError
from spark_channel.retry import Retry

__all__ = ["AdbcTables", "adbc_loading"]

_BUSY_SECONDS = 60.0
_GATHER_SECONDS = 3600.0
"""A driver's call is worth more rows than come in a second."""


class AdbcTables(Protocol):
    """What is used of the database here."""

    def append(self, session: AdbcSession, plan: SqlPlan, rows: pa.Table) -> None: ...
    def merge_all(self, session: AdbcSession, plan: SqlPlan, rows: pa.Table) -> None: ...
    def drop_staging(
        self, session: AdbcSession, place: WriteTarget, names: Sequence[str]
    ) -> None: ...


def adbc_loading(
    database: AdbcTables, options: AdbcWriteOptions, claim: TaskClaim[AdbcSession]
) -> Loading[AdbcSession]:
    """See the head of this file."""
    is_staged = claim.plan.commit == "job"
    judges = options.tolerates_dirty_rows
    loader = AdbcLoader(database, claim, judges=judges)
    return Loading(
        lambda: AdbcSession(options, TargetError),
        direct=loader if judges and not is_staged else None,
        held=None if judges or is_staged else loader,
        staging=AdbcStaging(database, claim) if is_staged else None,
        held_bytes=0 if is_staged or judges else sys.maxsize,
        seconds=_GATHER_SECONDS,
        shows_life=is_staged,
        chunks=_whole,
        answers=lambda _session: True,  # an attempt has one session
    )


def _whole(rows: pa.Table) -> Iterable[Rows]:
    return [rows]


def _table(rows: Rows) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])


@final
class AdbcStaging:
    """A staging table of the attempt."""

    has_session = opens_first = True
    fences_last = False

    def __init__(self, database: AdbcTables, claim: TaskClaim[AdbcSession]) -> None:
        self._database, self._claim = database, claim
        self._stage: str | None = None

    def ready(self, session: AdbcSession) -> None:
        self._claim.show_life(session)
        session.commit()

    def add(self, session: AdbcSession | None, rows: Rows, before: int, spread: float) -> bool:
        assert session is not None
        target = self._claim.plan.target
        rows = arranged(_table(rows), target)
        if target.key:
            rows = placed(rows, before)
        is_new = self._stage is None
        if self._stage is None:
            self.ready(session)  # a run that was overtaken makes no table
            self._stage = self._claim.new_stage()
        session.ingest(target.schema, self._stage, rows, "create" if is_new else "append")
        session.commit()
        return True

    def finish(self) -> dict[str, Any]:
        return {"table": self._stage}

    def forget(self, session: AdbcSession | None) -> None:
        if session is not None:
            session.undo()
            if self._stage is not None:
                self._database.drop_staging(session, self._claim.plan.place, [self._stage])


@final
class AdbcLoader:
    """Ingests rows into the table."""

    opens: Literal["session"] = "session"
    asks_again = True  # not every database holds a primary key unique

    def __init__(
        self, database: AdbcTables, claim: TaskClaim[AdbcSession], *, judges: bool
    ) -> None:
        self._database, self._claim, self._judges = database, claim, judges

    def ready(self, session: AdbcSession) -> None:
        self._claim.check(session)
        session.commit()

    def begin(self, session: AdbcSession) -> None:
        if self._judges:
            return  # the driver begins it with the first row
        session.undo()
        if not self._claim.is_done(session):
            session.undo()  # a transaction of SQLite that has read may not be able to write

    def insert(self, session: AdbcSession, rows: Rows, before: int, spread: float) -> None:
        plan = self._claim.plan
        self._database.append(session, plan, arranged(_table(rows), plan.target))

    def judge(self, session: AdbcSession, rows: Rows, before: int) -> None:
        session.execute("SAVEPOINT spark_channel_batch")
        try:
            self.insert(session, rows, before, 0.0)
        except TargetError as error:
            try:
                session.execute("ROLLBACK TO SAVEPOINT spark_channel_batch")
            except TargetError:
                raise TargetError(
                    f"{error}. ADBC driver {session.name} cannot take back a refused batch, so option "
                    "'maxDirtyRows' cannot be kept with it: use the database's own connector"
                ) from None
            raise BatchRefusedError(str(error)) from None

    def complete(self, session: AdbcSession, *, judged: bool) -> None:
        pass

    def bring(
        self, session: AdbcSession, rows: list[pa.Table], spread: Spread, refuse: RefuseRow | None
    ) -> None:
        if not rows:
            return
        plan = self._claim.plan
        ordered = arranged(pa.concat_tables(rows), plan.target)
        if plan.target.key:
            self._database.merge_all(session, plan, ordered)
        else:
            self._database.append(session, plan, ordered)

    def clear(self, session: AdbcSession) -> None:
        pass

    def repeated(self, work: Callable[[], None]) -> None:
        seconds = 0.0 if self._judges else _BUSY_SECONDS
        what = f"committing task {self._claim.task}"
        Retry(seconds, first=0.05, longest=2.0, what=what).call(
            work, lambda error: isinstance(error, TargetError) and is_busy(error)
        )
