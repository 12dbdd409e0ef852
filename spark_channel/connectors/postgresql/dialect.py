"""PostgreSQL's SQL: the expression that reads each type, and values as the server's text output.

A quoted literal takes the type of the column that it is compared with.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, ClassVar, cast

import pyarrow as pa

from spark_channel.arrow_schema import UNLIMITED, is_list
from spark_channel.connectors.base.contract import NativeRows
from spark_channel.connectors.base.definition import ConstraintDefinition
from spark_channel.connectors.base.types import exp, sqlglot
from spark_channel.connectors.postgresql.catalog import (
    PgColumn,
    PgTable,
    find_table,
    lacking,
    name_parts,
    relation_names,
    same_table,
    table_names,
)
from spark_channel.connectors.postgresql.failures import (
    is_ended,
    is_full,
    is_gone,
    is_locked,
)
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.session import PgReadSession, literal_sql
from spark_channel.connectors.postgresql.types import (
    INSTANT,
    LOCAL,
    TIME,
    PgWriteColumn,
    ReadType,
    are_native,
    check_values,
    decode,
    lenient_column,
    native_column,
    read_type,
    selected,
    write_column,
)
from spark_channel.connectors.sql.catalog import (
    Column,
    KeyColumn,
    ReadColumn,
    Table,
    TargetTable,
    WriteColumn,
)
from spark_channel.connectors.sql.catalog.rights import OWNER, MissingRights, Right
from spark_channel.connectors.sql.dialect import Dialect, WriteDialect, wrong_table_options
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import only_name
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.publish import reached_by_delete
from spark_channel.connectors.sql.write.target_columns import create_table, old_target
from spark_channel.errors import TargetError

__all__ = [
    "DIALECT",
    "PostgresDialect",
    "PostgresPlan",
    "create_statement",
    "match_target",
    "new_name",
    "written_columns",
]


_TYPMOD_HEAD = 4
"""What a `varchar(n)` has more than n as its typmod."""
_WHOLE = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}
_EXACT_TEXTS = frozenset(
    {
        "numeric",
        "text",
        "varchar",
        "bpchar",
        "name",
        "uuid",
        "bytea",
        "bool",
        "date",
        "time",
        "timetz",
        "timestamp",
        "timestamptz",
        "oid",
        "inet",
        "macaddr",
    }
)
"""Types of keys that are read as texts, of which none reads as another value: not so floats and money."""


_HASHED = frozenset({"bool", "int2", "int4", "int8", "numeric", "float4", "float8", "uuid"})
_HASHED |= {"text", "varchar", "bpchar", "bytea", "json", "jsonb"}
_HASHED |= {"date", "time", "timestamp", "timestamptz", "interval"}
"""Types whose values have one text each, and whose texts depend on no setting but those of a transaction."""
_SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})


_TABLES = """
WITH named AS (
  SELECT c.oid, n.nspname, c.relname, c.relkind, c.relhassubclass, c.reltuples, c.reltoastrelid
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
    AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' AND c.relname NOT LIKE 'spark\\_channel\\_%'
    {named}
)
SELECT nspname::text, relname::text, greatest(reltuples, 0)::bigint,
  coalesce(pg_relation_size(oid), 0) + coalesce(pg_relation_size(nullif(reltoastrelid, 0)), 0),
  CASE WHEN relhassubclass THEN format('tableoid = %L::regclass', oid::regclass) ELSE '' END
