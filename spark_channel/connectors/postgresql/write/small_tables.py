"""Small tables of a run, whose claims, rows and positions are written in one transaction.

A copy of one table has about forty exchanges with the servers, whatever its size. Here a group of tables shares them:
one look at both catalogs, one lock of all claims, one statement that writes them. For each table there are a COPY from
the source, a CREATE TABLE or TRUNCATE, a COPY into the target, and its indexes and constraints. Nothing is staged: the
rows are in memory. Nothing is tried either: a table with a part that this server refuses is copied alone.

The rules of claims are those of a single table (`connectors.base.claims`). A group takes each claim and publishes it in
the same transaction, so no other run sees it in between. A table whose claim has changed since the group looked at it,
before it read the rows, is left out: another run may have published newer rows. All transactions lock claims in one
order, so that two groups do not wait for each other: the claims of streams by their keys, then those of tables.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, cast

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.base.contract import Reader, Writer
from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.base.small_tables import ReadTable, SmallTable
from spark_channel.connectors.postgresql.catalog import (
    LOOKS_UP_MANY,
    PgTable,
    described,
    find_rows,
)
from spark_channel.connectors.postgresql.definition import defined
from spark_channel.connectors.postgresql.failures import is_gone
from spark_channel.connectors.postgresql.read.reader import PostgresReader
from spark_channel.connectors.postgresql.session import PgSession, PgWriteSession, literal_sql
from spark_channel.connectors.postgresql.write.database import PostgresDatabase
from spark_channel.connectors.postgresql.write.dialect import (
    DIALECT,
)
from spark_channel.connectors.postgresql.write.new_table import (
    count,
    count_on,
    counts_of,
    untried,
)
from spark_channel.connectors.postgresql.write.small_table_plans import (
    PgSmallPlan,
    copied_rows,
    is_special,
    planned,
    source_of,
)
from spark_channel.connectors.postgresql.write.small_table_sources import (
    IDLE_LIMIT,
    LOCK_LIMIT,
    Sources,
)
from spark_channel.connectors.sql.catalog import TABLE
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.write.plan import WriteTarget, numbered_columns
from spark_channel.connectors.sql.write.small_tables import (
    LOGIN,
    LONGEST_SECONDS,
    RefusedError,
    SqlTogether,
    alone,
    are_joined,
    database_of,
    place_in_group,
)
from spark_channel.connectors.sql.write.table_database import free_index_names
from spark_channel.errors import ChannelError, SchemaError, TargetError
from spark_channel.plain_text import log_of

__all__ = [
    "PostgresTogether",
    "joined",
]

_log = log_of(__name__)
_OPTIONS = LOGIN | {"sslpassword", "current_schema"}
"""With any other option, a table is copied alone."""
_AT_TABLES = f"""
SELECT set_config('lock_timeout', '100ms', true),
  set_config('statement_timeout', least(nullif(own, 0), {LONGEST_SECONDS * 1000:.0f})::text, true)
