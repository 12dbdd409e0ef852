"""The writer of a database that stages rows in one table: what a third party's connector subclasses.

The databases that come with spark-channel have faster ways of their own.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.contracts import Receipt, TaskWriter, WriteContext
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.connectors.sql.new_types import plain_kind
from spark_channel.connectors.sql.script import session_script, split_script
from spark_channel.connectors.sql.table_plan import ATTEMPT, TablePlan, plan_table
from spark_channel.connectors.sql.table_task import TableTask
from spark_channel.connectors.sql.write_session import WriteSession
from spark_channel.connectors.sql.writer import Place, SqlPlan, SqlWriter
from spark_channel.errors import BatchRefusedError, CommitError, OptionError, TargetError
from spark_channel.retry import Retry

__all__ = ["TableWriter"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class TableWriter(SqlWriter):
    """A new table is made in a separate transaction, since some databases let it be used only after that.

    A write that fails after it leaves an empty table.
    """

    dialect: ClassVar[Dialect]
    Merge: ClassVar[type[Merge]] = Merge
    types: ClassVar[Mapping[pa.DataType, str]]
    """The declared types of a new table's columns, by `plain_kind`."""
    key_types: ClassVar[Mapping[pa.DataType, str]] = {}
    """Those of a table with a key, where they differ."""
    tick: ClassVar[int] = 1
    """The microseconds that the database's times are multiples of."""
    retry_timeout: float = 60.0

    # --- what a database implements ---

    @abstractmethod
    def connect(self, failure: type[TargetError]) -> WriteSession:
        """A session that raises `failure`."""

    @abstractmethod
    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection was lost, or another transaction stood in the way: doing it again may help."""

    @abstractmethod
    def is_refusal(self, error: BaseException) -> bool:
        """Whether the database refused a row, rather than failed."""

    @abstractmethod
    def decimal(self, digits: int, scale: int) -> str | None:
        """The type of a new column of decimals; None = it has none that wide."""

    # --- what they share ---

    def check(self, context: WriteContext) -> None:
        if context.overwrite and not self.options.truncate:
            raise OptionError(
                f"option 'truncate' got false; {self.dialect.product} cannot drop a table, make it again and fill it "
                "in one transaction. Omit it, or drop the table first",
                option="truncate",
                got="false",
                takes="true",
            )
        for texts, option in ((self.options.pre_sql, "preSql"), (self.options.post_sql, "postSql")):
            split_script(texts, option, self.dialect.sql)

    def session(self, failure: type[TargetError]) -> WriteSession:
        session = self.connect(failure)
        try:
            for statement in session_script(self.options, self.dialect.sql):
                session.rows(statement)
        except BaseException:
            session.close()
            raise
        return session

    def run(self, failure: type[TargetError], purpose: str, work: Callable[[Any], _T]) -> _T:
        def attempt() -> _T:
            with self.session(failure) as session:
                return work(session)

        begins = purpose.startswith(
            ("look", "prepare")
        )  # then a server that is not there is a mistake in the url
        return Retry(0.0 if begins else self.retry_timeout, what=purpose).call(attempt, self.is_lost)

    @contextmanager
    def transaction(self, session: Any) -> Iterator[None]:
        with session.transaction():
            yield

    def look(self, session: Any) -> Place:
        table = self.dialect.find_table(session, self.options.dbtable)
        if table is not None:
            return Place(table.schema, table.name, table.label, table)
        return Place("", self.options.dbtable, self.options.dbtable)

    def plan(self, session: Any, plan: SqlPlan, place: Place, context: WriteContext) -> SqlPlan:
        types = self.types if self.options.write_mode == "insert" else {**self.types, **self.key_types}
        return plan_table(plan, place, self.dialect, self.options, types, self.decimal)

    def values(self, name: str, array: pa.Array, plan: TablePlan) -> list[Any]:
        """A column as `WriteSession.load` takes it.

        Raises:
            BatchRefusedError: a value that the database would change.
        """
        try:
            array = pc.cast(array, plain_kind(array.type))
            if self.tick > 1 and (pa.types.is_timestamp(array.type) or pa.types.is_time(array.type)):
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

    def make_staging(self, session: Any, plan: Any, place: Place, context: WriteContext) -> SqlPlan:
        if not self.stages(session, place, plan.stage):
            session.rows(plan.create_staging)
        return plan  # type: ignore[no-any-return]

    @contextmanager
    def preparing(self, session: Any, plan: Any) -> Iterator[None]:
        self._make(session, plan)
        if plan.key:
            self.make_staging(session, plan, plan.place, WriteContext(plan.job))
        yield

    @contextmanager
    def publishing(self, session: Any, plan: Any) -> Iterator[None]:
        self._make(session, plan)
        yield

    def make_ready(
        self, session: Any, plan: Any, place: Place, context: WriteContext, *, first: bool
    ) -> SqlPlan:
        if first:
            self.script(session, self.options.pre_sql, "preSql")
        self._ready(session, plan, empty=first and plan.overwrite)
        return plan  # type: ignore[no-any-return]

    def open_task(self, plan: Any, task: int, attempt: int) -> TaskWriter:
        return TableTask(self, plan, task, attempt)

    def publish_staged(self, session: Any, plan: Any, receipts: Sequence[Receipt]) -> None:
        self.script(session, self.options.pre_sql, "preSql")
        self._ready(session, plan, empty=plan.overwrite)
        counts = f"SELECT {ATTEMPT}, COUNT(*) FROM {plan.staging} GROUP BY {ATTEMPT}"  # noqa: S608 - a quoted name
        staged = dict(session.rows(counts))
        for receipt in receipts:
            found = staged.pop(receipt.details["mark"], 0)
            if found != receipt.rows:
                raise CommitError(
                    f"{found} rows of task {receipt.task} are staged, and its receipt says {receipt.rows}"
                )
        for mark in staged:
            self._forget(session, plan, mark)
        self.bring(session, plan)

    def bring(self, session: WriteSession, plan: TablePlan) -> None:
        """All rows of the staging table that this transaction sees, into the table."""
        if plan.mode == "insert":
            names = ", ".join(plan.names)
            session.rows(
                f"INSERT INTO {plan.table} ({names}) SELECT {names} FROM {plan.staging} ORDER BY {PLACE}"  # noqa: S608
            )
            return
        columns = [column.name for _, column in plan.columns]
        self.Merge(
            session.rows, plan.table, plan.staging, columns, plan.key, plan.mode, self.dialect.sql
        ).bring()

    def script(self, session: Any, texts: Sequence[str], option: str) -> None:
        for statement in split_script(texts, option, self.dialect.sql):
            session.rows(statement)

    def drop_stage(self, session: Any, place: Place, name: str) -> None:
        schema = f"{self.dialect.quoted(place.schema)}." if place.schema else ""
        try:
            session.rows(f"DROP TABLE {schema}{self.dialect.quoted(name)}")
        except TargetError as error:
            if self.stages(session, place, name) and not self.is_lost(error):
                raise
            _log.warning("staging %s is gone, or stays until a later job removes it: %s", name, error)

    def forget(self, plan: TablePlan, mark: int) -> None:
        """Remove what an attempt staged, as far as that can be done now: the job's end removes it all."""
        try:
            with self.session(TargetError) as session:
                self._forget(session, plan, mark)
        except TargetError as error:
            _log.debug("rows of attempt %d stay in staging: %s", mark, error)

    @staticmethod
    def _forget(session: WriteSession, plan: TablePlan, mark: int) -> None:
        session.rows(f"DELETE FROM {plan.staging} WHERE {ATTEMPT} = {int(mark)}")  # noqa: S608 - a quoted name

    def _make(self, session: WriteSession, plan: TablePlan) -> None:
        """Make the table when it is not there."""
        if plan.create is not None and self.dialect.find_table(session, plan.place.label) is None:
            try:
                session.rows(plan.create)
            except TargetError as error:
                if not self.is_conflict(error):  # else another job made it at the same moment
                    raise

    def _ready(self, session: WriteSession, plan: TablePlan, *, empty: bool) -> None:
        """Hold the table to be as it was planned, and empty it."""
        table = self.dialect.find_table(session, plan.place.label)
        found = {(column.name, column.declared) for column in table.columns} if table else set()
        changed = [column.name for _, column in plan.columns if (column.name, column.declared) not in found]
        loose = table is not None and plan.key and not any({*each} == {*plan.key} for each in table.unique)
        if table is None or changed or loose:
            raise TargetError(
                f"table {plan.place.label!r} was dropped, altered or made by another job while its rows were written "
                f"({', '.join(changed) or 'its key'}). Nothing was written; run the job again"
            )
        if empty:
            session.rows(f"DELETE FROM {plan.table}")  # noqa: S608 - a quoted name