FROM named WHERE relkind = 'r'
UNION ALL
SELECT t.nspname::text, t.relname::text, coalesce(s.rows, 0)::bigint, coalesce(s.bytes, 0)::bigint, ''
FROM named t CROSS JOIN LATERAL (
  SELECT sum(l.rows) AS rows, sum(l.bytes) AS bytes
  FROM unnest(ARRAY(SELECT relid FROM pg_partition_tree(t.oid) WHERE isleaf)) p (relid) CROSS JOIN LATERAL (
    SELECT greatest(c.reltuples, 0) AS rows,
      coalesce(pg_relation_size(c.oid), 0) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0) AS bytes
    FROM pg_catalog.pg_class c WHERE c.oid = p.relid OFFSET 0
  ) l
) s WHERE t.relkind = 'p'
ORDER BY 1, 2
"""
"""OFFSET 0: each partition is found by the index. A join reads the whole catalog, and more than once."""


_CREATE_INDEX = re.compile(r"^(CREATE (?:UNIQUE )?INDEX )")


class PostgresDialect(Dialect):
    """See `Dialect`. `local`: a timestamptz and a timetz are read as the session shows them, without their zone."""

    product = "PostgreSQL"
    sql = "postgres"
    tables_sql = _TABLES
    referring_sql = (
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_constraint k "
        "JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE k.contype = 'f' AND n.nspname = {schema}"
    )
    of_new_tables = ("USAGE", "CREATE")
    to_alter = OWNER
    cuts_names_at = 63
    whole_rows = True
    row_values = True
    cuts_by_bytes = True

    def __init__(self, *, local: bool = False) -> None:
        self.local = local

    def lacking(self, session: Session, rights: Sequence[Right]) -> MissingRights:
        return lacking(cast(PgReadSession, session), rights)

    def same_name(self, name: str, names: Sequence[str]) -> str | None:
        return only_name(name, names)

    def find_table(self, session: Session, text: str) -> PgTable | None:
        return find_table(session, text)

    def same_table(self, table: Table) -> str | None:
        assert isinstance(table, PgTable)
        name = f"{self.quoted(table.schema)}.{self.quoted(table.name)}"
        return same_table(table, name) if table.state else None

    def only_named(self, names: Sequence[tuple[str, str]]) -> str:
        """Names of the catalog's own type: its index does not find texts."""
        names_sql = ", ".join(
            f"({literal_sql(schema)}::name, {literal_sql(name)}::name)" for schema, name in names
        )
        return f"AND (n.nspname, c.relname) IN (VALUES {names_sql})"

    def table_names(self, session: Session) -> list[str]:
        return table_names(session)

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        """The driver knows most types of a query's columns, and a numeric's size."""
        schema = cast(PgReadSession, session).schema_of(
            f"SELECT * FROM ({query}) AS source LIMIT 0"  # noqa: S608 - a query that was parsed
        )
        columns = []
        for field in schema:
            notes = field.metadata or {}
            name = notes.get(b"POSTGRESQL:type", b"text").decode()
            typmod = int(notes.get(b"POSTGRESQL:typmod", b"-1"))
            columns.append(PgColumn(field.name, name, base=name, typmod=typmod))
        return tuple(columns)

    def arrow_type(self, column: Column) -> pa.DataType:
        kind = _read_type(column).kind
        if self.local and cast(PgColumn, column).base == "timetz":
            return TIME
        return LOCAL if self.local and kind == INSTANT else kind

    def text_length(self, column: Column) -> str | None:
        about = cast(PgColumn, column)
        if about.base in ("varchar", "bpchar") and about.typmod > _TYPMOD_HEAD:
            return str(about.typmod - _TYPMOD_HEAD)
        return UNLIMITED if about.base in ("text", "varchar") else None

    def selected(self, column: Column, kind: pa.DataType, text: str) -> str:
        if pa.types.is_time(kind) and cast(PgColumn, column).base == "timetz":
            return f"CAST({text} AT TIME ZONE current_setting('TimeZone') AS time)"
        return selected(text, column.name, cast(PgColumn, column).base, _read_as(column, kind))

    def decode(
        self, raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema
    ) -> pa.RecordBatch:
        return decode(raw, columns, schema)

    def key_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        about = cast(PgColumn, column)
        if about.base == "numeric":
            return pa.int64()
        if not about.has_quantiles:
            return None
        return self.arrow_type(column) if read is None else read.kind

    def cursor_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        kind = self.arrow_type(column) if read is None else read.kind
        read_as = _read_as(column, kind)
        if read_as.is_shown:
            return None
        return read_as.kind if pa.types.is_string(read_as.kind) else kind

    def bound(self, value: int | date | datetime, column: Column) -> Any:
        """With its zone, which would be the session's."""
        bound = super().bound(value, column)
        is_instant = isinstance(value, datetime) and value.tzinfo is not None
        return (
            f"{bound}+00" if is_instant and cast(PgColumn, column).base == "timestamptz" else bound
        )

    def is_never_null(self, table: Table, column: Column) -> bool:
        """By what holds for the rows that are there, and for those of other tables that a SELECT reads."""
        is_free = isinstance(column, PgColumn) and not column.holds_null
        return is_free and not table.is_view

    def is_null(self, column: Column | None, text: str) -> str:
        """The planner takes no row for NULL where NOT NULL is declared, also where it holds for new rows only."""
        plain = super().is_null(column, text)
        return f"COALESCE({plain}, FALSE)" if column is not None and column.not_null else plain

    def is_unique(self, table: Table, name: str) -> bool:
        """By an index that compares as the column does, and holds for the rows of inheriting tables too."""
        assert isinstance(table, PgTable)
        return ((name,), True) in table.indexes

    def cursor_text(self, text: str, kind: pa.DataType) -> str:
        return f"CAST({text} AS text)"

    def is_cursor_value(self, value: object, kind: pa.DataType | None) -> bool:
        return isinstance(value, str | int)

    def size(self, text: str) -> str:
        return f"octet_length(CAST({text} AS text))"

    def is_passing(self, error: BaseException) -> bool:
        return is_gone(error) or is_locked(error) or is_full(error)

    def is_timeout(self, error: BaseException) -> bool:
        return is_ended(error)

    def keys(self, table: Table) -> Sequence[tuple[KeyColumn, ...]]:
        assert isinstance(table, PgTable)
        return table.keys

    def finds(self, table: Table, columns: Sequence[str]) -> bool:
        """By an index that begins with all of them, or holds the first of them unique."""
        assert isinstance(table, PgTable)
        prefix = tuple(columns)
        return any(
            names[: len(prefix)] == prefix or (is_unique and names == prefix[: len(names)])
            for names, is_unique in table.indexes
        )

    def hidden_columns(self, table: Table) -> Collection[str]:
        """The server says which of them a view or a foreign table lacks."""
        return _SYSTEM_COLUMNS

    def key_read(self, column: Column | None, text: str) -> tuple[pa.DataType, str] | None:
        """Whole numbers as they are; all else as the server's own text, from which it makes the same value again."""
        if not isinstance(column, PgColumn):
            return None
        if column.builtin and column.base in _WHOLE:
            return _WHOLE[column.base], text
        is_exact = (column.builtin and column.base in _EXACT_TEXTS) or column.category == "E"
        return (
            (pa.string(), f"CAST({text} AS text)") if is_exact or column.base == "citext" else None
        )

    def row_hash(self, columns: Sequence[tuple[Column, str]]) -> str | None:
        """A hash of the row's text, in which values are quoted and NULL is nothing; instants are written in UTC."""
        texts = []
        for column, text in columns:
            if not isinstance(column, PgColumn) or not column.builtin or column.base not in _HASHED:
                return None
            texts.append(f"{text} AT TIME ZONE 'UTC'" if column.base == "timestamptz" else text)
        row = f'CAST(ROW({", ".join(texts)}) AS text) COLLATE "C"'
        return f"pg_catalog.hashtextextended({row}, 0)"

    def hash_facts(self, session: Session) -> object:
        """Before version 12 two doubles may have one text."""
        version, encoding = session.rows(
            "SELECT current_setting('server_version_num')::int, current_setting('server_encoding')"
        )[0]
        if version < 120_000:
            return None
        constant = "SELECT pg_catalog.hashtextextended('spark-channel' COLLATE \"C\", 0)"
        return str(encoding), int(session.value(constant))

    def range_number(self, text: str, edges: Sequence[int]) -> str:
        edges_sql = ", ".join(map(str, edges))
        return (
            f"pg_catalog.width_bucket(CAST({text} AS bigint), CAST(ARRAY[{edges_sql}] AS bigint[]))"
        )

    def split_key(self, table: Table) -> tuple[str, ...]:
        """A unique key, or else the first column of an index, which may be NULL."""
        assert isinstance(table, PgTable)
        return table.key or ((table.nullable_key,) if table.nullable_key is not None else ())


