"""Which tables a publication has, and by which entries: see `entries.py`."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_channel.connectors.sql.postgresql.entries import OPERATIONS, Entries, differ, lost_operations
from spark_channel.connectors.sql.postgresql.session import PgSession, literal_sql
from spark_channel.errors import SourceError

__all__ = ["Followed", "Published", "check_published", "read_published"]

_SCHEMAS_SINCE = 150_000
"""The version from which on a publication may have all tables of a schema."""
_SCHEMAS = """
  UNION ALL
  SELECT 's' || s.oid FROM pg_catalog.pg_publication_namespace s
  JOIN pg_catalog.pg_class c ON c.relnamespace = s.pnnspid WHERE s.pnpubid = p.oid AND c.oid = a.relid"""
_ENTRIES = """
SELECT t.oid::bigint, e.entry, {operations}
FROM (
  SELECT c.oid FROM pg_catalog.pg_class c
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
"""A partition may be there by an entry of a table above it."""
_OPERATIONS = ", ".join(f"CASE WHEN p.pub{name} THEN '{letter}' END" for letter, name in OPERATIONS.items())


class Followed(NamedTuple):
    """A table as its stream has known it."""

    name: str
    oid: int
    entries: Entries


class Published(NamedTuple):
    """Those of the tables asked for that a publication has, and the operations that it has: "" without a table."""

    entries: dict[int, Entries]
    operations: str


def read_published(session: PgSession, publication: str, oids: Iterable[int]) -> Published:
    query = _ENTRIES.format(
        publication=literal_sql(publication),
        oids=", ".join(map(str, oids)),
        operations=f"concat({_OPERATIONS})",
        schemas=_SCHEMAS if session.version >= _SCHEMAS_SINCE else "",
    )
    found: dict[int, set[str]] = {}
    operations = ""
    for oid, entry, each in session.rows(query):
        operations = str(each)
        found.setdefault(int(oid), set()).update(() if entry is None else (str(entry),))
    return Published({oid: tuple(sorted(entries)) for oid, entries in found.items()}, operations)


def check_published(
    publication: str, tables: Sequence[Followed], operations: str, now: Published, advice: str
) -> None:
    """Hold a publication to have had each table without a break, and to have the `operations` that it had.

    Raises:
        SourceError: a table left, or left and came back, or an operation is not there any more; `advice` is what to do
            when the publication has it.
    """
    left = [each.name for each in tables if each.oid not in now.entries]
    if left:
        raise SourceError(
            f"publication {publication!r} does not hold {', '.join(left)} any more, "
            "so that changes since then are not in the log. "
            f"First add each again with ALTER PUBLICATION {publication} ADD TABLE. {advice}"
        )
    again = [each.name for each in tables if differ(each.entries, now.entries[each.oid])]
    if again:
        raise SourceError(
            f"publication {publication!r} does not hold {', '.join(again)} by the entry that it had "
            "when the log was last read: it was made again, or the table was dropped from it and added, "
            f"or got another row filter or column list. Changes between may not be in the log. {advice}"
        )
    lost = lost_operations(operations, now.operations)
    if lost:
        whole = ", ".join(
            name for letter, name in OPERATIONS.items() if letter in operations + now.operations
        )
        raise SourceError(
            f"publication {publication!r} does not have operation {', '.join(lost)} any more, so that such changes "
            f"since then are not in the log. ALTER PUBLICATION {publication} SET (publish = '{whole}') lets the stream "
            f"continue, without those changes. {advice}"
        )
