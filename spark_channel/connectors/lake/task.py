"""One attempt of one task: data files in the run's folder, one at a time for each partition."""

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors import Receipt, Tally, TaskWriter
from spark_channel.connectors.commit import BEAT_SECONDS
from spark_channel.connectors.files.conditions import Condition
from spark_channel.connectors.files.errors_at import writing
from spark_channel.connectors.lake.columns import conform
from spark_channel.connectors.lake.encode import DataFileEncoder
from spark_channel.connectors.lake.options import LakeWriteOptions
from spark_channel.connectors.lake.runs import Run
from spark_channel.connectors.lake.table import NewFile, Partition
from spark_channel.errors import ChannelError, TargetError

__all__ = ["FileSet", "LakeTask", "Layout", "new_files"]

_MOST_OPEN = 16
_MOST_HELD = 64 << 20
"""Arrow bytes that all open files of an attempt hold together: the largest is written out beyond that."""


@dataclass(frozen=True)
class Layout:
    """How rows become files. `names` are the rows' names of `columns`; `outside`: files leave `partition_by` out."""

    columns: pa.Schema
    names: tuple[str, ...]
    partition_by: tuple[str, ...]
    outside: bool
    empty_text_is_null: bool

    @property
    def in_files(self) -> pa.Schema:
        gone = set(self.partition_by) if self.outside else set()
        return pa.schema([field for field in self.columns if field.name not in gone])


@dataclass
class _Open:
    stream: Any
    encoder: DataFileEncoder
    path: str


class FileSet:
    """Writes rows into new data files of a run."""

    def __init__(self, run: Run, layout: Layout, options: LakeWriteOptions, prefix: str, shown: str) -> None:
        self._run, self._layout, self._options, self._shown = run, layout, options, shown
        self._prefix = f"{prefix}-{uuid4().hex[:8]}"
        self._open: dict[Partition, _Open] = {}
        self.files: list[NewFile] = []
        self.begun: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows in the layout's columns."""
        for partition, rows in _parts(batch, self._layout, self._shown):
            found = self._open.get(partition) or self._begin(partition)
            found.encoder.write(rows)
            if found.stream.tell() + found.encoder.held_bytes >= self._options.max_bytes_per_file:
                self._finish(partition)
        while (
            sum(each.encoder.held_bytes for each in self._open.values()) > _MOST_HELD and len(self._open) > 1
        ):
            self._finish(max(self._open, key=lambda each: self._open[each].encoder.held_bytes))

    def _begin(self, partition: Partition) -> _Open:
        if len(self._open) >= _MOST_OPEN:
            self._finish(max(self._open, key=lambda each: self._open[each].encoder.held_bytes))
        name = f"{self._prefix}-{len(self.begun):03d}.{self._options.compression}.parquet"
        path = posixpath.join(self._run.folder, name)
        self._run.store.make(self._run.folder)
        self.begun.append(path)
        stream = self._run.store.create(path)
        found = _Open(stream, DataFileEncoder(stream, self._layout.in_files, self._options), path)
        self._open[partition] = found
        return found

    def _finish(self, partition: Partition) -> None:
        found = self._open[partition]
        found.encoder.finish()
        self._run.store.seal(found.stream)
        del self._open[partition]
        size = self._run.store.info(found.path).size or 0
        path = posixpath.relpath(found.path, self._run.base)
        self.files.append(NewFile(path, found.encoder.rows, size, partition, found.encoder.statistics))

    def finish(self) -> None:
        for partition in list(self._open):
            self._finish(partition)
        if self.begun:
            self._run.store.sync(self._run.folder)

    def drop(self) -> None:
        for found in self._open.values():
            found.encoder.abandon()
            try:
                found.stream.close()
            except (OSError, pa.ArrowException):
                pass  # what it held is dropped either way
        self._open = {}
        for path in self.begun:
            self._run.store.remove(path)


