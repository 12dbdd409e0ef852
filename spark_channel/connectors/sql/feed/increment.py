"""The rows of a table that are past a position in a growing column, as one condition of a read.

A position is one whole number, so that a target records it as the batch of a stream: the column's value, the days
or the microseconds since 1970.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.contract import Increment
from spark_channel.connectors.base.feed import FeedOptions
from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.feed.cursor_feed import CursorFeed, CursorQuery, Followed
from spark_channel.connectors.sql.read.cursor import CursorValue, cursor_literal, cursor_type
from spark_channel.errors import SchemaError
from spark_channel.plain_text import log_of

__all__ = ["next_increment"]

_log = log_of(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LARGEST = 2**62
"""A record of streams uses positions beyond it itself, so they are ambiguous."""


def next_increment(reader: Followed, column: str, after: int | None, *, again: bool) -> Increment:
    """The rows past `after`, up to what the table has now; None: all rows.

    `again`: rows at `after` are read again, also where none is past it, and those with the highest value are read now,
    since the write identifies rows. If not, a value that more rows may get is left for the next increment.

    Raises:
        OptionError: the table has no such column, or it does not grow. SchemaError: its values are no whole numbers,
            dates or times.
    """
    feed = CursorFeed(reader, FeedOptions(cursor_column=column))
    waits = reader.dialect.late_seconds
    with feed.looking() as look:
        name = reader.dialect.same_name(column, look.source.names) or column
        about = look.source.about(name)
        kind = cursor_type(look.source, name)
        if about is None or kind is None or not _has_positions(kind):
            declared = kind if about is None else about.declared
            raise SchemaError(
                f"update_key {name!r} of {look.source.label} is {declared}; it takes a column of whole numbers, dates "
                "or timestamps"
            )
        texts = reader.dialect.times_are_texts and pa.types.is_temporal(kind)
        if texts and not again:
            raise SchemaError(
                f"update_key {name!r} of {look.source.label} holds times as texts, of which several may mean one "
                "moment: give primary_key, so that rows may be read again, or a column of whole numbers"
            )
        highest = look.highest(name)
        end = highest if again else _whole(look, name, highest)
        upto = None if end is None else _position(end, kind, name)
        # Rows that got the highest value since are read with those that were copied: the write identifies them.
        ties = again and upto is not None and upto == after and not look.is_unique(name)
        if upto is None or (after is not None and upto <= after and not ties):
            went_back = after is not None and (upto is None or upto < after)
            return Increment(None, "", waits, went_back)
        quoted = reader.dialect.quoted(name)
        within = reader.dialect.beside_instant
        is_time = pa.types.is_timestamp(kind) and not texts
        last = within(about, quoted, "<=", upto) if is_time else None
        conditions = [last or f"{quoted} <= {cursor_literal(look.source, name, end)}"]
        if after is not None and texts:
            day = (_moment(after, kind) - timedelta(days=1)).date()
            conditions.append(f"{quoted} >= {reader.dialect.literal(day.isoformat(), about)}")
        elif after is not None:
            compare = ">=" if again else ">"
            first = within(about, quoted, compare, after) if is_time else None
            conditions.append(
                first or f"{quoted} {compare} {_literal(reader.dialect, after, kind, about)}"
            )
        # A row of them that is not committed yet is read by the next run.
        return Increment(upto, " AND ".join(conditions), 0.0 if ties else waits)


def _whole(look: CursorQuery, name: str, highest: CursorValue) -> CursorValue:
    """The last value that no more rows get. A position is one number, so it cannot name some rows of a value."""
    if highest is None or look.is_unique(name):
        return highest
    _log.info(
        "rows of %s with the highest value of update_key %r wait until a higher one is there: other rows may get that "
        "value, too, since no unique index is on that column alone",
        look.source.label,
        name,
    )
    return look.next_lower(name, highest)


def _has_positions(kind: pa.DataType) -> bool:
    whole = pa.types.is_decimal(kind) and kind.scale == 0
    return bool(
        whole or pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    )


def _position(value: int | float | str, kind: pa.DataType, name: str) -> int:
    """The position of a value as `CursorQuery.highest` returns it."""
    try:
        if str(value).endswith(" BC"):
            raise ValueError("a year before Python's")
        if pa.types.is_date(kind):
            return (date.fromisoformat(str(value)[:10]) - _EPOCH.date()).days
        if pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(str(value))
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return (moment - _EPOCH) // _MICROSECOND
        number = int(value)
    except ValueError:
        raise SchemaError(
            f"update_key {name!r} has a highest value that is not {kind}: correct it, or leave it out with where"
        ) from None
    if not -_LARGEST < number < _LARGEST:
        raise SchemaError(
            f"update_key {name!r} has the value {number}; it takes numbers up to 2**62"
        )
    return number


def _moment(position: int, kind: pa.DataType) -> datetime:
    days = pa.types.is_date(kind)
    return _EPOCH + (timedelta(days=position) if days else position * _MICROSECOND)


def _literal(dialect: Dialect, position: int, kind: pa.DataType, column: Column) -> str:
    value: Any = position
    if pa.types.is_date(kind):
        value = _moment(position, kind).date()
    elif pa.types.is_timestamp(kind):
        value = _moment(position, kind)
    return dialect.literal(dialect.bound(value, column), column)
