"""The writers of files: one class, and one subclass per format. `publish` has the commit.

`commit=job`, the default: all rows or none. `commit=task`: each task's files are published by an entry of the log of
their own, with the task's receipt; rows come as tasks end, and each task counts once.
"""

import hashlib
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import pyarrow as pa

from spark_channel.clock import utc_text
from spark_channel.connectors import Receipt, RowTally, TaskWriter, WriteContext, WritePlan, Writer
from spark_channel.connectors.base.claims import (
    HEARTBEAT_SECONDS,
    HeldClaim,
    Identity,
    StreamProgress,
    progress_of,
)
from spark_channel.connectors.base.compaction import Compaction, are_few
from spark_channel.connectors.base.contract import PartialWrite
from spark_channel.connectors.base.definition import notes_of, with_not_null, with_notes
from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim
from spark_channel.connectors.base.overlap import MOST_COUNTED
from spark_channel.connectors.files.credentials import StorageCredentials
from spark_channel.connectors.files.file_errors import reading, writing
from spark_channel.connectors.files.file_names import OwnedFileNames, new_attempt, run_name
from spark_channel.connectors.files.filesystem import LOG, Location, locate, read_file, reopen
from spark_channel.connectors.files.foreign_files import (
    check_directory,
    check_may_write,
    counted,
    foreign,
    head_of,
    refuse_shared_directory,
    refuse_strange,
    refuse_table,
)
from spark_channel.connectors.files.formats import format_of
from spark_channel.connectors.files.formats.base import Encoder, Format
from spark_channel.connectors.files.job_folders import JobFolder
from spark_channel.connectors.files.kept_claims import kept
from spark_channel.connectors.files.manifest import claim_key
from spark_channel.connectors.files.options import (
    ArrowWriteOptions,
    CsvWriteOptions,
    FileWriteOptions,
    JsonWriteOptions,
    OrcWriteOptions,
    ParquetWriteOptions,
)
from spark_channel.connectors.files.plan import FilesPlan
from spark_channel.connectors.files.publish import (
    Output,
    StagedFile,
    TargetDirectory,
    staged_files,
)
from spark_channel.connectors.files.remote_writer import RemotePlan, RemoteTarget
from spark_channel.connectors.files.store import Store, store_of
from spark_channel.connectors.files.visible_files import files_of_prefix, has_files
from spark_channel.connectors.remote import is_remote
from spark_channel.errors import CommitError, OptionError, SupersededError, TargetError
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of

__all__ = [
    "ArrowWriter",
    "CsvWriter",
    "FilesTaskWriter",
    "FilesWriter",
    "JsonWriter",
    "OrcWriter",
    "ParquetWriter",
]

_log = log_of(__name__)

_MOST_FOOTERS = 100
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


