"""Writes a table of a SQLite file: atomically (`commit=job`), or task by task (`commit=task`)."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa

from spark_channel.connectors.contracts import (
    Receipt,
    TaskWriter,
    Unfinished,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.sql.database_file import hold_writable
from spark_channel.connectors.sql.half_done import refuse_half_done, refuse_two_receipts, unfinished
from spark_channel.connectors.sql.ledger import LEDGER, PREPARED, PUBLISHED, TableLedger
from spark_channel.connectors.sql.nothing import NothingWriter
from spark_channel.connectors.sql.sqlite.database import Session, check_file
from spark_channel.connectors.sql.sqlite.ledger import ledger_of
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions, database_path
from spark_channel.connectors.sql.sqlite.publish import insert_files, make_ready, run_script, transaction
from spark_channel.connectors.sql.sqlite.script import session_statements, statements_of
from spark_channel.connectors.sql.sqlite.staging import Staging, clear_orphans
from spark_channel.connectors.sql.sqlite.tables import Table, find_table
from spark_channel.connectors.sql.sqlite.target import SqlitePlan, Target, new_target, old_target
from spark_channel.connectors.sql.sqlite.task import SqliteTaskWriter
from spark_channel.errors import CommitError, OptionError, TargetError
from spark_channel.options import CommitMode, WriteOptions

__all__ = ["SqliteWriter"]

_log = logging.getLogger(__name__)


class SqliteWriter(Writer):
    """Tasks stage Arrow files beside the database.

    `commit=job`: the driver inserts them all in one transaction, with the ledger's row. `commit=task`: each
    task inserts its own, with its ledger's row, so that a second attempt finds it and inserts nothing.
    """

    Options: ClassVar[type[WriteOptions]] = SqliteWriteOptions
    options: SqliteWriteOptions

    def __init__(self, options: SqliteWriteOptions) -> None:
        super().__init__(options)
        self._path = database_path(options.url, options.path)

    def prepare(self, context: WriteContext, schema: pa.Schema) -> SqlitePlan:
        statements_of(self.options.pre_sql, "preSql")
        statements_of(self.options.post_sql, "postSql")
        if self._path.exists():
            check_file(self._path, TargetError)
        hold_writable(self._path, "SQLite", "journal")
        table, published_at = self._look(context)
        target = self._target(table, schema, overwrite=context.overwrite)
        staging = Staging.of(self._path, context.job, context.batch)
        for orphan in clear_orphans(self._path, keep=staging):
            _log.warning("removed %s, which a job that is gone left behind", orphan)
        plan = SqlitePlan(
            job=context.job,
            schema=schema,
            commit=context.commit or self._default_commit(table, context),
            overwrite=context.overwrite,
            batch=context.batch,
            txn=context.txn,
            published_at=published_at,
            target=target,
            staging=str(staging.directory),
            token="" if published_at else staging.make(),
        )
        if plan.commit == "task" and published_at is None:
            try:
                self._prepare_tasks(plan)
            except BaseException:
                staging.remove()
                raise
        return plan

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        if plan.published_at is not None:
            return NothingWriter(Receipt(task, attempt, rows=0, nbytes=0))
        return SqliteTaskWriter(self._path, self.options, _own(plan), task, attempt)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        own = _own(plan)
        with self._session("ro", TargetError) as session:
            done = ledger_of(session, own.target.name).entry(own, task)
        if done is None:
            return None
        return Receipt(task, done.attempt, done.rows, done.nbytes, {"file": None})

    def unfinished(self, context: WriteContext) -> Unfinished | None:
        if not self._path.exists():
            return None
        with self._session("ro", TargetError) as session:
            _, ledger = self._known(session)
            return unfinished(ledger, context)

    def keep(self, plan: WritePlan, text: str) -> None:
        own = _own(plan)
        with self._session("rw", TargetError) as session, transaction(session):
            ledger_of(session, own.target.name).plans.keep(own.job, text)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        if plan.published_at is not None:
            return
        own = _own(plan)
        staging = Staging(Path(own.staging))
        refuse_two_receipts(receipts)
        new = not self._path.exists()
        try:
            with self._session("rwc", CommitError) as session:
                self._publish(session, own, receipts, staging)
        except BaseException as error:
            self._remove_empty(new)
            if isinstance(error, TargetError):
                raise CommitError(f"{error}. {self._standing(own)}") from error
            raise
        staging.remove()

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        own = _own(plan)
        if own.token:
            Staging(Path(own.staging)).remove()
        if own.commit == "task" and self._path.exists():
            with self._session("rw", TargetError) as session:
                ledger = ledger_of(session, own.target.name)
                done = ledger.tasks(own)
                if not done:
                    ledger.plans.drop(own.job)
                elif ledger.entry(own, PUBLISHED) is None:
                    _log.warning(
                        "job %s was aborted after %d of its tasks had committed their rows (commit=task): "
                        "they stay in table %s, and ledger %s names them",
                        own.job, len(done), own.target.name, LEDGER,
                    )  # fmt: skip

    def _session(self, mode: Literal["ro", "rw", "rwc"], failure: type[TargetError]) -> Session:
        init = session_statements(self.options.session_init_statement or ())
        return Session(self._path, mode, lock_timeout=self.options.lock_timeout, failure=failure, init=init)

    def _look(self, context: WriteContext) -> tuple[Table | None, str | None]:
        """The target's table, and when the transaction pair was published to it."""
        if not self._path.exists():
            return None, None
        with self._session("ro", TargetError) as session:
            table, ledger = self._known(session)
            published_at = ledger.published_at(context)
            if published_at is None:
                refuse_half_done(ledger, context)
        return table, published_at

    def _known(self, session: Session) -> tuple[Table | None, TableLedger]:
        table = find_table(session, self.options.dbtable)
        return table, ledger_of(session, table.name if table is not None else self._new_name())

    def _target(self, table: Table | None, schema: pa.Schema, *, overwrite: bool) -> Target:
        if table is not None and table.name == LEDGER:
            raise TargetError(f"{LEDGER} is the ledger; name another table")
        if table is not None and not (overwrite and not self.options.truncate):
            return old_target(table, schema, self.options)
        if table is None and not self.options.create_table:
            raise TargetError(
                f"there is no table {self.options.dbtable!r} in {self._path}, and 'createTable' is "
                "false; create it, "
                "or leave the option away"
            )
        return new_target(table.name if table is not None else self._new_name(), schema, self.options)

    def _new_name(self) -> str:
        """The name of a table that is not there yet: `main.` is dropped, other schemas are refused."""
        from sqlglot import exp

        text = self.options.dbtable
        try:
            tree = exp.to_table(text, dialect="sqlite")
        except Exception:  # sqlglot raises several kinds; a text that it cannot read is a name as it stands
            return text
        if not isinstance(tree.this, exp.Identifier) or tree.catalog or tree.alias:
            return text
        if tree.db.lower() not in ("", "main"):
            raise OptionError(
                f"option 'dbtable' got {text!r}; a SQLite file has one schema, main. A dot in a name "
                "is quoted",
                option="dbtable",
                got=text,
                takes="a table's name",
            )
        return tree.name

    def _default_commit(self, table: Table | None, context: WriteContext) -> CommitMode:
        """`task` writes an append once instead of twice; keys are told apart only within one transaction."""
        append = table is not None and not context.overwrite
        return "task" if append and self.options.write_mode == "insert" else "job"

    def _prepare_tasks(self, plan: SqlitePlan) -> None:
        """What `commit=task` changes before its tasks run: once, whoever asks."""
        new = not self._path.exists()
        try:
            with self._session("rwc", TargetError) as session:
                ledger = ledger_of(session, plan.target.name)
                with transaction(session):
                    ledger.create()
                    ledger.prune()
                    if ledger.entry(plan, PREPARED) is None:
                        run_script(session, self.options.pre_sql, "preSql")
                        make_ready(session, plan.target, self.options, overwrite=plan.overwrite)
                        ledger.add(plan, PREPARED)
        except BaseException:
            self._remove_empty(new)
            raise

    def _publish(
        self, session: Session, plan: SqlitePlan, receipts: Sequence[Receipt], staging: Staging
    ) -> None:
        ledger = ledger_of(session, plan.target.name)
        with transaction(session):
            if ledger.published_at(plan) is not None:
                return
            ledger.create()
            ledger.prune()
            if plan.commit == "job":
                self._insert_all(session, plan, receipts, staging)
            else:
                missing = {receipt.task for receipt in receipts} - ledger.tasks(plan)
                if missing:
                    raise CommitError(f"the ledger has no row of task {min(missing)}, which has a receipt")
            run_script(session, self.options.post_sql, "postSql")
            rows, nbytes = sum(each.rows for each in receipts), sum(each.nbytes for each in receipts)
            ledger.add(plan, PUBLISHED, rows=rows, nbytes=nbytes)
            if plan.commit == "task":
                ledger.plans.drop(plan.job)

    def _insert_all(
        self, session: Session, plan: SqlitePlan, receipts: Sequence[Receipt], staging: Staging
    ) -> None:
        files = []
        for receipt in sorted(receipts, key=lambda each: each.task):
            name = receipt.details.get("file")
            if name is not None:
                files.append(staging.directory / name)
                if not files[-1].is_file():
                    raise CommitError(f"the staged file {files[-1]} of task {receipt.task} is gone")
        run_script(session, self.options.pre_sql, "preSql")
        make_ready(session, plan.target, self.options, overwrite=plan.overwrite)
        inserted = insert_files(session, plan.target, self.options, files)
        promised = sum(receipt.rows for receipt in receipts)
        if inserted != promised:
            raise CommitError(f"{inserted} rows are staged, and the receipts say {promised}")

    def _standing(self, plan: SqlitePlan) -> str:
        if plan.commit == "task":
            return f"The rows of the tasks that committed stand in table {plan.target.name!r}"
        return f"Nothing of this job stands in table {plan.target.name!r}: its transaction was rolled back"

    def _remove_empty(self, new: bool) -> None:
        """A file that SQLite made for a transaction which then failed holds nothing."""
        try:
            if new and self._path.stat().st_size == 0:
                self._path.unlink()
        except FileNotFoundError:
            pass


def _own(plan: WritePlan) -> SqlitePlan:
    assert isinstance(plan, SqlitePlan)
    return plan
