"""The usual database: rows are staged in one table of the run by `WriteSession.load`, and merged by `Merge`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Generic

import pyarrow as pa

from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.base.health import RowCost
from spark_channel.connectors.sql.catalog import TABLE, Table, TargetTable
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import S, transaction
from spark_channel.connectors.sql.write.checks import check_receipt, dropped, make_ready
from spark_channel.connectors.sql.write.claim_tables import ClaimDialect
from spark_channel.connectors.sql.write.loading import Loading
from spark_channel.connectors.sql.write.merge import Merge
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.sessions import (
    Tell,
    Traits,
    Verdict,
    WriteSessions,
)
from spark_channel.connectors.sql.write.table_loading import StageTable, table_loading
from spark_channel.connectors.sql.write.target_columns import new_target, old_target
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import OptionError, TargetError
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import TableDefinition
    from spark_channel.connectors.sql.definition import NewTable

__all__ = [
    "TableDatabase",
    "free_index_names",
    "is_one_pass",
    "make_table",
    "one_pass_rows",
    "staged_tables",
    "target_of",
    "write_target",
]

_log = log_of(__name__)


class TableDatabase(ABC, Generic[S]):
    """The usual `WriteDatabase`, of which a connector replaces what its database does in another way.

    It implements `shown`, `connect`, `verdict` and `claim_dialect`, and has its `dialect`.
    """

    Options: ClassVar[type[WriteOptions]] = SqlWriteOptions
    options: SqlWriteOptions
    dialect: WriteDialect
    Merge: ClassVar[type[Merge]] = Merge

    def __init__(self, options: SqlWriteOptions, traits: Traits | None = None) -> None:
        self.options, self.row_cost = options, RowCost()
        self.traits = Traits() if traits is None else traits
        self._table = StageTable(self, self.Merge)

    @property
    @abstractmethod
    def shown(self) -> str: ...

    @abstractmethod
    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> S: ...

    @abstractmethod
    def verdict(self, error: BaseException) -> Verdict: ...

    @abstractmethod
    def claim_dialect(self, session: S, place: WriteTarget) -> ClaimDialect: ...

    def new_place(self, session: S) -> tuple[str, str]:
        """The schema and the name of a table that is to be made; "" = it has no schema."""
        return "", self.options.dbtable

    def check(self, context: WriteContext) -> None:
        if self.dialect.ddl_commits and context.overwrite and not self.options.truncate:
            raise OptionError(
                f"option 'truncate' got false; {self.dialect.product} cannot drop a table, "
                "make it again and fill it in one transaction. Omit it, or drop the table first",
                option="truncate",
                got="false",
                takes="true",
            )
        self.dialect.script(self.options.pre_sql, "preSql")
        self.dialect.script(self.options.post_sql, "postSql")

    def locate(self, session: S) -> WriteTarget:
        table = self.dialect.find_table(session, self.options.dbtable)
        if table is None:
            return write_target(*self.new_place(session))
        return write_target(table.schema, table.name, table)

    def match(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        return replace(plan, target=target_of(self, plan, place))

    # What a new table gets of its source's definition

    def read_definition(self, session: S, table: Table) -> "TableDefinition | None":
        return None

    def new_table(
        self,
        session: S | None,
        place: WriteTarget,
        definition: "TableDefinition",
        rows: pa.Schema,
        whole: "TableDefinition",
        *,
        is_full: bool,
    ) -> "NewTable":
        from spark_channel.connectors.sql.definition import plain_new_table

        names: list[Callable[[str], str]] = []

        def name_of(name: str) -> str:
            if (
                not names
            ):  # most tables have no index to name, and the names are those of all tables
                names.append(free_index_names(self.dialect, session, place.schema))
            return names[0](name)

        return plain_new_table(
            self.dialect,
            definition,
            rows,
            is_full=is_full,
            name_of=name_of,
            table=self.dialect.indexed_table(place.name),
            is_typed=self.options.create_table_column_types is not None,
        )

    def complete(self, session: S, plan: SqlPlan, tell: Tell) -> None:
        target = plan.target
        if not target.steps:
            return
        from spark_channel.connectors.sql.definition import is_build

        for step in target.steps:
            _log.info("table %s gets %s, which no limit slows down", target.label, step.what)
            tell(step.what if is_build(step) else "")
            for statement in step.on(target.sql):
                session.execute(statement)
        tell("")

    @contextmanager
    def altering(self, session: S, alone: WriteTarget | None = None) -> Iterator[None]:
        with transaction(session, self.dialect.begin):
            yield

    # One staging table for all attempts of a run

    def make_staging(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        self._ensure_staging(session, plan)
        return plan

    def _ensure_staging(self, session: S, plan: SqlPlan) -> None:
        if not self.staging_names(session, plan.place, plan.stage):
            self._table.make(session, plan)

    def staging_names(self, session: S, place: WriteTarget, beginning: str) -> list[str]:
        return [name for name in self.dialect.table_names(session) if name.startswith(beginning)]

    def drop_staging(self, session: S, place: WriteTarget, names: Sequence[str]) -> None:
        for name in names:
            try:
                session.execute(f"DROP TABLE {self.dialect.place(place.staging, name)}")
            except TargetError as error:
                is_lost = Verdict.LOST in self.verdict(error)
                if self.staging_names(session, place, name) and not is_lost:
                    raise
                _log.warning(
                    "staging %s is gone, or stays until a later job removes it: %s", name, error
                )

    # All of a write is in one transaction. The table is made in it, too, or, where DDL commits, before it

    @contextmanager
    def around(self, session: S, plan: SqlPlan, tell: Tell, *, publishes: bool) -> Iterator[None]:
        if self.dialect.ddl_commits:
            if make_table(self, session, plan.target):
                self.complete(session, plan, tell)
            if plan.target.key and not publishes:
                self._ensure_staging(session, plan)
        yield

    def make_ready(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext, *, first: bool
    ) -> tuple[SqlPlan, bool]:
        is_made = self.ready(session, plan, empty=first and plan.overwrite)
        if plan.target.key and not self.dialect.ddl_commits:  # keys are compared in it
            self._ensure_staging(session, plan)
        return plan, is_made

    def ready(self, session: S, plan: SqlPlan, *, empty: bool) -> bool:
        """The table is there as it was planned, and `empty` if that is asked for. Whether this made it."""
        return make_ready(session, self.dialect, plan.target, self.options, overwrite=empty)

    def loading(self, claim: TaskClaim[S], *, stages: bool = True) -> Loading[S]:
        return table_loading(self, claim, self._table)

    def publish(
        self, session: S, plan: SqlPlan, receipts: Sequence[Receipt], pre_sql: Callable[[], None]
    ) -> bool:
        counts = self._table.counts(session, plan)
        for receipt in receipts:
            check_receipt(receipt, counts.pop(receipt.details["mark"], 0))
        for mark in counts:
            session.execute(self._table.forgets(plan, mark))
        pre_sql()
        is_made = self.ready(session, plan, empty=plan.overwrite)
        self._table.bring(session, plan, sum(receipt.rows for receipt in receipts))
        return is_made


def write_target(schema: str, name: str, table: Table | None = None) -> WriteTarget:
    """The target of a write; `table`: as the catalog has it, None = it is not there."""
    return WriteTarget(schema, name, f"{schema}.{name}" if schema else name, table)


def target_of(database: WriteSessions[S], plan: SqlPlan, place: WriteTarget) -> TargetTable:
    """The match of the rows' columns to the table's, or to a new table's."""
    dialect, options = database.dialect, database.options
    if place.table is not None and not (plan.overwrite and not options.truncate):
        return old_target(dialect, place.table, plan.schema, options, computed=plan.computed)
    new = plan.new_table
    if new is not None and new.table is not None:
        target = old_target(dialect, new.table, plan.schema, options, made_as=place.label)
        sql = dialect.place(place.schema, place.name)
        create = new.create.replace(TABLE, sql)
        target = replace(target, schema=place.schema, name=place.name, label=place.label)
        return replace(target, sql=sql, create=create, steps=new.steps)
    return new_target(dialect, place.schema, place.name, place.label, plan.schema, options, new)


