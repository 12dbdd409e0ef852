"""What a task does: it reads splits of one side, and returns their checksums, or some of their rows."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, cast

import numpy as np
import pyarrow as pa

from spark_channel.connectors import Read, Reader, SplitReader
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.errors import SchemaError
from spark_channel.options import CommonOptions
from spark_channel.pipeline.read import GroupRead
from spark_channel.planning import Split, TaskGroup
from spark_channel.transfers.job_link import JobLink
from spark_channel.transfers.task import TaskGroupAttempt
from spark_channel.transform import Pipeline, prepare
from spark_channel.verification.compare import (
    Buckets,
    Checksums,
    Differences,
    Entries,
    Mask,
    Places,
    among,
)
from spark_channel.verification.compared_columns import Columns
from spark_channel.verification.forms import Form, common_form
from spark_channel.verification.hashes import Hashes, hash_columns, hash_values
from spark_channel.verification.in_database import DatabaseSums

__all__ = [
    "Details",
    "OwnKeys",
    "PassRunner",
    "ReadWork",
    "Selection",
    "SideWork",
    "changed_columns",
    "hash_rows",
]

_ROWS_AT_ONCE = 65_536
_NONE = np.zeros(0, np.uint64)
_MOST_VALUES = 16 << 20
"""Bytes of rows that a task returns with their values; the rows behind them are returned as hashes."""


@dataclass(frozen=True)
class SideWork:
    """One side for tasks: `names` are those of the compared columns, behind the `steps` of a job."""

    reader: Reader
    steps: Pipeline
    names: tuple[str, ...]

    def picked(self, names: Sequence[str]) -> pa.Schema:
        """The schema of some columns."""
        return pa.schema([self.steps.output_schema.field(name) for name in names])


@dataclass(frozen=True)
class Selection:
    """The rows that a pass returns: those of chosen buckets, of which a round has a share, or those of some keys."""

    chosen: Mask | None = None
    share: int = 0
    shares: int = 1
    keys: Hashes | None = None
    values_of: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Keys whose rows are returned with all their values."""

    def mask(self, buckets: Buckets, first_key: pa.Array | None, keys: Hashes) -> Mask:
        if self.keys is not None:
            return among(keys, self.keys)
        assert self.chosen is not None
        mask: Mask = self.chosen[buckets.numbers(first_key, keys)]
        if self.shares > 1:
            mask &= keys % np.uint64(self.shares) == np.uint64(self.share)
        return mask


@dataclass
class Details:
    """Rows of some keys: the hash of each value, and of some of them the values."""

    keys: Hashes
    rows: Hashes
    columns: Hashes
    values: list[pa.Table]

    @classmethod
    def joined(cls, parts: Sequence["Details"], width: int) -> "Details":
        if not parts:
            none = np.zeros(0, np.uint64)
            return cls(none, none, none.reshape(0, width), [])
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.columns for part in parts]),
            [table for part in parts for table in part.values],
        )


def changed_columns(differ: Differences, one: Details, other: Details) -> Places:
    """The number of rows that differ in each column, of keys that have one row on each side."""
    pairs = differ.keys[(differ.source_rows == 1) & (differ.target_rows == 1)]
    sides = []
    for details in (one, other):
        keys, first, counts = np.unique(details.keys, return_index=True, return_counts=True)
        sides.append((keys, first, counts))
        pairs = pairs[among(pairs, keys[counts == 1])]
    columns = [
        details.columns[first[np.searchsorted(keys, pairs)]]
        for details, (keys, first, _) in zip((one, other), sides, strict=True)
    ]
    row_counts: Places = (columns[0] != columns[1]).sum(axis=0)
    return row_counts


