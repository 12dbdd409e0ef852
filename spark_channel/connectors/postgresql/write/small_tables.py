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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Self, cast

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.base.contract import Reader, Writer, native_batch, native_data
from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.base.small_tables import SmallTable, Together
from spark_channel.connectors.postgresql.catalog import PgColumn, PgTable, described, find_rows
from spark_channel.connectors.postgresql.copy.format import CopyRows
from spark_channel.connectors.postgresql.definition import defined
from spark_channel.connectors.postgresql.dialect import (
    DIALECT,
    create_statement,
    match_target,
    written_columns,
)
from spark_channel.connectors.postgresql.failures import is_gone
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.read.reader import PostgresReader
from spark_channel.connectors.postgresql.session import PgSession, PgWriteSession, literal_sql
from spark_channel.connectors.postgresql.types import encode
from spark_channel.connectors.postgresql.write.database import PostgresDatabase
from spark_channel.connectors.postgresql.write.new_table import (
    count,
    count_on,
    counted_on,
    counts_of,
    untried,
)
from spark_channel.connectors.sql.catalog import TABLE, TargetTable
from spark_channel.connectors.sql.definition import NewTable
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.write.claim_tables import Ledger, is_own_table
from spark_channel.connectors.sql.write.group_claims import GroupClaims, SeenClaim
from spark_channel.connectors.sql.write.plan import WriteTarget
from spark_channel.connectors.sql.write.publish import check_planned
from spark_channel.connectors.sql.write.publish_many import publish_many
from spark_channel.connectors.sql.write.small_tables import (
    LOGIN,
    LONGEST_SECONDS,
    PIECE,
    RefusedError,
    alone,
    are_joined,
    by_schema,
    database_of,
)
from spark_channel.connectors.sql.write.table_database import free_index_names, write_target
from spark_channel.errors import ChannelError, SchemaError, SourceError, TargetError
from spark_channel.plain_text import log_of
from spark_channel.planning import Split

__all__ = ["PostgresTogether", "joined"]

_log = log_of(__name__)

_OPTIONS = LOGIN | {"sslpassword", "current_schema"}
"""With any other option, a table is copied alone."""
_FIRST = (
    "SET LOCAL idle_in_transaction_session_timeout = '5s'",
    "SET LOCAL lock_timeout = '2s'",
)
_LOOK = "SET LOCAL lock_timeout = '2s'"
"""A table that is locked holds up the look at others, and is copied alone."""
_READ = (_FIRST[0], "SET LOCAL lock_timeout = '100ms'")
"""The tables that were read before in the transaction are locked against ALTER TABLE meanwhile."""
_AT_TABLES = f"""
SELECT set_config('lock_timeout', '100ms', true),
  set_config('statement_timeout', least(nullif(own, 0), {LONGEST_SECONDS * 1000:.0f})::text, true)
FROM (SELECT (extract(epoch FROM current_setting('statement_timeout')::interval) * 1000)::int AS own) AS found
"""  # noqa: S608 - a constant
"""A group that waits for a table has the locks of others. A table whose lock it does not get is copied alone."""
_BASES: Mapping[str, str] = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "numeric": "numeric",
    "text": "text",
    "bytea": "bytea",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "interval": "interval",
}
"""By the words of `WriteDialect.created_type`."""


def joined(reader: Reader, writer: Writer) -> "PostgresTogether | None":
    """What copies the table with others; None = an option asks for something that only a copy of one table does."""
    database = database_of(writer, PostgresDatabase)
    if not isinstance(reader, PostgresReader) or not are_joined(reader, database, _OPTIONS):
        return None
    return PostgresTogether(reader, database)


@dataclass(frozen=True, slots=True)
class _Plan:
    """`there`: the table that the rows replace; None = it is to be made. `new`: with its source's whole definition.

    `numbers`: see `SqlPlan`. `rows`: as COPY takes them. `seen`: see `GroupClaims`.
    """

    source: ReadSource
    native: bool
    place: WriteTarget
    target: TargetTable
    create: str
    there: PgTable | None
    new: NewTable | None = None
    numbers: tuple[str, ...] = ()
    rows: Sequence[CopyRows] = ()
    seen: SeenClaim = (0, "", None)

    @property
    def stream_of(self) -> str:
        """The table, as claims name it."""
        return self.place.claimed


