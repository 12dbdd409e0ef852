"""MySQL's and MariaDB's SQL: their catalog, and the expression that reads each type."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column, KeyColumn, ReadColumn, Table
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.mysql.column_types import INSTANT, LOCAL, arrow_type, declared_of, parts
from spark_channel.connectors.sql.mysql.decode import decode_fields, selected
from spark_channel.connectors.sql.mysql.session import MysqlSession, is_away, is_ended, quoted
from spark_channel.connectors.sql.named import name_readings
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import SchemaError, SourceError

__all__ = ["MysqlColumn", "MysqlDialect", "MysqlTable", "name_places", "table_named"]

_ORDERED = frozenset({
    "tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "date", "datetime", "timestamp", "time", "char",
    "varchar", "binary", "varbinary", "uuid", "year", "double",
})  # fmt: skip
"""Types whose order is that of their comparisons with literals; an enum is ordered by number, compared by text."""
_UNORDERED = ("enum", "set", "json", "bit", "time")
"""Read as texts or numbers whose order is not the column's own."""
_WHOLE = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_EXACT_TEXTS = frozenset({"decimal", "date", "datetime", "timestamp", "uuid"})
"""Types of keys that are read as texts, of which none reads as another value: not so floats."""
_KEY_ENGINES = frozenset({"innodb", "myisam", "aria", "rocksdb"})
_PLAIN_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")

Keys = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class MysqlColumn(Column):
    charset: str | None = None
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class MysqlTable(Table):
    """`unique` are the column sets that a key holds unique, without NULLs, the primary one first; `loose` those that
    hold NULLs too.

    `keys` are the unique ones in the order of their indexes, `indexes` the columns of all that go up.
    """

    columns: tuple[MysqlColumn, ...] = ()
    loose: Keys = ()
    engine: str | None = None
    keys: tuple[tuple[KeyColumn, ...], ...] = ()
    indexes: Keys = ()

    @property
    def held(self) -> Keys:
        return (*self.unique, *self.loose)


