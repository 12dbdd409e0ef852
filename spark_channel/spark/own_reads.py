"""Notes for a write about its source: the tables that its rows may come from, or their tunnel range.

Spark passes nothing from a source to a sink. It plans a read before the write that takes its rows, and on one host: so
a planner notes what it plans to read, for as long as the driver runs. Which of these reads feeds a write is known only
in the task: there, source and sink are two processes on one host, and the source notes what it reads before its first
row. After a shuffle no such note exists, and none is needed: all rows were read before the first one is written.

Notes of planners are small files in the private directory of this user, those of tasks in the executor's own directory,
which Spark removes with the executor. No other user can put a file or a link in the way.
"""

import contextlib
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from spark_channel.connectors.base.overlap import Stored
from spark_channel.errors import ServiceUnavailableError, SourceError
from spark_channel.plain_text import log_of
from spark_channel.processes import alive, driver_pid, pid_namespace, started
from spark_channel.service.discovery import private_directory, read_private, write_private

__all__ = [
    "forget_origins",
    "note_origin",
    "note_planned",
    "note_read",
    "origins_of_task",
    "planned_reads",
    "reads_of_task",
]

_log = log_of(__name__)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST = 16 << 20
_READS = "spark-channel-reads"
_ORIGINS = "origins"
_OLD_SECONDS = 86_400.0
_UNKNOWN = "whether a write goes into the table that is read here cannot be noted for it: %s"


def note_planned(stored: Stored | None) -> None:
    """For a planner: note that this driver's queries may read from these tables."""
    if stored is None:
        return
    text = json.dumps(_plain(stored), sort_keys=True)
    name = f"{_driver()}{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    try:
        with _folder(private_directory(), _READS, make=True) as directory:
            for entry in os.listdir(directory):  # noqa: PTH208 - a descriptor
                if _is_gone(entry):
                    with contextlib.suppress(OSError):
                        os.unlink(entry, dir_fd=directory)
            if not _tables(directory, name):
                _write(directory, name, [_plain(stored)])
    except (OSError, ServiceUnavailableError) as error:
        _log.warning(_UNKNOWN, error)


def planned_reads() -> tuple[Stored, ...]:
    """For a planner: return the tables that queries of this driver have read, or will read."""
    try:
        with _folder(private_directory(), _READS) as directory:
            names = [name for name in os.listdir(directory) if name.startswith(_driver())]  # noqa: PTH208 - as above
            return tuple(stored for name in sorted(names) for stored in _tables(directory, name))
    except (OSError, ServiceUnavailableError):
        return ()


def note_read(task: TaskContext, stored: Stored) -> None:
    """For the source: note that the next rows of this task come from these tables."""
    executor_folder, name = _executor_directory(), _name(task)
    if executor_folder is None:
        return
    try:
        with _folder(executor_folder, _READS, make=True) as directory:
            noted = _tables(directory, name)
            if stored not in noted:
                _write(directory, name, [_plain(table) for table in (*noted, stored)])
    except OSError as error:
        _log.warning(_UNKNOWN, error)


def reads_of_task(task: TaskContext) -> tuple[Stored, ...]:
    """For the sink: return the tables that the sources of this task have read so far."""
    executor_directory = _executor_directory()
    if executor_directory is None:
        return ()
    try:
        with _folder(executor_directory, _READS) as directory:
            return tuple(_tables(directory, _name(task)))
    except OSError:
        return ()


def _driver() -> str:
    pid = driver_pid()
    return f"driver-{pid_namespace()}-{pid}-{started(pid)}-"


def _is_gone(name: str) -> bool:
    """Whether the driver of a note has ended; of another pid namespace nothing can be known."""
    parts = name.split("-")
    if len(parts) != 5 or parts[1] != pid_namespace() or not parts[2].isdigit():
        return False
    return not alive(int(parts[2]), parts[3])


def _name(task: TaskContext) -> str:
    return f"task-{task.stageId()}-{task.partitionId()}-{task.taskAttemptId()}"


def _executor_directory() -> Path | None:
    """Return the executor's block directory; None when it is not known, or other users may write there."""
    local_dir = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if not local_dir:
        return None
    try:
        status = os.lstat(local_dir)
    except OSError:
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return Path(local_dir) if is_own and not status.st_mode & 0o022 else None


def _plain(stored: Stored) -> list[Any]:
    parts = sorted(list(part) for part in stored.parts)
    return [stored.system, sorted(stored.servers), parts, stored.complete]


