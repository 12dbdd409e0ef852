"""Merges the small files of a directory: the same rows in the same order, about a GiB in one entry of the log.

Each such step is a write of its own, with a claim and staging. A reader that has the old list finds the old files until
option `retention` is over; then the next write removes them. A merge whose sources another job has taken out meanwhile
(an overwrite, another merge) is dropped.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.connectors.base.claims import Identity
from spark_channel.connectors.base.compaction import Compaction, in_steps, published, small_groups
from spark_channel.connectors.base.contract import TaskWriter, WriteContext
from spark_channel.connectors.base.registry import load_reader
from spark_channel.connectors.files.claims import MergedFile, check_format
from spark_channel.connectors.files.filesystem import Location, locate, login_of, writing
from spark_channel.connectors.files.formats.base import Format
from spark_channel.connectors.files.listing import SourceFile
from spark_channel.connectors.files.log import Dialect, Manifest, newest_entry
from spark_channel.connectors.files.options import FileWriteOptions
from spark_channel.connectors.files.parts import DataFile
from spark_channel.connectors.files.publish import (
    Output,
    StagedFile,
    TargetDirectory,
    staged_files,
)
from spark_channel.connectors.files.reader import FilesReader
from spark_channel.connectors.files.store import store_of
from spark_channel.connectors.remote import is_remote
from spark_channel.errors import CommitError, SourceError, TargetError, UnsupportedError
from spark_channel.plain_text import log_of

if TYPE_CHECKING:
    from spark_channel.connectors.files.writer import FilesPlan, FilesWriter

__all__ = ["compact_folder", "format_of_folder", "gather"]

_log = log_of(__name__)


def format_of_folder(path: str, options: Mapping[str, Any]) -> str | None:
    """The connector of a folder, by the log in it; None = it has none, or is no folder that can be looked at.

    `options`: the target's, of which option `storageOptions` may be needed for that.
    """
    if is_remote(path):
        return None
    place = locate(path, login=login_of(options))
    with writing(place.show()):
        if place.info(posixpath.join(place.path, "_delta_log")).type == pafs.FileType.Directory:
            return "delta"
        entry = newest_entry(place, place.path)
    return None if entry is None else entry.manifest.format


@dataclass(frozen=True, slots=True)
class _Kind:
    """What files have in common that can be merged."""

    folder: str
    schema: str
    codec: str


def compact_folder(writer: "FilesWriter", target: int, *, dry_run: bool) -> Compaction:
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
    place = locate(options.path, login=options.login)
    shown = writer.names.show(place.show())
    with writing(shown):
        if newest_entry(place, writer.names.home(place.path)) is None:
            raise TargetError(
                f"{shown} has no log of spark-channel, by which its readers see other files in one step; name a folder "
                "that a job wrote, or copy the files into one"
            )
        directory = writer.directory(store_of(place), place.path)
        manifest = directory.manifest()
        check_format(manifest, writer.form.name, shown)
        groups = _groups(writer, manifest, target)
        sources = [file for group in groups for file in group]
        found = Compaction(
            len(manifest.files),
            len(sources),
            sum(file.nbytes for file in sources),
            len(groups),
            None if dry_run else 0,
            sum(file.rows or 0 for file in sources),
            f"stay readable for {options.retention:g} s, then the next write or `compact` removes them",
        )
        if dry_run:
            return found
        run = _Run(writer, directory, place, shown)
        made = published(
            in_steps(groups, lambda file: file.nbytes), run.merge, lambda each: len(each[1].sources)
        )
        directory.remove_due()
    done = [source for _, each in made for source in each.sources]
    return replace(
        found,
        merged=len(done),
        merged_bytes=sum(file.nbytes for file in done),
        made=len(made),
        made_bytes=sum(file.nbytes for file, _ in made),
        rows=sum(file.rows for file, _ in made),
        left=tuple(run.left),
        dropped=len(sources) - len(done) - run.left_files,
    )


def _groups(writer: "FilesWriter", manifest: Manifest, target: int) -> list[list[DataFile]]:
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
    writer: "FilesWriter"
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
        taken = directory.take(context, Identity.for_write(self.shown, context), empty=False)
        assert taken.held is not None
        plan = writer.merging(context.job, taken.held, self.place)
        try:
            writer.start(plan, directory)
            manifest = directory.manifest()
            found = [
                self._merged(plan, manifest, number, each) for number, each in enumerate(groups)
            ]
            done = self._publish(plan, [each for each in found if each is not None])
        except BaseException:
            writer.give_back(plan, directory)
            raise
        if done:
            writer.clear(plan, directory)
        else:
            writer.give_back(plan, directory)
        return done

    def _publish(self, plan: "FilesPlan", made: list[_Made]) -> list[_Made]:
        while made:
            there = set(self.directory.manifest().files)
            made = [each for each in made if set(each[1].sources) <= there]
            if made and self.directory.merge(
                plan.claim, [staged for staged, _ in made], [merged for _, merged in made]
            ):
                return made
        return []

    def _merged(
        self, plan: "FilesPlan", manifest: Manifest, number: int, group: Sequence[DataFile]
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

    def _writer_of(self, file: DataFile, dialect: Dialect) -> "FilesWriter":
        """A writer of files like this one."""
        options = self.writer.options
        known = {name: value for name, value in dialect.items() if hasattr(options, name)}
        codec = _codec(self.writer.form, options, file.path)
        whole = {"compression": codec, "max_rows_per_file": None, "max_bytes_per_file": None}
        return type(self.writer)(options.model_copy(update={**known, **whole}))


def _copied(
    writer: "FilesWriter", sources: Sequence[SourceFile], task: TaskWriter, schema: pa.Schema
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


def _reader(writer: "FilesWriter", schema: pa.Schema) -> FilesReader:
    options = writer.options
    asked = {"reader": writer.form.name, "path": options.path}
    if options.storage_options is not None:
        asked["storageOptions"] = options.storage_options.get_secret_value()
    reader, _ = load_reader(asked)
    assert isinstance(reader, FilesReader)
    return reader.with_columns(schema)


def gather(
    writer: "FilesWriter",
    plan: "FilesPlan",
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
    for file, listed in zip(files, added.files, strict=True):
        path = directory.inside(file.folder, file.name)
        time = directory.store.info(path).mtime_ns or 0
        place = directory.store.place
        sources.append(
            SourceFile(place.root, path, file.nbytes, time, listed=listed, manifest=manifest)
        )
    try:
        made = _copied(writer, sources, writer.merged(plan, plan.schema, 0), plan.schema)
    except SourceError as error:
        if not writer.form.text:
            raise CommitError(f"{error}. The target is unchanged; run the job again") from error
        _log.debug("job %s: the files of its tasks stay apart: %s", plan.job, error)
        return list(files)
    lost = sum(file.rows for file in files) - sum(file.rows for file in made)
    if lost:
        raise CommitError(
            f"{directory.shown}: the files of job {plan.job} lack {lost} rows that its tasks have written: the disk is "
            "damaged, or another program changes them. The target is unchanged; run the job again"
        )
    return made