def _read_type(column: Column) -> ReadType:
    about = cast(PgColumn, column)
    return read_type(about.base, about.typmod)


def _read_as(column: Column, kind: pa.DataType) -> ReadType:
    """How the column is read to be of `kind`, which the user may have chosen."""
    read = _read_type(column)
    if read.kind == INSTANT and kind == LOCAL:
        return ReadType(LOCAL, "timestamp")
    as_text = pa.types.is_string(kind) and not pa.types.is_string(read.kind)
    return ReadType(pa.string(), "text") if as_text else read


# PostgreSQL's SQL for writing, and how a DataFrame's columns match a table's.


@dataclass(frozen=True)
class PostgresPlan(SqlPlan):
    """A write plan, with PostgreSQL's additions."""

    is_parent: bool = False
    """`PgTable.is_parent` of the target."""
    is_ruled: bool = False
    """`PgTable.is_ruled` of the target."""
    alone: bool = False
    """`WriteContext.alone`."""
    stages_apart: bool = False
    """Whether the staging of a new table is not that table, since the server casts values on their way into it."""

    @property
    def staging(self) -> str:
        """The table that takes the rows of a `commit=job`, in the target's schema."""
        return f"{self.stage}rows"


class PostgresWriteDialect(PostgresDialect, WriteDialect):
    """See `WriteDialect`."""

    folds_names = False
    most_columns = 1600
    adds_keys = True
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
    """Whatever the role's default is: a row that another transaction held is read as that one left it."""

    new_types: ClassVar = {
        pa.bool_(): "boolean",
        pa.int8(): "smallint",
        pa.int16(): "smallint",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.uint8(): "smallint",
        pa.uint16(): "integer",
        pa.uint32(): "bigint",
        pa.uint64(): "numeric(20,0)",  # not the driver's bigint: findings/adbc-postgresql-ingest-unsigned.sh
        pa.float16(): "real",
        pa.float32(): "real",
        pa.float64(): "double precision",
        pa.string(): "text",
        pa.binary(): "bytea",
        pa.date32(): "date",
        TIME: "time",
        LOCAL: "timestamp",
        INSTANT: "timestamptz",
    }

    index_name_bytes = 63

    def name_parts(self, text: str) -> tuple[str | None, str]:
        return name_parts(text) or (None, text)

    def index_names(self, session: Session, schema: str) -> set[str]:
        """Indexes, sequences and tables share their names."""
        return relation_names(session, schema)

    def half_built(self, session: Session, table: Table, names: Collection[str]) -> list[str]:
        def is_left(index: str) -> bool:
            stem, _, number = index.rpartition("_")  # where the name was taken, see `free_names`
            most = self.index_name_bytes - len(f"_{number}")
            stems = (name.encode()[:most].decode(errors="ignore") for name in names)
            return index in names or (number.isdecimal() and stem in stems)

        sql = literal_sql(self.place(table.schema, table.name))
        invalid = session.rows(
            "SELECT x.relname::text, i.indexrelid::regclass::text FROM pg_index i "  # noqa: S608 - quoted
            f"JOIN pg_class x ON x.oid = i.indexrelid WHERE i.indrelid = {sql}::regclass AND NOT i.indisvalid "
            "AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid)"
        )
        return [f"DROP INDEX CONCURRENTLY {index}" for name, index in invalid if is_left(name)]

    def beside_writers(self, statement: str) -> str:
        return _CREATE_INDEX.sub(r"\1CONCURRENTLY ", statement, count=1)

    def stated(self, constraint: ConstraintDefinition, name: str, table: str, indexed: str) -> str:
        if constraint.kind == "index":
            return super().stated(constraint, name, table, indexed)
        return f"ALTER TABLE {table} ADD CONSTRAINT {self.quoted(name)} {constraint.text}"

    def new_decimal(self, digits: int, scale: int) -> str:
        return f"numeric({digits},{scale})"

    def created_type(self, name: str, kind: pa.DataType, *, key: bool) -> str:
        if pa.types.is_duration(kind):
            return "interval"
        if is_list(kind) and not (
            pa.types.is_nested(kind.value_type) or pa.types.is_null(kind.value_type)
        ):
            return self.created_type(name, kind.value_type, key=key) + "[]"
        return super().created_type(name, kind, key=key)

    def no_nested(self, kind: pa.DataType) -> str:
        if is_list(kind):
            return "PostgreSQL's arrays of arrays must be rectangular"
        return "PostgreSQL holds no such nested values"

    def spark_type(self, text: str) -> str | None:
        return exp.DataType.build(text, dialect="spark").sql("postgres")

    def check_table(self, table: Table) -> None:
        if cast(PgTable, table).kind not in ("r", "p"):
            raise TargetError(
                f"COPY cannot write to {table.label}, which is not a table; name the table behind it"
            )

    def is_filled(self, table: Table, column: Column) -> bool:
        return super().is_filled(table, column) or bool(cast(PgColumn, column).identity)

    def write_column(self, field: pa.Field, column: Column) -> WriteColumn:
        return write_column(field, cast(PgColumn, column))

    def check_values(self, values: pa.Array, column: WriteColumn) -> None:
        check_values(values, cast(PgWriteColumn, column))

    def members(self, session: Session, table: Table) -> Mapping[str, tuple[str, ...]]:
        rows = session.rows(
            "SELECT a.attname::text, array_agg(e.enumlabel::text) FROM pg_catalog.pg_attribute a "  # noqa: S608 - a number
            "JOIN pg_catalog.pg_type t ON t.oid = a.atttypid JOIN pg_catalog.pg_enum e "
            "ON e.enumtypid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END "
            f"WHERE a.attrelid = {cast(PgTable, table).oid} AND NOT a.attisdropped GROUP BY 1"
        )
        return {str(name): tuple(labels) for name, labels in rows}

    def lenient_column(self, field: pa.Field, column: Column) -> WriteColumn:
        return lenient_column(field, cast(PgColumn, column))

    def number_type(self, column: Column) -> pa.DataType | None:
        """Not of a domain, whose checks the column would lose."""
        about = cast(PgColumn, column)
        words = _NUMBERS.get(about.base, "")
        is_plain = bool(words) and about.builtin and about.declared.partition("(")[0] == words
        kind = read_type(about.base, about.typmod).kind
        return kind if is_plain and not pa.types.is_string(kind) else None

    def text_type(self, table: Table, column: Column, length: str) -> str:
        return (
            "text" if length == UNLIMITED or int(length) > _MOST_LETTERS else f"varchar({length})"
        )

    def declared_as(self, column: Column, declared: str) -> Column:
        words, _, sizes = declared.partition("(")
        base = next((base for base, number in _NUMBERS.items() if number == words), None)
        if base is None:
            is_sized = bool(sizes)
            typmod = int(sizes.rstrip(") ")) + 4 if is_sized else -1
            return replace(
                cast(PgColumn, column),
                declared=declared,
                base="varchar" if is_sized else "text",
                typmod=typmod,
            )
        typmod = -1
        if sizes:
            precision, scale = map(int, sizes.rstrip(")").split(","))
            typmod = ((precision << 16) | scale) + 4
        return replace(cast(PgColumn, column), declared=declared, base=base, typmod=typmod)

    def check_deletes(self, session: Session, schema: str, name: str) -> None:
        """TRUNCATE itself refuses a table to which foreign keys refer."""
        label = f"{schema}.{name}"
        rows = session.rows(_REACHES.format(name=literal_sql(self.place(schema, name))))
        for key, other, rule, columns in rows:
            filled = " AND ".join(f"{self.quoted(column)} IS NOT NULL" for column in columns)
            if session.rows(f"SELECT 1 FROM {other} WHERE {filled} LIMIT 1"):  # noqa: S608 - names are quoted
                raise reached_by_delete(label, str(key), str(other), _RULES[str(rule)])

    def emptied(self, table: str, options: SqlWriteOptions) -> str:
        # Who has an older snapshot finds the table empty: findings/postgresql-truncate-and-snapshots.sh
        return f"TRUNCATE {table}{' CASCADE' if cast(PostgresWriteOptions, options).cascade_truncate else ''}"

    def after_create(self, options: SqlWriteOptions) -> str:
        text = options.create_table_options
        if text is None:
            return ""
        takes = "what may follow the columns of CREATE TABLE, such as WITH (fillfactor=70) or TABLESPACE fast"
        try:
            tokens = sqlglot.tokenize(text, read="postgres")
        except sqlglot.errors.SqlglotError:
            tokens = []
        words = {token.text.upper() for token in tokens}
        if (
            not tokens
            or tokens[0].text.upper() not in ("WITH", "TABLESPACE")
            or words & {";", "AS", "SELECT"}
        ):
            raise wrong_table_options(text, takes)
        return " " + text.strip()