@dataclass(frozen=True)
class ReadWork:
    """One pass over both sides. Picklable. Without a selection it returns checksums, else rows."""

    sides: tuple[SideWork, SideWork]
    columns: Columns
    buckets: Buckets
    selection: Selection | None = None
    detailed: bool = False
    by_database: DatabaseSums | None = None
    within: tuple[Buckets, Mask] | None = None
    """The ranges whose rows count; None = all do. A side that no index finds ranges in reads others as well."""

    def listing(self, by_database: DatabaseSums) -> "ReadWork":
        """The same rows, as their keys and the hashes that both databases compute."""
        sides = []
        for number, side in enumerate(self.sides):
            names = self.columns.key_names(number)
            reader, schema = by_database.listing(cast(SqlReader, side.reader), number, names)
            sides.append(SideWork(reader, prepare((), schema), tuple(schema.names)))
        places, kind = self.columns.key, schema[-1].type
        columns = Columns(
            tuple(zip(sides[0].names, sides[1].names, strict=True)),
            (
                *(self.columns.forms[position] for position in places),
                common_form(kind, kind, "hash"),
            ),
            tuple(range(len(places))),
        )
        return replace(self, sides=(sides[0], sides[1]), columns=columns)

    def counted(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those rows of a side's batch."""
        if self.within is None or self.within[0].edges is None:
            return batch
        ranges, chosen = self.within
        first_key = batch.column(self.columns.key_names(number)[0])
        return batch.filter(pa.array(chosen[ranges.numbers(first_key, _NONE)]))


def hash_rows(values: Sequence[pa.Array], columns: Columns) -> tuple[Hashes, Hashes]:
    """The hashes of the rows' keys, and of the rows."""
    rows = hash_columns(values, columns.forms)
    if not columns.key:
        return rows, rows
    forms = [columns.forms[position] for position in columns.key]
    return hash_columns([values[position] for position in columns.key], forms), rows


class OwnKeys(SplitReader):
    """Reads of each split by keys the rows that have one of them.

    A collation that ignores case, accents or trailing blanks finds by a key rows with others, which may be keys of
    another split, too: such a row would be read twice. `names` are the key's columns.
    """

    def __init__(self, inner: SplitReader, names: Sequence[str], forms: Sequence[Form]) -> None:
        self._inner, self._names, self._forms = inner, names, forms

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from self.rows(self._inner.read, split)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        with self._inner.reading() as read:
            yield partial(self.rows, read)

    def rows(self, read: Read, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        if split.params.get("kind") != "keys":
            yield from read(split)
            return
        values = zip(self._forms, zip(*split.params["values"], strict=True), strict=True)
        arrays = [
            pa.array(column, pa.uint64() if form.name == "unsigned integer" else None)
            for form, column in values
        ]
        hashes = np.unique(hash_columns(arrays, self._forms))
        with closing(cast("Generator[pa.RecordBatch]", read(split))) as batches:
            for batch in batches:
                keys = [batch.column(name) for name in self._names]
                rows = batch.filter(pa.array(among(hash_columns(keys, self._forms), hashes)))
                if rows.num_rows:
                    yield rows


class _Collector(Protocol):
    def add(self, values: Sequence[pa.Array], batch: pa.RecordBatch) -> None: ...
    def result(self) -> object: ...


class _Base:
    def __init__(self, work: ReadWork, side: SideWork) -> None:
        self._columns, self._buckets, self._side = work.columns, work.buckets, side
        self._selection = work.selection

    def _first_key(self, values: Sequence[pa.Array]) -> pa.Array | None:
        return values[self._columns.key[0]] if self._columns.key else None

    def _chosen(self, values: Sequence[pa.Array], keys: Hashes) -> Places:
        assert self._selection is not None
        return np.flatnonzero(self._selection.mask(self._buckets, self._first_key(values), keys))


class _SumCollector(_Base):
    def __init__(self, work: ReadWork, side: SideWork) -> None:
        super().__init__(work, side)
        self._sums = Checksums.none(work.buckets.count)

    def add(self, values: Sequence[pa.Array], batch: pa.RecordBatch) -> None:
        keys, rows = hash_rows(values, self._columns)
        self._sums.add(self._buckets.numbers(self._first_key(values), keys), rows)

    def result(self) -> Checksums:
        return self._sums


class _EntryCollector(_Base):
    def __init__(self, work: ReadWork, side: SideWork) -> None:
        super().__init__(work, side)
        self._parts: list[Entries] = []

    def add(self, values: Sequence[pa.Array], batch: pa.RecordBatch) -> None:
        keys, rows = hash_rows(values, self._columns)
        chosen = self._chosen(values, keys)
        if len(chosen):
            names = [self._side.names[position] for position in self._columns.key]
            key_values = pa.Table.from_batches([batch.select(names)]).take(pa.array(chosen))
            self._parts.append(Entries(keys[chosen], rows[chosen], key_values))

    def result(self) -> Entries:
        names = [self._side.names[position] for position in self._columns.key]
        return Entries.joined(self._parts, self._side.picked(names))


class _DetailCollector(_Base):
    def __init__(self, work: ReadWork, side: SideWork) -> None:
        super().__init__(work, side)
        self._parts: list[Details] = []
        self._bytes = 0

    def add(self, values: Sequence[pa.Array], batch: pa.RecordBatch) -> None:
        keys, rows = hash_rows(values, self._columns)
        chosen = self._chosen(values, keys)
        if not len(chosen):
            return
        assert self._selection is not None
        index = pa.array(chosen)
        columns = np.column_stack(
            [
                hash_values(array.take(index), form)
                for array, form in zip(values, self._columns.forms, strict=True)
            ]
        )
        detailed = np.flatnonzero(among(keys[chosen], self._selection.values_of))
        values = []
        if len(detailed) and self._bytes < _MOST_VALUES:
            table = pa.Table.from_batches([batch.select(self._side.names)])
            values = [table.take(pa.array(chosen[detailed]))]
            self._bytes += values[0].nbytes
        self._parts.append(Details(keys[chosen], rows[chosen], columns, values))

    def result(self) -> Details:
        return Details.joined(self._parts, len(self._side.names))


class PassRunner:
    """Runs a task group of one pass; pickled by reference to this class. A task's writer part is its side.

    Returns the side's number, the rows that were read, and what was collected.
    """

    def __init__(
        self,
        work: ReadWork,
        link: JobLink,
        options: CommonOptions,
    ) -> None:
        self._work, self._link, self._options = work, link, options

    def run(self, group: TaskGroup, attempt: TaskGroupAttempt) -> tuple[int, int, object]:
        number: int = group.tasks[0].writer_part
        side = self._work.sides[number]
        with ExitStack() as stack:
            link = stack.enter_context(
                self._link.connect(
                    self._options,
                    f"group {group.id}",
                    healths={
                        "source": self._work.sides[0].reader.health,
                        "target": self._work.sides[1].reader.health,
                    },
                )
            )
            counts = [task.split.rows for task in group.tasks]
            counters = link.counters(
                group.tasks[0].id,
                attempt.number,
                rows_expected=None if None in counts else sum(filter(None, counts)),
            )
            if self._work.by_database is not None:
                splits = [task.split for task in group.tasks]
                checksums = self._work.by_database.run(
                    cast(SqlReader, side.reader),
                    number,
                    splits,
                    self._work.buckets,
                    attempt,
                    link,
                    counters,
                )
                return number, int(checksums.rows.sum()), checksums
            read = GroupRead(
                self._reader(number),
                group,
                side.steps.schema,
                limiter=link.limiter,
                counters=counters,
                capacity_rows=self._options.capacity_rows,
                capacity_bytes=self._options.capacity_bytes,
            )
            stack.enter_context(attempt.cancelling(read.cancel))
            collector = self._collector(side)
            rows = 0
            batches = stack.enter_context(closing(read.batches()))  # ends its sessions on an error
            for batch in _small(batches):
                rows += batch.num_rows
                batch = side.steps.run(batch).batch
                try:
                    batch = self._work.counted(number, batch)
                    collector.add([batch.column(name) for name in side.names], batch)
                except pa.ArrowInvalid as error:
                    raise SchemaError(self._misfit(side, batch, error)) from error
            return number, rows, collector.result()

    def _reader(self, number: int) -> SplitReader:
        work, reader = self._work, self._work.sides[number].reader
        forms = [work.columns.forms[position] for position in work.columns.key]
        if work.selection is None or work.selection.keys is None:
            return reader
        if not any(form.name == "text" for form in forms):
            return reader
        return OwnKeys(reader, work.columns.key_names(number), forms)

    def _collector(self, side: SideWork) -> _Collector:
        if self._work.selection is None:
            return _SumCollector(self._work, side)
        return (_DetailCollector if self._work.detailed else _EntryCollector)(self._work, side)

    def _misfit(self, side: SideWork, batch: pa.RecordBatch, error: pa.ArrowInvalid) -> str:
        """The column whose value does not fit its form."""
        for name, form in zip(side.names, self._work.columns.forms, strict=True):
            try:
                hash_values(batch.column(name), form)
            except pa.ArrowInvalid:
                return (
                    f"column {name!r} holds a value that cannot be compared as {form}: {error}. Leave the column out "
                    "with 'exclude'"
                )
        return str(error)


def _small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield batch.slice(first, _ROWS_AT_ONCE)
