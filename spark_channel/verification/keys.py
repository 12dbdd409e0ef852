"""The keys that differ, with their values as each side has them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_channel.verification.canonical import Hashes, ordinals
from spark_channel.verification.compare import Differences, Entries, Places, among, python_values

__all__ = ["DifferingKeys"]

_NONE = np.zeros(0, np.uint64)
_HASH = "hash"
"""The column of the keys' hashes, behind those of their values: k0, k1, and so on."""


class DifferingKeys:
    """The values of keys of both sides, which are found by the keys' hashes.

    `schemas` are the keys' columns; without columns, rows are their own keys, whose values are not kept.
    """

    def __init__(self, schemas: Sequence[pa.Schema]) -> None:
        self._names = [each.names for each in schemas]
        self._has_columns = any(self._names)
        self._tables = [_with_hash(each.empty_table(), _NONE) for each in schemas]

    def add(self, sides: Sequence[Entries], differ: Differences) -> None:
        """Add those keys of both sides' rows that differ."""
        for number, side in enumerate(sides):
            places = np.flatnonzero(among(side.keys, differ.keys))
            _, first = np.unique(side.keys[places], return_index=True)
            own = places[first]
            found = _with_hash(side.values.take(pa.array(own)), side.keys[own])
            self._tables[number] = pa.concat_tables([self._tables[number], found])

    def table(self, side: int, keys: Hashes) -> pa.Table:
        """The values of these keys, as a side that has them spells them."""
        return (
            _chosen(self._tables[side], keys).drop_columns(_HASH).rename_columns(self._names[side])
        )

    def with_null(self) -> Hashes:
        """The keys that hold NULL, ascending."""
        found: list[Hashes] = []
        for table in self._tables:
            empty = np.zeros(len(table), np.bool_)
            for column in table.columns[:-1]:
                empty |= column.is_null().to_numpy()
            found.append(table[_HASH].to_numpy()[empty])
        return np.unique(np.concatenate(found))

    def values(self, keys: Hashes) -> list[list[Any]]:
        """The values of these keys, each as one of the sides has it, in their order."""
        if not self._has_columns:
            return []
        found: dict[int, list[Any]] = {}
        for table in self._tables:
            *columns, hashes = (python_values(each) for each in _chosen(table, keys).columns)
            for row, name in zip(zip(*columns, strict=True), hashes, strict=True):
                found.setdefault(name, list(row))
        return [found[name] for name in self.in_order(keys).tolist() if name in found]

    def in_order(self, keys: Hashes) -> Hashes:
        """The keys' hashes in the order of the keys."""
        if not self._has_columns:
            return keys
        seen: list[Hashes] = []
        for table in self._tables:
            try:
                table = table.sort_by([(name, "ascending") for name in table.column_names[:-1]])
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # a type without an order
                pass
            seen.append(table[_HASH].to_numpy())
        every = np.concatenate(seen)
        _, first = np.unique(every, return_index=True)
        # The rows of one side alone come behind the others'.
        ordered: Hashes = every[np.sort(first)]
        return ordered[among(ordered, keys)]

    def numbers(self, keys: Hashes) -> Places:
        """The whole numbers of these keys' first column, ascending, each of them once."""
        numbers = [
            ordinals(_chosen(table, keys)[0].drop_null().combine_chunks())[0]
            for table in self._tables
        ]
        found: Places = np.unique(np.concatenate(numbers))
        return found


def _chosen(table: pa.Table, keys: Hashes) -> pa.Table:
    return table.filter(pa.array(among(table[_HASH].to_numpy(), keys)))


def _with_hash(values: pa.Table, hashes: Hashes) -> pa.Table:
    named = {f"k{number}": column for number, column in enumerate(values.columns)}
    return pa.table({**named, _HASH: pa.array(hashes, pa.uint64())})
