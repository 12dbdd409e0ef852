"""Columns of a table as PostgreSQL's log has them, and when rows with some of them can be rows of others. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

__all__ = ["LogColumn", "TableColumns", "becomes", "difference"]


_WIDENS = frozenset({(21, 23), (21, 20), (23, 20), (21, 1700), (23, 1700), (20, 1700), (1043, 25)})
"""Types (int2, int4, int8, numeric, varchar, text) by their oids: of the first, each value is one of the second."""


class LogColumn(NamedTuple):
    """`oid` is its type's."""

    name: str
    oid: int
    typmod: int = -1


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What a feed of several tables keeps of one. `key`: the names of the columns that identify its rows.

    `apart`: all columns that may identify a row in a target; empty: the key.
    """

    columns: tuple[LogColumn, ...]
    key: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    def noted(self) -> dict[str, Any]:
        """Plain data."""
        columns = [
            [column.name, column.oid]
            if column.typmod == -1
            else [column.name, column.oid, column.typmod]
            for column in self.columns
        ]
        return {
            "columns": columns,
            "key": list(self.key),
            **({"apart": list(self.apart)} if self.apart else {}),
        }

    @classmethod
    def from_noted(cls, noted: Any) -> Self:
        """What `noted` gave.

        Raises:
            KeyError, TypeError, ValueError: it was damaged.
        """
        if not isinstance(noted, Mapping):
            raise TypeError(noted)
        columns = tuple(LogColumn(*fields) for fields in noted["columns"])
        key = tuple(noted["key"])
        apart = tuple(noted.get("apart", ()))
        names = (*key, *apart, *(column.name for column in columns))
        texts = all(isinstance(name, str) for name in names)
        if (
            not columns
            or not texts
            or not all(isinstance(n, int) for fields in columns for n in fields[1:])
        ):
            raise ValueError(noted)
        return cls(columns, key, apart)


def difference(
    was: Sequence[LogColumn], now: Sequence[LogColumn], has: Callable[[str], bool] | None
) -> str | None:
    """Why rows of columns `now` are not rows of a stream of columns `was`, such as "has a new column 'x'".

    None: they are. With `has`, which says whether the table has a column by now that `was` lacks, they may lack
    columns, have those that were dropped since, and have narrower types.
    """
    before, after = ({column.name: column.oid for column in columns} for columns in (was, now))
    for name, oid in after.items():
        if name not in before:
            if has is None or has(name):
                return f"has a new column {name!r}"
        elif oid != before[name] and (has is None or (oid, before[name]) not in _WIDENS):
            return f"has column {name!r} of another type"
    if has is not None or list(after) == list(before):
        return None
    lost = next((name for name in before if name not in after), None)
    return f"has lost column {lost!r}" if lost else "has its columns in another order"


def becomes(
    was: TableColumns,
    now: TableColumns,
    *,
    has: Callable[[str], bool] | None = lambda _name: False,
    is_kept: bool = False,
) -> str | None:
    """Why a stream of a table with columns `was` cannot continue when it has `now`, without a restart; None: it can.

    It continues with `now`, while the log may have rows of both; or, with `is_kept`, with `was`. `has`: see
    `difference`.
    """
    names = {column.name for column in was.columns}, {column.name for column in now.columns}
    for key, others, role in ((was.key, names[1], "lost key"), (now.key, names[0], "the new key")):
        missing = next((name for name in key if name not in others), None)
        if missing is not None and has is not None:
            return f"has {role} column {missing!r}"
    stream, log = (was, now) if is_kept else (now, was)
    return difference(stream.columns, log.columns, has)
