"""Merges the small files of a directory: the same rows in the same order, about a GiB in one entry of the log.

Each such step is a write of its own, with a claim and staging. A reader that has the old list finds the old files until
option `retention` is over; then the next write removes them. A merge whose sources another job has taken out meanwhile
(an overwrite, another merge) is dropped.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.connectors.base.claims import HeldClaim, Identity
from spark_channel.connectors.base.compaction import Compaction, in_steps, published, small_groups
from spark_channel.connectors.base.contract import TaskWriter, WriteContext
from spark_channel.connectors.base.registry import load_reader
from spark_channel.connectors.files.claims import MergedFile, check_format
from spark_channel.connectors.files.credentials import login_of
from spark_channel.connectors.files.file_errors import writing
from spark_channel.connectors.files.file_names import OwnedFileNames
from spark_channel.connectors.files.filesystem import Location, locate
from spark_channel.connectors.files.formats.base import Format
from spark_channel.connectors.files.listing import SourceFile
from spark_channel.connectors.files.log import newest_entry
from spark_channel.connectors.files.manifest import Dialect, Manifest
from spark_channel.connectors.files.options import FileWriteOptions
from spark_channel.connectors.files.parts import DataFile
from spark_channel.connectors.files.plan import FilesPlan
from spark_channel.connectors.files.publish import (
    Output,
    StagedFile,
    TargetDirectory,
    staged_files,
)
from spark_channel.connectors.files.reader import FilesReader
from spark_channel.connectors.files.store import Store, store_of
from spark_channel.connectors.remote import is_remote
from spark_channel.errors import CommitError, SourceError, TargetError, UnsupportedError
from spark_channel.plain_text import log_of

__all__ = ["compact_folder", "format_of_folder", "gather"]

_log = log_of(__name__)


class FolderWriter(Protocol):
    """The writer of a folder, as a merge of its files uses it."""

    @property
    def options(self) -> FileWriteOptions: ...
    @property
    def form(self) -> Format: ...
    @property
    def names(self) -> OwnedFileNames: ...

    def with_options(self, options: FileWriteOptions) -> "FolderWriter":
        """A writer of the same format."""

    def directory(self, store: Store, path: str) -> TargetDirectory: ...

    def merging(self, job: str, held_claim: HeldClaim, location: Location) -> FilesPlan:
        """The plan of a run that merges files."""

    def start(self, plan: FilesPlan, target: TargetDirectory) -> None:
        """Make the run's staging folder."""

    def merged(self, plan: FilesPlan, schema: pa.Schema, number: int) -> TaskWriter:
        """A new file of such a run."""

    def clear(self, plan: FilesPlan, target: TargetDirectory) -> None:
        """After the write has ended, one way or the other."""

    def give_back(self, plan: FilesPlan, target: TargetDirectory) -> None:
        """Give the run's claim back, and remove what it staged."""


def format_of_folder(path: str, options: Mapping[str, Any]) -> str | None:
    """The connector of a folder, by the log in it; None = it has none, or is no folder that can be looked at.

    `options`: the target's, of which option `storageOptions` may be needed for that.
    """
    if is_remote(path):
        return None
    location = locate(path, login=login_of(options))
    with writing(location.show()):
        if (
            location.info(posixpath.join(location.path, "_delta_log")).type
            == pafs.FileType.Directory
        ):
            return "delta"
        entry = newest_entry(location, location.path)
    return None if entry is None else entry.manifest.format


@dataclass(frozen=True, slots=True)
class _Kind:
    """What files have in common that can be merged."""

    folder: str
    schema: str
    codec: str