def _parts(batch: pa.RecordBatch, layout: Layout, shown: str) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """The rows of each partition."""
    names = layout.partition_by
    if not batch.num_rows:
        return
    rest = batch.select(layout.in_files.names)
    if not names:
        yield (), rest
        return
    keys = pa.table([_as_text(batch.column(name), name, layout, shown) for name in names], names=list(names))
    keys = keys.append_column("row", pa.array(range(batch.num_rows), pa.int64()))
    groups = keys.group_by(list(names), use_threads=False).aggregate([("row", "list")])
    for number in range(groups.num_rows):
        partition = tuple((name, groups.column(name)[number].as_py()) for name in names)
        yield partition, rest.take(groups.column("row_list")[number].values)


def _as_text(values: pa.Array, name: str, layout: Layout, shown: str) -> pa.Array:
    texts = values.cast(pa.string())
    if layout.empty_text_is_null and pc.any(pc.equal(texts, "")).as_py():
        raise TargetError(
            f"partition column {name!r} holds the empty text, which {shown} could not tell from NULL; "
            "write NULL or another text"
        )
    return texts


class LakeTask(TaskWriter):
    """One attempt. Of a write that was published before it takes no rows."""

    def __init__(
        self,
        run: Run | None,
        layout: Layout,
        options: LakeWriteOptions,
        task: int,
        attempt: int,
        *,
        shown: str,
        key: Sequence[str] = (),
        within: Condition | None = None,
    ) -> None:
        self._run, self._layout, self._options = run, layout, options
        self._key, self._within, self._shown = key, within, shown
        self._tally = Tally(task, attempt)
        prefix = f"part-{task:05d}-{attempt}"
        self._files = None if run is None else FileSet(run, layout, options, prefix, shown)
        self._beat = 0.0 if run is None else run.store.clock.now()

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        if self._run is None or self._files is None:
            return
        rows = conform(batch, self._layout.columns, self._layout.names, self._shown)
        self._check(rows)
        with self._writing():
            if not self._files.begun:
                self._hold_live()
            self._files.write(rows)
            self._tally.add(batch)
            now = self._run.store.clock.now()
            if now - self._beat >= BEAT_SECONDS:
                self._beat = now
                self._run.beat()

    def _check(self, rows: pa.RecordBatch) -> None:
        for name in self._key:
            if rows.column(name).null_count:
                raise TargetError(
                    f"key column {name!r} holds NULL, which equals nothing: a row would be added again and again; "
                    "filter such rows out, or name other 'keyColumns'"
                )
        if self._within is not None and rows.num_rows:
            mask = pc.fill_null(self._within.mask(rows), False)
            if not pc.all(mask).as_py():
                raise TargetError(
                    f"a row does not match option 'replaceWhere' ({self._options.replace_where}): it would be added "
                    "again by each run; filter the rows by the same condition"
                )

    def close(self) -> Receipt:
        self._tally.hold_open()
        files: list[NewFile] = []
        if self._files is not None:
            with self._writing():
                self._files.finish()
                if self._files.begun:
                    self._hold_live()
            files = self._files.files
        return self._tally.receipt(
            files=[
                [f.path, f.rows, f.size, [list(p) for p in f.partition], dict(f.statistics)] for f in files
            ]
        )

    def rollback(self) -> None:
        if self._tally.ended:
            return
        self._tally.ended = True
        if self._files is not None:
            with writing(self._shown):
                self._files.drop()

    def _hold_live(self) -> None:
        assert self._run is not None
        if not self._run.is_live():
            raise self._ended()

    def _ended(self) -> ChannelError:
        return TargetError(
            f"the write to {self._shown} was aborted, or another run took it over, while a task was still writing: "
            "nothing of this task is added"
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with writing(self._shown):
            try:
                yield
            except FileNotFoundError as error:
                raise self._ended() from error


def new_files(receipts: Sequence[Receipt]) -> list[NewFile]:
    return [
        NewFile(path, rows, size, tuple((name, value) for name, value in partition), statistics)
        for receipt in receipts
        for path, rows, size, partition, statistics in receipt.details["files"]
    ]
