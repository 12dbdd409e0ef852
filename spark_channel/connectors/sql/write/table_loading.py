"""How a database's tasks load rows whose fastest way is `WriteSession.load`: all stage in one table of the run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, final

import pyarrow as pa

from spark_channel.connectors.base.feed import OPERATION
from spark_channel.connectors.base.types import plain_kind
from spark_channel.connectors.sql.session import S, WriteSession
from spark_channel.connectors.sql.write.checks import check_stored
from spark_channel.connectors.sql.write.in_session import in_transaction
from spark_channel.connectors.sql.write.loading import Loading, Rows
from spark_channel.connectors.sql.write.merge import PLACE, Merge
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.sessions import Verdict, WriteSessions
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import BatchRefusedError, TargetError
from spark_channel.lazy import compute as pc

__all__ = [
    "StageTable",
    "TableLoader",
    "TableStaging",
    "savepoint",
    "table_loading",
    "task_session",
]

_ATTEMPT = "spark_channel_attempt"
"""The column of a staging table that says which attempt a row is of, by a random number.

A driver that begins the same job again counts its attempts from the start.
"""
_ROWS_OF_A_TASK = 1 << 40


class StageTable(Generic[S]):
    """The staging table of a run, where `_ATTEMPT` says which rows are whose."""

    def __init__(self, database: WriteSessions[S], merge: type[Merge]) -> None:
        self._database, self._merge = database, merge

    def make(self, session: S, plan: SqlPlan) -> None:
        dialect = self._database.dialect
        columns = [f"{_ATTEMPT} BIGINT NOT NULL", f"{PLACE} BIGINT NOT NULL"]
        columns += [
            dialect.definition(replace(column.column, not_null=False))
            for column in plan.target.columns
        ]
        if plan.target.operation is not None:
            columns.append(f"{dialect.quoted(plan.target.operation)} VARCHAR(20)")
        lines = f"{', '.join(columns)}, PRIMARY KEY ({_ATTEMPT}, {PLACE})"
        session.execute(f"CREATE TABLE {self.sql(plan)} ({lines})")

    def sql(self, plan: SqlPlan) -> str:
        """The table, in a statement."""
        return self._database.dialect.place(plan.place.staging, plan.stage)

    def counts(self, session: S, plan: SqlPlan) -> dict[int, int]:
        """How many rows each attempt has in it."""
        query = f"SELECT {_ATTEMPT}, COUNT(*) FROM {self.sql(plan)} GROUP BY {_ATTEMPT}"  # noqa: S608 - a quoted name
        return dict(session.rows(query))

    def count(self, session: S, plan: SqlPlan, mark: int) -> int:
        """How many rows an attempt has in it."""
        query = f"SELECT COUNT(*) FROM {self.sql(plan)} WHERE {_ATTEMPT} = {mark}"  # noqa: S608 - a quoted name
        return int(session.value(query))

    def forgets(self, plan: SqlPlan, mark: int) -> str:
        """The statement that removes what an attempt staged."""
        return f"DELETE FROM {self.sql(plan)} WHERE {_ATTEMPT} = {int(mark)}"  # noqa: S608 - a quoted name

    def bring(self, session: S, plan: SqlPlan, count: int) -> None:
        """All rows that this transaction sees, into the table. There are `count`."""
        dialect, mode = self._database.dialect, self._database.options.write_mode
        self._merge(session, dialect, plan.target, self.sql(plan), mode, count).bring()


def table_loading(
    database: WriteSessions[S], claim: TaskClaim[S], table: StageTable[S]
) -> Loading[S]:
    """Stages in the run's table with `commit=job`, and writes straight into the table with `commit=task`."""
    connect = partial(task_session, database, claim)
    if claim.plan.commit == "job":
        staging = TableStaging(database, claim, table)
        return Loading(connect, staging=staging, holds=staging.holds)
    return Loading(connect, direct=TableLoader(database, claim, table))


def task_session(database: WriteSessions[S], claim: TaskClaim[S]) -> S:
    """A new session of an attempt."""
    return database.connect(TargetError, f"write {claim.plan.job}", patient=False)


@contextmanager
def savepoint(database: WriteSessions[S], session: S) -> Iterator[None]:
    """Around a batch that is put into the open transaction: all of it or nothing.

    Raises:
        BatchRefusedError: the database refuses a row.
    """
    session.execute("SAVEPOINT spark_channel_batch")
    try:
        yield
    except TargetError as error:
        # A refusal that was found here counts, however a database classifies its errors.
        is_refused = Verdict.REFUSED_ROW in database.verdict(error)
        if not isinstance(error, BatchRefusedError) and not is_refused:
            raise
        try:
            session.execute("ROLLBACK TO SAVEPOINT spark_channel_batch")
            session.execute("RELEASE SAVEPOINT spark_channel_batch")
        except TargetError:
            raise error from None  # it has ended the transaction itself
        if isinstance(error, BatchRefusedError):
            raise
        raise BatchRefusedError(str(error)) from error
    session.execute("RELEASE SAVEPOINT spark_channel_batch")


