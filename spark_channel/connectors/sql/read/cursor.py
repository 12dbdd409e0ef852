"""A cursor column: its type, its conditions, and the wait for late rows.

A row that is committed after rows with a higher value were read would be missed. So a value is read only when it was
the highest one at least `late_seconds` before: who took a lower one had that long to commit.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.plain_text import log_of

if TYPE_CHECKING:
    from spark_channel.connectors.base.feed import Token

__all__ = [
    "CursorPosition",
    "CursorValue",
    "LateRows",
    "check_cursor_type",
    "check_same_columns",
    "cursor_bounds",
    "cursor_conditions",
    "cursor_literal",
    "cursor_of",
    "cursor_type",
    "part_of",
    "token_of",
]

_log = log_of(__name__)


_NAME = "cursor"
_KEYS = {"key", "keys", "below"}
_PART = {"by", "part", "parts"}
_ADVICE = "it is damaged, or of another source. Reset the tunnel, or begin with a new checkpoint directory"
_LOGGED_SECONDS = 1.0
"""A wait of this many seconds or more is logged."""


CursorValue = int | float | str | None
"""A value of a cursor column as a token holds it; None = no row."""
_NEW_COLUMNS = "Begin a new stream, or reset the tunnel, to take its new columns"


class CursorPosition(NamedTuple):
    """All rows up to cursor value `value` (None: no row). With `keys`, only these of the rows that have `value` itself:
    those whose whole number in column `key` is one of them. `below` is then the highest value below `value`, which is
    the highest one once all these rows have left.
    """

    value: CursorValue
    key: str | None = None
    keys: tuple[int, ...] = ()
    below: CursorValue = None


def token_of(position: CursorPosition, part: "Token | None" = None) -> "Token":
    """The token of a position. `part`: of the same part of the rows as this token."""
    value, key, keys, below = position
    return {
        _NAME: value,
        **({} if key is None else {"key": key, "keys": list(keys), "below": below}),
        **({} if part is None else part_of(part)),
    }


def part_of(token: "Token") -> dict[str, Any]:
    """Which rows the token's channel has, after a split: those whose column `by` leaves `part` when it is divided by
    `parts`; {} for all."""
    return {name: token[name] for name in token if name in _PART}


def cursor_of(token: "Token", column: str) -> CursorPosition:
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
        and all(isinstance(key, int) for key in keys["keys"])
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
    bounds: dict[str, Any] = {"column": column, "after": after.value, "upto": upto.value}
    for name, position in (("without", after), ("only", upto)):
        if position.key is not None:
            bounds[name] = [position.value, position.key, list(position.keys)]
    return bounds


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
    conditions = [
        f"{column} {compare} {cursor_literal(source, name, bound)}"
        for compare, bound in ((">=" if without else ">", within["after"]), ("<=", within["upto"]))
        if bound is not None
    ]
    for chosen, compare in ((without, "NOT IN"), (only, "IN")):
        if chosen is not None:
            value, key, keys = chosen
            key_list = ", ".join(map(str, keys))
            conditions.append(
                f"{column} <> {cursor_literal(source, name, value)} OR {source.column(key)} {compare} ({key_list})"
            )
    if "by" in within:
        parts, remainder = within["parts"], source.dialect.remainder
        remainder_of_key = remainder(source.column(within["by"]), parts)
        conditions.append(
            f"{remainder(f'({remainder_of_key} + {parts})', parts)} = {within['part']}"
        )
    return conditions


def check_same_columns(
    was: pa.Schema, now: pa.Schema, source: str, advice: str = _NEW_COLUMNS
) -> None:
    """Check that a source has the columns that its stream began with.

    Raises:
        SchemaError: names the first column that differs.
    """
    for field in was:
        index = now.get_field_index(field.name)
        if index < 0:
            raise SchemaError(
                f"{source} has lost column {field.name!r} since its stream began. {advice}"
            )
        if not now.field(index).type.equals(field.type):
            raise SchemaError(
                f"column {field.name!r} of {source} is {now.field(index).type} now, and was {field.type} "
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
