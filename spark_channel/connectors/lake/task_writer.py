"""Data files of one task, staged in its run."""

import json
import posixpath
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.arrow_schema import has_promises, without_hidden_nulls
from spark_channel.clock import utc_now
from spark_channel.connectors import Receipt, RowTally, TaskWriter
from spark_channel.connectors.base.claims import (
    HEARTBEAT_SECONDS,
    Claim,
    HeldClaim,
    Identity,
    is_alive,
)
from spark_channel.connectors.files.conditions import Condition
from spark_channel.connectors.files.filesystem import LOG, read_file, writing
from spark_channel.connectors.files.formats.base import Sink
from spark_channel.connectors.files.formats.parquet import RowGroupEncoder
from spark_channel.connectors.files.formats.types import leaf_columns
from spark_channel.connectors.files.store import Store
from spark_channel.connectors.lake.options import LakeWriteOptions
from spark_channel.connectors.lake.table import NewFile, Partition, conform
from spark_channel.errors import ChannelError, TargetError
from spark_channel.lazy import compute as pc

__all__ = [
    "DataFileEncoder",
    "FileSet",
    "FoundRun",
    "LakeTask",
    "Layout",
    "Run",
    "all_runs",
    "new_files",
    "new_run_name",
    "remove_stray_notes",
]


# One data file: Parquet, with the statistics that a table's log keeps.


_LONGEST_TEXT = 32