@final
class TableStaging(Generic[S]):
    """All attempts of a run stage in one table, where the attempt's mark says which rows are whose."""

    has_session = True
    opens_first = fences_last = False

    def __init__(
        self, database: WriteSessions[S], claim: TaskClaim[S], table: StageTable[S]
    ) -> None:
        self._database, self._claim, self._table = database, claim, table
        self._has_rows = False

    def ready(self, session: S) -> None:
        pass

    def add(self, session: S | None, rows: Rows, before: int, spread: float) -> bool:
        assert session is not None
        self._has_rows = True
        with in_transaction(self._database, session):
            # Before the rows: a run that was overtaken sends none.
            self._claim.show_life(session)
            _load(self._database, self._claim, session, rows, before, self._table)
            # Behind them: while the counted rows are published, none is added.
            self._claim.fence(session)
        return False  # nothing stays locked until the next chunk

    def holds(self, session: S, before: int, after: int) -> bool:
        count = self._table.count(session, self._claim.plan, self._claim.mark)
        return staged_whole(self._claim.task, count, before, after)

    def finish(self) -> dict[str, Any]:
        return {"mark": self._claim.mark}

    def forget(self, session: S | None) -> None:
        if self._has_rows:
            with task_session(self._database, self._claim) as other:
                other.execute(self._table.forgets(self._claim.plan, self._claim.mark))


def staged_whole(task: int, count: int, before: int, after: int) -> bool:
    """Whether a chunk whose COMMIT was not answered is in staging, which has `count` rows of the attempt.

    Raises:
        TargetError: these are neither `before` rows nor `after`.
    """
    if count not in (before, after):
        raise TargetError(
            f"task {task}: staging holds {count} of its rows after a lost connection, "
            f"neither {before} nor {after}: another process has changed it. Spark runs the task again"
        )
    return count == after


@final
class TableLoader(Generic[S]):
    """Loads rows into the table, or, where keys decide, into the run's staging table and from there at the end."""

    opens: Literal["nothing"] = "nothing"
    asks_again = False

    def __init__(
        self, database: WriteSessions[S], claim: TaskClaim[S], table: StageTable[S]
    ) -> None:
        self._database, self._claim, self._table = database, claim, table
        self._is_keyed = bool(claim.plan.target.key)

    def ready(self, session: S) -> None:
        pass

    def begin(self, session: S) -> None:
        if not self._claim.is_done(session):
            self._claim.check(session)
            session.start(self._database.dialect.begin)

    def insert(self, session: S, rows: Rows, before: int, spread: float) -> None:
        table = self._table if self._is_keyed else None
        _load(self._database, self._claim, session, rows, before, table)

    def judge(self, session: S, rows: Rows, before: int) -> None:
        with savepoint(self._database, session):
            self.insert(session, rows, before, 0.0)
            if self._is_keyed:
                self._merge(session, rows.num_rows)

    def complete(self, session: S, *, judged: bool) -> None:
        if self._is_keyed and not judged:
            self._merge(session, self._claim.tally.rows)

    def _merge(self, session: S, rows: int) -> None:
        self._table.bring(session, self._claim.plan, rows)
        session.execute(f"DELETE FROM {self._table.sql(self._claim.plan)}")  # noqa: S608 - a quoted name

    def repeated(self, work: Callable[[], None]) -> None:
        work()


def _load(
    database: WriteSessions[S],
    claim: TaskClaim[S],
    session: S,
    rows: Rows,
    before: int,
    stage: StageTable[S] | None,
) -> None:
    """Load rows into `stage`, where the attempt has `before` rows, or into the table itself.

    Raises:
        BatchRefusedError: a value that the database would change, or a row that it has not stored.
    """
    plan, count = claim.plan, rows.num_rows
    names = [database.dialect.quoted(name) for name in plan.target.staged_names]
    columns = [
        _exact_values(database, claim, column.name, rows.column(column.name))
        for column in plan.target.columns
    ]
    if plan.target.operation is not None:
        columns.append(rows.column(OPERATION))
    table = plan.target.sql
    if stage is not None:
        first = claim.task * _ROWS_OF_A_TASK + before
        mark, places = pa.repeat(claim.mark, count), pa.array(range(first, first + count))
        names, columns = [_ATTEMPT, PLACE, *names], [mark, places, *columns]
        table = stage.sql(plan)
    assert isinstance(session, WriteSession)
    stored = session.load(table, pa.RecordBatch.from_arrays(columns, names))
    if stored is not None:
        check_stored(plan.target.label, count, stored)


def _exact_values(
    database: WriteSessions[S], claim: TaskClaim[S], name: str, array: pa.Array
) -> pa.Array:
    """A column as `WriteSession.load` takes it.

    Raises:
        BatchRefusedError: a value that the database would change.
    """
    dialect = database.dialect
    try:
        array = pc.cast(array, plain_kind(array.type))
        if dialect.tick > 1 and (pa.types.is_timestamp(array.type) or pa.types.is_time(array.type)):
            ticks = pc.cast(array, pa.int64())
            whole = pc.multiply(pc.divide(ticks, dialect.tick), dialect.tick)
            if pc.any(pc.not_equal(whole, ticks)).as_py():
                raise pa.ArrowInvalid(
                    f"{dialect.product} keeps multiples of {dialect.tick} microseconds"
                )
    except pa.ArrowInvalid as error:
        label = claim.plan.target.label
        where = f"column {name!r} cannot be stored in table {label!r} exactly"
        raise BatchRefusedError(f"{where}: {error}") from None
    return array
