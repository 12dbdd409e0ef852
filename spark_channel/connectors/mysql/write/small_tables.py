"""Small tables of a run, whose claims and rows are written in one transaction.

As PostgreSQL's groups: one look at both catalogs, one statement that locks all claims, one that writes them, and for
each table a SELECT and a LOAD DATA. Nothing is staged, since the rows are in memory, and no definition is tried before:
a table that this server refuses is copied alone.

DDL commits here. So new tables are made before the transaction, empty, under the locks of the server (GET_LOCK) that
publishes of single tables take; a group waits for none of these locks. A table that it made, and did not fill, is
dropped again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.base.contract import Reader, Writer
from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.base.small_tables import ReadTable, SmallTable
from spark_channel.connectors.mysql.dialect import (
    CatalogRows,
    MysqlTable,
    catalog_rows,
    find_rows,
    places_of,
    table_of,
)
from spark_channel.connectors.mysql.dialect.definition import on_table, read_definitions
from spark_channel.connectors.mysql.read.reader import MysqlReader
from spark_channel.connectors.mysql.session import (
    LostConnectionError,
    MysqlWriteSession,
    is_away,
    was_rolled_back,
)
from spark_channel.connectors.mysql.write.database import MysqlDatabase, with_late_instants
from spark_channel.connectors.mysql.write.dialect import MysqlWriteDialect
from spark_channel.connectors.mysql.write.load_data import RefusedRowsError, RowSender
from spark_channel.connectors.mysql.write.new_table import untried
from spark_channel.connectors.mysql.write.references import reached
from spark_channel.connectors.mysql.write.small_table_sources import Sources, see_whole, source_of
from spark_channel.connectors.mysql.write.staging import drop_if_empty
from spark_channel.connectors.mysql.write.table_locks import table_lock
from spark_channel.connectors.sql.catalog import Table, TargetTable
from spark_channel.connectors.sql.definition import NewTable, plain_new_table, with_safe_key
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.session import Session, transaction
from spark_channel.connectors.sql.write.checks import dropped
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.group_claims import GroupClaims
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.small_tables import (
    LOGIN,
    LONGEST_SECONDS,
    RefusedError,
    SmallPlan,
    SqlTogether,
    alone,
    are_joined,
    database_of,
    place_in_group,
)
from spark_channel.errors import ChannelError, SchemaError, TargetError
from spark_channel.plain_text import log_of

__all__ = [
    "MysqlTogether",
    "joined",
]

_log = log_of(__name__)
_OPTIONS = LOGIN | {
    "allow_public_key_retrieval",
    "enable_cleartext_plugin",
    "server_rsa_public_key_file",
}
"""With any other option, a table is copied alone."""
_WAIT_SECONDS = 2
"""How long a statement of a group waits for a lock, while it has those of others."""
_NAME_LETTERS = 64
_WRITE = MysqlWriteDialect()


def joined(reader: Reader, writer: Writer) -> "MysqlTogether | None":
    """What copies the table with others; None = an option asks for something that only a copy of one table does."""
    database = database_of(writer, MysqlDatabase)
    if not isinstance(reader, MysqlReader) or not are_joined(reader, database, _OPTIONS):
        return None
    return MysqlTogether(reader, database)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan(SmallPlan):
    """`there`: whether the table whose rows are replaced is there. `looks`: the columns of the source."""

    source: ReadSource
    there: bool
    looks: tuple[tuple[Any, ...], ...]


class MysqlTogether(SqlTogether[MysqlWriteSession]):
    """See `SqlTogether`."""

    _reader: MysqlReader
    _database: MysqlDatabase

    # --- the look

    def look(self, tables: Sequence[SmallTable]) -> None:
        sources: dict[SmallTable, tuple[ReadSource, CatalogRows]] = {}
        with self._reader.connect("plan") as reading:
            names = [cast(MysqlReader, table.reader).options.dbtable or "" for table in tables]
            for table, rows in zip(tables, find_rows(reading, names), strict=True):
                with alone(table):
                    sources[table] = source_of(reading, cast(MysqlReader, table.reader), rows)
            see_whole(reading, [source for source, _ in sources.values()])
            definitions = self._definitions(reading, sources)
        with MysqlWriteSession.lent(self._database.options, TargetError, patient=True) as session:
            self._look_at_targets(session, sources, definitions)

    def _definitions(
        self, session: Session, sources: Mapping[SmallTable, tuple[ReadSource, CatalogRows]]
    ) -> dict[SmallTable, TableDefinition]:
        if self._database.options.create_table == "columns":
            return {}
        pairs = [(cast(MysqlTable, source.table), rows) for source, rows in sources.values()]
        definitions = read_definitions(session, pairs, self._reader.dialect)
        return dict(zip(sources, definitions, strict=True))

    def _look_at_targets(
        self,
        session: MysqlWriteSession,
        sources: Mapping[SmallTable, tuple[ReadSource, CatalogRows]],
        definitions: Mapping[SmallTable, TableDefinition],
    ) -> None:
        names = [database_of(table.writer, MysqlDatabase).options.dbtable for table in sources]
        existing_tables = [
            None if rows is None else table_of(rows) for rows in find_rows(session, names)
        ]
        facts = _Facts(session, [existing for existing in existing_tables if existing is not None])
        targets: set[str] = set()
        for table, existing in zip(sources, existing_tables, strict=True):
            with alone(table):
                place = self._placed(table, existing, facts, targets)
                source, rows = sources[table]
                table.plan = self._planned(
                    session, table, source, rows, place, definitions.get(table)
                )
                table.schema, table.is_there = source.schema, existing is not None
                new_table = table.plan.new
                if existing is not None:
                    table.key = existing.primary
                elif new_table is not None:
                    table.key = (
                        new_table.key if new_table.table is None else new_table.table.primary
                    )
        self.look_at_claims(session, list(sources))

    def _placed(
        self,
        table: SmallTable,
        existing: MysqlTable | None,
        facts: "_Facts",
        targets: set[str],
    ) -> WriteTarget:
        if existing is not None:
            facts.check(existing)
            schema, name = existing.schema, existing.name
        else:
            dbtable = database_of(table.writer, MysqlDatabase).options.dbtable
            schema, name = facts.new_place(dbtable)
        is_long = len(name) > _NAME_LETTERS
        return place_in_group(schema, name, existing, targets, is_long=is_long)

    def _planned(
        self,
        session: MysqlWriteSession,
        table: SmallTable,
        source: ReadSource,
        rows: CatalogRows,
        place: WriteTarget,
        definition: TableDefinition | None,
    ) -> _Plan:
        """
        Raises:
            ChannelError: the rows do not fit, or only in a copy of one table.
        """
        new = None
        if place.table is None and definition is not None:
            new = self._new(source, place, definition)
        target = self._target(session, table, source, place, new)
        without_table = replace(place, table=None)
        return _Plan(
            source=source,
            place=without_table,
            target=target,
            there=place.table is not None,
            looks=tuple(rows.columns),
            new=new,
        )

    def _target(
        self,
        session: MysqlWriteSession,
        table: SmallTable,
        source: ReadSource,
        place: WriteTarget,
        new: NewTable | None,
    ) -> TargetTable:
        plan = SqlPlan(table.job, source.schema, "job", place=place, new_table=new)
        target = database_of(table.writer, MysqlDatabase).target(plan, place)
        return with_late_instants(session, target)

    def _new(
        self, source: ReadSource, place: WriteTarget, definition: TableDefinition
    ) -> NewTable | None:
        level = self._database.options.create_table
        definition = definition.with_keys_to_itself()
        if level == "full":
            untried_table = untried(place, definition, source.schema)
            if isinstance(untried_table, str):
                raise SchemaError(untried_table)
            source_table = cast(MysqlTable, source.table)
            new = replace(
                untried_table, table=replace(source_table, schema=place.schema, name=place.name)
            )
        else:
            left_out: tuple[str, ...] = ()
            if level == "auto":
                lengths = source.text_lengths
                definition, left_out = with_safe_key(_WRITE, definition, source.schema, lengths)
            new = plain_new_table(_WRITE, definition, source.schema, is_full=False, name_of=str)
            new = replace(new, left_out=(*left_out, *new.left_out))
        remarks = tuple(remark for remark in new.left_out if not remark.startswith("foreign key "))
        return replace(new, left_out=remarks)

    # --- the rows

    @contextmanager
    def reading(self, *, at_once: bool) -> Iterator[ReadTable]:
        with Sources(self._reader) as sources:
            yield sources.read

    # --- the transaction

    def publish(self, tables: Sequence[SmallTable]) -> None:
        try:
            super().publish(tables)
        except LostConnectionError as error:
            raise TargetError(error.text) from error

    def session(self) -> MysqlWriteSession:
        return MysqlWriteSession(self._database.options, TargetError, local_infile=True)

    def on_conflict(self, names: Sequence[str]) -> str:
        sets = ", ".join(f"{name} = VALUES({name})" for name in names or ("claim",))
        return f"ON DUPLICATE KEY UPDATE {sets}"

    @contextmanager
    def prepared(
        self, session: MysqlWriteSession, claims: GroupClaims, tables: Sequence[SmallTable]
    ) -> Iterator[None]:
        """The new tables, which are dropped again unless their rows were published."""
        session.end_when_silent()
        waits = f"innodb_lock_wait_timeout = {_WAIT_SECONDS}, lock_wait_timeout = {_WAIT_SECONDS}"
        session.execute(f"SET SESSION {waits}")
        made: list[SmallTable] = []
        try:
            _hold_all(session, tables)
            first = [
                table
                for table in tables
                if table.is_left and table.follows and not table.plan.there
            ]
            if first:
                with transaction(session, _WRITE.begin):
                    claims.make_tables(first)
            for table in tables:
                if table.is_left and not table.plan.there:
                    with alone(table):
                        session.execute(table.plan.target.create)
                        made.append(table)
            self._plan_as_made(session, made)
            yield
        finally:
            for table in made:
                if table.why is not None or table.published_at is None:
                    drop_if_empty(session, table.plan.target)
            _free_all(session, tables)

    def _plan_as_made(self, session: MysqlWriteSession, new_tables: Sequence[SmallTable]) -> None:
        """Plan the new tables with the columns that this server gave them, which may not be those of their sources:
        MariaDB makes LONGTEXT of JSON.
        """
        like_source = [
            table for table in new_tables if table.plan.new is not None and table.plan.new.table
        ]
        by_place = catalog_rows(session, [_place(table.plan.target) for table in like_source])
        for table in like_source:
            plan: _Plan = table.plan
            with alone(table):
                rows = by_place.get(_place(plan.target))
                if rows is None or plan.new is None:
                    raise dropped(plan.target)
                new = replace(plan.new, table=table_of(rows))
                target = self._target(session, table, plan.source, plan.place, new)
                table.plan = replace(plan, target=target, new=new)

    def transaction(self, session: MysqlWriteSession) -> AbstractContextManager[None]:
        return transaction(session, _WRITE.begin)

    def claiming(self) -> AbstractContextManager[None]:
        return self.refusing(None)

    def write(
        self, session: MysqlWriteSession, tables: Sequence[SmallTable], *, at_once: bool
    ) -> list[SmallTable]:
        new: list[SmallTable] = []
        until = SYSTEM_CLOCK.now() + LONGEST_SECONDS
        for table in tables:
            if new and SYSTEM_CLOCK.now() > until:
                break  # the next transaction has the others
            with self.refusing(table):
                self._load(session, table)
            new.append(table)
        self._hold(session, new)
        return new

    def _load(self, session: MysqlWriteSession, table: SmallTable) -> None:
        plan: _Plan = table.plan
        if plan.there:
            session.execute(_WRITE.emptied(plan.target.own_rows, self._database.options))
        if table.rows:
            loader = RowSender(session, plan.target.sql, plan.target.columns, None, cost=None)
            for batch in table.batches:
                loader.load(batch)

    def _hold(self, session: MysqlWriteSession, tables: Sequence[SmallTable]) -> None:
        """Check that the tables, which have been written to, so that no one alters them, are as they were planned."""
        by_place = catalog_rows(
            session, [_place(table.plan.target) for table in tables], indexes=False
        )
        found_rows = [by_place.get(_place(table.plan.target)) for table in tables]
        existing = [None if rows is None else table_of(rows) for rows in found_rows]
        self.check_as_planned(tables, existing, _is_special)

    @contextmanager
    def refusing(self, table: SmallTable | None) -> Iterator[None]:
        try:
            yield
        except (ChannelError, BadValueError, RefusedRowsError) as error:
            of_group = isinstance(error, ChannelError) and was_rolled_back(error)
            if isinstance(error, ChannelError) and is_away(error) and not of_group:
                raise
            raise RefusedError(None if of_group else table, error) from error


def _is_special(table: MysqlTable) -> bool:
    return table.is_view or str(table.engine).lower() != "innodb"


def _place(table: Table | TargetTable) -> tuple[str, str]:
    return table.schema, table.name


def _hold_all(session: MysqlWriteSession, tables: Sequence[SmallTable]) -> None:
    """Take the locks of publishes; a table whose lock another session has is copied alone, and waits for it."""
    locks = [table_lock(table.plan.target.label) for table in tables]
    ((*got,),) = session.rows(f"SELECT {', '.join('GET_LOCK(%s, 0)' for _ in locks)}", locks)
    for table, one in zip(tables, got, strict=True):
        if one != 1:
            table.why = TargetError(f"another job publishes {table.plan.target.label}")


def _free_all(session: MysqlWriteSession, tables: Sequence[SmallTable]) -> None:
    """Release the locks before the session ends, which the server notices later."""
    locks = [table_lock(table.plan.target.label) for table in tables]
    with suppress(ChannelError, LostConnectionError):
        session.execute(f"DO {', '.join('RELEASE_LOCK(%s)' for _ in locks)}", locks)


class _Facts:
    """What the target's server says of all tables of a group at once."""

    def __init__(self, session: MysqlWriteSession, tables: Sequence[MysqlTable]) -> None:
        self._here = str(session.value("SELECT DATABASE()") or "")
        self._lowers = session.value("SELECT @@lower_case_table_names") == 1
        self._reached: set[tuple[str, str]] = set()
        if tables:
            names = [(table.schema, table.name) for table in tables]
            self._reached = _triggered(session, tables) | reached(session, names)

    def new_place(self, dbtable: str) -> tuple[str, str]:
        """Where a table is made."""
        places = places_of(dbtable, self._here)
        if not places:
            raise TargetError("no database is named")
        database, name = places[-1]
        return (database.lower(), name.lower()) if self._lowers else (database, name)

    def check(self, table: MysqlTable) -> None:
        """
        Raises:
            TargetError: a DELETE of its rows changes other tables, or the server computes what it stores.
        """
        is_reached = _place(table) in self._reached
        is_computed = any(column.generated for column in table.columns)
        if _is_special(table) or is_reached or is_computed:
            raise TargetError(f"table {table.label} is written alone")


def _triggered(session: Session, tables: Sequence[MysqlTable]) -> set[tuple[str, str]]:
    one = "SELECT event_object_schema, event_object_table FROM information_schema.triggers WHERE "
    query = " UNION ALL ".join(one + on_table(table.schema, table.name) for table in tables)
    return {(str(schema), str(name)) for schema, name in session.rows(query)}
