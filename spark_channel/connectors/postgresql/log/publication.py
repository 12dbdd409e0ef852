"""Which tables a publication or list has, and the columns of a followed table as the log has them."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, cast

import pyarrow as pa

from spark_channel.connectors.base.feed import LogFacts
from spark_channel.connectors.postgresql.catalog import (
    Part,
    PgColumn,
    PgTable,
    find_table,
    name_parts,
    table_sql,
)
from spark_channel.connectors.postgresql.log.pgoutput import LogColumn
from spark_channel.connectors.postgresql.log.slot import lacks_slots
from spark_channel.connectors.postgresql.log.tokens import Entries, differ
from spark_channel.connectors.postgresql.session import PgReadSession, PgSession, literal_sql
from spark_channel.connectors.postgresql.types import ELEMENTS, OF_SESSION, read_type
from spark_channel.connectors.sql.feed.log_tables import is_pattern
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import OptionError, SchemaError, SourceError

__all__ = [
    "CatalogTable",
    "Followed",
    "LogTypes",
    "Published",
    "check_decodable",
    "check_operations",
    "check_published",
    "find_listed",
    "find_one",
    "left_out",
    "log_facts",
    "look_up",
    "named",
    "named_as",
    "read_published",
    "row_columns",
    "row_key",
]

# Which tables a publication has, and by which entries: see `tokens.Entries`.


_PARTS_SINCE = 150_000
"""The version from which on a publication may have all tables of a schema, and a part of a table."""
_OPERATIONS = ("insert", "update", "delete", "truncate")
_SCHEMAS = """
  UNION ALL
  SELECT 's' || s.oid FROM pg_catalog.pg_publication_namespace s
  JOIN pg_catalog.pg_class c ON c.relnamespace = s.pnnspid WHERE s.pnpubid = p.oid AND c.oid = a.relid"""
_ENTRIES = """
SELECT t.oid::bigint, e.entry || '@' || p.xmin, {operations}, t.columns, t.filter, t.generated
FROM (
  SELECT c.oid, {part} FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_publication_tables v ON v.schemaname = n.nspname AND v.tablename = c.relname
  WHERE v.pubname = {publication} AND c.oid IN ({oids})
) t
JOIN pg_catalog.pg_publication p ON p.pubname = {publication}
CROSS JOIN LATERAL (SELECT t.oid AS relid UNION SELECT relid::oid FROM pg_catalog.pg_partition_ancestors(t.oid)) a
LEFT JOIN LATERAL (
  SELECT 'p' || p.oid AS entry WHERE p.puballtables
  UNION ALL
  SELECT 'r' || r.oid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = a.relid{schemas}
) e ON true
"""
"""A partition may be there by an entry of a table above it. Each entry has the number of the transaction that last
changed the publication's own row, as ALTER PUBLICATION ... SET (...) does."""
_PART = """CASE WHEN NOT v.attnames @> (
    SELECT array_agg(a.attname) FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
  ) THEN v.attnames::text[] END AS columns, v.rowfilter AS filter"""
"""A table without a column list has all its columns there."""
_GENERATED_SINCE = 180_000
_GENERATED = """ARRAY(
    SELECT a.attname::text FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND a.attname = ANY (v.attnames)
  ) AS generated"""
"""Generated columns whose values are in the log: those of a column list, or all stored ones where the publication has
publish_generated_columns = stored.
"""


class Followed(NamedTuple):
    """A table as its stream has known it."""

    name: str
    oid: int
    entries: Entries


class Published(NamedTuple):
    """Those of the tables asked for that a publication has, and the operations that it lacks: () without a table."""

    entries: dict[int, Entries]
    parts: dict[int, Part]
    lacks: tuple[str, ...] = ()


