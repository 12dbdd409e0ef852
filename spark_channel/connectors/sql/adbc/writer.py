"""Writes a table through an ADBC driver: atomically (`commit=job`), or task by task (`commit=task`)."""

import logging
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, TypeVar

import pyarrow as pa

from spark_channel.connectors.contracts import Receipt, TaskWriter, WriteContext
from spark_channel.connectors.sql.adbc.claims import claim_dialect
from spark_channel.connectors.sql.adbc.merge import Merged, hold_unique, make_unique, placed
from spark_channel.connectors.sql.adbc.options import AdbcWriteOptions
from spark_channel.connectors.sql.adbc.plan import AdbcPlan
from spark_channel.connectors.sql.adbc.session import BusyError, Session, is_busy, is_conflict, is_lost
from spark_channel.connectors.sql.adbc.tables import named, quoted, same_name, source_of
from spark_channel.connectors.sql.adbc.task import AdbcTaskWriter
from spark_channel.connectors.sql.change_feed import OPERATION, row_fields
from spark_channel.connectors.sql.claims import ClaimDialect
from spark_channel.connectors.sql.keys import merge_key
from spark_channel.connectors.sql.script import split_script
from spark_channel.connectors.sql.writer import Place, SqlPlan, SqlWriter
from spark_channel.errors import CommitError, OptionError, SchemaError, TargetError
from spark_channel.options import CommitMode, WriteOptions
from spark_channel.retry import Retry

