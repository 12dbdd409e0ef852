"""Writes a table of a SQLite file: atomically (`commit=job`), or task by task (`commit=task`)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

from spark_channel.connectors.contracts import TaskWriter
from spark_channel.connectors.sql.claims import ClaimDialect
from spark_channel.connectors.sql.file_writer import FileWriter
from spark_channel.connectors.sql.named import is_plain_name, parsed_name
from spark_channel.connectors.sql.sqlite.database import SqliteSession, check_file, refuses_data
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.sqlite.publish import insert_files
from spark_channel.connectors.sql.sqlite.script import session_statements
from spark_channel.connectors.sql.sqlite.target import SqliteWriteDialect
from spark_channel.connectors.sql.sqlite.task import SqliteTaskWriter
from spark_channel.connectors.sql.write_dialect import WriteDialect
from spark_channel.connectors.sql.writer import Place
from spark_channel.errors import OptionError, TargetError
from spark_channel.options import WriteOptions

__all__ = ["SqliteWriter"]


class SqliteWriter(FileWriter):
    """Tasks stage Arrow files beside the database.

    `commit=job`: the driver inserts them all in one transaction. `commit=task`: each task inserts its own in one.
    """

    Options: ClassVar[type[WriteOptions]] = SqliteWriteOptions
    options: SqliteWriteOptions
    dialect: WriteDialect = SqliteWriteDialect()
    beside = "journal"

    def check_file(self) -> None:
        check_file(self.path, TargetError)

    def new_place(self) -> Place:
        return self.place("main", self._new_name())

    def open_task(self, plan: Any, task: int, attempt: int) -> TaskWriter:
        return SqliteTaskWriter(self, plan, task, attempt)

    def insert_files(self, session: Any, plan: Any, files: Sequence[Path]) -> int:
        return insert_files(session, plan.target, self.options, files)

    @contextmanager
    def open_file(
        self, path: Path, failure: type[TargetError], *, new: bool = False
    ) -> Iterator[SqliteSession]:
        init = session_statements(self.options.session_init_statement or ())
        timeout = self.options.lock_timeout
        mode: Literal["rw", "rwc"] = "rwc" if new or not path.exists() else "rw"
        with SqliteSession(path, mode, lock_timeout=timeout, failure=failure, init=init) as session:
            yield session

    def is_refusal(self, error: BaseException) -> bool:
        return super().is_refusal(error) or refuses_data(error)

    def is_conflict(self, error: TargetError) -> bool:
        return False  # a transaction begins with the file's one write lock

    def claim_dialect(self, session: Any, place: Place) -> ClaimDialect:
        def listed(kind: str, column: str, name: str) -> bool:
            query = f"SELECT 1 FROM main.sqlite_master WHERE type = '{kind}' AND {column} = ?"  # noqa: S608 - constants
            return bool(session.rows(query, (name,)))

        return ClaimDialect(
            table=lambda name: f"main.{name}",
            exists=lambda name: listed("table", "name", name),
            after=" WITHOUT ROWID",
            share="",
            update="",
            distrust=lambda name: "it has a trigger" if listed("trigger", "tbl_name", name) else None,
        )

    def _new_name(self) -> str:
        """The name of a table that is not there yet: `main.` is dropped, other schemas are refused."""
        text = self.options.dbtable
        tree = None if is_plain_name(text) else parsed_name(text, "sqlite")
        if tree is None:
            return text
        if tree.db.lower() not in ("", "main"):
            raise OptionError(
                f"option 'dbtable' got {text!r}; a SQLite file has one schema, main. A dot in a name is quoted",
                option="dbtable",
                got=text,
                takes="a table's name",
            )
        return tree.name
