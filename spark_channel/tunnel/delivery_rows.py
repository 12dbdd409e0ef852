"""The rows of one delivery, put by the thread that reads and taken by the one that processes."""

import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_channel.carrier import DataCarrier
from spark_channel.channel import Limiter
from spark_channel.channel.size import arrow_bytes
from spark_channel.errors import EndOfChannel
from spark_channel.limits import AllOf
from spark_channel.pipeline import ReadCancelledError
from spark_channel.tunnel.budget import Share

__all__ = ["DeliveryRows"]


class DeliveryRows:
    """All rows of a range, or those of one `table` of it.

    `is_given`: they are the pool's to process. `is_over`: no processor has them any more; `is_processed`: and it took
    them, else `error`, if it is known. `lost`: what ended the reading before its end. `rows`: what the processor took.
    """

    def __init__(
        self, share: Share, limit: Limiter | None, table: str, *, capacity_rows: int, capacity_bytes: int
    ) -> None:
        self.table = table
        self.is_given = self.is_over = self.is_processed = False
        self.error: BaseException | None = None
        self.lost: Exception | None = None
        self.rows = 0
        paid = share.kept_by(self._keep)
        limiter: Limiter = paid if limit is None else AllOf([paid, limit])
        self.carrier = DataCarrier(1, capacity_rows, capacity_bytes, limiter=limiter)
        self._share = share
        self._lock = threading.Lock()
        self._kept_rows = self._kept_bytes = 0
        self._is_closed = False

    @property
    def kept_rows(self) -> int:
        """What has its memory and is not processed; of a batch that a limit cuts, the pieces so far."""
        return self._kept_rows

    def put(self, batch: pa.RecordBatch, nbytes: int) -> None:
        """Wait for memory and limit. Raises what the carrier failed with."""
        self.carrier.produce(batch, nbytes=nbytes)

    def batches(self, given: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """`given`, which the carrier has handed over, and all that come after them."""
        left = list(reversed(given))
        try:
            while (batch := left.pop() if left else self._next()) is not None:
                rows, nbytes = batch.num_rows, arrow_bytes(batch)
                self.rows += rows
                yield batch
                del batch
                if self._keep(-rows, -nbytes):
                    self._share.free(rows, nbytes)
        except Exception as error:
            self.lost = error
            raise

    def close(self) -> None:
        """Wake and end whoever puts or takes, and give the memory back. Safe after its end, and twice."""
        self.carrier.fail(ReadCancelledError("the read was cancelled: its rows are not wanted any more"))
        with self._lock:
            kept, self._is_closed = (self._kept_rows, self._kept_bytes), True
            self._kept_rows = self._kept_bytes = 0
        self._share.free(max(0, kept[0]), max(0, kept[1]))

    def _keep(self, rows: int, nbytes: int) -> bool:
        """Whether they count: not after `close`."""
        with self._lock:
            if self._is_closed:
                return False
            self._kept_rows += rows
            self._kept_bytes += nbytes
            return True

    def _next(self) -> pa.RecordBatch | None:
        self._share.want()
        try:
            return self.carrier.channels[0].pull()
        except EndOfChannel:
            return None
