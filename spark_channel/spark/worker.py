"""Code for Spark's Python workers: session facts, short errors, cancelled reads noticed, rows sent promptly."""

import contextlib
import os
import re
import select
import socket
import stat
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import randbits
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, TypedDict, TypeVar

from spark_channel import errors, version
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import (
    ChannelError,
    JobCancelledError,
    MissingPackageError,
    UnsupportedError,
)
from spark_channel.plain_text import log_of

if TYPE_CHECKING:
    from pyspark import TaskContext

__all__ = [
    "HangupWatch",
    "SessionFacts",
    "Versioned",
    "check_version",
    "docs_link_of",
    "is_worker",
    "own_error",
    "pass_of",
    "portable",
    "sent_as_they_come",
    "unpickled",
    "without_traceback",
]


_log = log_of(__name__)
_T = TypeVar("_T")
_OURS = re.compile(
    r"(?:^(?:E\s+)?|: )spark_channel\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\Z)",
    re.DOTALL | re.MULTILINE,
)
_NO_CLASS = re.compile(
    r"java\.lang\.(?:ClassNotFoundException|NoClassDefFoundError): (?P<named>[\w./$]*[Dd]river[\w$]*)"
    r"|java\.sql\.SQLException: No suitable driver"
)
_PAGES = {
    errors.OptionError: "spark-channel help options",
    errors.JobFileError: "spark-channel help datax",
    errors.SupersededError: "spark-channel help commits#errors",
    errors.CommitError: "spark-channel help commits#errors",
    errors.DirtyRowsError: "spark-channel help transfer#dirty-rows",
    errors.TunnelError: "spark-channel help tunnel#what-is-refused-and-what-to-do",
    errors.ServiceUnavailableError: "spark-channel help deploy#ports-and-firewalls",
    errors.LimitError: "spark-channel help limits#what-goes-wrong",
}
"""Where a class of errors is explained; the first that fits counts."""
_ANY_PAGE = "spark-channel help operations#errors-and-symptoms"
_SEE = re.compile(r"\nSee `spark-channel help .*\Z", re.DOTALL)
_CANCELLED = re.compile(
    r"(?:\[SPARK_JOB_CANCELLED\] )?Job \d+ cancelled[^\n]*|\[OPERATION_CANCELED\] [^\n]*"
)
"""The second one is Spark Connect's."""
_DESCRIPTORS = Path("/proc/self/fd")
_EVERY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Facts about a session that `register` collects for planner processes; None = the session could not be asked.

    See `ChannelDataSource`.
    """

    parallelism: int | None = None
    driver_host: str | None = None
    slots: int | None = None


@contextmanager
def without_traceback() -> Iterator[None]:
    """In a worker of Spark, send an error of this package as its message and the page of the docs, without a traceback.

    It says what happened, why, and what to do: the frames of worker and package below it do not. pyspark reads
    this setting when it sends an error, after which the worker ends. Other errors keep their traceback.
    """
    try:
        yield
    except ChannelError as error:
        if is_worker():
            _log.debug("the error was raised here", exc_info=True)
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            if not getattr(error, "__notes__", None):  # blocks of this kind may be nested
                error.add_note(f"See `{docs_link_of(error)}`")
        raise


def docs_link_of(error: ChannelError) -> str:
    """The page of the documentation that explains this error."""
    return next((page for kind, page in _PAGES.items() if isinstance(error, kind)), _ANY_PAGE)


def is_worker() -> bool:
    """Whether Spark started this process, to plan or to run a task."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def own_error(error: BaseException) -> ChannelError | None:
    """The error of this package that made a Spark job fail, as the task raised it; None = another one."""
    if isinstance(error, ChannelError):
        return error
    if (missing := _missing_class(str(error))) is not None:
        return missing
    own_errors = _OURS.findall(str(error))
    if not own_errors:
        cancelled = _CANCELLED.search(str(error))
        if cancelled is None:
            return None
        return JobCancelledError(
            f"the job was cancelled in Spark ({cancelled[0].strip()}). Its staged rows are removed; with commit=task "
            "the rows of finished tasks stay in the target. Run it again to copy the rest"
        )
    name, message = own_errors[-1]
    kind = getattr(errors, name, ChannelError)
    rebuilt: ChannelError = kind(_SEE.sub("", message.strip()))
    return rebuilt


