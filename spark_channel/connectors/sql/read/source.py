"""Table or query of a read, and its cursor column."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from spark_channel.arrow_schema import TextLengths
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.feed import Token
from spark_channel.connectors.base.types import Node, exp
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.catalog import Column, ReadColumn, Table
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.options import SqlReadOptions
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import (
    custom_kinds,
    known_name,
    missing_table,
    pick_columns,
)
from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.plain_text import log_of

__all__ = [
    "CursorPosition",
    "CursorValue",
    "LateRows",
    "ReadSource",
    "check_cursor_type",
    "check_same_columns",
    "column_types",
    "cursor_bounds",
    "cursor_conditions",
    "cursor_literal",
    "cursor_of",
    "cursor_type",
    "part_of",
    "read_source",
    "token_of",
]


# Resolves the table or query of a read, its columns with their Arrow types, and its predicate.


_KNOWN = frozenset({"duckdb", "mysql", "postgres"})
"""Dialects of which it is known how names without quotes are read."""


@dataclass(frozen=True)
class ReadSource:
    """`columns` are those delivered, `all_columns` those there are. `table` is None for a query.

    `origin` follows FROM, and `name` qualifies its columns.
    """

    dialect: Dialect
    origin: str
    name: str
    table: Table | None
    all_columns: tuple[Column, ...]
    columns: tuple[ReadColumn, ...] = ()
    condition: str | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.kind) for column in self.columns])

    @cached_property
    def text_lengths(self) -> TextLengths:
        """How long the texts of its columns may be, where their declarations have a length."""
        found = {}
        for read in self.columns:
            about = self.about(read.name) if pa.types.is_string(read.kind) else None
            length = None if about is None else self.dialect.text_length(about)
            if length is not None:
                found[read.name] = length
        return found

    @cached_property
    def same_table(self) -> str | None:
        """The condition under which each statement reads the table that was looked up; None = without one."""
        return None if self.table is None else self.dialect.same_table(self.table)

    @property
    def label(self) -> str:
        """The source, for people."""
        if self.table is None:
            return "the query"
        return f"{'view' if self.table.is_view else 'table'} {self.table.label!r}"

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.all_columns]

    def column(self, name: str) -> str:
        """A column in a statement, in the form that is compared with literals."""
        return self.dialect.compared(self.about(name), self.bare(name))

    def bare(self, name: str) -> str:
        """A column unchanged. Qualified: SQLite reads a quoted name without such a column as a text."""
        return f"{self.dialect.quoted(self.name)}.{self.dialect.quoted(name)}"

    def about(self, name: str) -> Column | None:
        """The declaration of a column; None if it has none."""
        return next((column for column in self.all_columns if column.name == name), None)

    def read_as(self, name: str) -> ReadColumn | None:
        """How a column is read; None if it is not read."""
        return next((column for column in self.columns if column.name == name), None)

    def ordered(self, name: str) -> str:
        """A column as what its ranges are made of."""
        return self.dialect.ordered(self.about(name), self.column(name))

    def is_null(self, name: str) -> str:
        """The condition of the rows with NULL in a column; NOT before it is that of all others."""
        return self.dialect.is_null(self.about(name), self.column(name))

    def literal(self, name: str, value: object) -> str:
        """A value that is compared with a column."""
        return self.dialect.literal(value, self.about(name))

    def sql(self, expressions: Sequence[str], conditions: Sequence[str] = ()) -> str:
        """SELECT of texts that this package made of quoted names and literals, under the user's condition."""
        return f"SELECT {', '.join(expressions)} {self.behind(conditions)}"

    def behind(self, conditions: Sequence[str] = ()) -> str:
        """FROM the source under the user's condition and `conditions`."""
        all_of = (self.same_table, self.condition, *conditions)
        wanted = [f"({each})" for each in all_of if each is not None]
        return (
            f"FROM {self.origin} WHERE {' AND '.join(wanted)}" if wanted else f"FROM {self.origin}"
        )


