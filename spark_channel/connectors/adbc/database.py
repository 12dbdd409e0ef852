"""Writes tables through an ADBC driver."""

import re
import secrets
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.adbc.dialect import (
    AdbcDialect,
    AdbcMerge,
    arranged,
    check_unique,
    claim_dialect,
    make_unique,
    may_skip,
    placed,
)
from spark_channel.connectors.adbc.loader import adbc_loading
from spark_channel.connectors.adbc.options import AdbcWriteOptions
from spark_channel.connectors.adbc.session import (
    AdbcSession,
    BusyError,
    is_busy,
    is_conflict,
    is_lost,
)
from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.base.feed import OPERATION, row_fields
from spark_channel.connectors.sql.catalog import Column, TargetTable, WriteColumn
from spark_channel.connectors.sql.statements import only_name
from spark_channel.connectors.sql.write.checks import check_stored
from spark_channel.connectors.sql.write.claim_tables import TASKS, ClaimDialect
from spark_channel.connectors.sql.write.in_session import in_transaction
from spark_channel.connectors.sql.write.loading import Loading
from spark_channel.connectors.sql.write.merge import PLACE
from spark_channel.connectors.sql.write.merge_key import merge_key
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.sessions import Tell, Traits, Verdict
from spark_channel.connectors.sql.write.table_database import (
    TableDatabase,
    staged_tables,
)
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import (
    OptionError,
    SchemaError,
    TargetError,
)
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of

__all__ = ["AdbcDatabase"]


_log = log_of(__name__)
_STAGE = re.compile(r"spark_channel_stage_[0-9a-f]{16}_\d+_")
_FIND = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass($1) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""


