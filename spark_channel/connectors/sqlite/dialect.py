"""SQLite's SQL: its catalog, and expressions that return only values that fit.

A value that does not fit stops the read: it does not go into the column's array, or the selected expression overflows
on purpose. `misfit` then finds it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from string import ascii_lowercase, ascii_uppercase
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.types import Node, exp, fits
from spark_channel.connectors.sql.catalog import Column, KeyColumn, ReadColumn, Table, WriteColumn
from spark_channel.connectors.sql.dialect import Dialect, WriteDialect, misfit, wrong_table_options
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import name_readings
from spark_channel.connectors.sqlite.session import SqliteSession, statements_of
from spark_channel.connectors.sqlite.types import (
    EXACT_DIGITS,
    INSTANT,
    LOCAL,
    TIME,
    affinity,
    declared_type,
    decode,
    encode,
    is_real_decimal,
    is_text_decimal,
)
from spark_channel.errors import OptionError, SchemaError

__all__ = [
    "SqliteColumn",
    "SqliteDialect",
    "SqliteTable",
    "SqliteWriteDialect",
    "look_up",
    "misfit_condition",
]


_ROWIDS = ("rowid", "_rowid_", "oid")
_SAMPLE_ROWS = 10_000
"""Rows looked at to type a column that declares no type."""
_STOP = "abs(-9223372036854775808)"
_WHOLE = "BETWEEN -9007199254740992 AND 9007199254740992"
_CLASSES = ("integer", "real", "text", "blob")
_LISTED = "SELECT schema, name, type, wr FROM pragma_table_list"
_DECLARED = (
    "SELECT name, rootpage || ' ' || sql, sql LIKE '%collate%' FROM {schema}.sqlite_master "
    "WHERE type IN ('table', 'view') AND name IN ({names})"
)
_VERSION = "PRAGMA schema_version"
"""Another one after each change of a table or an index."""
_UNDECLARED = ("", False)
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
"""Letters whose case SQLite ignores in names."""
_TABLE_OPTIONS = re.compile(
    r"\s*(STRICT|WITHOUT\s+ROWID)(\s*,\s*(STRICT|WITHOUT\s+ROWID))?\s*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class SqliteColumn(Column):
    key_position: int = 0


@dataclass(frozen=True, slots=True)
class SqliteTable(Table):
    """`rowid` is a name by which its rowid can be asked for; None for views, tables WITHOUT ROWID, and tables
    whose columns hide it. `collates`: its declaration has a COLLATE. `has_key_index`: its primary key has an index of
    its own, so that it is not the rowid.
    """

    columns: tuple[SqliteColumn, ...] = ()
    rowid: str | None = None
    without_rowid: bool = False
    collates: bool = False
    has_key_index: bool = False
    state: str = ""
    """Its first page and its declaration."""

    @property
    def label(self) -> str:
        return self.name

    def rowid_alias(self) -> str | None:
        """The column that is the rowid itself (INTEGER PRIMARY KEY), which SQLite fills when it is absent.

        INTEGER PRIMARY KEY DESC is not: it takes NULL, as keys of other types do.
        """
        is_indexed = self.without_rowid or self.has_key_index
        if len(self.primary) == 1 and not is_indexed and not self.is_view:
            column = next(column for column in self.columns if column.name == self.primary[0])
            if column.declared.upper() == "INTEGER":
                return column.name
        return None


class SqliteDialect(Dialect):
    """See `Dialect`."""

    product = "SQLite"
    no_keys = "tables without a rowid, views and queries have no key here whose order is sure"
    sql = "sqlite"
    tables_sql = (
        "SELECT '', name, NULL, NULL FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' "
        "ESCAPE '\\' AND name NOT LIKE 'spark\\_channel\\_%' ESCAPE '\\' {named} ORDER BY name"
    )
    times_are_texts = True
    row_values = True
    late_seconds = 0.0  # one writes at a time, so rows come to light in the order of their ids
    batch_rows = 16_384

    def literal(self, value: object, column: Column | None) -> str:
        if isinstance(value, float):
            return _real(value)
        if isinstance(value, str) and "\0" in value:
            return f"CAST(X'{value.encode().hex()}' AS TEXT)"
        return super().literal(value, column)

    def bound(self, value: Any, column: Column) -> Any:
        """As this connector stores such a value."""
        if is_text_decimal(column.declared):
            raise OptionError(
                f"option 'partitionColumn' names {column.name!r}, which keeps its decimals as text: "
                "a stride of numbers does not fit it. Omit 'lowerBound' and 'upperBound'",
                option="partitionColumn",
                got=column.name,
            )
        text = super().bound(value, column)
        kind = declared_type(column.declared)
        is_instant = kind is not None and pa.types.is_timestamp(kind) and kind.tz is not None
        return f"{text}Z" if is_instant and isinstance(value, datetime) else text

    def find_table(self, session: Session, text: str) -> SqliteTable | None:
        answers = _answers(session)
        for schema, name in name_readings(text, "sqlite", "main"):
            if schema.lower() == "main" and (key := _folded(name)) in answers:
                listed = answers[key]
            elif schema.lower() in ("main", "temp"):
                listed = _listed(session, schema, name)
            else:
                continue
            if listed is not None:
                return _described(session, *listed)
        return None

    def is_same(self, session: Session, table: Table) -> bool:
        assert isinstance(table, SqliteTable)
        state, _ = _declared(session, table.schema, [table.name]).get(table.name, _UNDECLARED)
        return state == table.state

    def change_of(self, was: Table, now: Table) -> str:
        change = super().change_of(was, now)
        is_other = change.endswith("made again")
        return f"{change}, or VACUUM moved its rows to other numbers" if is_other else change

    def only_named(self, names: Sequence[tuple[str, str]]) -> str:
        return f"AND name IN ({', '.join(_text(name) for _, name in names)})"

    def table_names(self, session: Session) -> list[str]:
        rows = session.rows(
            "SELECT name FROM main.sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' "
            "ESCAPE '\\' ORDER BY name"
        )
        return [str(name) for (name,) in rows]

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        """With the types of the columns that the query passes on."""
        session.execute(f"CREATE TEMP VIEW spark_channel_query AS {query}")
        try:
            return _columns(session, "temp", "spark_channel_query")
        finally:
            session.execute("DROP VIEW temp.spark_channel_query")

    def arrow_type(self, column: Column) -> pa.DataType | None:
        return declared_type(column.declared)

    def types(
        self, session: Session, columns: Sequence[tuple[Column, str]], origin: str
    ) -> list[pa.DataType | None]:
        kinds = super().types(session, columns, origin)
        unknown = [number for number, kind in enumerate(kinds) if kind is None]
        if not unknown:
            return kinds
        sample = ", ".join(f"{columns[number][1]} AS c{number}" for number in unknown)
        flags = ", ".join(
            f"max(typeof(c{number}) = '{storage_class}')"
            for number in unknown
            for storage_class in _CLASSES
        )
        query = f"SELECT {flags} FROM (SELECT {sample} {origin} LIMIT {_SAMPLE_ROWS})"  # noqa: S608 - quoted
        (class_flags,) = session.rows(query)
        for index, number in enumerate(unknown):
            classes = {
                storage_class
                for storage_class, flag in zip(
                    _CLASSES, class_flags[4 * index : 4 * index + 4], strict=True
                )
                if flag
            }
            kinds[number] = _kind_of_values(columns[number][0].name, classes)
        return kinds

    def selected(self, column: Column, kind: pa.DataType, text: str) -> str:
        """The value, or a failing statement for one that does not fit."""
        stored = affinity(column.declared)
        if (
            pa.types.is_integer(kind)
            or pa.types.is_boolean(kind)
            or is_real_decimal(column.declared, kind)
        ):
            return text
        if pa.types.is_floating(kind):
            if stored == "REAL":
                return text
            return f"CASE WHEN typeof({text}) IN ('real', 'null') OR {text} {_WHOLE} THEN {text} ELSE {_STOP} END"
        if pa.types.is_binary(kind):
            return f"CASE WHEN {text} IS NULL OR {text} >= x'' THEN {text} ELSE {_STOP} END"
        if pa.types.is_decimal(kind) or (pa.types.is_string(kind) and stored != "TEXT"):
            return (
                f"CASE typeof({text}) WHEN 'text' THEN {text} WHEN 'integer' THEN CAST({text} AS TEXT) "
                f"WHEN 'real' THEN {_shortest(text)} WHEN 'null' THEN NULL ELSE {_STOP} END"
            )
        if stored == "TEXT":
            return f"CASE WHEN {text} >= x'' THEN {_STOP} ELSE {text} END"
        return f"CASE WHEN {text} IS NULL OR ({text} >= '' AND {text} < x'') THEN {text} ELSE {_STOP} END"

    def decode(
        self, raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema
    ) -> pa.RecordBatch:
        return decode(raw, columns, schema)

    def hidden_columns(self, table: Table) -> Sequence[str]:
        assert isinstance(table, SqliteTable)
        return () if table.rowid is None else (table.rowid,)

    def check_condition(self, column: Column, compared: Node) -> None:
        if is_text_decimal(column.declared) and not isinstance(compared.parent, exp.Is | exp.Cast):
            raise OptionError(
                f"option 'where': column {column.name!r} keeps its decimals as text, which compares as text; "
                f"write CAST({column.name} AS REAL)",
                option="where",
            )

    def key_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        return declared_type(column.declared) if read is None else read.kind

    def is_never_null(self, table: Table, column: Column) -> bool:
        assert isinstance(table, SqliteTable)
        return column.not_null or table.rowid_alias() == column.name

    def remainder(self, text: str, parts: int) -> str:
        return f"{text} % {parts}"

    def is_unique(self, table: Table, name: str) -> bool:
        """An index may distinguish texts that are equal by the column's collation."""
        assert isinstance(table, SqliteTable)
        return table.rowid_alias() == name or (
            not table.collates and super().is_unique(table, name)
        )

    def cursor_text(self, text: str, kind: pa.DataType) -> str:
        return text  # as SQLite holds it: numbers as numbers, times as texts

    def cursor_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        """Return the type that SQLite compares: a column of TEXT affinity compares as text, also for decimals."""
        return pa.string() if affinity(column.declared) == "TEXT" else self.key_type(column, read)

    def is_cursor_value(self, value: object, kind: pa.DataType | None) -> bool:
        return not (isinstance(value, str) and kind is not None and pa.types.is_integer(kind))

    def size(self, text: str) -> str:
        return f"length(CAST({text} AS BLOB))"

    def is_passing(self, error: BaseException) -> bool:
        text = str(error.__cause__ or error)
        return "is locked" in text or "is busy" in text

    def keys(self, table: Table) -> Sequence[tuple[KeyColumn, ...]]:
        """The rowid: other keys hold values of any type."""
        assert isinstance(table, SqliteTable)
        rowid = table.rowid or table.rowid_alias()
        return [] if rowid is None else [(KeyColumn(rowid),)]

    def key_read(self, column: Column | None, text: str) -> tuple[pa.DataType, str] | None:
        return pa.int64(), text

    def split_key(self, table: Table) -> tuple[str, ...]:
        """The rowid, or the key of a table WITHOUT ROWID: rows are in their order, and need no sort."""
        assert isinstance(table, SqliteTable)
        if table.without_rowid:
            return table.primary
        rowid = table.rowid or table.rowid_alias()
        return () if rowid is None else (rowid,)


