"""The writers of files: one class, and one subclass per format. `publish` says what a commit does.

`commit=job`, the default: all rows or none. `commit=task`: each task is published by itself, under the
lock, with its entry in the ledger; rows come as tasks end, and each task counts once.
"""

import logging
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.connectors import Receipt, Tally, TaskWriter, WriteContext, WritePlan, Writer
from spark_channel.connectors.files.errors_at import writing
from spark_channel.connectors.files.formats import format_of
from spark_channel.connectors.files.formats.base import Encoder, Format
from spark_channel.connectors.files.manifest import HIDDEN
from spark_channel.connectors.files.options import (
    ArrowWriteOptions,
    CsvWriteOptions,
    FileWriteOptions,
    JsonWriteOptions,
    OrcWriteOptions,
    ParquetWriteOptions,
)
from spark_channel.connectors.files.paths import Location, locate, reopen
from spark_channel.connectors.files.publish import Publication, StagedFile, Target
from spark_channel.connectors.files.staging import JobFolder, file_name
from spark_channel.connectors.files.store import Store, store_of
from spark_channel.errors import CommitError, TargetError
from spark_channel.options import WriteOptions

__all__ = ["ArrowWriter", "CsvWriter", "FilesPlan", "FilesWriter", "JsonWriter", "OrcWriter", "ParquetWriter"]

_log = logging.getLogger(__name__)

_HEARTBEAT = 60.0


@dataclass(frozen=True)
class FilesPlan(WritePlan):
    """`root` and `path` are the target's `Location`; `made`: the directories that `prepare` made."""

    root: str = ""
    path: str = ""
    made: tuple[str, ...] = ()


