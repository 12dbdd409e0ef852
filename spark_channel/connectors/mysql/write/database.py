"""Writes a table of a MySQL server: atomically (`commit=job`), or task by task (`commit=task`)."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import ClassVar, cast

import pyarrow as pa

from spark_channel.connectors.base.claims import Follows
from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.base.health import Health
from spark_channel.connectors.mysql.dialect import MysqlColumn, MysqlTable, name_places
from spark_channel.connectors.mysql.dialect.definition import read_definition
from spark_channel.connectors.mysql.options import MysqlWriteOptions, address_of
from spark_channel.connectors.mysql.session import (
    LostConnectionError,
    MysqlWriteSession,
    code_of,
    is_conflict,
    passes,
)
from spark_channel.connectors.mysql.types import SYSTEM, are_native, parts
from spark_channel.connectors.mysql.write.claims import claims_of
from spark_channel.connectors.mysql.write.dialect import (
    COMMITTING_WORDS,
    MysqlWriteDialect,
    check_one_zone,
    check_transactional,
)
from spark_channel.connectors.mysql.write.loader import TASK_SECONDS, is_of_rows, mysql_loading
from spark_channel.connectors.mysql.write.merge import insert_staged
from spark_channel.connectors.mysql.write.new_table import (
    AutoIncrement,
    at_once,
    comments_of,
    tried,
    without_refused_checks,
)
from spark_channel.connectors.mysql.write.staging import (
    drop_if_empty,
    drop_tables,
    stage_names,
    table_in,
)
from spark_channel.connectors.mysql.write.table_locks import hold, table_lock
from spark_channel.connectors.sql.catalog import Table, TargetTable
from spark_channel.connectors.sql.definition import NewTable
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.session import TRANSACTION_WORDS, split_script
from spark_channel.connectors.sql.write.checks import check_planned
from spark_channel.connectors.sql.write.claim_tables import ClaimDialect, Ledger
from spark_channel.connectors.sql.write.in_session import claims_at, in_transaction
from spark_channel.connectors.sql.write.loading import Loading
from spark_channel.connectors.sql.write.plan import STAGING_WAYS, SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.rights import lacking_to_stage
from spark_channel.connectors.sql.write.scripts import hold_appends
from spark_channel.connectors.sql.write.sessions import Server, Tell, Traits, Verdict
from spark_channel.connectors.sql.write.table_database import (
    TableDatabase,
    is_one_pass,
    make_table,
    one_pass_rows,
    staged_tables,
    target_of,
)
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import OptionError, TargetError
from spark_channel.final_errors import of_input
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of

__all__ = ["MysqlDatabase", "with_late_instants"]


_log = log_of(__name__)


_DENIED = frozenset({1044, 1142, 1143, 1227})
_ALTER_SECONDS = 30
_ASSIGNS = re.compile(r"\bSET\b(?:[^;]*,)?\s*NEW\s*\.", re.IGNORECASE)


class MysqlDatabase(TableDatabase[MysqlWriteSession]):
    """Rows are loaded where a warning is an error: by `commit=job` into staging tables without keys.

    `commit=job`: one transaction on the driver's host inserts all of them. `commit=task`: each task inserts its own.
    DDL commits by itself here, so tables are made outside these transactions, under a lock of the server (GET_LOCK)
    that is always taken before the claim.
    """

    Options: ClassVar[type[WriteOptions]] = MysqlWriteOptions
    options: MysqlWriteOptions
    dialect: WriteDialect = MysqlWriteDialect()

    def __init__(self, options: MysqlWriteOptions) -> None:
        super().__init__(options, _traits(options, Server(address_of(options).host, self._health)))

    @property
    def shown(self) -> str:
        address = address_of(self.options)
        return f"{address.host}:{address.port}"

    def _health(self) -> Health:
        from spark_channel.connectors.mysql.health import MysqlHealth

        return MysqlHealth(self.options, TargetError, self.row_cost)

    def connect(
        self, failure: type[TargetError], purpose: str, *, patient: bool
    ) -> MysqlWriteSession:
        if purpose == "look":
            return MysqlWriteSession.lent(self.options, failure, patient=patient)
        return MysqlWriteSession(self.options, failure, patient=patient)

    def verdict(self, error: BaseException) -> Verdict:
        verdict, is_of_target = Verdict.OTHER, isinstance(error, TargetError)
        if isinstance(error, LostConnectionError) or (is_of_target and passes(error)):
            verdict |= Verdict.LOST
        if is_conflict(error):
            verdict |= Verdict.CONFLICT
        if code_of(error) in _DENIED:
            verdict |= Verdict.DENIED
        if isinstance(error, TargetError) and is_of_rows(error):
            verdict |= Verdict.REFUSED_ROW
        return verdict

    def loading(
        self, claim: TaskClaim[MysqlWriteSession], *, stages: bool = True
    ) -> Loading[MysqlWriteSession]:
        return mysql_loading(self, claim, stages=stages)

    def claim_dialect(self, session: MysqlWriteSession, place: WriteTarget) -> ClaimDialect:
        return claims_of(session, place.ledger or Ledger(place.schema, place.schema))

    def new_place(self, session: MysqlWriteSession) -> tuple[str, str]:
        names = name_places(session, self.options.dbtable)
        if not names:
            raise OptionError(
                f"option 'url' names no database, and 'dbtable' got {self.options.dbtable!r}: "
                "add the database to the url, or write database.table",
                option="url",
            )
        database, name = names[-1]
        if session.value("SELECT @@lower_case_table_names") == 1:
            # The name under which it will be found.
            database, name = database.lower(), name.lower()
        return database, name

    def target(self, plan: SqlPlan, place: WriteTarget) -> TargetTable:
        """A table that is there stays also with `overwrite`: to drop it would commit."""
        target = target_of(self, replace(plan, overwrite=False), place)
        check_one_zone(target)
        new = plan.new_table
        if target.create is None or new is None:
            return target
        if new.table is not None:
            declared = self.dialect.columns_as_created(new.table)
            return replace(target, declared=declared, indexed=new.table.indexed)
        return at_once(target, new, self.options)

    def check(self, context: WriteContext) -> None:
        _check_scripts(self.options, TRANSACTION_WORDS)

    def match(
        self, session: MysqlWriteSession, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        if plan.commit == "job":
            _check_scripts(self.options, COMMITTING_WORDS)
        has_triggers = False
        if isinstance(place.table, MysqlTable) and not place.table.is_view:
            check_transactional(session, place.table)
            has_triggers = _find_triggers(session, place.table)
        target = self.target(plan, place)
        if target.create is not None and not target.key:
            _check_key_not_required(session, target)
        is_one_pass = not has_triggers and self._is_one_pass(plan, place.table, context)
        target = with_late_instants(session, target)
        is_native = self._is_native(session, plan, place.table, context)
        return replace(plan, target=target, one_pass=is_one_pass, native=is_native)

    def _is_native(
        self, session: MysqlWriteSession, plan: SqlPlan, table: Table | None, context: WriteContext
    ) -> bool:
        """Whether rows come as LOAD DATA takes them."""
        options, new = self.options, plan.new_table
        table = new.table if table is None and new is not None else table
        is_plain = options.write_mode != "apply" and options.duplicates == "error"
        is_strict = options.sql_mode != "session" and not options.tolerates_dirty_rows
        loads = session.local_infile and options.local_infile is not False
        if context.native is None or table is None or not (is_plain and is_strict and loads):
            return False
        return not plan.computed and are_native(context.native, table)

    def _is_one_pass(self, plan: SqlPlan, table: Table | None, context: WriteContext) -> bool:
        """Not where the server computes values: its warnings of them are not of the rows, and LOAD DATA only warns."""
        is_plain = table is not None and not any(each.generated for each in table.columns)
        return is_plain and is_one_pass(self.traits, plan, table, context)

    # What a new table gets of its source's definition

    def read_definition(self, session: MysqlWriteSession, table: Table) -> TableDefinition:
        assert isinstance(table, MysqlTable)
        return read_definition(session, table)

    def new_table(
        self,
        session: MysqlWriteSession | None,
        place: WriteTarget,
        definition: TableDefinition,
        rows: pa.Schema,
        whole: TableDefinition,
        *,
        is_full: bool,
    ) -> NewTable:
        assert session is not None
        left_out: tuple[str, ...] = ()
        own = is_full and definition.statement and definition.system == self.dialect.sql
        if own:
            new = tried(session, place, definition, rows)
            if isinstance(new, NewTable):
                return without_refused_checks(new, whole)
            left_out = (f"what only CREATE TABLE says: {new}",)
        new = super().new_table(session, place, definition, rows, whole, is_full=is_full)
        if is_full and not own:
            is_free = self.options.table_comment is None
            new = new.with_carried([*comments_of(definition, rows, is_free=is_free)])
            new = self._with_numbers(new, definition)
        return without_refused_checks(replace(new, left_out=(*left_out, *new.left_out)), whole)

    def _with_numbers(self, new: NewTable, definition: TableDefinition) -> NewTable:
        """`new`, made as the definition of another system says, with AUTO_INCREMENT: on the first column of the key."""
        key = self.options.key_columns or new.key
        column = definition.column(key[0]) if key else None
        sequence = None if column is None else column.sequence
        if (
            column is None
            or sequence is None
            or (sequence.increment, self.options.create_table_column_types) != (1, None)
        ):
            return new
        if not pa.types.is_integer(new.rows.field(column.name).type) or sequence.following < 1:
            return new
        what = f"sequence of {column.name}"
        return new.with_carried([AutoIncrement(what, (), column.name, sequence.following)])

    @contextmanager
    def altering(
        self, session: MysqlWriteSession, alone: WriteTarget | None = None
    ) -> Iterator[None]:
        """DDL commits, so the lock of publishes is what keeps other writes out."""
        if alone is not None:
            hold(session, table_lock(alone.label))
        session.execute(f"SET SESSION lock_wait_timeout = {_ALTER_SECONDS}")
        try:
            yield
        finally:
            session.execute("SET SESSION lock_wait_timeout = DEFAULT")

    # A staging table for each attempt

    def make_staging(
        self, session: MysqlWriteSession, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """Each attempt makes its own table, so that a right which lacks would end each of them."""
        said = lacking_to_stage(self.dialect, session, place)
        if said:
            ways = "" if context.stream is not None else f". {STAGING_WAYS}"
            raise of_input(TargetError(f"{self.shown}: {said}{ways}"))
        return plan

    def staging_names(
        self, session: MysqlWriteSession, place: WriteTarget, beginning: str
    ) -> list[str]:
        return stage_names(session, place.staging, beginning)

    def drop_staging(
        self, session: MysqlWriteSession, place: WriteTarget, names: Sequence[str]
    ) -> None:
        for table in drop_tables(session, [table_in(place.staging, name) for name in names]):
            _log.warning(
                "staging %s stays until a later job removes it: a transaction still uses it", table
            )

    # Tables are made outside of transactions, under the lock of publishes

    @contextmanager
    def around(
        self, session: MysqlWriteSession, plan: SqlPlan, tell: Tell, *, publishes: bool
    ) -> Iterator[None]:
        with self._alone(session, plan, create=not publishes or plan.commit == "job"):
            if not publishes and self.dialect.commits(self.options.pre_sql, "preSql"):
                self._run_pre_sql(session, plan)
            yield

    def _run_pre_sql(self, session: MysqlWriteSession, plan: SqlPlan) -> None:
        """Before the transaction, unless an earlier run has got so far."""
        claims = claims_at(self, session, plan.place)
        if claims.fence(plan.claim).state == "open":
            for statement in self.dialect.script(self.options.pre_sql, "preSql"):
                with in_transaction(self, session):
                    hold_appends(self, plan, claims)
                    session.execute(statement)

    def publish(
        self,
        session: MysqlWriteSession,
        plan: SqlPlan,
        receipts: Sequence[Receipt],
        pre_sql: Callable[[], None],
    ) -> bool:
        staged = staged_tables(session, receipts, partial(table_in, plan.place.staging))
        pre_sql()
        dialect, target = self.dialect, plan.target
        try:
            if plan.overwrite:
                dialect.check_alone(session, target.schema, target.name)
                session.execute(dialect.emptied(target.own_rows, self.options))
            # Which has locked the rows that it deleted.
            paced = self.options.is_limited and not plan.overwrite
            insert_staged(session, target, self.options, staged, paced=paced)
        except TargetError as error:
            if Verdict.LOST not in self.verdict(
                error
            ):  # the server says less of a table that is not as planned
                check_planned(dialect, target, dialect.find_table(session, target.sql))
            raise
        # Behind the rows, which hold its definition: before them, an ALTER that they wait for is not seen.
        check_planned(dialect, target, dialect.find_table(session, target.sql))
        return False  # `around` makes tables

    @contextmanager
    def _alone(self, session: MysqlWriteSession, plan: SqlPlan, *, create: bool) -> Iterator[None]:
        """No other job prepares or publishes the table meanwhile. With `create` it is there, when that can be.

        The lock is the session's: DDL does not end it, and neither does what ends a transaction.
        """
        target = plan.target
        hold(session, table_lock(target.label))
        session.end_when_silent()
        is_first = create and plan.held is not None and plan.held.follows == Follows(None)
        if is_first and self.dialect.find_table(session, target.sql) is None:
            with in_transaction(self, session):
                claims_at(self, session, plan.place).makes_table(plan.claim)
        made = create and make_table(self, session, target)
        try:
            yield
        except TargetError:
            if made:
                drop_if_empty(session, target)
            raise


def _traits(options: MysqlWriteOptions, server: Server) -> Traits:
    is_append = options.write_mode == "insert" and options.duplicates == "error"
    by_task = options.commit == "task" and not options.tolerates_dirty_rows
    return Traits(
        server,
        native_system=SYSTEM,
        holds_appends=True,
        overwrite_drops=False,
        one_pass_rows=one_pass_rows(options) if options.duplicates == "error" else None,
        task_seconds=TASK_SECONDS if is_append and by_task else None,
    )


def _check_scripts(options: MysqlWriteOptions, forbidden: frozenset[str]) -> None:
    split_script(options.pre_sql, "preSql", "mysql", forbidden)
    split_script(options.post_sql, "postSql", "mysql", forbidden)


def with_late_instants(session: MysqlWriteSession, target: TargetTable) -> TargetTable:
    """With the range of the server's TIMESTAMPs: MariaDB's go on until 2106 from 11.5 on."""
    has_instants = any(parts(column.declared)[0] == "timestamp" for column in target.columns)
    if not (has_instants and session.is_mariadb):
        return target
    late = "SELECT UNIX_TIMESTAMP('2100-01-01 00:00:00')"
    if not session.kept(late, lambda: session.value(late)):
        return target
    columns = (
        replace(column, column=replace(cast(MysqlColumn, column.column), holds_2106=True))
        for column in target.columns
    )
    return replace(target, columns=tuple(columns))


def _check_key_not_required(session: MysqlWriteSession, target: TargetTable) -> None:
    """Check that the server makes tables without a key, or adds one.

    Raises:
        OptionError: it does neither.
    """
    rows = session.rows(
        "SHOW SESSION VARIABLES WHERE Variable_name IN "
        "('sql_require_primary_key', 'sql_generate_invisible_primary_key')"
    )
    settings = {str(name).lower(): str(value) for name, value in rows}
    if settings.get("sql_require_primary_key") != "ON":
        return
    if settings.get("sql_generate_invisible_primary_key") != "ON":
        raise OptionError(
            f"table {target.label!r} does not exist, and {session.place} creates no table without a primary key "
            "(sql_require_primary_key = ON): write with "
            "writeMode=upsert and 'keyColumns', which become its primary key, or create the table first",
            option="keyColumns",
        )


def _find_triggers(session: MysqlWriteSession, table: MysqlTable) -> bool:
    """Whether the table has triggers; a role without TRIGGER sees none. Log which may store other values than are
    written.
    """
    triggers = session.rows(
        "SELECT trigger_name, action_statement, action_timing FROM information_schema.triggers "
        "WHERE event_object_catalog = 'def' AND event_object_schema = %s AND event_object_table = %s",
        (table.schema, table.name),
    )
    names = [
        str(name)
        for name, body, timing in triggers
        if str(timing) == "BEFORE" and _ASSIGNS.search(str(body))
    ]
    if names:
        _log.warning(
            "table %s has the trigger %s, which assigns columns: other values may be stored than are written",
            table.label,
            ", ".join(names),
        )
    return bool(triggers)