def _missing_class(text: str) -> MissingPackageError | None:
    """Return an error for a driver that Spark's JVM lacks; None = the text reports no such driver."""
    match = _NO_CLASS.search(text)
    if match is None:
        return None
    name = (match["named"] or "").replace("/", ".")
    missing = f"the class {name}" if name else "a JDBC driver for the url"
    return MissingPackageError(
        f"Spark does not have {missing}: give the driver's jar with --conf spark.jars=/path/to/driver.jar "
        "(or its coordinates with --conf spark.jars.packages=group:name:version)",
        name=name,
    )


def connection_to_the_jvm() -> socket.socket | None:
    """Return the socket that connects this worker to the JVM, or None in a worker without pyspark's daemon.

    It is a variable of the daemon's function: pyspark offers no other access.
    """
    sock = _variable("sock")
    return sock if type(sock) is socket.socket else None


def output_to_the_jvm() -> IO[bytes] | None:
    """The buffered file that pyspark writes batches into."""
    outfile: IO[bytes] | None = _variable("outfile")
    return outfile


def _variable(name: str) -> Any:
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the frames of this thread
    while frame is not None:
        if frame.f_code.co_filename.endswith("/pyspark/daemon.py"):
            return frame.f_locals.get(name)
        frame = frame.f_back
    return None


class PassNames(TypedDict):
    """What names one pass over a part of a plan: see `progress.Snapshot`."""

    attempt: int
    scan: int
    opening: int


def pass_of(task: "TaskContext") -> PassNames:
    """Return what tells this pass over a part of a plan apart from the others of a job, and from its own retries.

    A union or a self-join reads one plan in several tasks of a stage, a coalesced union in one task. The attempts of a
    task have its stage and partition.
    """
    return {
        "attempt": task.taskAttemptId(),
        "scan": task.stageId() << 32 | task.partitionId(),
        "opening": randbits(48),
    }


class HangupWatch:
    """Calls back once, from its own thread, when Spark's JVM closes this process's socket.

    Made when `read()` begins, before anything else opens sockets.

    Spark does not notify a Python worker when a LIMIT is satisfied or a task is cancelled: it closes the worker's
    socket, and the worker notices at its next flush, which is late in a throttled read. So that socket is watched. In a
    worker without pyspark's daemon, all sockets that are open when `read()` begins are watched (on Linux; elsewhere the
    worker notices at its next flush).
    """

    def __init__(self) -> None:
        # A connection that other code of a worker keeps, say to an object store, may end at any time.
        connection = connection_to_the_jvm()
        self._sockets = (
            _alive(_open_descriptors())
            if connection is None
            else _sockets_at([connection.fileno()])
        )

    @contextlib.contextmanager
    def calling(self, on_hangup: Callable[[], None]) -> Iterator[None]:
        """Watch while the block runs; the end of the block ends the thread."""
        if not self._sockets:
            yield
            return
        stop_read, stop_write = os.pipe()
        thread = threading.Thread(
            target=self._watch,
            args=(stop_read, on_hangup),
            name="spark-channel-hangup",
            daemon=True,
        )
        try:
            thread.start()
            yield
        finally:
            # Not by closing it: a poll that holds it, by the number of a socket that was closed, would keep it open.
            os.write(stop_write, b"x")
            thread.join()
            os.close(stop_write)
            os.close(stop_read)

    def _watch(self, stop_read: int, on_hangup: Callable[[], None]) -> None:
        poller = select.poll()
        poller.register(stop_read, select.POLLIN)
        for descriptor, inode in self._sockets.items():
            if _socket_at(descriptor) == inode:
                # Else it was closed, and its number may be another's by now.
                poller.register(descriptor, 0)  # POLLHUP, POLLERR and POLLNVAL are always reported
        while True:
            for descriptor, event in poller.poll():
                if descriptor == stop_read:
                    return
                if event & select.POLLNVAL or _socket_at(descriptor) != self._sockets[descriptor]:
                    poller.unregister(descriptor)
                    continue
                on_hangup()
                return


