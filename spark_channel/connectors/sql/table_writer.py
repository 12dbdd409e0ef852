"""The writer of a database that stages rows in one table: the base class for third-party connectors.

The databases that come with spark-channel have faster bulk paths.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.base.contract import Receipt, TaskWriter, WriteContext
from spark_channel.connectors.base.types import plain_kind
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.publish import PLACE, Merge, hold_planned
from spark_channel.connectors.sql.row_counts import hold_stored
from spark_channel.connectors.sql.session import WriteSession, session_script
from spark_channel.connectors.sql.task_writer import ATTEMPT, TableTask
from spark_channel.connectors.sql.write_protocol import SqlPlan, WriteTarget
from spark_channel.connectors.sql.writer import SqlWriter
from spark_channel.errors import BatchRefusedError, CommitError, OptionError, TargetError

__all__ = ["TableWriter"]

_log = logging.getLogger(__name__)


class TableWriter(SqlWriter):
    """A new table is made in a separate transaction, since some databases let it be used only after that.

    A write that fails after it leaves an empty table.
    """

    dialect: WriteDialect
    Merge: ClassVar[type[Merge]] = Merge
    tick: ClassVar[int] = 1
    """The microseconds that the database's times are multiples of."""

    # --- what a database implements ---

    @abstractmethod
    def connect(self, failure: type[TargetError]) -> WriteSession:
        """A session that raises `failure`."""

    @abstractmethod
    def is_refusal(self, error: BaseException) -> bool:
        """Whether the database refused a row, rather than failed."""

    # --- what they share ---

    def check(self, context: WriteContext) -> None:
        if context.overwrite and not self.options.truncate:
            raise OptionError(
                f"option 'truncate' got false; {self.dialect.product} cannot drop a table, "
                "make it again and fill it in one transaction. Omit it, or drop the table first",
                option="truncate",
                got="false",
                takes="true",
            )
        self.check_scripts()

    def session(
        self, failure: type[TargetError], purpose: str = "write", *, patient: bool = True
    ) -> WriteSession:
        session = self.connect(failure)
        with session.closed_on_failure():
            for statement in session_script(self.options, self.dialect.sql):
                session.rows(statement)
        return session

    @contextmanager
    def transaction(self, session: Any) -> Iterator[None]:
        with session.transaction():
            yield

    def undo(self, session: Any) -> None:
        session.undo()

    def look(self, session: Any) -> WriteTarget:
        table = self.dialect.find_table(session, self.options.dbtable)
        if table is not None:
            return WriteTarget(table.schema, table.name, table.label, table)
        return WriteTarget("", self.options.dbtable, self.options.dbtable)

    def values(self, name: str, array: pa.Array, plan: SqlPlan) -> list[Any]:
        """A column as `WriteSession.load` takes it.

        Raises:
            BatchRefusedError: a value that the database would change.
        """
        try:
            array = pc.cast(array, plain_kind(array.type))
            if self.tick > 1 and (
                pa.types.is_timestamp(array.type) or pa.types.is_time(array.type)
            ):
                ticks = pc.cast(array, pa.int64())
                whole = pc.multiply(pc.divide(ticks, self.tick), self.tick)
                if pc.any(pc.not_equal(whole, ticks)).as_py():
                    raise pa.ArrowInvalid(
                        f"{self.dialect.product} keeps multiples of {self.tick} microseconds"
                    )
        except pa.ArrowInvalid as error:
            where = f"column {name!r} cannot be stored in table {plan.place.label!r} exactly"
            raise BatchRefusedError(f"{where}: {error}") from None
        return list(array.to_pylist())

    def make_staging(
        self, session: Any, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        if not self.stages(session, place, plan.stage):
            own = [f"{ATTEMPT} BIGINT NOT NULL", f"{PLACE} BIGINT NOT NULL"]
            own += [
                self.dialect.definition(replace(each.column, not_null=False))
                for each in plan.target.columns
            ]
            if plan.target.operation is not None:
                own.append(f"{self.dialect.quoted(plan.target.operation)} VARCHAR(20)")
            listed = f"{', '.join(own)}, PRIMARY KEY ({ATTEMPT}, {PLACE})"
            session.rows(f"CREATE TABLE {self.staging(plan)} ({listed})")
        return plan

    @contextmanager
    def preparing(self, session: Any, plan: SqlPlan) -> Iterator[None]:
        self._make(session, plan)
        if plan.target.key:
            self.make_staging(session, plan, plan.place, WriteContext(plan.job))
        yield

    @contextmanager
    def publishing(self, session: Any, plan: SqlPlan) -> Iterator[None]:
        self._make(session, plan)
        yield

    def make_ready(
        self, session: Any, plan: SqlPlan, place: WriteTarget, context: WriteContext, *, first: bool
    ) -> SqlPlan:
        if first:
            self.script(session, self.options.pre_sql, "preSql")
        self._ready(session, plan, empty=first and plan.overwrite)
        return plan

    def open_task(self, plan: Any, task: int, attempt: int) -> TaskWriter:
        return TableTask(self, plan, task, attempt)

    def publish_staged(self, session: Any, plan: Any, receipts: Sequence[Receipt]) -> None:
        self.script(session, self.options.pre_sql, "preSql")
        self._ready(session, plan, empty=plan.overwrite)
        counts = f"SELECT {ATTEMPT}, COUNT(*) FROM {self.staging(plan)} GROUP BY {ATTEMPT}"  # noqa: S608 - a quoted name
        staged = dict(session.rows(counts))
        for receipt in receipts:
            found = staged.pop(receipt.details["mark"], 0)
            if found != receipt.rows:
                raise CommitError(
                    f"{found} rows of task {receipt.task} are staged, and its receipt says {receipt.rows}"
                )
        for mark in staged:
            self._forget(session, plan, mark)
        self.bring(session, plan, sum(receipt.rows for receipt in receipts))

    def bring(self, session: WriteSession, plan: SqlPlan, count: int) -> None:
        """All rows of the staging table that this transaction sees, into the table. There are `count`."""
        target, rows = plan.target, self.staging(plan)
        if self.options.write_mode == "insert":
            names = ", ".join(map(self.dialect.quoted, target.names))
            stored = session.stored(
                f"INSERT INTO {target.sql} ({names}) SELECT {names} FROM {rows} ORDER BY {PLACE}"  # noqa: S608
            )
            if stored is not None:
                hold_stored(target.label, count, stored)
            return
        self.Merge(session.rows, self.dialect, target, rows, self.options.write_mode).bring()

    def drop_stage(self, session: Any, place: WriteTarget, name: str) -> None:
        try:
            session.rows(f"DROP TABLE {self.dialect.place(place.schema, name)}")
        except TargetError as error:
            if self.stages(session, place, name) and not self.is_lost(error):
                raise
            _log.warning(
                "staging %s is gone, or stays until a later job removes it: %s", name, error
            )

    def forget(self, plan: SqlPlan, mark: int) -> None:
        """Remove what an attempt staged, as far as that can be done now: the job's end removes it all."""
        try:
            with self.session(TargetError) as session:
                self._forget(session, plan, mark)
        except TargetError as error:
            _log.debug("rows of attempt %d stay in staging: %s", mark, error)

    def _forget(self, session: WriteSession, plan: SqlPlan, mark: int) -> None:
        session.rows(f"DELETE FROM {self.staging(plan)} WHERE {ATTEMPT} = {int(mark)}")  # noqa: S608 - a quoted name

    def staging(self, plan: SqlPlan) -> str:
        """The staging table, in a statement: one for all attempts of the run."""
        return self.dialect.place(plan.place.schema, plan.stage)

    def _make(self, session: WriteSession, plan: SqlPlan) -> None:
        """Make the table when it is not there."""
        create = plan.target.create
        if create is not None and self.dialect.find_table(session, plan.target.sql) is None:
            try:
                session.rows(create)
            except TargetError as error:
                if not self.is_conflict(error):  # else another job made it at the same moment
                    raise

    def _ready(self, session: WriteSession, plan: SqlPlan, *, empty: bool) -> None:
        """Hold the table to be as it was planned, and empty it."""
        hold_planned(self.dialect, plan.target, self.dialect.find_table(session, plan.target.sql))
        if empty:
            session.rows(self.dialect.emptied(plan.target.sql, self.options))
