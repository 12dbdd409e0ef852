"""A table in the server's catalog: columns, keys, size; and how a name is resolved."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from spark_channel.connectors.base.session_pool import AnswerCache
from spark_channel.connectors.base.types import exp
from spark_channel.connectors.postgresql.session import PgSession, literal_sql
from spark_channel.connectors.sql import catalog
from spark_channel.connectors.sql.catalog.rights import MissingRights, Right
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import parsed_name, quoted_parts

__all__ = [
    "LOOKS_UP_MANY",
    "Part",
    "PartReader",
    "PgColumn",
    "PgTable",
    "described",
    "find_rows",
    "find_table",
    "lacking",
    "name_parts",
    "relation_names",
    "same_table",
    "table_names",
]


_RELATIONS = """
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = {schema} AND c.oid NOT IN (
  SELECT i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid = {dropped}
  UNION ALL SELECT d.objid FROM pg_catalog.pg_depend d WHERE d.refobjid = {dropped}
    AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.deptype IN ('a', 'i'))
"""
"""The names of tables, indexes and sequences, but for those that go with a table that an overwrite drops."""
_COLUMNS = """
SELECT json_agg(json_build_array(
  a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef OR t.typdefault IS NOT NULL,
  a.attgenerated <> '', b.typname, b.typcategory::text,
  CASE WHEN t.typtype = 'd' AND a.atttypmod = -1 THEN t.typtypmod ELSE a.atttypmod END, a.attidentity::text, e.typname,
  b.typnamespace = 'pg_catalog'::regnamespace,
  (SELECT cn.nspname || '.' || k.collname FROM pg_catalog.pg_collation k
   JOIN pg_catalog.pg_namespace cn ON cn.oid = k.collnamespace WHERE k.oid = a.attcollation)) ORDER BY a.attnum)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_catalog.pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
"""
_KEYS = """
SELECT json_agg(json_build_array(i.indisprimary, i.indisunique AND i.indimmediate,
  (SELECT json_agg(a.attname::text ORDER BY k.n)
   FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, n)
   JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
   WHERE k.n <= i.indnkeyatts),
  (SELECT json_agg((k.o & 1)::int ORDER BY k.n)
   FROM unnest(i.indoption::int2[]) WITH ORDINALITY k (o, n) WHERE k.n <= i.indnkeyatts),
  (SELECT bool_and(o.opcdefault AND k.coll = a.attcollation AND k.o IN (0, 3))
   FROM unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[], i.indoption::int2[])
     WITH ORDINALITY k (attnum, class, coll, o, n)
   JOIN pg_catalog.pg_opclass o ON o.oid = k.class
   JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
   WHERE k.n <= i.indnkeyatts)
    AND NOT (c.relhassubclass AND c.relkind <> 'p'
      AND EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhparent = i.indrelid)))
  ORDER BY i.indisprimary DESC, i.indisunique DESC, i.indnkeyatts, x.relname)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid = x.relam
WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL AND m.amname = 'btree'
"""
_PERIOD_KEY = """
SELECT json_agg(a.attname::text ORDER BY k.n)
FROM pg_catalog.pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, n)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisexclusion AND k.n <= i.indnkeyatts
"""
"""The columns of a primary key WITHOUT OVERLAPS (PostgreSQL 18), which is an exclusion constraint."""
_HOLDS_NULL = """
WITH RECURSIVE tree (oid) AS (
  SELECT c.oid UNION SELECT h.inhrelid FROM tree t JOIN pg_catalog.pg_inherits h ON h.inhparent = t.oid
  WHERE c.relhassubclass)
SELECT json_agg(DISTINCT l.attname) FROM unnest(ARRAY(SELECT oid FROM tree)) t (oid) CROSS JOIN LATERAL (
  SELECT a.attname FROM pg_catalog.pg_attribute a
  WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND (
    NOT a.attnotnull
    OR (SELECT k.relkind = 'f' FROM pg_catalog.pg_class k WHERE k.oid = t.oid)
    OR EXISTS (SELECT FROM pg_catalog.pg_constraint n WHERE n.conrelid = t.oid AND n.contype = 'n'
      AND NOT n.convalidated AND a.attnum = ANY (n.conkey)))
  OFFSET 0
) l
"""
"""The columns in which a SELECT may find NULL, whatever NOT NULL is declared: a constraint that is NOT VALID says
nothing of older rows, a table that inherits may lack it, and no server checks the rows of a foreign table.
OFFSET 0: each table is found by indexes. A join reads the catalogs of all tables, for one of them. The array: the
server expects ten tables, and not as many as a table has partitions elsewhere, for which it would compile the query.
"""
_COLUMNS_HASH = """
(SELECT pg_catalog.hashtextextended(string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid), ',' ORDER BY a.attnum)
  COLLATE "C", 0) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum BETWEEN 1 AND {most}
  AND NOT a.attisdropped)
