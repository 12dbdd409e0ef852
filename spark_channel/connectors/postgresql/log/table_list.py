"""Which tables a list such as `shop.orders, shop.items` or `shop.*` names."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from spark_channel.connectors.postgresql.catalog import find_table, name_parts, table_sql
from spark_channel.connectors.postgresql.session import literal_sql
from spark_channel.connectors.sql.feed.log_tables import is_pattern
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import OptionError, SourceError

__all__ = [
    "CatalogTable",
    "find_listed",
    "find_one",
    "left_out",
    "look_up",
    "named",
    "named_as",
    "quoted",
]


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
    tables: dict[int, CatalogTable] = {}
    for item in items:
        for table in (
            _of_pattern(session, publication, item)
            if is_pattern(item)
            else [find_one(session, item)]
        ):
            tables.setdefault(table.oid, table)
    return list(tables.values())


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
    name = name_parts(text)
    if name is None:
        return []
    schema, table = name
    parts = {name: name_parts(name) for name in names}
    return [
        name
        for name, part in parts.items()
        if part and table == part[1] and schema in (None, part[0])
    ]


def left_out(session: Session, publication: str, items: list[str]) -> Iterator[str]:
    """The tables of the schemas that patterns name, which are not in the publication."""
    for item in items:
        schema = _schema_of(item) if is_pattern(item) else None
        if schema is None:
            continue
        rows = session.rows(_LEFT_OUT.format(schema=quoted(schema)))
        published = {table.oid for table in _of_pattern(session, publication, item)}
        yield from (
            table.name for row in rows if (table := CatalogTable(*row)).oid not in published
        )


def look_up(session: Session, oids: list[int]) -> dict[int, CatalogTable]:
    """The present names and columns of tables by their numbers, without tables that were dropped."""
    text = ", ".join(map(str, oids))
    return {int(row[0]): CatalogTable(*row) for row in session.rows(_PRESENT.format(oids=text))}


def _of_pattern(session: Session, publication: str, item: str) -> list[CatalogTable]:
    schema = _schema_of(item)
    where = "true" if schema is None else f"n.nspname = {quoted(schema)}"
    rows = session.rows(_PUBLISHED.format(publication=quoted(publication), where=where))
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


def quoted(text: str) -> str:
    return literal_sql(text)
