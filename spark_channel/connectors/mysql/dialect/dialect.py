"""MySQL's and MariaDB's SQL: their catalog, and the expression that reads each type."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar, cast

import pyarrow as pa

from spark_channel.arrow_schema import UNLIMITED
from spark_channel.connectors.base.types import sqlglot, tokens
from spark_channel.connectors.mysql.session import MysqlSession, code_of, is_away, is_ended, quoted
from spark_channel.connectors.mysql.types import (
    arrow_type,
    declared_of,
    decode_fields,
    is_wide_decimal,
    parts,
    selected,
)
from spark_channel.connectors.mysql.types.arrow import INSTANT, LOCAL
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.catalog import (
    Column,
    Declared,
    KeyColumn,
    ReadColumn,
    Table,
)
from spark_channel.connectors.sql.catalog.rights import MissingRights, Right, advice
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import name_readings
from spark_channel.errors import SchemaError, SourceError, TargetError

__all__ = [
    "LOCAL_ENGINES",
    "CatalogRows",
    "MysqlColumn",
    "MysqlDialect",
    "MysqlTable",
    "catalog_rows",
    "declared_in",
    "find_rows",
    "in_file_names",
    "name_places",
    "of_tables",
    "parted",
    "places_of",
    "state_of",
    "table_named",
    "table_of",
]


_ORDERED = frozenset(
    {
        "tinyint",
        "smallint",
        "mediumint",
        "int",
        "bigint",
        "decimal",
        "date",
        "datetime",
        "timestamp",
        "time",
        "char",
        "varchar",
        "binary",
        "varbinary",
        "uuid",
        "year",
        "double",
    }
)
"""Types whose order is that of their comparisons with literals; an enum is ordered by number, compared by text."""
_UNORDERED = ("enum", "set", "json", "bit", "time")
"""Read as texts or numbers whose order is not the column's own."""
_WHOLE = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_EXACT_TEXTS = frozenset({"decimal", "date", "datetime", "timestamp", "uuid"})
"""Types of keys that are read as texts, of which none reads as another value: not so floats."""
LOCAL_ENGINES = frozenset({"innodb", "myisam", "aria", "rocksdb"})
"""They keep the rows of a table here, and its keys as they say."""
_HASHED_NUMBERS = frozenset({*_WHOLE, "decimal", "year", "date", "datetime", "time"})
_HASHED_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_PLAIN_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")

_SAME_NAMES = 1060
_NO_LIMIT = 18446744073709551615
_CLOCK_SECONDS = 2 * 86_400
"""No clock of a zone was set on or back by so much."""
_LAST_SECOND = 2**31 - 1
"""Of a TIMESTAMP, and of FROM_UNIXTIME on older servers."""
_MODIFIERS = frozenset(
    {"SQL_NO_CACHE", "SQL_CACHE", "SQL_CALC_FOUND_ROWS", "SQL_BUFFER_RESULT", "HIGH_PRIORITY"}
)
_MODIFIER_COMMENT = re.compile(rf"/\*M?!\d*\s*(?:(?:{'|'.join(_MODIFIERS)})\s*)+\*/", re.IGNORECASE)
_OTHER_MODIFIERS = frozenset(
    {"ALL", "DISTINCT", "DISTINCTROW", "STRAIGHT_JOIN", "SQL_SMALL_RESULT", "SQL_BIG_RESULT"}
)
_QUOTED_OR_COMMENT = re.compile(r"('(?:[^'\\]|''|\\.)*')|/\*.*?\*/", re.DOTALL)