class PostgresTogether(Together):
    """See `Together`. `reader` and `database` are those of one of the tables."""

    def __init__(self, reader: PostgresReader, database: PostgresDatabase) -> None:
        self._reader, self._database = reader, database

    # --- the look

    def look(self, tables: Sequence[SmallTable]) -> None:
        reader = self._reader  # the session that reads the rows is open then
        connect = reader.copies if reader.reaches_copies else reader.connect
        with connect("plan") as reading, reading.transaction("", _LOOK):
            names = [cast(PostgresReader, each.reader).options.dbtable or "" for each in tables]
            rows = find_rows(reading, names)
            definitions = self._definitions(reading, tables, rows)
        sources: dict[SmallTable, tuple[ReadSource, Any]] = {}
        for table, row in zip(tables, rows, strict=True):
            with alone(table):
                sources[table] = _source(cast(PostgresReader, table.reader), row)
        with self._session("look together") as session:
            asked = [each for each in tables if each.why is None]
            names = [database_of(each.writer, PostgresDatabase).options.dbtable for each in asked]
            with session.transaction("", _LOOK):
                found = find_rows(session, names) if names else []
                own = self._definitions(session, asked, found)
            targets: set[str] = set()
            names_of = lru_cache(None)(partial(free_index_names, DIALECT, session))
            for table, row in zip(asked, found, strict=True):
                with alone(table):
                    there = None if row is None else described(*row)
                    place = self._placed(
                        session, database_of(table.writer, PostgresDatabase), there
                    )
                    if place.claimed in targets:
                        raise TargetError(f"{place.label} is the target of two tables")
                    targets.add(place.claimed)
                    source, native = sources[table]
                    plan = _planned(table, source, native, place, there)
                    if (definition := definitions.get(table)) is not None:
                        plan = self._fully(plan, definition, own.get(table), names_of)
                    table.plan = plan
                    table.builds = () if plan.new is None else plan.new.builds
                    table.schema, table.is_there = source.schema, there is not None
                    table.key = self._key(source, there)
            for some in by_schema(tables):
                self.claims(session, some).look(some)

    def _key(self, source: ReadSource, there: PgTable | None) -> tuple[str, ...]:
        """The primary key that the target has, or is made with."""
        if there is not None:
            return there.primary
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
        there = {
            table: described(*row)
            for table, row in zip(tables, rows, strict=True)
            if row is not None
        }
        return dict(zip(there, defined(session, list(there.values())), strict=True))

    def _fully(
        self,
        plan: _Plan,
        source: TableDefinition,
        own: TableDefinition | None,
        names_of: Callable[[str], Callable[[str], str]],
    ) -> _Plan:
        """The plan, with what `createTable=full` asks for. `own`: how the table that is there is defined."""
        if own is not None:
            if any(column.generated is not None for column in own.columns):
                raise SchemaError(f"{plan.place.label} has generated columns, and is written alone")
            return replace(plan, numbers=counted_on(own, source))
        new = untried(
            plan.place.schema,
            source.with_keys_to_itself(),
            plan.source.schema,
            self._database.options,
            names_of(plan.place.schema),
        )
        return replace(plan, new=new, create=new.create.replace(TABLE, plan.target.sql))

    def _placed(
        self, session: PgWriteSession, database: PostgresDatabase, there: PgTable | None
    ) -> WriteTarget:
        schema, name = database.new_place(session) if there is None else (there.schema, there.name)
        if is_own_table(name) or len(name.encode()) > 63:
            raise TargetError(f"table {name!r} cannot be written")
        place = write_target(schema, name, there)
        return replace(place, ledger=Ledger(schema, schema))

    # --- the rows

    def reading(self, *, at_once: bool) -> AbstractContextManager["_Sources"]:
        return _Sources(self._reader, at_once)

    def read(self, session: Any, table: SmallTable) -> Iterator[pa.RecordBatch]:
        reading: _Sources = session
        yield from reading.read(table.plan, [table.condition] if table.condition else [])

    # --- the transaction

    def publish(self, tables: Sequence[SmallTable]) -> None:
        for table in tables:
            if table.is_left:
                with alone(table):
                    table.plan = replace(table.plan, rows=_copied(table))
        publish_many(self._database, self, tables)

    def session(self) -> PgWriteSession:
        return self._session("publish together")

    def claims(self, session: PgWriteSession, tables: Sequence[SmallTable]) -> GroupClaims:
        dialect = self._database.claim_dialect(session, tables[0].plan.place)
        return GroupClaims(session, dialect, _otherwise)

    def prepared(
        self, session: PgWriteSession, claims: GroupClaims, tables: Sequence[SmallTable]
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def transaction(self, session: PgWriteSession) -> AbstractContextManager[None]:
        return session.transaction("ISOLATION LEVEL READ COMMITTED", *_FIRST)

    def claiming(self) -> AbstractContextManager[None]:
        return nullcontext()

    def write(
        self, session: PgWriteSession, tables: Sequence[SmallTable], *, at_once: bool
    ) -> list[SmallTable]:
        if tables:
            session.execute(_AT_TABLES)
        until = SYSTEM_CLOCK.now() + LONGEST_SECONDS
        if at_once and tables:
            script = "; ".join(map(self._emptied, tables))
            with self._refusing(None):
                session.execute(f"DO {literal_sql(f'BEGIN {script}; END')}")
        else:
            for table in tables:
                _hold_time(until)
                with self._refusing(table):
                    session.execute(self._emptied(table))
        self._hold(session, [table for table in tables if table.plan.there is not None])
        for table in tables:
            _hold_time(until)
            target = table.plan.target
            for rows in table.plan.rows:
                with self._refusing(table):
                    session.copy(target.schema, target.name, rows)
        self._complete(session, tables, until, at_once=at_once)
        return list(tables)

    def _complete(
        self, session: PgWriteSession, tables: Sequence[SmallTable], until: float, *, at_once: bool
    ) -> None:
        """What follows the rows: indexes, constraints and defaults of new tables, the numbers of others."""
        made = [each for each in tables if each.plan.new is not None and each.plan.new.steps]
        for some in [made] if at_once and made else [[each] for each in made]:
            _hold_time(until)
            with self._refusing(None if at_once else some[0]):
                session.execute(f"DO {literal_sql(_script(some))}")
                plans = [each.plan for each in some]
                count(
                    session,
                    [sql for own in plans for sql in counts_of(own.new.steps, own.target.sql)],
                )
        for table in tables:
            if table.plan.numbers:
                count_on(session, table.plan.numbers, table.plan.place.label)

    def _emptied(self, table: SmallTable) -> str:
        """The statement after which the table is there without rows."""
        plan: _Plan = table.plan
        if plan.there is None:
            return plan.create
        return DIALECT.emptied(plan.target.own_rows, self._database.options)

    def _hold(self, session: PgWriteSession, tables: Sequence[SmallTable]) -> None:
        """Check that the tables, which are locked, are as they were planned."""
        if not tables:
            return
        names = [each.plan.target.sql for each in tables]
        for table, row in zip(tables, find_rows(session, names), strict=True):
            with self._refusing(table):
                there = None if row is None else described(*row)
                check_planned(DIALECT, table.plan.target, there)
                if there is None or _is_special(there):
                    raise TargetError(f"table {table.plan.target.label} was altered")

    @contextmanager
    def _refusing(self, table: SmallTable | None) -> Iterator[None]:
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
            statements += [literal_sql(each) for each in step.on(table.plan.target.sql)]
    return f"BEGIN {' '.join(f'EXECUTE {each};' for each in statements)} END"


def _hold_time(until: float) -> None:
    """
    Raises:
        TargetError: the transaction has lasted too long: its tables are then copied one by one.
    """
    if SYSTEM_CLOCK.now() > until:
        raise TargetError(f"the group has locked its tables for {LONGEST_SECONDS:g} s")


def _is_special(table: PgTable) -> bool:
    return table.kind != "r" or table.is_parent or table.is_ruled


# A table's two ends, as they are planned.


class _Known:
    """Stands for a session in which a table was looked up before."""

    place = ""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self._row = row

    def repeated(self, *_: object) -> list[tuple[Any, ...]]:
        return [self._row]


def _source(reader: PostgresReader, row: tuple[Any, ...] | None) -> tuple[ReadSource, Any]:
    """The source, and its native rows if it has such."""
    if row is None:
        raise SourceError(f"there is no table {reader.options.dbtable}")
    source = reader.known(cast(Any, _Known(row)))
    if source.table is None or source.table.is_view or not reader.is_builtin:
        raise SourceError(f"{source.label} is read alone")
    return source, reader.native_rows([Split({"kind": "all", "row_bytes": 1})])


def _planned(
    table: SmallTable, source: ReadSource, native: Any, place: WriteTarget, there: PgTable | None
) -> _Plan:
    """
    Raises:
        ChannelError: the rows do not fit, or not without a staging table.
    """
    options = cast(PostgresWriteOptions, table.writer.options)
    sql = DIALECT.place(place.schema, place.name)
    if there is not None and _is_special(there):
        raise TargetError(f"table {there.label} is written alone")
    if there is None and options.create_table == "full":
        create, into = "", _alike(place, source)
    else:
        create = _create(sql, source, options) if there is None else ""
        into = there or _created(place, source.schema)
    target, is_native = match_target(into, source.schema, options, native=native)
    # What COPY writes into an identity column, only `numbers` follow.
    counts = options.create_table == "full"
    if any(each.cast or (each.column.identity and not counts) for each in written_columns(target)):
        raise SchemaError(f"rows of {place.label} are cast by the server")
    kept = replace(place, table=None)
    return _Plan(source, is_native, kept, target, create, there)


def _create(sql: str, source: ReadSource, options: PostgresWriteOptions) -> str:
    """CREATE TABLE, with as much of the source's definition as a copy of one table would give it.

    Raises:
        SchemaError: the type of a column, or a key that does not hold for all rows that are read.
    """
    table = source.table
    if options.create_table == "columns" or table is None:
        return create_statement(sql, source.schema, options)
    assert isinstance(table, PgTable)
    if table.is_parent or table.kind != "r":
        raise SchemaError(f"{table.label} has parts, and is made alone")
    never_null = {each.name for each in table.columns if DIALECT.is_never_null(table, each)}
    fields = [field.with_nullable(field.name not in never_null) for field in source.schema]
    return create_statement(sql, pa.schema(fields), options, table.primary or table.period_key)


def _alike(place: WriteTarget, source: ReadSource) -> PgTable:
    """The table as it is made with the columns of its source.

    Raises:
        SchemaError: the source has parts, whose keys may not hold for all of its rows.
    """
    table = source.table
    assert isinstance(table, PgTable)
    if table.is_parent or table.kind != "r":
        raise SchemaError(f"{table.label} has parts, and is made alone")
    columns = [replace(column, identity="") for column in table.columns]
    return PgTable(place.schema, place.name, tuple(columns), kind="r")


def _created(place: WriteTarget, schema: pa.Schema) -> PgTable:
    """The table as CREATE TABLE makes it."""
    columns = []
    for field in schema:
        declared = DIALECT.created_type(field.name, field.type, key=False)
        words, _, sizes = declared.partition("(")
        if words not in _BASES or pa.types.is_dictionary(field.type):
            raise SchemaError(f"column {field.name!r} is {field.type}")
        typmod = -1
        if sizes:
            precision, scale = map(int, sizes.rstrip(")").split(","))
            typmod = ((precision << 16) | scale) + 4
        columns.append(
            PgColumn(field.name, declared, base=_BASES[words], typmod=typmod, builtin=True)
        )
    return PgTable(place.schema, place.name, tuple(columns), kind="r")


def _copied(table: SmallTable) -> list[CopyRows]:
    """The rows as COPY takes them."""
    plan: _Plan = table.plan
    if plan.native:
        return [
            CopyRows(plan.target.names, each.num_rows, [native_data(each)])
            for each in table.batches
        ]
    from spark_channel.connectors.postgresql.copy.encoding import copy_rows  # it imports numpy

    columns = written_columns(plan.target)
    return [copy_rows(encode(each, columns)) for each in table.batches]


class _Sources:
    """The sessions that read. `at_once`: in one transaction; else no table is locked while the next one is paid."""

    def __init__(self, reader: PostgresReader, at_once: bool) -> None:
        self._reader, self._at_once = reader, at_once
        self._open: dict[bool, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for session in self._open.values():
            try:
                if self._at_once and kind is None and session.is_open:
                    session.execute("COMMIT")
            finally:
                session.__exit__(kind, None, None)

    def read(self, plan: _Plan, conditions: Sequence[str]) -> Iterator[pa.RecordBatch]:
        session, source = self._session(native=plan.native), plan.source
        with session.closed_on_failure():
            if not self._at_once:
                session.begin("", _LOOK)
            if plan.native:
                columns = [source.column(column.name) for column in source.columns]
                query = source.sql(columns, conditions)
                for piece, bounds in session.copy(query, len(columns), PIECE.nbytes):
                    yield native_batch(piece, bounds)
            else:
                asked = source.dialect.statement(source.columns, source.behind(conditions))
                for raw in session.stream(asked, PIECE):
                    if raw.num_rows:
                        yield source.dialect.decode(raw, source.columns, source.schema)
            if not self._at_once:
                session.execute("COMMIT")

    def _session(self, *, native: bool) -> Any:
        found = self._open.get(native)
        if found is None or not found.is_open:
            found = (self._reader.copies if native else self._reader.connect)("read")
            self._open[native] = found
            if self._at_once:
                with found.closed_on_failure():
                    found.begin("", *_READ)
        return found


def _otherwise(names: Sequence[str]) -> str:
    """See `GroupClaims`."""
    sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in names)
    return f"ON CONFLICT (claim) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}"