class FilesWriter(Writer):
    """Writes files of one format into a directory."""

    Options: ClassVar[type[WriteOptions]] = FileWriteOptions
    makes_files = True
    options: FileWriteOptions
    format: ClassVar[str]

    @property
    def form(self) -> Format:
        return format_of(self.format)

    def _remote(self) -> RemoteTarget:
        return RemoteTarget(
            self.form, self.options, locate(self.options.path, login=self.options.login)
        )

    @property
    def names(self) -> OwnedFileNames:
        return OwnedFileNames(self.options.file_prefix)

    def exists(self) -> bool | None:
        if is_remote(self.options.path):
            return self._remote().exists()
        location = locate(self.options.path, login=self.options.login)
        with writing(location.show()):
            if self.names.prefix is None:
                return has_files(location)
            return bool(files_of_prefix(location, location.path, self.names.prefix))

    def foreign_content(self, schema: pa.Schema) -> str:
        if is_remote(self.options.path):
            return self._remote().foreign_content()
        location = locate(self.options.path, login=self.options.login)
        with writing(location.show()):
            check_directory(location)
            paths = foreign(self.directory(store_of(location), location.path).paths())
        return counted(paths)

    def rehearse(self, context: WriteContext, schema: pa.Schema) -> None:
        schema = self._noted(context, schema)
        if is_remote(self.options.path):
            self._remote().rehearse(context, schema)
            return
        self.form.check(schema, self.options)
        location = locate(self.options.path, login=self.options.login)
        with writing(location.show()):
            check_directory(location)
            check_may_write(location)
            if context.overwrite:
                self._refuse_foreign(location, self.directory(store_of(location), location.path))

    def _refuse_foreign(self, location: Location, target: TargetDirectory) -> None:
        """
        Raises:
            TargetError: what an overwrite would remove does not look like a former state of these files.
        """
        if self.names.prefix is not None:
            return  # the option says whose files they are
        refuse_shared_directory(location)
        refuse_table(location)
        if not self.options.replace_foreign_files:
            paths = foreign(target.paths())
            refuse_strange(location.show(), self.format, paths, partial(head_of, location))

    def _noted(self, context: WriteContext, schema: pa.Schema) -> pa.Schema:
        """The columns with what `createTable` asks for of their source's definition.

        Raises:
            OptionError: the rows do not come from one table.
        """
        self.left_out = ()
        level = getattr(self.options, "create_table", "columns")
        if level == "columns":
            return schema
        is_full = level == "full"
        definition = (
            None if context.definition is None else context.definition(keys_only=not is_full)
        )
        if definition is None:
            raise OptionError(
                f"option 'createTable' got {level!r}, and the rows of {self.options.path} are not those of one table, "
                "unchanged, of a database that says how it is defined: omit it",
                option="createTable",
                got=level,
                takes="columns",
            )
        key, comments, unsupported = notes_of(
            definition, with_not_null(schema, definition), is_full=is_full
        )
        never = [column.name for column in definition.columns if column.not_null]
        unsupported += [f"NOT NULL of {', '.join(never)}"] if never else []
        if unsupported:
            _log.warning(
                "%s is made without %s: the format has none",
                self.options.path,
                "; ".join(unsupported),
            )
        self.left_out = tuple(unsupported)
        noted = with_notes(schema, key, comments)
        if is_full and definition.comment is not None:
            noted = noted.with_metadata({**(noted.metadata or {}), "comment": definition.comment})
        return noted

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        schema = self._noted(context, schema)
        if is_remote(self.options.path):
            return self._remote().prepare(context, schema)
        self.form.check(schema, self.options)
        if not _JOB.fullmatch(context.job):
            raise OptionError(
                f"job {context.job!r} cannot name a folder; option 'jobId' takes letters, digits, '.', '_' and '-'",
                option="jobId",
                got=context.job,
            )
        location = locate(self.options.path, login=self.options.login)
        store = store_of(location)
        target_name = self.names.show(location.show())
        plan = FilesPlan(
            job=context.job,
            schema=schema,
            commit=context.commit or "job",
            overwrite=context.overwrite,
            txn=context.txn,
            gathers=context.gathers,
            root=location.root,
            path=location.path,
        )
        with writing(target_name):
            check_directory(location)
            target = self.directory(store, location.path)
            if context.overwrite:
                self._refuse_foreign(location, target)
            target.ready()
            empty = plan.commit == "task" and plan.overwrite
            decision = target.take(context, Identity.for_write(target_name, context), empty=empty)
            if decision.overtaken is not None:
                _log.warning(
                    "job %s takes the claim on %s over from run %s",
                    context.job,
                    target_name,
                    decision.overtaken.owner,
                )
            if decision.held is None:
                return replace(plan, published_at=decision.published_at or "an unknown time")
            plan = replace(plan, held=decision.held)
            self.start(plan, target)
        return plan

    def start(self, plan: FilesPlan, target: TargetDirectory) -> None:
        """Make the run's staging folder, and remove what dead runs left."""
        try:
            self._folder(target.store, plan).begin()
            target.remove_orphans()
        except BaseException as error:
            if isinstance(error, FileNotFoundError):
                target.fence(plan.claim)  # the run that took over has removed the folder
            self.give_back(plan, target)
            raise

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        if isinstance(plan, RemotePlan):
            return self._remote().open(plan, task, attempt)
        assert isinstance(plan, FilesPlan)
        return FilesTaskWriter(self, plan, task, attempt)

    def compact(self, target_bytes: int, *, dry_run: bool = False) -> Compaction:
        from spark_channel.connectors.files.compact import compact_folder

        return compact_folder(self, target_bytes, dry_run=dry_run)

    def merging(self, job: str, held_claim: HeldClaim, location: Location) -> FilesPlan:
        """The plan of a run that merges files."""
        return FilesPlan(
            job, pa.schema([]), "job", held=held_claim, root=location.root, path=location.path
        )

    def with_options(self, options: FileWriteOptions) -> Self:
        """A writer of the same format with other options."""
        return type(self)(options)

    def merged(self, plan: FilesPlan, schema: pa.Schema, number: int) -> TaskWriter:
        """A new file of such a run, also for no rows."""
        return FilesTaskWriter(self, replace(plan, schema=schema), number, 0, always=True)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        assert isinstance(plan, FilesPlan)
        if plan.held is None:
            return None
        with writing(self.options.path):
            receipts = (
                self.directory(self._store(plan), plan.path).manifest().receipts(plan.held.identity)
            )
        return next((receipt for receipt in receipts if receipt.task == task), None)

    def unfinished(self, context: WriteContext) -> PartialWrite | None:
        if context.txn is None or is_remote(self.options.path):
            return None
        location = locate(self.options.path, login=self.options.login)
        store = store_of(location)
        with writing(location.show()):
            home = self.names.home(location.path)
            if not store.exists(posixpath.join(home, LOG)):
                return None
            manifest = self.directory(store, location.path).manifest()
            identity = Identity.for_write(self.names.show(location.show()), context)
            claim, receipts = manifest.claim(identity), manifest.receipts(identity)
            if claim is None or claim.has_published(None) or not receipts:
                return None
            plan_number = manifest.plans.get(claim_key(identity), claim.epoch)
            raw = read_file(location, _plan_path(home, identity, plan_number))
            text = None if raw is None else raw.decode()
            return PartialWrite(claim.owner, text, receipts, claim.epoch)

    def stream_progress(self, stream: str) -> StreamProgress | None:
        if is_remote(self.options.path):
            return super().stream_progress(stream)
        with self._logged(stream) as (target, identity):
            return None if target is None else progress_of(target.manifest().claim(identity))

    def forget_stream(self, stream: str) -> None:
        with self._logged(stream) as (target, identity):
            if target is not None:
                target.reset(identity)

    def kept_claims(self, names: Sequence[ClaimName] = ()) -> list[KeptClaim]:
        if is_remote(self.options.path):
            return super().kept_claims(names)
        with self._logged("") as (target, _):
            return [] if target is None else kept(target.manifest(), utc_text())

    def forget_claims(self, claims: Sequence[KeptClaim]) -> list[KeptClaim]:
        if is_remote(self.options.path):
            return super().forget_claims(claims)
        with self._logged("") as (target, _):
            return [] if target is None else target.forget_claims(claims)

    @contextmanager
    def _logged(self, stream: str) -> Iterator[tuple[TargetDirectory | None, Identity]]:
        """The directory, if it has a log, and how the stream is called in it."""
        location = locate(self.options.path, login=self.options.login)
        store = store_of(location)
        target_name = self.names.show(location.show())
        with writing(target_name):
            has_log = store.exists(posixpath.join(self.names.home(location.path), LOG))
            target = self.directory(store, location.path) if has_log else None
            yield target, Identity(target_name, "stream", stream)

    def keep(self, plan: WritePlan, text: str) -> None:
        assert isinstance(plan, FilesPlan)
        store = self._store(plan)
        with writing(store.place.show(plan.path)):
            path = _plan_path(self.names.home(plan.path), plan.claim.identity, plan.claim.epoch)
            store.make(posixpath.dirname(path))
            store.put(path, text.encode())

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> bool | None:
        if isinstance(plan, RemotePlan):
            self._remote().commit(plan, receipts)
            return True
        assert isinstance(plan, FilesPlan)
        if plan.published_at is not None:
            return False
        store = self._store(plan)
        target = self.directory(store, plan.path)
        with writing(store.place.show(plan.path)):
            try:
                visible, by_another = self._commit(plan, receipts, target)
            except SupersededError:
                self.clear(plan, target)
                raise
            self.clear(plan, target, ended_well=visible)
        return not by_another

    def _commit(
        self, plan: FilesPlan, receipts: Sequence[Receipt], target: TargetDirectory
    ) -> tuple[bool, bool]:
        """Publish the write; return whether its files are visible, and whether another run has published it."""
        manifest = target.manifest()
        files: list[StagedFile] = []
        by_another = False
        current = manifest.claim(plan.claim.identity)
        if current is not None and current.has_published(plan.claim.position):
            names = [file.name for receipt in receipts for file in staged_files(receipt)]
            # Of a published write the log keeps no run, and the files have their run's name.
            by_another = plan.commit == "job" and bool(manifest.missing(names))
            if by_another and plan.gathers and plan.claim.identity.kind != "stream":
                run = run_name(plan.claim.owner, plan.claim.epoch)
                by_another = not manifest.has_file(lambda path: self.names.run_of(path) == run)
        else:
            if plan.commit == "task":
                committed = {receipt.task for receipt in manifest.receipts(plan.claim.identity)}
                lost = sorted({receipt.task for receipt in receipts} - committed)
                if lost:
                    target.fence(plan.claim)
                    raise CommitError(
                        f"tasks {lost} of job {plan.job} are not in the log of {plan.path}"
                    )
            else:
                files = self._gathered(plan, target, receipts)
            keeps = bool(manifest.files) and (not plan.overwrite or plan.commit == "task")
            if not files and not keeps:
                target.fence(plan.claim)
                files = [self._empty_file(plan)]
        added = target.publish(
            plan.claim,
            self._output(plan),
            files,
            overwrite=plan.overwrite and plan.commit == "job",
            rows=sum(receipt.rows for receipt in receipts),
            nbytes=sum(receipt.nbytes for receipt in receipts),
        )
        if by_another or not added:
            shown = plan.claim.identity.shown
            _log.warning("%s was published before: nothing is added by job %s", shown, plan.job)
        return added, by_another or not added

    def _gathered(
        self, plan: FilesPlan, target: TargetDirectory, receipts: Sequence[Receipt]
    ) -> list[StagedFile]:
        """The files of all tasks, or one with the rows of all where these are few.

        In an object store a task's files are where other programs look: these would see the rows twice until they are
        removed.
        """
        from spark_channel.connectors.files.compact import gather

        files = [
            file
            for receipt in sorted(receipts, key=lambda receipt: receipt.task)
            for file in staged_files(receipt)
        ]
        few = are_few(sum(file.rows for file in files), sum(receipt.nbytes for receipt in receipts))
        if not (plan.gathers and few and target.store.staged) or len(files) < 2:
            return files
        if target.lacks(files):
            return files
        return gather(self, plan, target, self._output(plan), files)

    def clear(self, plan: FilesPlan, target: TargetDirectory, *, ended_well: bool = False) -> None:
        """After the write has ended, one way or the other."""
        try:
            if not target.manifest().is_open(plan.claim.owner, plan.claim.epoch):
                files = not ended_well or self._may_have_left_files(plan, target.store)
                target.forget(plan.claim, files=files)
                target.store.remove(_plan_path(target.home, plan.claim.identity, plan.claim.epoch))
        except (OSError, TargetError) as error:
            _log.warning("the staging of job %s stays until the next job: %s", plan.job, error)

    def _may_have_left_files(self, plan: FilesPlan, store: Store) -> bool:
        """Whether attempts of a write that ended well may have left files where readers look.

        Staged files of commit=job are moved there by the driver alone.
        """
        if not store.staged:
            return True
        return plan.commit == "task" and self._folder(store, plan).has_attempts()

    def _output(self, plan: FilesPlan) -> Output:
        return Output(self.form.name, plan.schema, self.form.dialect(self.options))

    def _empty_file(self, plan: FilesPlan) -> StagedFile:
        """A file without rows, so that the directory has a schema."""
        with_schema = FilesTaskWriter(self, plan, 0, 0, always=True)
        return staged_files(with_schema.stage())[0]

    def abort(
        self, plan: WritePlan, receipts: Sequence[Receipt | None] | None
    ) -> Sequence[Receipt] | None:
        if isinstance(plan, RemotePlan):
            self._remote().abort(plan)
            return None
        assert isinstance(plan, FilesPlan)
        if plan.published_at is not None:
            return None
        store = self._store(plan)
        target = self.directory(store, plan.path)
        with writing(store.place.show(plan.path)):
            if not store.exists(posixpath.join(target.home, LOG)):
                return []
            receipts_left = (
                target.manifest().receipts(plan.claim.identity) if plan.commit == "task" else ()
            )
            self.give_back(plan, target)
            return receipts_left

    def give_back(self, plan: FilesPlan, target: TargetDirectory) -> None:
        """Give the run's claim back, and remove what it staged."""
        store = target.store
        # The marker goes first: tasks that still run hear of it without asking the log.
        store.remove(self._folder(store, plan).marker)
        if store.staged:
            self._folder(store, plan).remove()  # a full disk has no room for an entry before
        target.release(plan.claim)
        target.forget(plan.claim, files=True)

    def _store(self, plan: FilesPlan) -> Store:
        login: StorageCredentials | None = self.options.login
        return store_of(Location(reopen(plan.root, login), plan.path, plan.root, login))

    def directory(self, store: Store, path: str) -> TargetDirectory:
        return TargetDirectory(
            store,
            path,
            self.form.name,
            self.options.commit_timeout,
            self.options.retention,
            self.names,
        )

    def _folder(self, store: Store, plan: FilesPlan) -> JobFolder:
        return JobFolder(store, self.names.home(plan.path), plan.claim.owner, plan.claim.epoch)