_RULES = {"c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}
_REACHES = """
SELECT k.conname::text, k.conrelid::regclass::text, k.confdeltype::text,
  (SELECT array_agg(a.attname::text) FROM pg_catalog.pg_attribute a
   WHERE a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey))
FROM pg_catalog.pg_constraint k
WHERE k.contype = 'f' AND k.confrelid = {name}::regclass AND k.conrelid <> k.confrelid AND k.conparentid = 0
  AND k.confdeltype IN ('c', 'n', 'd')
"""
"""Foreign keys by which a delete changes other tables."""
_MOST_LETTERS = 10_485_760
_NUMBERS = {
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "numeric": "numeric",
}
"""Their names in declarations."""

DIALECT = PostgresWriteDialect()


def match_target(
    table: PgTable,
    schema: pa.Schema,
    options: PostgresWriteOptions,
    *,
    made_as: tuple[str, str] | None = None,
    native: NativeRows | None = None,
    computed: Collection[str] = (),
) -> tuple[TargetTable, bool]:
    """The columns of `schema` in a table that is there. `made_as`: it was made for them, and gets this schema and name.

    With `native`, and where the table takes them, rows come as COPY writes them: whether they do.

    Raises:
        SchemaError, TargetError: as `old_target`.
    """
    made_computes = made_as is not None and any(column.generated for column in table.columns)
    computes = made_computes or bool(computed)
    plain = options.write_mode != "apply" and not computes
    is_native = native is not None and plain and are_native(native, table)
    column = native_column if is_native else None
    if made_as is None:
        target = old_target(DIALECT, table, schema, options, computed=computed, column=column)
        return replace(target, only=table.only), is_native
    schema_name, name = made_as
    label = f"{schema_name}.{name}"
    target = old_target(DIALECT, table, schema, options, made_as=label, column=column)
    sql = DIALECT.place(schema_name, name)
    create = create_statement(sql, schema, options)
    return replace(
        target, schema=schema_name, name=name, label=label, sql=sql, create=create
    ), is_native


def create_statement(
    table: str, schema: pa.Schema, options: PostgresWriteOptions, key: Sequence[str] = ()
) -> str:
    """CREATE TABLE for the rows. `table` is SQL, `key` a primary key that is not made when the rows are in."""
    return create_table(DIALECT, table, schema, options, key)


def written_columns(target: TargetTable) -> Sequence[PgWriteColumn]:
    return cast(Sequence[PgWriteColumn], target.columns)


def new_name(options: PostgresWriteOptions) -> tuple[str | None, str]:
    """(schema, name) of a table that is not there yet."""
    return name_parts(options.dbtable) or (None, options.dbtable)
