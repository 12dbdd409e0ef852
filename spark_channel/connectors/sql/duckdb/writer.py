"""Writes a table of a DuckDB file, atomically."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from spark_channel.connectors.contracts import TaskWriter, WriteContext
from spark_channel.connectors.sql.claims import ClaimDialect
from spark_channel.connectors.sql.duckdb.database import DuckdbSession, check_file
from spark_channel.connectors.sql.duckdb.options import DuckdbWriteOptions
from spark_channel.connectors.sql.duckdb.publish import insert_files
from spark_channel.connectors.sql.duckdb.target import DuckdbWriteDialect
from spark_channel.connectors.sql.duckdb.task import DuckdbTaskWriter
from spark_channel.connectors.sql.file_writer import FileWriter
from spark_channel.connectors.sql.named import name_readings
from spark_channel.connectors.sql.script import session_script
from spark_channel.connectors.sql.write_dialect import WriteDialect
from spark_channel.connectors.sql.writer import Place
from spark_channel.errors import OptionError, TargetError
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
    dialect: WriteDialect = DuckdbWriteDialect()
    beside = "log"

    def check(self, context: WriteContext) -> None:
        if context.commit == "task":
            raise OptionError(
                "option 'commit' got 'task'; a DuckDB file is written in one transaction: it takes 'job'",
                option="commit",
                got="task",
                takes="job",
            )
        super().check(context)

    def check_file(self) -> None:
        check_file(self.path, TargetError)

    def default_commit(self, place: Place, context: WriteContext) -> CommitMode:
        return "job"

    def new_place(self) -> Place:
        schema, name = name_readings(self.options.dbtable, "duckdb", "main")[-1]
        return self.place(schema, name)

    def open_task(self, plan: Any, task: int, attempt: int) -> TaskWriter:
        return DuckdbTaskWriter(self, plan, task, attempt)

    def insert_files(self, session: Any, plan: Any, files: Sequence[Path]) -> int:
        return insert_files(session, plan.target, self.options, files)

    def run(
        self, failure: type[TargetError], purpose: str, work: Callable[[Any], _T], *, begins: bool = False
    ) -> _T:
        """Transactions of one process meet at their ends: the one that ends last is refused, and begins again."""
        base = super().run
        return Retry(self.options.lock_timeout, first=0.02, longest=0.5, what=purpose).call(
            lambda: base(failure, purpose, work),
            lambda error: isinstance(error, TargetError) and self.is_conflict(error),
        )

    @contextmanager
    def open_file(
        self, path: Path, failure: type[TargetError], *, new: bool = False
    ) -> Iterator[DuckdbSession]:
        with DuckdbSession(
            path,
            read_only=False,
            lock_timeout=self.options.lock_timeout,
            failure=failure,
            init=session_script(self.options, "duckdb"),
        ) as session:
            yield session

    def is_conflict(self, error: TargetError) -> bool:
        """Another transaction of this process was first."""
        text = str(error)
        return ("ransaction" in text and "onflict" in text) or "write-write conflict" in text

    def claim_dialect(self, session: Any, place: Place) -> ClaimDialect:
        def exists(name: str) -> bool:
            query = (
                "SELECT 1 FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = 'main' "
                "AND table_name = ?"
            )
            return bool(session.rows(query, (name,)))

        return ClaimDialect(table=lambda name: f"main.{name}", exists=exists)
