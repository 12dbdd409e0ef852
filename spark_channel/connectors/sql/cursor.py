"""A cursor column: its type, its conditions, and the wait for late rows.

A row that is committed after rows with a higher value were read would be missed. So a value is read only
when it was the highest one at least `late_seconds` before: who took a lower one had that long to commit.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.split_reader import Token
from spark_channel.connectors.sql.source import ReadSource
from spark_channel.errors import OptionError, SchemaError, SourceError

__all__ = [
    "LateRows",
    "check_cursor_type",
    "check_same_columns",
    "cursor_conditions",
    "cursor_literal",
    "cursor_of",
    "cursor_type",
    "part_of",
    "token_of",
]

_log = logging.getLogger(__name__)

_NAME = "cursor"
_PART = {"by", "part", "parts"}
_ADVICE = "it is damaged, or of another source. Reset the tunnel, or begin with a new checkpoint directory"
_TOLD_SECONDS = 1.0
"""A wait that someone notices is told."""


def token_of(value: Any, part: Token | None = None) -> Token:
    """The token of a cursor value; None: before the first row. `part`: of the same part of the rows as this token."""
    return {_NAME: value, **({} if part is None else part_of(part))}


def part_of(token: Token) -> dict[str, Any]:
    """Which rows the token's channel has, after a split: those whose column `by` leaves `part` when it is divided by
    `parts`; {} for all."""
    return {name: token[name] for name in token if name in _PART}


def cursor_of(token: Token, column: str) -> Any:
    """The cursor value in a token.

    Raises:
        SourceError: no token of such a feed.
    """
    part = part_of(token)
    whole = set(token) == {_NAME, *part} and isinstance(token[_NAME], int | float | str | None)
    if not whole or (part and not _is_part(part)):
        raise SourceError(
            f"the checkpoint {dict(token)!r} is not a position in cursor column {column!r}: {_ADVICE}"
        )
    return token[_NAME]


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
    """Hold the column to be of a type whose values have one order, and no value beside it.

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
            option="cursorColumn", got=name,
        )  # fmt: skip
    raise OptionError(
        f"option 'cursorColumn' names {name!r} of type {declared or kind}, whose values have no order "
        "that rows can be read by; it takes a column of whole numbers, decimals, dates or timestamps",
        option="cursorColumn", got=name,
    )  # fmt: skip


def cursor_type(source: ReadSource, name: str) -> pa.DataType | None:
    """The type by whose order the rows can be followed; None for a column that cannot be followed."""
    about = source.about(name)
    return None if about is None else source.dialect.cursor_type(about, source.read_as(name))


def cursor_literal(source: ReadSource, name: str, value: Any) -> str:
    """A cursor value that is compared with its column.

    Raises:
        SourceError: no value of such a column.
    """
    if not source.dialect.is_cursor_value(value, cursor_type(source, name)):
        about = source.about(name)
        raise SourceError(
            f"the checkpoint {value!r} is not a position in cursor column {name!r} "
            f"({'not there' if about is None else about.declared}): {_ADVICE}"
        )
    return source.literal(name, value)


def cursor_conditions(source: ReadSource, within: Mapping[str, Any]) -> list[str]:
    """Rows after `within["after"]` (None: all), up to `within["upto"]` (None: no row), of `within["column"]`; of them
    those of a part, where `within` names one.
    """
    if within["upto"] is None:
        return ["1 = 0"]  # the table was empty
    name = within["column"]
    found = [
        f"{source.column(name)} {compare} {cursor_literal(source, name, bound)}"
        for compare, bound in ((">", within["after"]), ("<=", within["upto"]))
        if bound is not None
    ]
    if "by" in within:
        parts, remainder = within["parts"], source.dialect.remainder
        left = remainder(source.column(within["by"]), parts)
        found.append(f"{remainder(f'({left} + {parts})', parts)} = {within['part']}")
    return found


_NEW_COLUMNS = "Begin a new stream, or reset the tunnel, to take its new columns"


def check_same_columns(was: pa.Schema, now: pa.Schema, source: str, advice: str = _NEW_COLUMNS) -> None:
    """Hold a source to have the columns that its stream began with.

    Raises:
        SchemaError: names the first column that differs.
    """
    for field in was:
        place = now.get_field_index(field.name)
        if place < 0:
            raise SchemaError(f"{source} has lost column {field.name!r} since its stream began. {advice}")
        if not now.field(place).type.equals(field.type):
            raise SchemaError(
                f"column {field.name!r} of {source} is {now.field(place).type} now, and was {field.type} "
                f"when its stream began. {advice}"
            )
    for field in now:
        if was.get_field_index(field.name) < 0:
            raise SchemaError(f"{source} has a new column {field.name!r} since its stream began. {advice}")


class LateRows:
    """Which of the highest values seen is old enough that no lower one can come to light.

    Plain data except the clock, which a copy creates again.
    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self.seconds = seconds
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._seen: deque[tuple[float, Any]] = deque()

    def see(self, highest: Any) -> Any:
        """Note the highest value now; returns the value up to which all is there, None when not known yet."""
        now = self._clock.now()
        if not self._seen or self._seen[-1][1] != highest:
            self._seen.append((now, highest))
        while len(self._seen) > 1 and self._seen[1][0] <= now - self.seconds:
            self._seen.popleft()
        time, value = self._seen[0]
        return value if time <= now - self.seconds else None

    def settle(self, value: Any) -> None:
        """Wait until `value`, a highest one that was seen, is old enough."""
        now = self._clock.now()
        since = next((time for time, seen in self._seen if seen == value), now)
        wait = since + self.seconds - now
        if wait <= 0:
            return
        if wait >= _TOLD_SECONDS:
            _log.warning(
                "waiting %.0f s for rows that other sessions commit after ones with a higher cursor value; "
                "if one session at a time writes, set lateSeconds=0",
                wait,
            )
        self._clock.sleep(wait)

    def __getstate__(self) -> Sequence[Any]:
        return [self.seconds]

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.__init__(state[0])  # type: ignore[misc]