"""
"""A column that is added takes nothing from the others. Of types only the name counts, not the length."""
_STATE = f"""
SELECT concat_ws(' ', coalesce(pg_catalog.pg_relation_filenode(c.oid), 0), c.relnatts,
  {_COLUMNS_HASH.format(most="c.relnatts")})
"""
_SAME_TABLE = f"""
CASE WHEN (SELECT {_COLUMNS_HASH} = {{columns}}{{stored}} FROM pg_catalog.pg_class c
  WHERE c.oid = {{oid}} AND c.oid = pg_catalog.to_regclass({{name}}))
THEN TRUE ELSE CAST(concat('not the table that was looked up: ', pg_catalog.to_regclass({{name}})) AS boolean) END
"""  # noqa: S608 - of the constants above
"""A text that is not a boolean ends the statement. The subquery runs once, while the table is locked."""
_SAME_FILE = """
 AND (coalesce(pg_catalog.pg_relation_filenode(c.oid), 0) = {file}
   OR EXISTS (SELECT FROM {table} AS x WHERE age(x.xmin) > age(c.xmin)))
"""
"""VACUUM FULL and CLUSTER write a file of rows that are older than it; TRUNCATE, or a new type, one of newer rows."""
_SIZE = """
SELECT coalesce((SELECT sum(pg_relation_size(relid)) FROM pg_partition_tree(c.oid)), pg_relation_size(c.oid))::bigint
  / current_setting('block_size')::bigint
"""
_FIRST = (
    "c.relname = $1 AND CASE WHEN $2::text IS NULL THEN pg_catalog.pg_table_is_visible(c.oid) "
    "ELSE n.nspname = $2 END"
)
_FIND = f"""
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relkind = 'r' AND c.relhassubclass,
  c.relkind IN ('r', 'p')
    AND EXISTS (SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type = '3' AND r.is_instead),
  ({_COLUMNS})::text,
  CASE WHEN c.relkind IN ('r', 'p', 'm') THEN ({_KEYS})::text END,
  CASE WHEN c.relkind IN ('r', 'p', 'm') THEN ({_SIZE}) END,
  c.relkind = 'r' AND c.relhassubclass AND EXISTS (SELECT FROM pg_catalog.pg_trigger g
    WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgtype & 7 = 7),
  ({_HOLDS_NULL})::text, ({_STATE}), c.relkind IN ('r', 'p') AND row_security_active(c.oid),
  CASE WHEN c.relkind IN ('r', 'p') THEN ({_PERIOD_KEY})::text END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND ({_FIRST} OR c.relname = $3 AND pg_catalog.pg_table_is_visible(c.oid))
ORDER BY NOT ({_FIRST}), n.nspname = 'pg_catalog' LIMIT 1
"""  # noqa: S608 - of the constants above
"""One statement: a run of many small tables spends more on exchanges with the server than on their rows."""
_LACKS = """
SELECT quote_ident(current_user), a.n::int,
  CASE a.name WHEN '' THEN 'SCHEMA ' ELSE '' END || quote_ident(a.schema)
    || CASE a.name WHEN '' THEN '' ELSE '.' || quote_ident(a.name) END
FROM (VALUES {rights}) AS a (n, schema, name, word, whole)
JOIN pg_catalog.pg_namespace s ON s.nspname = a.schema
LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = s.oid AND c.relname = a.name
WHERE CASE
  WHEN a.name = '' THEN NOT has_schema_privilege(s.oid, a.word)
  WHEN c.oid IS NULL THEN false
  WHEN a.word = 'OWNER' THEN NOT pg_has_role(c.relowner, 'USAGE')
  WHEN a.word IN ('SELECT', 'INSERT', 'UPDATE')
    THEN NOT (has_table_privilege(c.oid, a.word) OR NOT a.whole AND has_any_column_privilege(c.oid, a.word))
  ELSE NOT has_table_privilege(c.oid, a.word) END
