"""Publishing: one entry of the log makes all staged files visible together.

The order is: renames (a local disk), the entry, `_SUCCESS`, then what is no longer needed. Killed at any point,
readers of spark-channel see the state before or the state after; the next job finds the rest and removes it.
"""

import hashlib
import json
import os
import posixpath
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.clock import utc_now
from spark_channel.connectors.base.claims import ClaimDecision, HeldClaim, Identity, own_process
from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.base.kept_claims import KeptClaim
from spark_channel.connectors.files import claims
from spark_channel.connectors.files.claims import AddedFiles, MergedFile
from spark_channel.connectors.files.file_names import ALL_FILES, OwnedFileNames
from spark_channel.connectors.files.filesystem import LOG, read_file, replaced_path
from spark_channel.connectors.files.foreign_files import format_by_name
from spark_channel.connectors.files.job_folders import JobFolder, dead_runs, staging_folders
from spark_channel.connectors.files.kept_claims import forgotten
from spark_channel.connectors.files.log import Entry, Log, newest_entry
from spark_channel.connectors.files.manifest import SUCCESS, Dialect, Manifest
from spark_channel.connectors.files.parts import (
    DataFile,
    FileList,
    RemovedFiles,
    Replaced,
    is_below,
)
from spark_channel.connectors.files.store import UNFINISHED, OutsideError, Store
from spark_channel.connectors.files.visible_files import (
    OURS,
    Visible,
    combined,
    data_files,
    files_of_prefix,
    read_success,
    with_present_files,
)
from spark_channel.errors import ChannelError, CommitError, TargetError
from spark_channel.plain_text import log_of

__all__ = ["Output", "StagedFile", "TargetDirectory", "staged_files"]

_log = log_of(__name__)

_FEW, _MOST = 100, 1000
"""Files that another job replaced: so many are removed at once, and so many by one job that only adds."""
_LEFT = 20
"""Entries of the log after which the job that replaced files is not expected to remove them itself."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished file of an attempt: `folder` is where it is staged, `name` what it will be called."""

    folder: str
    name: str
    rows: int
    nbytes: int
    multi_line: bool = False


def staged_files(receipt: Receipt) -> list[StagedFile]:
    """The files that a task staged."""
    folder = receipt.details["folder"]
    return [StagedFile(folder, *file) for file in receipt.details["files"]]


@dataclass(frozen=True)
class Output:
    """The attributes that all files of one job share."""

    format: str
    schema: pa.Schema
    dialect: Dialect

    def added(self, job: str, files: Sequence[StagedFile]) -> AddedFiles:
        content = (
            self.schema.serialize().to_pybytes()
            + json.dumps(dict(self.dialect), sort_keys=True).encode()
        )
        key = hashlib.blake2b(content, digest_size=6).hexdigest()
        listed_files = tuple(
            DataFile(
                file.name, file.nbytes, file.rows, key, job, multi_line=file.multi_line or None
            )
            for file in files
        )
        return AddedFiles(self.format, listed_files, {key: self.schema}, {key: self.dialect})


