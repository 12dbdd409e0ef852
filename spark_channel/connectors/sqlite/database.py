"""Writes a table of a SQLite file: atomically (`commit=job`), or task by task (`commit=task`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa

from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.sql.catalog import Table
from spark_channel.connectors.sql.definition import NewTable, free_names
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.statements import is_plain_name, parsed_name
from spark_channel.connectors.sql.write.claim_tables import CLAIMS, PUBLISHED, ClaimDialect
from spark_channel.connectors.sql.write.file_database import FileDatabase
from spark_channel.connectors.sql.write.loading import Loading
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.sessions import Traits, Verdict
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.connectors.sqlite.definition import read_definition, tried
from spark_channel.connectors.sqlite.dialect import SqliteTable, SqliteWriteDialect, look_up
from spark_channel.connectors.sqlite.loader import SqliteLoader, encoded, insert_files
from spark_channel.connectors.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sqlite.session import (
    SqliteSession,
    check_file,
    refuses_data,
    session_statements,
)
from spark_channel.errors import OptionError, TargetError
from spark_channel.options import WriteOptions

__all__ = [
    "SqliteDatabase",
]


class SqliteDatabase(FileDatabase[SqliteSession]):
    """Tasks stage Arrow files beside the database.

    `commit=job`: the driver inserts them all in one transaction. `commit=task`: each task inserts its own in one.
    """

    Options: ClassVar[type[WriteOptions]] = SqliteWriteOptions
    options: SqliteWriteOptions
    dialect: WriteDialect = SqliteWriteDialect()
    beside = "journal"

    def __init__(self, options: SqliteWriteOptions) -> None:
        super().__init__(options, Traits(server=None, look_up=look_up))

    def check_file(self) -> None:
        check_file(self.path, TargetError)

    def new_place(self, session: SqliteSession | None) -> tuple[str, str]:
        return "main", self._new_name()

    def tried(
        self,
        session: SqliteSession | None,
        place: WriteTarget,
        definition: TableDefinition,
        rows: pa.Schema,
    ) -> NewTable | str:
        index_names = () if session is None else self.dialect.index_names(session, place.schema)
        name_of = free_names({place.name, *index_names}, None, folds=True)
        return tried(definition, rows, place.name, name_of)

    def read_definition(self, session: SqliteSession, table: Table) -> TableDefinition:
        assert isinstance(table, SqliteTable)
        return read_definition(session, table)

    def loading(
        self, claim: TaskClaim[SqliteSession], *, stages: bool = True
    ) -> Loading[SqliteSession]:
        tolerant = self.options.tolerates_dirty_rows

        def staged(batch: pa.RecordBatch, before: int) -> pa.RecordBatch:
            return batch if tolerant else encoded(claim, batch, before)

        staging = self.staging_of(claim, staged)
        return Loading(
            lambda: self.open_file(self.path, TargetError),
            held=SqliteLoader(self, self.options, claim, staging)
            if claim.plan.commit == "task"
            else None,
            staging=staging,
            flush=staging.flush,
            seconds=0.0,
            shows_life=False,  # the file's own does
            judges_last=True,
        )

    def insert_files(self, session: SqliteSession, plan: SqlPlan, files: Sequence[Path]) -> int:
        return insert_files(session, plan.target, self.options, files)

    def open_file(
        self, path: Path, failure: type[TargetError], *, new: bool = False
    ) -> SqliteSession:
        init = session_statements(self.options.session_init_statement or ())
        timeout = self.options.lock_timeout
        mode: Literal["rw", "rwc"] = "rwc" if new or not path.exists() else "rw"
        if self.options.start_sql or self.options.pre_sql or self.options.post_sql:
            # What these leave in a session, such as a temporary trigger, is not for the next table.
            return SqliteSession(path, mode, lock_timeout=timeout, failure=failure, init=init)
        return SqliteSession.kept(path, mode, lock_timeout=timeout, failure=failure, init=init)

    def verdict(self, error: BaseException) -> Verdict:
        """None is of a conflict: a transaction begins with the file's one write lock."""
        return Verdict.REFUSED_ROW if refuses_data(error) else Verdict.OTHER

    def claim_dialect(self, session: SqliteSession, place: WriteTarget) -> ClaimDialect:
        def listed(kind: str, column: str, name: str) -> bool:
            query = f"SELECT 1 FROM main.sqlite_master WHERE type = '{kind}' AND {column} = ?"  # noqa: S608 - constants
            return bool(session.rows(query, (name,)))

        return ClaimDialect(
            table=lambda name: f"main.{name}",
            exists=lambda name: listed("index" if name == PUBLISHED else "table", "name", name),
            after=" WITHOUT ROWID",
            share="",
            update="",
            distrust=lambda name: (
                "it has a trigger" if listed("trigger", "tbl_name", name) else None
            ),
            index=f"CREATE INDEX main.{PUBLISHED} ON {CLAIMS} (kind, published_at)",
        )

    def _new_name(self) -> str:
        """The name of a table that does not exist yet: `main.` is dropped, other schemas are refused."""
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
