"""Work on a SQLite file in a child process, if this process may have the file open with another library.

POSIX locks belong to a process: two SQLite libraries in one process do not see each other's locks, and a file that
one of them closes loses the locks of the other. A child has its own.
"""

import atexit
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sqlite.wire import batches_of, error_from, ipc

__all__ = ["ChildConnection"]

_KEPT = 4
"""How many children without work wait for the next connection; they end by themselves soon. As many as a client of a
tunnel uses at the same time: one that begins costs 0.2 s of CPU."""
_END_SECONDS = 5.0


class ChildConnection:
    """See `Connection`."""

    def __init__(self, uri: str) -> None:
        self._child: _Child | None = _taken() or _Child()
        self._numbers = itertools.count()
        try:
            self._child.ask("open", uri)
        except BaseException:
            self.close()
            raise

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._ask("rows", sql, tuple(parameters))
        return rows

    def insert(self, sql: str, rows: pa.Table | pa.RecordBatch) -> None:
        self._ask("insert", sql, ipc(rows))

    def stream(self, sql: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
        number = next(self._numbers)
        self._ask("stream", number, sql, batch_rows)
        try:
            while (data := self._ask("next", number)) is not None:
                yield from batches_of(data).to_batches()
        finally:
            if self._child is not None and not self._child.is_lost:
                self._ask("end", number)

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.release()

    def _ask(self, name: str, *arguments: Any) -> Any:
        if self._child is None:
            raise OSError("the connection is closed")
        return self._child.ask(name, *arguments)


class _Child:
    """The process, and the pipe to it."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._pipe, theirs = Pipe()
        self.is_lost = False
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - this package's module, by the interpreter that runs this
                    [
                        sys.executable,
                        "-m",
                        "spark_channel.connectors.sqlite.child",
                        str(theirs.fileno()),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C is for the parent, which then closes or rolls back
                    env={
                        **os.environ,
                        "PYTHONPATH": os.pathsep.join(
                            str(Path(each).absolute()) for each in sys.path
                        ),
                    },
                )
        except BaseException:
            self._pipe.close()
            raise

    @property
    def is_ready(self) -> bool:
        """Whether it still waits for work of this process."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, name: str, *arguments: Any) -> Any:
        """
        Raises:
            OSError: the child has ended. Or what the call raised there.
        """
        was_lost, self.is_lost = (
            self.is_lost,
            True,
        )  # until the answer is here: an interrupt may come in between
        if was_lost:
            raise OSError(
                "an earlier call to the child process that has the file open was interrupted"
            )
        try:
            self._pipe.send((name, arguments))
            is_answer, value = self._pipe.recv()
        except (EOFError, OSError):
            raise OSError(
                "the child process that has the file open has ended, which rolls its transaction back "
                f"(exit code {self._exit_code()}); run again"
            ) from None
        self.is_lost = False
        if not is_answer:
            raise error_from(*value)
        return value

    def release(self) -> None:
        """Roll back, and keep the process for the next connection, or end it."""
        try:
            if not self.is_lost:
                self.ask("close")
        except Exception:
            self.is_lost = True
        if self.is_lost or not _kept(self):
            self.end()

    def end(self) -> None:
        self._pipe.close()
        if self._owner != os.getpid():
            return  # a fork: the process is its parent's
        if self.is_lost:
            self._process.kill()
        if self._exit_code() is None:
            self._process.kill()
            self._process.wait()

    def _exit_code(self) -> int | None:
        try:
            return self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return None


_idle: list[_Child] = []
_lock = threading.RLock()


def _taken() -> _Child | None:
    """A child that waits for work; those that have ended are reaped."""
    with _lock:
        while _idle:
            child = _idle.pop()
            if child.is_ready:
                try:
                    child.ask("close")
                    return child
                except OSError:
                    pass  # it ended in this moment
            child.is_lost = True
            child.end()
    return None


def _kept(child: _Child) -> bool:
    with _lock:
        if len(_idle) >= _KEPT:
            return False
        _idle.append(child)
        return True


@atexit.register
def _end_all() -> None:
    with _lock:
        while _idle:
            _idle.pop().end()


def _forget() -> None:
    """A fork begins without children: those in the list are its parent's."""
    _idle.clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget)