def compact_folder(writer: FolderWriter, target: int, *, dry_run: bool) -> Compaction:
    """Merge files that are small beside `target` bytes.

    Raises:
        UnsupportedError: on a server of files. TargetError: no log, or another format. CommitError: nothing changed.
    """
    options = writer.options
    if is_remote(options.path):
        raise UnsupportedError(
            "over SFTP and FTP a folder has no log, and its readers would see files while they are merged: write fewer "
            "files with 'channels', or copy them into another folder"
        )
    location = locate(options.path, login=options.login)
    target_name = writer.names.show(location.show())
    with writing(target_name):
        if newest_entry(location, writer.names.home(location.path)) is None:
            raise TargetError(
                f"{target_name} has no log of spark-channel, by which its readers see other files in one step; "
                "name a folder that a job wrote, or copy the files into one"
            )
        directory = writer.directory(store_of(location), location.path)
        manifest = directory.manifest()
        check_format(manifest, writer.form.name, target_name)
        groups = _groups(writer, manifest, target)
        sources = [file for group in groups for file in group]
        compaction = Compaction(
            len(manifest.files),
            len(sources),
            sum(file.nbytes for file in sources),
            len(groups),
            None if dry_run else 0,
            sum(file.rows or 0 for file in sources),
            f"stay readable for {options.retention:g} s, then the next write or `compact` removes them",
        )
        if dry_run:
            return compaction
        run = _Run(writer, directory, location, target_name)
        merges = published(
            in_steps(groups, lambda file: file.nbytes),
            run.merge,
            lambda merged: len(merged[1].sources),
        )
        directory.remove_due()
    merged_sources = [source for _, merged in merges for source in merged.sources]
    return replace(
        compaction,
        merged=len(merged_sources),
        merged_bytes=sum(file.nbytes for file in merged_sources),
        made=len(merges),
        made_bytes=sum(file.nbytes for file, _ in merges),
        rows=sum(file.rows for file, _ in merges),
        left=tuple(run.left),
        dropped=len(sources) - len(merged_sources) - run.left_files,
    )


def _groups(writer: FolderWriter, manifest: Manifest, target: int) -> list[list[DataFile]]:
    """In the order of their names, as readers return them. Files of other writers are not merged: no log says how they
    are to be read.
    """

    def kind(file: DataFile) -> _Kind | None:
        codec = _codec(writer.form, writer.options, file.path)
        if file.schema is None or file.rows is None or codec is None:
            return None
        if len(manifest.dialects.get(file.schema, {}).get("sep") or ",") > 1:
            return None  # texts of several characters between values, which no reader parses
        if _has_one_dictionary(writer.form, manifest.schemas[file.schema]):
            return None
        return _Kind(posixpath.dirname(file.path), file.schema, codec)

    files = sorted(manifest.files, key=lambda file: file.path)
    return small_groups(files, kind, lambda file: file.nbytes, target)


def _has_one_dictionary(form: Format, schema: pa.Schema) -> bool:
    """Whether a file has one dictionary for a column, and those of several files may differ."""
    return form.name == "arrow" and any("dictionary<" in str(each.type) for each in schema)


def _codec(form: Format, options: FileWriteOptions, path: str) -> str | None:
    """The codec that the ending of a file's name says; None = another program's ending."""
    endings = {
        form.extension(options.model_copy(update={"compression": codec})): codec
        for codec in type(options).codecs
    }
    fitting = [ending for ending in endings if path.endswith(f".{ending}")]
    return endings[max(fitting, key=len)] if fitting else None


_Made = tuple[StagedFile, MergedFile]


