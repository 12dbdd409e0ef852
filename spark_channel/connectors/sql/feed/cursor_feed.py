"""A table of any database as a change feed: the rows past a cursor column.

`CursorFeed` decides what a range is; a `CursorQuery` asks the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow as pa

from spark_channel.arrow_schema import noted
from spark_channel.clock import Clock, utc_now
from spark_channel.connectors.base.feed import ChangeFeed, FeedLag, FeedLimit, FeedOptions, Token
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.feed.cursor_values import is_at_or_past, value_before
from spark_channel.connectors.sql.feed.row_width import RowWidth
from spark_channel.connectors.sql.read.cursor import (
    CursorPosition,
    CursorValue,
    LateRows,
    check_cursor_type,
    check_same_columns,
    cursor_bounds,
    cursor_conditions,
    cursor_literal,
    cursor_of,
    cursor_type,
    part_of,
    token_of,
)
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.read.splits import row_bytes
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import OptionError, SourceError, UnsupportedError
from spark_channel.plain_text import log_of
from spark_channel.planning import Split

__all__ = ["CURSOR", "CursorFeed", "CursorQuery"]

_log = log_of(__name__)


CURSOR = "cursor"
"""Where a split keeps its bounds, for the reader: those of `cursor_bounds`, and the part of the rows that its channel
has after a split: {"by": name, "part": number, "parts": number}."""
_MOST_KEYS = 1000
"""So many rows with the highest value are named by their keys in a position, which is written to each checkpoint."""
_NEWEST_SECONDS = 1.0
"""A clock that counts seconds may give a time again for so long: a row that has it may change and keep it."""
_START = CursorPosition(None)
_SPLIT_ROWS = 100_000
"""A range of fewer rows than twice this is one split."""
_MOST_SPLITS = 16
_WHOLE: Mapping[str, Any] = MappingProxyType({})
_ROW_BYTES = 100
"""The assumed width of a row where the database cannot report it."""


class CursorQuery:
    """One look at the table, on a connection that is open. Cursor values are numbers or texts, as tokens hold them.

    `within` is what `cursor_conditions` takes.
    """

    def __init__(self, session: Session, source: ReadSource) -> None:
        self.source = source
        self._session = session

    def is_never_null(self, column: str) -> bool:
        """Whether the present table itself forbids NULL in the column."""
        about, table = self.source.about(column), self.source.table
        return (
            about is not None
            and table is not None
            and self.source.dialect.is_never_null(table, about)
        )

    def has_null(self, column: str) -> bool:
        """Whether a row is read with NULL there."""
        about, text = self.source.about(column), self.source.column(column)
        assert about is not None
        nulls = self.source.dialect.read_as_null(self.source.table, about, text)
        return nulls is not None and self._has_rows(nulls)

    def highest(self, column: str) -> CursorValue:
        """The highest value; None when there are no rows."""
        highest = self._token(column, f"MAX({self.source.column(column)})")
        value_found: CursorValue = self._session.value(self.source.sql([highest]))
        return value_found

    def is_unique(self, column: str) -> bool:
        """Whether the present table itself keeps two rows from one value of the column."""
        table = self.source.table
        return table is not None and self.source.dialect.is_unique(table, column)

    def next_lower(self, column: str, value: CursorValue) -> CursorValue:
        """The highest value below `value`; None when there is none."""
        if value is None:
            return None
        below = f"{self.source.column(column)} < {cursor_literal(self.source, column, value)}"
        highest = self._token(column, f"MAX({self.source.column(column)})")
        value_found: CursorValue = self._session.value(self.source.sql([highest], [below]))
        return value_found

    def keys(self, column: str, value: CursorValue, key: str) -> list[Any]:
        """The keys of the rows with `value`, and at most one more than `_MOST_KEYS`."""
        equal = f"{self.source.column(column)} = {cursor_literal(self.source, column, value)}"
        query = self.source.sql([self.source.column(key)], [equal])
        rows = self._session.rows(self.source.dialect.limited(query, _MOST_KEYS + 1))
        return [key_value for (key_value,) in rows]

    def is_past(self, column: str, value: CursorValue, highest: CursorValue) -> bool:
        """Whether `value` comes after `highest`, in the database's order."""
        if value == highest:
            return False
        if isinstance(value, int) and isinstance(highest, int):
            return value > highest
        literal = cursor_literal(self.source, column, value)
        past = self.source.sql(
            [f"CASE WHEN {literal} > MAX({self.source.column(column)}) THEN 1 ELSE 0 END"]
        )
        return bool(self._session.value(past))

    def rows(self, within: dict[str, Any]) -> int:
        """The number of rows in the range."""
        return int(
            self._session.value(
                self.source.sql(["COUNT(*)"], cursor_conditions(self.source, within))
            )
        )

    def nth(self, within: dict[str, Any], row: int) -> CursorValue:
        """The value of row `row`, from 0, of those within in the cursor's order; None when there are fewer."""
        column = self.source.column(within["column"])
        rows = self.source.sql(
            [self._token(within["column"], column)], cursor_conditions(self.source, within)
        )
        query = self.source.dialect.limited(f"{rows} ORDER BY {column}", 1, row)
        value_found: CursorValue = self._session.value(query)
        return value_found

    def row_bytes(self) -> int:
        """Arrow bytes of a row, about."""
        return row_bytes(self._session, self.source)[0] or _ROW_BYTES

    def age(self, column: str, value: CursorValue) -> float | None:
        """Seconds since `value`, for a column of times, which count as UTC where they have no zone; else None."""
        kind = cursor_type(self.source, column)
        if kind is None or not pa.types.is_timestamp(kind) or not isinstance(value, str):
            return None
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            return None
        time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return max(0.0, (utc_now() - time).total_seconds())

    def _token(self, column: str, text: str) -> str:
        kind = cursor_type(self.source, column)
        return text if kind is None else self.source.dialect.cursor_text(text, kind)

    def _has_rows(self, condition: str) -> bool:
        query = self.source.sql(["1"], [condition])
        return bool(self._session.rows(self.source.dialect.limited(query, 1)))


