"""Which tables a publication has, and by which entries: see `tokens.Entries`."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_channel.connectors.postgresql.catalog import Part
from spark_channel.connectors.postgresql.log.entries import Entries, differ
from spark_channel.connectors.postgresql.session import PgSession, literal_sql
from spark_channel.errors import SourceError

__all__ = ["Followed", "Published", "check_operations", "check_published", "read_published"]


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
    entries: dict[int, set[str]] = {}
    parts: dict[int, Part] = {}
    lacks: tuple[str, ...] = ()
    for oid, entry, *has, columns, condition, generated in session.rows(query):
        lacks = tuple(name for name, has_it in zip(_OPERATIONS, has, strict=True) if not has_it)
        entries.setdefault(int(oid), set()).update(() if entry is None else (str(entry),))
        parts[int(oid)] = Part(
            None if columns is None else tuple(map(str, columns)),
            None if condition is None else str(condition),
            tuple(map(str, generated)),
        )
    return Published(
        {oid: tuple(sorted(entries)) for oid, entries in entries.items()}, parts, lacks
    )


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
    gone = [table.name for table in tables if table.oid not in now.entries]
    if gone:
        raise _about(
            gone,
            f"publication {publication!r} no longer holds {', '.join(gone)}, "
            "so that later changes are not in the log. "
            f"First add each again with ALTER PUBLICATION {publication} ADD TABLE. {advice}",
        )
    check_operations(publication, now, advice)
    again = [table.name for table in tables if differ(table.entries, now.entries[table.oid])]
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
