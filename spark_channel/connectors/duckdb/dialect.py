"""DuckDB's types as Arrow's and back (docs/embedded.md has the table), its catalog and its SQL."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa

from spark_channel.arrow_schema import is_list
from spark_channel.connectors.base.feed import OPERATION
from spark_channel.connectors.base.types import exp, fits, plain_kind, sqlglot
from spark_channel.connectors.duckdb.session import DuckdbSession, is_locked, text_literal
from spark_channel.connectors.sql.catalog import (
    Column,
    KeyColumn,
    MisfitError,
    ReadColumn,
    Table,
    TargetTable,
    WriteColumn,
)
from spark_channel.connectors.sql.dialect import Dialect, WriteDialect, misfit
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import identifier, name_readings
from spark_channel.connectors.sql.write.encode import (
    convert,
    first_outside,
    refuse_where,
)
from spark_channel.errors import SchemaError
from spark_channel.lazy import compute as pc

__all__ = [
    "DuckdbDialect",
    "DuckdbTable",
    "DuckdbWriteDialect",
    "OutOfRangeError",
    "arrow_type",
    "canonical",
    "check_range",
    "first_rounded",
    "in_table",
    "index_columns",
    "is_text",
    "of_catalog",
    "read_as",
    "staged_schema",
]


_SIMPLE: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "HUGEINT": pa.decimal128(38, 0),
    "UHUGEINT": pa.decimal128(38, 0),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIME_NS": pa.time64("ns"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_S": pa.timestamp("us"),
    "TIMESTAMP_MS": pa.timestamp("us"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
}
_TEXTS = frozenset({"UUID", "JSON", "INTERVAL", "BIT", "TIME WITH TIME ZONE", "BIGNUM", "VARINT"})
"""Types without a counterpart in Spark, which are read as the text that DuckDB shows."""
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_NESTED = re.compile(r"STRUCT\(|MAP\(|.*\[\d*\]$", re.DOTALL)
_NAME = re.compile(r'"(?:[^"]|"")*"')
_UNREADABLE_INSIDE = re.compile(
    r"\b(U?HUGEINT|U?INT128|UNION|BIGNUM|VARINT|TIME WITH TIME ZONE|TIMETZ|BIT|INTERVAL|VARIANT|GEOMETRY|TIME_NS"
    r"|ENUM|UUID|JSON)\b"
)
_ROUNDED = {
    "INTERVAL": r"\.[0-9]{6}[0-9]*[1-9]",
    "TIME WITH TIME ZONE": r"\.[0-9]{6}[0-9]*[1-9]",
    "BIGNUM": r"\.[0-9]*[1-9]",
    "VARINT": r"\.[0-9]*[1-9]",
}
_MEMBER = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)
_UNITS = {"TIMESTAMP_S": "second", "TIMESTAMP_MS": "millisecond"}
"""Times that are read as microseconds, and hold fewer digits."""
_WRITTEN: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
    pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
}
_MINE = "database_name = current_database() AND NOT internal"


class OutOfRangeError(Exception):
    """Row `index` holds a date or timestamp outside the years 1 to 9999, an infinity, or 24:00:00."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def first_rounded(values: pa.Array, declared: str) -> int:
    """The first of `values`, texts or times, of which a column would keep fewer digits; -1 = none."""
    if declared in _UNITS:
        rounded = pc.not_equal(values, pc.floor_temporal(values, unit=_UNITS[declared]))
    elif declared in _ROUNDED:
        rounded = pc.match_substring_regex(values, _ROUNDED[declared])
    else:
        return -1
    return int(pc.index(rounded, True).as_py())


def is_text(declared: str) -> bool:
    """Whether values are read as the text that DuckDB shows, and written from it."""
    return declared in _TEXTS or (declared.startswith("ENUM(") and declared.endswith(")"))


def arrow_type(declared: str) -> pa.DataType | None:
    """The Arrow type of a plain column; None for nested and unsupported types."""
    if declared in _SIMPLE:
        return _SIMPLE[declared]
    if match := _DECIMAL.fullmatch(declared):
        return pa.decimal128(int(match.group(1)), int(match.group(2)))
    return pa.string() if is_text(declared) else None


def read_as(name: str, declared: str, column: str) -> str:
    """The expression that reads a column: `column`, or a cast of it. `column` is SQL.

    Raises:
        SchemaError: a type that Spark cannot hold; names the column.
    """
    if is_text(declared):
        return f"CAST({column} AS VARCHAR)"
    if declared in ("HUGEINT", "UHUGEINT"):
        return f"CAST({column} AS DECIMAL(38,0))"
    if arrow_type(declared) is not None:
        return column
    if _NESTED.match(declared) and not _UNREADABLE_INSIDE.search(_NAME.sub("", _spelled(declared))):
        return column
    raise SchemaError(
        f"column {name!r} is {declared}, which Spark cannot hold: "
        "omit it with option 'columns', or convert it with 'query', such as CAST(... AS VARCHAR)"
    )


