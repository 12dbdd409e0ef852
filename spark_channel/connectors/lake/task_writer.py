"""One attempt of one task: data files in the run's folder, one at a time for each partition."""

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa

from spark_channel.connectors import Receipt, RowTally, TaskWriter
from spark_channel.connectors.base.claims import HEARTBEAT_SECONDS
from spark_channel.connectors.files.conditions import Condition
from spark_channel.connectors.files.file_errors import writing
from spark_channel.connectors.lake.columns import conform
from spark_channel.connectors.lake.data_file import DataFileEncoder
from spark_channel.connectors.lake.options import LakeWriteOptions
from spark_channel.connectors.lake.runs import Run
from spark_channel.connectors.lake.table import NewFile, Partition
from spark_channel.errors import ChannelError, TargetError
from spark_channel.lazy import compute as pc

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

    def __init__(
        self, run: Run, layout: Layout, options: LakeWriteOptions, prefix: str, label: str
    ) -> None:
        self._run, self._layout, self._options, self._shown = run, layout, options, label
        self._prefix = f"{prefix}-{uuid4().hex[:8]}"
        self._open: dict[Partition, _Open] = {}
        self.files: list[NewFile] = []
        self.begun: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows in the layout's columns."""
        for partition, rows in _parts(batch, self._layout, self._shown):
            self.write_into(partition, rows)
        while (
            sum(open_file.encoder.held_bytes for open_file in self._open.values()) > _MOST_HELD
            and len(self._open) > 1
        ):
            self._finish(
                max(self._open, key=lambda partition: self._open[partition].encoder.held_bytes)
            )

    def write_into(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """Rows of one partition, in the columns of its files."""
        open_file = self._open.get(partition) or self._begin(partition)
        open_file.encoder.write(rows)
        if (
            open_file.stream.tell() + open_file.encoder.held_bytes
            >= self._options.max_bytes_per_file
        ):
            self._finish(partition)

    def _begin(self, partition: Partition) -> _Open:
        if len(self._open) >= _MOST_OPEN:
            self._finish(max(self._open, key=lambda other: self._open[other].encoder.held_bytes))
        name = f"{self._prefix}-{len(self.begun):03d}.{self._options.compression}.parquet"
        path = posixpath.join(self._run.folder, name)
        self._run.store.make(self._run.folder)
        self.begun.append(path)
        stream = self._run.store.create(path)
        open_file = _Open(
            stream, DataFileEncoder(stream, self._layout.in_files, self._options), path
        )
        self._open[partition] = open_file
        return open_file

    def _finish(self, partition: Partition) -> None:
        open_file = self._open[partition]
        open_file.encoder.finish()
        self._run.store.seal(open_file.stream)
        del self._open[partition]
        size = self._run.store.info(open_file.path).size or 0
        path = posixpath.relpath(open_file.path, self._run.base)
        self.files.append(
            NewFile(path, open_file.encoder.rows, size, partition, open_file.encoder.statistics)
        )

    def finish(self) -> None:
        for partition in list(self._open):
            self._finish(partition)
        if self.begun:
            self._run.store.sync(self._run.folder)

    def drop(self) -> None:
        for open_file in self._open.values():
            open_file.encoder.abandon()
            try:
                open_file.stream.close()
            except (OSError, pa.ArrowException):
                pass  # its rows are dropped either way
        self._open = {}
        for path in self.begun:
            self._run.store.remove(path)


def _parts(
    batch: pa.RecordBatch, layout: Layout, label: str
) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """The rows of each partition."""
    names = layout.partition_by
    if not batch.num_rows:
        return
    rows = batch.select(layout.in_files.names)
    if not names:
        yield (), rows
        return
    # By numbers: Arrow takes some names for paths.
    columns = [str(number) for number in range(len(names))]
    keys = pa.table(
        [_as_text(batch.column(name), name, layout, label) for name in names], names=columns
    )
    keys = keys.append_column("row", pa.array(range(batch.num_rows), pa.int64()))
    groups = keys.group_by(columns, use_threads=False).aggregate([("row", "list")])
    for number in range(groups.num_rows):
        partition = tuple(
            (name, groups.column(column)[number].as_py())
            for name, column in zip(names, columns, strict=True)
        )
        yield partition, rows.take(groups.column("row_list")[number].values)


def _as_text(values: pa.Array, name: str, layout: Layout, label: str) -> pa.Array:
    texts = values.cast(pa.string())
    if layout.empty_text_is_null and pc.any(pc.equal(texts, "")).as_py():
        raise TargetError(
            f"partition column {name!r} holds the empty text, which {label} could not distinguish from NULL; "
            "write NULL or another text"
        )
    return texts


class LakeTask(TaskWriter):
    """One attempt. It takes no rows if the write was published before."""

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
        self._tally = RowTally(task, attempt)
        prefix = f"part-{task:05d}-{attempt}"
        self._files = None if run is None else FileSet(run, layout, options, prefix, shown)
        self._beat = 0.0 if run is None else run.store.clock.now()

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.check_open()
        if self._run is None or self._files is None:
            return
        rows = conform(batch, self._layout.columns, self._layout.names, self._shown)
        self._check(rows)
        with self._writing():
            if not self._files.begun:
                self._check_live()
            self._files.write(rows)
            self._tally.add(batch)
            now = self._run.store.clock.now()
            if now - self._beat >= HEARTBEAT_SECONDS:
                self._beat = now
                self._run.heartbeat()

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
        self._tally.check_open()
        files: list[NewFile] = []
        if self._files is not None:
            with self._writing():
                self._files.finish()
                if self._files.begun:
                    self._check_live()
            files = self._files.files
        return self._tally.receipt(
            files=[
                [f.path, f.rows, f.size, [list(p) for p in f.partition], dict(f.statistics)]
                for f in files
            ]
        )

    def rollback(self) -> None:
        if self._tally.ended:
            return
        self._tally.ended = True
        if self._files is not None:
            with writing(self._shown):
                self._files.drop()

    def _check_live(self) -> None:
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
