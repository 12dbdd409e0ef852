"""Writes a table of a MySQL server: atomically (`commit=job`), or task by task (`commit=task`)."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.contracts import (
    Receipt,
    TaskWriter,
    Unfinished,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.sql.half_done import refuse_half_done, refuse_two_receipts, unfinished
from spark_channel.connectors.sql.ledger import LEDGER, PREPARED, PUBLISHED
from spark_channel.connectors.sql.mysql.ledger import ledger_of
from spark_channel.connectors.sql.mysql.options import MysqlWriteOptions, address_of
from spark_channel.connectors.sql.mysql.publish import (
    COMMITTING_WORDS,
    check_table,
    hold,
    insert_staged,
    run_script,
    transaction,
)
from spark_channel.connectors.sql.mysql.session import LostConnectionError, Session
from spark_channel.connectors.sql.mysql.staging import Staging, clear_orphans
from spark_channel.connectors.sql.mysql.tables import Table, find_table, readings, table_named
from spark_channel.connectors.sql.mysql.target import MysqlPlan, Target, new_target, old_target
from spark_channel.connectors.sql.mysql.task import open_task
from spark_channel.connectors.sql.nothing import NothingWriter
from spark_channel.connectors.sql.script import TRANSACTION_WORDS, split_script
from spark_channel.errors import CommitError, OptionError, TargetError
from spark_channel.options import CommitMode, WriteOptions

__all__ = ["MysqlWriter"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class MysqlWriter(Writer):
    """Rows are loaded where a warning is an error: by `commit=job` into staging tables without keys.

    `commit=job`: one transaction on the driver's host inserts all of them, with the ledger's row. `commit=task`:
    each task inserts its own, with its ledger's row, so that a second attempt finds it and inserts nothing.
    """

    Options: ClassVar[type[WriteOptions]] = MysqlWriteOptions
    options: MysqlWriteOptions

    def __init__(self, options: MysqlWriteOptions) -> None:
        super().__init__(options)
        address_of(options)

    def resource_mark(self) -> str | None:
        return address_of(self.options).host

    def prepare(self, context: WriteContext, schema: pa.Schema) -> MysqlPlan:
        return self._with_session(
            TargetError,
            lambda session: self._prepare(session, context, schema),
            patient=context.batch is not None,
        )

    def _prepare(self, session: Session, context: WriteContext, schema: pa.Schema) -> MysqlPlan:
        table = find_table(session, self.options.dbtable)
        commit = context.commit or self._default_commit(table, context)
        forbidden = COMMITTING_WORDS if commit == "job" else TRANSACTION_WORDS
        split_script(self.options.pre_sql, "preSql", "mysql", forbidden)
        split_script(self.options.post_sql, "postSql", "mysql", forbidden)
        target = self._target(session, table, schema)
        ledger = ledger_of(session, target.database, target.label)
        published_at = ledger.published_at(context)
        if published_at is None:
            refuse_half_done(ledger, context)
        staging = Staging.of(target, context.job, context.batch)
        plan = MysqlPlan(
            job=context.job,
            schema=schema,
            commit=commit,
            overwrite=context.overwrite,
            batch=context.batch,
            txn=context.txn,
            published_at=published_at,
            target=target,
            staging=staging.prefix,
        )
        for orphan in clear_orphans(session, keep=staging):
            _log.warning("removed %s, which a job that is gone left behind", orphan)
        if published_at is None:
            ledger.create()
            if ledger.entry(plan, PUBLISHED) is None:
                staging.make(session)
            if commit == "task":
                try:
                    self._prepare_tasks(session, plan)
                except BaseException:
                    staging.remove(session)
                    raise
        return plan

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        if plan.published_at is not None:
            return NothingWriter(Receipt(task, attempt, rows=0, nbytes=0))
        return open_task(self.options, _own(plan), task, attempt)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        own = _own(plan)

        def ask(session: Session) -> Receipt | None:
            ledger = ledger_of(session, own.target.database, own.target.label)
            done = ledger.entry(own, task)
            return None if done is None else Receipt(task, done.attempt, done.rows, done.nbytes)

        return self._with_session(TargetError, ask)

    def unfinished(self, context: WriteContext) -> Unfinished | None:
        def ask(session: Session) -> Unfinished | None:
            table = find_table(session, self.options.dbtable)
            if table is None:
                return None
            return unfinished(ledger_of(session, table.database, table.label), context)

        return self._with_session(TargetError, ask, patient=False)

    def keep(self, plan: WritePlan, text: str) -> None:
        own = _own(plan)

        def keep(session: Session) -> None:
            ledger_of(session, own.target.database, own.target.label).plans.keep(own.job, text)

        self._with_session(TargetError, keep)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        if plan.published_at is not None:
            return
        own = _own(plan)
        refuse_two_receipts(receipts)

        def publish(session: Session) -> None:
            hold(session, _table_lock(own.target))
            self._publish(session, own, receipts)

        try:
            self._with_session(CommitError, publish)
        except TargetError as error:
            raise CommitError(f"{error}. {_standing(own)}") from error
        staging = Staging(own.target.database, own.staging)
        try:
            self._with_session(TargetError, staging.remove)
        except TargetError as error:  # what is published is published
            _log.warning("the staging %s* of a published job stays for now: %s", own.staging, error)

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        own = _own(plan)
        if own.published_at is not None:
            return

        def remove(session: Session) -> None:
            Staging(own.target.database, own.staging).remove(session)
            if own.commit == "task":
                ledger = ledger_of(session, own.target.database, own.target.label)
                done = ledger.tasks(own)
                if not done:
                    ledger.plans.drop(own.job)
                elif ledger.entry(own, PUBLISHED) is None:
                    _log.warning(
                        "job %s was aborted after %d of its tasks had committed their rows (commit=task): they stay "
                        "in table %s, and ledger %s names them",
                        own.job, len(done), own.target.label, LEDGER,
                    )  # fmt: skip

        self._with_session(TargetError, remove)

    def _with_session(
        self, failure: type[TargetError], work: Callable[[Session], _T], *, patient: bool = True
    ) -> _T:
        """`work` on a session; again on a new one when the connection is lost, for `retryTimeout` seconds.

        So `work` begins by asking what stands: it may have been done without an answer. `patient`: see `Session`.
        """
        clock = SYSTEM_CLOCK
        end = clock.now() + self.options.retry_timeout
        while True:
            with Session(self.options, failure, patient=patient) as session:
                try:
                    return work(session)
                except LostConnectionError as error:
                    if clock.now() >= end:
                        raise failure(error.text) from error

    def _target(self, session: Session, table: Table | None, schema: pa.Schema) -> Target:
        if table is not None:
            if table.name == LEDGER:
                raise TargetError(f"{LEDGER} is the ledger; name another table")
            engines = session.rows("SELECT engine FROM information_schema.engines WHERE transactions = 'YES'")
            return old_target(table, schema, self.options, {str(name).lower() for (name,) in engines})
        if not self.options.create_table:
            raise TargetError(
                f"there is no table {self.options.dbtable!r} on {session.place}, and 'createTable' is false; create "
                "it, or leave the option away"
            )
        names = readings(session, self.options.dbtable)
        if not names:
            raise OptionError(
                f"option 'url' names no database, and 'dbtable' got {self.options.dbtable!r}: in which one?",
                option="url",
            )
        database, name = names[-1]
        return new_target(
            database, name, schema, self.options, session.literal(self.options.table_comment or "")
        )

    def _default_commit(self, table: Table | None, context: WriteContext) -> CommitMode:
        """`task` shows an append as it comes; keys are told apart only within one transaction."""
        if self.options.tolerates_dirty_rows:
            return "task"
        append = table is not None and not context.overwrite
        return "task" if append and self.options.write_mode == "insert" else "job"

    def _prepare_tasks(self, session: Session, plan: MysqlPlan) -> None:
        """What `commit=task` changes before its tasks run: once, whoever asks."""
        hold(session, _table_lock(plan.target))
        ledger = ledger_of(session, plan.target.database, plan.target.label)
        if ledger.entry(plan, PREPARED) is not None:
            return
        self._create(session, plan.target)
        with transaction(session):
            run_script(session, self.options.pre_sql, "preSql")
            check_table(session, plan.target)
            if plan.overwrite:
                session.rows(f"DELETE FROM {plan.target.sql}")  # noqa: S608 - a quoted name
            ledger.add(plan, PREPARED)

    @staticmethod
    def _create(session: Session, target: Target) -> bool:
        """Make the table when it is not there; whether it was made."""
        if table_named(session, target.database, target.name) is not None:
            return False
        if target.create is None:
            raise TargetError(f"table {target.label!r} was dropped while its rows were written")
        session.rows(target.create)
        return True

    def _publish(self, session: Session, plan: MysqlPlan, receipts: Sequence[Receipt]) -> None:
        target = plan.target
        ledger = ledger_of(session, target.database, target.label)
        if ledger.published_at(plan) is not None:
            return
        made = plan.commit == "job" and self._create(session, target)
        try:
            with transaction(session):
                if plan.commit == "job":
                    self._insert_all(session, plan, receipts)
                else:
                    missing = {receipt.task for receipt in receipts} - ledger.tasks(plan)
                    if missing:
                        raise CommitError(
                            f"the ledger has no row of task {min(missing)}, which has a receipt"
                        )
                run_script(session, self.options.post_sql, "postSql")
                rows, nbytes = sum(each.rows for each in receipts), sum(each.nbytes for each in receipts)
                ledger.prune()
                ledger.add(plan, PUBLISHED, rows=rows, nbytes=nbytes)
                if plan.commit == "task":
                    ledger.plans.drop(plan.job)
        except TargetError:
            if made:
                session.rows(f"DROP TABLE IF EXISTS {target.sql}")
            raise

    def _insert_all(self, session: Session, plan: MysqlPlan, receipts: Sequence[Receipt]) -> None:
        target, staging = plan.target, Staging(plan.target.database, plan.staging)
        run_script(session, self.options.pre_sql, "preSql")
        check_table(session, target)
        if plan.overwrite:
            session.rows(f"DELETE FROM {target.sql}")  # noqa: S608 - a quoted name
        stages = []
        for receipt in sorted(receipts, key=lambda each: each.task):
            name = receipt.details.get("table")
            if name is None:
                continue
            stages.append(staging.sql(name))
            staged = int(session.value(f"SELECT COUNT(*) FROM {stages[-1]}"))  # noqa: S608 - a quoted name
            if staged != receipt.rows:
                raise CommitError(
                    f"{staged} rows of task {receipt.task} are staged, and its receipt says {receipt.rows}"
                )
        insert_staged(session, target, self.options, stages)


def _table_lock(target: Target) -> str:
    """Publishes to one table take turns; the server's names of locks have at most 64 letters."""
    return "spark_channel:" + hashlib.sha256(target.label.encode()).hexdigest()[:32]


def _standing(plan: MysqlPlan) -> str:
    if plan.commit == "task":
        return f"The rows of the tasks that committed stand in table {plan.target.label!r}"
    return f"Nothing of this job stands in table {plan.target.label!r}: its transaction was rolled back"


def _own(plan: WritePlan) -> MysqlPlan:
    assert isinstance(plan, MysqlPlan)
    return plan
