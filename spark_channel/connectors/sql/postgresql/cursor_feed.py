"""A PostgreSQL table as a change feed: the rows past a cursor column. Values travel as the server's texts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from spark_channel.clock import Clock
from spark_channel.connectors.feed import FeedOptions
from spark_channel.connectors.sql.cursor_feed import CursorFeed, CursorLook
from spark_channel.connectors.sql.postgresql.catalog import same_name
from spark_channel.connectors.sql.postgresql.failures import is_gone
from spark_channel.connectors.sql.postgresql.read_session import ReadSession
from spark_channel.connectors.sql.postgresql.session import literal
from spark_channel.connectors.sql.postgresql.source import ReadSource, read_source
from spark_channel.connectors.sql.postgresql.splits import cursor_conditions, mean_row_bytes
from spark_channel.connectors.sql.statements import Node
from spark_channel.errors import SourceError

if TYPE_CHECKING:
    from spark_channel.connectors.sql.postgresql.reader import PostgresReader

__all__ = ["PostgresCursorFeed"]

_LATE_SECONDS = 10.0
"""Many sessions write at once here: a lower id may be committed this long after a higher one."""


class PostgresCursorFeed(CursorFeed):
    """See `CursorFeed`."""

    def __init__(self, reader: "PostgresReader", options: FeedOptions, *, clock: Clock | None = None) -> None:
        self._options = reader.options
        super().__init__(reader, options, late_seconds=_LATE_SECONDS, clock=clock)

    @contextmanager
    def looking(self) -> Iterator[CursorLook]:
        with ReadSession(self._options, failure=SourceError, purpose="changes") as session:
            yield _Look(session, read_source(session, self._options))

    def is_passing(self, error: BaseException) -> bool:
        return isinstance(error, SourceError) and is_gone(error)


class _Look(CursorLook):
    def __init__(self, session: ReadSession, source: ReadSource) -> None:
        self.label, self.schema = source.label, source.schema
        self.names = [column.name for column in source.all_columns]
        self._session = session
        self._source = source

    def spelled(self, name: str) -> str | None:
        return same_name(name, self.names)

    def kind(self, column: str) -> tuple[pa.DataType | None, str]:
        about = next(each for each in self._source.all_columns if each.name == column)
        return None if about.read.is_shown else about.kind, about.typname

    def is_never_null(self, column: str) -> bool:
        table = self._source.table
        return table is not None and any(each.name == column and each.not_null for each in table.columns)

    def has_null(self, column: str) -> bool:
        empty = exp.Is(this=self._source.column(column), expression=exp.Null())
        return bool(self._rows(self._source.select([exp.Literal.number(1)], [empty]).limit(1)))

    def highest(self, column: str) -> Any:
        return self._value(self._source.select([_text(self._most(column))]))

    def is_past(self, column: str, value: Any, highest: Any) -> bool:
        past = exp.GT(this=literal(value), expression=self._most(column))
        return bool(self._value(self._source.select([past])))

    def rows(self, within: dict[str, Any]) -> int:
        count = exp.Count(this=exp.Star())
        return int(self._value(self._source.select([count], cursor_conditions(self._source, within))))

    def nth(self, within: dict[str, Any], place: int) -> Any:
        column = self._source.column(within["column"])
        rows = self._source.select([_text(column)], cursor_conditions(self._source, within))
        return self._value(rows.order_by(column.copy()).limit(1).offset(place))

    def row_bytes(self) -> int:
        return mean_row_bytes(self._session, self._source)

    def age(self, column: str, value: Any) -> float | None:
        kind = next(each.kind for each in self._source.all_columns if each.name == column)
        if not pa.types.is_timestamp(kind):
            return None
        age = f"extract(epoch FROM now() - {literal(value).sql('postgres')}::timestamptz)"
        return float(self._session.value(f"SELECT ({age})::float8"))

    def _most(self, column: str) -> Node:
        return exp.func("max", self._source.column(column))

    def _rows(self, query: exp.Select) -> list[tuple[Any, ...]]:
        return self._session.rows(query.sql("postgres"))

    def _value(self, query: exp.Select) -> Any:
        return self._session.value(query.sql("postgres"))


def _text(value: Node) -> Node:
    return exp.cast(value, "text", dialect="postgres")