class TargetDirectory:
    """One directory that jobs write into, or the files of one prefix in it. The log is in `home`."""

    def __init__(
        self,
        store: Store,
        path: str,
        form: str,
        timeout: float,
        retention: float,
        names: OwnedFileNames = ALL_FILES,
    ) -> None:
        self.store = store
        self.path = path
        self.form = form
        self.names = names
        self.home = names.home(path)
        self._log = posixpath.join(self.home, LOG)
        self._retention = retention
        self._entries = Log(store, self.home, timeout, retention)
        self._tried: set[int] = set()
        self._replaces = False

    def inside(self, *parts: str) -> str:
        """Without a part `.`: object stores take it for a part of a key, and some refuse such keys."""
        return posixpath.join(self.path, *(part for part in parts if part != "."))

    @property
    def shown(self) -> str:
        return self.names.show(self.store.place.show(self.path))

    def ready(self) -> None:
        """Make the log's folder, and hold the store to have conditional puts.

        Raises:
            UnsupportedError: it has none. TargetError: files of a prefix, in a directory that has a log.
        """
        if self.names.prefix is not None and newest_entry(self.store.place, self.path) is not None:
            raise TargetError(
                f"{self.store.place.show(self.path)} has a log of spark-channel, and its readers see only the files "
                f"that the log lists: write without 'filePrefix' ({self.names.prefix!r}), or into another directory"
            )
        is_there = self.store.exists(self._log)
        self.store.make(self._log)
        has_log = is_there and self._entries.newest() is not None
        # A directory may have been copied, with its log, from a store that rejects them.
        if has_log and (self.store.staged or self._entries.rejects_newest()):
            return
        try:
            self.store.check_put_new(
                posixpath.join(self._log, f"{UNFINISHED}{os.getpid()}-{uuid.uuid4().hex}")
            )
        except BaseException:
            self.store.remove_empty(self._log)
            raise

    def visible(self) -> Visible:
        return self._visible(self._entries.newest())

    def _visible(self, newest: Entry | None) -> Visible:
        return combined(
            self.store.place, self.path, newest, read_success(self.store.place, self.path)
        )

    def paths(self) -> list[str]:
        """The files that an overwrite replaces, relative to the directory, also where nothing is there yet."""
        return [file.path for file in self.manifest().files]

    def manifest(self) -> Manifest:
        """The present files of the directory, including those of other writers."""
        return self._base(self._entries.newest())

    def _base(self, newest: Entry | None) -> Manifest:
        if self.names.prefix is not None:
            if newest is not None:
                return with_present_files(newest.manifest, self._there(), self.names)
            return Manifest(self.form, _listed(self._there()))
        visible_now = self._visible(newest)
        if visible_now.manifest is not None:
            return replace(visible_now.manifest, success=visible_now.success)
        return Manifest(self.form, _listed(self._there()), success=visible_now.success)

    def _there(self) -> dict[str, pafs.FileInfo]:
        location, prefix = self.store.place, self.names.prefix
        return (
            data_files(location, self.path)
            if prefix is None
            else files_of_prefix(location, self.path, prefix)
        )

    def _change(
        self, change: Callable[[Manifest, int], Manifest | None], purpose: str
    ) -> tuple[Manifest, bool]:
        """(what the directory holds now, whether an entry was written)."""

        def tried(manifest: Manifest, number: int) -> Manifest | None:
            self._tried.add(number)
            return change(manifest, number)

        entry, wrote = self._entries.change(tried, self._base, purpose)
        return (self._base(None) if entry is None else entry.manifest), wrote

    def take(self, context: WriteContext, identity: Identity, *, empty: bool) -> ClaimDecision:
        """Claim the write. With `empty` the directory is emptied in the same step.

        Raises:
            TargetError: another format is there, or committed tasks that this run does not continue.
        """
        self._replaces |= empty
        decisions: list[ClaimDecision] = []
        dead = dead_runs(self.store, self.home, self.manifest(), context.job)

        def change(manifest: Manifest, number: int) -> Manifest | None:
            changed, decision = claims.take(
                manifest,
                number,
                context,
                identity,
                empty=empty,
                until=self._until(),
                process="" if context.stream is not None else own_process(),
                now=_now(),
                dead=dead,
            )
            decisions[:] = [decision]
            if changed is not None and not context.overwrite:
                claims.check_format(manifest, self.form, self.shown)
            return changed

        manifest, wrote = self._change(change, f"claim {context.job}")
        if empty and wrote:
            self._finish(manifest)
        return decisions[0]

    def release(self, claim: HeldClaim) -> None:
        """Give the claim back, unless the write was published, or another run has it."""
        self._change(
            lambda manifest, number: claims.release(manifest, number, claim), f"abort {claim.owner}"
        )

    def reset(self, identity: Identity) -> None:
        """Let a stream begin again."""
        self._change(
            lambda manifest, number: claims.reset(manifest, number, identity),
            f"reset {identity.name}",
        )

    def forget_claims(self, chosen: Sequence[KeptClaim]) -> list[KeptClaim]:
        """Forget what earlier writes left. Returns what was there."""
        forgotten_claims: list[KeptClaim] = []

        def change(manifest: Manifest, number: int) -> Manifest | None:
            changed, forgotten_claims[:] = forgotten(manifest, number, chosen, _now())
            return changed

        self._change(change, "forget claims")
        return forgotten_claims

    def fence(self, claim: HeldClaim) -> None:
        """
        Raises:
            SupersededError: another run took over or has published.
        """
        claims.fence(self.manifest(), claim)

    def publish_task(
        self, claim: HeldClaim, output: Output, files: Sequence[StagedFile], receipt: Receipt
    ) -> bool:
        """Make a task's files visible, once (`commit=task`). False: another attempt was first.

        Raises:
            SupersededError: nothing was added. CommitError: the target is as it was.
        """
        added = output.added(claim.owner, files)

        def change(manifest: Manifest, number: int) -> Manifest | None:
            return claims.add_task(manifest, claim, receipt, added)

        mine = [receipt.task, receipt.attempt]
        manifest, _ = self._publish(change, files, claim, f"task {receipt.task} of {claim.owner}")
        return any(
            [task_receipt.task, task_receipt.attempt] == mine
            for task_receipt in manifest.receipts(claim.identity)
        )

    def publish(
        self,
        claim: HeldClaim,
        output: Output,
        files: Sequence[StagedFile],
        *,
        overwrite: bool,
        rows: int,
        nbytes: int,
    ) -> bool:
        """Make the job's files visible, and mark its write as published. False: it was published before.

        Raises:
            SupersededError: nothing was added. CommitError: the target is as it was.
        """
        added = output.added(claim.owner, files)
        self._replaces |= overwrite
        until = self._until()

        def change(manifest: Manifest, number: int) -> Manifest | None:
            return claims.publish(
                manifest,
                number,
                claim,
                added,
                overwrite=overwrite,
                until=until,
                at=_now(),
                rows=rows,
                nbytes=nbytes,
            )

        manifest, is_visible = self._publish(change, files, claim, f"publish {claim.owner}")
        self._finish(manifest)
        return is_visible

    def merge(
        self, claim: HeldClaim, staged: Sequence[StagedFile], merged: Sequence[MergedFile]
    ) -> bool:
        """Put each merged file in the place of its sources, which stay readable for the retention. False: another job
        has taken a source out, and nothing was changed.

        Raises:
            SupersededError, CommitError: as `publish`.
        """
        self._replaces = True
        until = self._until()

        def change(manifest: Manifest, number: int) -> Manifest | None:
            return claims.merge(manifest, number, claim, merged, until=until, at=_now())

        manifest, is_visible = self._publish(change, staged, claim, f"merge files {claim.owner}")
        if is_visible:
            self._finish(manifest)
        return is_visible

    def _publish(
        self,
        change: Callable[[Manifest, int], Manifest | None],
        files: Sequence[StagedFile],
        claim: HeldClaim,
        purpose: str,
    ) -> tuple[Manifest, bool]:
        """(the manifest, whether `files` are visible). What fails after the entry is accepted fails no write."""
        names = [file.name for file in files]
        now = self.manifest()
        # The entry decides; this look spares a superseded run the renames, and readers of others its files.
        if change(now, 0) is None:
            return now, not now.missing(names)
        self._check_staged(files, claim)
        moved: list[StagedFile] = []
        try:
            self._show(files, moved)
        except OSError as error:
            self._hide(moved)
            self.fence(claim)
            raise self._unchanged(error) from error
        try:
            manifest, is_visible = self._change(change, purpose)
        except ChannelError:
            self._hide(moved)
            raise
        except (OSError, pa.ArrowException) as error:
            manifest, is_visible = self._settled(files, moved, purpose, error), True
        if is_visible:
            return manifest, True
        unlisted = set(manifest.missing(names))
        self._hide([file for file in moved if file.name in unlisted])
        return manifest, not unlisted

    def _unchanged(self, error: Exception) -> CommitError:
        return CommitError(f"publishing into {self.shown} failed: {error}. The target is unchanged")

    def _settled(
        self,
        files: Sequence[StagedFile],
        moved: Sequence[StagedFile],
        purpose: str,
        error: Exception,
    ) -> Manifest:
        """The manifest, if the put whose answer was an error was accepted after all.

        Such a request may still arrive: an entry of the same number is written, so that it will be rejected.

        Raises:
            CommitError: it was not accepted, and will not be; or the store does not answer.
        """
        names = [file.name for file in files]

        def change(current: Manifest, _: int) -> Manifest | None:
            are_there = bool(names) and not current.missing(names)
            return None if are_there or not self.store.answers_late else current

        try:
            manifest, _ = self._change(change, f"settle {purpose}")
        except (OSError, pa.ArrowException, ChannelError) as second:
            raise CommitError(
                f"publishing into {self.shown} failed: {error}; and whether it was published is unknown: "
                f"{second}. Run it again with the same transaction id: published rows are not added again"
            ) from error
        if names and not manifest.missing(names):
            _log.warning("%s is published; the store reported afterwards: %s", purpose, error)
            return manifest
        self._hide(moved)
        raise self._unchanged(error) from error

    def _check_staged(self, files: Iterable[StagedFile], claim: HeldClaim) -> None:
        if lost := self.lacks(files):
            self.fence(claim)
            raise CommitError(
                f"the staged file {lost} is missing or incomplete: the job's folder was removed, "
                "or the directory is not shared by all executors and the driver. The target is unchanged; "
                "run the job again"
            )

    def lacks(self, files: Iterable[StagedFile]) -> str:
        """The name of a file that is missing or incomplete; "" = all are there."""
        for file in files:
            paths = self.inside(file.folder, file.name), self.inside(file.name)
            if all(self.store.info(path).size != file.nbytes for path in paths):
                return file.name
        return ""

    def _show(self, files: Iterable[StagedFile], moved: list[StagedFile]) -> None:
        """Rename staged files to where they will be visible."""
        if not self.store.staged:
            return
        for file in files:
            if self.store.exists(self.inside(file.folder, file.name)):
                self.store.rename(self.inside(file.folder, file.name), self.inside(file.name))
                moved.append(file)
        self.store.sync(self.path)

    def _hide(self, moved: Sequence[StagedFile]) -> None:
        for file in moved:
            try:
                if self.store.exists(self.inside(file.folder)):
                    self.store.rename(self.inside(file.name), self.inside(file.folder, file.name))
                else:
                    self.store.remove(self.inside(file.name))
            except OSError as error:
                _log.warning(
                    "%s stays, unlisted, until the next job removes it: %s", file.name, error
                )

    def _finish(self, manifest: Manifest) -> None:
        """After an entry that changed what is visible: nothing here can fail the write."""
        try:
            self._mark(manifest)
            self.tidy(manifest)
        except (OSError, pa.ArrowException, ChannelError) as error:
            _log.warning("%s: what was replaced stays until the next job: %s", self.shown, error)

    def _mark(self, manifest: Manifest) -> None:
        """`_SUCCESS`, unless another writer has ended a write since, whose files the manifest does not count in."""
        if self.names.prefix is not None:
            return  # it would speak for the files of others
        path = self.inside(SUCCESS)
        location = self.store.place
        is_ended_since = read_success(location, self.path) not in ("", manifest.success)
        if not is_ended_since and read_file(location, path) != OURS:
            self.store.put(path, OURS)

    def replaced(self) -> list[Replaced]:
        """The files that overwrites replaced and that are still there, in the order of the overwrites."""
        replaced = self.manifest().replaced()
        return [file for file in replaced if not file.merged and self._kept(file) is not None]

    def _kept(self, replaced_file: Replaced) -> str | None:
        """Where a replaced file is; None = it was removed."""
        path = self.inside(replaced_file.file.path)
        aside = replaced_path(self.home, replaced_file.number, replaced_file.file.path)
        if self.store.staged and not self.store.is_link(aside):
            info = self.store.info(aside)
            if info.type == pafs.FileType.File and info.size == replaced_file.file.nbytes:
                return aside
        return path if self._is_same(path, replaced_file.file) else None

    def put_back(self, number: int) -> list[DataFile]:
        """Make the files visible that log entry `number` replaced; those that are visible now are replaced.

        Raises:
            TargetError: they are not all there, or another file has a name of theirs. CommitError: another job has
            removed some at the same time.
        """
        replaced = self.manifest().replaced()
        files = [file for file in replaced if file.number == number and not file.merged]
        self._check_kept(number, files)
        form = format_by_name(files[0].file.path) or self.manifest().format
        self._replaces = True
        moved: list[Replaced] = []
        try:
            self._bring(files, moved)
            manifest, _ = self._change(
                lambda current, entry: self._with_back(current, entry, files, form),
                f"put back what entry {number} replaced",
            )
        except BaseException:
            self._set_all_aside(moved)
            raise
        self._finish(manifest)
        self._check_there(files)
        return [file.file for file in files]

    def _check_kept(self, number: int, files: Sequence[Replaced]) -> None:
        if not files:
            raise TargetError(
                f"{self.shown} has no files that entry {number} of its log replaced; "
                "`spark-channel replaced` lists what can be put back"
            )
        lost = [file.file.path for file in files if self._kept(file) is None]
        if lost:
            raise TargetError(
                f"{self.shown}: {len(lost)} of the {len(files)} files that entry {number} replaced were removed, such "
                f"as {lost[0]}, since their time was over. Nothing was changed"
            )

    def _bring(self, files: Sequence[Replaced], moved: list[Replaced]) -> None:
        """On a local disk: from where replaced files are kept to where they were."""
        away = [file for file in files if self._kept(file) != self.inside(file.file.path)]
        blocked = [
            file.file.path for file in away if self.store.exists(self.inside(file.file.path))
        ]
        if blocked:
            raise TargetError(
                f"{self.shown} holds another file called {blocked[0]}: move that file to another place first, then put "
                "the replaced files back. Nothing was changed"
            )
        for file in away:
            new = self.inside(file.file.path)
            self.store.make(posixpath.dirname(new))
            self.store.rename(replaced_path(self.home, file.number, file.file.path), new)
            moved.append(file)
        self.store.sync(self.path)

    def _set_all_aside(self, files: Sequence[Replaced]) -> None:
        for file in files:
            try:
                self._set_aside(file)
            except OSError as error:
                _log.warning("%s stays, unlisted, until the next job: %s", file.file.path, error)

    def _with_back(
        self, current: Manifest, entry: int, files: Sequence[Replaced], form: str
    ) -> Manifest | None:
        if set(files) <= set(current.replaced()):
            return claims.put_back(current, entry, files[0].number, form, until=self._until())
        if not current.files.missing([file.file.path for file in files]):
            return None
        raise TargetError(
            f"{self.shown}: another job removed or put back these files meanwhile. Nothing was changed by this command"
        )

    def _check_there(self, files: Sequence[Replaced]) -> None:
        """A job that had read the log before this entry may remove what was due then."""
        lost = [
            file.file.path
            for file in files
            if not self._is_same(self.inside(file.file.path), file.file)
        ]
        if lost:
            raise CommitError(
                f"{self.shown}: another job removed {len(lost)} of {len(files)} files while they were put back, such "
                f"as {lost[0]}. The files that were visible before are replaced now, and can be put back"
            )

    def tidy(self, manifest: Manifest) -> None:
        """Remove what no reader needs: only files that the log has listed, and its own."""
        now = _now()
        if self.store.staged:
            for files in self._share(
                [removed for removed in manifest.removed if removed.until > now]
            ):
                self._set_together_aside(files, manifest)
        self._remove_all(
            self._share([removed for removed in manifest.removed if removed.until <= now]), manifest
        )
        self._entries.prune()
        self.store.remove_unfinished(self.inside(LOG))

    def remove_due(self) -> None:
        """Remove all replaced files whose time is over, whoever replaced them."""
        manifest, now = self.manifest(), _now()
        due = [removed for removed in manifest.removed if removed.until <= now]
        self._remove_all(due, manifest)

    def _remove_all(self, due: Sequence[RemovedFiles], manifest: Manifest) -> None:
        gone = set(due)
        for files in due:
            self._remove(files, self._listed_too(files, manifest))
        if gone:
            self._change(
                lambda current, _: _without(current, gone) if gone & set(current.removed) else None,
                f"{sum(map(len, gone))} replaced files removed",
            )

    def _listed_too(self, files: RemovedFiles, manifest: Manifest) -> set[str]:
        """Those of replaced files whose names are visible again: other programs use a name again."""
        foreign = {file.path for file in files.files if self.names.run_of(file.path) is None}
        return foreign & {file.path for file in manifest.files} if foreign else set()

    def _share(self, replaced: list[RemovedFiles]) -> list[RemovedFiles]:
        """What this job tidies up. It waits for nothing that another job has replaced, which does so itself.

        A few files are no matter. Of many, that were replaced many entries ago, that job has died, or their retention
        has passed since: a job that replaces files removes them all, another one a part.
        """
        others = [removed for removed in replaced if removed.number not in self._tried]
        if sum(map(len, others)) <= _FEW:
            return replaced
        newest = max(self._tried, default=0)
        left_behind = [removed for removed in others if removed.number < newest - _LEFT]
        mine = [removed for removed in replaced if removed.number in self._tried]
        return mine + (left_behind if self._replaces else _some(left_behind, newest))

    def _set_together_aside(self, files: RemovedFiles, manifest: Manifest) -> None:
        """In their order, so the last one tells whether it is done."""
        replaced = list(files)
        is_done = not self._is_same(self.inside(replaced[-1].file.path), replaced[-1].file)
        if is_done and files.number not in self._tried:
            return
        visible_again = self._listed_too(files, manifest)
        for replaced_file in replaced:
            if replaced_file.file.path not in visible_again:
                self._set_aside(replaced_file)

    def _set_aside(self, replaced_file: Replaced) -> None:
        """A local disk: other readers do not see it, and readers of spark-channel find it."""
        old = self.inside(replaced_file.file.path)
        if not self._is_same(old, replaced_file.file):
            return
        new = replaced_path(self.home, replaced_file.number, replaced_file.file.path)
        try:
            self.store.make(posixpath.dirname(new))
            self.store.rename(old, new)
        except FileNotFoundError:
            return  # another job was first
        except OutsideError as error:
            _log.warning("%s: %s stays: %s", self.shown, replaced_file.file.path, error)
            return
        self._remove_traces(replaced_file.file.path)

    def _remove(self, due: RemovedFiles, visible_again: set[str]) -> None:
        paths = []
        for replaced_file in due:
            if replaced_file.file.path in visible_again or not is_below(replaced_file.file.path):
                continue
            path = self.inside(replaced_file.file.path)
            if self.store.staged:
                self._remove_replaced(replaced_file, path)
            elif self.names.run_of(path) is not None or self._is_same(path, replaced_file.file):
                paths.append(path)  # each generated name is used once
        if paths:
            self.store.remove_many(paths)

    def _remove_replaced(self, replaced_file: Replaced, path: str) -> None:
        """On a local disk. A file that is not below the directory, but behind a link there, stays."""
        kept_path = replaced_path(self.home, replaced_file.number, replaced_file.file.path)
        try:
            self.store.remove(kept_path)
            if self._is_same(path, replaced_file.file):
                self.store.remove(path)
            self._remove_traces(replaced_file.file.path)
            self._remove_folders(posixpath.dirname(kept_path))
        except OutsideError as error:
            _log.warning("%s: %s stays: %s", self.shown, replaced_file.file.path, error)

    def _is_same(self, path: str, file: DataFile) -> bool:
        """Whether the file is the one that was replaced. One that was written since under its name is not."""
        if not is_below(file.path):
            return False
        info = self.store.info(path)
        # Names of others are used again: a file of theirs is the same if it is as old, too.
        is_ours = self.names.run_of(path) is not None
        is_old = file.mtime_ns == info.mtime_ns or (file.mtime_ns is None and is_ours)
        return bool(info.type == pafs.FileType.File and info.size == file.nbytes and is_old)

    def _remove_traces(self, path: str) -> None:
        """Hadoop's checksum beside a file, and folders that it leaves empty."""
        directory, name = posixpath.split(path)
        self.store.remove(self.inside(directory, f".{name}.crc"))
        while directory:
            self.store.remove_empty(self.inside(directory))
            directory = posixpath.dirname(directory)

    def _remove_folders(self, directory: str) -> None:
        while len(directory) > len(self._log):
            self.store.remove_empty(directory)
            directory = posixpath.dirname(directory)

    def remove_orphans(self) -> list[str]:
        """Remove the staging of runs that hold no claim; returns them."""
        folders = staging_folders(self.store, self.home)
        if not folders:
            return []
        # After the listing: a folder is made after its run's claim, so one without a claim now will not get one.
        manifest = self.manifest()
        orphans = [folder for folder in folders if not manifest.is_open(folder.job, folder.epoch)]
        for folder in orphans:
            _log.info("%s: removing the staging of run %s", self.shown, folder.run)
            self._remove_unlisted(folder, manifest)
            self._remove_staging(folder)
        if orphans:
            self._entries.remove_parts()
        return [folder.run for folder in orphans]

    def forget(self, claim: HeldClaim, *, files: bool) -> None:
        """Remove all that a run left which is not published. It no longer holds a claim.

        `files`: it may have left files where readers look, not only in its staging.
        """
        folder = JobFolder(self.store, self.home, claim.owner, claim.epoch)
        if files:
            self._remove_unlisted(folder, self.manifest())
        self._remove_staging(folder)

    def _remove_unlisted(self, folder: JobFolder, manifest: Manifest) -> None:
        """A listing of the directory, which takes as long as it has files."""
        unlisted = [path for path in self._there() if self.names.run_of(path) == folder.run]
        gone = manifest.missing(unlisted)
        if gone:
            self.store.remove_many([self.inside(path) for path in gone])

    def _remove_staging(self, folder: JobFolder) -> None:
        folder.remove()
        self.store.remove_empty(posixpath.dirname(folder.path))

    def _until(self) -> str:
        return (utc_now() + timedelta(seconds=self._retention)).isoformat(timespec="seconds")


def _listed(files_there: Mapping[str, pafs.FileInfo]) -> FileList:
    return FileList(
        newest=tuple(
            DataFile(path, info.size, mtime_ns=info.mtime_ns)
            for path, info in sorted(files_there.items())
        )
    )


def _some(files: Sequence[RemovedFiles], turn: int) -> list[RemovedFiles]:
    """About a thousand of the files, others in each turn."""
    chosen, count = list[RemovedFiles](), 0
    for index in range(len(files)):
        if count >= _MOST:
            break
        chosen.append(files[(turn + index) % len(files)])
        count += len(chosen[-1])
    return chosen


def _without(manifest: Manifest, gone: set[RemovedFiles]) -> Manifest:
    changed = replace(
        manifest, removed=tuple(removed for removed in manifest.removed if removed not in gone)
    )
    if not changed.merges:
        return changed
    known_paths = {file.path for file in changed.files} | {
        replaced.file.path for replaced in changed.replaced()
    }
    return replace(
        changed,
        merges={path: merge for path, merge in changed.merges.items() if path in known_paths},
    )


def _now() -> str:
    return utc_now().isoformat(timespec="seconds")