class Followed(Protocol):
    """A reader whose table can be followed."""

    dialect: Dialect

    def looking(self) -> AbstractContextManager[tuple[Session, ReadSource]]:
        """A session, and the present state of the source."""
        ...

    def split(self, advice: int) -> list[Split]: ...

    def read(self, split: Split) -> Iterator[pa.RecordBatch]: ...


class CursorFeed(ChangeFeed):
    """Rows whose `cursorColumn` has grown past the token. Ranges are the same rows forever, as long as no
    session changes a row behind the token without moving its cursor, which no reader could see.

    While a value is the highest one, the next row may have it too, unless the column is unique. So a position names the
    rows with the highest value of another column by their keys, where these are whole numbers, and rows that get that
    value later follow. Where they are not, or too many, those rows wait until a higher value is seen.

    A channel is split by a whole number in the primary key, so that all versions of a row stay in one channel, in
    order. Each part reads the range of the cursor, and returns its own rows.
    """

    def __init__(
        self, reader: Followed, options: FeedOptions, *, clock: Clock | None = None
    ) -> None:
        if options.cursor_column is None:
            raise OptionError(
                f"a {reader.dialect.product} table is read as a stream by a column that only grows, "
                "such as an id or the time of the last change: name it with option 'cursorColumn'",
                option="cursorColumn",
            )
        self.reader = reader
        self._wanted = options.cursor_column
        self._order = options.cursor_order
        self._width = RowWidth(clock)
        self._has_warned = False
        with self.looking() as look:
            self._column = self._check(look)
            self._schema = look.source.schema
            self._lengths = look.source.text_lengths
            self._kind = cursor_type(look.source, self._column)
            self._by = _dividing(look)
            self._label = look.source.label
            self._key = None if look.is_unique(self._column) else _whole_number_key(look)
        seconds = options.late_seconds
        wait = reader.dialect.late_seconds if seconds is None else seconds
        self._late = LateRows(wait if self._key is None else max(wait, _NEWEST_SECONDS), clock)

    @contextmanager
    def looking(self) -> Iterator[CursorQuery]:
        """A query of the table's present state."""
        with self.reader.looking() as (session, source):
            yield CursorQuery(session, source)

    @property
    def waits_seconds(self) -> float:
        return self._late.seconds

    def schema(self) -> pa.Schema:
        return noted(self._schema, self._lengths)

    def earliest(self) -> list[Token]:
        return [token_of(_START)]

    def now(self) -> list[Token]:
        with self.looking() as look:
            highest = look.highest(self._column)
            end = self._complete(look, highest)
        self._late.see(highest, end)
        return [token_of(end)]

    def settled(self, upto: Sequence[Token]) -> None:
        for token in upto:
            self._late.settle(cursor_of(token, self._column))

    def at(self, time: datetime) -> list[Token]:
        with self.looking() as look:
            about = look.source.about(self._column)
        assert about is not None
        return [
            token_of(CursorPosition(value_before(self.reader.dialect, about, self._kind, time)))
        ]

    def reaches(self, token: Token, end: Token) -> bool:
        here, end_position = cursor_of(token, self._column), cursor_of(end, self._column)
        if here.value == end_position.value and here.key is not None:
            return end_position.key is not None and not set(here.keys) < set(end_position.keys)
        return is_at_or_past(self._column, self._kind, here.value, end_position.value)

    def divide(self, token: Token) -> list[Token]:
        position = cursor_of(token, self._column)
        if self._by is None:
            raise UnsupportedError(
                f"a channel of {self._label} cannot be split: its rows are divided by a whole number in the primary "
                "key that is never NULL, and the table has no such column. "
                "Make a tunnel for each part instead, each with its own 'where'"
            )
        part = part_of(token) or {"by": self._by, "part": 0, "parts": 1}
        return [
            {**token_of(position), "by": part["by"], "part": number, "parts": 2 * part["parts"]}
            for number in (part["part"], part["part"] + part["parts"])
        ]

    def before(
        self, after: Token, limit: FeedLimit, end: Token, upto: Token | None = None
    ) -> Token | None:
        position = super().before(after, limit, end, upto)
        if position != after:
            return position
        passed, last = self._late.passed, cursor_of(end, self._column)
        is_there = passed != last.value or last.key is not None
        if is_there and self.reaches(token_of(CursorPosition(passed)), end):
            position = self.latest(after, limit, end)  # the rows that wait come after `end`
            return None if position == after else position
        if not part_of(after):
            return after
        # The last rows may be of other parts: where all parts together are at the end, this one is.
        whole = self.latest(token_of(cursor_of(after, self._column)), FeedLimit(), upto)
        return None if self.reaches(whole, end) else after

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        start, part = cursor_of(after, self._column), part_of(after)
        with self.looking() as look:
            self._check(look)
            check_same_columns(self._schema, look.source.schema, look.source.label)
            self._check_part(look, part)
            highest = look.highest(self._column)
            self._check_not_past(look, start, highest)
            if upto is None:
                complete = self._complete(look, highest)
                passed = self._late.see(highest, complete)
                end = complete if passed == highest else self._complete(look, passed)
            else:
                end = cursor_of(upto, self._column)
            if end.value is None or end == start:
                return after
            rows = self._rows_of(limit, look)
            # Rows of one value stay together.
            cut = None if rows is None else look.nth(self._within(start, end, part), rows - 1)
            cut = None if cut == end.value else cut
            if cut is None and look.nth(self._within(start, end, part), 0) is None:
                return after
        if upto is not None:
            self.settled([upto])
        return token_of(end if cut is None else CursorPosition(cut), after)

    def changes(self, after: Token, upto: Token) -> list[Split]:
        start, end, part = (
            cursor_of(after, self._column),
            cursor_of(upto, self._column),
            part_of(after),
        )
        with self.looking() as look:
            self._check_part(look, part)
            count = look.rows(self._within(start, end, part))
            if not count:  # a query without a known position is checked only here
                self._check_not_past(look, start, look.highest(self._column))
                return []
            return self._cut(look, start, end, count, min(_MOST_SPLITS, count // _SPLIT_ROWS), part)

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        end = cursor_of(upto[0], self._column)
        within = self._within(_START, end)
        if not self.reader.dialect.moves_rows:
            splits = self.reader.split(advice)
            return [
                Split({**split.params, CURSOR: within}, split.rows, split.nbytes)
                for split in splits
            ]
        with self.looking() as look:
            count = look.rows(within)
            return self._cut(look, _START, end, count, min(advice, count)) if count else []

    def is_passing(self, error: BaseException) -> bool:
        return isinstance(error, SourceError) and self.reader.dialect.is_passing(error)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self.reader.read(split)

    def lag(self, token: Token) -> FeedLag:
        start, part = cursor_of(token, self._column), part_of(token)
        with self.looking() as look:
            self._check_part(look, part)
            highest = look.highest(self._column)
            present = self._within(start, CursorPosition(highest), part)
            rows = 0 if highest is None else look.rows(present)
            if not rows:
                return FeedLag(0, 0, 0.0)
            value = start.value
            seconds = None if value is None else look.age(self._column, value)
            return FeedLag(rows, rows * self._width.measured(look.row_bytes), seconds)

    def _complete(self, look: CursorQuery, highest: CursorValue) -> CursorPosition:
        """The last position that no later row can come before, when `highest` is the highest value in the table."""
        if highest is None or look.is_unique(self._column):
            return CursorPosition(highest)
        if self._key is not None:
            keys = look.keys(self._column, highest, self._key)
            if len(keys) <= _MOST_KEYS and all(isinstance(key, int) for key in keys):
                below = look.next_lower(self._column, highest)
                if keys:
                    return CursorPosition(highest, self._key, tuple(sorted(keys)), below)
                return CursorPosition(below)  # its rows left
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "rows of %s with the highest value of column %r, now %r, wait until a higher one is there, since other "
                "rows may get that value, too: no unique index is on that column alone, and %s",
                self._label,
                self._column,
                highest,
                "no primary key of one whole number distinguishes these rows"
                if self._key is None
                else f"they are more than {_MOST_KEYS}",
            )
        return CursorPosition(look.next_lower(self._column, highest))

    def _cut(
        self,
        look: CursorQuery,
        start: CursorPosition,
        end: CursorPosition,
        count: int,
        parts: int,
        part: Mapping[str, Any] = _WHOLE,
    ) -> list[Split]:
        width, parts = self._width.measured(look.row_bytes), max(1, parts)
        edges = [start]
        for _ in range(parts - 1):
            edge = look.nth(self._within(edges[-1], end, part), count // parts - 1)
            if edge is None or edge in (end.value, edges[-1].value):
                break
            edges.append(CursorPosition(edge))
        edges.append(end)
        rows_of_one = count // (len(edges) - 1)
        return [
            Split(
                {"kind": "all", "row_bytes": width, CURSOR: self._within(*pair, part)},
                rows_of_one,
                rows_of_one * width,
            )
            for pair in pairwise(edges)
        ]

    def _rows_of(self, limit: FeedLimit, look: CursorQuery) -> int | None:
        return limit.most_rows(1 if limit.nbytes is None else self._width.measured(look.row_bytes))

    def _within(
        self, after: CursorPosition, upto: CursorPosition, part: Mapping[str, Any] = _WHOLE
    ) -> dict[str, Any]:
        return {**cursor_bounds(self._column, after, upto), **part}

    def _check_part(self, look: CursorQuery, part: Mapping[str, Any]) -> None:
        """Check that the table has the column that its channels were split by, never NULL."""
        if part and _divides(look, part["by"]) is None:
            raise SourceError(
                f"the channel was split by column {part['by']!r} of {look.source.label}, which is no longer a whole "
                "number that is never NULL: rows would belong to no channel. Reset the tunnel"
            )

    def _check(self, look: CursorQuery) -> str:
        """The cursor column as the table spells it."""
        source = look.source
        name = source.dialect.same_name(self._wanted, source.names)
        if name is None:
            raise OptionError(
                f"option 'cursorColumn' names {self._wanted!r}, which {source.label} does not have; "
                f"it has {', '.join(source.names)}",
                option="cursorColumn",
                got=self._wanted,
                takes=", ".join(source.names),
            )
        about = source.about(name)
        assert about is not None
        kind = cursor_type(source, name)
        check_cursor_type(name, kind, about.declared if kind is None else "", order=self._order)
        if look.has_null(name):
            raise OptionError(
                f"option 'cursorColumn' names {name!r}, which is read as NULL in at least one row of {source.label}: "
                "such a row would never be read. "
                "Fill it, or leave those rows out with option 'where'",
                option="cursorColumn",
                got=name,
            )
        return name

    def _check_not_past(
        self, look: CursorQuery, start: CursorPosition, highest: CursorValue
    ) -> None:
        if start.value is None or highest is None:
            return
        if start.key is not None and start.below == highest:
            return  # the rows with the highest value were deleted
        if look.is_past(self._column, start.value, highest):
            raise SourceError(
                f"the checkpoint is at {self._column} = {start.value!r}, and the highest value in the table "
                f"is {highest!r}: the offset is from the future, rows were removed or restored, "
                "or the column does not only grow. Reset the tunnel, or begin with a new checkpoint directory"
            )


def _dividing(look: CursorQuery) -> str | None:
    """The column of the primary key that rows can be dealt by; None = there is none."""
    primary = () if look.source.table is None else look.source.table.primary
    return next(
        (name for name_of_key in primary if (name := _divides(look, name_of_key)) is not None), None
    )


def _whole_number_key(look: CursorQuery) -> str | None:
    """The column that is the primary key, where that is one of whole numbers; None = there is none."""
    primary = () if look.source.table is None else look.source.table.primary
    name = _divides(look, primary[0]) if len(primary) == 1 else None
    return name if name is not None and look.is_unique(name) else None


def _divides(look: CursorQuery, name: str) -> str | None:
    about = look.source.about(name)
    kind = None if about is None else cursor_type(look.source, name)
    return (
        name
        if kind is not None and pa.types.is_integer(kind) and look.is_never_null(name)
        else None
    )
