"""Publishing: staged files become visible all at once, by one replacement of the manifest.

Every change is made under the target's lock, in this order: the state before (if there was no manifest),
renames, the manifest, then what is no longer needed. Killed at any point, readers of ours see
the state before or the state after; the next job finds the rest and removes it.
"""

import hashlib
import json
import logging
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.files.manifest import BASE, HIDDEN, SUCCESS, DataFile, Dialect, Job, Manifest
from spark_channel.connectors.files.staging import JobFolder, data_files, job_of, jobs_in, lock_path
from spark_channel.connectors.files.store import UNFINISHED, Store
from spark_channel.connectors.files.visible import Standing, standing
from spark_channel.errors import ChannelError, CommitError

__all__ = ["Publication", "StagedFile", "Target"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished file of an attempt: `folder` is where it is staged, `name` what it will be called."""

    folder: str
    name: str
    rows: int
    nbytes: int
    multi_line: bool = False


@dataclass(frozen=True, slots=True)
class Publication:
    """What one commit makes visible. `task`: the task, for `commit=task`; `done`: the job ends with it."""

    job: str
    files: Sequence[StagedFile]
    schema: pa.Schema
    dialect: Dialect
    overwrite: bool = False
    txn: tuple[str, int] | None = None
    task: int | None = None
    done: bool = True


class Target:
    """One directory that jobs write into."""

    def __init__(self, store: Store, path: str, form: str, lock_timeout: float) -> None:
        self.store = store
        self.path = path
        self.form = form
        self._timeout = lock_timeout

    def inside(self, *parts: str) -> str:
        return posixpath.join(self.path, *parts)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self.store.lock(lock_path(self.path), self._timeout):
            yield

    def standing(self) -> Standing:
        return standing(self.store.place, self.path)

    def manifest(self, found: Standing | None = None) -> Manifest:
        """What is visible now, also where others wrote it."""
        found = self.standing() if found is None else found
        if found.manifest is not None:
            return found.manifest
        live = set(jobs_in(self.store, self.path))
        files = [
            DataFile(path, info.size, mtime_ns=info.mtime_ns)
            for path, info in sorted(data_files(self.store, self.path).items())
            if job_of(path) not in live
        ]
        return Manifest(self.form, tuple(files))

    def remember_before(self) -> None:
        """Where there is no manifest yet: write down what is visible, before that changes."""
        found = self.standing()
        if found.manifest is None:
            before = replace(self.manifest(found), successor_of=found.success)
            self.store.put(self.inside(HIDDEN, BASE), before.dumps())

    def publish(self, what: Publication) -> None:
        """Make it visible; again: nothing. The lock is held by the caller.

        Raises:
            CommitError: the target is as it was.
        """
        old = self.manifest()
        moved: list[StagedFile] = []
        try:
            self._check_staged(what.files)
            self.remember_before()
            if self.store.staged:
                for file in what.files:
                    if self.store.exists(self.inside(file.folder, file.name)):
                        self.store.rename(self.inside(file.folder, file.name), self.inside(file.name))
                        moved.append(file)
                self.store.sync(self.path)
            self._write(self._after(old, what))
        except (OSError, pa.ArrowException, ChannelError) as error:
            if self._is_published(what):
                _log.warning("job %s is published; the disk reported afterwards: %s", what.job, error)
                return
            self._undo(moved)
            raise CommitError(
                f"publishing into {self.store.place.show(self.path)} failed: {error}. The target is as it "
                "was before"
            ) from error

    def _check_staged(self, files: Iterable[StagedFile]) -> None:
        for file in files:
            for path in (self.inside(file.folder, file.name), self.inside(file.name)):
                info = self.store.info(path)
                if info.size == file.nbytes:
                    break
            else:
                raise CommitError(
                    f"the staged file {file.name} is gone or incomplete: was the job's folder removed, or "
                    "is the directory not shared by all executors and the driver?"
                )

    def _after(self, old: Manifest, what: Publication) -> Manifest:
        key = _key(what.schema, what.dialect)
        new = [
            DataFile(file.name, file.nbytes, file.rows, key, what.job, multi_line=file.multi_line or None)
            for file in what.files
        ]
        kept, removed = list(old.files), list(old.removed)
        if what.overwrite:
            kept, removed = [], [*removed, *self._replaced(old, {file.path for file in new})]
        before = old.jobs.get(what.job)
        tasks = before.tasks if before else None
        if what.task is not None:
            tasks = (*(tasks or ()), what.task)
        now = utc_now().isoformat(timespec="seconds")
        rows = sum(file.rows for file in what.files) + (before.rows if before else 0)
        made = replace(
            old,
            format=self.form,
            files=(*kept, *new),
            schemas={**old.schemas, key: what.schema},
            dialects={**old.dialects, key: what.dialect},
            removed=tuple(removed),
            successor_of=None,
        ).with_job(what.job, Job(now if what.done else None, rows, tasks, what.txn))
        return made.with_version(what.txn, now) if what.done else made

    def _replaced(self, old: Manifest, new: set[str]) -> list[DataFile]:
        """Every data file that is there, but for those of other jobs at work."""
        live = set(jobs_in(self.store, self.path))
        listed = {file.path: file for file in old.files}
        found = []
        for path, info in sorted(data_files(self.store, self.path).items()):
            if path not in new and (path in listed or job_of(path) not in live):
                found.append(DataFile(path, info.size, mtime_ns=info.mtime_ns))
        return found

    def _write(self, manifest: Manifest) -> None:
        self.store.put(self.inside(SUCCESS), manifest.dumps())

    def _is_published(self, what: Publication) -> bool:
        try:
            found = self.standing()
        except (OSError, pa.ArrowException, ChannelError):
            return False
        job = found.manifest.jobs.get(what.job) if found.published and found.manifest else None
        if job is None:
            return False
        return job.published_at is not None if what.task is None else what.task in (job.tasks or ())

    def _undo(self, moved: Sequence[StagedFile]) -> None:
        for file in moved:
            try:
                self.store.rename(self.inside(file.name), self.inside(file.folder, file.name))
            except OSError as error:
                _log.warning("%s stays behind, unlisted, until the next job removes it: %s", file.name, error)

    def tidy(self) -> None:
        """Remove what a publication made obsolete. The lock is held by the caller."""
        found = self.standing()
        if found.published:
            self.store.remove(self.inside(HIDDEN, BASE))
        if not found.published or found.manifest is None or not found.manifest.removed:
            return
        visible = {file.path for file in found.manifest.files}
        for file in found.manifest.removed:
            info = self.store.info(self.inside(file.path))
            # A file that was written anew under an old name is somebody's.
            same = info.size == file.nbytes and file.mtime_ns in (None, info.mtime_ns)
            if file.path not in visible and same:
                self.store.remove(self.inside(file.path))
                directory, name = posixpath.split(file.path)
                self.store.remove(self.inside(directory, f".{name}.crc"))
                while directory:
                    self.store.remove_empty(self.inside(directory))
                    directory = posixpath.dirname(directory)
        self._write(replace(found.manifest, removed=()))

    def forget(self, job: str) -> None:
        """Remove all that a job left which is not published. The lock is held by the caller."""
        found = self.standing()
        known = {file.path for file in found.manifest.files} if found.manifest else set()
        JobFolder(self.store, self.path, job).remove()
        for path in data_files(self.store, self.path):
            if job_of(path) == job and path not in known:
                self.store.remove(self.inside(path))
        if not jobs_in(self.store, self.path):
            # Nothing unlisted is left that it would have to hide.
            self.store.remove(self.inside(HIDDEN, BASE))

    def remove_orphans(self, own: str, orphan_age: float) -> list[str]:
        """Remove what killed drivers left; returns their jobs. The lock is held by the caller."""
        dead = [
            job
            for job in jobs_in(self.store, self.path)
            if job != own and JobFolder(self.store, self.path, job).is_dead(orphan_age)
        ]
        for info in self.store.entries(self.inside(HIDDEN)):
            if info.base_name.startswith(UNFINISHED):
                self.store.remove(info.path)
        for job in dead:
            _log.warning("%s: removing what job %s left behind", self.store.place.show(self.path), job)
            self.forget(job)
        return dead


def _key(schema: pa.Schema, dialect: Dialect) -> str:
    content = schema.serialize().to_pybytes() + json.dumps(dict(dialect), sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=6).hexdigest()
