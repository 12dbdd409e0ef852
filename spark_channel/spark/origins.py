"""Tells the sink of a Spark task which tunnel range its rows come from.

Source and sink of one task run in two Python processes on one host, and Spark passes nothing from the one
to the other. So the source notes the origin in a small file named for query, partition and attempt, before
its first row; the sink looks there when that row has come. After a shuffle no such file exists: rows of
several ranges are mixed then. The files lie in the private directory of this user, where no other user can put a
file or a link in the way; the sink removes its file, and what a killed task left goes after a day.
"""

import contextlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator

from pyspark import TaskContext

from spark_channel.errors import ServiceUnavailableError, SourceError
from spark_channel.service.rendezvous import private_directory

__all__ = ["forget_origins", "note_origin", "origins_of_task"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST = 1 << 20
_OLD_SECONDS = 86_400.0


def note_origin(task: TaskContext, origin: str) -> None:
    """The source: rows of `origin` come next in this task.

    Raises:
        SourceError: it cannot be noted, so that the sink could not publish the rows under its name.
    """
    found = _name(task)
    if found is None:
        return
    name, attempt = found
    try:
        with _directory(make=True) as directory:
            known = _read(directory, name, attempt)
            if origin in known:
                return
            if not known:
                _sweep(directory)
            _write(directory, name, {"attempt": attempt, "origins": [*known, origin]})
    except (OSError, ServiceUnavailableError) as error:
        raise SourceError(
            f"the tunnel range of these rows cannot be noted for the sink of the task ({error}): "
            "set TMPDIR or XDG_RUNTIME_DIR of the executors to a directory that this user may write"
        ) from None


def origins_of_task(task: TaskContext) -> list[str]:
    """The sink: what was noted so far; [] when the rows come from elsewhere."""
    found = _name(task)
    if found is None:
        return []
    try:
        with _directory() as directory:
            return _read(directory, *found)
    except (OSError, ServiceUnavailableError):
        return []


def forget_origins(task: TaskContext) -> None:
    """The sink, once it has taken all rows: the file is not needed any more."""
    found = _name(task)
    if found is None:
        return
    with contextlib.suppress(OSError, ServiceUnavailableError), _directory() as directory:
        if _read(directory, *found):
            os.unlink(found[0], dir_fd=directory)


def _name(task: TaskContext) -> tuple[str, str] | None:
    """(file, what tells this attempt from earlier ones); None outside a streaming query."""
    query, batch = (
        task.getLocalProperty("sql.streaming.queryId"),
        task.getLocalProperty("streaming.sql.batchId"),
    )
    if not query or batch is None:
        return None
    plain = "".join(each for each in query if each.isalnum() or each == "-")[:64]
    name = f"{plain}-{task.partitionId()}-{task.attemptNumber()}"
    return name, f"{query}/{batch}/{task.stageId()}/{task.taskAttemptId()}"


@contextlib.contextmanager
def _directory(*, make: bool = False) -> Iterator[int]:
    """The directory of origins in the private one, opened. No link is followed on the way."""
    parent = os.open(private_directory(), _DIRECTORY)
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir("origins", 0o700, dir_fd=parent)
        directory = os.open("origins", _DIRECTORY, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        yield directory
    finally:
        os.close(directory)


def _write(directory: int, name: str, noted: dict[str, object]) -> None:
    made = f".{name}.{secrets.token_hex(8)}"
    descriptor = os.open(made, _CREATE, 0o600, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(noted, file)
        os.rename(made, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made, dir_fd=directory)
        raise


def _read(directory: int, name: str, attempt: str) -> list[str]:
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return []
        with contextlib.suppress(ValueError, LookupError, TypeError):
            noted = json.loads(file.read(_LARGEST))
            if noted["attempt"] == attempt:
                return [str(origin) for origin in noted["origins"]]
    return []


def _sweep(directory: int) -> None:
    """Remove what tasks that were killed left."""
    old = time.time() - _OLD_SECONDS
    for name in os.listdir(directory):
        with contextlib.suppress(OSError):
            if os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime < old:
                os.unlink(name, dir_fd=directory)