class FilesWriter(Writer):
    """Writes files of one format into a directory."""

    Options: ClassVar[type[WriteOptions]] = FileWriteOptions
    format: ClassVar[str]

    @property
    def form(self) -> Format:
        return format_of(self.format)

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        self.form.check(schema, self.options)
        place = locate(self.options.path)
        store = store_of(place)
        shown = place.show()
        with writing(shown):
            if store.info(place.path).type == pafs.FileType.File:
                raise TargetError(f"{shown} is a file; a write needs a directory, which it fills with files")
            made = store.make(place.path)
            try:
                plan = self._prepare(context, schema, place, store, tuple(made))
                if plan.published_at is not None:
                    self._leave(store, place.path, ())
                return plan
            except BaseException:
                self._leave(store, place.path, made)
                raise

    def _prepare(
        self, context: WriteContext, schema: pa.Schema, place: Location, store: Store, made: tuple[str, ...]
    ) -> WritePlan:
        target = self._target(store, place.path)
        folder = JobFolder(store, place.path, context.job)
        plan = FilesPlan(
            job=context.job,
            schema=schema,
            commit=context.commit or "job",
            overwrite=context.overwrite,
            txn=context.txn,
            root=place.root,
            path=place.path,
            made=made,
        )
        with target.locked():
            try:
                folder.begin()
                target.remove_orphans(context.job, self.options.orphan_age)
                target.tidy()
                found = target.standing()
                manifest = found.manifest
                published = None
                if manifest and found.published:
                    published = manifest.job_published_at(context.job, context.txn)
                if published is not None:
                    target.forget(context.job)
                    return _published(plan, published)
                self._check_fits(plan, target)
                if not store.staged:
                    target.remember_before()
                if plan.commit == "task" and plan.overwrite:
                    target.publish(self._publication(plan, (), overwrite=True, done=False))
                    target.tidy()
                return plan
            except BaseException:
                target.forget(context.job)
                raise

    def _check_fits(self, plan: FilesPlan, target: Target) -> None:
        found = target.standing()
        manifest = found.manifest
        if manifest is None or not found.published:
            return
        if not plan.overwrite and manifest.format != self.form.name and manifest.files:
            raise TargetError(
                f"{self.options.path} holds {manifest.format} files; {self.form.name} files cannot be "
                "appended to it"
            )
        half = manifest.unfinished(plan.txn)
        if half is not None and plan.txn is not None:
            raise TargetError(
                f"job {half} published some tasks of txnAppId {plan.txn[0]!r}, txnVersion {plan.txn[1]}, "
                "and did not end. A "
                "new run may cut its rows differently, so it could not tell which of them are there: "
                "overwrite, or "
                "remove that job's files, and use a new txnVersion; commit=job has no such state"
            )

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        assert isinstance(plan, FilesPlan)
        return FilesTaskWriter(self, plan, task, attempt)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        assert isinstance(plan, FilesPlan)
        if plan.published_at is not None:
            return
        store = self._store(plan)
        target = self._target(store, plan.path)
        with writing(store.place.show(plan.path)):
            with target.locked():
                self._commit(plan, receipts, target)
                try:
                    target.tidy()
                    target.forget(plan.job)
                except OSError as error:
                    _log.warning("job %s is published; clearing up after it failed: %s", plan.job, error)
            self._leave(store, plan.path, ())

    def _commit(self, plan: FilesPlan, receipts: Sequence[Receipt], target: Target) -> None:
        manifest = target.manifest()
        job = manifest.jobs.get(plan.job)
        if job is not None and job.published_at is not None:
            return
        elsewhere = manifest.published_at(plan.txn)
        if elsewhere is not None:
            _log.warning("%s was published at %s by another job; nothing is published", plan.txn, elsewhere)
            return
        if plan.commit == "task":
            there = set(job.tasks or ()) if job else set()
            lost = sorted({receipt.task for receipt in receipts} - there)
            if lost:
                raise CommitError(f"tasks {lost} of job {plan.job} are not in the ledger of {plan.path}")
            files: list[StagedFile] = []
        else:
            files = [file for receipt in receipts for file in _files(plan, receipt)]
        keeps = bool(manifest.files) and (not plan.overwrite or plan.commit == "task")
        if not files and not keeps:
            files = [self._empty_file(plan)]
        target.publish(self._publication(plan, files, overwrite=plan.overwrite and plan.commit == "job"))

    def _publication(
        self,
        plan: FilesPlan,
        files: Sequence[StagedFile],
        *,
        overwrite: bool = False,
        task: int | None = None,
        done: bool = True,
    ) -> Publication:
        return Publication(
            job=plan.job,
            files=files,
            schema=plan.schema,
            dialect=self.form.dialect(self.options),
            overwrite=overwrite,
            txn=plan.txn,
            task=task,
            done=done,
        )

    def _empty_file(self, plan: FilesPlan) -> StagedFile:
        """A file without rows, so that the directory has a schema."""
        with_schema = FilesTaskWriter(self, plan, 0, 0, always=True)
        return _files(plan, with_schema.stage())[0]

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        assert isinstance(plan, FilesPlan)
        if plan.published_at is not None:
            return
        store = self._store(plan)
        target = self._target(store, plan.path)
        with writing(store.place.show(plan.path)):
            if not store.exists(plan.path):
                return
            # The marker goes before the lock is waited for: tasks that still run hear of it at once.
            store.remove(JobFolder(store, plan.path, plan.job).marker)
            with target.locked():
                target.forget(plan.job)
                target.tidy()
            self._leave(store, plan.path, plan.made)

    def _leave(self, store: Store, path: str, made: Sequence[str]) -> None:
        """Remove the hidden folder and the directories `prepare` made, if they are empty."""
        try:
            store.remove_empty(posixpath.join(path, HIDDEN))
            for directory in reversed(made):
                store.remove_empty(directory)
        except OSError as error:
            _log.warning("%s: an empty folder is left behind: %s", path, error)

    def _store(self, plan: FilesPlan) -> Store:
        return store_of(Location(reopen(plan.root), plan.path, plan.root))

    def _target(self, store: Store, path: str) -> Target:
        return Target(store, path, self.form.name, self.options.lock_timeout)