def read_source(
    session: Session, dialect: Dialect, options: SqlReadOptions, table: Table | None = None
) -> ReadSource:
    """Work out what `options` read from the database of `session`. `table`: what `dbtable` names, if that is known.

    Raises:
        SourceError: no such table. SchemaError: columns that cannot be carried, or told apart.
        OptionError: `where`, `columns`, `query` or `customSchema` that do not fit the source.
    """
    source = _find(session, dialect, options) if table is None else _of_table(dialect, table)
    what = "the query" if options.dbtable is None else repr(options.dbtable)
    if not source.all_columns:
        raise SourceError(
            f"{what} in {session.place} has no columns: name a table or a query with columns"
        )
    twice = sorted({name for name in source.names if source.names.count(name) > 1})
    if twice:
        raise SchemaError(
            f"{what} has two columns of one name: {', '.join(twice)}; give each another name with AS, or let option "
            "'duplicateNames' (number) do so"
        )
    picked = pick_columns(source.all_columns, options.columns, dialect.same_name)
    custom = custom_kinds(options.custom_schema, source.names, dialect.same_name)
    source = replace(source, condition=_condition(source, options))
    columns = _read_columns(session, source, picked, custom)
    if getattr(options, "floats_as", "number") == "text":
        shown = {each.name: pa.string() for each in columns if pa.types.is_floating(each.kind)}
        columns = _read_columns(session, source, picked, {**custom, **shown})
    return replace(source, columns=columns)


def column_types(
    session: Session, dialect: Dialect, options: SqlReadOptions
) -> dict[str, pa.DataType]:
    """The types of all columns that have one, by name.

    Raises:
        SourceError: no such table.
    """
    source = _find(session, dialect, options)
    found = {}
    for column in source.all_columns:
        try:
            bare = source.bare(column.name)
            (kind,) = dialect.types(session, [(column, bare)], source.behind())
        except SchemaError:
            continue
        if kind is not None:
            found[column.name] = kind
    return found


def _read_columns(
    session: Session,
    source: ReadSource,
    picked: Sequence[Column],
    custom: Mapping[str, pa.DataType],
) -> tuple[ReadColumn, ...]:
    dialect = source.dialect
    unchosen = [(each, source.bare(each.name)) for each in picked if each.name not in custom]
    own = dialect.types(session, unchosen, source.behind()) if unchosen else []
    kinds = {**{each.name: kind for (each, _), kind in zip(unchosen, own, strict=True)}, **custom}
    found = []
    for column in picked:
        kind = kinds[column.name]
        assert kind is not None, f"{dialect.product} gives column {column.name!r} no type"
        text = dialect.selected(column, kind, source.bare(column.name))
        found.append(ReadColumn(column.name, column.declared, kind, text))
    return tuple(found)


def _find(session: Session, dialect: Dialect, options: SqlReadOptions) -> ReadSource:
    if options.query is not None:
        query = dialect.derived(options.query)
        if options.duplicate_names == "number":
            query = _numbered(session, dialect, query)
        return _of_query(session, dialect, query, "source")
    assert options.dbtable is not None
    table = dialect.find_table(session, options.dbtable)
    if table is not None:
        return _of_table(dialect, table)
    if options.dbtable.lstrip().startswith("("):
        found = statements.source_query(options.dbtable, dialect.sql, "dbtable")
        return _of_query(
            session, dialect, statements.inside(options.dbtable, dialect.sql), found.name
        )
    names = dialect.table_names(session)
    lacks = dialect.lacking_on_hidden(session, options.dbtable)
    hides = dialect.hides_tables
    raise missing_table(options.dbtable, names, session.place, may_hide=hides, lacks=lacks)


def _of_table(dialect: Dialect, table: Table) -> ReadSource:
    origin = ".".join(dialect.quoted(part) for part in (table.schema, table.name) if part)
    if dialect.alias is None:
        return ReadSource(dialect, origin, table.name, table, table.columns)
    origin = f"{origin} AS {dialect.quoted(dialect.alias)}"
    return ReadSource(dialect, origin, dialect.alias, table, table.columns)


def _of_query(session: Session, dialect: Dialect, query: str, name: str) -> ReadSource:
    text = statements.text_of(query)
    origin = f"({text}) AS {dialect.quoted(name)}"
    return ReadSource(dialect, origin, name, None, dialect.describe(session, text))