def _stored(plain: list[Any]) -> Stored:
    system, servers, parts, complete = plain
    return Stored(
        str(system),
        frozenset(map(str, servers)),
        frozenset(tuple(map(str, part)) for part in parts),
        bool(complete),
    )


def _tables(directory: int, name: str) -> list[Stored]:
    with contextlib.suppress(TypeError, ValueError):
        return [_stored(plain) for plain in read_private(directory, name, _LARGEST)]
    return []


def note_origin(task: TaskContext, origin: str) -> None:
    """Note for the sink of this task that the next rows come from the tunnel range `origin`.

    Source and sink of a task run in two Python processes on one host, and Spark passes nothing between them. So the
    source writes a small file, named for query, partition and attempt, before its first row, and the sink reads it when
    that row arrives. After a shuffle, which mixes the rows of several ranges, no such file exists. The files are in
    this user's private directory, where other users cannot put files or links. The sink removes its file; those of
    killed tasks are removed after a day.

    Raises:
        SourceError: it cannot be noted, so that the sink could not publish the rows under its name.
    """
    attempt_key = _attempt(task)
    if attempt_key is None:
        return
    name, attempt = attempt_key
    try:
        with _folder(private_directory(), _ORIGINS, make=True) as directory:
            origins = _origins(directory, name, attempt)
            if origin in origins:
                return
            if not origins:
                _sweep(directory)
            _write(directory, name, {"attempt": attempt, "origins": [*origins, origin]})
    except (OSError, ServiceUnavailableError) as error:
        raise SourceError(
            f"the tunnel range of these rows cannot be noted for the sink of the task ({error}): "
            "set TMPDIR or XDG_RUNTIME_DIR of the executors to a directory that this user may write"
        ) from None


def origins_of_task(task: TaskContext) -> list[str]:
    """For the sink: return the origins noted so far; [] when the rows come from another source."""
    attempt_key = _attempt(task)
    if attempt_key is None:
        return []
    try:
        with _folder(private_directory(), _ORIGINS) as directory:
            return _origins(directory, *attempt_key)
    except (OSError, ServiceUnavailableError):
        return []


def forget_origins(task: TaskContext) -> None:
    """For the sink, once it has taken all rows: remove the file."""
    attempt_key = _attempt(task)
    if attempt_key is None:
        return
    with (
        contextlib.suppress(OSError, ServiceUnavailableError),
        _folder(private_directory(), _ORIGINS) as directory,
    ):
        if _origins(directory, *attempt_key):
            os.unlink(attempt_key[0], dir_fd=directory)


def _attempt(task: TaskContext) -> tuple[str, str] | None:
    """Return (file, id of this attempt); None outside a streaming query."""
    query, batch = (
        task.getLocalProperty("sql.streaming.queryId"),
        task.getLocalProperty("streaming.sql.batchId"),
    )
    if not query or batch is None:
        return None
    plain = "".join(character for character in query if character.isalnum() or character == "-")[
        :64
    ]
    name = f"{plain}-{task.partitionId()}-{task.attemptNumber()}"
    return name, f"{query}/{batch}/{task.stageId()}/{task.taskAttemptId()}"


def _origins(directory: int, name: str, attempt: str) -> list[str]:
    with contextlib.suppress(LookupError, TypeError):
        noted = read_private(directory, name, _LARGEST)
        if noted["attempt"] == attempt:
            return [str(origin) for origin in noted["origins"]]
    return []


def _sweep(directory: int) -> None:
    """Remove the files of killed tasks."""
    old = time.time() - _OLD_SECONDS
    for name in os.listdir(directory):
        with contextlib.suppress(OSError):
            if os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime < old:
                os.unlink(name, dir_fd=directory)


@contextlib.contextmanager
def _folder(parent: Path, name: str, *, make: bool = False) -> Iterator[int]:
    """The directory `name` in `parent`, opened; a note is a small file of one user in it. No link is followed."""
    outer = os.open(parent, _DIRECTORY)
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=outer)
        directory = os.open(name, _DIRECTORY, dir_fd=outer)
    finally:
        os.close(outer)
    try:
        yield directory
    finally:
        os.close(directory)


def _write(directory: int, name: str, noted: object) -> None:
    write_private(directory, name, f".{name}.{secrets.token_hex(8)}", noted)
