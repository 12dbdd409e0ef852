"""PostgreSQL's SQL for writing, and how a DataFrame's columns match a table's."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

import pyarrow as pa

from spark_channel.arrow_schema import UNLIMITED, is_list
from spark_channel.connectors.base.contract import NativeRows
from spark_channel.connectors.base.types import exp, sqlglot
from spark_channel.connectors.postgresql.catalog import (
    PgColumn,
    PgTable,
    name_parts,
    relation_names,
)
from spark_channel.connectors.postgresql.dialect import PostgresDialect
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.session import literal_sql
from spark_channel.connectors.postgresql.types import (
    INSTANT,
    LOCAL,
    TIME,
    PgWriteColumn,
    are_native,
    check_values,
    lenient_column,
    native_column,
    read_type,
    write_column,
)
from spark_channel.connectors.sql.catalog import (
    Column,
    Table,
    TargetTable,
    WriteColumn,
)
from spark_channel.connectors.sql.dialect import WriteDialect, wrong_table_options
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.write.checks import reached_by_delete
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.target_columns import NO_TYPES, create_table, old_target
from spark_channel.errors import TargetError

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import ConstraintDefinition

__all__ = [
    "DIALECT",
    "PostgresPlan",
    "create_statement",
    "match_target",
    "new_name",
    "written_columns",
]

_CREATE_INDEX = re.compile(r"^(CREATE (?:UNIQUE )?INDEX )")
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
_DECLARED = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a
WHERE a.attrelid = pg_catalog.to_regclass({name}) AND a.attnum > 0 AND NOT a.attisdropped
"""
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

    def stated(
        self, constraint: "ConstraintDefinition", name: str, table: str, indexed: str
    ) -> str:
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

    def columns_query(self, target: TargetTable) -> str:
        return _DECLARED.format(name=literal_sql(target.sql))

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
    table: str,
    schema: pa.Schema,
    options: PostgresWriteOptions,
    key: Sequence[str] = (),
    types: Mapping[str, str] = NO_TYPES,
) -> str:
    """CREATE TABLE, as `create_table` has it."""
    return create_table(DIALECT, table, schema, options, key, types)


def written_columns(target: TargetTable) -> Sequence[PgWriteColumn]:
    return cast(Sequence[PgWriteColumn], target.columns)


def new_name(options: PostgresWriteOptions) -> tuple[str | None, str]:
    """(schema, name) of a table that is not there yet."""
    return name_parts(options.dbtable) or (None, options.dbtable)