def _numbered(session: Session, dialect: Dialect, query: str) -> str:
    """`query`, whose later columns of one name get another; unchanged where each has its own."""
    made: list[str] = []
    names = dialect.result_names(session, query)
    for number, name in enumerate(names):
        wanted = name
        while dialect.same_name(wanted, made) is not None or (wanted != name and wanted in names):
            wanted = f"{wanted}_{number}"
        made.append(wanted)
    if made == names:
        return query
    # Names before a WITH apply by position, in every database; a derived table of MariaDB takes none.
    columns = ", ".join(dialect.quoted(each) for each in made)
    return f"WITH spark_channel_source ({columns}) AS ({query}) SELECT * FROM spark_channel_source"  # noqa: S608 - a query that was parsed


def _condition(source: ReadSource, options: SqlReadOptions) -> str | None:
    """The user's condition, its columns spelled as the database does."""
    if options.where is None:
        return None
    dialect, table, names = source.dialect, source.table, source.names
    hidden = () if table is None else dialect.hidden_columns(table)
    own = {source.name.lower(), (options.dbtable or "").lower().rpartition(".")[2]}
    own |= set() if table is None else {table.name.lower()}

    as_written = dialect.sql in _KNOWN

    def bound(column: "exp.Column") -> Node:
        nonlocal as_written
        qualifier, wanted = column.table, column.name
        if qualifier:
            as_written = as_written and _names_source(source, column)
        if qualifier and qualifier.lower() not in own:
            wanted = f"{qualifier}.{wanted}"
        elif wanted.lower() in hidden and not (column.this.quoted and wanted not in hidden):
            return _node(source, wanted.lower())
        elif dialect.whole_rows and _is_whole_row(source, column):
            return column
        name = known_name(wanted, names, dialect.same_name, "where")
        about = source.about(name)
        assert about is not None
        if not column.this.quoted:
            as_written = as_written and _is_read_as(dialect, wanted, name)
        dialect.check_condition(about, column)
        return _node(source, name)

    tree = statements.condition(options.where, dialect.sql, "where")
    made = statements.bind_columns(tree, bound)
    return statements.text_of(options.where) if as_written else made.sql(dialect.sql)


def _names_source(source: ReadSource, column: "exp.Column") -> bool:
    """Whether the database itself takes the qualifier of `column` for the source."""
    table = column.args["table"]
    folds = source.dialect.sql == "postgres" and not table.quoted
    return bool((column.table.lower() if folds else column.table) == source.name)


def _is_whole_row(source: ReadSource, column: "exp.Column") -> bool:
    """Whether `column` is the source's name, or `name.*`: a row as one value."""
    if column.table:
        return isinstance(column.this, exp.Star)
    folds = source.dialect.sql == "postgres" and not column.this.quoted
    name = column.name.lower() if folds else column.name
    return bool(name == source.name and source.dialect.same_name(name, source.names) is None)


def _is_read_as(dialect: Dialect, wanted: str, name: str) -> bool:
    """Whether the database itself takes `wanted`, without quotes, for column `name`."""
    return wanted.lower() == name if dialect.sql == "postgres" else wanted.lower() == name.lower()


def _node(source: ReadSource, name: str) -> "exp.Column":
    column, table = (
        statements.identifier(source.dialect.spelled(each)) for each in (name, source.name)
    )
    return exp.column(column, table=table)


# A cursor column: its type, its conditions, and the wait for late rows.
#
# A row that is committed after rows with a higher value were read would be missed. So a value is
# read only
# when it was the highest one at least `late_seconds` before: who took a lower one had that long to
# commit.


_log = log_of(__name__)

_NAME = "cursor"
_KEYS = {"key", "keys", "below"}
_PART = {"by", "part", "parts"}
_ADVICE = "it is damaged, or of another source. Reset the tunnel, or begin with a new checkpoint directory"
_LOGGED_SECONDS = 1.0
"""A wait of this many seconds or more is logged."""


CursorValue = int | float | str | None
"""A value of a cursor column as a token holds it; None = no row."""


class CursorPosition(NamedTuple):
    """All rows up to cursor value `value` (None: no row). With `keys`, only these of the rows that have `value` itself:
    those whose whole number in column `key` is one of them. `below` is then the highest value below `value`, which is
    the highest one once all these rows have left.
    """

    value: CursorValue
    key: str | None = None
    keys: tuple[int, ...] = ()
    below: CursorValue = None


