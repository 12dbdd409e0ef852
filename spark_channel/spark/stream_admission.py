"""Admission control and Trigger.AvailableNow, which streaming sources have since Spark 4.2.

Spark 4.0 and 4.1 cannot import this module.
"""

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.spark.stream_read import ChannelStreamReader, batch_limit
from spark_channel.spark.worker import portable, without_traceback
from spark_channel.tunnel.positions import Offset

__all__ = ["AdmittingStreamReader"]


@portable
class AdmittingStreamReader(ChannelStreamReader, SupportsTriggerAvailableNow):
    """Admits at most `maxRowsPerTrigger` rows and `maxBytesPerTrigger` bytes a batch, about."""

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._limit()
        if limit.rows is not None:
            return ReadMaxRows(limit.rows)
        return ReadAllAvailable() if limit.nbytes is None else ReadMaxBytes(limit.nbytes)

    @without_traceback()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # type: ignore[override] # only sources with admission take these arguments
        standing, asked_limit = self._standing(), self._asked(limit)
        return standing.latest(
            start, self._beside(asked_limit) if standing.is_beside(start) else asked_limit
        )

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        self._standing().prepare()

    def _limit(self) -> FeedLimit:
        return batch_limit(self._options, self._source.options.limit())

    def _asked(self, limit: ReadLimit) -> FeedLimit:
        """Spark knows of rows or of bytes, not of both: the other one is this source's own."""
        own_limit = self._limit()
        if isinstance(limit, ReadMaxRows):
            return FeedLimit(limit.max_rows, own_limit.nbytes)
        if isinstance(limit, ReadMaxBytes):
            return FeedLimit(own_limit.rows, limit.max_bytes)
        return FeedLimit()