def _shortest(text: str) -> str:
    """The expression for the shortest text that gives the real `text` back."""
    formats = {digits: f"printf('%!.{digits}g', {text})" for digits in (15, 16, 17)}
    tried = "".join(
        f"WHEN CAST({formats[digits]} AS REAL) = {text} THEN {formats[digits]} "
        for digits in (15, 16)
    )
    return f"CASE {tried}ELSE {formats[17]} END"


def misfit_condition(text: str, column: ReadColumn) -> str:
    """The condition that holds for values whose storage class does not fit."""
    kind, stored = column.kind, f"typeof({text})"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return f"{stored} NOT IN ('integer', 'null')"
    if pa.types.is_floating(kind):
        return f"{stored} NOT IN ('real', 'integer', 'null') OR ({stored} = 'integer' AND NOT {text} {_WHOLE})"
    if is_real_decimal(column.declared, kind):
        return f"{stored} NOT IN ('real', 'integer', 'null')"
    if pa.types.is_binary(kind):
        return f"{stored} NOT IN ('blob', 'null')"
    if pa.types.is_string(kind) or pa.types.is_decimal(kind):
        return f"{stored} = 'blob'"
    return f"{stored} NOT IN ('text', 'null')"


def look_up(session: Session, texts: Sequence[str]) -> None:
    """Ask for tables together that `find_table` is asked for in this session, until one is changed.

    SQLite reads its whole catalog for each question.
    """
    assert isinstance(session, SqliteSession)
    readings = {reading for text in texts for reading in name_readings(text, "sqlite", "main")}
    names = [name for schema, name in readings if schema.lower() == "main"]
    version, literals = session.value(_VERSION), ", ".join(map(_text, names))
    rows = session.rows(
        f"{_LISTED} WHERE lower(schema) = 'main' AND name COLLATE NOCASE IN ({literals})"
    )
    declared = _declared(session, "main", [name for _, name, _, _ in rows])
    if session.value(_VERSION) != version:
        return  # each is asked for
    before, answers = session.looked_up or (version, {})
    if before != version:
        answers = {}
    answers.update(dict.fromkeys(map(_folded, names)))
    answers.update({_folded(row[1]): (*row, *declared.get(row[1], _UNDECLARED)) for row in rows})
    session.looked_up = version, answers