def token_of(position: CursorPosition, part: Token | None = None) -> Token:
    """The token of a position. `part`: of the same part of the rows as this token."""
    value, key, keys, below = position
    return {
        _NAME: value,
        **({} if key is None else {"key": key, "keys": list(keys), "below": below}),
        **({} if part is None else part_of(part)),
    }


def part_of(token: Token) -> dict[str, Any]:
    """Which rows the token's channel has, after a split: those whose column `by` leaves `part` when it is divided by
    `parts`; {} for all."""
    return {name: token[name] for name in token if name in _PART}


def cursor_of(token: Token, column: str) -> CursorPosition:
    """The position in a token.

    Raises:
        SourceError: no token of such a feed.
    """
    part, keys = part_of(token), {name: token[name] for name in token if name in _KEYS}
    whole = set(token) == {_NAME, *part, *keys}
    if (
        not whole
        or not isinstance(token[_NAME], int | float | str | None)
        or (part and not _is_part(part))
        or (keys and not _is_keys(keys))
    ):
        raise SourceError(
            f"the checkpoint {dict(token)!r} is not a position in cursor column {column!r}: {_ADVICE}"
        )
    return CursorPosition(
        token[_NAME], keys.get("key"), tuple(keys.get("keys", ())), keys.get("below")
    )


def _is_keys(keys: Mapping[str, Any]) -> bool:
    return (
        isinstance(keys.get("key"), str)
        and isinstance(keys.get("keys"), list)
        and all(isinstance(each, int) for each in keys["keys"])
        and isinstance(keys.get("below"), int | float | str | None)
    )


def _is_part(part: Mapping[str, Any]) -> bool:
    return (
        set(part) == _PART
        and isinstance(part["by"], str)
        and isinstance(part["part"], int)
        and isinstance(part["parts"], int)
        and 0 <= part["part"] < part["parts"]
    )


