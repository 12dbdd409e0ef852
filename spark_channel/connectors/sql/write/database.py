"""The port of a database that rows are written to: what `SqlWriter` and the attempts of its tasks ask it for."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from enum import Flag, auto
from typing import Any, ClassVar, Generic, Protocol

import pyarrow as pa

from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.base.health import Health, RowCost
from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.sql.catalog import TABLE, Table, TargetTable
from spark_channel.connectors.sql.definition import NewTable, free_names, is_build, plain_new_table
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.options import LedgerOptions, SqlWriteOptions
from spark_channel.connectors.sql.session import S, run_in_transaction, transaction
from spark_channel.connectors.sql.statements import parsed_name
from spark_channel.connectors.sql.write.claim_tables import ClaimDialect, Ledger
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.publish import (
    PLACE,
    Merge,
    check_receipt,
    dropped,
    make_ready,
)
from spark_channel.connectors.sql.write.target_columns import new_target, old_target
from spark_channel.errors import OptionError, TargetError
from spark_channel.options import CommitMode, WriteOptions
from spark_channel.plain_text import log_of
from spark_channel.retry import Retry

__all__ = [
    "ATTEMPT",
    "TaskDatabase",
    "Verdict",
    "WriteDatabase",
    "ledger_options",
    "placed",
    "staged_tables",
]

_log = log_of(__name__)

ATTEMPT = "spark_channel_attempt"
"""The column of a staging table that says which attempt a row is of, by a random number.

