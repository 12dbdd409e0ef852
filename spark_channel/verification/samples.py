"""The first rows that differ, with the values of both sides."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import pyarrow as pa

from spark_channel.verification.canonical import Hashes, hash_values
from spark_channel.verification.compare import Differences, SampledRow, python_values, without_equal
from spark_channel.verification.report import Difference
from spark_channel.verification.sides import Columns
from spark_channel.verification.tasks import hash_rows

__all__ = ["differing_rows"]


def differing_rows(
    samples: Sequence[pa.Table],
    columns: Columns,
    found: Differences,
    order: Hashes,
    left_out: Callable[[], None],
) -> Iterator[Difference]:
    """The rows of `found` in `order`, which has their keys, from the `samples` of both sides.

    Calls `left_out` for a key whose rows are not all in the samples.
    """
    rows = [_by_key(table, columns, number) for number, table in enumerate(samples)]
    sizes = zip(found.source_rows.tolist(), found.target_rows.tolist(), strict=True)
    counts = dict(zip(found.keys.tolist(), sizes, strict=True))
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
        each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in arrays
    ]
    hashed = [hash_values(each, form) for each, form in zip(arrays, columns.forms, strict=True)]
    keys, whole = hash_rows(arrays, columns)
    found: dict[int, list[SampledRow]] = {}
    values = [python_values(table[name]) for name in names]
    for place, key in enumerate(keys.tolist()):
        shown = {name: own[place] for name, own in zip(names, values, strict=True)}
        own = tuple(int(each[place]) for each in hashed)
        found.setdefault(key, []).append(SampledRow(shown, int(whole[place]), own))
    return found


def _difference(columns: Columns, one: SampledRow | None, other: SampledRow | None) -> Difference:
    names = columns.names
    shown = one or other
    assert shown is not None
    side = 0 if one else 1
    key = {pair[0]: shown.values[pair[side]] for pair in (names[n] for n in columns.key)}
    if one is None or other is None:
        return Difference(
            "missing" if one else "extra",
            key or shown.values,
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