def check_cursor_type(
    name: str, kind: pa.DataType | None, declared: str = "", order: str | None = None
) -> None:
    """Check that the column is of a type whose values have one order, and no value beside it.

    `kind` is None for what Arrow has no type for; `declared` is what its database calls it. `order` is option
    `cursorOrder`: the order of texts is taken only when it is asked for.

    Raises:
        OptionError: another type.
    """
    if kind is not None and (
        pa.types.is_integer(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or (pa.types.is_string(kind) and order == "text")
    ):
        return
    if kind is not None and pa.types.is_string(kind):
        raise OptionError(
            f"option 'cursorColumn' names {name!r} of type {declared or kind}: texts are compared "
            "by the database's collation, where '1000' comes before '999', so new rows with such values "
            "would never be read. Name a column of numbers, dates or timestamps; or set cursorOrder=text "
            "if each new value comes after all earlier ones in that order, as ULIDs, UUIDv7 and ISO times do",
            option="cursorColumn",
            got=name,
        )
    raise OptionError(
        f"option 'cursorColumn' names {name!r} of type {declared or kind}, whose values have no order "
        "that rows can be read by; it takes a column of whole numbers, decimals, dates or timestamps",
        option="cursorColumn",
        got=name,
    )


def cursor_type(source: ReadSource, name: str) -> pa.DataType | None:
    """The type by whose order the rows can be followed; None for a column that cannot be followed."""
    about = source.about(name)
    return None if about is None else source.dialect.cursor_type(about, source.read_as(name))


def cursor_literal(source: ReadSource, name: str, value: CursorValue) -> str:
    """A cursor value that is compared with its column.

    Raises:
        SourceError: no value of such a column, or one that nothing compares with.
    """
    if not source.dialect.is_cursor_value(value, cursor_type(source, name)):
        about = source.about(name)
        raise SourceError(
            f"the checkpoint {value!r} is not a position in cursor column {name!r} "
            f"({'not there' if about is None else about.declared}): {_ADVICE}"
        )
    return source.dialect.key_literal(value, source.about(name))


def cursor_bounds(column: str, after: CursorPosition, upto: CursorPosition) -> dict[str, Any]:
    """What `cursor_conditions` takes, for the rows of a range."""
    found: dict[str, Any] = {"column": column, "after": after.value, "upto": upto.value}
    for name, position in (("without", after), ("only", upto)):
        if position.key is not None:
            found[name] = [position.value, position.key, list(position.keys)]
    return found


def cursor_conditions(source: ReadSource, within: Mapping[str, Any]) -> list[str]:
    """Rows after `within["after"]` (None: all), up to `within["upto"]` (None: no row), of `within["column"]`; of them
    those of a part, where `within` names one.

    Of the rows that have the first value, `without` leaves out those with some keys; of those that have the last one,
    `only` takes no others: each is [value, column of the key, keys].
    """
    if within["upto"] is None:
        return ["1 = 0"]  # the table was empty
    name = within["column"]
    column, without, only = source.column(name), within.get("without"), within.get("only")
    found = [
        f"{column} {compare} {cursor_literal(source, name, bound)}"
        for compare, bound in ((">=" if without else ">", within["after"]), ("<=", within["upto"]))
        if bound is not None
    ]
    for chosen, compare in ((without, "NOT IN"), (only, "IN")):
        if chosen is not None:
            value, key, keys = chosen
            listed = ", ".join(map(str, keys))
            found.append(
                f"{column} <> {cursor_literal(source, name, value)} OR {source.column(key)} {compare} ({listed})"
            )
    if "by" in within:
        parts, remainder = within["parts"], source.dialect.remainder
        left = remainder(source.column(within["by"]), parts)
        found.append(f"{remainder(f'({left} + {parts})', parts)} = {within['part']}")
    return found


_NEW_COLUMNS = "Begin a new stream, or reset the tunnel, to take its new columns"


def check_same_columns(
    was: pa.Schema, now: pa.Schema, source: str, advice: str = _NEW_COLUMNS
) -> None:
    """Check that a source has the columns that its stream began with.

    Raises:
        SchemaError: names the first column that differs.
    """
    for field in was:
        place = now.get_field_index(field.name)
        if place < 0:
            raise SchemaError(
                f"{source} has lost column {field.name!r} since its stream began. {advice}"
            )
        if not now.field(place).type.equals(field.type):
            raise SchemaError(
                f"column {field.name!r} of {source} is {now.field(place).type} now, and was {field.type} "
                f"when its stream began. {advice}"
            )
    for field in now:
        if was.get_field_index(field.name) < 0:
            raise SchemaError(
                f"{source} has a new column {field.name!r} since its stream began. {advice}"
            )


class LateRows:
    """Up to which value all rows are there: while a higher one was the highest for long enough.

    Plain data except the clock, which a copy creates again.
    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self.seconds = seconds
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._seen: deque[tuple[float, CursorValue, CursorPosition]] = deque()
        self.passed: CursorValue = None
        """The highest value for long enough: no later row has a lower one."""

    def see(self, highest: CursorValue, complete: CursorPosition) -> CursorValue:
        """Note the highest value now, and the position up to which rows can be read when that is old enough.

        Returns `passed`, None when not known yet.
        """
        now = self._clock.now()
        if not self._seen or self._seen[-1][1:] != (highest, complete):
            self._seen.append((now, highest, complete))
        while len(self._seen) > 1 and self._seen[1][0] <= now - self.seconds:
            self._seen.popleft()
        time, passed, _ = self._seen[0]
        if time <= now - self.seconds:
            self.passed = passed
        return self.passed

    def settle(self, position: CursorPosition) -> None:
        """Wait until all rows up to `position`, a `complete` one that was seen, are there."""
        now = self._clock.now()
        since = next((time for time, _, complete in self._seen if complete == position), now)
        wait = since + self.seconds - now
        if wait <= 0:
            return
        if wait >= _LOGGED_SECONDS:
            _log.warning(
                "waiting %.0f s for rows that other sessions commit after ones with a higher cursor value; "
                "if one session at a time writes, set lateSeconds=0",
                wait,
            )
        self._clock.sleep(wait)

    def __getstate__(self) -> Sequence[object]:
        return [self.seconds]

    def __setstate__(self, state: Sequence[object]) -> None:
        self.__init__(state[0])  # type: ignore[misc] # as pickle makes it
