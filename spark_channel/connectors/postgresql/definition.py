"""The definition of a PostgreSQL table: read from the catalog."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from spark_channel.connectors.base.definition import (
    ColumnDefinition,
    ConstraintDefinition,
    ConstraintKind,
    ForeignKeyDefinition,
    SequenceDefinition,
    TableDefinition,
)
from spark_channel.connectors.postgresql.catalog import PgTable
from spark_channel.connectors.postgresql.session import PgSession
from spark_channel.errors import SchemaError

__all__ = ["defined", "read_definition"]

SYSTEM = "postgres"

_QUALIFIED = "SET LOCAL search_path = ''"
"""The server then writes all names but its own with their schema."""
_SEQUENCE = """
SELECT json_build_object('name', s.relname, 'schema', sn.nspname, 'following',
    coalesce(CASE WHEN has_sequence_privilege(q.seqrelid, 'USAGE, SELECT')
      THEN pg_catalog.pg_sequence_last_value(q.seqrelid)::numeric + q.seqincrement END, q.seqstart),
  'increment', q.seqincrement,
  'declared', format_type(q.seqtypid, NULL),
  'settings', format('START WITH %s INCREMENT BY %s MINVALUE %s MAXVALUE %s CACHE %s%s',
    q.seqstart, q.seqincrement, q.seqmin, q.seqmax, q.seqcache,
    CASE WHEN q.seqcycle THEN ' CYCLE' ELSE '' END))
FROM pg_catalog.pg_depend p JOIN pg_catalog.pg_sequence q ON q.seqrelid = p.objid
JOIN pg_catalog.pg_class s ON s.oid = q.seqrelid JOIN pg_catalog.pg_namespace sn ON sn.oid = s.relnamespace
WHERE p.classid = 'pg_catalog.pg_class'::regclass AND p.refclassid = 'pg_catalog.pg_class'::regclass
  AND p.refobjid = a.attrelid AND p.refobjsubid = a.attnum AND p.deptype IN ('a', 'i') LIMIT 1
"""
"""A login may read the table and not its sequence: a copy then counts on behind the rows, as it does at least."""
_COLUMNS = f"""
SELECT json_agg(json_build_object('name', a.attname, 'declared', format_type(a.atttypid, a.atttypmod),
  'not_null', a.attnotnull,
  'is_own', t.typnamespace <> 'pg_catalog'::regnamespace,
  'expression', pg_get_expr(d.adbin, d.adrelid), 'generated', a.attgenerated, 'identity', a.attidentity,
  'collation', CASE WHEN a.attcollation NOT IN (0, t.typcollation)
    THEN quote_ident(cn.nspname) || '.' || quote_ident(k.collname) END,
  'comment', col_description(a.attrelid, a.attnum), 'sequence', ({_SEQUENCE})) ORDER BY a.attnum)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_catalog.pg_collation k ON k.oid = a.attcollation
LEFT JOIN pg_catalog.pg_namespace cn ON cn.oid = k.collnamespace
WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
"""  # noqa: S608 - of a constant
_NAMES_OF = """
(SELECT json_agg(a.attname ORDER BY u.n) FROM unnest({numbers}) WITH ORDINALITY u (attnum, n)
 JOIN pg_catalog.pg_attribute a ON a.attrelid = {table} AND a.attnum = u.attnum)
"""
_LISTED = """
(SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY u.n) FROM unnest({numbers}) WITH ORDINALITY u (attnum, n)
 JOIN pg_catalog.pg_attribute a ON a.attrelid = {table} AND a.attnum = u.attnum)
"""
_CONSTRAINTS = f"""
SELECT json_agg(json_build_object('kind', k.contype, 'name', k.conname, 'text', pg_get_constraintdef(k.oid),
  'columns', {_NAMES_OF.format(numbers="k.conkey", table="k.conrelid")},
  'schema', fn.nspname, 'table', f.relname,
  'referenced', {_NAMES_OF.format(numbers="k.confkey", table="k.confrelid")},
  'begins', CASE WHEN k.contype = 'f' THEN format('FOREIGN KEY (%s) REFERENCES %I.%I(%s)',
    {_LISTED.format(numbers="k.conkey", table="k.conrelid")},
    fn.nspname, f.relname, {_LISTED.format(numbers="k.confkey", table="k.confrelid")}) END,
  'is_plain', k.contype <> 'c' AND NOT k.condeferrable AND coalesce(i.indnatts = i.indnkeyatts, true)
    AND pg_get_constraintdef(k.oid) NOT LIKE '%NULLS NOT DISTINCT%',
  'comment', obj_description(k.oid, 'pg_constraint')) ORDER BY k.contype, k.conname)
