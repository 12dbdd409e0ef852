"""A table of any database as a change feed: the rows past a cursor column.

`CursorFeed` decides what a range is; a `CursorLook`, one for each database, asks the table.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import pyarrow as pa

from spark_channel.clock import Clock
from spark_channel.connectors.contracts import Reader, Token
from spark_channel.connectors.feed import ChangeFeed, FeedLag, FeedLimit, FeedOptions
from spark_channel.connectors.sql.cursor import (
    LateRows,
    check_cursor_type,
    check_same_columns,
    cursor_of,
    token_of,
)
from spark_channel.connectors.sql.feed_width import RowWidth
from spark_channel.errors import OptionError, SourceError
from spark_channel.planning import Split

__all__ = ["CURSOR", "CursorFeed", "CursorLook", "missing_cursor"]

CURSOR = "cursor"
"""Where a split keeps its bounds, for the reader: {"column": name, "after": value, "upto": value}."""
_SPLIT_ROWS = 100_000
"""A range of fewer rows than twice this is one split."""
_MOST_SPLITS = 16


class CursorLook(ABC):
    """One look at the table, on a connection that is open. Cursor values are numbers or texts, as tokens hold them.

    `within` is {"column": name, "after": value or None for all, "upto": value or None for no row}.
    """

    label: str
    """The table, for people."""
    schema: pa.Schema
    """The columns that are read."""
    names: Sequence[str]
    """All columns of the table."""

    @abstractmethod
    def spelled(self, name: str) -> str | None:
        """The column `name` as the table spells it; None when it has none such."""

    @abstractmethod
    def kind(self, column: str) -> tuple[pa.DataType | None, str]:
        """A column's type, None for one whose values have no order; and what the database calls it."""

    @abstractmethod
    def is_never_null(self, column: str) -> bool:
        """Whether the table itself keeps NULL out of the column, as it stands now."""

    @abstractmethod
    def has_null(self, column: str) -> bool:
        """Whether a row has NULL there."""

    @abstractmethod
    def highest(self, column: str) -> Any:
        """The highest value; None when there are no rows."""

    @abstractmethod
    def is_past(self, column: str, value: Any, highest: Any) -> bool:
        """Whether `value` comes after `highest`, in the database's order."""

    @abstractmethod
    def rows(self, within: dict[str, Any]) -> int:
        """How many rows there are within."""

    @abstractmethod
    def nth(self, within: dict[str, Any], place: int) -> Any:
        """The value of row `place`, from 0, of those within in the cursor's order; None when there are fewer."""

    @abstractmethod
    def row_bytes(self) -> int:
        """Arrow bytes of a row, about."""

    @abstractmethod
    def age(self, column: str, value: Any) -> float | None:
        """Seconds since `value`, for a column of times; else None."""