class MysqlDialect(Dialect):
    """`zero_dates`: whether `0000-00-00` is read as NULL. `one_is_bit`: whether TINYINT(1) is true and false.

    `local`: TIMESTAMPs are read as the session shows them. `in_utc`: the session's zone is UTC.
    """

    product = "MySQL"
    sql = "mysql"
    batch_bytes = 4 << 20
    cuts_by_bytes = True

    def __init__(
        self, *, zero_dates: bool = False, one_is_bit: bool = True, local: bool = False, in_utc: bool = False
    ) -> None:
        self.zero_dates, self.one_is_bit, self.local, self.in_utc = zero_dates, one_is_bit, local, in_utc

    def quoted(self, name: str) -> str:
        return quoted(name)

    def literal(self, value: Any, column: Column | None) -> str:
        """Of the column's type: a decimal that is compared with a text is compared as a float."""
        from pymysql.converters import escape_item

        text = f"X'{value.hex()}'" if isinstance(value, bytes) else str(escape_item(value, "utf8mb4"))
        if column is None or not isinstance(value, str):
            return text
        kind = self.cursor_type(column, None)
        if kind is None:
            return text
        if pa.types.is_decimal(kind):
            return f"CAST({text} AS DECIMAL({kind.precision},{kind.scale}))"
        if pa.types.is_date(kind):
            return f"CAST({text} AS DATE)"
        return f"CAST({text} AS DATETIME(6))" if pa.types.is_timestamp(kind) else text

    def find_table(self, session: Session, text: str) -> MysqlTable | None:
        for database, name in name_places(session, text):
            table = table_named(session, database, name)
            if table is not None:
                return table
        return None

    def table_names(self, session: Session) -> list[str]:
        rows = session.rows(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name"
        )
        return [str(name) for (name,) in rows]

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        """As the result is described. Costs no scan where the server merges the query."""
        fields = cast(MysqlSession, session).fields(f"SELECT * FROM ({query}) AS `source` LIMIT 0")  # noqa: S608
        return tuple(Column(str(field.name), declared_of(field)) for field in fields)

    def result_names(self, session: Session, query: str) -> list[str]:
        """Not as a derived table, whose columns need different names."""
        return [str(field.name) for field in cast(MysqlSession, session).fields(f"({query}) LIMIT 0")]

    def arrow_type(self, column: Column) -> pa.DataType:
        kind = arrow_type(column.name, column.declared)
        if pa.types.is_boolean(kind) and not self.one_is_bit and parts(column.declared)[0] == "tinyint":
            return pa.int8()
        return LOCAL if self.local and kind == INSTANT else kind

    def compared(self, column: Column | None, text: str) -> str:
        """A TIMESTAMP in UTC: a session shows it in its zone, where an hour of each autumn may come twice."""
        is_instant = column is not None and parts(column.declared)[0] == "timestamp"
        if not is_instant or self.in_utc:
            return text
        seconds = f"UNIX_TIMESTAMP({text})"
        return (
            f"IF({seconds} = 0, {text}, DATE_ADD(CAST('1970-01-01' AS DATETIME), INTERVAL {seconds} SECOND))"
        )

    def selected(self, column: Column, kind: pa.DataType, text: str) -> str:
        name = parts(column.declared)[0]
        if not self.local:
            text = self.compared(column, text)
        if name in ("date", "datetime", "timestamp") and self.zero_dates:
            text = f"IF(CAST({text} AS CHAR) LIKE '0000-00-00%', NULL, {text})"
        if name == "bit":
            text = f"CAST({text} AS UNSIGNED)"
        elif name == "float":
            text = f"({text} + 0e0)"  # as text a float has 6 digits; as a double it has all
        if pa.types.is_string(kind) and name not in _PLAIN_TEXTS:
            return f"CAST({text} AS CHAR CHARACTER SET utf8mb4)"
        return text

    def statement(self, columns: Sequence[ReadColumn], origin: str) -> str:
        return f"SELECT {', '.join(selected(columns))} {origin}"

    def decode(self, raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema) -> pa.RecordBatch:
        return decode_fields(raw.columns, columns, schema)

    def misfit_advice(self, column: ReadColumn) -> str:
        return f"{super().misfit_advice(column)}; 'zeroDates' null reads zero dates as NULL"

    def ordered(self, column: Column | None, text: str) -> str:
        kind = "" if column is None else parts(column.declared)[0]
        if kind in ("enum", "set", "json"):
            return f"CAST({text} AS CHAR CHARACTER SET utf8mb4) COLLATE utf8mb4_bin"
        if kind == "bit":
            return f"CAST({text} AS UNSIGNED)"
        return f"({text} + 0e0)" if kind == "float" else text

    def cursor_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        if parts(column.declared)[0] in _UNORDERED:
            return None
        try:
            return self.arrow_type(column)
        except SchemaError:
            return None

    def cursor_text(self, text: str, kind: pa.DataType) -> str:
        plain = pa.types.is_integer(kind) or pa.types.is_string(kind)
        return text if plain else f"CAST({text} AS CHAR)"

    def is_passing(self, error: BaseException) -> bool:
        return is_away(error)

    def is_timeout(self, error: BaseException) -> bool:
        return is_ended(error)

    def keys(self, table: Table) -> Sequence[tuple[KeyColumn, ...]]:
        """Not of engines that hold a key unique in each of several places only."""
        assert isinstance(table, MysqlTable)
        return table.keys if str(table.engine).lower() in _KEY_ENGINES else ()

    def finds(self, table: Table, columns: Sequence[str]) -> bool:
        """An index of InnoDB's ends with the primary key, said or not."""
        assert isinstance(table, MysqlTable)
        wanted = tuple(columns)
        primary = table.primary if str(table.engine).lower() == "innodb" else ()
        return any(
            (*names, *(each for each in primary if each not in names))[: len(wanted)] == wanted
            for names in table.indexes
        )

    def key_read(self, column: Column | None, text: str) -> tuple[pa.DataType, str] | None:
        if column is None:
            return None
        name, _, unsigned = parts(column.declared)
        if name in _WHOLE:
            return (pa.uint64() if unsigned else pa.int64()), text
        if name in ("binary", "varbinary"):
            return pa.binary(), text
        if name in ("char", "varchar"):
            return pa.string(), text
        has_literal = name in _EXACT_TEXTS and self.cursor_type(column, None) is not None
        return (pa.string(), f"CAST({text} AS CHAR)") if has_literal else None

    def key_literal(self, value: Any, column: Column | None) -> str:
        if column is not None and parts(column.declared)[0] in ("date", "datetime", "timestamp"):
            _refuse_odd_time(value, column)
        return self.literal(value, column)

    def split_key(self, table: Table) -> tuple[str, ...]:
        """The smallest unique key whose columns can be compared with literals in their own order."""
        kinds = {column.name: parts(column.declared)[0] for column in table.columns}
        return next((key for key in table.unique if all(kinds[name] in _ORDERED for name in key)), ())


def name_places(session: Session, text: str) -> list[tuple[str, str]]:
    """(database, name) that `dbtable` may mean: the whole text as a name first, then `database.name`."""
    here = session.value("SELECT DATABASE()")
    return [place for place in name_readings(text, "mysql", str(here or "")) if place[0]]