def canonical(name: str, kind: pa.DataType) -> pa.DataType:
    """The type in which values of `kind` are handed to DuckDB: the same values, in a type that it reads.

    Raises:
        SchemaError: DuckDB has no type for it; names the column.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return canonical(name, kind.storage_type)
    if pa.types.is_dictionary(kind):
        return canonical(name, kind.value_type)
    if pa.types.is_timestamp(kind) and kind.tz is None and kind.unit == "ns":
        return kind
    kind = pa.float32() if pa.types.is_float16(kind) else plain_kind(kind)
    if pa.types.is_map(kind):
        return pa.map_(
            canonical(f"{name}.key", kind.key_type), canonical(f"{name}.value", kind.item_type)
        )
    if is_list(kind):
        return pa.list_(canonical(f"{name}.element", kind.value_type))
    if pa.types.is_struct(kind) and kind.num_fields:
        inner = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct(
            [pa.field(field.name, canonical(f"{name}.{field.name}", field.type)) for field in inner]
        )
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if kind in _WRITTEN:
        return kind
    if pa.types.is_null(kind):
        advice = "it has no type; cast it to the type it should have"
    elif pa.types.is_struct(kind):
        advice = "DuckDB has no struct without fields; leave it out, or cast it to text"
    else:
        advice = "DuckDB has no type that returns it unchanged; cast it to a number or to text"
    raise SchemaError(f"column {name!r} is {kind}: {advice}")


def duckdb_type(kind: pa.DataType) -> str:
    """The type of a new column that gives the canonical `kind` back exactly."""
    if kind in _WRITTEN:
        return _WRITTEN[kind]
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"MAP({duckdb_type(kind.key_type)}, {duckdb_type(kind.item_type)})"
    if pa.types.is_list(kind):
        return f"{duckdb_type(kind.value_type)}[]"
    inner = (kind.field(number) for number in range(kind.num_fields))
    parts = [f"{identifier(field.name).sql('duckdb')} {duckdb_type(field.type)}" for field in inner]
    return f"STRUCT({', '.join(parts)})"


def same_type(one: str, other: str) -> bool:
    """Whether two declared types are one: DuckDB quotes the names in a STRUCT only where it must."""
    return one == other or _spelled(one) == _spelled(other)


def _spelled(declared: str) -> str:
    """The type in sqlglot's words, all names inside in quotes."""
    try:
        return exp.DataType.build(declared, dialect="duckdb").sql("duckdb", identify=True)
    except sqlglot.errors.SqlglotError:  # a type that no release of sqlglot knew
        return declared


def check_range(array: pa.Array) -> None:
    """Check that dates and timestamps, also nested ones, are of the years 1 to 9999, and times are below 24:00.

    DuckDB keeps its infinities as the largest numbers, which Arrow would take for dates
    (findings/duckdb-infinity-as-arrow.sh).

    Raises:
        OutOfRangeError: the first row that is outside; 0 where it is inside a nested value.
    """
    kind = array.type
    if pa.types.is_nested(kind):
        if pa.types.is_map(kind):
            parts = [array.keys, array.items]
        else:
            parts = array.flatten() if pa.types.is_struct(kind) else [array.flatten()]
        for part in parts:
            try:
                check_range(part)
            except OutOfRangeError:
                raise OutOfRangeError(0) from None
        return
    if (index := first_outside(array)) >= 0:
        raise OutOfRangeError(index)


class DuckdbTable(Table):
    """See `Table`."""

    __slots__ = ()

    @property
    def label(self) -> str:
        return self.name if self.schema == "main" else f"{self.schema}.{self.name}"