class AdbcDatabase(TableDatabase[AdbcSession]):
    """Rows are ingested by the driver, in transactions. `commit=job` needs CREATE TABLE in them, too."""

    Options: ClassVar[type[WriteOptions]] = AdbcWriteOptions
    options: AdbcWriteOptions
    dialect: AdbcDialect

    def __init__(self, options: AdbcWriteOptions) -> None:
        super().__init__(options, Traits(stages=options.makes_tables_in_transactions()))
        self.sql_name = options.sql_dialect()
        self.dialect = AdbcDialect(self.sql_name)

    @property
    def shown(self) -> str:
        return f"the database of ADBC driver {self.options.driver}"

    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> AdbcSession:
        session = AdbcSession(self.options, failure)
        if session.opens_the_file_alone:
            session.close()
            raise TargetError(
                f"{session.place}: each connection of DuckDB's driver opens the file as a database of its own, which "
                "does not see what others in the process write: rows would be lost, or written twice. It can only be "
                "read. Write with writer=duckdb, whose connections share the database"
            )
        if not session.has_transactions:
            session.close()
            raise TargetError(
                f"{session.place} has no transactions, so a task that is repeated would write its rows twice: it can "
                "only be read"
            )
        return session

    def verdict(self, error: BaseException) -> Verdict:
        verdict = Verdict.OTHER
        if isinstance(error, TargetError) and (is_busy(error) or is_lost(error)):
            verdict |= Verdict.LOST
        if is_conflict(error):
            verdict |= Verdict.CONFLICT
        return verdict

    def claim_dialect(self, session: AdbcSession, place: WriteTarget) -> ClaimDialect:
        return claim_dialect(session, place.schema, self.sql_name)

    def loading(
        self, claim: TaskClaim[AdbcSession], *, stages: bool = True
    ) -> Loading[AdbcSession]:
        return adbc_loading(self, self.options, claim)

    def stage_all(self, session: AdbcSession, plan: SqlPlan, rows: pa.Table) -> str:
        """A staging table, as SQL, for the rows of all tasks, or of one; `rows` are in it."""
        name = f"{plan.stage}merged_{secrets.token_hex(2)}"
        session.ingest(plan.target.schema, name, placed(rows, 0), "create")
        return self.dialect.place(plan.target.schema, name)

    def append(self, session: AdbcSession, plan: SqlPlan, rows: pa.Table) -> None:
        """Add rows to the table, in a transaction.

        Raises:
            BatchRefusedError: it has not stored all of them.
        """
        target = plan.target
        if may_skip(session, target, self.sql_name):
            self.merge_all(session, plan, rows)
            return
        stored = session.ingest(target.schema, target.name, rows, "append")
        if stored >= 0:
            check_stored(target.label, rows.num_rows, stored)

    def merge_all(self, session: AdbcSession, plan: SqlPlan, rows: pa.Table) -> None:
        """Bring `rows` into the table through a staging table."""
        stage = self.stage_all(session, plan, rows)
        self.merge(session, plan, stage, rows.num_rows)
        session.execute(f"DROP TABLE {stage}")

    def merge(self, session: AdbcSession, plan: SqlPlan, stage: str, rows: int) -> None:
        """Bring the `rows` of a staging table into the table."""
        mode = self.options.write_mode
        AdbcMerge(session, self.dialect, plan.target, stage, mode, rows).bring()

    @property
    def folds(self) -> bool:
        """Names that differ in the case of A to Z are one."""
        return self.sql_name in ("sqlite", "duckdb")

    def locate(self, session: AdbcSession) -> WriteTarget:
        schema, name = self.dialect.named(self.options.dbtable)
        if self.sql_name != "postgres":
            return self._look(session, schema, name)
        text = self.dialect.place(schema, name)
        rows = session.rows(_FIND, (text,))
        if rows:
            schema, name = (str(value) for value in rows[0])
            table = session.table_schema(schema, name)
            if table is None:
                raise TargetError(
                    f"table {schema}.{name} exists, but {self.shown} does not report its columns"
                )
            return WriteTarget(schema, name, f"{schema}.{name}", table)
        if schema is None and (schema := session.value("SELECT current_schema()::text")) is None:
            raise OptionError(
                f"option 'dbtable' got {self.options.dbtable!r} without a schema, and the search path is empty: "
                "name the schema",
                option="dbtable",
                got=self.options.dbtable,
            )
        return WriteTarget(schema, name, f"{schema}.{name}")

    def _look(self, session: AdbcSession, schema: str | None, name: str) -> WriteTarget:
        """By the name that the catalog has: one table has one claim, however it is spelled."""
        if self.sql_name == "sqlite" and (schema or "").lower() == "main":
            schema = None  # the driver's name for it
        table = session.table_schema(schema, name)
        if table is not None:
            name = session.spelled(schema, name, folds=True) or name
            session.undo()
        space = schema or session.current_schema()
        # SQLite's and DuckDB's own connectors, which share the claims, leave "main" out.
        label = name if not space or (self.folds and space.lower() == "main") else f"{space}.{name}"
        return WriteTarget(schema or "", name, label, table, folds=self.folds)

    def check(self, context: WriteContext) -> None:
        commit = context.commit or ("job" if context.stream is not None else "task")
        if commit == "job" and not self.options.makes_tables_in_transactions():
            spoken = self.sql_name or "an unknown SQL"
            mode = "a stream, which needs commit=job" if context.commit is None else "'job'"
            raise OptionError(
                f"option 'commit' got {mode}; {self.shown} speaks {spoken}, "
                "whose CREATE TABLE may end the transaction that publishes staged rows: it takes 'task'. If the "
                "database makes tables in transactions, name its SQL with 'dialect'",
                option="commit",
                got="job",
                takes="task",
            )
        super().check(context)

    def match(
        self, session: AdbcSession, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        table: pa.Schema | None = place.table
        feed = self.options.write_mode == "apply"
        fields = row_fields(plan.schema) if feed else list(plan.schema)
        names = self._names(table, fields)
        columns = tuple(
            WriteColumn(field.name, Column(name, str(field.type)), field.type)
            for field, name in zip(fields, names, strict=True)
        )
        target = TargetTable(
            place.schema,
            place.name,
            place.label,
            self.dialect.place(place.schema, place.name),
            columns,
            key=merge_key(
                self.options,
                names,
                only_name,
                self.options.dbtable,
                None if table is None else (),
            ),
            operation=OPERATION if feed else None,
        )
        if target.key and table is not None:
            check_unique(session, target, self.dialect)
        return replace(plan, target=target)

    def _names(self, table: pa.Schema | None, fields: Sequence[pa.Field]) -> list[str]:
        """The table's names of the rows' columns."""
        if table is None:
            return [field.name for field in fields]
        names = []
        for field in fields:
            column_name = only_name(field.name, table.names)
            if column_name is None:
                raise SchemaError(
                    f"column {field.name!r} is not in table {self.options.dbtable!r}, "
                    f"which has {', '.join(table.names)}"
                )
            names.append(column_name)
        return names

    # A staging table for each attempt

    def make_staging(
        self, session: AdbcSession, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        _check_undone(self, session, plan)
        return plan  # each attempt makes its own table

    def staging_names(self, session: AdbcSession, place: WriteTarget, beginning: str) -> list[str]:
        return [
            name for name in session.tables(place.schema or None, beginning) if _STAGE.match(name)
        ]

    def drop_staging(self, session: AdbcSession, place: WriteTarget, names: Sequence[str]) -> None:
        for name in names:
            table = self.dialect.place(place.schema, name)
            try:
                with in_transaction(self, session):
                    if self.sql_name == "postgres":
                        session.execute("SET LOCAL lock_timeout = '2s'")
                    session.execute(f"DROP TABLE IF EXISTS {table}")
            except TargetError as error:
                if not is_busy(error):
                    raise
                _log.warning(
                    "staging table %s is in use, and stays for the next job to remove", name
                )

    @contextmanager
    def around(
        self, session: AdbcSession, plan: SqlPlan, tell: Tell, *, publishes: bool
    ) -> Iterator[None]:
        """Make the table before the transaction, where that would commit what is in it."""
        if not publishes:
            _check_undone(self, session, plan)
            if not self.options.makes_tables_in_transactions():
                self._ready(session, plan, empty=False)
                session.commit()
        yield

    def make_ready(
        self,
        session: AdbcSession,
        plan: SqlPlan,
        place: WriteTarget,
        context: WriteContext,
        *,
        first: bool,
    ) -> tuple[SqlPlan, bool]:
        self._ready(session, plan, empty=first and plan.overwrite)
        return plan, False  # there is nothing to complete

    def _ready(self, session: AdbcSession, plan: SqlPlan, *, empty: bool) -> None:
        target = plan.target
        if session.spelled(target.schema or None, target.name, folds=self.folds) is None:
            fields = [pa.field(column.target, column.kind) for column in target.columns]
            try:
                session.ingest(
                    target.schema, target.name, pa.schema(fields).empty_table(), "create"
                )
            except TargetError as error:
                if is_conflict(error):
                    # Another job has made it: this one tries again, and writes to it.
                    raise BusyError(str(error)) from error
                raise
            if target.key:
                make_unique(session, target, self.dialect)
        elif empty:
            session.execute(f"DELETE FROM {target.sql}")  # noqa: S608 - a quoted name

    def publish(
        self,
        session: AdbcSession,
        plan: SqlPlan,
        receipts: Sequence[Receipt],
        pre_sql: Callable[[], None],
    ) -> bool:
        in_schema = partial(self.dialect.place, plan.target.schema)
        staged = staged_tables(session, receipts, in_schema)
        pre_sql()
        self._ready(session, plan, empty=plan.overwrite)
        target = plan.target
        if not target.key:
            for table, rows in staged:
                self.merge(session, plan, table, rows)
            return False
        merged = self.stage_all(session, plan, arranged(plan.schema.empty_table(), target))
        column_list = ", ".join(map(self.dialect.quoted, target.staged_names))
        before = 0
        for table, rows in staged:
            session.execute(
                f"INSERT INTO {merged} ({column_list}, {PLACE}) SELECT {column_list}, {PLACE} + {before:d} FROM {table}"  # noqa: S608 - names are quoted
            )
            before += rows
        self.merge(session, plan, merged, before)
        session.execute(f"DROP TABLE {merged}")
        return False


def _check_undone(database: AdbcDatabase, session: AdbcSession, plan: SqlPlan) -> None:
    """Check that the driver undoes what a transaction wrote, and with `commit=job` the table that it made.

    Some drivers accept the end of autocommit and commit each statement. 'dialect' may name another database's SQL.

    Raises:
        TargetError: something stays, which is removed.
    """
    table, key = database.claim_dialect(session, plan.place).table(TASKS), uuid.uuid4().hex
    trial = f"{plan.stage}undone_{secrets.token_hex(2)}"
    session.undo()
    session.execute(
        f"INSERT INTO {table} (claim, task, attempt, row_count, byte_count, committed_at) "  # noqa: S608 - a quoted name
        f"VALUES ('{key}', 0, 0, 0, 0, '-')"
    )
    if plan.commit == "job":
        session.ingest(plan.target.schema, trial, pa.table({"n": [1]}), "create")
    session.undo()
    stays = session.rows(f"SELECT 1 FROM {table} WHERE claim = '{key}'")  # noqa: S608 - names are quoted
    if not stays and not (
        plan.commit == "job" and session.tables(plan.target.schema or None, trial)
    ):
        session.undo()
        return
    session.execute(f"DELETE FROM {table} WHERE claim = '{key}'")  # noqa: S608 - names are quoted
    session.commit()
    database.drop_staging(session, plan.place, [trial])
    consequence = "a task that is repeated would write its rows twice: it can only be read"
    if plan.commit == "job":
        consequence = (
            "rows that it publishes could appear twice or in part: set 'commit' to task, and 'dialect' to the SQL "
            "that the database speaks"
        )
    raise TargetError(f"{session.place} does not undo what a transaction wrote, so {consequence}")