def one_pass_rows(options: SqlWriteOptions) -> int | None:
    """See `Writer`. Of a database whose tasks can publish."""
    is_plain = options.write_mode == "insert" and not (options.pre_sql or options.post_sql)
    is_limited = (
        options.is_limited or options.rows_per_second_per_task or options.bytes_per_second_per_task
    )
    by_task = options.commit == "task" or options.tolerates_dirty_rows
    if not is_plain or is_limited or by_task or getattr(options, "ledger", "") == "none":
        return None
    return getattr(options, "max_direct_rows", 0) or None


def is_one_pass(traits: Traits, plan: SqlPlan, table: Table | None, context: WriteContext) -> bool:
    """Whether the one task of an append to `table` publishes its rows."""
    is_there = table is not None and not table.is_view and not plan.overwrite
    may = context.one_pass and traits.one_pass_rows is not None
    return is_there and may and plan.commit == "job"


def staged_tables(
    session: S, receipts: Sequence[Receipt], sql: Callable[[str], str]
) -> list[tuple[str, int]]:
    """The staging tables that `receipts` name, as `sql` writes them, in the order of their tasks, with their rows.

    Raises:
        CommitError: one holds more rows than its receipt says, or fewer.
    """
    tables = []
    for receipt in sorted(receipts, key=lambda receipt: receipt.task):
        if (name := receipt.details.get("table")) is not None:
            check_receipt(receipt, int(session.value(f"SELECT COUNT(*) FROM {sql(name)}")))  # noqa: S608 - names are quoted
            tables.append((sql(name), receipt.rows))
    return tables


def make_table(database: WriteSessions[S], session: S, target: TargetTable) -> bool:
    """Outside a transaction: make the table when it is not there. Whether this session made it."""
    dialect = database.dialect
    if dialect.find_table(session, target.sql) is not None:
        return False
    if target.create is None:
        raise dropped(target)
    try:
        session.execute(target.create)
    except TargetError as error:
        is_conflict = Verdict.CONFLICT in database.verdict(error)
        if not is_conflict or dialect.find_table(session, target.sql) is None:
            raise
        return False  # another job made it at the same moment
    return True


def free_index_names(dialect: WriteDialect, session: S | None, schema: str) -> Callable[[str], str]:
    """What gives new indexes in `schema` names that are free."""
    from spark_channel.connectors.sql.definition import free_names

    names = () if session is None else dialect.index_names(session, schema)
    return free_names(set(names), dialect.index_name_bytes, folds=dialect.folds_names)