def _open_descriptors() -> list[int]:
    try:
        return [int(entry.name) for entry in _DESCRIPTORS.iterdir()]
    except OSError:
        return []


def _sockets_at(descriptors: Iterable[int]) -> dict[int, int]:
    """Descriptor -> inode."""
    inodes = {descriptor: _socket_at(descriptor) for descriptor in descriptors}
    return {descriptor: inode for descriptor, inode in inodes.items() if inode is not None}


def _alive(descriptors: Iterable[int]) -> dict[int, int]:
    """Return the sockets that are still connected. User code lost the others: Spark's own socket waits for rows."""
    sockets, poller = _sockets_at(descriptors), select.poll()
    for descriptor in sockets:
        poller.register(descriptor, 0)
    lost = {descriptor for descriptor, _ in poller.poll(0)}
    return {descriptor: inode for descriptor, inode in sockets.items() if descriptor not in lost}


def _socket_at(descriptor: int) -> int | None:
    """The inode of the socket that has this number; None = it is closed, or no socket."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None


_Kind = TypeVar("_Kind", bound="type | Callable[..., Any]")


def portable(kind: _Kind) -> _Kind:
    """Have `kind` pickled by its name in `pyspark_channel`, which finds this package where Spark left it.

    Without that module, as when the package alone was copied, by its own: then the package must be on the path.
    """
    with suppress(ModuleNotFoundError):
        import pyspark_channel  # noqa: F401 - cloudpickle pickles by name only where the module is imported

        kind.__module__ = "pyspark_channel"
    return kind


@portable
def check_version(planned: str) -> None:
    """The first thing that is unpickled of a `Versioned` object.

    Raises:
        UnsupportedError: this process has another version of the package than the one that pickled the object.
    """
    mine = version.__version__
    if planned != mine:
        with without_traceback():
            raise UnsupportedError(
                f"this Python process on {socket.gethostname()} has spark-channel {mine}, and the job was planned by "
                f"{planned}: install one version on the driver and on all executors, or ship it with the job "
                "(--archives, or spark_channel.ship(spark) before register)"
            )


@portable
def unpickled(_version: None, kind: type[_T]) -> _T:
    """An object whose version was checked; its state follows."""
    return object.__new__(kind)


class _Stamp:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return check_version, (version.__version__,)


class Versioned:
    """An object that is unpickled only by the version of the package that pickled it.

    Between versions, classes and their fields differ: a task that took such an object would fail somewhere, or not.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled, (_Stamp(), type(self)), self.__getstate__()


def sent_as_they_come(
    batches: Generator[_T, None, None], clock: Clock = SYSTEM_CLOCK
) -> Generator[_T, None, None]:
    """Yield `batches`, and flush the output to Spark if nothing was sent for a fifth of a second.

    A Python worker of pyspark holds back its output until it has 64 KiB. Under a low limit these are thousands of rows,
    for which `show()` would wait.
    """
    output = output_to_the_jvm()
    sent = clock.now() - _EVERY_SECONDS
    with closing(batches):
        for batch in batches:
            yield batch
            if output is not None and clock.now() - sent >= _EVERY_SECONDS:
                with suppress(OSError, ValueError):
                    # Spark needs no more rows: `HangupWatch` reports that.
                    output.flush()
                sent = clock.now()
