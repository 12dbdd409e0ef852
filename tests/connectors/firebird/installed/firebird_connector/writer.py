"""Writes a table: atomically from one staging table (`commit=job`), or task by task (`commit=task`)."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from firebird_connector.dialect import LONGEST
from firebird_connector.load import bring
from firebird_connector.options import FirebirdWriteOptions
from firebird_connector.session import BUSY, LOST, TAKEN, FirebirdSession, has_code
from firebird_connector.target import ATTEMPT, DIALECT, FirebirdPlan, planned
from firebird_connector.task import FirebirdTask

from spark_channel.connectors import Receipt, WriteContext
from spark_channel.connectors.sql import ClaimDialect, Place, SqlPlan, SqlWriter, session_script, split_script
from spark_channel.errors import CommitError, OptionError, TargetError
from spark_channel.retry import Retry

__all__ = ["FirebirdWriter"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class FirebirdWriter(SqlWriter):
    """A new table is made in a transaction of its own, since Firebird lets it be used only after that.

    A write that fails after it leaves an empty table.
    """

    Options = FirebirdWriteOptions
    options: FirebirdWriteOptions

    @property
    def shown(self) -> str:
        return self.options.place

    def check(self, context: WriteContext) -> None:
        if context.overwrite and not self.options.truncate:
            raise OptionError(
                "option 'truncate' got false; Firebird cannot drop a table, make it anew and fill it in one "
                "transaction. Omit it, or drop the table first", option="truncate", got="false", takes="true",
            )  # fmt: skip
        for texts, option in ((self.options.pre_sql, "preSql"), (self.options.post_sql, "postSql")):
            split_script(texts, option, "")

    def session(self, failure: type[TargetError]) -> FirebirdSession:
        session = FirebirdSession(self.options, failure)
        try:
            for statement in session_script(self.options, ""):
                session.rows(statement)
        except BaseException:
            session.close()
            raise
        return session

    def run(self, failure: type[TargetError], purpose: str, work: Callable[[Any], _T]) -> _T:
        def attempt() -> _T:
            with self.session(failure) as session:
                return work(session)

        begins = purpose.startswith(("look", "prepare"))
        timeout = 0.0 if begins else self.options.retry_timeout  # then the url is a mistake
        return Retry(timeout, what=purpose).call(attempt, lambda error: has_code(error, LOST | BUSY))

    @contextmanager
    def transaction(self, session: Any) -> Iterator[None]:
        with session.transaction():
            yield

    def is_conflict(self, error: TargetError) -> bool:
        return has_code(error, BUSY | TAKEN)

    def claim_dialect(self, session: Any, place: Place) -> ClaimDialect:
        def listed(table: str, more: str, name: str) -> bool:
            query = f"SELECT 1 FROM {table} WHERE RDB$RELATION_NAME = ? {more}"  # noqa: S608 - constants
            return bool(session.rows(query, (DIALECT.spelled(name),)))

        def distrust(name: str) -> str | None:
            return "it has a trigger" if listed("RDB$TRIGGERS", "AND RDB$SYSTEM_FLAG = 0", name) else None

        return ClaimDialect(
            table=lambda name: name, exists=lambda name: listed("RDB$RELATIONS", "", name), distrust=distrust,
            share="WITH LOCK", update="WITH LOCK", longest_name=LONGEST, reserved={"row_count": '"ROW_COUNT"'},
        )  # fmt: skip

    def look(self, session: Any) -> Place:
        table = DIALECT.find_table(session, self.options.dbtable)
        name = table.name if table else self.options.dbtable
        return Place("", name, name, table)

    def plan(self, session: Any, plan: SqlPlan, place: Place, context: WriteContext) -> SqlPlan:
        return planned(plan, place, self.options)

    def make_staging(self, session: Any, plan: Any, place: Place, context: WriteContext) -> SqlPlan:
        if not self.stages(session, place, plan.stage):
            session.rows(plan.create_stage)
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

    def open_task(self, plan: Any, task: int, attempt: int) -> FirebirdTask:
        return FirebirdTask(self, plan, task, attempt)

    def publish_staged(self, session: Any, plan: Any, receipts: Sequence[Receipt]) -> None:
        self.script(session, self.options.pre_sql, "preSql")
        self._ready(session, plan, empty=plan.overwrite)
        stage = DIALECT.quoted(plan.stage)
        staged = dict(session.rows(f"SELECT {ATTEMPT}, COUNT(*) FROM {stage} GROUP BY {ATTEMPT}"))  # noqa: S608
        for receipt in receipts:
            if staged.pop(receipt.attempt, 0) != receipt.rows:
                raise CommitError(f"not all {receipt.rows} rows of task {receipt.task} are staged")
        for attempt in staged:
            session.rows(f"DELETE FROM {stage} WHERE {ATTEMPT} = ?", (attempt,))  # noqa: S608
        bring(session, plan)

    def script(self, session: Any, texts: Sequence[str], option: str) -> None:
        for statement in split_script(texts, option, ""):
            session.rows(statement)

    def stages(self, session: Any, place: Place, beginning: str) -> list[str]:
        query = "SELECT TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS WHERE RDB$RELATION_NAME STARTING WITH ?"
        return [DIALECT.spelled(name) for (name,) in session.rows(query, (DIALECT.spelled(beginning),))]

    def drop_stage(self, session: Any, place: Place, name: str) -> None:
        try:
            session.rows(f"DROP TABLE {DIALECT.quoted(name)}")
        except TargetError as error:
            if not self.is_conflict(error):
                raise
            _log.warning("staging %s stays until a later job removes it: %s", name, error)

    def forget(self, plan: FirebirdPlan, attempt: int) -> None:
        """Remove what an attempt staged, as far as that can be done now: the job's end removes it all."""
        try:
            with self.session(TargetError) as session:
                session.rows(f"DELETE FROM {DIALECT.quoted(plan.stage)} WHERE {ATTEMPT} = ?", (attempt,))  # noqa: S608
        except TargetError as error:
            _log.debug("rows of attempt %d stay in staging: %s", attempt, error)

    def _make(self, session: FirebirdSession, plan: FirebirdPlan) -> None:
        """Make the table when it is not there."""
        if plan.create is not None and DIALECT.find_table(session, plan.place.name) is None:
            try:
                session.rows(plan.create)
            except TargetError as error:
                if not has_code(error, TAKEN):  # another job made it at the same moment
                    raise

    def _ready(self, session: FirebirdSession, plan: FirebirdPlan, *, empty: bool) -> None:
        """Hold the table to be as it was planned, and empty it."""
        table = DIALECT.find_table(session, plan.place.name)
        found = {(column.name, column.declared) for column in table.columns} if table else set()
        changed = [column.name for _, column in plan.columns if (column.name, column.declared) not in found]
        if table is None or changed or (plan.key and not any({*each} == {*plan.key} for each in table.unique)):
            raise TargetError(
                f"table {plan.place.label!r} was dropped, altered or made by another job while its rows were written "
                f"({', '.join(changed) or 'its key'}). Nothing was written; run the job again"
            )
        if empty:
            session.rows(f"DELETE FROM {plan.table}")  # noqa: S608 - a quoted name
