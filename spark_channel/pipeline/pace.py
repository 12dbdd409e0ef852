"""Limits batches that one thread both receives and returns: no queue, only the limit."""

import threading
from collections.abc import Generator, Iterable, Iterator

import pyarrow as pa

from spark_channel.channel import Limiter
from spark_channel.channel.size import arrow_bytes
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.progress import Counters

__all__ = ["Pacer"]


class Pacer:
    """Pays `limiter` for each batch before it passes on. `cancel` ends a wait from another thread."""

    def __init__(
        self, limiter: Limiter, *, counters: Counters | None = None, clock: Clock | None = None
    ) -> None:
        self._limiter = limiter
        self._counters = counters
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._changed = threading.Condition()
        self._cancelled = False

    def pace(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """`batches`, cut to the limiter's slices (zero copy), each when it is paid.

        Raises:
            LimitError: the limit can no longer be kept.
            ReadCancelledError: it was cancelled with rows left. To whoever listens still, an end would say that these
                were all.
        """
        for batch in batches:
            nbytes = arrow_bytes(batch)
            if self._counters is not None:
                self._counters.read(batch.num_rows, nbytes)
            for piece, size in self._slices(batch, nbytes):
                if not self._pay(piece.num_rows, size):
                    from spark_channel.pipeline.read import ReadCancelledError

                    raise ReadCancelledError("the rows are not wanted any more: their consumer has ended")
                if self._counters is not None:
                    self._counters.pushed(piece.num_rows, size)
                yield piece

    def cancel(self) -> None:
        """Wake a payer, which gives back what it has not spent, and end `pace`."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def _slices(self, batch: pa.RecordBatch, nbytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        rows, start = batch.num_rows, 0
        while start < rows:
            most_rows, most_bytes = self._limiter.slice_size()
            length = rows - start
            if most_rows is not None:
                length = min(length, most_rows)
            if most_bytes is not None and nbytes:
                length = min(length, most_bytes * rows // nbytes)
            stop = start + max(1, length)
            size = nbytes * stop // rows - nbytes * start // rows
            yield batch.slice(start, stop - start), size
            start = stop
        if rows == 0:
            yield batch, 0

    def _pay(self, rows: int, nbytes: int) -> bool:
        payment = self._limiter.pay(rows, nbytes, self._wake)
        try:
            with self._changed:
                while not self._cancelled:
                    wait = payment.remaining()
                    if wait.seconds == 0.0:
                        return True
                    since = self._clock.now()
                    self._clock.wait(self._changed, wait.seconds)
                    if self._counters is not None:
                        self._counters.waited(f"limit:{wait.reason}", self._clock.now() - since)
                return False
        finally:
            payment.cancel()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
