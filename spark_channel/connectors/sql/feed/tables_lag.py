"""How far a feed of several tables is behind: what waits of each table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_channel.connectors.base.feed import FeedLag, TableLag
from spark_channel.connectors.sql.feed.incremental_snapshot import SeveralTables

__all__ = ["TableWaiting", "lag_of_tables"]


@dataclass(frozen=True, slots=True)
class TableWaiting:
    """`changes` of a table, `nbytes` of them as the log has them, and the `seconds` since the commit of the first;
    None = not known.
    """

    changes: int | None = None
    nbytes: int | None = None
    seconds: float | None = None


def lag_of_tables(
    token: SeveralTables, waiting: Mapping[str, TableWaiting], present: Sequence[str]
) -> FeedLag:
    """By what waits of each table. `present`: the tables that were not dropped."""
    tables = tuple(
        _lag_of(name, progress, waiting[name], is_there=name in present)
        for name, progress in token.tables.items()
    )
    changes = _sum([table.changes for table in tables])
    # Where one has changes that were not counted, the first of those that were is the oldest in the log.
    seconds = max((table.seconds for table in tables if table.seconds is not None), default=None)
    if token.is_read:
        return FeedLag(changes, seconds=seconds, tables=tables)
    bases = [progress.base for progress in token.tables.values() if progress.since is not None]
    # None: one waits, and how many it has is not known.
    numbers = [base for base in bases if base is not None]
    unknown = [None] * (len(bases) - len(numbers))
    rows_left = _sum([*unknown, *(base.left for base in numbers)])
    return FeedLag(
        None if changes is None or rows_left is None else rows_left + changes,
        seconds=seconds,
        base_read=sum(base.read for base in numbers),
        base_rows=_sum([*unknown, *(base.rows for base in numbers)]),
        base_chunks=sum(base.chunks for base in numbers),
        tables=tables,
    )


def _lag_of(name: str, progress: Any, waiting: TableWaiting, *, is_there: bool) -> TableLag:
    lag = TableLag(
        name, "changes", changes=waiting.changes, nbytes=waiting.nbytes, seconds=waiting.seconds
    )
    if not is_there:
        return replace(lag, stage="dropped")
    if progress.since is None:
        return lag
    if progress.base is None:
        return replace(lag, stage="waits")
    base = progress.base
    return replace(
        lag, stage="base", base_read=base.read, base_rows=base.rows, base_chunks=base.chunks
    )


def _sum(values: Sequence[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if len(numbers) == len(values) else None
