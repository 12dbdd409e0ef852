"""Writes a table of a PostgreSQL database: atomically (`commit=job`), or task by task (`commit=task`)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.base.session_pool import ThreadSession
from spark_channel.connectors.postgresql.catalog import (
    PgTable,
    find_table,
    relation_names,
    table_sql,
)
from spark_channel.connectors.postgresql.catalog.tables import look_up
from spark_channel.connectors.postgresql.failures import (
    is_gone,
    is_locked,
    is_refused_data,
    sqlstate_of,
)
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.session import PgWriteSession, literal_sql
from spark_channel.connectors.postgresql.types import SYSTEM
from spark_channel.connectors.postgresql.write.dialect import (
    DIALECT,
    PostgresPlan,
    create_statement,
    match_target,
    new_name,
    written_columns,
)
from spark_channel.connectors.postgresql.write.loader import TASK_SECONDS, postgres_loading
from spark_channel.connectors.postgresql.write.merge import keys_sql
from spark_channel.connectors.postgresql.write.staged_rows import (
    add_comment,
    check_staged,
    is_there,
    naming_table,
    patient_lock,
    publish_stage,
)
from spark_channel.connectors.postgresql.write.staging import create_stage, drop_stage, stages
from spark_channel.connectors.sql.catalog import TABLE, Table, TargetTable
from spark_channel.connectors.sql.write.claim_tables import ClaimDialect
from spark_channel.connectors.sql.write.in_session import in_transaction
from spark_channel.connectors.sql.write.loading import Loading
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.postgresql_claims import claim_dialect
from spark_channel.connectors.sql.write.sessions import Server, Tell, Traits, Verdict
from spark_channel.connectors.sql.write.table_database import (
    TableDatabase,
    is_one_pass,
    one_pass_rows,
)
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import OptionError, TargetError
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import TableDefinition
    from spark_channel.connectors.base.health import Health
    from spark_channel.connectors.sql.definition import NewTable

__all__ = ["PostgresDatabase"]

_log = log_of(__name__)
_CONFLICTS = frozenset({"23505", "42P07", "42710", "40001", "40P01"})
_LOCKED = "55P03"
_DENIED = "42501"
_NAME_BYTES = 64
_ALTER_SECONDS = 30


class PostgresDatabase(TableDatabase[PgWriteSession]):
    """`commit=job`: tasks fill a staging table, and the driver publishes it in one transaction with the claim.

    `commit=task`: each task copies straight into the table.
    """

    Options: ClassVar[type[WriteOptions]] = PostgresWriteOptions
    options: PostgresWriteOptions
    dialect = DIALECT

    def __init__(self, options: PostgresWriteOptions) -> None:
        self.kept: ThreadSession[PgWriteSession] = ThreadSession()
        host = options.address.parameters.get("host")
        server = Server(host, self._health, self.kept.keeping)
        super().__init__(options, _traits(options, server))

    @property
    def shown(self) -> str:
        return self.options.address.shown

    def _health(self) -> "Health":
        from spark_channel.connectors.postgresql.health import PostgresHealth

        return PostgresHealth(self.options, TargetError, self.row_cost)

    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> PgWriteSession:
        return PgWriteSession.lent(self.options, failure=failure, purpose=purpose)

    def verdict(self, error: BaseException) -> Verdict:
        verdict, code = Verdict.OTHER, sqlstate_of(error)
        if isinstance(error, TargetError) and (is_gone(error) or is_locked(error)):
            verdict |= Verdict.LOST
        if code in _CONFLICTS:
            verdict |= Verdict.CONFLICT
        if code == _DENIED:
            verdict |= Verdict.DENIED
        within = error.__cause__  # what the server said, where the error says which task
        if is_refused_data(error) or (isinstance(within, TargetError) and is_refused_data(within)):
            verdict |= Verdict.REFUSED_ROW
        return verdict

    def claim_dialect(self, session: PgWriteSession, place: WriteTarget) -> ClaimDialect:
        cache = session.looked_up or session.answer_cache
        catalog = cache.about(("claims", place.schema, place.ledger))
        return claim_dialect(
            session.rows,
            place.schema,
            ledger=place.ledger,
            takes_scripts=True,
            known=catalog,
            makes_none=session.looked_up is not None,
        )

    def new_place(self, session: PgWriteSession) -> tuple[str, str]:
        space, name = new_name(self.options)
        schema = space
        if space is None:  # the first schema of the search path that is there
            cached = session.answer_cache.about("current_schema")
            schema = cached.get("") or session.value("SELECT current_schema()")
            cached[""] = schema
        elif not session.rows(f"SELECT 1 FROM pg_namespace WHERE nspname = {literal_sql(space)}"):  # noqa: S608 - a text is quoted
            schema = None
        if schema is None:
            raise OptionError(
                f"option 'dbtable' got {self.options.dbtable!r}, and "
                f"{'no schema of the search path exists' if space is None else f'schema {space!r} does not exist'}"
                ": create it, or name another",
                option="dbtable",
                got=self.options.dbtable,
            )
        return str(schema), name

    def loading(
        self, claim: TaskClaim[PgWriteSession], *, stages: bool = True
    ) -> Loading[PgWriteSession]:
        return postgres_loading(self, claim, stages=stages)

    def match(
        self, session: PgWriteSession, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> PostgresPlan:
        sql = DIALECT.place(place.schema, place.name)
        target = TargetTable(place.schema, place.name, place.label, sql)
        postgres_plan = PostgresPlan(
            **{**vars(plan), "native": False, "target": target, "alone": context.alone}
        )
        if (table := _kept(self.options, place, plan)) is not None:
            return _matched(self, postgres_plan, table, context)
        if self.options.write_mode == "apply" and plan.commit == "job":
            raise TargetError(
                f"writeMode apply changes an existing table; create {place.label} first, with a primary key"
            )
        if postgres_plan.new_table is not None and postgres_plan.new_table.table is not None:
            return self._as_tried(postgres_plan, postgres_plan.new_table.table, context)
        create_statement(sql, plan.schema, self.options)
        return postgres_plan

    def _as_tried(self, plan: PostgresPlan, table: Table, context: WriteContext) -> PostgresPlan:
        """The plan of a new table that has been tried."""
        assert isinstance(table, PgTable)
        matched = _matched(self, plan, table, context, plan.place.name)
        casts = any(column.cast for column in written_columns(matched.target))
        return replace(matched, stages_apart=casts and not matched.native)

    # What a new table gets of its source's definition

    def read_definition(self, session: PgWriteSession, table: Table) -> "TableDefinition":
        from spark_channel.connectors.postgresql.definition import read_definition

        assert isinstance(table, PgTable)
        return read_definition(session, table)

    def new_table(
        self,
        session: PgWriteSession | None,
        place: WriteTarget,
        definition: "TableDefinition",
        rows: pa.Schema,
        whole: "TableDefinition",
        *,
        is_full: bool,
    ) -> "NewTable":
        from spark_channel.connectors.postgresql.write.new_table import (
            keyed,
            tried,
            typed,
            with_numbers,
        )
        from spark_channel.connectors.sql.definition import free_names, plain_new_table

        assert session is not None
        dropped = place.table
        assert dropped is None or isinstance(dropped, PgTable)
        taken = relation_names(session, place.schema, dropped) if is_full else set()
        name_of = free_names(taken, DIALECT.index_name_bytes)
        if is_full and definition.system == DIALECT.sql:
            return tried(session, place.schema, definition, rows, self.options, name_of)
        new = plain_new_table(
            DIALECT,
            definition,
            rows,
            is_full=is_full,
            name_of=name_of,
            is_typed=self.options.create_table_column_types is not None,
        )
        if is_full:
            new = with_numbers(new, definition, place.schema, place.name, self.options, name_of)
        new = keyed(new, self.options, self.options.key_columns or ())
        if definition.system != DIALECT.sql or self.options.create_table_column_types:
            return new
        return typed(session, place.schema, new, definition, self.options)

    def complete(self, session: PgWriteSession, plan: SqlPlan, tell: Tell) -> None:
        super().complete(session, plan, tell)
        if not (plan.target.steps or plan.numbers):
            return
        from spark_channel.connectors.postgresql.write.new_table import count, count_on, counts_of

        count(session, counts_of(plan.target.steps, plan.target.sql))
        count_on(session, plan.place, plan.numbers)

    @contextmanager
    def altering(self, session: PgWriteSession, alone: WriteTarget | None = None) -> Iterator[None]:
        with session.transaction():
            session.execute(f"SET LOCAL lock_timeout = '{_ALTER_SECONDS}s'")
            if alone is not None:
                table = DIALECT.place(alone.schema, alone.name)
                session.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield

    # One staging table for the run, which is the future table itself where there is none

    def make_staging(
        self, session: PgWriteSession, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> PostgresPlan:
        """Make the staging table, which is the future table itself where there is none.

        In the transaction that has just taken the claim, whose lock lets those that prepare one write take turns.
        """
        own = _own(plan)
        if _kept(self.options, place, plan) is not None or own.stages_apart:
            create_stage(session, own.target, place.staging, own.staging)
            return own
        sql = table_sql(place.staging, own.staging)
        if session.value(f"SELECT to_regclass({literal_sql(sql)})::text") is None:
            session.execute(_create_sql(self.options, own, sql))
        staged = find_table(session, sql)
        assert staged is not None
        return _matched(self, own, staged, context, place.name)

    def staging_names(
        self, session: PgWriteSession, place: WriteTarget, beginning: str
    ) -> list[str]:
        return stages(session, place.staging, beginning)

    def drop_staging(
        self, session: PgWriteSession, place: WriteTarget, names: Sequence[str]
    ) -> None:
        for name in names:
            try:
                with in_transaction(self, session):
                    session.execute("SET LOCAL lock_timeout = '2s'")
                    drop_stage(session, place.staging, name)
            except TargetError as error:
                if sqlstate_of(error) != _LOCKED:
                    raise
                _log.warning(
                    "staging table %s is in use, and stays for the next job to remove", name
                )

    def make_ready(
        self,
        session: PgWriteSession,
        plan: SqlPlan,
        place: WriteTarget,
        context: WriteContext,
        *,
        first: bool,
    ) -> tuple[PostgresPlan, bool]:
        own = _own(plan)
        if first and _kept(self.options, place, plan) is None:
            return self._create(session, own, context), True
        there = find_table(session, own.target.sql)
        if there is None:
            raise TargetError(
                f"table {place.label} was dropped while its rows were written: run the job again"
            )
        own = _matched(self, own, there, context)
        if first:
            is_there(session, own.target, self.options, overwrite=plan.overwrite)
        return own, False

    def _create(
        self, session: PgWriteSession, plan: PostgresPlan, context: WriteContext
    ) -> PostgresPlan:
        table = plan.target
        if plan.overwrite:
            with patient_lock(session, table):
                session.execute(f"DROP TABLE IF EXISTS {table.sql}")
        with naming_table(table):
            session.execute(_create_sql(self.options, plan, table.sql))
        add_comment(session, table, self.options)
        made = find_table(session, table.sql)
        assert made is not None
        own = _matched(self, plan, made, context, table.name)
        if own.target.key:
            session.execute(
                f"ALTER TABLE {own.target.sql} ADD PRIMARY KEY ({keys_sql(own.target)})"
            )
        return replace(own, target=replace(own.target, create=None))

    def publish(
        self,
        session: PgWriteSession,
        plan: SqlPlan,
        receipts: Sequence[Receipt],
        pre_sql: Callable[[], None],
    ) -> bool:
        check_staged(session, _own(plan), self.options, receipts)
        pre_sql()
        return publish_stage(session, _own(plan), self.options, receipts)


def _traits(options: PostgresWriteOptions, server: Server) -> Traits:
    by_task = options.commit == "task" or options.tolerates_dirty_rows
    return Traits(
        server,
        native_system=SYSTEM,
        ends_sessions=_end_sessions,
        stages_with_claim=True,
        has_numbers=True,
        inherits=True,
        look_up=look_up,
        one_pass_rows=one_pass_rows(options),
        task_seconds=TASK_SECONDS if by_task else None,
    )


def _matched(
    database: PostgresDatabase,
    plan: PostgresPlan,
    table: PgTable,
    context: WriteContext,
    made_as: str | None = None,
) -> PostgresPlan:
    """Matches the rows to an existing table; `made_as`: the table was created for them, and gets this name."""
    place = None if made_as is None else (plan.place.schema, made_as)
    target, native = match_target(
        table,
        plan.schema,
        database.options,
        made_as=place,
        native=context.native,
        computed=plan.computed,
    )
    if made_as is not None and plan.new_table is not None:
        target = replace(target, steps=plan.new_table.steps)
    is_plain = not (table.is_parent or table.is_ruled or made_as)
    casts = any(column.cast for column in written_columns(target))
    return replace(
        plan,
        target=target,
        native=native,
        is_parent=table.is_parent,
        is_ruled=table.is_ruled,
        one_pass=is_plain and not casts and is_one_pass(database.traits, plan, table, context),
    )


def _kept(options: PostgresWriteOptions, place: WriteTarget, plan: SqlPlan) -> PgTable | None:
    """The table, unless the write creates one."""
    table = place.table
    assert table is None or isinstance(table, PgTable)
    return None if plan.overwrite and not options.truncate else table


def _create_sql(options: PostgresWriteOptions, plan: PostgresPlan, place: str) -> str:
    """CREATE TABLE of the table that the write makes, as `place`, which is SQL."""
    if plan.new_table is not None:
        return plan.new_table.create.replace(TABLE, place)
    return create_statement(place, plan.schema, options)


def _end_sessions(run: str) -> str | None:
    name = f"spark-channel write {run}"
    if len(name.encode()) >= _NAME_BYTES:
        return None  # the server cuts longer ones, which another run could share
    return (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "  # noqa: S608 - quoted
        f"AND usename = session_user AND application_name = {literal_sql(name)}"
    )


def _own(plan: SqlPlan) -> PostgresPlan:
    assert isinstance(plan, PostgresPlan)
    return plan
