"""Feeds one of several targets: batches wait in memory, and on disk with `onSlow=spill`."""

import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from io import BytesIO
from typing import IO

import pyarrow as pa

from spark_channel.errors import FlowError, TargetError
from spark_channel.pipeline.threads import Pay

__all__ = ["Feeder"]


class Feeder:
    """Takes batches from the thread that reads, and gives them to `pay` in order from another thread.

    One batch waits in memory while another is paid, and up to `spill_bytes` wait on disk; then `put` waits. The file
    has no name, so nothing is left behind however the process ends; its room is used again whenever it is empty.

    Args:
        pay: called as `pay(batch, nbytes)`; `fail` must end its wait.
        fail: told once of what `pay` raised.
        done: called when all is paid, after `finish`.
    """

    def __init__(
        self,
        pay: Pay,
        *,
        fail: Callable[[BaseException], None],
        done: Callable[[], None],
        spill_bytes: int,
        name: str,
    ) -> None:
        self._pay = pay
        self._fail = fail
        self._done = done
        self._most = spill_bytes
        self._changed = threading.Condition()
        self._waiting: deque[tuple[pa.RecordBatch, int] | _Written] = deque()
        self._file: IO[bytes] | None = None
        self._end = 0
        self._on_disk = self._in_memory = 0
        self.spilled_bytes = 0
        self._over = self._dropped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, batch: pa.RecordBatch, nbytes: int) -> None:
        """Keep a batch; waits where neither memory nor disk may hold more. By one thread.

        Raises:
            TargetError: the disk is full, or cannot be written. What `pay` raised for a batch before it.
        """
        with self._changed:
            while self._error is None and not self._dropped and self._in_memory and not self._most:
                self._changed.wait()
            self._raise_if_failed()
            if not self._on_disk and not self._in_memory:
                self._waiting.append((batch, nbytes))
                self._in_memory += 1
                self._changed.notify_all()
                return
        packed = _packed(batch)
        with self._changed:
            # One batch larger than all that is allowed passes when the file is empty.
            while self._waits_for_disk(len(packed)):
                self._changed.wait()
            self._raise_if_failed()
            self._waiting.append(self._write(packed, nbytes))
            self._changed.notify_all()

    def finish(self) -> None:
        """Nothing more is put. Returns at once; `done` is called when all is paid."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def close(self) -> None:
        """Drop what is not paid, and wait for the thread's end; a `pay` that waits is ended by who fails it."""
        with self._changed:
            self._over = self._dropped = True
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
        if self._file is not None:
            self._file.close()

    def _write(self, packed: memoryview, nbytes: int) -> "_Written":
        if not self._on_disk:
            self._end = 0
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=_folder(), buffering=0)  # noqa: SIM115 - closed at the end
            place, left = self._end, packed
            while left:
                done = os.pwrite(self._file.fileno(), left, self._end)
                self._end += done
                left = left[done:]
        except OSError as error:
            raise TargetError(
                f"rows of a slow target (onSlow=spill) cannot be kept in {_folder()}: {error.strerror or error}. Make "
                "room there, lower 'spillBytes', or set onSlow=block"
            ) from error
        self._on_disk += 1
        self.spilled_bytes += len(packed)
        return _Written(place, len(packed), nbytes)

    def _run(self) -> None:
        try:
            while (taken := self._take()) is not None:
                self._pay(*taken)
                del taken
            with self._changed:
                dropped = self._dropped
            if not dropped:
                self._done()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._waiting.clear()
                self._changed.notify_all()
            self._fail(error)

    def _take(self) -> tuple[pa.RecordBatch, int] | None:
        with self._changed:
            while not self._waiting:
                if self._over:
                    return None
                self._changed.wait()
            first = self._waiting.popleft()
            if not isinstance(first, _Written):
                self._in_memory -= 1
                self._changed.notify_all()
                return first
            file = self._file
        assert file is not None
        data = os.pread(
            file.fileno(), first.length, first.place
        )  # its room is not used again before it is read
        if len(data) != first.length:
            raise TargetError(
                f"the spill file in {_folder()} lost {first.length - len(data)} bytes"
            )
        with self._changed:
            self._on_disk -= 1
            self._changed.notify_all()
        return _unpacked(data), first.nbytes

    def _waits_for_disk(self, length: int) -> bool:
        is_full = self._on_disk > 0 and self._end + length > self._most
        return self._error is None and not self._dropped and is_full

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error
        if self._dropped:
            raise FlowError("the target's feeder was closed: its rows are not wanted any more")


class _Written:
    """Where a batch is in the file."""

    __slots__ = ("length", "nbytes", "place")

    def __init__(self, place: int, length: int, nbytes: int) -> None:
        self.place = place
        self.length = length
        self.nbytes = nbytes


def _packed(batch: pa.RecordBatch) -> memoryview:
    sink = BytesIO()
    with pa.ipc.new_stream(
        sink, batch.schema
    ) as stream:  # with its dictionaries, which `serialize` leaves out
        stream.write_batch(batch)
    return sink.getbuffer()


def _unpacked(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_next_batch()


def _folder() -> str:
    """Where Spark keeps what does not fit in memory; else the machine's folder of temporary files."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0].strip()
    return given if given and os.path.isdir(given) else tempfile.gettempdir()  # noqa: PTH112 - a text for tempfile
