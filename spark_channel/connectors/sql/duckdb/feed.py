"""A DuckDB table as a change feed: the rows past a cursor column.

Whole numbers travel as numbers, all else as DuckDB's texts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_channel.clock import Clock
from spark_channel.connectors.contracts import Token
from spark_channel.connectors.feed import FeedOptions
from spark_channel.connectors.sql.cursor_feed import CursorFeed, CursorLook, missing_cursor
from spark_channel.connectors.sql.duckdb.column_types import arrow_type, is_text
from spark_channel.connectors.sql.duckdb.database import Session, is_locked, literal_cast
from spark_channel.connectors.sql.duckdb.source import ReadSource, read_source
from spark_channel.connectors.sql.duckdb.splits import cursor_conditions, mean_row_bytes
from spark_channel.connectors.sql.duckdb.tables import same_name
from spark_channel.errors import SourceError
from spark_channel.planning import Split

if TYPE_CHECKING:
    from spark_channel.connectors.sql.duckdb.reader import DuckdbReader

__all__ = ["DuckdbFeed"]

_LATE_SECONDS = 0.0
"""A file that one process writes can be read by no other: what is seen is committed, and nothing is on its way."""


class DuckdbFeed(CursorFeed):
    """What was there is cut by the cursor: row numbers do not outlast a write."""

    def __init__(self, reader: "DuckdbReader", options: FeedOptions, *, clock: Clock | None = None) -> None:
        if options.cursor_column is None:
            raise missing_cursor("DuckDB")
        self._duckdb = reader
        super().__init__(reader, options, late_seconds=_LATE_SECONDS, clock=clock)

    @contextmanager
    def looking(self) -> Iterator[CursorLook]:
        with self._duckdb.session() as session:
            yield _Look(session, read_source(session, self._duckdb.options))

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        return self.ranges_upto(upto, advice)

    def is_passing(self, error: BaseException) -> bool:
        return isinstance(error, SourceError) and is_locked(error)


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
        shown = is_text(declared) and declared != "VARCHAR"
        return None if shown else arrow_type(declared), declared

    def is_never_null(self, column: str) -> bool:
        about = next(each for each in self._source.all_columns if each.name == column)
        table = self._source.table
        return about.not_null and table is not None and not table.is_view

    def has_null(self, column: str) -> bool:
        return bool(
            self._session.rows(self._source.sql(["1"], [f"{self._sql(column)} IS NULL"]) + " LIMIT 1")
        )

    def highest(self, column: str) -> Any:
        return self._value(column, self._source.sql([_text(f"max({self._sql(column)})")]))

    def is_past(self, column: str, value: Any, highest: Any) -> bool:
        declared = self._source.declared(column)
        return bool(
            self._session.value(
                f"SELECT {literal_cast(str(value), declared)} > {literal_cast(str(highest), declared)}"
            )
        )

    def rows(self, within: dict[str, Any]) -> int:
        return int(
            self._session.value(self._source.sql(["count(*)"], cursor_conditions(self._source, within)))
        )

    def nth(self, within: dict[str, Any], place: int) -> Any:
        column = self._sql(within["column"])
        rows = self._source.sql([_text(column)], cursor_conditions(self._source, within))
        return self._value(within["column"], f"{rows} ORDER BY {column} LIMIT 1 OFFSET {int(place)}")

    def row_bytes(self) -> int:
        return mean_row_bytes(self._session, self._source)

    def age(self, column: str, value: Any) -> float | None:
        kind, declared = self.kind(column)
        if kind is None or not pa.types.is_timestamp(kind):
            return None
        since = literal_cast(str(value), declared)
        now = "now()" if kind.tz is not None else "(now() AT TIME ZONE 'UTC')"
        return max(0.0, float(self._session.value(f"SELECT epoch({now}) - epoch({since})")))

    def _sql(self, column: str) -> str:
        return self._source.column(column).sql("duckdb")

    def _value(self, column: str, sql: str) -> Any:
        found, kind = self._session.value(sql), self.kind(column)[0]
        return int(found) if found is not None and kind is not None and pa.types.is_integer(kind) else found


def _text(sql: str) -> str:
    return f"CAST({sql} AS VARCHAR)"
