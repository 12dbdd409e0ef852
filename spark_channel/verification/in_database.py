"""Checksums that two databases of one kind compute themselves, in short statements over ranges of the key.

Rows that have one checksum there are equal. Rows that have not may be equal all the same, say in another scale: the
ranges that differ are read as rows. So no database is trusted to find a difference, and no row leaves it.

A sum for each range costs a third more than one sum of many. So the ranges are summed in runs: a part of the runs by
range, to see how many differ, and the others as wholes unless many do. If most ranges of that part differ, so will the
others: their rows are only counted, since they are read next.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import pyarrow as pa

from spark_channel.clock import FixedSeconds
from spark_channel.connectors import FetchSize
from spark_channel.connectors.sql.catalog import ReadColumn
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.short_statements import SessionHolder
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.read.splits import conditions_of
from spark_channel.errors import ChannelError
from spark_channel.pipeline.read import BatchRateLimiter, ReadCancelledError
from spark_channel.planning import Split
from spark_channel.progress import Counters, Phase
from spark_channel.retry import Retry
from spark_channel.transfers.job_link import TaskServiceClient
from spark_channel.transfers.task import TaskGroupAttempt
from spark_channel.verification.compare import Buckets, Checksums
from spark_channel.verification.compared_columns import Columns
from spark_channel.verification.compared_tables import Side

__all__ = ["DatabaseSums", "Run", "Summed", "run_splits", "same_hashes", "sums_of_runs"]

Run = tuple[int, int]
"""The first and the last of neighbouring buckets."""
Summed = Literal["buckets", "runs", "counts"]

_MOST_ROWS = 200_000
_ROWS_OF_A_RUN = 65_536
_SAMPLED = 16
"""One run in 16 is summed by bucket before the others."""
_STATEMENT_SECONDS = 1.0
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class DatabaseSums:
    """The expression that each side's rows are hashed by, and the name of its key's first column. Picklable.

    `by_bucket`: each bucket has its sum. Else the sum of a run is that of its first bucket, and the others have none.
    """

    hashes: tuple[str, str]
    keys: tuple[str, str]
    by_bucket: bool = True

    def summing(self, unit: Summed) -> "DatabaseSums":
        """The sums of buckets or of runs; or the number of rows of runs, whose sums are 0."""
        hashes = ("0", "0") if unit == "counts" else self.hashes
        return DatabaseSums(hashes, self.keys, unit == "buckets")

    def listing(
        self, reader: SqlReader, side: int, key: Sequence[str]
    ) -> tuple[SqlReader, pa.Schema]:
        """A reader of a side's keys and of the hashes of its rows, and what it reads."""
        with reader.connect("plan") as session:
            source = reader.known(session)
        declared, kind = reader.dialect.hash_type
        name = " ".join((*key, "hash"))  # longer than each other name
        columns = [column for column in map(source.read_as, key) if column is not None]
        columns.append(ReadColumn(name, declared, kind, self.hashes[side]))
        schema = pa.schema([pa.field(column.name, column.kind) for column in columns])
        return reader.selecting(columns), schema

    def run(
        self,
        reader: SqlReader,
        side: int,
        splits: Sequence[Split],
        buckets: Buckets,
        attempt: TaskGroupAttempt,
        link: TaskServiceClient,
        counters: Counters,
    ) -> Checksums:
        """The checksums of the runs of some splits. Each statement is paid by its rows."""
        sums = Checksums.none(buckets.count)
        pace = None if link.limiter is None else BatchRateLimiter(link.limiter, counters=counters)
        cancelled: list[bool] = []

        def cancel() -> None:
            cancelled.append(True)
            if pace is not None:
                pace.cancel()

        most = min(_MOST_ROWS, reader.fetch_size.rows or _MOST_ROWS)
        with attempt.cancelling(cancel), SessionHolder(reader.connected) as line:
            source = reader.known(line.session())
            count, fixed = max(1, most // 1_000), FixedSeconds()
            for begin, last in (run for split in splits for run in split.params["runs"]):
                first = begin
                while first <= last and not cancelled:
                    part = min(last, first + count - 1)
                    sql = self._sql(source, side, buckets, first, part)
                    began = time.perf_counter()
                    groups = _rows(reader, line, sql)
                    rows = _add(sums, groups, first if self.by_bucket else begin)
                    seconds = fixed.took(part - first + 1, time.perf_counter() - began)
                    _pay(pace, counters, rows)
                    count = _next_count(count, part - first + 1, rows, most, seconds)
                    first = part + 1
        if cancelled:
            counters.enter(Phase.ENDED)
            raise ReadCancelledError("the checksums were cancelled before the last range")
        counters.enter(Phase.DONE)
        return sums

    def _sql(self, source: ReadSource, side: int, buckets: Buckets, first: int, last: int) -> str:
        assert buckets.edges is not None
        name = self.keys[side]
        bounds = buckets.bounds(first, last)
        if bounds is None:
            conditions = conditions_of(source, {"kind": "null", "key": [name]})
        else:
            lower, upper = ([bound] if bound is not None else None for bound in bounds)
            params = {"kind": "range", "key": [name], "lower": lower, "upper": upper}
            conditions = conditions_of(source, params)
        sums = ["COUNT(*) AS c", f"SUM({self.hashes[side]}) AS s"]
        inner = buckets.edges[first:last].tolist() if self.by_bucket else []
        if not inner:
            return source.sql(["0 AS n", *sums], conditions)
        number = source.dialect.range_number(source.column(name), inner)
        return f"{source.sql([f'{number} AS n', *sums], conditions)} GROUP BY 1"


def _rows(reader: SqlReader, line: SessionHolder, sql: str) -> list[tuple[int, int, int]]:
    """Run a statement, in a new session if the old one is lost."""

    def once() -> list[tuple[int, int, int]]:
        try:
            return line.session().rows(sql)
        except ChannelError:
            line.drop()
            raise

    retry = Retry(getattr(reader.options, "retry_timeout", 0.0), what="computing checksums")
    return retry.call(once, reader.dialect.is_passing)


def _add(sums: Checksums, groups: Sequence[tuple[int, int, int]], first: int) -> int:
    nonempty = [group for group in groups if group[1]]
    if not nonempty:
        return 0
    places = [first + int(number) for number, _, _ in nonempty]
    np.add.at(sums.rows, places, [int(count) for _, count, _ in nonempty])
    np.add.at(
        sums.sums, places, np.array([int(total) & _WORD for _, _, total in nonempty], np.uint64)
    )
    return sum(int(count) for _, count, _ in nonempty)


def _pay(pace: BatchRateLimiter | None, counters: Counters, rows: int) -> None:
    if pace is None:
        counters.read(rows, 0)
        counters.pushed(rows, 0)
        return
    counted = pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["row"])
    for _ in pace.pace([counted]):
        pass