FROM (SELECT (extract(epoch FROM current_setting('statement_timeout')::interval) * 1000)::int AS own) AS found
"""  # noqa: S608 - a constant
"""A group that waits for a table has the locks of others. A table whose lock it does not get is copied alone."""
_NAME_BYTES = 63


def joined(reader: Reader, writer: Writer) -> "PostgresTogether | None":
    """What copies the table with others; None = an option asks for something that only a copy of one table does."""
    database = database_of(writer, PostgresDatabase)
    if not isinstance(reader, PostgresReader) or not are_joined(reader, database, _OPTIONS):
        return None
    return PostgresTogether(reader, database)


class PostgresTogether(SqlTogether[PgWriteSession]):
    """See `SqlTogether`."""

    _reader: PostgresReader
    _database: PostgresDatabase

    # --- the look

    def look(self, tables: Sequence[SmallTable]) -> None:
        reader = self._reader  # the session that reads the rows is open then
        connect = reader.copies if reader.reaches_copies else reader.connect
        with connect("plan") as reading, reading.transaction("", LOCK_LIMIT, LOOKS_UP_MANY):
            names = [cast(PostgresReader, table.reader).options.dbtable or "" for table in tables]
            rows = find_rows(reading, names)
            definitions = self._definitions(reading, tables, rows)
        sources: dict[SmallTable, tuple[ReadSource, Any]] = {}
        for table, row in zip(tables, rows, strict=True):
            with alone(table):
                sources[table] = source_of(cast(PostgresReader, table.reader), row)
        with self._session("look together") as session:
            candidates = [table for table in tables if table.why is None]
            names = [
                database_of(table.writer, PostgresDatabase).options.dbtable for table in candidates
            ]
            with session.transaction("", LOCK_LIMIT, LOOKS_UP_MANY):
                found_rows = find_rows(session, names) if names else []
                own_definitions = self._definitions(session, candidates, found_rows)
            targets: set[str] = set()
            names_of = lru_cache(None)(partial(free_index_names, DIALECT, session))
            for table, row in zip(candidates, found_rows, strict=True):
                with alone(table):
                    existing = None if row is None else described(*row)
                    place = self._placed(session, table, existing, targets)
                    source, native = sources[table]
                    plan = planned(table, source, native, place, existing)
                    if (definition := definitions.get(table)) is not None:
                        plan = self._fully(plan, definition, own_definitions.get(table), names_of)
                    table.plan = plan
                    table.builds = () if plan.new is None else plan.new.builds
                    table.schema, table.is_there = source.schema, existing is not None
                    table.key = self._key(source, existing)
            self.look_at_claims(session, tables)

    def _key(self, source: ReadSource, existing: PgTable | None) -> tuple[str, ...]:
        """The primary key that the target has, or is made with."""
        if existing is not None:
            return existing.primary
        is_bare = self._database.options.create_table == "columns" or source.table is None
        return () if is_bare or source.table is None else source.table.primary

    def _definitions(
        self,
        session: PgSession,
        tables: Sequence[SmallTable],
        rows: Sequence[tuple[Any, ...] | None],
    ) -> dict[SmallTable, TableDefinition]:
        """The definitions of those that are there, by one statement, where `createTable` is full."""
        if self._database.options.create_table != "full":
            return {}
        existing = {
            table: described(*row)
            for table, row in zip(tables, rows, strict=True)
            if row is not None
        }
        return dict(zip(existing, defined(session, list(existing.values())), strict=True))

    def _fully(
        self,
        plan: PgSmallPlan,
        source: TableDefinition,
        own_definition: TableDefinition | None,
        names_of: Callable[[str], Callable[[str], str]],
    ) -> PgSmallPlan:
        """The plan, with what `createTable=full` asks for. `own_definition`: how the table that is there is defined."""
        if own_definition is not None:
            if any(column.generated is not None for column in own_definition.columns):
                raise SchemaError(f"{plan.place.label} has generated columns, and is written alone")
            return replace(plan, numbers=numbered_columns(own_definition, source))
        new = untried(
            plan.place.schema,
            source.with_keys_to_itself(),
            plan.source.schema,
            self._database.options,
            names_of(plan.place.schema),
        )
        return replace(plan, new=new, create=new.create.replace(TABLE, plan.target.sql))

    def _placed(
        self,
        session: PgWriteSession,
        table: SmallTable,
        existing: PgTable | None,
        targets: set[str],
    ) -> WriteTarget:
        if existing is not None:
            schema, name = existing.schema, existing.name
        else:
            schema, name = database_of(table.writer, PostgresDatabase).new_place(session)
        is_long = len(name.encode()) > _NAME_BYTES
        return place_in_group(schema, name, existing, targets, is_long=is_long)

    # --- the rows

    @contextmanager
    def reading(self, *, at_once: bool) -> Iterator[ReadTable]:
        with Sources(self._reader, at_once) as sources:
            yield sources.read

    # --- the transaction

    def publish(self, tables: Sequence[SmallTable]) -> None:
        for table in tables:
            if table.is_left:
                with alone(table):
                    table.plan = replace(table.plan, rows=copied_rows(table))
        super().publish(tables)

    def session(self) -> PgWriteSession:
        return self._session("publish together")

    def on_conflict(self, names: Sequence[str]) -> str:
        sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in names)
        return f"ON CONFLICT (claim) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}"

    def transaction(self, session: PgWriteSession) -> AbstractContextManager[None]:
        return session.transaction("ISOLATION LEVEL READ COMMITTED", IDLE_LIMIT, LOCK_LIMIT)

    def write(
        self, session: PgWriteSession, tables: Sequence[SmallTable], *, at_once: bool
    ) -> list[SmallTable]:
        if tables:
            session.execute(_AT_TABLES)
        until = SYSTEM_CLOCK.now() + LONGEST_SECONDS
        if at_once and tables:
            script = "; ".join(map(self._emptied, tables))
            with self.refusing(None):
                session.execute(f"DO {literal_sql(f'BEGIN {script}; END')}")
        else:
            for table in tables:
                _hold_time(until)
                with self.refusing(table):
                    session.execute(self._emptied(table))
        self._hold(session, [table for table in tables if table.plan.there is not None])
        for table in tables:
            _hold_time(until)
            target = table.plan.target
            for rows in table.plan.rows:
                with self.refusing(table):
                    session.copy(target.schema, target.name, rows)
        self._complete(session, tables, until, at_once=at_once)
        return list(tables)

    def _complete(
        self, session: PgWriteSession, tables: Sequence[SmallTable], until: float, *, at_once: bool
    ) -> None:
        """What follows the rows: indexes, constraints and defaults of new tables, the numbers of others."""
        built = [table for table in tables if table.plan.new is not None and table.plan.new.steps]
        for some in [built] if at_once and built else [[table] for table in built]:
            _hold_time(until)
            with self.refusing(None if at_once else some[0]):
                session.execute(f"DO {literal_sql(_script(some))}")
                plans = [table.plan for table in some]
                count(
                    session,
                    [sql for plan in plans for sql in counts_of(plan.new.steps, plan.target.sql)],
                )
        for table in tables:
            count_on(session, table.plan.place, table.plan.numbers)

    def _emptied(self, table: SmallTable) -> str:
        """The statement after which the table is there without rows."""
        plan: PgSmallPlan = table.plan
        if plan.there is None:
            return plan.create
        return DIALECT.emptied(plan.target.own_rows, self._database.options)

    def _hold(self, session: PgWriteSession, tables: Sequence[SmallTable]) -> None:
        """Check that the tables, which are locked, are as they were planned."""
        if not tables:
            return
        rows = find_rows(session, [table.plan.target.sql for table in tables])
        existing = [None if row is None else described(*row) for row in rows]
        self.check_as_planned(tables, existing, is_special)

    @contextmanager
    def refusing(self, table: SmallTable | None) -> Iterator[None]:
        try:
            yield
        except ChannelError as error:
            if is_gone(error):
                raise
            raise RefusedError(table, error) from error

    def _session(self, purpose: str) -> PgWriteSession:
        return PgWriteSession.lent(self._database.options, failure=TargetError, purpose=purpose)


def _script(tables: Sequence[SmallTable]) -> str:
    """PL/pgSQL that makes what follows the rows of new tables."""
    statements = []
    for table in tables:
        for step in table.plan.new.steps:
            _log.info("table %s gets %s", table.plan.place.label, step.what)
            statements += [literal_sql(statement) for statement in step.on(table.plan.target.sql)]
    return f"BEGIN {' '.join(f'EXECUTE {statement};' for statement in statements)} END"


def _hold_time(until: float) -> None:
    """
    Raises:
        TargetError: the transaction has lasted too long: its tables are then copied one by one.
    """
    if SYSTEM_CLOCK.now() > until:
        raise TargetError(f"the group has locked its tables for {LONGEST_SECONDS:g} s")
