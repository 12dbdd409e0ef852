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
    """What a feed of several tables keeps of one. `key`: the names of the columns that its rows are told apart by."""

    columns: tuple[LogColumn, ...]
    key: tuple[str, ...] = ()

    def noted(self) -> dict[str, Any]:
        """Plain data."""
        columns = [
            [each.name, each.oid] if each.typmod == -1 else [each.name, each.oid, each.typmod]
            for each in self.columns
        ]
        return {"columns": columns, "key": list(self.key)}

    @classmethod
    def of(cls, found: Any) -> Self:
        """What `noted` gave.

        Raises:
            KeyError, TypeError, ValueError: it was damaged.
        """
        if not isinstance(found, Mapping):
            raise TypeError(found)
        columns = tuple(LogColumn(*each) for each in found["columns"])
        key = tuple(found["key"])
        texts = all(isinstance(each, str) for each in (*key, *(each.name for each in columns)))
        if not columns or not texts or not all(isinstance(n, int) for each in columns for n in each[1:]):
            raise ValueError(found)
        return cls(columns, key)


def difference(
    was: Sequence[LogColumn], found: Sequence[LogColumn], has: Callable[[str], bool] | None
) -> str | None:
    """Why rows of columns `found` are not rows of a stream of columns `was`, such as "has a new column 'x'".

    None: they are. With `has`, which says whether the table has a column by now that `was` lacks, they may lack
    columns, have those that were dropped since, and have narrower types.
    """
    before, after = ({each.name: each.oid for each in columns} for columns in (was, found))
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
    was: TableColumns, now: TableColumns, *, has: Callable[[str], bool] | None = lambda _name: False,
    is_kept: bool = False,
) -> str | None:  # fmt: skip
    """Why a stream of a table with columns `was` cannot continue when it has `now`, without a restart; None: it can.

    It continues with `now`, while the log may have rows of both; or, with `is_kept`, with `was`. `has`: see
    `difference`.
    """
    names = {each.name for each in was.columns}, {each.name for each in now.columns}
    for key, there, what in ((was.key, names[1], "lost key"), (now.key, names[0], "the new key")):
        missing = next((name for name in key if name not in there), None)
        if missing is not None and has is not None:
            return f"has {what} column {missing!r}"
    stream, found = (was, now) if is_kept else (now, was)
    return difference(stream.columns, found.columns, has)