def _next_count(count: int, last_count: int, rows: int, most: int, seconds: float) -> int:
    """How many buckets the next statement may have, of which the last one had `last_count`.

    `seconds` are those of its buckets: a statement that scans its table takes as long for one of them.
    """
    if seconds > _STATEMENT_SECONDS or rows > most:
        return max(1, last_count // 2)
    if last_count == count and rows < most // 2 and seconds < _STATEMENT_SECONDS / 4:
        return count * 2
    return count


def sums_of_runs(
    buckets: Buckets,
    rows: int,
    summed: Callable[[Sequence[Run], Summed], tuple[Checksums, Checksums]],
) -> tuple[Checksums, Checksums]:
    """The checksums of both sides, of which one has about so many `rows`: by bucket wherever they differ.

    If most buckets differ, the first bucket of a run may have all its rows, and no bucket of it is equal.
    """
    run_length = max(1, buckets.count * _ROWS_OF_A_RUN // max(1, rows))
    nulls = buckets.count - 1  # found by another statement
    runs = [(first, min(first + run_length, nulls) - 1) for first in range(0, nulls, run_length)]
    sampled, remaining = [*runs[::_SAMPLED], (nulls, nulls)], _without(runs, runs[::_SAMPLED])
    sums = summed(sampled, "buckets")
    if not remaining:
        return sums
    nonempty = int(np.count_nonzero(sums[0].rows + sums[1].rows))
    if int(np.count_nonzero(sums[0].differ(sums[1]))) * 4 > nonempty:
        return _merged(sums, _unequal(summed(remaining, "counts"), remaining))
    if len(_that_differ(sums, sampled)) * 4 > len(sampled):
        return _merged(sums, summed(remaining, "buckets"))
    whole = summed(remaining, "runs")
    again = _that_differ(whole, remaining)
    if again:
        for side in whole:
            places = [first for first, _ in again]
            side.rows[places] = side.sums[places] = 0
        whole = _merged(whole, summed(again, "buckets"))
    return _merged(sums, whole)


def _unequal(
    counts: tuple[Checksums, Checksums], runs: Sequence[Run]
) -> tuple[Checksums, Checksums]:
    """The numbers of rows of some runs, with sums by which each bucket of a run with rows differs."""
    for first, last in runs:
        if counts[0].rows[first] or counts[1].rows[first]:
            counts[1].sums[first : last + 1] = 1
    return counts


def _that_differ(sums: tuple[Checksums, Checksums], runs: Sequence[Run]) -> list[Run]:
    differ = sums[0].differ(sums[1])
    return [(first, last) for first, last in runs if differ[first : last + 1].any()]


def _without(runs: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    left_out = set(others)
    return [run for run in runs if run not in left_out]


def _merged(
    sums: tuple[Checksums, Checksums], others: tuple[Checksums, Checksums]
) -> tuple[Checksums, Checksums]:
    for checksums, other in zip(sums, others, strict=True):
        checksums.merge(other)
    return sums


def run_splits(runs: Sequence[Run], count: int) -> list[Split]:
    """The runs in splits of about equal numbers."""
    share = max(1, -(-len(runs) // max(1, count)))
    return [Split({"runs": runs[first : first + share]}) for first in range(0, len(runs), share)]


def same_hashes(sides: Sequence[Side], columns: Columns, buckets: Buckets) -> DatabaseSums | None:
    """How both databases hash their rows; None = they do not, or not in one way."""
    readers = [side.database for side in sides]
    if buckets.edges is None or None in readers:
        return None
    keys = columns.key_names(0)[0], columns.key_names(1)[0]
    if not all(side.finds(key) for side, key in zip(sides, keys, strict=True)):
        return None  # each statement would read the whole table
    hashes, facts, declared = [], [], []
    for number, reader in enumerate(cast("list[SqlReader]", readers)):
        limited_by_bytes = reader.fetch_size != FetchSize() and reader.fetch_size.nbytes is not None
        if limited_by_bytes or _reads_otherwise(reader):
            return None
        with reader.connect("plan") as session:
            source = reader.known(session)
            expressions = [
                (source.about(pair[number]), source.bare(pair[number])) for pair in columns.names
            ]
            plain = [(about, text) for about, text in expressions if about is not None]
            row_hash = reader.dialect.row_hash(plain) if len(plain) == len(expressions) else None
            if row_hash is None:
                return None
            fact = reader.dialect.hash_facts(session)
        if fact is None:
            return None
        hashes.append(row_hash)
        facts.append((type(reader), fact))
        declared.append([about.declared for about, _ in plain])
    if facts[0] != facts[1] or declared[0] != declared[1]:
        return None
    return DatabaseSums((hashes[0], hashes[1]), keys)


def _reads_otherwise(reader: SqlReader) -> bool:
    """Whether an option makes the reader return other values than the table has, or those of one snapshot."""
    options = reader.options
    return bool(
        options.custom_schema
        or getattr(options, "snapshot", False)
        or getattr(options, "timestamps_as", "instant") != "instant"
        or getattr(options, "floats_as", "number") != "number"
    )