class CursorFeed(ChangeFeed):
    """Rows whose `cursorColumn` has grown past the token. Ranges are the same rows for ever, as long as nobody
    changes a row that is behind the token without moving its cursor, which no reader could see.
    """

    def __init__(
        self, reader: Reader, options: FeedOptions, *, late_seconds: float, clock: Clock | None = None
    ) -> None:
        assert options.cursor_column is not None
        self.reader = reader
        self._wanted = options.cursor_column
        self._order = options.cursor_order
        late = late_seconds if options.late_seconds is None else options.late_seconds
        self._late = LateRows(late, clock)
        self._width = RowWidth(clock)
        with self.looking() as look:
            self._column = self._check(look)
            self._schema = look.schema

    @abstractmethod
    def looking(self) -> AbstractContextManager[CursorLook]:
        """A look at the table as it is now."""

    def schema(self) -> pa.Schema:
        return self._schema

    def earliest(self) -> list[Token]:
        return [token_of(None)]

    def now(self) -> list[Token]:
        with self.looking() as look:
            highest = look.highest(self._column)
        self._late.wait()
        return [token_of(highest)]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        start = cursor_of(after, self._column)
        with self.looking() as look:
            self._check(look)
            check_same_columns(self._schema, look.schema, look.label)
            highest = look.highest(self._column)
            self._check_not_past(look, start, highest)
            end = self._late.see(highest) if upto is None else cursor_of(upto, self._column)
            if end is None or end == start:
                return after
            rows = self._rows_of(limit, look)
            # Rows of one value stay together.
            cut = None if rows is None else look.nth(self._within(start, end), rows - 1)
            if cut is None and look.nth(self._within(start, end), 0) is None:
                return after
        return token_of(end if cut is None else cut)

    def changes(self, after: Token, upto: Token) -> list[Split]:
        start, end = cursor_of(after, self._column), cursor_of(upto, self._column)
        with self.looking() as look:
            count = look.rows(self._within(start, end))
            if not count:  # a query that was not told where it stood learns it only here
                self._check_not_past(look, start, look.highest(self._column))
                return []
            return self._cut(look, start, end, count, min(_MOST_SPLITS, count // _SPLIT_ROWS))

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        within = self._within(None, cursor_of(upto[0], self._column))
        return [
            Split({**split.params, CURSOR: within}, split.rows, split.nbytes)
            for split in self.reader.split(advice)
        ]

    def ranges_upto(self, upto: Sequence[Token], advice: int) -> list[Split]:
        """`base` for a reader whose own splits do not outlast a write to the table: ranges of the cursor."""
        end = cursor_of(upto[0], self._column)
        with self.looking() as look:
            count = look.rows(self._within(None, end))
            return self._cut(look, None, end, count, min(advice, count)) if count else []

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self.reader.read(split)

    def lag(self, token: Token) -> FeedLag:
        start = cursor_of(token, self._column)
        with self.looking() as look:
            highest = look.highest(self._column)
            rows = 0 if highest is None else look.rows(self._within(start, highest))
            if not rows:
                return FeedLag(0, 0, 0.0)
            seconds = None if start is None else look.age(self._column, start)
            return FeedLag(rows, rows * self._width.of(look.row_bytes), seconds)

    def _cut(self, look: CursorLook, start: Any, end: Any, count: int, parts: int) -> list[Split]:
        width, parts = self._width.of(look.row_bytes), max(1, parts)
        edges = [start]
        for _ in range(parts - 1):
            found = look.nth(self._within(edges[-1], end), count // parts - 1)
            if found is None or found in (end, edges[-1]):
                break
            edges.append(found)
        edges.append(end)
        each = count // (len(edges) - 1)
        return [
            Split({"kind": "all", "row_bytes": width, CURSOR: self._within(*pair)}, each, each * width)
            for pair in pairwise(edges)
        ]

    def _rows_of(self, limit: FeedLimit, look: CursorLook) -> int | None:
        rows = [] if limit.rows is None else [limit.rows]
        if limit.nbytes is not None:
            rows.append(max(1, limit.nbytes // self._width.of(look.row_bytes)))
        return min(rows, default=None)

    def _within(self, after: Any, upto: Any) -> dict[str, Any]:
        return {"column": self._column, "after": after, "upto": upto}

    def _check(self, look: CursorLook) -> str:
        """The cursor column as the table spells it."""
        name = look.spelled(self._wanted)
        if name is None:
            raise OptionError(
                f"option 'cursorColumn' names {self._wanted!r}, which {look.label} does not have; "
                f"it has {', '.join(look.names)}",
                option="cursorColumn", got=self._wanted, takes=", ".join(look.names),
            )  # fmt: skip
        check_cursor_type(name, *look.kind(name), order=self._order)
        if not look.is_never_null(name) and look.has_null(name):
            raise OptionError(
                f"option 'cursorColumn' names {name!r}, which is NULL in at least one row of "
                f"{look.label}: such a row would never be read. Fill it, or leave those rows out with "
                "option 'where'",
                option="cursorColumn", got=name,
            )  # fmt: skip
        return name

    def _check_not_past(self, look: CursorLook, start: Any, highest: Any) -> None:
        if start is None or highest is None:
            return
        if look.is_past(self._column, start, highest):
            raise SourceError(
                f"the checkpoint stands at {self._column} = {start!r}, and the highest value in the table is "
                f"{highest!r}: the offset is from the future, rows were removed or restored, or the column "
                "does not only grow. Reset the tunnel, or begin with a new checkpoint directory"
            )


def missing_cursor(database: str) -> OptionError:
    """What to say when the option is not there."""
    return OptionError(
        f"a {database} table is read as a stream by a column that only grows, such as an id or the time of "
        "the last change: name it with option 'cursorColumn'",
        option="cursorColumn",
    )