class DuckdbDialect(Dialect):
    """See `Dialect`."""

    product = "DuckDB"
    sql = "duckdb"
    tables_sql = (
        "SELECT schema_name, table_name, estimated_size, NULL FROM duckdb_tables() WHERE NOT internal "
        "AND database_name = current_database() AND NOT starts_with(table_name, 'spark_channel_') {named} "
        "ORDER BY 1, 2"
    )
    row_values = True
    late_seconds = 0.0  # no other process can read a file that one process writes: all visible rows are committed
    moves_rows = True
    no_keys = "DuckDB's indexes find single rows, and no order"

    def literal(self, value: object, column: Column | None) -> str:
        """A text, of the type that DuckDB itself has named."""
        return (
            str(value)
            if column is None
            else f"CAST({text_literal(str(value))} AS {column.declared})"
        )

    def keys(self, table: Table) -> Sequence[tuple[KeyColumn, ...]]:
        """None: its indexes find single rows, and no order."""
        return ()

    def find_table(self, session: Session, text: str) -> DuckdbTable | None:
        for schema, name in name_readings(text, "duckdb", "main"):
            for function, column in (
                ("duckdb_tables", "table_name"),
                ("duckdb_views", "view_name"),
            ):
                same = f"lower(schema_name) = lower({text_literal(schema)})"
                rows = session.rows(
                    f"SELECT database_name, schema_name, {column} FROM {of_catalog(session, function)} "  # noqa: S608 - quoted
                    f"WHERE {_MINE} AND {same} "
                    f"AND lower({column}) = lower({text_literal(name)})"
                )
                if rows:
                    return self._described(session, *rows[0], is_view=function == "duckdb_views")
        return None

    def only_named(self, names: Sequence[tuple[str, str]]) -> str:
        pairs = ", ".join(
            f"({text_literal(schema)}, {text_literal(name)})" for schema, name in names
        )
        texts = ", ".join({text_literal(name): "" for _, name in names})
        # By the pairs alone DuckDB lists all tables (findings/duckdb-catalog-functions-list-all.sh).
        return f"AND table_name IN ({texts}) AND (schema_name, table_name) IN ({pairs})"

    def table_names(self, session: Session) -> list[str]:
        rows = session.rows(
            f"SELECT schema_name, table_name FROM {of_catalog(session, 'duckdb_tables')} WHERE {_MINE} UNION ALL "  # noqa: S608 - a constant
            f"SELECT schema_name, view_name FROM {of_catalog(session, 'duckdb_views')} WHERE {_MINE} ORDER BY ALL"
        )
        return [str(name) if schema == "main" else f"{schema}.{name}" for schema, name in rows]

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        return tuple(Column(str(row[0]), str(row[1])) for row in session.rows(f"DESCRIBE {query}"))

    def _described(
        self, session: Session, database: str, schema: str, name: str, *, is_view: bool
    ) -> DuckdbTable:
        if is_view:
            query = f"SELECT * FROM {self.quoted(schema)}.{self.quoted(name)}"  # noqa: S608 - quoted
            return DuckdbTable(schema, name, self.describe(session, query), True)
        table = ".".join(map(self.quoted, (database, schema, name)))  # a temporary one may hide it
        if '"' in f"{database}{schema}{name}":  # DuckDB 1.4 does not find such a name by the pragma
            rows = session.rows(
                "SELECT column_name, data_type, NOT is_nullable, column_default IS NOT NULL "  # noqa: S608 - quoted
                f"FROM {of_catalog(session, 'duckdb_columns')} {in_table(schema, name)} ORDER BY column_index"
            )
        else:
            rows = session.rows(
                'SELECT name, type, "notnull", dflt_value IS NOT NULL '  # noqa: S608 - quoted
                f"FROM pragma_table_info({text_literal(table)}) ORDER BY cid"
            )
        columns = tuple(
            Column(str(column_name), str(kind), bool(needed), bool(filled))
            for column_name, kind, needed, filled in rows
        )
        if any(column.has_default for column in columns):
            statement = session.value(
                f"SELECT sql FROM {of_catalog(session, 'duckdb_tables')} {in_table(schema, name)}"  # noqa: S608 - quoted
            )
            columns = tuple(
                replace(column, generated=self._is_generated(column, str(statement)))
                for column in columns
            )
        return DuckdbTable(schema, name, columns, False, *_unique(session, table, schema, name))

    def _is_generated(self, column: Column, statement: str) -> bool:
        """By its table's CREATE TABLE, as DuckDB writes it: the catalog of 1.4 does not say so."""
        names = (column.name, self.quoted(column.name))
        definitions = (f"{name} {column.declared} GENERATED ALWAYS AS(" for name in names)
        return column.has_default and any(definition in statement for definition in definitions)

    def arrow_type(self, column: Column) -> pa.DataType | None:
        return arrow_type(column.declared)

    def types(
        self, session: Session, columns: Sequence[tuple[Column, str]], origin: str
    ) -> list[pa.DataType | None]:
        """As DuckDB gives them of an empty result: declarations of nested types are not taken apart."""
        expressions = ", ".join(
            read_as(column.name, column.declared, text) for column, text in columns
        )
        empty = f"SELECT {expressions} {origin} LIMIT 0"
        return [_plain(kind) for kind in cast(DuckdbSession, session).schema_of(empty).types]

    def selected(self, column: Column, kind: pa.DataType, text: str) -> str:
        return read_as(column.name, column.declared, text)

    def decode(
        self, raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema
    ) -> pa.RecordBatch:
        arrays = [
            _decoded(array, column) for array, column in zip(raw.columns, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def hidden_columns(self, table: Table) -> Sequence[str]:
        hides = self.same_name("rowid", [column.name for column in table.columns]) is not None
        return () if table.is_view or hides else ("rowid",)

    def cursor_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        is_formatted = is_text(column.declared) and column.declared != "VARCHAR"
        return None if is_formatted else arrow_type(column.declared)

    def size(self, text: str) -> str:
        return f"strlen(CAST({text} AS VARCHAR))"

    hash_type = ("UBIGINT", pa.uint64())

    def row_hash(self, columns: Sequence[tuple[Column, str]]) -> str | None:
        """A hash of the values, of which texts are hashed as bytes, and an INTERVAL as its text.

        DuckDB may hash a text by its collation (findings/duckdb-hash-by-collation.sh), and gives a month and 30 days
        one hash (findings/duckdb-hash-of-intervals.sh). It joins the hashes of columns by XOR: the second hash makes
        the sums of rows independent of that.
        """
        texts = []
        for column, text in columns:
            if column.declared == "VARCHAR" or is_text(column.declared):
                texts.append(f"system.main.encode(CAST({text} AS VARCHAR))")
            elif arrow_type(column.declared) is not None:
                texts.append(text)
            else:
                return None  # nested values may hold such texts
        return f"system.main.hash(system.main.hash({', '.join(texts)}))"  # not a macro of the file

    def hash_facts(self, session: Session) -> object:
        """Releases may hash in other ways."""
        return session.rows("SELECT version(), hash('spark-channel')")[0]

    def range_number(self, text: str, edges: Sequence[int]) -> str:
        """About even edges are found by division, in a fifth of the time that DuckDB takes to plan a long CASE."""
        first, steps, span = edges[0], len(edges) - 1, edges[-1] - edges[0]

        def guess(number: int) -> int:
            return min(max((number - first) * steps // span, 0), steps - 1)

        def is_near(position: int) -> bool:
            """Whether each number from this edge on and before the next one has a guess beside the edge's place."""
            return (
                position - 1 <= guess(edges[position])
                and guess(edges[position + 1] - 1) <= position + 1
            )

        if steps < 2 or not all(map(is_near, range(steps))):
            cases = " ".join(f"WHEN {text} < {edge} THEN {n}" for n, edge in enumerate(edges))
            return f"CASE {cases} ELSE {len(edges)} END"
        share = f"(CAST({text} AS HUGEINT) - {first}) * {steps} // {span}"
        position = f"CAST(least(greatest({share}, 0), {steps - 1}) AS INTEGER)"
        edge_list = f"CAST([{', '.join(map(str, edges))}] AS BIGINT[])"
        beyond = (f"CAST({text} >= {edge_list}[{position} + {n}] AS INTEGER)" for n in (1, 2))
        return f"{position} + {' + '.join(beyond)}"

    def is_passing(self, error: BaseException) -> bool:
        return is_locked(error)


def of_catalog(session: Session, function: str) -> str:
    """See `DuckdbSession.catalog`."""
    return cast(DuckdbSession, session).catalog(function)


def in_table(schema: str, name: str) -> str:
    """The condition of the rows of a catalog that are of one table."""
    condition = f"schema_name = {text_literal(schema)} AND table_name = {text_literal(name)}"
    return f"WHERE database_name = current_database() AND {condition}"


def _unique(
    session: Session, table: str, schema: str, name: str
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Column sets that are held unique, and which of them is the primary key. `table` is the quoted name."""
    unique, primary = _constraints(session, table, schema, name)
    indexes = session.rows(
        f"SELECT sql FROM {of_catalog(session, 'duckdb_indexes')} {in_table(schema, name)} AND is_unique"  # noqa: S608 - names are quoted
    )
    unique += [columns for (sql,) in indexes if (columns := index_columns(str(sql)))]
    return tuple(unique), primary


def _constraints(
    session: Session, table: str, schema: str, name: str
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """`_unique` without indexes. DESCRIBE finds the table by its name, and does not say which columns make one key."""
    keys = [(str(row[0]), str(row[3])) for row in session.rows(f"DESCRIBE {table}") if row[3]]
    if not keys or [key for _, key in keys] == ["PRI"]:
        primary = tuple(column for column, _ in keys)
        return [primary] if primary else [], primary
    rows = session.rows(
        f"SELECT constraint_type, constraint_column_names FROM {of_catalog(session, 'duckdb_constraints')} "  # noqa: S608 - quoted
        f"{in_table(schema, name)} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE') ORDER BY constraint_type"
    )
    unique = [tuple(str(column) for column in columns) for _, columns in rows]
    return unique, unique[0] if rows and rows[0][0] == "PRIMARY KEY" else ()


def index_columns(statement: str) -> tuple[str, ...]:
    """The columns that a CREATE INDEX lists; () = it has an expression."""
    index = sqlglot.parse_one(statement, read="duckdb").find(exp.Index)
    parameters = index.args.get("params") if index is not None else None
    parts = (parameters.args.get("columns") or []) if parameters else []
    keys = [part.this if isinstance(part, exp.Ordered) else part for part in parts]
    if all(isinstance(key, exp.Column | exp.Identifier) for key in keys):
        return tuple(key.name for key in keys)
    return ()


def _plain(kind: pa.DataType) -> pa.DataType:
    """Timestamps of seconds and milliseconds fit microseconds, which is what Spark holds."""
    if pa.types.is_timestamp(kind) and (kind.tz is not None or kind.unit != "ns"):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return kind


def _decoded(array: pa.Array, column: ReadColumn) -> pa.Array:
    try:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if pa.types.is_timestamp(array.type) and array.type.unit != column.kind.unit:
            check_range(array)
        if not array.type.equals(column.kind):
            array = pc.cast(array, column.kind)
        check_range(array)
    except OutOfRangeError:
        raise MisfitError(
            column,
            "an infinity, a date outside the years 1 to 9999, or the time 24:00:00, which Spark cannot hold",
        ) from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MisfitError(column, f"a value that is not {column.kind}: {error}") from error
    return array


def staged_schema(target: TargetTable) -> pa.Schema:
    """The staged columns, under the table's names, and the operation."""
    fields = [pa.field(column.target, column.kind) for column in target.columns]
    return pa.schema(
        fields if target.operation is None else [*fields, pa.field(OPERATION, pa.string())]
    )


class DuckdbWriteDialect(DuckdbDialect, WriteDialect):
    """See `WriteDialect`."""

    begin = "BEGIN TRANSACTION"
    has_savepoints = False

    def created_type(self, name: str, kind: pa.DataType, *, key: bool) -> str:
        return duckdb_type(canonical(name, kind))

    def index_names(self, session: Session, schema: str) -> list[str]:
        return [str(name) for (name,) in session.rows("SELECT index_name FROM duckdb_indexes()")]

    def spark_type(self, text: str) -> str | None:
        return None  # DuckDB takes the length of a VARCHAR, and keeps it not

    def number_type(self, column: Column) -> pa.DataType | None:
        number_kind = arrow_type(column.declared)
        is_huge = column.declared in ("HUGEINT", "UHUGEINT") or is_text(column.declared)
        return None if is_huge else number_kind

    def is_same_type(self, actual: str, planned: str) -> bool:
        return same_type(actual, planned)

    def write_column(self, field: pa.Field, column: Column) -> WriteColumn:
        kind = canonical(field.name, field.type)
        column_type = arrow_type(column.declared)
        natural = duckdb_type(kind)
        if is_text(column.declared):
            fine = pa.types.is_string(kind)
        elif column_type is None:
            fine = same_type(natural, column.declared)
        else:
            fine = natural == column.declared or (
                arrow_type(natural) is not None and fits(kind, column_type)
            )
        if not fine:
            raise misfit(field, column, column_type, natural=natural)
        return WriteColumn(field.name, column, kind)

    def check_values(self, values: pa.Array, column: WriteColumn) -> None:
        self.checked(values, column)

    @staticmethod
    def checked(values: pa.Array, column: WriteColumn) -> pa.Array:
        """The values as they are staged.

        Raises:
            BadValueError: the first one found that the column would change, or refuse.
        """
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        values = convert(values, column.kind, column)
        declared = column.declared
        try:
            check_range(values)
            index, reason = (
                first_rounded(values, declared),
                f"it has more digits than {declared} keeps",
            )
        except OutOfRangeError as error:
            index, reason = (
                error.index,
                "dates go from year 1 to 9999, and a day ends before 24:00:00",
            )
        if index >= 0:
            refuse_where(
                pa.array([row == index for row in range(len(values))]), values, column, reason
            )
        if declared.startswith("ENUM("):
            members = [member.replace("''", "'") for member in _MEMBER.findall(declared)]
            strange = pc.invert(pc.is_in(values, value_set=pa.array([*members, None], pa.string())))
            refuse_where(strange, values, column, f"it is none of {declared}")
        return values
