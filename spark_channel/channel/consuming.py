"""Take from the head, and leave the room to those who wait for it."""

from collections.abc import Callable

import pyarrow as pa

from spark_channel.channel.state import State

__all__ = ["Consuming"]


class Consuming(State):
    """The consumers' side of a channel, without transactions."""

    def pull(self, timeout: float | None, own_rows: Callable[[], int]) -> pa.RecordBatch | None:
        return self._atomic(self._pull, timeout, own_rows)

    def pull_all(
        self, timeout: float | None, max_rows: int | None, own_rows: Callable[[], int]
    ) -> list[pa.RecordBatch]:
        return self._atomic(self._pull_all, timeout, max_rows, own_rows)

    def drain(self, max_rows: int | None) -> list[pa.RecordBatch]:
        return self._atomic(self._drain, max_rows)

    def _pull(self, timeout: float | None, own_rows: Callable[[], int]) -> pa.RecordBatch | None:
        self._counters.take_attempts += 1
        if not self._wait_for_data(timeout, own_rows):
            return None
        self._counters.take_successes += 1
        return self._pop(None)[0]

    def _pull_all(
        self, timeout: float | None, max_rows: int | None, own_rows: Callable[[], int]
    ) -> list[pa.RecordBatch]:
        self._counters.take_attempts += 1
        return self._pop_many(max_rows) if self._wait_for_data(timeout, own_rows) else []

    def _drain(self, max_rows: int | None) -> list[pa.RecordBatch]:
        self._counters.take_attempts += 1
        self._raise_if_failed()
        return self._pop_many(max_rows) if self._stock.rows else []

    def _pop(self, max_rows: int | None) -> tuple[pa.RecordBatch, int]:
        """One batch and its rows."""
        parcel = self._stock.pop(max_rows)
        counters = self._counters
        counters.rows_pulled += parcel.rows
        counters.bytes_pulled += parcel.nbytes
        if self._closed and self._has_ended():
            self._news = True
        return parcel.batch, parcel.rows

    def _pop_many(self, max_rows: int | None) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = []
        self._counters.take_successes += 1
        left = max_rows
        while self._stock.rows and left != 0:
            batch, rows = self._pop(left)
            batches.append(batch)
            if left is not None:
                left -= rows
        return batches
