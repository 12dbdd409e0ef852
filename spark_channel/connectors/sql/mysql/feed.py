"""A MySQL table as a change feed: the rows past a cursor column.

Whole numbers travel as numbers, all else as the server's texts: times in UTC, decimals with all their digits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_channel.clock import Clock
from spark_channel.connectors.feed import FeedOptions
from spark_channel.connectors.sql.cursor_feed import CursorFeed, CursorLook, missing_cursor
from spark_channel.connectors.sql.mysql.column_types import arrow_type, parts
from spark_channel.connectors.sql.mysql.session import LostConnectionError, Session, is_away
from spark_channel.connectors.sql.mysql.source import ReadSource, read_source
from spark_channel.connectors.sql.mysql.splits import cursor_conditions, cursor_literal, mean_row_bytes
from spark_channel.connectors.sql.mysql.tables import same_name
from spark_channel.errors import SchemaError, SourceError

if TYPE_CHECKING:
    from spark_channel.connectors.sql.mysql.reader import MysqlReader

__all__ = ["MysqlFeed"]

_LATE_SECONDS = 10.0
"""AUTO_INCREMENT hands out ids before the rows are committed: a lower one may come to light this long after."""
_UNORDERED = ("enum", "set", "json", "bit", "time")
"""Read as texts or numbers whose order is not the column's own."""


class MysqlFeed(CursorFeed):
    """See `CursorFeed`."""

    def __init__(self, reader: "MysqlReader", options: FeedOptions, *, clock: Clock | None = None) -> None:
        if options.cursor_column is None:
            raise missing_cursor("MySQL")
        self._options = reader.options
        super().__init__(reader, options, late_seconds=_LATE_SECONDS, clock=clock)

    @contextmanager
    def looking(self) -> Iterator[CursorLook]:
        try:
            with Session(self._options, SourceError, patient=False) as session:
                yield _Look(session, read_source(session, self._options))
        except LostConnectionError as error:
            raise SourceError(error.text) from error

    def is_passing(self, error: BaseException) -> bool:
        return isinstance(error, SourceError) and is_away(error)


class _Look(CursorLook):
    def __init__(self, session: Session, source: ReadSource) -> None:
        self.label, self.schema = source.label, source.schema
        self.names = [column.name for column in source.all_columns]
        self._session = session
        self._source = source

    def spelled(self, name: str) -> str | None:
        return same_name(name, self.names)

    def kind(self, column: str) -> tuple[pa.DataType | None, str]:
        declared = self._source.declared(column)
        if parts(declared)[0] in _UNORDERED:
            return None, declared
        try:
            return arrow_type(column, declared), declared
        except SchemaError:
            return None, declared

    def is_never_null(self, column: str) -> bool:
        about = next(each for each in self._source.all_columns if each.name == column)
        table = self._source.table
        return about.not_null and table is not None and not table.is_view

    def has_null(self, column: str) -> bool:
        empty = f"{self._source.column(column)} IS NULL"
        return bool(self._session.rows(self._source.sql(["1"], [empty]) + " LIMIT 1"))

    def highest(self, column: str) -> Any:
        return self._session.value(
            self._source.sql([self._shown(column, f"MAX({self._source.column(column)})")])
        )

    def is_past(self, column: str, value: Any, highest: Any) -> bool:
        literal = cursor_literal(self._session, self._source, column, value)
        return bool(
            self._session.value(self._source.sql([f"{literal} > MAX({self._source.column(column)})"]))
        )

    def rows(self, within: dict[str, Any]) -> int:
        return int(self._session.value(self._source.sql(["COUNT(*)"], self._conditions(within))))

    def nth(self, within: dict[str, Any], place: int) -> Any:
        column = self._source.column(within["column"])
        rows = self._source.sql([self._shown(within["column"], column)], self._conditions(within))
        return self._session.value(f"{rows} ORDER BY {column} LIMIT {int(place)}, 1")

    def row_bytes(self) -> int:
        return mean_row_bytes(self._session, self._source)

    def age(self, column: str, value: Any) -> float | None:
        kind = self.kind(column)[0]
        if kind is None or not pa.types.is_timestamp(kind):
            return None
        literal = cursor_literal(self._session, self._source, column, value)
        age = self._session.value(f"SELECT TIMESTAMPDIFF(MICROSECOND, {literal}, UTC_TIMESTAMP(6))")
        return max(0.0, int(age) / 1e6)

    def _conditions(self, within: dict[str, Any]) -> list[str]:
        return cursor_conditions(self._session, self._source, within)

    def _shown(self, column: str, sql: str) -> str:
        kind = self.kind(column)[0]
        plain = kind is not None and (pa.types.is_integer(kind) or pa.types.is_string(kind))
        return sql if plain else f"CAST({sql} AS CHAR)"
