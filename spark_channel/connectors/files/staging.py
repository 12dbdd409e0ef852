"""Where a job keeps what it has not published, how its files are called, and how dead jobs are found.

A job's folder is `<target>/.spark_channel/<job>/`; its `job.json` says whose it is, and its time of
change is the job's last sign of life. A job is dead when the process that it belongs to ran on this
machine and is gone; or, where that cannot be told, when nothing in its folder changed for `orphanAge`.
"""

import json
import posixpath
import re
from dataclasses import dataclass

from pyarrow import fs as pafs

from spark_channel.clock import utc_now
from spark_channel.connectors.commit.owner import describe_owner, owner_is_gone
from spark_channel.connectors.files.manifest import HIDDEN, SUCCESS
from spark_channel.connectors.files.paths import is_hidden
from spark_channel.connectors.files.store import Store
from spark_channel.connectors.files.visible import read_file
from spark_channel.errors import OptionError

__all__ = ["JobFolder", "data_files", "file_name", "job_of", "jobs_in"]

_NAME = re.compile(r"part-\d+-(?P<job>.+)-\d+-\d+\.[a-z0-9.]+")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_MARKER = "job.json"
_LOCK = "lock"


def file_name(task: int, job: str, attempt: int, number: int, extension: str) -> str:
    """Unique over all attempts of all jobs, sorted by task."""
    return f"part-{task:05d}-{job}-{attempt}-{number:03d}.{extension}"


def job_of(name: str) -> str | None:
    """The job that wrote a file of this name; None = not one of ours."""
    match = _NAME.fullmatch(posixpath.basename(name))
    return match.group("job") if match else None


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job in one target."""

    store: Store
    target: str
    job: str

    @property
    def path(self) -> str:
        return posixpath.join(self.target, HIDDEN, self.job)

    @property
    def marker(self) -> str:
        return posixpath.join(self.path, _MARKER)

    def attempt(self, task: int, attempt: int) -> str:
        """Where an attempt writes: a folder of its own, or the target itself on an object store."""
        return posixpath.join(self.path, f"{task}-{attempt}") if self.store.staged else self.target

    def begin(self) -> None:
        if not _JOB.fullmatch(self.job):
            raise OptionError(
                f"job {self.job!r} cannot name a folder; option 'jobId' takes letters, digits, '.', '_' "
                "and '-'",
                option="jobId", got=self.job,
            )  # fmt: skip
        self.store.make(self.path)
        about = {"owner": describe_owner(), "started": utc_now().isoformat(timespec="seconds")}
        self.store.put(self.marker, json.dumps(about).encode())

    def is_live(self) -> bool:
        """Whether the job was neither ended nor aborted."""
        return self.store.exists(self.marker)

    def is_dead(self, orphan_age: float) -> bool:
        """Whether it was left behind by a killed driver. The caller holds the target's lock."""
        try:
            raw = read_file(self.store.place.fs, self.marker)
            if raw is None:
                return True  # it was ended, and what followed was interrupted
            if owner_is_gone(json.loads(raw)["owner"]):
                return True
        except (OSError, ValueError, KeyError, TypeError):
            pass  # unreadable, or of another version: its age tells
        entries = [self.store.info(self.path), *self.store.entries(self.path, recursive=True)]
        newest = max((info.mtime_ns or 0) for info in entries)
        return newest > 0 and utc_now().timestamp() - newest / 1e9 > orphan_age

    def remove(self) -> None:
        # The marker first: a task that still runs must not take the job for a live one.
        self.store.remove(self.marker)
        self.store.remove_tree(self.path)


def lock_path(target: str) -> str:
    return posixpath.join(target, HIDDEN, _LOCK)


def jobs_in(store: Store, target: str) -> list[str]:
    """The jobs that have a folder in the target."""
    return [
        info.base_name
        for info in store.entries(posixpath.join(target, HIDDEN))
        if info.type == pafs.FileType.Directory and info.base_name != _LOCK
    ]


def data_files(store: Store, target: str) -> dict[str, pafs.FileInfo]:
    """Every file in the target that is not hidden, by its path relative to it."""
    found = {}
    pending = [target]
    while pending:
        directory = pending.pop()
        for info in store.entries(directory):
            if is_hidden(info.base_name) or info.base_name == SUCCESS:
                continue
            if info.type == pafs.FileType.Directory:
                pending.append(info.path)
            elif info.type == pafs.FileType.File:
                found[posixpath.relpath(info.path, target)] = info
    return found