def _answers(session: Session) -> dict[str, Any]:
    looked_up = session.looked_up if isinstance(session, SqliteSession) else None
    if looked_up is None or looked_up[0] != session.value(_VERSION):
        return {}
    return looked_up[1]


def _folded(name: str) -> str:
    return name.translate(_LOWER)


def _listed(session: Session, schema: str, name: str) -> tuple[Any, ...] | None:
    """A table or view as the catalog lists it, for `_described`."""
    rows = session.rows(
        f"{_LISTED}({_text(name)}) WHERE "
        f"lower(schema) = lower({_text(schema)}) AND lower(name) = lower({_text(name)})"
    )
    if not rows:
        return None
    schema, name, *_ = rows[0]
    return (*rows[0], *_declared(session, schema, [name]).get(name, _UNDECLARED))


def _declared(session: Session, schema: str, names: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """`SqliteTable.state` and `collates` of tables and views."""
    literals = ", ".join(map(_text, names))
    rows = session.rows(_DECLARED.format(schema=schema, names=literals))
    return {str(name): (str(state or ""), bool(collates)) for name, state, collates in rows}


def _described(
    session: Session,
    schema: str,
    name: str,
    kind: str,
    without_rowid: int,
    state: str,
    collates: bool,
) -> SqliteTable:
    columns = _columns(session, schema, name)
    hidden = {column.name.lower() for column in columns}
    rowid = next((rowid_name for rowid_name in _ROWIDS if rowid_name not in hidden), None)
    primary = tuple(
        name
        for _, name in sorted(
            (column.key_position, column.name) for column in columns if column.key_position
        )
    )
    return SqliteTable(
        schema,
        name,
        columns,
        kind == "view",
        _unique(session, schema, name, primary),
        primary,
        rowid if kind == "table" and not without_rowid else None,
        bool(without_rowid),
        collates,
        bool(
            session.rows(
                f"SELECT 1 FROM pragma_index_list({_text(name)}, {_text(schema)}) WHERE origin = 'pk'"  # noqa: S608 - texts are quoted
            )
        ),
        state,
    )


def _columns(session: Session, schema: str, name: str) -> tuple[SqliteColumn, ...]:
    rows = session.rows(
        'SELECT name, type, "notnull", dflt_value IS NOT NULL, hidden, pk '  # noqa: S608 - quoted
        f"FROM pragma_table_xinfo({_text(name)}, {_text(schema)})"
    )
    return tuple(
        SqliteColumn(
            str(column),
            str(declared or ""),
            bool(not_null),
            bool(default),
            hidden in (2, 3),
            int(key),
        )
        for column, declared, not_null, default, hidden, key in rows
        if hidden != 1
    )


def _unique(
    session: Session, schema: str, table: str, primary: tuple[str, ...]
) -> tuple[tuple[str, ...], ...]:
    unique: list[tuple[str, ...]] = [primary] if primary else []
    rows = session.rows(
        f'SELECT name FROM pragma_index_list({_text(table)}, {_text(schema)}) WHERE "unique" AND NOT partial'  # noqa: S608 - texts are quoted
    )
    for (index,) in rows:
        columns = session.rows(
            f"SELECT name FROM pragma_index_info({_text(index)}, {_text(schema)})"  # noqa: S608 - texts are quoted
        )
        if all(name is not None for (name,) in columns):
            unique.append(tuple(str(name) for (name,) in columns))
    return tuple(unique)


def _kind_of_values(name: str, classes: set[str]) -> pa.DataType:
    if classes == {"integer"}:
        return pa.int64()
    if classes and classes <= {"integer", "real"}:
        return pa.float64()
    if classes == {"blob"}:
        return pa.binary()
    if "blob" in classes:
        others = ", ".join(sorted(classes - {"blob"}))
        raise SchemaError(
            f"column {name!r} declares no type, and holds blobs beside {others}: make it one type in a query"
        )
    return pa.string()


def _text(value: str) -> str:
    return SqliteDialect().literal(value, None)


def _real(value: float) -> str:
    """Exactly this number: SQLite reads more than 15 digits nearly, and a whole number over a power of two exactly."""
    if value in (float("inf"), float("-inf")):
        return "9e999" if value > 0 else "-9e999"
    whole, over = value.as_integer_ratio()
    if abs(whole) < 1 << 53 and over < 1 << 62:
        return f"({whole}.0 / {over}.0)"
    return repr(value)


class SqliteWriteDialect(SqliteDialect, WriteDialect):
    """See `WriteDialect`."""

    begin = "BEGIN IMMEDIATE"  # the lock is taken first, so that a transaction never fails half way for want of it

    new_types: ClassVar = {
        pa.bool_(): "BOOLEAN",
        pa.int8(): "INT1",
        pa.int16(): "INT2",
        pa.int32(): "INT4",
        pa.int64(): "BIGINT",
        pa.uint8(): "INT2",
        pa.uint16(): "INT4",
        pa.uint32(): "BIGINT",
        pa.uint64(): "DECIMAL_TEXT(20,0)",
        pa.float16(): "FLOAT4",
        pa.float32(): "FLOAT4",
        pa.float64(): "DOUBLE",
        pa.string(): "TEXT",
        pa.binary(): "BLOB",
        pa.date32(): "DATE",
        TIME: "TIME",
        LOCAL: "TIMESTAMP",
        INSTANT: "TIMESTAMPTZ",
    }

    def new_decimal(self, digits: int, scale: int) -> str | None:
        exact = digits <= (18 if scale == 0 else EXACT_DIGITS)
        return (
            f"{'DECIMAL' if exact else 'DECIMAL_TEXT'}({digits},{scale})" if digits <= 38 else None
        )

    def place(self, schema: str | None, name: str) -> str:
        return super().place("main", name)

    def is_filled(self, table: Table, column: Column) -> bool:
        assert isinstance(table, SqliteTable)
        return super().is_filled(table, column) or column.name == table.rowid_alias()

    def write_column(self, field: pa.Field, column: Column) -> WriteColumn:
        column_type = declared_type(column.declared)
        natural = (
            ""
            if pa.types.is_null(field.type)
            else self.created_type(field.name, field.type, key=False)
        )
        if column_type is not None and natural:
            natural_type = declared_type(natural)
            assert natural_type is not None
            if not fits(natural_type, column_type):
                raise misfit(field, column, column_type, natural=natural, shown=f" ({column_type})")
        return WriteColumn(field.name, column, field.type)

    def check_values(self, values: pa.Array, column: WriteColumn) -> None:
        encode(pa.record_batch([values], names=[column.name]), [column])

    def retyped(self, table: str, column: Column, declared: str) -> str:
        """SQLite changes no declared type: by another column."""
        old, new = self.quoted(column.name), self.quoted(f"{column.name} new")
        alter = f"ALTER TABLE {table}"
        copy = f"UPDATE {table} SET {new} = {old}"  # noqa: S608 - quoted names
        return (
            f"{alter} ADD COLUMN {new} {declared}; {copy}; {alter} DROP COLUMN {old}; "
            f"{alter} RENAME COLUMN {new} TO {old}"
        )

    def index_names(self, session: Session, schema: str) -> list[str]:
        return [str(name) for (name,) in session.rows("SELECT name FROM sqlite_master")]

    def indexed_table(self, name: str) -> str:
        """The database is named with the index, and the table has no name but its own."""
        return self.quoted(name)

    def not_null(self, table: str, column: str, declared: str) -> str:
        return ""

    def keyed(self, table: str, columns: Sequence[str], name: str) -> str:
        """A table that is there gets no primary key."""
        column_list = ", ".join(map(self.quoted, columns))
        return f"CREATE UNIQUE INDEX {self.quoted(f'{name}_key')} ON {self.quoted(name)} ({column_list})"

    def nullable(self, table: str, column: Column) -> str:
        return self.retyped(table, column, column.declared)

    def loosen(self, session: Session, table: str, column: Column) -> Sequence[str]:
        return self.nullable(table, column).split("; ")

    def after_create(self, options: SqlWriteOptions) -> str:
        text = options.create_table_options
        if text is None:
            return ""
        if not _TABLE_OPTIONS.fullmatch(text) or "STRICT" in text.upper():
            reason = "SQLite has no other"
            if "STRICT" in text.upper():
                reason = (
                    "STRICT tables know none of the types that keep decimals, dates and booleans"
                )
            raise wrong_table_options(text, "WITHOUT ROWID", f": {reason}")
        if not options.key_columns:
            raise OptionError(
                "option 'createTableOptions' WITHOUT ROWID needs a primary key: name it with 'keyColumns'",
                option="createTableOptions",
                got=text,
            )
        return " WITHOUT ROWID"

    def script(self, texts: Iterable[str], option: str) -> Sequence[str]:
        return statements_of(texts, option)