def read_published(session: PgSession, publication: str, oids: Iterable[int]) -> Published:
    has_parts = session.version >= _PARTS_SINCE
    query = _ENTRIES.format(
        publication=literal_sql(publication),
        oids=", ".join(map(str, oids)),
        operations=", ".join(f"p.pub{name}" for name in _OPERATIONS),
        part=", ".join(
            (
                _PART if has_parts else "NULL AS columns, NULL AS filter",
                _GENERATED if session.version >= _GENERATED_SINCE else "'{}'::text[] AS generated",
            )
        ),
        schemas=_SCHEMAS if has_parts else "",
    )
    found: dict[int, set[str]] = {}
    parts: dict[int, Part] = {}
    lacks: tuple[str, ...] = ()
    for oid, entry, *has, columns, condition, generated in session.rows(query):
        lacks = tuple(name for name, there in zip(_OPERATIONS, has, strict=True) if not there)
        found.setdefault(int(oid), set()).update(() if entry is None else (str(entry),))
        parts[int(oid)] = Part(
            None if columns is None else tuple(map(str, columns)),
            None if condition is None else str(condition),
            tuple(map(str, generated)),
        )
    return Published({oid: tuple(sorted(entries)) for oid, entries in found.items()}, parts, lacks)


def check_operations(publication: str, now: Published, advice: str = "") -> None:
    """
    Raises:
        SourceError: the publication lacks an operation, which then does not arrive, and nothing in the log says so.
    """
    if now.lacks:
        raise SourceError(
            f"publication {publication!r} does not publish {', '.join(now.lacks)}, so such changes are not in the log "
            "and the copy would keep rows as they were. "
            f"Run ALTER PUBLICATION {publication} SET (publish = '{', '.join(_OPERATIONS)}'). {advice}".rstrip()
        )


def check_published(
    publication: str, tables: Sequence[Followed], now: Published, advice: str
) -> None:
    """Check that a publication has had each table and all operations without a break.

    Raises:
        SourceError: a table left, or left and came back, or an operation is or was not there; `advice` is what to do
            when the publication has it.
    """
    left = [each.name for each in tables if each.oid not in now.entries]
    if left:
        raise _about(
            left,
            f"publication {publication!r} no longer holds {', '.join(left)}, "
            "so that later changes are not in the log. "
            f"First add each again with ALTER PUBLICATION {publication} ADD TABLE. {advice}",
        )
    check_operations(publication, now, advice)
    again = [each.name for each in tables if differ(each.entries, now.entries[each.oid])]
    if again:
        raise _about(
            again,
            f"the entry of {', '.join(again)} in publication {publication!r} was changed since the log was last read: "
            "the publication was made again, or altered by SET (...), or the table was dropped from it and added, "
            f"or got another row filter or column list. Changes between may not be in the log. {advice}",
        )


def _about(tables: Sequence[str], text: str) -> SourceError:
    error = SourceError(text)
    error.tables = tuple(tables)
    return error


# The rights that a login needs to follow the log, and what the server keeps for it.


_FACTS = """
SELECT current_setting('max_slot_wal_keep_size', true), quote_ident(current_user),
  (SELECT rolsuper OR rolreplication FROM pg_catalog.pg_roles WHERE rolname = current_user)
    OR EXISTS (SELECT FROM pg_catalog.pg_roles r
               WHERE r.rolname = 'rds_replication' AND pg_has_role(current_user, r.oid, 'MEMBER')),
  EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot}),
  (SELECT count(*) FROM pg_catalog.pg_replication_slots)::int, current_setting('max_replication_slots')::int,
  current_setting('idle_replication_slot_timeout', true), current_setting('wal_level')
"""
_RATE = """
SELECT (wal_bytes / greatest(extract(epoch FROM now() - stats_reset), 1))::float8 FROM pg_catalog.pg_stat_wal
"""
_RATES_SINCE = 140_000


def log_facts(session: PgReadSession, slot: str) -> LogFacts:
    most, role, may_use_slots, is_there, used, slots, idle, level = session.rows(
        _FACTS.format(slot=_quoted(slot))
    )[0]
    missing = []
    if level != "logical":
        missing.append(
            f"wal_level is {level}: run ALTER SYSTEM SET wal_level = logical, and restart the server"
        )
    if not may_use_slots:
        missing.append(lacks_slots(role))
    if not is_there and int(used) >= int(slots):
        missing.append(
            f"all {slots} replication slots are used: drop one that no client reads, or raise max_replication_slots, "
            "which takes a restart"
        )
    bound = (
        "without a bound (max_slot_wal_keep_size = -1)"
        if str(most) in ("-1", "None")
        else f"at most {most} (max_slot_wal_keep_size), after which the slot is lost and all rows are read again"
    )
    if idle not in (None, "0"):  # since PostgreSQL 18
        bound += f", and at most {idle} without a reader (idle_replication_slot_timeout), after which it is lost, too"
    rate = session.value(_RATE) if session.version >= _RATES_SINCE else None
    state = "keeps" if is_there else "will be made, and keeps"
    return LogFacts(
        tuple(missing),
        f"slot {slot} {state} the WAL that no run has read yet, also while none runs, {bound}",
        None if rate is None else float(rate),
    )


