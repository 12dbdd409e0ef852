"""Where a job keeps its rows until they are published: Arrow files in a hidden directory beside the database.

`.orders.db.spark-channel/<job>/` holds a `token`, which proves to a Spark task that it sees the driver's
disk, and one file per attempt, named for task, attempt and a random part: a task of a driver that was killed
may still be writing under the same numbers.
"""

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_channel.clock import utc_now
from spark_channel.connectors.sql.life import ORPHAN_SECONDS
from spark_channel.errors import TargetError

__all__ = ["ORPHAN_SECONDS", "Staging", "clear_orphans", "target_errors"]

_TOKEN = "token"  # noqa: S105 - the name of a file; its content keeps nobody out
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Staging:
    """One job's directory."""

    directory: Path

    @classmethod
    def of(cls, database: Path, job: str, batch: int | None) -> "Staging":
        """The directory of a job's batch: the same for each who asks."""
        readable = re.sub(r"[^A-Za-z0-9_.-]", "_", job)[:60].lstrip(".")
        suffix = hashlib.sha256(f"{job}\0{batch}".encode()).hexdigest()[:12]
        return cls(_home(database) / f"{readable}-{suffix}")

    def make(self) -> str:
        """Make the directory, or find it made by an earlier call for the same job; returns its token.

        Raises:
            TargetError: no directory, no permission, no room; says what to do.
        """
        try:
            with target_errors(self.directory):
                return self._make()
        except TargetError:
            if not self._has_token():
                self.remove()
            raise

    def _has_token(self) -> bool:
        try:
            return (self.directory / _TOKEN).stat().st_size > 0
        except OSError:
            return False

    def _make(self) -> str:
        token = self.directory / _TOKEN
        for _ in range(_TRIES):
            try:
                # A job that ends removes the common parent when it is empty, also between these two.
                self.directory.parent.mkdir(mode=0o700, exist_ok=True)
                self.directory.mkdir(mode=0o700, exist_ok=True)
                with token.open("x", encoding="ascii") as file:
                    text = secrets.token_hex(16)
                    file.write(text)
                return text
            except FileExistsError:
                if text := token.read_text("ascii"):
                    token.touch()
                    return text
            except FileNotFoundError:
                if not self.directory.parent.parent.is_dir():
                    raise
        raise TargetError(f"cannot make {self.directory}: another process keeps removing it")

    def check(self, token: str) -> None:
        """Hold this process to see the directory that the driver made, and show that the job lives.

        Raises:
            TargetError: it does not, or the job has ended.
        """
        try:
            found = (self.directory / _TOKEN).read_text("ascii")
            self.show_life()
        except OSError:
            found = ""
        if not secrets.compare_digest(found, token):
            raise TargetError(
                f"this Spark task (on {os.uname().nodename}) does not see {self.directory}, which the "
                "driver made beside the database: either the job has been aborted, or the task runs on "
                "another disk. A database file is written where it lies: use one machine (master local[*]), "
                "or a directory that all machines mount"
            )

    def show_life(self) -> None:
        """Say that the job lives: the time of change of its token."""
        os.utime(self.directory / _TOKEN)

    def new_file(self, task: int, attempt: int) -> Path:
        return self.directory / f"{task}-{attempt}-{secrets.token_hex(4)}.arrow"

    def remove(self) -> None:
        """Remove the directory and what is in it, also while tasks still write to it. Safe twice."""
        (self.directory / _TOKEN).unlink(missing_ok=True)  # from here on no task begins a file
        for _ in range(_TRIES):
            shutil.rmtree(self.directory, ignore_errors=True)
            if not self.directory.exists():
                break
        try:
            self.directory.parent.rmdir()
        except OSError:
            pass  # other jobs are in it, or it is gone already


def clear_orphans(database: Path, keep: Staging) -> list[Path]:
    """Remove what killed drivers left: directories of other jobs, without life for `ORPHAN_SECONDS`."""
    removed = []
    oldest = utc_now().timestamp() - ORPHAN_SECONDS
    home = _home(database)
    for directory in sorted(home.iterdir()) if home.is_dir() else []:
        if directory != keep.directory and directory.is_dir() and _last_touched(directory) < oldest:
            Staging(directory).remove()
            removed.append(directory)
    return removed


@contextmanager
def target_errors(path: Path) -> Iterator[None]:
    """`OSError` as `TargetError` that says what to do about `path`."""
    try:
        yield
    except FileNotFoundError as error:
        raise TargetError(
            f"there is no directory {_missing(path)}; make it, or name the database in another one"
        ) from error
    except PermissionError as error:
        raise TargetError(
            f"this user may not write {error.filename or path}; its directory must be writable too"
        ) from error
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror or error}; {_advice(error)}") from error


def _advice(error: OSError) -> str:
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space on the database's disk: rows are staged beside the database, and then stored in it"
    if error.errno == errno.EROFS:
        return "the file system is mounted read-only; name a database on another one"
    return "see that the disk is well"


def _missing(path: Path) -> Path:
    """The outermost part of `path` that is not there."""
    missing = path
    while not missing.parent.exists() and missing.parent != missing:
        missing = missing.parent
    return missing


def _home(database: Path) -> Path:
    return database.parent / f".{database.name}.spark-channel"


def _last_touched(directory: Path) -> float:
    times = []
    for path in (directory, *directory.iterdir()):
        try:
            times.append(path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times, default=0.0)