@dataclass
class _Run:
    writer: FolderWriter
    directory: TargetDirectory
    place: Location
    shown: str
    left: list[str] = field(default_factory=list)
    left_files: int = 0

    def merge(self, groups: Sequence[Sequence[DataFile]]) -> list[_Made]:
        """Returns what was published."""
        with writing(self.shown):
            return self._merge(groups)

    def _merge(self, groups: Sequence[Sequence[DataFile]]) -> list[_Made]:
        directory, writer = self.directory, self.writer
        directory.ready()
        context = WriteContext(f"compact-{uuid4().hex[:12]}")
        decision = directory.take(context, Identity.for_write(self.shown, context), empty=False)
        assert decision.held is not None
        plan = writer.merging(context.job, decision.held, self.place)
        try:
            writer.start(plan, directory)
            manifest = directory.manifest()
            merges = [
                self._merged(plan, manifest, number, group) for number, group in enumerate(groups)
            ]
            published_merges = self._publish(plan, [merge for merge in merges if merge is not None])
        except BaseException:
            writer.give_back(plan, directory)
            raise
        if published_merges:
            writer.clear(plan, directory)
        else:
            writer.give_back(plan, directory)
        return published_merges

    def _publish(self, plan: FilesPlan, merges: list[_Made]) -> list[_Made]:
        while merges:
            visible = set(self.directory.manifest().files)
            merges = [merge for merge in merges if set(merge[1].sources) <= visible]
            if merges and self.directory.merge(
                plan.claim, [staged for staged, _ in merges], [merged for _, merged in merges]
            ):
                return merges
        return []

    def _merged(
        self, plan: FilesPlan, manifest: Manifest, number: int, group: Sequence[DataFile]
    ) -> _Made | None:
        """The rows of a group in a new, staged file; None = another job has taken one of its files out, or they cannot
        be read, as `left` says.
        """
        first = group[0]
        assert first.schema is not None
        schema, dialect = manifest.schemas[first.schema], manifest.dialects.get(first.schema, {})
        infos = [self.directory.store.info(self.directory.inside(file.path)) for file in group]
        if any(info.type != pafs.FileType.File for info in infos):
            return None
        times = [info.mtime_ns or 0 for info in infos]
        sources = [
            SourceFile(
                self.place.root,
                self.directory.inside(file.path),
                file.nbytes,
                time,
                listed=file,
                manifest=manifest,
            )
            for file, time in zip(group, times, strict=True)
        ]
        task = self._writer_of(first, dialect).merged(plan, schema, number)
        rows = sum(file.rows or 0 for file in group)
        try:
            (staged,) = _copied(self.writer, sources, task, schema)
            if staged.rows != rows:
                raise SourceError(
                    f"they have {staged.rows} rows, and the log says {rows}: look for a program that changes files in "
                    "place"
                )
        except SourceError as error:
            if set(group) <= set(self.directory.manifest().files):
                self.left_files += len(group)
                self.left.append(f"{len(group)} files from {first.path} on: {error}")
            return None
        output = Output(self.writer.form.name, schema, dialect)
        file = replace(output.added(plan.job, [staged]).files[0], schema=first.schema)
        return staged, MergedFile(file, tuple(group), tuple(times))

    def _writer_of(self, file: DataFile, dialect: Dialect) -> FolderWriter:
        """A writer of files like this one."""
        options = self.writer.options
        dialect_options = {name: value for name, value in dialect.items() if hasattr(options, name)}
        codec = _codec(self.writer.form, options, file.path)
        whole = {"compression": codec, "max_rows_per_file": None, "max_bytes_per_file": None}
        return self.writer.with_options(options.model_copy(update={**dialect_options, **whole}))


def _copied(
    writer: FolderWriter, sources: Sequence[SourceFile], task: TaskWriter, schema: pa.Schema
) -> list[StagedFile]:
    """The files of `task` with the rows of `sources`, in their order; it is ended in any case."""
    reader = _reader(writer, schema)
    try:
        for source in sources:
            for split in reader.split_files([source], 1):
                for batch in reader.read(split):
                    task.write(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        return staged_files(task.close())
    except BaseException:
        task.rollback()
        raise


def _reader(writer: FolderWriter, schema: pa.Schema) -> FilesReader:
    options = writer.options
    reader_options = {"reader": writer.form.name, "path": options.path}
    if options.storage_options is not None:
        reader_options["storageOptions"] = options.storage_options.get_secret_value()
    reader, _ = load_reader(reader_options)
    assert isinstance(reader, FilesReader)
    return reader.with_columns(schema)


def gather(
    writer: FolderWriter,
    plan: FilesPlan,
    directory: TargetDirectory,
    output: Output,
    files: Sequence[StagedFile],
) -> list[StagedFile]:
    """The rows of staged files, in their order, in as few as the options allow; the files themselves where a text
    cannot be read back. What is not published goes with the run's staging.
    """
    if getattr(writer.options, "raw", False) or _has_one_dictionary(writer.form, plan.schema):
        return list(files)  # the first, no reader parses
    added = output.added(plan.job, files)
    manifest = Manifest(added.format, schemas=added.schemas, dialects=added.dialects)
    sources = []
    for file, data_file in zip(files, added.files, strict=True):
        path = directory.inside(file.folder, file.name)
        time = directory.store.info(path).mtime_ns or 0
        location = directory.store.place
        sources.append(
            SourceFile(location.root, path, file.nbytes, time, listed=data_file, manifest=manifest)
        )
    try:
        copies = _copied(writer, sources, writer.merged(plan, plan.schema, 0), plan.schema)
    except SourceError as error:
        if not writer.form.text:
            raise CommitError(f"{error}. The target is unchanged; run the job again") from error
        _log.debug("job %s: the files of its tasks stay apart: %s", plan.job, error)
        return list(files)
    lost = sum(file.rows for file in files) - sum(file.rows for file in copies)
    if lost:
        raise CommitError(
            f"{directory.shown}: the files of job {plan.job} lack {lost} rows that its tasks have written: the disk is "
            "damaged, or another program changes them. The target is unchanged; run the job again"
        )
    return copies