FROM pg_catalog.pg_constraint k
LEFT JOIN pg_catalog.pg_class f ON f.oid = k.confrelid
LEFT JOIN pg_catalog.pg_namespace fn ON fn.oid = f.relnamespace
LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = k.conindid AND k.contype IN ('p', 'u', 'x')
WHERE k.conrelid = c.oid AND k.contype IN ('p', 'u', 'x', 'c', 'f')
"""  # noqa: S608 - of constants
_INDEXES = f"""
SELECT json_agg(json_build_object('name', x.relname, 'is_unique', i.indisunique, 'is_valid', i.indisvalid,
  'text', substr(pg_get_indexdef(x.oid), 1 + length(format('CREATE %sINDEX %I ON %s%I.%I ',
    CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, x.relname, CASE WHEN c.relkind = 'p' THEN 'ONLY ' ELSE '' END,
    n.nspname, c.relname))),
  'columns', {_NAMES_OF.format(numbers="i.indkey::int2[]", table="i.indrelid")},
  'is_plain', i.indexprs IS NULL AND i.indpred IS NULL AND m.amname = 'btree' AND i.indnatts = i.indnkeyatts
    AND NOT 0 <> ANY (i.indoption::int2[]) AND pg_get_indexdef(x.oid) NOT LIKE '%NULLS NOT DISTINCT%'
    AND (SELECT bool_and(o.opcdefault) FROM pg_catalog.pg_opclass o WHERE o.oid = ANY (i.indclass::oid[])),
  'comment', obj_description(x.oid, 'pg_class')) ORDER BY x.relname)
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid = x.relam
WHERE i.indrelid = c.oid
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k
    WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))
"""  # noqa: S608 - of constants
_OTHERS = """
SELECT json_agg(o.what ORDER BY o.what) FROM (
  SELECT 'trigger ' || g.tgname AS what FROM pg_catalog.pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal
  UNION ALL SELECT 'row security policy ' || p.polname FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid
  UNION ALL SELECT 'rule ' || r.rulename FROM pg_catalog.pg_rewrite r
    WHERE r.ev_class = c.oid AND c.relkind IN ('r', 'p')
  UNION ALL SELECT 'statistics ' || s.stxname FROM pg_catalog.pg_statistic_ext s WHERE s.stxrelid = c.oid
  UNION ALL SELECT 'partitions' WHERE c.relkind = 'p'
  UNION ALL SELECT 'inheritance' FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid AND NOT c.relispartition
  UNION ALL SELECT 'storage parameters ' || array_to_string(c.reloptions, ', ') WHERE c.reloptions IS NOT NULL
  UNION ALL SELECT 'UNLOGGED' WHERE c.relpersistence = 'u'
  UNION ALL SELECT 'grants' WHERE c.relacl IS NOT NULL
  UNION ALL SELECT 'row level security' WHERE c.relrowsecurity
  UNION ALL SELECT 'tablespace ' || t.spcname FROM pg_catalog.pg_tablespace t WHERE t.oid = c.reltablespace
  UNION ALL SELECT 'REPLICA IDENTITY ' || CASE c.relreplident WHEN 'f' THEN 'FULL' WHEN 'n' THEN 'NOTHING'
    ELSE 'USING INDEX' END WHERE c.relreplident <> 'd'
  UNION ALL SELECT 'CLUSTER ON ' || x.relname FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid WHERE i.indrelid = c.oid AND i.indisclustered
  UNION ALL SELECT o.what || ' of ' || a.attname FROM pg_catalog.pg_attribute a, LATERAL (VALUES
      ('statistics target', a.attstattarget >= 0), ('options', a.attoptions IS NOT NULL),
      ('grants', a.attacl IS NOT NULL), ('compression', to_jsonb(a) ->> 'attcompression' <> '')) AS o (what, is_set)
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND o.is_set
  UNION ALL SELECT 'storage ' || a.attstorage::text || ' of ' || a.attname FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attstorage <> t.typstorage) AS o
