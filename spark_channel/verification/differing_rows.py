"""The keys that differ, and the first rows that do, with their values as each side has them."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from spark_channel.verification.compare import (
    Differences,
    Entries,
    Places,
    SampledRow,
    among,
    python_values,
    without_equal,
)
from spark_channel.verification.compared_columns import Columns
from spark_channel.verification.hashes import Hashes, hash_values
from spark_channel.verification.ordinals import ordinals
from spark_channel.verification.report import Difference
from spark_channel.verification.tasks import hash_rows

__all__ = ["DifferingKeys", "differing_rows"]


_NONE = np.zeros(0, np.uint64)
_HASH = "hash"
"""The column of the keys' hashes, behind those of their values: k0, k1, and so on."""


class DifferingKeys:
    """The values of keys of both sides, which are found by the keys' hashes.

    `schemas` are the keys' columns; without columns, rows are their own keys, whose values are not kept.
    """

    def __init__(self, schemas: Sequence[pa.Schema]) -> None:
        self._names = [schema.names for schema in schemas]
        self._has_columns = any(self._names)
        self._tables = [_with_hash(schema.empty_table(), _NONE) for schema in schemas]

    def add(self, sides: Sequence[Entries], differ: Differences) -> None:
        """Add those keys of both sides' rows that differ."""
        for number, side in enumerate(sides):
            places = np.flatnonzero(among(side.keys, differ.keys))
            _, first = np.unique(side.keys[places], return_index=True)
            rows = places[first]
            key_table = _with_hash(side.values.take(pa.array(rows)), side.keys[rows])
            self._tables[number] = pa.concat_tables([self._tables[number], key_table])

    def table(self, side: int, keys: Hashes) -> pa.Table:
        """The values of these keys, as a side that has them spells them."""
        return (
            _chosen(self._tables[side], keys).drop_columns(_HASH).rename_columns(self._names[side])
        )

    def with_null(self) -> Hashes:
        """The keys that hold NULL, ascending."""
        hashes: list[Hashes] = []
        for table in self._tables:
            empty = np.zeros(len(table), np.bool_)
            for column in table.columns[:-1]:
                empty |= column.is_null().to_numpy()
            hashes.append(table[_HASH].to_numpy()[empty])
        return np.unique(np.concatenate(hashes))

    def values(self, keys: Hashes) -> list[list[Any]]:
        """The values of these keys, each as one of the sides has it, in their order."""
        if not self._has_columns:
            return []
        values_by_hash: dict[int, list[Any]] = {}
        for table in self._tables:
            *columns, hashes = (python_values(column) for column in _chosen(table, keys).columns)
            for row, name in zip(zip(*columns, strict=True), hashes, strict=True):
                values_by_hash.setdefault(name, list(row))
        return [
            values_by_hash[name] for name in self.in_order(keys).tolist() if name in values_by_hash
        ]

    def in_order(self, keys: Hashes) -> Hashes:
        """The keys' hashes in the order of the keys."""
        if not self._has_columns:
            return keys
        hashes: list[Hashes] = []
        for table in self._tables:
            try:
                table = table.sort_by([(name, "ascending") for name in table.column_names[:-1]])
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # a type without an order
                pass
            hashes.append(table[_HASH].to_numpy())
        every = np.concatenate(hashes)
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
        distinct: Places = np.unique(np.concatenate(numbers))
        return distinct


def _chosen(table: pa.Table, keys: Hashes) -> pa.Table:
    return table.filter(pa.array(among(table[_HASH].to_numpy(), keys)))


def _with_hash(values: pa.Table, hashes: Hashes) -> pa.Table:
    named = {f"k{number}": column for number, column in enumerate(values.columns)}
    return pa.table({**named, _HASH: pa.array(hashes, pa.uint64())})


def differing_rows(
    samples: Sequence[pa.Table],
    columns: Columns,
    differences: Differences,
    order: Hashes,
    left_out: Callable[[], None],
) -> Iterator[Difference]:
    """The rows of `differences` in `order`, which has their keys, from the `samples` of both sides.

    Calls `left_out` for a key whose rows are not all in the samples.
    """
    rows = [_by_key(table, columns, number) for number, table in enumerate(samples)]
    sizes = zip(differences.source_rows.tolist(), differences.target_rows.tolist(), strict=True)
    counts = dict(zip(differences.keys.tolist(), sizes, strict=True))
    for key in order.tolist():
        source, target = without_equal(rows[0].get(key, []), rows[1].get(key, []))
        if (len(source), len(target)) != counts[key]:
            left_out()
            continue
        for one, other in zip_longest(source, target):
            yield _difference(columns, one, other)


def _by_key(table: pa.Table, columns: Columns, side: int) -> dict[int, list[SampledRow]]:
    names = [pair[side] for pair in columns.names]
    arrays = [table[name].combine_chunks() for name in names]
    arrays = [
        array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for array in arrays
    ]
    hashed = [hash_values(array, form) for array, form in zip(arrays, columns.forms, strict=True)]
    keys, whole = hash_rows(arrays, columns)
    rows_by_key: dict[int, list[SampledRow]] = {}
    values = [python_values(table[name]) for name in names]
    for position, key in enumerate(keys.tolist()):
        row_values = {name: column[position] for name, column in zip(names, values, strict=True)}
        value_hashes = tuple(int(column[position]) for column in hashed)
        rows_by_key.setdefault(key, []).append(
            SampledRow(row_values, int(whole[position]), value_hashes)
        )
    return rows_by_key


def _difference(columns: Columns, one: SampledRow | None, other: SampledRow | None) -> Difference:
    names = columns.names
    row = one or other
    assert row is not None
    side = 0 if one else 1
    key = {pair[0]: row.values[pair[side]] for pair in (names[n] for n in columns.key)}
    if one is None or other is None:
        return Difference(
            "missing" if one else "extra",
            key or row.values,
            (),
            one.values if one else None,
            other.values if other else None,
        )
    changed = [
        pair[0]
        for pair, mine, theirs in zip(names, one.hashes, other.hashes, strict=True)
        if mine != theirs
    ]
    return Difference("different", key, tuple(changed), one.values, other.values)