"""
_NAMES = """
SELECT CASE WHEN pg_table_is_visible(c.oid) THEN c.relname::text ELSE n.nspname || '.' || c.relname END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
ORDER BY 1 LIMIT 21
"""
LOOKS_UP_MANY = "SET LOCAL jit = off"
"""Begins a transaction that looks many tables up. The server takes the statement for an expensive one, and would spend
seconds on compiling it, from about a hundred tables on.
"""
_TABLES = "tables"
_PLAIN = re.compile(r"(?:([A-Za-z_][A-Za-z0-9_]*)\.)?([A-Za-z_][A-Za-z0-9_]*)")


def lacking(session: PgSession, rights: Sequence[Right]) -> MissingRights:
    """What the session's role lacks; a right on some columns counts as one on the table, but for `whole`.

    While tables are looked up, one that many of them need is asked for once.
    """
    answers = {} if session.looked_up is None else session.looked_up.about("rights")
    unanswered = [right for right in rights if str(right) not in answers]
    if unanswered:
        values = (
            f"({number}, {', '.join(f'{literal_sql(part)}::text' for part in right[:3])}, {right.whole})"
            for number, right in enumerate(unanswered)
        )
        answers.update((str(right), None) for right in unanswered)
        for role, number, name in session.rows(_LACKS.format(rights=", ".join(values))):
            answers[str(unanswered[int(number)])] = str(role), str(name)
    lacks = {right: answers[str(right)] for right in rights if answers[str(right)] is not None}
    role = next((role for role, _ in lacks.values()), "")
    return MissingRights(role, {right: name for right, (_, name) in lacks.items()})


class Part(NamedTuple):
    """The part of a table that a publication has: its `columns`, and the rows that `condition` keeps. None: all.

    `generated`: its generated columns of which the publication has the values.
    """

    columns: tuple[str, ...] | None = None
    condition: str | None = None
    generated: tuple[str, ...] = ()


class PartReader(Protocol):
    """A reader of a table that a publication has."""

    part: Part


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
    holds_null: bool = True
    """A SELECT may find NULL in it. `not_null` is about rows that are written from now on."""

    @property
    def has_quantiles(self) -> bool:
        """Whether the server returns several values of it as one array of texts: not of arrays and composite types."""
        return self.category not in ("A", "C") and not self.base.startswith("_")


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
    is_ruled: bool = False
    """A rule does something else in place of an INSERT, and what it stores counts as stored by the INSERT. COPY ignores
    rules: findings/postgresql-rules-and-copy.sh
    """
    is_divided: bool = False
    """A trigger or a rule puts its rows into the tables that inherit from it: with them it is one table."""
    state: str = ""
    """The file of its rows (0: it has none), its last column, and a hash of its columns."""
    is_filtered: bool = False
    """The policies of its row security choose the rows that the session's role sees."""
    period_key: tuple[str, ...] = ()
    """Its primary key, if that is WITHOUT OVERLAPS: two rows conflict where their ranges touch."""

    @property
    def no_key(self) -> str:
        if not self.period_key:
            return super(PgTable, self).no_key
        return (
            f"has the key ({', '.join(self.period_key)} WITHOUT OVERLAPS), which says that ranges do not touch, and "
            "which ON CONFLICT cannot use"
        )

    @property
    def is_inherited(self) -> bool:
        return self.is_parent and not self.is_divided

    @property
    def only(self) -> str:
        """What precedes the table's name in a statement that changes its rows: those of others stay."""
        return "" if self.kind != "r" or self.is_divided else "ONLY "


@lru_cache(maxsize=1024)
def name_parts(text: str) -> tuple[str | None, str] | None:
    """(schema, table) that `text` names by PostgreSQL's rules, which fold unquoted names to lower case."""
    if (quoted := quoted_parts(text, "postgres")) is not None:
        return quoted
    if (
        plain := _PLAIN.fullmatch(text)
    ) is not None:  # without sqlglot, whose import takes longer than many a job
        return plain[1] and plain[1].lower(), plain[2].lower()
    tree = parsed_name(text, "postgres")
    if tree is None:
        return None
    return (_folded(tree.args["db"]) if tree.args.get("db") else None), _folded(tree.this)


def relation_names(session: Session, schema: str, dropped: PgTable | None = None) -> set[str]:
    """The names that no index or sequence of a new table in `schema` may have."""
    oid = 0 if dropped is None else dropped.oid
    rows = session.rows(_RELATIONS.format(schema=literal_sql(schema), dropped=oid))
    return {str(name) for (name,) in rows}


def _folded(name: "exp.Identifier") -> str:
    text = str(name.this)
    return text if name.args.get("quoted") else text.lower()


