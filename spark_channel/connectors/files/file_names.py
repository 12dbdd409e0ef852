"""Names of data files: unique over all attempts of all runs, sorted by task."""

import posixpath
import re
from dataclasses import dataclass
from uuid import uuid4

from spark_channel.connectors.files.filesystem import LOG, PREFIXES

__all__ = [
    "ALL_FILES",
    "OwnedFileNames",
    "file_name",
    "is_ours",
    "new_attempt",
    "run_name",
    "run_of",
]

_NAME = re.compile(r"part-\d+-(?P<job>.+)-e(?P<epoch>\d+)-\d+-[0-9a-f]{8}-\d+\.[a-z0-9.]+")


@dataclass(frozen=True, slots=True)
class OwnedFileNames:
    """The files that one write owns in a directory: all files, or those whose names begin with `prefix`.

    The files of a prefix have a separate log, below the directory's `_spark_channel`, so that the directory
    itself has none: readers see the files of every program there.
    """

    prefix: str | None = None

    def home(self, directory: str) -> str:
        """The directory whose folder `_spark_channel` has the log and the staging."""
        return (
            directory
            if self.prefix is None
            else posixpath.join(directory, LOG, PREFIXES, self.prefix)
        )

    def make(
        self, task: int, run: str, attempt: int, unique: str, number: int, extension: str
    ) -> str:
        name = file_name(task, run, attempt, unique, number, extension)
        return name if self.prefix is None else f"{self.prefix}__{name.removeprefix('part-')}"

    def run_of(self, path: str) -> str | None:
        """The run that wrote a file of this name; None = another program wrote it."""
        if self.prefix is None:
            return run_of(path)
        start, name = f"{self.prefix}__", posixpath.basename(path)
        return run_of(f"part-{name.removeprefix(start)}") if name.startswith(start) else None

    def show(self, target: str) -> str:
        """The target, for people."""
        return target if self.prefix is None else f"{target.rstrip('/')}/{self.prefix}*"


ALL_FILES = OwnedFileNames()


def new_attempt() -> str:
    """Distinguishes attempts that have one number: of a stream's batch that another driver runs again."""
    return uuid4().hex[:8]


def file_name(task: int, run: str, attempt: int, unique: str, number: int, extension: str) -> str:
    return f"part-{task:05d}-{run}-{attempt}-{unique}-{number:03d}.{extension}"


def run_name(job: str, epoch: int) -> str:
    """A run's name in file names: one job may hold a claim again, in another epoch."""
    return f"{job}-e{epoch}"


def run_of(path: str) -> str | None:
    """The run that wrote a file of this name; None = another program wrote it."""
    match = _NAME.fullmatch(posixpath.basename(path))
    return f"{match.group('job')}-e{match.group('epoch')}" if match else None


def is_ours(path: str) -> bool:
    return run_of(path) is not None