class DataFileEncoder(RowGroupEncoder):
    """`statistics` are there after `finish`."""

    def __init__(self, sink: Sink, schema: pa.Schema, options: LakeWriteOptions) -> None:
        self._metadata: list[Any] = []
        self.rows = 0
        self._promises = any(has_promises(field.type) for field in schema)
        super().__init__(
            sink,
            schema,
            options.row_group_rows,
            options.row_group_bytes,
            compression=options.compression,
            metadata_collector=self._metadata,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        if self._promises:
            columns = [without_hidden_nulls(column) for column in batch.columns]
            batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        super().write(batch)
        self.rows += batch.num_rows

    @property
    def statistics(self) -> dict[str, Any]:
        """{column: [smallest, largest, nulls]} of whole numbers, dates and short texts; plain data.

        A bound of None is not known. A column whose NULLs are not known is left out.
        """
        metadata = self._metadata[0]
        statistics = {}
        for column, number in enumerate(leaf_columns(self._schema)):
            field = self._schema.field(number)
            if pa.types.is_nested(field.type):
                continue
            chunks = [
                metadata.row_group(n).column(column).statistics
                for n in range(metadata.num_row_groups)
            ]
            if any(chunk is None or not chunk.has_null_count for chunk in chunks):
                continue
            nulls = sum(chunk.null_count for chunk in chunks)
            low, high = _bounds(field.type, chunks)
            statistics[field.name] = [low, high, nulls]
        return statistics


def _bounds(kind: pa.DataType, chunks: Sequence[Any]) -> tuple[Any, Any]:
    with_bounds = [chunk for chunk in chunks if chunk.has_min_max]
    if not (pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_string(kind)):
        return None, None
    if not with_bounds or any(not chunk.has_min_max and chunk.num_values for chunk in chunks):
        return None, None
    low, high = min(chunk.min for chunk in with_bounds), max(chunk.max for chunk in with_bounds)
    if isinstance(low, str) and max(len(low), len(high)) > _LONGEST_TEXT:
        return None, None
    return (low.isoformat(), high.isoformat()) if isinstance(low, date) else (low, high)


# The records of a run beside a table: that it is alive, and its data files, which no commit names before the publish.
#
# `<table>/_spark_channel/runs/<run>.json` says whose run it is; `<table>/<data>/<run>/` holds its files. A run's files
# are removed when its claim can no longer be published: the log says so, or its process is known to be dead and its
# claim was closed first. The files that a run is about to publish are noted before its commit, and never removed on a
# doubt.


_RUNS = "runs"
_ENDINGS = ("json", "publishing", "doubted", "ended")
_TRIES = 20


def new_run_name(job: str, epoch: int) -> str:
    """Unique: a job that is prepared twice before its table is there has two runs."""
    return f"{job}-e{epoch}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class Run:
    """One run in one table. `base` is the table's directory, `data` is relative to it."""

    store: Store
    base: str
    data: str
    name: str

    @property
    def folder(self) -> str:
        return posixpath.join(self.base, self.data, self.name)

    def _beside(self, ending: str) -> str:
        return posixpath.join(self.base, LOG, _RUNS, f"{self.name}.{ending}")

    def begin(self, claim: HeldClaim, process: str) -> None:
        identity = claim.identity
        about = {
            "job": claim.owner,
            "identity": [identity.kind, identity.name, identity.version],
            "epoch": claim.epoch,
            "position": claim.position,
            "process": process,
            "started": utc_now().isoformat(timespec="seconds"),
        }
        self._put("json", json.dumps(about).encode())

    def _put(self, ending: str, data: bytes) -> None:
        """Another run may remove the folder as empty while this one makes it."""
        for tries_left in reversed(range(_TRIES)):
            try:
                self.store.make(posixpath.dirname(self._beside(ending)))
                self.store.put(self._beside(ending), data)
                return
            except FileNotFoundError:
                if not tries_left:
                    raise

    def is_live(self) -> bool:
        """Whether the run was not ended. The log decides; this spares a task useless work."""
        return self.store.exists(self._beside("json")) and not self.store.exists(
            self._beside("ended")
        )

    def heartbeat(self) -> None:
        if self.is_live():
            self.store.touch(self._beside("json"))

    def note_publishing(self, paths: Sequence[str]) -> None:
        self._put("publishing", json.dumps(list(paths)).encode())

    def may_publish(self) -> bool:
        """Whether the run's commit may have been sent."""
        return self.store.exists(self._beside("publishing"))

    def publishing(self) -> list[str]:
        """The files (relative to the table) that the run may have published."""
        raw = self._read(self._beside("publishing"))
        try:
            return [] if raw is None else [str(path) for path in json.loads(raw)]
        except ValueError:  # it is being written, and the commit comes after
            return []

    def about(self) -> dict[str, Any] | None:
        raw = self._read(self._beside("json"))
        if raw is None:
            return None
        try:
            note = json.loads(raw)
        except (ValueError, RecursionError):
            return None
        return note if isinstance(note, dict) else None

    def held(self, target: str) -> HeldClaim | None:
        """The claim that the run began with; None = its note is gone or damaged."""
        note = self.about()
        try:
            assert note is not None
            identity = Identity(target, *note["identity"])
            return HeldClaim(identity, str(note["job"]), int(note["epoch"]), note["position"])
        except (AssertionError, KeyError, TypeError, ValueError):
            return None

    def is_dead(self, run_claim: HeldClaim) -> bool:
        """Whether the run's process is known to be gone; see `connectors.base.claims.is_alive`. Notes a doubt."""
        note = self.about()
        if note is None:
            return False  # it has ended since it was found, and took its notes away
        claim = Claim(
            run_claim.identity,
            run_claim.owner,
            run_claim.epoch,
            process=str(note.get("process", "")),
            beat_at=self._time(self._beside("json")) or str(note.get("started", "")),
            doubted_at=self._time(self._beside("doubted")),
        )
        liveness = is_alive(claim, utc_now().isoformat(timespec="seconds"))
        if liveness == "doubtful" and not claim.doubted_at > claim.beat_at:
            self._put("doubted", b"")
        return liveness == "dead"

    def end(self) -> None:
        """From here on it is not live."""
        self._put("ended", b"")

    def remove(self, keep: Collection[str] = ()) -> None:
        """Remove the run's files but `keep` (relative to the table), then its notes."""
        self.end()
        kept_paths = {posixpath.join(self.base, path) for path in keep}
        files = [info for info in self.store.entries(self.folder, recursive=True) if info.is_file]
        if any(info.path in kept_paths for info in files):
            self.store.remove_many([info.path for info in files if info.path not in kept_paths])
        elif self.store.exists(self.folder) or files:
            self.store.remove_tree(self.folder)
            self.store.remove_empty(posixpath.dirname(self.folder))
        # Whoever still finds the note "json" has read "publishing" before: see `all_runs`.
        for ending in _ENDINGS:
            self.store.remove(self._beside(ending))
        self.store.remove_unfinished(posixpath.join(self.base, LOG))
        self.store.remove_empty(posixpath.dirname(self._beside("json")))
        self.store.remove_empty(posixpath.join(self.base, LOG))

    def _time(self, path: str) -> str:
        info = self.store.info(path)
        if info.type == pafs.FileType.NotFound or info.mtime_ns is None:
            return ""
        return datetime.fromtimestamp(info.mtime_ns / 1e9, UTC).isoformat(timespec="seconds")

    def _read(self, path: str) -> bytes | None:
        return read_file(self.store.place, path)


def remove_stray_notes(store: Store, base: str) -> None:
    """Remove what is noted of runs that have ended: one wrote it when it woke up, or was killed while it removed it.

    A run has its note "json" from its beginning until its end.
    """
    folder = posixpath.join(base, LOG, _RUNS)
    names = {info.base_name for info in store.entries(folder)}
    for name in sorted(names):
        run, _, ending = name.rpartition(".")
        first = f"{run}.{_ENDINGS[0]}"
        stray = ending in _ENDINGS[1:] and first not in names
        if stray and not store.exists(posixpath.join(folder, first)):
            store.remove(posixpath.join(folder, name))
            store.remove_empty(folder)
            store.remove_empty(posixpath.dirname(folder))


@dataclass(frozen=True)
class FoundRun:
    """A run as it was found beside a table."""

    run: Run
    held: HeldClaim
    publishing: tuple[str, ...]


def all_runs(store: Store, base: str, data: str, target: str) -> tuple[list[FoundRun], set[str]]:
    """Every run that has a note, and all files (relative to the table) that any run may have published.

    What a run publishes is read before its note is: a run whose note is there has not lost the other one yet.
    """
    notes = store.entries(posixpath.join(base, LOG, _RUNS))
    names = [
        info.base_name.rpartition(".")[0] for info in notes if info.base_name.endswith(".json")
    ]
    runs = [Run(store, base, data, name) for name in names]
    publishing = {run.name: tuple(run.publishing()) for run in runs}
    runs_with_claims = [(run, run.held(target)) for run in runs]
    every = {path for paths in publishing.values() for path in paths}
    return [
        FoundRun(run, claim, publishing[run.name])
        for run, claim in runs_with_claims
        if claim is not None
    ], every


# One attempt of one task: data files in the run's folder, one at a time for each partition.


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