Keys = tuple[tuple[str, ...], ...]
_T = TypeVar("_T")
_AT_ONCE = 50
_OF_TABLE = (
    "table_schema, table_name, table_type, engine, table_comment FROM information_schema.tables"
)
_COLUMN_ROWS = (
    "SELECT table_schema, table_name, ordinal_position, column_name, column_type, is_nullable, column_default, extra, "
    "character_set_name, collation_name, column_comment, generation_expression FROM information_schema.columns"
)
_INDEX_ROWS = (
    "SELECT table_schema, table_name, index_name, seq_in_index, non_unique, column_name, nullable, sub_part, "
    "collation, index_type FROM information_schema.statistics"
)
_MYSQL_FILES = (
    "SELECT SUM(CRC32(CONCAT(name, ' ', space))) FROM information_schema.INNODB_TABLESPACES_BRIEF "
    "WHERE name = CONCAT({schema}, '/', {name}) "
    "OR name > CONCAT({schema}, '/', {name}, '#p#') AND name < CONCAT({schema}, '/', {name}, '#p$') "
    "AND path LIKE '%#p#%'"
)
"""By an index of MySQL's dictionary. Only the path of a file tells a partition from a table with a # in its name."""
_MYSQL_TABLES = (
    "SELECT table_id FROM information_schema.INNODB_TABLES "
    "WHERE CAST(name AS BINARY) = CONCAT({schema}, '/', {name})"
)
"""MySQL opens all tables of the server for it: for one of plain letters that has no file for itself."""
_MARIADB_TABLES = (
    "SELECT SUM(CRC32(CONCAT(name, ' ', table_id))) FROM information_schema.INNODB_SYS_TABLES "
    "WHERE SUBSTRING_INDEX(name, '#', 1) = {file}"
)
"""MariaDB reads a row of each table of the server for it."""
_NAME = r"`((?:[^`]|``)+)`"
_GRANT = re.compile(
    rf"GRANT (.+?) ON (?:(\*)|{_NAME})\.(?:(\*)|{_NAME}) TO (?:([`'].*?[`']@[`'].*?[`'])|PUBLIC\b)"
)
_OF_ROUTINES = re.compile(r"GRANT [\w ,]+ ON (?:PROCEDURE|FUNCTION|PACKAGE) ")
_ALL = "ALL PRIVILEGES"
_DENIED = (1044, 1142, 1143)
_EXPLAINED = {
    "SELECT": "SELECT 1 FROM {table}",
    "INSERT": "INSERT INTO {table} () VALUES ()",
    "DELETE": "DELETE FROM {table}",
}
"""Statements of which the server checks a right when it only explains them."""


@dataclass(frozen=True, slots=True)
class MysqlColumn(Column):
    charset: str | None = None
    collation: str | None = None
    numbered: bool = False
    """AUTO_INCREMENT: the server stores the next number for NULL."""
    invisible: bool = False
    """A `SELECT *` leaves it out."""
    holds_2106: bool = False
    """A TIMESTAMP to be written, of a server whose instants go on until 2106."""


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
    state: str = ""
    """What tells it from another table of its name, see `state_of`; "" = nothing that is known."""

    @property
    def held(self) -> Keys:
        return (*self.unique, *self.loose)

    @property
    def indexed(self) -> frozenset[str]:
        return frozenset(name for names in (*self.held, *self.indexes) for name in names)


