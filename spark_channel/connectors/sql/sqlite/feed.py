"""A SQLite table as a change feed: the rows past a cursor column."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from spark_channel.clock import Clock, utc_now
from spark_channel.connectors.feed import FeedOptions
from spark_channel.connectors.sql.cursor import range_conditions
from spark_channel.connectors.sql.cursor_feed import CursorFeed, CursorLook, missing_cursor
from spark_channel.connectors.sql.sqlite.column_types import arrow_type
from spark_channel.connectors.sql.sqlite.database import Session
from spark_channel.connectors.sql.sqlite.source import ReadSource
from spark_channel.connectors.sql.sqlite.splits import mean_row_bytes
from spark_channel.connectors.sql.sqlite.tables import same_name
from spark_channel.connectors.sql.statements import Node
from spark_channel.errors import SourceError

if TYPE_CHECKING:
    from spark_channel.connectors.sql.sqlite.reader import SqliteReader

__all__ = ["SqliteFeed"]

_LATE_SECONDS = 0.0
"""One writes at a time, so rows come to light in the order of their ids."""


class SqliteFeed(CursorFeed):
    """Values travel as SQLite holds them: numbers as numbers, times as texts."""

    def __init__(self, reader: "SqliteReader", options: FeedOptions, *, clock: Clock | None = None) -> None:
        if options.cursor_column is None:
            raise missing_cursor("SQLite")
        self._sqlite = reader
        self._texts: dict[tuple[str, bool, bool], str] = {}
        super().__init__(reader, options, late_seconds=_LATE_SECONDS, clock=clock)

    @contextmanager
    def looking(self) -> Iterator[CursorLook]:
        with self._sqlite.looking() as (session, source):
            yield _Look(session, source, self._texts)

    def is_passing(self, error: BaseException) -> bool:
        text = str(error.__cause__ or error)
        return isinstance(error, SourceError) and ("is locked" in text or "is busy" in text)


class _Look(CursorLook):
    """`texts` are statements that were built before: to build one costs more than to run it."""

    def __init__(
        self, session: Session, source: ReadSource, texts: dict[tuple[str, bool, bool], str]
    ) -> None:
        self.label, self.schema = source.label, source.schema
        self.names = [column.name for column in source.all_columns]
        self._session = session
        self._source = source
        self._texts = texts

    def spelled(self, name: str) -> str | None:
        return same_name(name, self.names)

    def kind(self, column: str) -> tuple[pa.DataType | None, str]:
        declared = next(each.declared for each in self._source.all_columns if each.name == column)
        read = next((each.kind for each in self._source.columns if each.name == column), None)
        kind = arrow_type(declared) if read is None else read
        return kind, declared if kind is None else ""

    def is_never_null(self, column: str) -> bool:
        about = next(each for each in self._source.all_columns if each.name == column)
        table = self._source.table
        return about.not_null or (table is not None and table.rowid_alias() == column)

    def has_null(self, column: str) -> bool:
        empty = exp.Is(this=self._source.column(column), expression=exp.Null())
        query = self._source.select([exp.Literal.number(1)], [empty]).limit(1)
        return bool(self._session.rows(query.sql("sqlite")))

    def highest(self, column: str) -> Any:
        key = "highest", True, True
        if key not in self._texts:
            query = self._source.select([exp.func("max", self._source.column(column))])
            self._texts[key] = query.sql("sqlite")
        return self._session.value(self._texts[key])

    def is_past(self, column: str, value: Any, highest: Any) -> bool:
        return bool(self._session.value("SELECT ? > ?", (value, highest)))

    def rows(self, within: dict[str, Any]) -> int:
        sql = self._sql(
            "rows", within, lambda conditions: self._source.select([exp.Count(this=exp.Star())], conditions)
        )
        return int(self._session.value(sql, _bounds(within)))

    def nth(self, within: dict[str, Any], place: int) -> Any:
        def build(conditions: list[Node]) -> exp.Select:
            column = self._source.column(within["column"])
            rows = self._source.select([column], conditions).order_by(column.copy())
            return rows.limit(1).offset(exp.Placeholder())

        return self._session.value(self._sql("nth", within, build), [*_bounds(within), place])

    def row_bytes(self) -> int:
        return mean_row_bytes(self._session, self._source, None)

    def age(self, column: str, value: Any) -> float | None:
        """Zone-less times count as UTC."""
        kind = self.kind(column)[0]
        if kind is None or not pa.types.is_timestamp(kind) or not isinstance(value, str):
            return None
        try:
            time = datetime.fromisoformat(value.removesuffix("Z"))
        except ValueError:
            return None
        return max(0.0, (utc_now() - time.replace(tzinfo=UTC)).total_seconds())

    def _sql(self, what: str, within: dict[str, Any], build: Callable[[list[Node]], exp.Select]) -> str:
        key = what, within["after"] is None, within["upto"] is None
        if key not in self._texts:
            conditions, _ = range_conditions(self._source.column(within["column"]), within)
            self._texts[key] = build(conditions).sql("sqlite")
        return self._texts[key]


def _bounds(within: dict[str, Any]) -> list[Any]:
    """The parameters of `range_conditions`."""
    return [bound for bound in (within["after"], within["upto"]) if bound is not None]