__all__ = ["AdbcWriter"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_STAGE = re.compile(r"spark_channel_stage_[0-9a-f]{16}_\d+_")
_RETRY_SECONDS = 60.0
_FIND = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass($1) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""


class AdbcWriter(SqlWriter):
    """Rows are ingested by the driver. A database must have transactions, also for CREATE TABLE of staging."""

    Options: ClassVar[type[WriteOptions]] = AdbcWriteOptions
    options: AdbcWriteOptions

    def __init__(self, options: AdbcWriteOptions) -> None:
        super().__init__(options)
        self.sql_name = options.sql_dialect()

    @property
    def shown(self) -> str:
        return f"the database of ADBC driver {self.options.driver}"

    def check(self, context: WriteContext) -> None:
        split_script(self.options.pre_sql, "preSql", self.sql_name)
        split_script(self.options.post_sql, "postSql", self.sql_name)

    def run(self, failure: type[TargetError], purpose: str, work: Callable[[Session], _T]) -> _T:
        reached = False  # a wrong address is reported immediately

        def again(error: Exception) -> bool:
            return reached and isinstance(error, TargetError) and (is_busy(error) or is_lost(error))

        def attempt() -> _T:
            nonlocal reached
            with self.session(failure) as session:
                reached = True
                return work(session)

        return Retry(_RETRY_SECONDS, what=purpose).call(attempt, again)

    def session(self, failure: type[TargetError]) -> Session:
        return Session(self.options, failure)

    @contextmanager
    def transaction(self, session: Session) -> Iterator[None]:
        session.rollback()  # reads before this one have begun a transaction
        try:
            yield
            session.commit()
        except BaseException:
            try:
                session.rollback()
            except TargetError:
                pass  # it ended with its connection
            raise

    def is_conflict(self, error: TargetError) -> bool:
        return is_conflict(error)

    @property
    def script_dialect(self) -> str:
        return self.sql_name

    def claim_dialect(self, session: Session, place: Place) -> ClaimDialect:
        return claim_dialect(session, place.schema, self.sql_name)

    def look(self, session: Session) -> Place:
        schema, name = named(self.options.dbtable, self.sql_name)
        if self.sql_name != "postgres":
            label = name if schema is None else f"{schema}.{name}"
            return Place(schema or "", name, label, session.table_schema(schema, name))
        text = source_of(schema, name).expression.sql(self.sql_name)
        found = session.rows(_FIND, (text,))
        if found:
            schema, name = (str(each) for each in found[0])
            table = session.table_schema(schema, name)
            if table is None:
                raise TargetError(
                    f"table {schema}.{name} is there, and {self.shown} does not tell its columns"
                )
            return Place(schema, name, f"{schema}.{name}", table)
        if schema is None and (schema := session.value("SELECT current_schema()::text")) is None:
            raise OptionError(
                f"option 'dbtable' got {self.options.dbtable!r}, and there is no schema on the search path: name one",
                option="dbtable",
                got=self.options.dbtable,
            )
        return Place(schema, name, f"{schema}.{name}")

    def plan(self, session: Session, plan: SqlPlan, place: Place, context: WriteContext) -> AdbcPlan:
        there: pa.Schema | None = place.table
        names = self._names(there, plan.schema)
        own = AdbcPlan(**vars(plan), names=names, key=self._key(there is not None, names))
        if own.key and there is not None:
            hold_unique(session, own, self.sql_name)
        return own

    def default_commit(self, place: Place, context: WriteContext) -> CommitMode:
        tolerant = context.stream is None and self.options.tolerates_dirty_rows
        return "task" if tolerant else super().default_commit(place, context)

    def _names(self, there: pa.Schema | None, schema: pa.Schema) -> tuple[str, ...]:
        feed = self.options.write_mode == "apply"
        if feed:
            row_fields(schema)
        if there is None:
            return tuple(schema.names)
        found = []
        for name in schema.names:
            known = name if feed and name == OPERATION else same_name(name, there.names)
            if known is None:
                raise SchemaError(
                    f"column {name!r} is not in table {self.options.dbtable!r}, which has {', '.join(there.names)}"
                )
            found.append(known)
        return tuple(found)

    def _key(self, there: bool, names: tuple[str, ...]) -> tuple[str, ...]:
        rows = [name for name in names if self.options.write_mode != "apply" or name != OPERATION]
        return merge_key(self.options, rows, same_name, self.options.dbtable, () if there else None)

    def make_staging(self, session: Session, plan: SqlPlan, place: Place, context: WriteContext) -> SqlPlan:
        return plan  # each attempt makes its own table

    def make_ready(
        self, session: Session, plan: SqlPlan, place: Place, context: WriteContext, *, first: bool
    ) -> SqlPlan:
        if first:
            self._make_ready(session, _own(plan))
        return plan

    def _make_ready(self, session: Session, plan: AdbcPlan) -> None:
        """The table is there, and empty for an overwrite; `preSql` has run."""
        self.script(session, self.options.pre_sql, "preSql")
        if plan.table not in session.tables(plan.table_schema, plan.table):
            fields = [f.with_name(n) for f, n in zip(plan.schema, plan.names, strict=True)]
            if self.options.write_mode == "apply":
                fields = [field for field in fields if field.name != OPERATION]
            try:
                session.ingest(plan.table_schema, plan.table, pa.schema(fields).empty_table(), "create")
            except TargetError as error:
                if is_conflict(
                    error
                ):  # another job has made it, and this one writes to it when it tries again
                    raise BusyError(str(error)) from error
                raise
            if plan.key:
                make_unique(session, plan, self.sql_name)
        elif plan.overwrite:
            session.rows(f"DELETE FROM {self.sql(plan)}")  # noqa: S608 - a quoted name

    def open_task(self, plan: AdbcPlan, task: int, attempt: int) -> TaskWriter:
        return AdbcTaskWriter(self, self.options, self.merged, plan, task, attempt)

    def publish_staged(self, session: Session, plan: AdbcPlan, receipts: Sequence[Receipt]) -> None:
        self._make_ready(session, plan)
        listed = ", ".join(quoted(name, self.sql_name) for name in plan.names)
        merged = self.merged(session, plan) if plan.key else None
        before = 0
        for receipt in sorted(receipts, key=lambda each: each.task):
            stage = receipt.details.get("table")
            if stage is None:
                continue
            place = self.sql(plan, stage)
            staged = int(session.value(f"SELECT COUNT(*) FROM {place}"))  # noqa: S608 - a quoted name
            if staged != receipt.rows:
                raise CommitError(
                    f"{staged} rows of task {receipt.task} are staged instead of {receipt.rows}"
                )
            if merged is not None:
                merged.add(place, before)
            else:
                session.rows(f"INSERT INTO {self.sql(plan)} ({listed}) SELECT {listed} FROM {place}")  # noqa: S608
            before += staged
        if merged is not None:
            merged.merge()

    def merged(self, session: Session, plan: AdbcPlan, rows: pa.Table | None = None) -> Merged:
        """A staging table for the rows of all tasks, or of one."""
        name = f"{plan.stage}merged_{secrets.token_hex(2)}"
        if rows is None:
            fields = [f.with_name(n) for f, n in zip(plan.schema, plan.names, strict=True)]
            rows = pa.schema(fields).empty_table()
        session.ingest(plan.table_schema, name, placed(rows, 0), "create")
        return Merged(session, plan, self.options, name, self.sql_name)

    def script(self, session: Session, texts: Sequence[str], option: str) -> None:
        for statement in split_script(texts, option, self.sql_name):
            session.rows(statement)

    def sql(self, plan: AdbcPlan, name: str | None = None) -> str:
        """The name of the table, or of a staging table, in a statement."""
        return source_of(plan.table_schema, name or plan.table).expression.sql(self.sql_name or None)

    def stages(self, session: Session, place: Place, beginning: str) -> list[str]:
        return [name for name in session.tables(place.schema or None, beginning) if _STAGE.match(name)]

    def drop_stage(self, session: Session, place: Place, name: str) -> None:
        table = source_of(place.schema or None, name).expression.sql(self.sql_name or None)
        try:
            with self.transaction(session):
                if self.sql_name == "postgres":
                    session.rows("SET LOCAL lock_timeout = '2s'")
                session.rows(f"DROP TABLE IF EXISTS {table}")
        except TargetError as error:
            if not is_busy(error):
                raise
            _log.warning("staging table %s is in use, and stays for the next job to remove", name)


def _own(plan: SqlPlan) -> AdbcPlan:
    assert isinstance(plan, AdbcPlan)
    return plan