class MysqlDialect(Dialect):
    """`zero_dates`: whether `0000-00-00` is read as NULL. `one_is_bit`: whether TINYINT(1) is true and false.

    `local`: TIMESTAMPs are read as the session shows them. `in_utc`: the session's zone is UTC. `wide_as_text`: a
    DECIMAL of more digits than Arrow's is read as text.
    """

    product = "MySQL"
    sql = "mysql"
    tables_sql = (
        # InnoDB has one page for a table without rows.
        "SELECT table_schema, table_name, table_rows, "
        "IF(table_rows = 0 AND data_length <= @@innodb_page_size, 0, data_length), '', "
        "COALESCE(table_schema <> DATABASE(), 0) "
        "FROM information_schema.tables "
        "WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') "
        "AND table_schema NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys') "
        "AND table_name NOT LIKE 'spark\\_channel\\_%'"
    )
    of_new_tables = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP")
    hides_tables = True
    batch_bytes = 4 << 20
    cuts_by_bytes = True

    def __init__(
        self,
        *,
        zero_dates: bool = False,
        one_is_bit: bool = True,
        local: bool = False,
        in_utc: bool = False,
        wide_as_text: bool = False,
    ) -> None:
        self.zero_dates, self.one_is_bit, self.local, self.in_utc = (
            zero_dates,
            one_is_bit,
            local,
            in_utc,
        )
        self.wide_as_text = wide_as_text

    def quoted(self, name: str) -> str:
        return quoted(name)

    def literal(self, value: object, column: Column | None) -> str:
        """A literal of the column's type, since MySQL compares a decimal with a text as floats."""
        from pymysql.converters import escape_item

        text = (
            f"X'{value.hex()}'" if isinstance(value, bytes) else str(escape_item(value, "utf8mb4"))
        )
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

    def lacking(self, session: Session, rights: Sequence[Right]) -> MissingRights:
        try:
            grants = [str(row[0]) for row in session.rows("SHOW GRANTS")]
        except (SourceError, TargetError) as error:
            if is_away(error):
                raise
            return MissingRights("", {})  # a server without grants, as with --skip-grant-tables
        missing = _lacking(grants, rights)
        missing_rights = {
            right: table
            for right, table in missing.rights.items()
            if not _is_held_otherwise(session, right)
        }
        return MissingRights(missing.role, missing_rights)

    def lacking_on_hidden(self, session: Session, text: str) -> str:
        rights = [Right(*name_place, "SELECT") for name_place in name_places(session, text)[-1:]]
        return advice(self.lacking(session, rights), rights, "source")

    def find_table(self, session: Session, text: str) -> MysqlTable | None:
        for database, name in name_places(session, text):
            table = table_named(session, database, name)
            if table is not None:
                return table
        return None

    def is_same(self, session: Session, table: Table) -> bool:
        assert isinstance(table, MysqlTable)
        return not table.state or state_of(session, table) == table.state

    def change_of(self, was: Table, now: Table) -> str:
        change = super().change_of(was, now)
        return f"{change}, or altered" if change.endswith("made again") else change

    def list_tables(self, names: Sequence[tuple[str, str]] = ()) -> str:
        """MariaDB opens one table for one schema and one name, and all tables for several of them."""
        if not names:
            return f"{self.tables_sql} ORDER BY table_schema, table_name"
        return " UNION ALL ".join(f"{self.tables_sql} AND {_there(*name)}" for name in names)

    def table_names(self, session: Session) -> list[str]:
        rows = session.rows(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name"
        )
        return [str(name) for (name,) in rows]

    def derived(self, query: str) -> str:
        """Leave a query that sqlglot cannot read to the server, which accepts only a SELECT in parentheses."""
        try:
            text = super().derived(query)
        except statements.UnreadableError:
            if not _is_one_expression(query):
                raise
            text = statements.text_of(query, self.sql)
        return _sorted_as_written(_without_modifiers(text))

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        """As the result is described. Costs no scan where the server merges the query."""
        try:
            fields = cast(MysqlSession, session).fields(
                f"SELECT * FROM ({query}) AS `source` LIMIT 0"  # noqa: S608 - a query that was parsed
            )
        except SourceError as error:
            if code_of(error) != _SAME_NAMES:
                raise
            raise SchemaError(
                f"the query has two columns of one name ({error}): give each another name with AS, or let option "
                "'duplicateNames' (number) do so"
            ) from None
        return tuple(Column(str(field.name), declared_of(field)) for field in fields)

    def result_names(self, session: Session, query: str) -> list[str]:
        """Not as a derived table, whose columns need different names."""
        return cast(MysqlSession, session).prepared_names(query)

    def arrow_type(self, column: Column) -> pa.DataType:
        if self.wide_as_text and is_wide_decimal(column.declared):
            return pa.string()
        kind = arrow_type(column.name, column.declared)
        if (
            pa.types.is_boolean(kind)
            and not self.one_is_bit
            and parts(column.declared)[0] == "tinyint"
        ):
            return pa.int8()
        return LOCAL if self.local and kind == INSTANT else kind

    def text_length(self, column: Column) -> str | None:
        if not isinstance(column, MysqlColumn):
            return None  # a query's result has no lengths in characters
        name, sizes, _ = parts(column.declared)
        if name in ("char", "varchar") and len(sizes) == 1:
            return sizes[0]
        return UNLIMITED if name in ("text", "mediumtext", "longtext") else None

    def compared(self, column: Column | None, text: str) -> str:
        """A TIMESTAMP in UTC: a session shows it in its zone, where an hour of each autumn may come twice."""
        is_instant = column is not None and parts(column.declared)[0] == "timestamp"
        if not is_instant or self.in_utc:
            return text
        seconds = f"UNIX_TIMESTAMP({text})"
        return f"IF({seconds} = 0, {text}, DATE_ADD(CAST('1970-01-01' AS DATETIME), INTERVAL {seconds} SECOND))"

    def selected(self, column: Column, kind: pa.DataType, text: str) -> str:
        name = parts(column.declared)[0]
        if not self.local:
            text = self.compared(column, text)
        if name in ("date", "datetime", "timestamp") and self.zero_dates:
            text = f"IF(CAST({text} AS CHAR) LIKE '0000-00-00%', NULL, {text})"
        if name == "bit":
            text = f"CAST({text} AS UNSIGNED)"
        elif name == "float" and not pa.types.is_string(kind):
            # As text a float has 6 digits; as a double it has all: findings/mariadb-float-as-text.sh
            text = f"({text} + 0e0)"
        if pa.types.is_string(kind) and name not in _PLAIN_TEXTS:
            return f"CAST({text} AS CHAR CHARACTER SET utf8mb4)"
        return text

    def statement(self, columns: Sequence[ReadColumn], origin: str) -> str:
        return f"SELECT {', '.join(selected(columns))} {origin}"

    def decode(
        self, raw: pa.RecordBatch, columns: Sequence[ReadColumn], schema: pa.Schema
    ) -> pa.RecordBatch:
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

    def read_as_null(self, table: Table | None, column: Column, text: str) -> str | None:
        """With `zeroDates` null a column that holds no NULL is read with some."""
        nulls = super().read_as_null(table, column, text)
        if not self.zero_dates or parts(column.declared)[0] not in (
            "date",
            "datetime",
            "timestamp",
        ):
            return nulls
        zero = (
            f"{text} < CAST('0001-01-01' AS DATETIME) AND CAST({text} AS CHAR) LIKE '0000-00-00%'"
        )
        return zero if nulls is None else f"{nulls} OR ({zero})"

    def beside_instant(self, column: Column, text: str, compare: str, micros: int) -> str | None:
        """By the session's clock within two days, which an index finds, and of these by the seconds since 1970."""
        if parts(column.declared)[0] != "timestamp":
            return None
        seconds, fraction = divmod(micros, 1_000_000)
        exact = f"UNIX_TIMESTAMP({text}) {compare} {seconds}.{fraction:06}"
        wide = seconds + (_CLOCK_SECONDS if compare.startswith("<") else -_CLOCK_SECONDS)
        if not 0 < wide < _LAST_SECOND:
            return exact
        return f"{text} {compare} FROM_UNIXTIME({wide}) AND {exact}"

    def is_unique(self, table: Table, name: str) -> bool:
        """Not of engines that hold a key unique in each of several places only."""
        assert isinstance(table, MysqlTable)
        return str(table.engine).lower() in LOCAL_ENGINES and super().is_unique(table, name)

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
        return table.keys if str(table.engine).lower() in LOCAL_ENGINES else ()

    def finds(self, table: Table, columns: Sequence[str]) -> bool:
        """An index of InnoDB's ends with the primary key, said or not."""
        assert isinstance(table, MysqlTable)
        prefix = tuple(columns)
        primary = table.primary if str(table.engine).lower() == "innodb" else ()
        return any(
            (*names, *(name for name in primary if name not in names))[: len(prefix)] == prefix
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

    hash_type = ("bigint unsigned", pa.uint64())

    def row_hash(self, columns: Sequence[tuple[Column, str]]) -> str | None:
        """A hash of the values' texts, which end with a comma or are quoted.

        A text that is longer than the server can make is NULL: such a row has a hash that no other row has. MariaDB's
        UUID() has the type UUID, and COALESCE would turn the text of each row into one, so CONCAT makes a text of it
        (findings/mariadb-coalesce-of-uuid.sh).
        """
        texts = [_hashed(column.declared, text) for column, text in columns]
        if None in texts:
            return None
        row = f"COALESCE(CONCAT({', '.join(map(str, texts))}), CONCAT(UUID()))"
        return f"CAST(CONV(LEFT(SHA2({row}, 256), 16), 16, 10) AS UNSIGNED)"

    def hash_facts(self, session: Session) -> object:
        """A server without a library of ciphers has no SHA2."""
        return session.value("SELECT SHA2('spark-channel', 256)")

    def range_number(self, text: str, edges: Sequence[int]) -> str:
        return f"INTERVAL({text}, {', '.join(map(str, edges))})"

    def split_key(self, table: Table) -> tuple[str, ...]:
        """The smallest unique key whose columns can be compared with literals in their own order."""
        kinds = {column.name: parts(column.declared)[0] for column in table.columns}
        return next(
            (key for key in table.unique if all(kinds[name] in _ORDERED for name in key)), ()
        )


def _hashed(declared: str, text: str) -> str | None:
    """A text that only equal values of a column have, in UTF-8; None = there is none that is known."""
    name, sizes, _ = parts(declared)
    if name in _PLAIN_TEXTS or name in ("enum", "set", "json"):
        value_text = f"CONCAT(QUOTE(CONVERT({text} USING utf8mb4)), ',')"
    elif name in _HASHED_BYTES:
        value_text = f"CONCAT(CONVERT(HEX({text}) USING utf8mb4), ',')"
    elif name in _HASHED_NUMBERS:
        value_text = f"CONCAT(CAST({text} AS CHAR CHARACTER SET utf8mb4), ',')"
    elif name == "bit":
        value_text = f"CONCAT(CAST({text} AS UNSIGNED), ',')"
    elif name in ("double", "float") and not sizes:
        value_text = (
            f"CONCAT(({text} + 0e0), ',')"  # as text a float has 6 digits; as a double it has all
        )
    elif name == "timestamp":
        value_text = f"CONCAT(UNIX_TIMESTAMP({text}), ',')"
    else:
        return None
    return f"IF({text} IS NULL, 'N', {value_text})"


def _without_modifiers(query: str) -> str:
    """Without words of a SELECT that change no rows, and that a server takes at the beginning of a statement only."""
    cuts, depth = [], 0
    tokens_of_query = sqlglot.tokenize(query, read="mysql")
    for number, token in enumerate(tokens_of_query):
        depth += {tokens.TokenType.L_PAREN: 1, tokens.TokenType.R_PAREN: -1}.get(
            token.token_type, 0
        )
        if depth or token.token_type is not tokens.TokenType.SELECT:
            continue
        end = token.end + 1
        for word in tokens_of_query[number + 1 :]:
            cuts += [
                (end + comment.start(), end + comment.end())
                for comment in _MODIFIER_COMMENT.finditer(query[end : word.start])
            ]
            if word.text.upper() in _MODIFIERS:
                cuts.append((word.start, word.end + 1))
            elif word.text.upper() not in _OTHER_MODIFIERS:
                break
            end = word.end + 1
    for begin, end in reversed(cuts):
        query = query[:begin] + query[end:]
    return query


def _sorted_as_written(query: str) -> str:
    """With a limit that cuts nothing: MariaDB sorts no query in parentheses without one, and an order decides what
    variables such as `@n := @n + 1` count.
    """
    kinds = tokens.TokenType
    tokens_of_query, depth, top = sqlglot.tokenize(query, read="mysql"), 0, set[Any]()
    behind = {kinds.LIMIT, kinds.FETCH, kinds.FOR, kinds.LOCK}
    for token in tokens_of_query:
        depth += {kinds.L_PAREN: 1, kinds.R_PAREN: -1}.get(token.token_type, 0)
        if depth == 0:
            top.add(token.token_type)
    counts = any(token.token_type is kinds.PARAMETER for token in tokens_of_query)
    if not counts or kinds.ORDER_BY not in top or top & behind:
        return query
    return f"{query} LIMIT {_NO_LIMIT}"


def _is_one_expression(query: str) -> bool:
    """Whether it begins as a query does, and has no semicolon and no parenthesis that would end an outer one."""
    try:
        tokens_of_query = sqlglot.tokenize(statements.text_of(query, "mysql"), read="mysql")
    except sqlglot.errors.SqlglotError:
        return False
    depth, kinds = 0, tokens.TokenType
    for token in tokens_of_query:
        depth += {kinds.L_PAREN: 1, kinds.R_PAREN: -1}.get(token.token_type, 0)
        if depth < 0 or token.token_type is kinds.SEMICOLON:
            return False
    return (
        depth == 0
        and bool(tokens_of_query)
        and tokens_of_query[0].token_type
        in (*(kinds.SELECT, kinds.WITH, kinds.VALUES, kinds.L_PAREN),)
    )


def name_places(session: Session, text: str) -> list[tuple[str, str]]:
    """(database, name) that `dbtable` may mean: the whole text as a name first, then `database.name`."""
    return places_of(text, str(session.value("SELECT DATABASE()") or ""))


def places_of(text: str, here: str) -> list[tuple[str, str]]:
    """As `name_places`; `here` is the session's database, "" = none."""
    return [full_name for full_name in name_readings(text, "mysql", here) if full_name[0]]


@dataclass(slots=True)
class CatalogRows:
    """What the catalog says of one table: its row, and those of its columns and indexes."""

    table: tuple[Any, ...]
    columns: list[tuple[Any, ...]] = field(default_factory=list)
    indexes: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, str]:
        return str(self.table[0]), str(self.table[1])


