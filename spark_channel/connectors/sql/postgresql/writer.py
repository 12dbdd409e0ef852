"""Writes a table of a PostgreSQL database: atomically (`commit=job`), or task by task (`commit=task`)."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
import stamina

from spark_channel.connectors.contracts import (
    Receipt,
    TaskWriter,
    Unfinished,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.native import NativeRows
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.half_done import refuse_half_done, refuse_two_receipts, unfinished
from spark_channel.connectors.sql.nothing import NothingWriter
from spark_channel.connectors.sql.postgresql.catalog import Table, find_table
from spark_channel.connectors.sql.postgresql.failures import is_gone
from spark_channel.connectors.sql.postgresql.ledger import LEDGER, PREPARED, PUBLISHED, Ledger
from spark_channel.connectors.sql.postgresql.merge import keys_sql
from spark_channel.connectors.sql.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.sql.postgresql.outcome import commit, transaction_number
from spark_channel.connectors.sql.postgresql.publish import make_ready, publish_stage, run_script
from spark_channel.connectors.sql.postgresql.session import Session, literal
from spark_channel.connectors.sql.postgresql.staging import (
    PREFIX,
    clear_orphans,
    create_stage,
    drop_stage,
    hold_job,
    mark,
    stage_name,
    table_sql,
)
from spark_channel.connectors.sql.postgresql.target import (
    PostgresPlan,
    Target,
    create_statement,
    match_target,
    new_name,
)
from spark_channel.connectors.sql.postgresql.task import DirectTaskWriter, StagedTaskWriter
from spark_channel.connectors.sql.postgresql.write_session import WriteSession, reach
from spark_channel.connectors.sql.script import split_script
from spark_channel.errors import CommitError, OptionError, TargetError
from spark_channel.options import CommitMode, WriteOptions

__all__ = ["PostgresWriter"]

_log = logging.getLogger(__name__)


class PostgresWriter(Writer):
    """`commit=job`: tasks fill a staging table, and the driver publishes it in one transaction with the ledger's
    row. `commit=task`: each task copies straight into the table, with its own ledger row.
    """

    Options: ClassVar[type[WriteOptions]] = PostgresWriteOptions
    options: PostgresWriteOptions

    def __init__(self, options: PostgresWriteOptions) -> None:
        super().__init__(options)

    def resource_mark(self) -> str | None:
        return self.options.address.parameters.get("host")

    def prepare(self, context: WriteContext, schema: pa.Schema) -> PostgresPlan:
        split_script(self.options.pre_sql, "preSql", "postgres")
        split_script(self.options.post_sql, "postSql", "postgres")
        with WriteSession(self.options, failure=TargetError, purpose=f"prepare {context.job}") as session:
            hold_job(session, context.job)
            table = find_table(session, self.options.dbtable)
            self._check(table)
            space, name = self._place(session, table)
            label = f"{space}.{name}"
            ledger = Ledger(session, space, label)
            published_at = ledger.published_at(context)
            if published_at is None:
                refuse_half_done(ledger, context)
            plan = PostgresPlan(
                job=context.job,
                schema=schema,
                commit=context.commit or self._default_commit(table, context),
                overwrite=context.overwrite,
                batch=context.batch,
                txn=context.txn,
                published_at=published_at,
                target=Target(space, name, (), ()),
                stage=stage_name(context.job, context.batch),
            )
            if published_at is not None:
                return plan
            for job in clear_orphans(session, space, keep=plan.stage):
                _log.warning("removed the staging of job %s, which is gone", job)
            new = table is None or (context.overwrite and not self.options.truncate)
            with session.transaction():
                prepare = self._prepare_job if plan.commit == "job" else self._prepare_tasks
                target = prepare(session, plan, None if new else table, context.native)
            return replace(plan, target=target, native=target.native)

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        if plan.published_at is not None:
            return NothingWriter(Receipt(task, attempt, rows=0, nbytes=0))
        kind = StagedTaskWriter if plan.commit == "job" else DirectTaskWriter
        return kind(self.options, _own(plan), task, attempt)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        own = _own(plan)
        with reach(self.options, failure=TargetError, purpose=f"write {own.job}") as session:
            done = self._ledger(session, own).entry(own, task)
        return None if done is None else Receipt(task, done.attempt, done.rows, done.nbytes)

    def unfinished(self, context: WriteContext) -> Unfinished | None:
        with WriteSession(self.options, failure=TargetError, purpose=f"prepare {context.job}") as session:
            table = find_table(session, self.options.dbtable)
            if table is None:
                return None
            return unfinished(Ledger(session, table.schema, table.label), context)

    def keep(self, plan: WritePlan, text: str) -> None:
        own = _own(plan)
        with (
            reach(self.options, failure=TargetError, purpose=f"prepare {own.job}") as session,
            session.transaction(),
        ):
            self._ledger(session, own).plans.keep(own.job, text)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        if plan.published_at is not None:
            return
        own = _own(plan)
        refuse_two_receipts(receipts)
        try:
            # Until COMMIT is sent, nothing stands, and all of it may be done again on another connection.
            for attempt in stamina.retry_context(
                on=lambda error: isinstance(error, TargetError) and is_gone(error),
                attempts=None,
                timeout=max(self.options.retry_seconds, 0.001),
                wait_initial=0.1,
                wait_max=5.0,
            ):
                with (
                    attempt,
                    reach(self.options, failure=TargetError, purpose=f"publish {own.job}") as session,
                ):
                    self._publish(session, own, receipts)
        except TargetError as error:
            raise CommitError(f"{error}. {self._standing(own)}") from error

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        if plan.published_at is not None:
            return
        own = _own(plan)
        with reach(self.options, failure=TargetError, purpose=f"abort {own.job}") as session:
            ledger = self._ledger(session, own)
            if own.commit == "job":
                if ledger.entry(own, PUBLISHED) is None:
                    drop_stage(session, own.target.schema, own.stage)
                return
            done = ledger.tasks(own)
            if not done:
                ledger.plans.drop(own.job)
            elif ledger.entry(own, PUBLISHED) is None:
                _log.warning(
                    "job %s was aborted after %d of its tasks had committed their rows (commit=task): "
                    "they stay in table %s, and ledger %s names them",
                    own.job, len(done), own.target.label, LEDGER,
                )  # fmt: skip

    def _ledger(self, session: Session, plan: PostgresPlan) -> Ledger:
        return Ledger(session, plan.target.schema, plan.target.label)

    def _check(self, table: Table | None) -> None:
        if table is not None and (table.name == LEDGER or table.name.startswith(PREFIX)):
            raise TargetError(f"{table.label} is spark-channel's own; name another table")
        if table is None and not self.options.create_table:
            raise TargetError(
                f"there is no table {self.options.dbtable!r} in {self.options.address.shown}, and 'createTable' is "
                "false; create it, or leave the option away"
            )

    def _place(self, session: Session, table: Table | None) -> tuple[str, str]:
        """The target's schema and name, as they are or will be."""
        if table is not None:
            return table.schema, table.name
        space, name = new_name(self.options)
        known = session.value("SELECT current_schema()") if space is None else space
        where = literal(known).sql("postgres")
        if known is None or not session.rows(f"SELECT 1 FROM pg_namespace WHERE nspname = {where}"):  # noqa: S608
            raise OptionError(
                f"option 'dbtable' got {self.options.dbtable!r}, and there is no schema "
                f"{'on the search path' if known is None else repr(known)}: create it, or name another",
                option="dbtable",
                got=self.options.dbtable,
            )
        return str(known), name

    def _default_commit(self, table: Table | None, context: WriteContext) -> CommitMode:
        """`task` writes an append once instead of twice; keys are told apart only within one transaction."""
        append = table is not None and not context.overwrite
        return "task" if append and self.options.write_mode == "insert" else "job"

    def _prepare_job(
        self, session: Session, plan: PostgresPlan, table: Table | None, native: NativeRows | None
    ) -> Target:
        """Make the staging: the future table itself where there is none."""
        space, apply = plan.target.schema, self.options.write_mode == "apply"
        sql = table_sql(space, plan.stage)
        if table is not None:
            target = match_target(table, plan.schema, self.options, native=native)
            create_stage(session, target, plan.stage, apply=apply)
        else:
            if apply:
                raise TargetError(
                    f"writeMode apply changes a table that is there; create {plan.target.label} first, "
                    "with a primary key"
                )
            if session.value(f"SELECT to_regclass({literal(sql).sql('postgres')})::text") is None:
                place = statements.named_table((space, plan.stage))
                session.rows(create_statement(place, plan.schema, self.options))
            staged = find_table(session, sql)
            assert staged is not None
            target = match_target(staged, plan.schema, self.options, name=plan.target.name, native=native)
        mark(session, space, plan.stage, plan.job, plan.batch)
        return target

    def _prepare_tasks(
        self, session: Session, plan: PostgresPlan, table: Table | None, native: NativeRows | None
    ) -> Target:
        """What `commit=task` changes before its tasks run: once, whoever asks."""
        ledger = self._ledger(session, plan)
        ledger.create()
        first = ledger.entry(plan, PREPARED) is None
        if first:
            run_script(session, self.options.pre_sql, "preSql")
        if table is None and first:
            session.rows(f"DROP TABLE IF EXISTS {plan.target.sql}")
            session.rows(create_statement(plan.target.source, plan.schema, self.options))
            if self.options.table_comment is not None:
                comment = literal(self.options.table_comment).sql("postgres")
                session.rows(f"COMMENT ON TABLE {plan.target.sql} IS {comment}")
            made = find_table(session, plan.target.sql)
            assert made is not None
            target = match_target(made, plan.schema, self.options, name=plan.target.name, native=native)
            if target.key:
                session.rows(f"ALTER TABLE {target.sql} ADD PRIMARY KEY ({keys_sql(target)})")
            target = replace(target, create=False)
        else:
            there = find_table(session, plan.target.sql)
            if there is None:
                raise TargetError(f"table {plan.target.label} was dropped while its rows were written")
            target = match_target(there, plan.schema, self.options, native=native)
            if first:
                make_ready(session, target, self.options, overwrite=plan.overwrite)
        if first:
            ledger.add(plan, PREPARED)
        return target

    def _publish(self, session: Session, plan: PostgresPlan, receipts: Sequence[Receipt]) -> None:
        hold_job(session, plan.job)
        ledger = self._ledger(session, plan)
        session.rows("BEGIN")
        try:
            if ledger.published_at(plan) is not None:
                session.roll_back()
                return
            ledger.create()
            if plan.commit == "job":
                publish_stage(session, plan, self.options, receipts)
            else:
                missing = {receipt.task for receipt in receipts} - ledger.tasks(plan)
                if missing:
                    raise CommitError(f"the ledger has no row of task {min(missing)}, which has a receipt")
            run_script(session, self.options.post_sql, "postSql")
            rows, nbytes = sum(each.rows for each in receipts), sum(each.nbytes for each in receipts)
            if not ledger.add(plan, PUBLISHED, rows=rows, nbytes=nbytes):
                session.roll_back()  # another driver has published the job while this one waited
                return
            if plan.commit == "task":
                ledger.plans.drop(plan.job)
            number = transaction_number(session)
        except BaseException:
            session.roll_back()
            raise
        commit(
            session,
            self.options,
            number,
            TargetError,
            stands=lambda other: self._ledger(other, plan).entry(plan, PUBLISHED) is not None,
        )

    def _standing(self, plan: PostgresPlan) -> str:
        if plan.commit == "task":
            return f"The rows of the tasks that committed stand in table {plan.target.label}"
        return f"Nothing of this job stands in table {plan.target.label}: its transaction was rolled back"


def _own(plan: WritePlan) -> PostgresPlan:
    assert isinstance(plan, PostgresPlan)
    return plan