def _plan_path(home: str, identity: Identity, epoch: int) -> str:
    digest = hashlib.sha256(claim_key(identity).encode()).hexdigest()[:16]
    return posixpath.join(home, LOG, "plans", f"{digest}-e{epoch}.json")


class FilesTaskWriter(TaskWriter):
    """One attempt: its own files, created with the first rows. For a published transaction id it creates none."""

    def __init__(
        self, writer: FilesWriter, plan: FilesPlan, task: int, attempt: int, *, always: bool = False
    ) -> None:
        self._writer = writer
        self._plan = plan
        self._task, self._attempt = task, attempt
        self._options = writer.options
        self._form = writer.form
        self._store = writer._store(plan)  # noqa: SLF001 - two halves of one class
        self._unique = new_attempt()
        self._directory = plan.path
        if plan.published_at is None:
            self._folder = writer._folder(self._store, plan)  # noqa: SLF001 - the writer of this module
            self._directory = self._folder.attempt(task, attempt, self._unique)
        self._shown = self._store.place.show(plan.path)
        self._always = always
        self._files: list[StagedFile] = []
        self._begun: list[str] = []
        self._stream: Any = None
        self._encoder: Encoder | None = None
        self._rows_in_file = 0
        self._tally = RowTally(task, attempt)
        self._beat = self._store.clock.now()

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.check_open()
        if self._plan.published_at is not None:
            return
        with self._writing():
            limit = self._options.max_rows_per_file
            start = 0
            while start < batch.num_rows:
                encoder = self._encoder or self._begin()
                part = (
                    batch.slice(start)
                    if limit is None
                    else batch.slice(start, limit - self._rows_in_file)
                )
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
        if now - self._beat >= HEARTBEAT_SECONDS:
            self._beat = now
            self._folder.heartbeat()

    def _begin(self) -> Encoder:
        if not self._folder.is_live():
            raise self._ended()
        if self._store.staged and not self._begun:
            self._store.make(self._directory)
        extension = self._form.extension(self._options)
        name = self._writer.names.make(
            self._task, self._folder.run, self._attempt, self._unique, len(self._files), extension
        )
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
        self._files.append(
            StagedFile(folder, posixpath.basename(path), self._rows_in_file, size, multi_line)
        )

    def stage(self) -> Receipt:
        """Finish the files, durably. They are not visible yet."""
        with self._writing():
            if self._always and self._encoder is None and not self._files:
                self._begin()
            self._finish()
            if self._store.staged and self._begun:
                self._store.sync(self._directory)
            if self._begun and not self._folder.is_live():
                raise self._ended()
        details = {
            "folder": posixpath.relpath(self._directory, self._plan.path),
            "files": [[file.name, file.rows, file.nbytes, file.multi_line] for file in self._files],
        }
        return Receipt(self._task, self._attempt, self._tally.rows, self._tally.nbytes, details)

    def close(self) -> Receipt:
        self._tally.check_open()
        receipt = self.stage()
        if self._plan.commit == "task" and self._plan.published_at is None:
            self._publish(receipt)
        self._tally.ended = True
        return receipt

    def _publish(self, receipt: Receipt) -> None:
        target = self._writer.directory(self._store, self._plan.path)
        output = self._writer._output(self._plan)  # noqa: SLF001 - the writer of this module
        with self._writing():
            if not target.publish_task(self._plan.claim, output, staged_files(receipt), receipt):
                self._discard()
            elif self._store.staged and self._begun:
                self._store.remove_empty(self._directory)

    def _ended(self) -> TargetError:
        """Why the run's folder is gone."""
        target = self._writer.directory(self._store, self._plan.path)
        try:
            target.fence(self._plan.claim)
        except SupersededError as error:
            return error
        return TargetError(
            f"the folder of job {self._plan.job} in {self._shown} was removed while a task wrote into it"
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns errors about files that another run removed into their real cause."""
        with writing(self._shown):
            try:
                yield
            except FileNotFoundError as error:
                raise self._ended() from error

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
                pass  # its rows are dropped either way
        self._encoder = None
        with self._writing():
            self._discard()

    def _discard(self) -> None:
        for path in self._begun:
            self._store.remove(path)
        if self._store.staged and self._begun:
            self._store.remove_empty(self._directory)


class ParquetWriter(FilesWriter):
    """Parquet files."""

    Options = ParquetWriteOptions
    format = "parquet"

    def existing_rows(self) -> int | None:
        """By the footers of a local folder, a few of which mostly have enough rows; None = too many would be read."""
        import pyarrow.parquet as pq

        location = locate(self.options.path, login=self.options.login)
        if not location.local:
            return None
        rows = 0
        with reading(location.show()):
            directory = self.directory(store_of(location), location.path)
            paths = directory.paths()
            for path in paths[:_MOST_FOOTERS]:
                rows += int(pq.read_metadata(directory.inside(path)).num_rows)
                if rows > MOST_COUNTED:
                    return rows
        return rows if len(paths) <= _MOST_FOOTERS else None


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
