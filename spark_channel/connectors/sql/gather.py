"""Combines small batches into one that is worth a call of the database."""

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock

__all__ = ["Gathered"]

_MOST_BYTES = 16 << 20


class Gathered:
    """Batches that wait to be sent together. Of one thread.

    `add` says when it is time: at `rows` rows, at 16 MiB, or when the first of them has waited for `seconds`. The
    time matters under a limit: without it a slow job would hit the target with a burst of `rows` rows every few
    seconds, at whatever speed the target takes them.
    """

    def __init__(self, rows: int, seconds: float, *, clock: Clock | None = None) -> None:
        self._most_rows = rows
        self._most_seconds = seconds
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._since = 0.0
        self._batches: list[pa.RecordBatch] = []
        self._nbytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """True when all of it should be sent now."""
        if not self._batches:
            self._since = self._clock.now()
        self._batches.append(batch)
        self.rows += batch.num_rows
        self._nbytes += batch.nbytes
        return (
            self.rows >= self._most_rows
            or self._nbytes >= _MOST_BYTES
            or self._clock.now() - self._since >= self._most_seconds
        )

    @property
    def waited(self) -> float:
        """Seconds for which rows have gathered that are not enough yet, since they come slowly; 0.0 = enough."""
        if not self._batches or self.rows >= self._most_rows or self._nbytes >= _MOST_BYTES:
            return 0.0
        return min(self._most_seconds, self._clock.now() - self._since)

    def take(self) -> list[pa.RecordBatch]:
        """Returns and removes the gathered batches, in their order."""
        batches, self._batches = self._batches, []
        self.rows = self._nbytes = 0
        return batches
