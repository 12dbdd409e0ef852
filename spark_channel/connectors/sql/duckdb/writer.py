"""Writes a table of a DuckDB file, atomically."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.contracts import Receipt, TaskWriter, WriteContext, WritePlan, Writer
from spark_channel.connectors.sql.database_file import hold_writable
from spark_channel.connectors.sql.duckdb.database import Session, check_file
from spark_channel.connectors.sql.duckdb.ledger import ledger_of
from spark_channel.connectors.sql.duckdb.options import DuckdbWriteOptions, database_path
from spark_channel.connectors.sql.duckdb.publish import insert_files, make_ready, run_script, transaction
from spark_channel.connectors.sql.duckdb.tables import Table, find_table, readings
from spark_channel.connectors.sql.duckdb.target import DuckdbPlan, Target, new_target, old_target
from spark_channel.connectors.sql.duckdb.task import DuckdbTaskWriter
from spark_channel.connectors.sql.half_done import refuse_two_receipts
from spark_channel.connectors.sql.ledger import LEDGER, PUBLISHED
from spark_channel.connectors.sql.nothing import NothingWriter
from spark_channel.connectors.sql.script import session_script, split_script
from spark_channel.connectors.sql.staging_files import Staging, clear_orphans
from spark_channel.errors import CommitError, OptionError, TargetError
from spark_channel.options import WriteOptions

__all__ = ["DuckdbWriter"]

_log = logging.getLogger(__name__)


class DuckdbWriter(Writer):
    """Tasks stage Arrow files beside the database; the driver's host inserts them all in one transaction.

    No task opens the database: DuckDB lets one process write it at a time.
    """

    Options: ClassVar[type[WriteOptions]] = DuckdbWriteOptions
    options: DuckdbWriteOptions

    def __init__(self, options: DuckdbWriteOptions) -> None:
        super().__init__(options)
        self._path = database_path(options.url, options.path)

    def prepare(self, context: WriteContext, schema: pa.Schema) -> DuckdbPlan:
        if context.commit == "task":
            raise OptionError(
                "option 'commit' got 'task'; a DuckDB file is written in one transaction: it takes 'job'",
                option="commit",
                got="task",
                takes="job",
            )
        split_script(self.options.pre_sql, "preSql", "duckdb")
        split_script(self.options.post_sql, "postSql", "duckdb")
        if self._path.exists():
            check_file(self._path, TargetError)
        hold_writable(self._path, "DuckDB", "log")
        table, published_at = self._look(context)
        target = self._target(table, schema, overwrite=context.overwrite)
        staging = Staging.of(self._path, context.job, context.batch)
        for orphan in clear_orphans(self._path, keep=staging):
            _log.warning("removed %s, which a job that is gone left behind", orphan)
        return DuckdbPlan(
            job=context.job,
            schema=schema,
            commit="job",
            overwrite=context.overwrite,
            batch=context.batch,
            txn=context.txn,
            published_at=published_at,
            target=target,
            staging=str(staging.directory),
            token="" if published_at else staging.make(),
        )

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        if plan.published_at is not None:
            return NothingWriter(Receipt(task, attempt, rows=0, nbytes=0))
        return DuckdbTaskWriter(_own(plan), task, attempt)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        if plan.published_at is not None:
            return
        own = _own(plan)
        staging = Staging(Path(own.staging))
        refuse_two_receipts(receipts)
        new = not self._path.exists()
        try:
            with self._session(read_only=False, failure=CommitError) as session:
                self._publish(session, own, receipts, staging)
        except BaseException as error:
            if new:
                self._remove_new()
            if isinstance(error, TargetError):
                raise CommitError(
                    f"{error}. Nothing of this job stands in table {own.target.label!r}: its transaction was "
                    "rolled back"
                ) from error
            raise
        staging.remove()

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        own = _own(plan)
        if own.token:
            Staging(Path(own.staging)).remove()

    def _session(self, *, read_only: bool, failure: type[TargetError]) -> Session:
        return Session(
            self._path,
            read_only=read_only,
            lock_timeout=self.options.lock_timeout,
            failure=failure,
            init=session_script(self.options, "duckdb"),
        )

    def _look(self, context: WriteContext) -> tuple[Table | None, str | None]:
        """The target's table, and when the transaction pair was published to it."""
        if not self._path.exists():
            return None, None
        with self._session(read_only=True, failure=TargetError) as session:
            table = find_table(session, self.options.dbtable)
            label = table.label if table is not None else ".".join(_shown(self._new_name()))
            return table, ledger_of(session, label).published_at(context)

    def _target(self, table: Table | None, schema: pa.Schema, *, overwrite: bool) -> Target:
        if table is not None and table.name == LEDGER:
            raise TargetError(f"{LEDGER} is the ledger; name another table")
        if table is not None and not (overwrite and not self.options.truncate):
            return old_target(table, schema, self.options)
        if table is None and not self.options.create_table:
            raise TargetError(
                f"there is no table {self.options.dbtable!r} in {self._path}, and 'createTable' is false; "
                "create it, or leave the option away"
            )
        schema_name, name = (table.schema, table.name) if table is not None else self._new_name()
        return new_target(schema_name, name, schema, self.options)

    def _new_name(self) -> tuple[str, str]:
        """(schema, name) of a table that is not there yet."""
        return readings(self.options.dbtable)[-1]

    def _publish(
        self, session: Session, plan: DuckdbPlan, receipts: Sequence[Receipt], staging: Staging
    ) -> None:
        ledger = ledger_of(session, plan.target.label)
        with transaction(session):
            if ledger.published_at(plan) is not None:
                return
            ledger.create()
            ledger.prune()
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
            run_script(session, self.options.post_sql, "postSql")
            nbytes = sum(each.nbytes for each in receipts)
            ledger.add(plan, PUBLISHED, rows=promised, nbytes=nbytes)

    def _remove_new(self) -> None:
        """A file that DuckDB made for a transaction which then failed holds nothing."""
        try:
            with self._session(read_only=True, failure=TargetError) as session:
                empty = not session.rows("SELECT 1 FROM duckdb_tables() LIMIT 1")
        except TargetError:
            return
        if empty:
            for path in (self._path, self._path.with_name(self._path.name + ".wal")):
                path.unlink(missing_ok=True)


def _shown(name: tuple[str, str]) -> tuple[str, ...]:
    return name[1:] if name[0] == "main" else name


def _own(plan: WritePlan) -> DuckdbPlan:
    assert isinstance(plan, DuckdbPlan)
    return plan
