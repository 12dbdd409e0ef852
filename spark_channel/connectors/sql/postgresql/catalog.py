"""A table in the server's catalog: columns, keys, size; and how a name is resolved."""

from dataclasses import dataclass

from sqlglot import exp

from spark_channel.connectors.sql import catalog
from spark_channel.connectors.sql.named import parsed_name
from spark_channel.connectors.sql.postgresql.session import literal_sql
from spark_channel.connectors.sql.session import Session

__all__ = ["PgColumn", "PgTable", "find_table", "name_parts", "table_names"]

_FIND = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relkind = 'r' AND c.relhassubclass
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = {name} AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND {where}
ORDER BY n.nspname = 'pg_catalog' LIMIT 1
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef OR t.typdefault IS NOT NULL,
  a.attgenerated <> '', b.typname, b.typcategory::text,
  CASE WHEN t.typtype = 'd' AND a.atttypmod = -1 THEN t.typtypmod ELSE a.atttypmod END, a.attidentity::text, e.typname,
  b.typnamespace = 'pg_catalog'::regnamespace,
  (SELECT cn.nspname || '.' || k.collname FROM pg_catalog.pg_collation k
   JOIN pg_catalog.pg_namespace cn ON cn.oid = k.collnamespace WHERE k.oid = a.attcollation)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_catalog.pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_KEYS = """
SELECT i.indisprimary, i.indisunique AND i.indimmediate,
  (SELECT array_agg(a.attname::text ORDER BY k.n)
   FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, n)
   JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
   WHERE k.n <= i.indnkeyatts),
  (SELECT bool_and(a.attnotnull)
   FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, n)
   JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
   WHERE k.n <= i.indnkeyatts),
  (SELECT array_agg((k.o & 1)::int ORDER BY k.n)
   FROM unnest(i.indoption::int2[]) WITH ORDINALITY k (o, n) WHERE k.n <= i.indnkeyatts),
  (SELECT bool_and(o.opcdefault AND c.coll = a.attcollation AND c.o IN (0, 3))
   FROM unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[], i.indoption::int2[])
     WITH ORDINALITY c (attnum, class, coll, o, n)
   JOIN pg_catalog.pg_opclass o ON o.oid = c.class
   JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = c.attnum
   WHERE c.n <= i.indnkeyatts)
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhparent = i.indrelid AND {kind} <> 'p')
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid = c.relam
WHERE i.indrelid = {oid} AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL AND m.amname = 'btree'
ORDER BY i.indisprimary DESC, i.indisunique DESC, i.indnkeyatts, c.relname
"""
_SIZE = """
SELECT coalesce((SELECT sum(pg_relation_size(relid)) FROM pg_partition_tree({oid})), pg_relation_size({oid}))::bigint
  / current_setting('block_size')::bigint
"""
_NAMES = """
SELECT CASE WHEN pg_table_is_visible(c.oid) THEN c.relname::text ELSE n.nspname || '.' || c.relname END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
ORDER BY 1 LIMIT 21
"""


@dataclass(frozen=True, slots=True)
class PgColumn(catalog.Column):
    """`declared` is its type as SQL, `base` the type's name below a domain, `element` an array's.

    `builtin`: that type is PostgreSQL's own, and not a user's type of the same name.
    """

    base: str = ""
    category: str = ""
    typmod: int = -1
    identity: str = ""
    element: str | None = None
    builtin: bool = False
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class PgTable(catalog.Table):
    """`kind` is pg_class.relkind. `key` is what its rows can be cut by: NOT NULL columns of an index, () without one.

    `pages` counts partitions too. `keys` are the unique indexes of NOT NULL columns whose order is that of their
    columns, and which hold for all rows that a SELECT reads: not so of a table that others inherit from. `indexes` are
    the columns of its indexes that go one way, with whether they are unique.
    """

    columns: tuple[PgColumn, ...] = ()
    oid: int = 0
    kind: str = ""
    key: tuple[str, ...] = ()
    nullable_key: str | None = None
    pages: int = 0
    keys: tuple[tuple[catalog.KeyColumn, ...], ...] = ()
    indexes: tuple[tuple[tuple[str, ...], bool], ...] = ()
    is_parent: bool = False
    """Other tables inherit from it, as partitions did before PostgreSQL had them: a trigger may put its rows there."""


def name_parts(text: str) -> tuple[str | None, str] | None:
    """(schema, table) that `text` names in PostgreSQL's way: what is not quoted is lower case."""
    tree = parsed_name(text, "postgres")
    if tree is None:
        return None
    return (_folded(tree.args["db"]) if tree.args.get("db") else None), _folded(tree.this)


def _folded(name: exp.Identifier) -> str:
    text = str(name.this)
    return text if name.args.get("quoted") else text.lower()


def find_table(session: Session, text: str) -> PgTable | None:
    """The table or view that `text` names; None when there is none."""
    for reading in (name_parts(text), (None, text)):
        if reading is not None and (found := _lookup(session, *reading)) is not None:
            return _describe(session, found)
    return None


def table_names(session: Session) -> list[str]:
    """Some names of tables that there are, for messages."""
    return [str(name) for (name,) in session.rows(_NAMES)]


def _lookup(session: Session, schema: str | None, name: str) -> tuple[int, str, str, str, bool] | None:
    where = (
        "pg_catalog.pg_table_is_visible(c.oid)" if schema is None else f"n.nspname = {literal_sql(schema)}"
    )
    rows = session.rows(_FIND.format(name=literal_sql(name), where=where))
    if not rows:
        return None
    oid, space, found, kind, is_parent = rows[0]
    return int(oid), str(space), str(found), str(kind), bool(is_parent)


def _describe(session: Session, found: tuple[int, str, str, str, bool]) -> PgTable:
    oid, schema, name, kind, is_parent = found
    columns = tuple(PgColumn(*row) for row in session.rows(_COLUMNS.format(oid=oid)))
    key: tuple[str, ...] = ()
    nullable_key = None
    primary: tuple[str, ...] = ()
    unique, keys, indexes = [], [], []
    if kind in ("r", "p", "m"):
        found_keys = session.rows(_KEYS.format(oid=oid, kind=f"'{kind}'"))
        for is_primary, is_unique, names, not_null, descending, is_sound in found_keys:
            if is_sound:
                if len(set(descending)) == 1:
                    indexes.append((tuple(names), bool(is_unique)))
                if is_unique and not_null:
                    keys.append(tuple(map(catalog.KeyColumn, names, map(bool, descending))))
            if is_primary:
                primary = tuple(names)
            if is_unique:
                unique.append(tuple(names))
                if not_null and not key:
                    key = tuple(names)
            if nullable_key is None:
                nullable_key = str(names[0])
    pages = int(session.value(_SIZE.format(oid=oid)) or 0) if kind in ("r", "p", "m") else 0
    return PgTable(
        schema, name, columns, kind in ("v", "f"), tuple(unique), primary, oid, kind, key, nullable_key, pages,
        tuple(keys), tuple(indexes), is_parent,
    )  # fmt: skip
