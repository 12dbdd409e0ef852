"""Cursor values in tokens, compared without the database; and the value just before a time. Pure."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.read.cursor import CursorValue
from spark_channel.errors import OptionError, SourceError

__all__ = ["is_at_or_past", "value_before"]


_TICK = timedelta(microseconds=1)


def value_before(dialect: Dialect, column: Column, kind: pa.DataType | None, time: datetime) -> Any:
    """The last cursor value before `time`: rows after it are of `time` or later.

    A column without a time zone counts as UTC.

    Raises:
        OptionError: the column does not hold dates or timestamps.
    """
    if kind is not None and pa.types.is_date(kind):
        return dialect.bound((time.astimezone(UTC) - _TICK).date(), column)
    if kind is None or not pa.types.is_timestamp(kind):
        raise OptionError(
            f"'cursorColumn' {column.name!r} is {kind or column.declared}, which is not a time, "
            "so a position cannot be given by a time. Use 'startingOffsets' and 'endingOffsets', "
            'as in {"cursor": 1000}, or a cursor column of dates or timestamps',
            option="cursorColumn",
            got=column.name,
            takes="a column of dates or timestamps",
        )
    return dialect.bound(time.astimezone(UTC) - _TICK, column)


def is_at_or_past(
    name: str, kind: pa.DataType | None, value: CursorValue, end: CursorValue
) -> bool:
    """Whether `value` is `end` or comes after it; None comes before everything.

    Raises:
        OptionError: texts, whose order only the database knows. SourceError: no value of such a column.
    """
    if value == end:
        return True
    if value is None or end is None:
        return end is None
    if kind is not None and pa.types.is_string(kind):
        raise OptionError(
            f"option 'endingOffsets' does not go with cursorColumn {name!r} of texts, whose order only the database "
            "knows: name a column of numbers, dates or timestamps",
            option="endingOffsets",
        )
    try:
        return bool(_comparable(kind, value) >= _comparable(kind, end))
    except (ValueError, TypeError, InvalidOperation) as error:
        raise SourceError(
            f"{value!r} and {end!r} are not both positions in cursor column {name!r} ({kind}): {error}"
        ) from error


def _comparable(kind: pa.DataType | None, value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    if kind is not None and pa.types.is_date(kind):
        return date.fromisoformat(value[:10])
    if kind is not None and pa.types.is_timestamp(kind):
        time = datetime.fromisoformat(value)
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return Decimal(value)