def table_named(session: Session, database: str, name: str) -> MysqlTable | None:
    """The table or view; None when there is none."""
    there = f"table_schema = {_text(database)} AND table_name = {_text(name)}"
    rows = session.rows(
        f"SELECT table_schema, table_name, table_type, engine FROM information_schema.tables WHERE {there}"  # noqa: S608
    )
    if not rows:
        return None
    columns = _columns(session, there)
    database, name, kind, engine = (None if each is None else str(each) for each in rows[0])  # type: ignore[assignment]
    if "VIEW" in str(kind):
        return MysqlTable(database, name, columns, is_view=True)
    unique, loose, primary = _keys(session, there)
    keys, indexes = _orders(session, there)
    return MysqlTable(database, name, columns, False, unique, primary, loose, engine, keys, indexes)


def _columns(session: Session, there: str) -> tuple[MysqlColumn, ...]:
    rows = session.rows(
        "SELECT column_name, column_type, is_nullable, column_default, extra, character_set_name, collation_name "  # noqa: S608
        f"FROM information_schema.columns WHERE {there} ORDER BY ordinal_position"
    )
    found = []
    for column, declared, nullable, default, extra, charset, collation in rows:
        words = str(extra).upper()
        found.append(
            MysqlColumn(
                str(column), str(declared), nullable == "NO",
                default is not None or "AUTO_INCREMENT" in words or "DEFAULT_GENERATED" in words,
                "VIRTUAL" in words or "STORED" in words or "PERSISTENT" in words,
                charset, collation,
            )
        )  # fmt: skip
    return tuple(found)


def _keys(session: Session, there: str) -> tuple[Keys, Keys, tuple[str, ...]]:
    """The unique keys without and with NULLs, and the primary key."""
    rows = session.rows(
        "SELECT index_name, column_name, nullable, sub_part FROM information_schema.statistics "  # noqa: S608
        f"WHERE {there} AND non_unique = 0 ORDER BY index_name, seq_in_index"
    )
    keys: dict[str, list[tuple[str, bool]]] = {}
    broken = set()
    for index, column, nullable, part in rows:
        if column is None or part is not None:
            broken.add(str(index))  # an expression, or a prefix of a column
        keys.setdefault(str(index), []).append((str(column), nullable == "YES"))
    ordered = sorted(
        (index for index in keys if index not in broken),
        key=lambda index: (index != "PRIMARY", len(keys[index])),
    )
    held: dict[bool, list[tuple[str, ...]]] = {False: [], True: []}
    for index in ordered:
        held[any(nullable for _, nullable in keys[index])].append(tuple(column for column, _ in keys[index]))
    return tuple(held[False]), tuple(held[True]), held[False][0] if ordered[:1] == ["PRIMARY"] else ()


def _orders(session: Session, there: str) -> tuple[tuple[tuple[KeyColumn, ...], ...], Keys]:
    """The unique keys without NULLs in the order of their indexes, the primary one first; all indexes that go up."""
    rows = session.rows(
        "SELECT index_name, non_unique, column_name, nullable, sub_part, collation "  # noqa: S608
        f"FROM information_schema.statistics WHERE {there} ORDER BY index_name, seq_in_index"
    )
    found: dict[str, list[KeyColumn]] = {}
    loose: set[str] = set()
    unordered: set[str] = set()
    for index, non_unique, column, nullable, part, order in rows:
        name = str(index)
        # No collation: a hash, or an index of words, which has no order. A part: of a longer text.
        if column is None or part is not None or order is None:
            unordered.add(name)
        if int(non_unique) or nullable == "YES":
            loose.add(name)
        found.setdefault(name, []).append(KeyColumn(str(column), order == "D"))
    ranked = sorted(set(found) - unordered, key=lambda index: (index != "PRIMARY", len(found[index]), index))
    up = [found[index] for index in ranked if not any(each.descending for each in found[index])]
    return (
        tuple(tuple(found[index]) for index in ranked if index not in loose),
        tuple(tuple(each.name for each in columns) for columns in up),
    )


def _refuse_odd_time(value: str, column: Column) -> None:
    """A literal of a time that is none is NULL, behind which there are no rows.

    Raises:
        SourceError: 0000-00-00 and the like.
    """
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise SourceError(
            f"column {column.name!r} belongs to the key by which the table is read in short statements, and holds "
            f"{value!r}, which is not a time: read it with statementSeconds=0, one statement for each split"
        ) from None


def _text(value: str) -> str:
    return MysqlDialect().literal(value, None)