A driver that begins the same job again counts its attempts from the start.
"""
_RETRY_SECONDS = 60.0


class Verdict(Flag):
    """What an error says of a write. One error may say several things: a deadlock is LOST and CONFLICT, a duplicate key
    CONFLICT and REFUSED_ROW.
    """

    OTHER = 0
    LOST = auto()
    """The connection was lost, or another transaction stood in the way: doing it again may help."""
    CONFLICT = auto()
    """Another transaction was first: a duplicate key or table, a deadlock, a failed serialization."""
    DENIED = auto()
    """The role lacks a right."""
    REFUSED_ROW = auto()
    """A row is the matter of it, and not the target as a whole."""


class TaskDatabase(Protocol[S]):
    """A database, as its tasks know it; see `WriteDatabase`."""

    @property
    def options(self) -> SqlWriteOptions: ...
    @property
    def dialect(self) -> WriteDialect: ...
    @property
    def passes(self) -> Verdict: ...
    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> S: ...
    def verdict(self, error: BaseException) -> Verdict: ...
    def retry(self, what: str) -> Retry: ...
    def claim_dialect(self, session: S, place: WriteTarget) -> ClaimDialect: ...
    def count_on(self, session: S, plan: SqlPlan) -> None: ...
    def stages(self, session: S, place: WriteTarget, beginning: str) -> list[str]: ...
    def drop_stages(self, session: S, place: WriteTarget, names: Sequence[str]) -> None: ...
    def staging(self, plan: SqlPlan) -> str: ...
    def forgets(self, plan: SqlPlan, mark: int) -> str: ...
    def bring(self, session: S, plan: SqlPlan, count: int) -> None: ...
    def way(self, claim: Any, *, stages: bool = True) -> Any: ...


class WriteDatabase(ABC, Generic[S]):
    """One object for each write, on the driver and in each task. It calls nothing of its callers.

    A database implements `shown`, `connect`, `verdict` and `claim_dialect`, and has its `dialect`. The other methods
    have a default, which stages the rows of a job in one table by `WriteSession.load`, and merges them by `Merge`.
    """

    Options: ClassVar[type[WriteOptions]] = SqlWriteOptions
    options: SqlWriteOptions
    dialect: WriteDialect
    Merge: ClassVar[type[Merge]] = Merge
    native_system: ClassVar[str] = ""
    """See `Writer`."""
    passes: ClassVar[Verdict] = Verdict.LOST
    """Errors after which work is done again on a new session."""
    is_served: ClassVar[bool] = True
    """By a server, which bounds its connections; else it is a file."""
    stages_with_claim: ClassVar[bool] = False
    """Whether `make_staging` runs in the transaction that takes the claim, and `publish_staged` drops the staging."""
    overwrite_drops: ClassVar[bool] = True
    """Whether an overwrite without `truncate` makes the table again."""
    has_numbers: ClassVar[bool] = False
    """Whether `numbers` returns statements for some tables."""
    inherits: ClassVar[bool] = False
    """Whether other tables may inherit from one, see `is_parent`."""
    looks_up: ClassVar[bool] = False
    """Whether `look_up` remembers tables."""
    on_build: Callable[[str], None] | None = None
    """See `Writer`."""

    def __init__(self, options: SqlWriteOptions) -> None:
        self.options = options
        self.row_cost = RowCost()

    # Sessions

    @property
    @abstractmethod
    def shown(self) -> str:
        """The database, for messages."""

    @abstractmethod
    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> S:
        """A new session, which raises `failure` for anything that the database refuses.

        `purpose` describes the session to the server. `patient`: the server was reached before, or may come back, so
        that a connector which waits for it by itself does.
        """

    @abstractmethod
    def verdict(self, error: BaseException) -> Verdict:
        """What the error says of the write."""

    def retry(self, what: str) -> Retry:
        """For as long as `retryTimeout` says."""
        return Retry(getattr(self.options, "retry_timeout", _RETRY_SECONDS), what=what)

    def keeping(self) -> AbstractContextManager[None]:
        """See `Writer.writing`."""
        return nullcontext()

    def end_sessions(self, session: S, run: str) -> None:
        """End the sessions in which tasks of an overtaken run write: one that hangs would keep its locks."""

    def resource_mark(self) -> str | None:
        """See `Writer`."""
        return None

    def health(self) -> Health | None:
        """See `Writer`."""
        return None

    # The place, its claims, and the plan

    def is_there(self) -> bool:
        """Whether there is a database; a file may still have to be made."""
        return True

    def locate(self, session: S) -> WriteTarget:
        """The place that `dbtable` names, by the database's catalog in this session."""
        table = self.dialect.find_table(session, self.options.dbtable)
        if table is not None:
            return self.place(table.schema, table.name, table)
        return self.place(*self.new_place(session))

    def look_up(self, session: S, names: Sequence[str]) -> None:
        """Remember what the catalog has of these tables, which the session then need not ask for one by one."""

    def is_parent(self, table: Any) -> bool:
        """Whether other tables inherit from it, which keep their rows."""
        return False

    def new_place(self, session: S) -> tuple[str, str]:
        """The schema and the name of the table that `dbtable` names and the write creates."""
        return "", self.options.dbtable

    def place(self, schema: str, name: str, table: Table | None = None) -> WriteTarget:
        """Return the target of a write; `table`: as the catalog has it, None = it is not there."""
        return WriteTarget(schema, name, f"{schema}.{name}" if schema else name, table)

    def ledger_names(self, text: str) -> tuple[str | None, str]:
        """The schema and name that option `ledgerTable` names."""
        tree = parsed_name(text, self.script_dialect)
        return (None, text) if tree is None else (tree.db or None, tree.name)

    @abstractmethod
    def claim_dialect(self, session: S, place: WriteTarget) -> ClaimDialect:
        """The claims in the schema of `place`."""

    def check(self, context: WriteContext) -> None:
        """Before a session is opened: hold options and scripts to be usable."""
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

    def default_commit(self, place: WriteTarget, context: WriteContext) -> CommitMode:
        """`job`, whatever the target holds; `task` only where it judges refused rows one by one."""
        is_tolerant = context.stream is None and self.options.tolerates_dirty_rows
        return "task" if is_tolerant else "job"

    def match(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """The database's own plan: how the columns meet the table's. Changes nothing.

        Raises:
            SchemaError, TargetError, OptionError: the rows do not fit.
        """
        return replace(plan, target=self.target(plan, place))

    def target(self, plan: SqlPlan, place: WriteTarget) -> TargetTable:
        """The match of the rows' columns to the table's, or to a new table's."""
        if place.table is not None and not (plan.overwrite and not self.options.truncate):
            return old_target(
                self.dialect, place.table, plan.schema, self.options, computed=plan.computed
            )
        new = plan.new_table
        if new is not None and new.table is not None:
            target = old_target(
                self.dialect, new.table, plan.schema, self.options, made_as=place.label
            )
            sql = self.dialect.place(place.schema, place.name)
            create = new.create.replace(TABLE, sql)
            target = replace(target, schema=place.schema, name=place.name, label=place.label)
            return replace(target, sql=sql, create=create, steps=new.steps)
        return new_target(
            self.dialect,
            place.schema,
            place.name,
            place.label,
            plan.schema,
            self.options,
            new,
        )

    @property
    def task_seconds(self) -> float | None:
        """See `Writer`."""
        return None

    @property
    def one_pass_rows(self) -> int | None:
        """See `Writer`. Of a database whose tasks can publish."""
        options = self.options
        is_plain = options.write_mode == "insert" and not (options.pre_sql or options.post_sql)
        is_limited = (
            options.is_limited
            or options.rows_per_second_per_task
            or options.bytes_per_second_per_task
        )
        by_task = options.commit == "task" or options.tolerates_dirty_rows
        if not is_plain or is_limited or by_task or getattr(options, "ledger", "") == "none":
            return None
        return getattr(options, "max_direct_rows", 0) or None

    def is_one_pass(self, plan: SqlPlan, table: Table | None, context: WriteContext) -> bool:
        """Whether the one task of an append to `table` publishes its rows."""
        is_there = table is not None and not table.is_view and not plan.overwrite
        may = context.one_pass and self.one_pass_rows is not None
        return is_there and may and plan.commit == "job"

    # Staging

    def make_staging(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """`commit=job`: what tasks need before they stage. Safe twice. See `stages_with_claim`.

        Not called where the one task stages nothing.
        """
        if not self.stages(session, place, plan.stage):
            columns = [f"{ATTEMPT} BIGINT NOT NULL", f"{PLACE} BIGINT NOT NULL"]
            columns += [
                self.dialect.definition(replace(column.column, not_null=False))
                for column in plan.target.columns
            ]
            if plan.target.operation is not None:
                columns.append(f"{self.dialect.quoted(plan.target.operation)} VARCHAR(20)")
            lines = f"{', '.join(columns)}, PRIMARY KEY ({ATTEMPT}, {PLACE})"
            session.execute(f"CREATE TABLE {self.staging(plan)} ({lines})")
        return plan

    def staging(self, plan: SqlPlan) -> str:
        """The staging table, in a statement: one for all attempts of the run."""
        return self.dialect.place(plan.place.staging, plan.stage)

    def forgets(self, plan: SqlPlan, mark: int) -> str:
        """The statement that removes what an attempt staged."""
        return f"DELETE FROM {self.staging(plan)} WHERE {ATTEMPT} = {int(mark)}"  # noqa: S608 - a quoted name

    def stages(self, session: S, place: WriteTarget, beginning: str) -> list[str]:
        """The names of staging tables (or directories) that begin so."""
        return [name for name in self.dialect.table_names(session) if name.startswith(beginning)]

    def drop_stages(self, session: S, place: WriteTarget, names: Sequence[str]) -> None:
        """Drop some of `stages`, each in a separate transaction. Safe twice, and while tasks still write."""
        for name in names:
            self.drop_stage(session, place, name)

    def drop_stage(self, session: S, place: WriteTarget, name: str) -> None:
        """As `drop_stages`."""
        try:
            session.execute(f"DROP TABLE {self.dialect.place(place.staging, name)}")
        except TargetError as error:
            if self.stages(session, place, name) and Verdict.LOST not in self.verdict(error):
                raise
            _log.warning(
                "staging %s is gone, or stays until a later job removes it: %s", name, error
            )

    def sweep(self, session: S, plan: SqlPlan, claims: Claims) -> None:
        """Remove the staging of runs that were overtaken, have ended, or are known to be dead.

        It is in one place for all tables of a schema, so one table of a run does it for those that follow.
        """
        if not sessions.is_due(("sweep", self.shown, plan.place.staging)):
            return
        names = self.stages(session, plan.place, plan.place.stage) if plan.place.has_ledger else []
        if not names:
            return
        with transaction(session, self.dialect.begin):
            orphans = claims.orphans(names, plan.claim)
        if orphans:  # a run that has just published removes its own
            now = self.stages(session, plan.place, plan.place.stage)
            orphans = [name for name in orphans if name in now]
        for name in orphans:
            _log.warning("removing orphaned staging %s", name)
            self.drop_stage(session, plan.place, name)

    def staged(self, session: S, plan: SqlPlan, receipts: Sequence[Receipt]) -> Any:
        """`commit=job`, first in the transaction that publishes: what `publish_staged` brings in.

        Raises:
            CommitError: it is not exactly what `receipts` promise.
        """
        query = f"SELECT {ATTEMPT}, COUNT(*) FROM {self.staging(plan)} GROUP BY {ATTEMPT}"  # noqa: S608 - a quoted name
        counts = dict(session.rows(query))
        for receipt in receipts:
            check_receipt(receipt, counts.pop(receipt.details["mark"], 0))
        for mark in counts:
            session.execute(self.forgets(plan, mark))
        return sum(receipt.rows for receipt in receipts)

    def publish_staged(self, session: S, plan: SqlPlan, staged: Any) -> None:
        """After `preSql`: the table made or emptied, and what `staged` returned brought in."""
        is_made = self.ready(session, plan, empty=plan.overwrite)
        self.bring(session, plan, staged)
        if is_made:
            self.complete(session, plan.target)

    def bring(self, session: S, plan: SqlPlan, count: int) -> None:
        """All rows of the staging table that this transaction sees, into the table. There are `count`."""
        rows, mode = self.staging(plan), self.options.write_mode
        self.Merge(session, self.dialect, plan.target, rows, mode, count).bring()

    # The table

    @contextmanager
    def around(self, session: S, plan: SqlPlan, *, publishes: bool) -> Iterator[None]:
        """Around the transaction that publishes, or that makes the table ready: for what cannot be in it."""
        if self.dialect.ddl_commits:
            if self.make_table(session, plan.target):
                self.complete(session, plan.target)
            if plan.target.key and not publishes:
                self.make_staging(session, plan, plan.place, WriteContext(plan.job))
        yield

    def hold_table(self, session: S, plan: SqlPlan, claims: Claims) -> None:
        """In the transaction that publishes: wait for appends in one pass, if its statements may see half of one."""

    def make_ready(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext, *, first: bool
    ) -> SqlPlan:
        """`commit=task`, inside a transaction: with `first` create or empty the table; else hold it to be there."""
        if self.ready(session, plan, empty=first and plan.overwrite):
            self.complete(session, plan.target)
        makes_stage = plan.target.key and not self.dialect.ddl_commits
        return self.make_staging(session, plan, place, context) if makes_stage else plan

    def ready(self, session: S, plan: SqlPlan, *, empty: bool) -> bool:
        """Inside a transaction: the table is there as it was planned, and `empty` if that is asked for.

        True: this made it, and `complete` is still to be called.
        """
        return make_ready(session, self.dialect, plan.target, self.options, overwrite=empty)

    def make_table(self, session: S, target: TargetTable) -> bool:
        """Outside a transaction: make the table when it is not there. Whether this session made it."""
        if self.dialect.find_table(session, target.sql) is not None:
            return False
        if target.create is None:
            raise dropped(target)
        try:
            session.execute(target.create)
        except TargetError as error:
            is_conflict = Verdict.CONFLICT in self.verdict(error)
            if not is_conflict or self.dialect.find_table(session, target.sql) is None:
                raise
            return False  # another job made it at the same moment
        return True

    def complete(self, session: S, target: TargetTable) -> None:
        """Give the table that was made the parts of its definition that follow its rows."""
        tell = self.on_build or (lambda _what: None)
        for step in target.steps:
            _log.info("table %s gets %s, which no limit slows down", target.label, step.what)
            tell(step.what if is_build(step) else "")
            for statement in step.on(target.sql):
                session.execute(statement)
        tell("")

    def script(
        self, session: S, texts: Sequence[str], option: str, *, written: bool = False
    ) -> None:
        """Run what the user gave as `preSql` or `postSql`, inside the transaction; see `run_in_transaction`."""
        statements = self.dialect.script(texts, option)
        if self.dialect.has_savepoints:
            run_in_transaction(session, statements, option, written=written)
            return
        for statement in statements:
            session.execute(statement)

    @property
    def script_dialect(self) -> str:
        """sqlglot's name of the dialect of the user's scripts."""
        return self.dialect.sql

    # The table's definition

    def definition_of(self, session: S, table: Table) -> TableDefinition | None:
        """The definition of a table of the target; None = the database says no expressions."""
        return None

    def new_table(
        self,
        session: S | None,
        place: WriteTarget,
        definition: TableDefinition,
        rows: pa.Schema,
        *,
        is_full: bool,
    ) -> NewTable:
        """What a new table for `rows` gets of the definition. `session`: None = the database is to be made, too."""
        return plain_new_table(
            self.dialect,
            definition,
            rows,
            is_full=is_full,
            name_of=self.free_names(session, place.schema),
            table=self.dialect.indexed_table(place.name),
            is_typed=self.options.create_table_column_types is not None,
        )

    def without_refused(self, new: NewTable, definition: TableDefinition) -> NewTable:
        """`new` without the checks that the database refuses for what else `definition` has, which it names."""
        return new

    def free_names(self, session: S | None, schema: str) -> Callable[[str], str]:
        """What gives new indexes in `schema` names that are free."""
        names = () if session is None else self.dialect.index_names(session, schema)
        longest, folds = self.dialect.index_name_bytes, self.dialect.folds_names
        return free_names(set(names), longest, folds=folds)

    def numbers(self, session: S | None, table: Table, context: WriteContext) -> tuple[str, ...]:
        """Statements that let identity and serial columns of the table count on behind its rows, and its source's
        numbers; () = the database does so by itself. A database that has such sets `has_numbers`.
        """
        return ()

    def count_on(self, session: S, plan: SqlPlan) -> None:
        """Run the plan's `numbers` in the transaction that publishes; one that is refused does not fail it."""

    def clear_builds(self, session: S, names: Collection[str]) -> None:
        """Drop indexes of the table with these names, also numbered ones, that a build left which was killed."""

    def alter(self, session: S, statement: str) -> None:
        """Run a statement that changes the table's definition, and wait for other sessions for a bounded time."""
        session.execute(statement)

    @contextmanager
    def altering(self, session: S, place: WriteTarget) -> Iterator[None]:
        """No other write of this package, and if possible no other session, changes the definition meanwhile."""
        with transaction(session, self.dialect.begin):
            yield

    # The tasks

    def way(self, claim: Any, *, stages: bool = True) -> Any:
        """The `Way` in which the rows of the attempt of a `TaskClaim` reach the table; None = by `WriteSession.load`.

        Without `stages`: after a `NoStagingError`.
        """
        return None


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


def ledger_options(options: object) -> LedgerOptions | None:
    """The options that say where claims and staging are, if the database has such."""
    return options if isinstance(options, LedgerOptions) else None


def placed(database: WriteDatabase[S], session: S) -> WriteTarget:
    """The place of the table, and where its claims and staging are."""
    place, options = database.locate(session), ledger_options(database.options)
    if options is None:
        return place
    staging, table = options.staging_schema or place.schema, options.ledger_table
    if table is None:
        return replace(place, ledger=Ledger(staging, staging))
    schema, name = database.ledger_names(table)
    return replace(place, ledger=Ledger(staging, schema or staging, name))