class FilesTaskWriter(TaskWriter):
    """One attempt: files of its own, begun with the first rows. Of a published pair it takes none."""

    def __init__(
        self, writer: FilesWriter, plan: FilesPlan, task: int, attempt: int, *, always: bool = False
    ) -> None:
        self._writer = writer
        self._plan = plan
        self._task, self._attempt = task, attempt
        self._options: FileWriteOptions = writer.options
        self._form = writer.form
        self._store = writer._store(plan)  # noqa: SLF001 - two halves of one class
        self._folder = JobFolder(self._store, plan.path, plan.job)
        self._directory = self._folder.attempt(task, attempt)
        self._shown = self._store.place.show(plan.path)
        self._always = always
        self._files: list[StagedFile] = []
        self._begun: list[str] = []
        self._stream: Any = None
        self._encoder: Encoder | None = None
        self._rows_in_file = 0
        self._tally = Tally(task, attempt)
        self._beat = self._store.clock.now()

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        if self._plan.published_at is not None:
            return
        with writing(self._shown):
            limit = self._options.max_rows_per_file
            start = 0
            while start < batch.num_rows:
                encoder = self._encoder or self._begin()
                part = batch.slice(start) if limit is None else batch.slice(start, limit - self._rows_in_file)
                encoder.write(part)
                start += part.num_rows
                self._rows_in_file += part.num_rows
                if self._is_full():
                    self._finish()
            self._tally.add(batch)
            self._heartbeat()

    def _is_full(self) -> bool:
        rows, nbytes = self._options.max_rows_per_file, self._options.max_bytes_per_file
        return (rows is not None and self._rows_in_file >= rows) or (
            nbytes is not None and self._stream.tell() >= nbytes
        )

    def _heartbeat(self) -> None:
        now = self._store.clock.now()
        if now - self._beat >= _HEARTBEAT:
            self._beat = now
            if self._folder.is_live():
                self._store.touch(self._folder.marker)

    def _begin(self) -> Encoder:
        if not self._folder.is_live():
            raise TargetError(
                f"job {self._plan.job} was aborted or ended while this task still wrote to {self._shown}"
            )
        if self._store.staged and not self._begun:
            self._store.make(self._directory)
        extension = self._form.extension(self._options)
        name = file_name(self._task, self._plan.job, self._attempt, len(self._files), extension)
        path = posixpath.join(self._directory, name)
        self._begun.append(path)
        self._stream = self._store.create(path)
        self._encoder = self._form.encoder(self._stream, self._plan.schema, self._options)
        self._rows_in_file = 0
        return self._encoder

    def _finish(self) -> None:
        if self._encoder is None:
            return
        self._encoder.finish()
        multi_line, self._encoder = self._encoder.multi_line, None
        self._store.seal(self._stream)
        path = self._begun[-1]
        folder = posixpath.relpath(self._directory, self._plan.path)
        size = self._store.info(path).size or 0
        self._files.append(StagedFile(folder, posixpath.basename(path), self._rows_in_file, size, multi_line))

    def stage(self) -> Receipt:
        """Finish the files, durably. They are not visible yet."""
        with writing(self._shown):
            if self._always and self._encoder is None and not self._files:
                self._begin()
            self._finish()
            if self._store.staged and self._begun:
                self._store.sync(self._directory)
            if self._begun and not self._folder.is_live():
                raise TargetError(
                    f"job {self._plan.job} was aborted while this task still wrote to {self._shown}"
                )
        details = {
            "folder": posixpath.relpath(self._directory, self._plan.path),
            "files": [[file.name, file.rows, file.nbytes, file.multi_line] for file in self._files],
        }
        return Receipt(self._task, self._attempt, self._tally.rows, self._tally.nbytes, details)

    def close(self) -> Receipt:
        self._tally.hold_open()
        receipt = self.stage()
        if self._plan.commit == "task" and self._plan.published_at is None:
            self._publish(receipt)
        self._tally.ended = True
        return receipt

    def _publish(self, receipt: Receipt) -> None:
        target = self._writer._target(self._store, self._plan.path)  # noqa: SLF001 - two halves of one class
        with writing(self._shown), target.locked():
            job = target.manifest().jobs.get(self._plan.job)
            if job is not None and self._task in (job.tasks or ()):
                self._discard()
                return
            if not self._folder.is_live():
                raise TargetError(
                    f"job {self._plan.job} was aborted while this task still wrote to {self._shown}"
                )
            files = _files(self._plan, receipt)
            target.publish(
                self._writer._publication(self._plan, files, task=self._task, done=False)  # noqa: SLF001
            )

    def rollback(self) -> None:
        if self._tally.ended:
            return
        self._tally.ended = True
        if self._encoder is not None:
            self._encoder.abandon()
        if self._stream is not None:
            try:
                self._stream.close()
            except (OSError, pa.ArrowException):
                pass  # what it held is dropped either way
        self._encoder = None
        with writing(self._shown):
            self._discard()

    def _discard(self) -> None:
        for path in self._begun:
            self._store.remove(path)
        if self._store.staged and self._begun:
            self._store.remove_empty(self._directory)


def _published(plan: FilesPlan, at: str) -> FilesPlan:
    from dataclasses import replace

    return replace(plan, published_at=at)


def _files(plan: FilesPlan, receipt: Receipt) -> list[StagedFile]:
    folder = receipt.details["folder"]
    return [StagedFile(folder, *file) for file in receipt.details["files"]]


class ParquetWriter(FilesWriter):
    """Parquet files."""

    Options = ParquetWriteOptions
    format = "parquet"


class CsvWriter(FilesWriter):
    """CSV files."""

    Options = CsvWriteOptions
    format = "csv"


class JsonWriter(FilesWriter):
    """Files of JSON lines."""

    Options = JsonWriteOptions
    format = "json"


class ArrowWriter(FilesWriter):
    """Arrow IPC files."""

    Options = ArrowWriteOptions
    format = "arrow"


class OrcWriter(FilesWriter):
    """ORC files."""

    Options = OrcWriteOptions
    format = "orc"
