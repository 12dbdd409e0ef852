"""Names of data files: unique over all attempts of all runs, sorted by task."""

import posixpath
import re
from uuid import uuid4

__all__ = ["file_name", "is_ours", "new_attempt", "run_name", "run_of"]

_NAME = re.compile(r"part-\d+-(?P<job>.+)-e(?P<epoch>\d+)-\d+-[0-9a-f]{8}-\d+\.[a-z0-9.]+")


def new_attempt() -> str:
    """Tells attempts apart that have one number: of a stream's batch that another driver runs again."""
    return uuid4().hex[:8]


def file_name(task: int, run: str, attempt: int, unique: str, number: int, extension: str) -> str:
    return f"part-{task:05d}-{run}-{attempt}-{unique}-{number:03d}.{extension}"


def run_name(job: str, epoch: int) -> str:
    """A run's name in file names: one job may hold a claim again, in another epoch."""
    return f"{job}-e{epoch}"


def run_of(path: str) -> str | None:
    """The run that wrote a file of this name; None = not one of ours."""
    match = _NAME.fullmatch(posixpath.basename(path))
    return f"{match.group('job')}-e{match.group('epoch')}" if match else None


def is_ours(path: str) -> bool:
    return run_of(path) is not None