# Which tables a list such as `shop.orders, shop.items` or `shop.*` names.


_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_PUBLISHED = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text
FROM pg_catalog.pg_publication_tables p
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = {publication} AND {where} ORDER BY 2, 3
"""
_LEFT_OUT = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = {schema} ORDER BY 2, 3
"""
_PRESENT = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text,
  (SELECT left(md5(string_agg(format('%s %s %s', a.attname, a.atttypid,
     CASE WHEN a.atttypid = 'varchar'::regtype THEN -1 ELSE a.atttypmod END), ',' ORDER BY a.attnum)), 12)
   FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN ({oids})
"""


def named_as(*parts: str) -> str:
    """A name as people write it in SQL: parts that are not plain are quoted."""
    return ".".join(
        part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in parts
    )


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table that there is. `name` is what the feed calls it, and `sql` its name in a statement.

    `columns`: a digest of its columns; empty where it was not asked for.
    """

    oid: int
    schema: str
    table: str
    columns: str = ""

    @property
    def name(self) -> str:
        return named_as(self.schema, self.table)

    @property
    def sql(self) -> str:
        return table_sql(self.schema, self.table)


def find_listed(session: Session, publication: str, items: list[str]) -> list[CatalogTable]:
    """The tables that the items of a list name, each once.

    Raises:
        OptionError: a name of no table, or a pattern of none.
    """
    found: dict[int, CatalogTable] = {}
    for item in items:
        for each in (
            _of_pattern(session, publication, item)
            if is_pattern(item)
            else [find_one(session, item)]
        ):
            found.setdefault(each.oid, each)
    return list(found.values())


def find_one(session: Session, name: str) -> CatalogTable:
    """
    Raises:
        OptionError: the table does not exist.
    """
    table = find_table(session, name)
    if table is None:
        raise OptionError(
            f"table {name!r} does not exist in {session.place}: name it as schema.table",
            option="tables",
            got=name,
        )
    return CatalogTable(table.oid, table.schema, table.name)


def named(text: str, names: Collection[str]) -> list[str]:
    """Those of the feed's `names` that `text` may mean, including tables that the source has dropped."""
    wanted = name_parts(text)
    if wanted is None:
        return []
    schema, table = wanted
    parts = {name: name_parts(name) for name in names}
    return [
        name
        for name, each in parts.items()
        if each and table == each[1] and schema in (None, each[0])
    ]


def left_out(session: Session, publication: str, items: list[str]) -> Iterator[str]:
    """The tables of the schemas that patterns name, which are not in the publication."""
    for item in items:
        schema = _schema_of(item) if is_pattern(item) else None
        if schema is None:
            continue
        rows = session.rows(_LEFT_OUT.format(schema=_quoted(schema)))
        published = {each.oid for each in _of_pattern(session, publication, item)}
        yield from (each.name for row in rows if (each := CatalogTable(*row)).oid not in published)


def look_up(session: Session, oids: list[int]) -> dict[int, CatalogTable]:
    """The present names and columns of tables by their numbers, without tables that were dropped."""
    text = ", ".join(map(str, oids))
    return {int(row[0]): CatalogTable(*row) for row in session.rows(_PRESENT.format(oids=text))}


def _of_pattern(session: Session, publication: str, item: str) -> list[CatalogTable]:
    schema = _schema_of(item)
    where = "true" if schema is None else f"n.nspname = {_quoted(schema)}"
    rows = session.rows(_PUBLISHED.format(publication=_quoted(publication), where=where))
    if not rows:
        raise SourceError(
            f"publication {publication!r} in {session.place} has no table that {item!r} names: "
            f"add one with ALTER PUBLICATION {publication} ADD TABLE ..."
        )
    return [CatalogTable(*row) for row in rows]


def _schema_of(item: str) -> str | None:
    """None: `*`, all schemas."""
    if item == "*":
        return None
    parts = name_parts(f"{item[:-1]}x")
    if parts is None or parts[0] is None:
        raise OptionError(
            f"option 'tables' got {item!r}; a pattern is schema.* or *",
            option="tables",
            got=item,
            takes="schema.*",
        )
    return parts[0]


def _quoted(text: str) -> str:
    return literal_sql(text)


# The columns of a followed table: their Arrow types as the log has them, and those that identify a row.


_BUILTIN = {
    **{oid: name for name, oid in ELEMENTS.items()},
    114: "json",
    3802: "jsonb",
    2950: "uuid",
}
_NAMES = """
SELECT t.oid::bigint, b.typname::text, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE -1 END
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE t.oid IN ({oids})
"""


def not_decoded(typname: str) -> str:
    """Why the change feed does not decode a column of this type; "" where it does."""
    if read_type(typname).is_array:
        return "is an array, which the change feed does not decode"
    if typname in OF_SESSION:
        setting = "lc_monetary" if typname == "money" else "search_path"
        return f"is {typname}, whose text in the log is another value where {setting} differs"
    return ""


class LogTypes:
    """Asks the catalog once for each type that is not the server's own. One that was dropped is read as text."""

    def __init__(self, session: Callable[[], AbstractContextManager[Session]]) -> None:
        self._session = session
        self._known: dict[int, tuple[str, int]] = {}

    def schema(self, columns: Sequence[LogColumn]) -> pa.Schema:
        """
        Raises:
            SchemaError: a type whose text in the log is not decoded.
        """
        unknown = {each.oid for each in columns} - _BUILTIN.keys() - self._known.keys()
        if unknown:
            with self._session() as session:
                found = session.rows(_NAMES.format(oids=", ".join(map(str, sorted(unknown)))))
            self._known.update(dict.fromkeys(unknown, ("text", -1)))
            self._known.update({int(oid): (str(name), int(typmod)) for oid, name, typmod in found})
        return pa.schema([pa.field(each.name, self._kind(each)) for each in columns])

    def _kind(self, column: LogColumn) -> pa.DataType:
        name, typmod = self._known.get(column.oid) or (_BUILTIN[column.oid], -1)
        if why := not_decoded(name):
            raise SchemaError(f"column {column.name!r} {why}")
        return read_type(name, typmod if column.typmod == -1 else column.typmod).kind


def row_key(source: ReadSource) -> tuple[str, ...]:
    """The key of the rows that are read; () where it is not read, or there is none."""
    key = cast(PgTable, source.table).key
    return key if set(key) <= set(source.schema.names) else ()


def row_columns(source: ReadSource) -> tuple[str, ...]:
    """The columns that may identify a row in a target: those of unique indexes, or all without such an index.

    Empty: `row_key`.
    """
    read = source.schema.names
    sets = [each for each in cast(PgTable, source.table).unique if set(each) <= set(read)]
    found = tuple(dict.fromkeys(name for each in sets for name in each)) or tuple(read)
    return () if found == row_key(source) else found


def check_decodable(
    source: ReadSource, part: Part, left_out: Callable[[str], bool] = lambda _name: False
) -> None:
    """
    Raises:
        SchemaError: the log lacks the values of a column, or has them in a form that is not decoded.
    """
    for column in source.columns:
        about = cast(PgColumn, source.about(column.name))
        if left_out(column.name):
            continue
        if about.generated and column.name not in part.generated:
            raise SchemaError(
                f"column {column.name!r} of {source.label} is generated, and its values are not in the log: leave "
                "it out with option 'columns' (from PostgreSQL 18 on, a publication with publish_generated_columns = "
                "stored has those of stored columns)"
            )
        if why := not_decoded(about.base):
            raise SchemaError(
                f"column {column.name!r} of {source.label} {why}: omit it with option 'columns'"
            )
