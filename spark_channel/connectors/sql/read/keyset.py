"""Keyset pagination: the SQL of short statements, which continue after the last key. Pure.

A key (a, b) behind (x, y) is one condition, (a, b) > (x, y), where the database finds that in an index. Elsewhere, and
where the index goes up by one column and down by another, it is two steps: a = x AND b > y, and then a > x. Each is a
range of the index, so that no statement looks at rows that were read before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_channel.connectors.sql.catalog import KeyColumn, ReadColumn
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.read.splits import conditions_of
from spark_channel.planning import Split

__all__ = ["Keyset", "keyset_of"]


@dataclass(frozen=True)
class Keyset:
    """The order in which a split is read, and what is left of it behind a row.

    `params` are the split's, `columns` those of the source and those that bring the key; `places` says which of them
    do, in the order of `key`.
    """

    source: ReadSource
    params: Mapping[str, Any]
    key: tuple[KeyColumn, ...]
    columns: tuple[ReadColumn, ...]
    places: tuple[int, ...]

    @property
    def order(self) -> str:
        """The ORDER BY list."""
        return ", ".join(
            self.source.column(column.name) + (" DESC" if column.descending else "")
            for column in self.key
        )

    def steps(self, last: Sequence[object] | None) -> list[list[str]]:
        """The conditions of the rows behind the one whose key is `last` (None: of all rows).

        One list for each step; the rows of a step come before those of the next.
        """
        if last is None:
            return [conditions_of(self.source, self.params)]
        dialect, conditions = self.source.dialect, self._left()
        columns = [self.source.column(column.name) for column in self.key]
        values = [
            dialect.key_literal(value, self.source.about(column.name))
            for column, value in zip(self.key, last, strict=True)
        ]
        signs = ["<" if column.descending else ">" for column in self.key]
        if len(columns) > 1 and dialect.row_values and self._is_uniform:
            return [[*conditions, f"({', '.join(columns)}) {signs[0]} ({', '.join(values)})"]]
        equal = [f"{column} = {value}" for column, value in zip(columns, values, strict=True)]
        return [
            [*conditions, *equal[:depth], f"{columns[depth]} {signs[depth]} {values[depth]}"]
            for depth in reversed(range(len(columns)))
        ]

    @property
    def _is_uniform(self) -> bool:
        return len({column.descending for column in self.key}) == 1

    def _left(self) -> list[str]:
        """The split's conditions without the bound that lies before every row still to come.

        Of two bounds on one side of an index, a server may begin its scan at the wrong one.
        """
        params = dict(self.params)
        names = [column.name for column in self.key]
        bounded = list(params.get("key") or ())
        if params["kind"] == "range" and bounded == names[: len(bounded)] and self._is_uniform:
            params["upper" if self.key[0].descending else "lower"] = None
        part = params.get("part")
        if part and part["key"] == names[: len(part["key"])] and self._is_uniform:
            side = "upper" if self.key[0].descending else "lower"
            params["part"] = {**part, side: None}
        within = params.get("cursor")
        if within and within["column"] == names[0] and not self.key[0].descending:
            params["cursor"] = {**within, "after": None}
        return conditions_of(self.source, params)


def keyset_of(source: ReadSource, split: Split) -> Keyset | None:
    """How `split` can be read in short statements; None = by no unique key whose order its rows are found in."""
    key = _key_of(source, split)
    if not key:
        return None
    columns, places = list(source.columns), []
    for column in key:
        key_read = source.dialect.key_read(source.about(column.name), source.column(column.name))
        assert key_read is not None
        kind, expression = key_read
        same = (
            index
            for index, column in enumerate(source.columns)
            if column.expression == expression and column.kind.equals(kind)
        )
        index = next(same, len(columns))
        if index == len(columns):
            about = source.about(column.name)
            declared = "INTEGER" if about is None else about.declared
            columns.append(ReadColumn(f"(key {len(columns)})", declared, kind, expression))
        places.append(index)
    return Keyset(source, split.params, key, tuple(columns), tuple(places))


def _key_of(source: ReadSource, split: Split) -> tuple[KeyColumn, ...]:
    table = source.table
    if table is None or table.is_view:
        return ()
    dialect = source.dialect

    def can_be_read(name: str) -> bool:
        return dialect.key_read(source.about(name), source.column(name)) is not None

    keys = [key for key in dialect.keys(table) if all(can_be_read(column.name) for column in key)]
    lead = _lead(split.params)
    if not keys or lead is None:
        return keys[0] if keys else ()
    leading = next((key for key in keys if key[0].name == lead), ())
    if leading or not can_be_read(lead):
        return leading
    for key in keys:
        # The key distinguishes rows with the same value of the leading column that were read from the others.
        names = [lead, *(column.name for column in key if column.name != lead)]
        if dialect.finds(table, names):
            return tuple(map(KeyColumn, names))
    return ()


def _lead(params: Mapping[str, Any]) -> str | None:
    """The column by whose index the rows of a split are found; None = all rows are read, in whatever order.

    A part of the rows of one value is a range of the other key.
    """
    if part := params.get("part"):
        return str(part["key"][0])
    if params["kind"] == "range":
        return str(params["key"][0])
    within = params.get("cursor")
    return str(within["column"]) if within and params["kind"] == "all" else None
