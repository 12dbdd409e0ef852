"""One range of one channel: read ahead by one thread into a bounded carrier, processed by another."""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from enum import IntEnum
from typing import cast

import pyarrow as pa

from spark_channel.carrier import DataCarrier
from spark_channel.channel import Limiter
from spark_channel.channel.size import arrow_bytes
from spark_channel.connectors.contracts import Token
from spark_channel.connectors.feed import ChangeFeed
from spark_channel.errors import EndOfChannel
from spark_channel.limits import AllOf
from spark_channel.pipeline import ReadCancelledError
from spark_channel.pipeline.conform import conform
from spark_channel.planning import Split
from spark_channel.tunnel.budget import Budget

__all__ = ["RangeRead", "Stage"]


class Stage(IntEnum):
    """How far a range is."""

    READ = 1
    """It is read, or was; no processor has seen a row of it."""
    FIXED = 2
    """Its end is in the store."""
    GIVEN = 3
    """It is the pool's to process."""
    BUSY = 4
    """It is being processed."""
    DONE = 5
    """It is processed, and its checkpoint is not taken."""


class RangeRead:
    """From `start` to `end`. `rows` and `nbytes`: what was read so far; `given_rows`: what the processor took."""

    def __init__(
        self, feed: ChangeFeed, sequence: int, start: Token, end: Token, splits: Sequence[Split], budget: Budget, *,
        capacity_rows: int, capacity_bytes: int, limit: Limiter | None = None,
    ) -> None:  # fmt: skip
        self.sequence = sequence
        self.start = start
        self.stage = Stage.READ
        self.took = 0.0
        self.end = end
        self.rows = self.nbytes = 0
        self.given_rows = self.given_bytes = 0
        self.lost: Exception | None = None
        """What ended the reading before its end."""
        self._feed = feed
        self._splits = splits
        self._share = budget.share()
        limiter: Limiter = self._share if limit is None else AllOf([self._share, limit])
        self.carrier = DataCarrier(1, capacity_rows, capacity_bytes, limiter=limiter)

    def fill(self) -> None:
        """Read it to its end; an error is the processor's to meet."""
        schema = self._feed.schema()
        try:
            with self._feed.reading() as read:
                for split in self._splits:
                    batches = read(split)
                    with contextlib.closing(cast("Generator[pa.RecordBatch]", batches)):
                        for batch in batches:
                            fitting = batch if self._feed.has_tables else conform(batch, schema)
                            nbytes = arrow_bytes(fitting)
                            self.carrier.produce(fitting, nbytes=nbytes)
                            self.rows += fitting.num_rows
                            self.nbytes += nbytes
        except BaseException as error:
            self.carrier.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.carrier.close()

    def batches(self, given: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """`given`, which the carrier has handed over, and all that come after them."""
        left = list(reversed(given))
        try:
            while (batch := left.pop() if left else self._next()) is not None:
                rows, nbytes = batch.num_rows, arrow_bytes(batch)
                self.given_rows += rows
                self.given_bytes += nbytes
                yield batch
                del batch
                self._share.free(rows, nbytes)
        except Exception as error:
            self.lost = error
            raise

    def cancel(self) -> None:
        """Wake and end whoever reads or takes it. Safe after its end, and twice."""
        self.carrier.fail(ReadCancelledError("the read was cancelled: its rows are not wanted any more"))
        self._share.close()

    def _next(self) -> pa.RecordBatch | None:
        self._share.want()
        try:
            return self.carrier.channels[0].pull()
        except EndOfChannel:
            return None
