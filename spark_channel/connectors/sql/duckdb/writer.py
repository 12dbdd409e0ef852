"""Writes a table of a DuckDB file, atomically."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from spark_channel.connectors.contracts import TaskWriter, WriteContext
from spark_channel.connectors.sql.claims import ClaimDialect
from spark_channel.connectors.sql.database_file import hold_writable
from spark_channel.connectors.sql.duckdb.database import Session, check_file, is_conflict
from spark_channel.connectors.sql.duckdb.options import DuckdbWriteOptions, database_path
from spark_channel.connectors.sql.duckdb.publish import insert_files, make_ready, run_script, transaction
from spark_channel.connectors.sql.duckdb.tables import find_table, readings
from spark_channel.connectors.sql.duckdb.target import DuckdbPlan, new_target, old_target
from spark_channel.connectors.sql.duckdb.task import DuckdbTaskWriter
from spark_channel.connectors.sql.file_writer import FileWriter
from spark_channel.connectors.sql.script import session_script, split_script
from spark_channel.connectors.sql.writer import Place, SqlPlan
from spark_channel.errors import CommitError, OptionError, TargetError
from spark_channel.options import CommitMode, WriteOptions
from spark_channel.retry import Retry

__all__ = ["DuckdbWriter"]

_T = TypeVar("_T")


class DuckdbWriter(FileWriter):
    """Tasks stage Arrow files beside the database; the driver's host inserts them all in one transaction.

    No task opens the database: DuckDB lets one process write it at a time.
    """

    Options: ClassVar[type[WriteOptions]] = DuckdbWriteOptions
    options: DuckdbWriteOptions

    def __init__(self, options: DuckdbWriteOptions) -> None:
        super().__init__(options)
        self.path = database_path(options.url, options.path)

    def check(self, context: WriteContext) -> None:
        if context.commit == "task":
            raise OptionError(
                "option 'commit' got 'task'; a DuckDB file is written in one transaction: it takes 'job'",
                option="commit",
                got="task",
                takes="job",
            )
        split_script(self.options.pre_sql, "preSql", "duckdb")
        split_script(self.options.post_sql, "postSql", "duckdb")
        if self.path.exists():
            check_file(self.path, TargetError)
        hold_writable(self.path, "DuckDB", "log")

    def default_commit(self, place: Place, context: WriteContext) -> CommitMode:
        return "job"

    def plan(self, session: Any, plan: SqlPlan, place: Place, context: WriteContext) -> SqlPlan:
        table = place.table
        if table is not None and not (plan.overwrite and not self.options.truncate):
            target = old_target(table, plan.schema, self.options)
        else:
            target = new_target(place.schema, place.name, plan.schema, self.options)
        return DuckdbPlan(**vars(plan), target=target)

    def look(self, session: Session) -> Place:
        table = find_table(session, self.options.dbtable)
        return self.new_place() if table is None else Place(table.schema, table.name, table.label, table)

    def new_place(self) -> Place:
        schema, name = readings(self.options.dbtable)[-1]
        return Place(schema, name, name if schema == "main" else f"{schema}.{name}")

    def make_ready(
        self, session: Any, plan: SqlPlan, place: Place, context: WriteContext, *, first: bool
    ) -> SqlPlan:
        raise AssertionError("commit=task is refused")

    def open_task(self, plan: Any, task: int, attempt: int) -> TaskWriter:
        return DuckdbTaskWriter(plan, task, attempt)

    def publish_staged(self, session: Any, plan: Any, receipts: Sequence[Any]) -> None:
        files = self.staged_files(plan, receipts)
        run_script(session, self.options.pre_sql, "preSql")
        make_ready(session, plan.target, self.options, overwrite=plan.overwrite)
        inserted = insert_files(session, plan.target, self.options, files)
        promised = sum(receipt.rows for receipt in receipts)
        if inserted != promised:
            raise CommitError(f"{inserted} rows are staged, and the receipts say {promised}")

    def script(self, session: Any, texts: Sequence[str], option: str) -> None:
        run_script(session, texts, option)

    def run(self, failure: type[TargetError], purpose: str, work: Callable[[Any], _T]) -> _T:
        """Transactions of one process meet at their ends: the one that ends last is refused, and begins again."""
        base = super().run
        return Retry(self.options.lock_timeout, first=0.02, longest=0.5, what=purpose).call(
            lambda: base(failure, purpose, work),
            lambda error: isinstance(error, TargetError) and is_conflict(error),
        )

    @contextmanager
    def open_file(self, path: Path, failure: type[TargetError], *, new: bool = False) -> Iterator[Session]:
        with Session(
            path,
            read_only=False,
            lock_timeout=self.options.lock_timeout,
            failure=failure,
            init=session_script(self.options, "duckdb"),
        ) as session:
            yield session

    @contextmanager
    def transaction(self, session: Any) -> Iterator[None]:
        with transaction(session):
            yield

    def is_conflict(self, error: TargetError) -> bool:
        return is_conflict(error)

    def claim_dialect(self, session: Any, place: Place) -> ClaimDialect:
        def exists(name: str) -> bool:
            query = (
                "SELECT 1 FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = 'main' "
                "AND table_name = ?"
            )
            return bool(session.rows(query, (name,)))

        return ClaimDialect(table=lambda name: f"main.{name}", exists=exists)
