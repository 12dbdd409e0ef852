"""The staging of a run: Arrow files in a hidden directory beside the database.

`.orders.db.spark-channel/<stage>/` holds a `token`, which proves to a Spark task that it sees the driver's disk, the
`owner`, by which a dead run is known, and one file per attempt, named for task, attempt and a random part: a task of a
driver that was killed may still be writing under the same numbers.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_channel.clock import utc_text
from spark_channel.connectors.base.claims import Claim, Identity, is_alive, own_process
from spark_channel.connectors.sql.write.heartbeat import HeartbeatThread
from spark_channel.errors import TargetError
from spark_channel.final_errors import final, of_input

__all__ = [
    "StagedFile",
    "StagingDirectory",
    "stages_beside",
    "target_errors",
]


_TOKEN, _OWNER, _DOUBT = "token", "owner", "doubt"
_TRIES = 5
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class StagingDirectory:
    """One run's directory."""

    directory: Path

    @classmethod
    def beside(cls, database: Path, name: str) -> "StagingDirectory":
        return cls(_home(database) / name)

    def make(self) -> str:
        """Make the directory, or find it made by an earlier call for the same run; returns its token.

        Raises:
            TargetError: no directory, no permission, no room; says what to do.
        """
        try:
            with target_errors(self.directory):
                return self._make()
        except TargetError:
            if not self.is_there():
                self.remove()
            raise

    def is_there(self) -> bool:
        """Whether the run has not ended, as far as this process sees."""
        try:
            return (self.directory / _TOKEN).stat().st_size > 0
        except OSError:
            return False

    def _make(self) -> str:
        token = self.directory / _TOKEN
        for _ in range(_TRIES):
            try:
                # A run that ends removes the common parent when it is empty, also between these two.
                self.directory.parent.mkdir(mode=0o700, exist_ok=True)
                self.directory.mkdir(mode=0o700, exist_ok=True)
                (self.directory / _OWNER).write_text(own_process(), "utf-8")
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
        """Check that this process sees the directory that the driver made, and send a heartbeat of the run.

        Raises:
            TargetError: it does not, or the run has ended.
        """
        try:
            found_token = (self.directory / _TOKEN).read_text("ascii")
            self.show_life()
        except OSError:
            found_token = ""
        if not secrets.compare_digest(found_token, token):
            raise TargetError(
                f"this Spark task (on {os.uname().nodename}) does not see {self.directory}, "
                "which the driver made beside the database: either the job was aborted "
                "or another run took it over, or the task runs on another disk. A database file is written "
                "where it is: use one machine (master local[*]), or a directory that all machines mount"
            )

    def show_life(self) -> None:
        """Say that the run lives: the time of change of its token."""
        os.utime(self.directory / _TOKEN)

    def last_beat(self) -> str | None:
        """The time of the run's last heartbeat; None = the directory does not exist."""
        return _changed(self.directory / _TOKEN) or _changed(self.directory)

    def is_dead(self) -> bool:
        """Whether the run that made the directory is known to be dead; notes a doubt for later calls."""
        beat = self.last_beat()
        if beat is None:
            return False  # it went meanwhile
        try:
            process = (self.directory / _OWNER).read_text("utf-8")
        except (OSError, ValueError):
            process = ""
        doubt = _changed(self.directory / _DOUBT) or ""
        claim = Claim(
            Identity(str(self.directory), "job", self.directory.name),
            "run",
            process=process,
            beat_at=beat,
            doubted_at=doubt,
        )
        liveness = is_alive(claim, utc_text())
        if liveness == "doubtful" and not doubt > beat:
            try:
                (self.directory / _DOUBT).touch()
            except OSError:
                pass  # not ours to remove, then
        return liveness == "dead"

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
            pass  # other runs are in it, or it was removed already


def stages_beside(database: Path) -> list[str]:
    """The names of the directories of all runs."""
    home = _home(database)
    try:
        return sorted(entry.name for entry in home.iterdir() if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def target_errors(path: Path) -> Iterator[None]:
    """`OSError` as `TargetError` that says what to do about `path`."""
    try:
        yield
    except FileNotFoundError as error:
        raise of_input(
            TargetError(
                f"directory {_missing(path)} does not exist; make it, or name the database in another one"
            )
        ) from error
    except PermissionError as error:
        raise of_input(
            TargetError(
                f"this user may not write {error.filename or path}; its directory must be writable too"
            )
        ) from error
    except OSError as error:
        target_error = TargetError(f"{path}: {error.strerror or error}; {_advice(error)}")
        raise final(target_error, is_final=error.errno in _FULL) from error


def _advice(error: OSError) -> str:
    if error.errno in _FULL:
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


def _changed(path: Path) -> str | None:
    try:
        at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return utc_text(at)
    except OSError:
        return None


class StagedFile:
    """The file of one attempt of one task; an attempt without rows has none.

    Used by one thread; `open` comes first. `token` proves that this process sees the directory which
    the driver made. `when_gone` is called when the directory was removed meanwhile, to raise what explains it.

    Raises:
        TargetError: it does not see it, the job has ended, or the disk fails; from every method but `drop`.
    """

    def __init__(
        self,
        directory: str,
        token: str,
        task: int,
        attempt: int,
        *,
        when_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._staging = StagingDirectory(Path(directory))
        self._when_gone = when_gone
        self._token = token
        self._life: HeartbeatThread | None = None
        self.path = self._staging.new_file(task, attempt)
        self._file: Any = None
        self._ipc: Any = None

    def open(self) -> None:
        """Hold the directory to be the one that the driver made, and show life in it from here on."""
        self._check()
        self._life = HeartbeatThread(self._staging.show_life)

    def write(self, batch: pa.RecordBatch) -> None:
        with target_errors(self.path):
            if self._ipc is None:
                # Not "xb": the name is random, and a removed directory says that the job was aborted.
                self._file = self._new_file()
                self._ipc = pa.ipc.new_file(self._file, batch.schema)
            self._ipc.write_batch(batch)

    def _new_file(self) -> Any:
        try:
            return self.path.open("wb")
        except FileNotFoundError:
            self._check()
            raise

    def _check(self) -> None:
        if not self._staging.is_there():
            self._when_gone()
        self._staging.check(self._token)

    def flush(self) -> None:
        if self._file is not None:
            with target_errors(self.path):
                self._file.flush()

    def close(self) -> bool:
        """Make it whole and durable; whether there is one."""
        ipc, self._ipc = self._ipc, None
        if ipc is not None:
            with target_errors(self.path):
                ipc.close()
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
        self._check()
        self._end_life()
        return ipc is not None

    def drop(self) -> None:
        """Remove it. Safe at any time, and twice."""
        self._end_life()
        ipc, file = self._ipc, self._file
        self._ipc = self._file = None
        for stream in (ipc, file):
            if stream is not None:
                try:
                    stream.close()
                except (OSError, ValueError):
                    pass  # a full disk, or closed already: the file is removed next
        self.path.unlink(missing_ok=True)

    def _end_life(self) -> None:
        if self._life is not None:
            self._life.end()
