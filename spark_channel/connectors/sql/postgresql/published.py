"""Which tables a publication has, and by which entries: see `entries.py`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_channel.connectors.sql.postgresql.entries import Entries, differ
from spark_channel.connectors.sql.postgresql.session import literal_sql
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import SourceError

__all__ = ["Followed", "check_published", "read_published"]

_SCHEMAS_SINCE = 150_000
"""The version from which on a publication may have all tables of a schema."""
_SCHEMAS = """
  UNION ALL
  SELECT 's' || s.oid FROM pg_catalog.pg_publication_namespace s
  JOIN pg_catalog.pg_class c ON c.relnamespace = s.pnnspid WHERE s.pnpubid = p.oid AND c.oid = a.relid"""
_ENTRIES = """
SELECT t.oid::bigint, e.entry
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


class Followed(NamedTuple):
    """A table as its stream has known it."""

    name: str
    oid: int
    entries: Entries


def read_published(session: Session, publication: str, oids: Iterable[int]) -> dict[int, Entries]:
    """Those of these tables that the publication has now."""
    has_schemas = int(session.value("SELECT current_setting('server_version_num')::int")) >= _SCHEMAS_SINCE
    query = _ENTRIES.format(
        publication=literal_sql(publication),
        oids=", ".join(map(str, oids)),
        schemas=_SCHEMAS if has_schemas else "",
    )
    found: dict[int, set[str]] = {}
    for oid, entry in session.rows(query):
        found.setdefault(int(oid), set()).update(() if entry is None else (str(entry),))
    return {oid: tuple(sorted(entries)) for oid, entries in found.items()}


def check_published(
    publication: str, tables: Sequence[Followed], now: Mapping[int, Entries], advice: str
) -> None:
    """Hold a publication to have had each table without a break.

    Raises:
        SourceError: one left, or left and came back; `advice` is what to do when the publication has it.
    """
    left = [each.name for each in tables if each.oid not in now]
    if left:
        raise SourceError(
            f"publication {publication!r} does not hold {', '.join(left)} any more, "
            "so that changes since then are not in the log. "
            f"First add each again with ALTER PUBLICATION {publication} ADD TABLE. {advice}"
        )
    again = [each.name for each in tables if differ(each.entries, now[each.oid])]
    if again:
        raise SourceError(
            f"publication {publication!r} does not hold {', '.join(again)} by the entry that it had "
            "when the log was last read: it was made again, or the table was dropped from it and added, "
            f"or got another row filter or column list. Changes between may not be in the log. {advice}"
        )