"""
_DEFINITION = f"""
SELECT c.oid::bigint, json_build_object('comment', obj_description(c.oid, 'pg_class'), 'columns', ({_COLUMNS}),
  'constraints', ({_CONSTRAINTS}), 'indexes', ({_INDEXES}), 'others', ({_OTHERS}))::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({{oids}})
"""  # noqa: S608 - of constants
_KINDS: Mapping[str, ConstraintKind] = {
    "p": "primary key",
    "u": "unique constraint",
    "x": "exclusion constraint",
    "c": "check",
}
_IDENTITY = {"a": "ALWAYS", "d": "BY DEFAULT"}


def read_definition(session: PgSession, table: PgTable) -> TableDefinition:
    """What the catalog says of the table."""
    with session.transaction():
        (definition,) = defined(session, [table])
    return definition


def defined(session: PgSession, tables: Sequence[PgTable]) -> list[TableDefinition]:
    """What the catalog says of the tables, by one statement. The transaction has no search path after it.

    Raises:
        SchemaError: a table is gone.
    """
    if not tables:
        return []
    session.execute(_QUALIFIED)
    oids = ", ".join(str(table.oid) for table in tables)
    texts = dict(session.rows(_DEFINITION.format(oids=oids)))
    for table in tables:
        if table.oid not in texts:
            raise SchemaError(f"table {table.label} was dropped while it was looked up: run again")
    return [_definition(table, json.loads(texts[table.oid])) for table in tables]


def _definition(table: PgTable, definition: dict[str, Any]) -> TableDefinition:
    constraints = definition["constraints"] or []
    # A SELECT also reads the tables that inherit from it, which its keys do not hold for.
    hold_null = {column.name for column in table.columns if column.holds_null}
    of_parent = table.is_parent and table.kind == "r"
    keys = [
        ConstraintDefinition(
            _KINDS[row["kind"]],
            row["name"],
            tuple(row["columns"] or ()),
            row["text"],
            is_unique=row["kind"] in ("p", "u"),
            is_plain=row["is_plain"],
            comment=row["comment"],
        )
        for row in constraints
        if row["kind"] != "f" and not (of_parent and row["kind"] in ("p", "u", "x"))
    ]
    indexes = definition["indexes"] or []
    keys += [
        ConstraintDefinition(
            "index",
            row["name"],
            tuple(row["columns"] or ()),
            row["text"],
            is_unique=row["is_unique"] and not of_parent,
            is_plain=row["is_plain"],
            comment=row["comment"],
        )
        for row in indexes
        if row["is_valid"]
    ]
    parted = [
        f"{_KINDS[row['kind']]} {row['name']}, which does not hold for the tables that inherit from it"
        for row in constraints
        if of_parent and row["kind"] in ("p", "u", "x")
    ]
    broken = [f"index {row['name']}, which is not valid" for row in indexes if not row["is_valid"]]
    return TableDefinition(
        SYSTEM,
        table.schema,
        table.name,
        tuple(_column(row, hold_null) for row in definition["columns"] or []),
        tuple(keys),
        tuple(_foreign_key(row) for row in constraints if row["kind"] == "f"),
        definition["comment"],
        (*broken, *parted, *(definition["others"] or ())),
    )


def _column(row: dict[str, Any], hold_null: Collection[str]) -> ColumnDefinition:
    expression, generated = row["expression"], row["generated"]
    sequence = row["sequence"] and SequenceDefinition(
        row["sequence"]["name"],
        row["sequence"]["following"],
        row["sequence"]["increment"],
        _IDENTITY.get(row["identity"], ""),
        row["sequence"]["settings"],
        row["sequence"]["declared"],
    )
    has_default = expression is not None and not generated and sequence is None
    storage = {"s": "STORED", "v": "VIRTUAL"}.get(generated)
    return ColumnDefinition(
        row["name"],
        row["declared"],
        not_null=row["not_null"] and row["name"] not in hold_null,
        is_own=row["is_own"],
        default=expression if has_default else None,
        generated=f"({expression}) {storage}" if storage else None,
        sequence=sequence or None,
        collation=row["collation"],
        comment=row["comment"],
    )


def _foreign_key(row: dict[str, Any]) -> ForeignKeyDefinition:
    begins, text = str(row["begins"]), str(row["text"])
    return ForeignKeyDefinition(
        row["name"],
        tuple(row["columns"]),
        row["schema"],
        row["table"],
        tuple(row["referenced"]),
        text.removeprefix(begins) if text.startswith(begins) else None,
    )