def find_table(session: Session, text: str, *, behind: str = "") -> PgTable | None:
    """The table or view that `text` names; None when there is none. See `look_up`.

    `behind`: a statement without rows that is sent before, in the same exchange; what was looked up does not count.
    """
    looked_up = session.looked_up if isinstance(session, PgSession) else None
    answers = {} if looked_up is None else looked_up.about(_TABLES)
    if text in answers and not behind:
        row = answers[text]
        return None if row is None else described(*row)
    schema, name = name_parts(text) or (None, text)
    literals = [literal_sql(part) for part in (name, schema, text)]
    if behind:
        find = re.sub(r"\$(\d)", lambda match: literals[int(match[1]) - 1], _FIND)
        rows = session.rows(f"{behind}; {find}")
    else:
        rows = session.repeated("spark_channel_find", "name, name, name", _FIND, literals)
    return described(*rows[0]) if rows else None


def look_up(session: PgSession, texts: Sequence[str]) -> None:
    """Ask for tables by one statement that `find_table` is asked for, in this session and within seconds."""
    rows = find_rows(session, texts)
    session.looked_up = session.looked_up or AnswerCache()
    session.looked_up.about(_TABLES).update(zip(texts, rows, strict=True))


def find_rows(session: PgSession, texts: Sequence[str]) -> list[tuple[Any, ...] | None]:
    """The catalog's row of the table or view that each of `texts` names, for `described`, by one statement."""
    values = []
    for number, text in enumerate(texts):
        schema, name = name_parts(text) or (None, text)
        names = ", ".join(f"{literal_sql(part)}::name" for part in (name, schema, text))
        values.append(f"({number}, {names})")
    find = re.sub(r"\$(\d)", lambda match: f"asked.name{match[1]}", _FIND)
    rows = session.rows(
        f"SELECT asked.number, found.* FROM (VALUES {', '.join(values)}) AS asked (number, name1, name2, name3) "  # noqa: S608 - texts are quoted
        f"CROSS JOIN LATERAL ({find}) AS found (f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13)"
    )
    rows_of = {int(number): tuple(row) for number, *row in rows}
    return [rows_of.get(number) for number in range(len(texts))]


def table_names(session: Session) -> list[str]:
    """Some names of tables that there are, for messages."""
    return [str(name) for (name,) in session.rows(_NAMES)]


def described(
    oid: int,
    schema: str,
    name: str,
    kind: str,
    is_parent: bool,
    is_ruled: bool,
    columns_json: str | None,
    keys_json: str | None,
    pages: int | None,
    is_divided: bool,
    nulls_json: str | None,
    state: str,
    is_filtered: bool,
    period_key: str | None,
) -> PgTable:
    """The table of a row of the catalog."""
    nulls = frozenset(json.loads(nulls_json or "[]"))
    columns = tuple(
        replace(PgColumn(*row), holds_null=row[0] in nulls)
        for row in json.loads(columns_json or "[]")
    )
    undivided = {column.name for column in columns if not column.has_quantiles}
    key: tuple[str, ...] = ()
    nullable_key = None
    primary: tuple[str, ...] = ()
    unique, keys, indexes = [], [], []
    for is_primary, is_unique, names, descending, is_sound in json.loads(keys_json or "[]"):
        not_null = nulls.isdisjoint(names)
        if is_sound:
            if len(set(descending)) == 1:
                indexes.append((tuple(names), bool(is_unique)))
            if is_unique and not_null:
                keys.append(tuple(map(catalog.KeyColumn, names, map(bool, descending))))
        if is_primary:
            primary = tuple(names)
        if is_unique:
            unique.append(tuple(names))
            if not_null and not key and undivided.isdisjoint(names):
                key = tuple(names)
        if nullable_key is None and names[0] not in undivided:
            nullable_key = str(names[0])
    return PgTable(
        str(schema),
        str(name),
        columns,
        kind in ("v", "f"),
        tuple(unique),
        primary,
        int(oid),
        str(kind),
        key,
        nullable_key,
        int(pages or 0),
        tuple(keys),
        tuple(indexes),
        bool(is_parent),
        bool(is_ruled),
        bool(is_divided) or (bool(is_parent) and bool(is_ruled)),
        str(state),
        bool(is_filtered),
        tuple(json.loads(period_key or "[]")),
    )


def same_table(table: PgTable, name: str) -> str:
    """The condition that `name`, as SQL, means `table` in the statement that has it; else the statement fails."""
    file, most, columns = table.state.split()
    is_stored = table.kind in ("r", "m")
    stored = _SAME_FILE.format(file=file, table=name) if is_stored else ""
    condition = _SAME_TABLE.format(
        most=most, columns=columns, stored=stored, oid=table.oid, name=literal_sql(name)
    )
    return condition.strip()