def of_tables(select: str, places: Sequence[tuple[str, str]], *behind: str) -> str:
    """Return `select` of these tables, one part of a UNION each: MariaDB opens one table for one schema and one name,
    and all tables for several of them.
    """
    return " UNION ALL ".join(
        f"{select} WHERE {' AND '.join((_there(*table), *behind))}" for table in places
    )


def parted(places: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """The tables of each statement that asks the catalog for several."""
    for begin in range(0, len(places), _AT_ONCE):
        yield places[begin : begin + _AT_ONCE]


def catalog_rows(
    session: Session, places: Sequence[tuple[str, str]], *, indexes: bool = True
) -> dict[tuple[str, str], CatalogRows]:
    """The tables and views of these that are there, by their places as they were asked for."""
    rows_of: dict[tuple[str, str], CatalogRows] = {}
    for some in parted(places):
        queries = [
            f"SELECT {number}, {_OF_TABLE} WHERE {_there(*table)}"
            for number, table in enumerate(some)
        ]
        for row in session.rows(" UNION ALL ".join(queries)):
            rows_of[some[int(row[0])]] = CatalogRows(row[1:])
    by_place = {rows.place: rows for rows in rows_of.values()}
    for some in parted(list(by_place)):
        for row in session.rows(f"{of_tables(_COLUMN_ROWS, some)} ORDER BY 1, 2, 3"):
            by_place[str(row[0]), str(row[1])].columns.append(row[3:])
    keyed = [table for table, rows in by_place.items() if "VIEW" not in str(rows.table[2])]
    for some in parted(keyed if indexes else []):
        for row in session.rows(f"{of_tables(_INDEX_ROWS, some)} ORDER BY 1, 2, 3, 4"):
            by_place[str(row[0]), str(row[1])].indexes.append((row[2], *row[4:]))
    return {table: by_place[rows.place] for table, rows in rows_of.items()}


def find_rows(session: Session, texts: Sequence[str]) -> list[CatalogRows | None]:
    """What each `dbtable` names, by few statements for all; None = nothing."""
    here = str(session.value("SELECT DATABASE()") or "")
    meant = [places_of(text, here) for text in texts]
    rows_of = catalog_rows(
        session, list(dict.fromkeys(table for readings in meant for table in readings))
    )
    return [
        next((rows_of[table] for table in readings if table in rows_of), None) for readings in meant
    ]


def table_named(session: Session, database: str, name: str) -> MysqlTable | None:
    """The table or view; None when there is none."""
    rows = catalog_rows(session, [(database, name)]).get((database, name))
    return None if rows is None else table_of(rows)


def declared_in(session: Session, database: str, name: str) -> Declared:
    """The columns of a table and their types, by one statement; () = it is not there."""
    rows = session.rows(of_tables(_COLUMN_ROWS, [(database, name)]))
    return tuple((column.name, column.declared) for column in _columns([row[3:] for row in rows]))


def table_of(rows: CatalogRows) -> MysqlTable:
    """The table as it is read and written."""
    database, name, kind, engine = (
        None if value is None else str(value) for value in rows.table[:4]
    )
    assert database is not None
    assert name is not None
    columns = _columns(rows.columns)
    if "VIEW" in str(kind):
        return MysqlTable(database, name, columns, is_view=True)
    indexes = _indexes(rows.indexes)
    unique = [index for index in indexes if index.is_unique]
    return MysqlTable(
        database,
        name,
        columns,
        unique=tuple(index.names for index in unique if not index.takes_null),
        primary=next((index.names for index in indexes if index.name == "PRIMARY"), ()),
        loose=tuple(index.names for index in unique if index.takes_null),
        engine=engine,
        keys=tuple(
            tuple(index.columns) for index in unique if index.is_ordered and not index.takes_null
        ),
        indexes=tuple(index.names for index in indexes if index.is_ordered and not index.descends),
    )


def _there(database: str, name: str) -> str:
    """The condition of a table's rows in the catalog."""
    literal = MysqlDialect().literal
    return f"table_schema = {literal(database, None)} AND table_name = {literal(name, None)}"


def state_of(session: Session, table: MysqlTable) -> str:
    """When the table was made or altered last, a hash of its columns, and its number where the login may ask for it.

    MySQL keeps the time when a table is renamed, or its partition emptied, and MariaDB when it is emptied; the number
    is another one then.
    """
    condition = _there(table.schema, table.name)
    rows_found = session.rows(
        "SELECT CONCAT(create_time), (SELECT SUM(CRC32(CONCAT(ordinal_position, ' ', column_name, ' ', column_type))) "  # noqa: S608 - quoted
        f"FROM information_schema.columns WHERE {condition}) FROM information_schema.tables WHERE {condition}"
    )
    if not rows_found or rows_found[0][0] is None or str(table.engine).lower() not in LOCAL_ENGINES:
        return ""
    created, columns = rows_found[0]
    return f"{created} {columns} {_number(session, table)}"


def _number(session: Session, table: MysqlTable) -> object:
    """A number that InnoDB gives only this table, with its partitions; None = not known."""
    if str(table.engine).lower() != "innodb":
        return None
    is_mariadb = cast(MysqlSession, session).is_mariadb
    schema, name = (MysqlDialect().literal(part, None) for part in (table.schema, table.name))
    statements = (
        [_MARIADB_TABLES.format(file=in_file_names(schema, name))]
        if is_mariadb
        else [sql.format(schema=schema, name=name) for sql in (_MYSQL_FILES, _MYSQL_TABLES)]
    )
    try:
        numbers = map(session.value, statements)
        return next((number for number in numbers if number is not None), None)
    except (SourceError, TargetError) as error:
        if is_away(error):
            raise
        return None  # without PROCESS


def in_file_names(schema: str, name: str) -> str:
    """The expression of InnoDB's name of a table (literals), which has letters as the names of files have them."""
    database, table = (f"CAST(CONVERT({part} USING filename) AS BINARY)" for part in (schema, name))
    return f"CONCAT({database}, '/', {table})"


def _lacking(grants: Sequence[str], rights: Sequence[Right]) -> MissingRights:
    """A right on some columns of a table counts as one on the table. Where a role is granted, nothing is sure."""
    granted, login = [], ""
    for grant in grants:
        if _OF_ROUTINES.match(grant):
            continue
        match = _GRANT.match(grant)
        if match is None:
            return MissingRights("", {})
        words, every, database, _, table, to = match.groups()
        login = login or to or ""
        names = {
            re.sub(r" ?\(.*?\)", "", word).strip() for word in re.split(r",(?![^(]*\))", words)
        }
        granted.append((names, None if every else _plain(database), table and _plain(table)))

    def has(right: Right) -> bool:
        return right.word == "USAGE" or any(
            {right.word, _ALL} & words
            and (database is None or _is_named(right.schema, database, is_pattern=not table))
            and (not table or table.casefold() == right.name.casefold())
            for words, database, table in granted
        )

    lacks = [right for right in rights if login and not has(right)]
    if all(right.word == "DROP" for right in lacks):
        lacks = []  # the write succeeds without, and warns that its staging stays
    places = (
        f"{quoted(right.schema)}.{quoted(right.name) if right.name else '*'}" for right in lacks
    )
    return MissingRights(login, dict(zip(lacks, places, strict=True)))


def _is_held_otherwise(session: Session, right: Right) -> bool:
    """Whether a login may have a right that its grants do not say, as those of an anonymous user on a database."""
    name = MysqlDialect().literal(right.schema, None)
    if not right.name:
        granted = " OR ".join(
            f"EXISTS (SELECT 1 FROM information_schema.{view} WHERE {condition})"  # noqa: S608 - quoted
            for view, condition in (
                ("user_privileges", "privilege_type <> 'USAGE'"),
                ("schema_privileges", f"{name} LIKE table_schema"),
                ("table_privileges", f"table_schema = {name}"),
                ("column_privileges", f"table_schema = {name}"),
            )
        )
        visible = f"SELECT 1 FROM information_schema.schemata WHERE schema_name = {name}"  # noqa: S608 - quoted
        return bool(session.rows(f"{visible} AND NOT ({granted})"))
    table = f"{quoted(right.schema)}.{quoted(right.name)}"
    statement = _EXPLAINED.get(right.word, "").format(table=table)
    if right.word == "UPDATE":
        condition = _there(right.schema, right.name)
        columns = f"SELECT column_name FROM information_schema.columns WHERE {condition} LIMIT 1"  # noqa: S608 - quoted
        for (column,) in session.rows(columns):
            statement = f"UPDATE {table} SET {quoted(str(column))} = NULL"  # noqa: S608 - quoted
    if not statement:
        return False
    try:
        session.rows(f"EXPLAIN {statement}")
    except (SourceError, TargetError) as error:
        if is_away(error):
            raise
        return code_of(error) not in _DENIED
    return True


def _plain(name: str) -> str:
    return name.replace("``", "`")


def _is_named(name: str, granted: str, *, is_pattern: bool) -> bool:
    """Whether a grant is on the database `name`; those on whole databases name it by a pattern of LIKE."""
    if not is_pattern:
        return name.casefold() == granted.casefold()
    parts = re.findall(r"\\.|.", granted, re.DOTALL)
    like = "".join({"%": ".*", "_": "."}.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(like, name, re.IGNORECASE | re.DOTALL) is not None


def _columns(rows: Sequence[tuple[Any, ...]]) -> tuple[MysqlColumn, ...]:
    columns = []
    for column, declared, nullable, default, extra, charset, collation, *_ in rows:
        notes = str(extra).upper()
        columns.append(
            MysqlColumn(
                str(column),
                _without_comments(str(declared)),
                nullable == "NO",
                default is not None or "AUTO_INCREMENT" in notes or "DEFAULT_GENERATED" in notes,
                "VIRTUAL" in notes or "STORED" in notes or "PERSISTENT" in notes,
                charset,
                collation,
                "AUTO_INCREMENT" in notes,
                "INVISIBLE" in notes,
            )
        )
    return tuple(columns)


def _without_comments(declared: str) -> str:
    """A type without what a server says beside it: `/* mariadb-5.3 */`, `/*M!100301 COMPRESSED*/`."""
    return _QUOTED_OR_COMMENT.sub(lambda match: match[1] or "", declared).strip()


@dataclass(slots=True)
class _Index:
    """`is_ordered`: it is not a hash, or an index of words."""

    name: str
    is_unique: bool
    columns: list[KeyColumn] = field(default_factory=list)
    takes_null: bool = False
    is_ordered: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def descends(self) -> bool:
        return any(column.descending for column in self.columns)


def _indexes(rows: Sequence[tuple[Any, ...]]) -> list[_Index]:
    """The indexes of whole columns: the primary key first, then the shortest."""
    indexes: dict[str, _Index] = {}
    partial = set()
    for name, non_unique, column, nullable, part, order, _ in rows:
        index = indexes.setdefault(str(name), _Index(str(name), not int(non_unique)))
        index.columns.append(KeyColumn(str(column), order == "D"))
        index.takes_null |= nullable == "YES"
        index.is_ordered &= order is not None
        if column is None or part is not None:
            partial.add(index.name)  # an expression, or a prefix of a column
    whole = (index for index in indexes.values() if index.name not in partial)
    return sorted(whole, key=lambda index: (index.name != "PRIMARY", len(index.columns)))


def _refuse_odd_time(value: str, column: Column) -> None:
    """A literal of a time that is none is NULL, behind which there are no rows.

    Raises:
        SourceError: 0000-00-00 and the like.
    """
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise SourceError(
            f"column {column.name!r} holds {value!r}, which is not a time, so the rows behind it cannot be found. As a "
            "key, read the table with statementSeconds=0, one statement for each split; as 'cursorColumn', leave such "
            "rows out with option 'where'"
        ) from None
