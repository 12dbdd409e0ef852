"""Writes one task: the caller's thread pushes into the channel, a writer thread takes from it."""

import logging
import threading
from collections.abc import Iterable

import pyarrow as pa

from spark_channel.channel import ChannelStatistics, Limiter, MemoryChannel
from spark_channel.connectors import Receipt, TaskWriter, WritePlan, Writer
from spark_channel.errors import EndOfChannel
from spark_channel.pipeline.conform import conform
from spark_channel.progress import Counters, Phase

__all__ = ["TaskWrite"]

_log = logging.getLogger(__name__)


class TaskWrite:
    """One attempt of one task; `run` is called once.

    Batches leave the channel in take-transactions: their room is free only when the target has them.
    An error on either side reaches the other at once; the attempt is rolled back, and `run` raises
    the first cause.
    """

    def __init__(
        self,
        writer: Writer,
        plan: WritePlan,
        task: int,
        attempt: int,
        *,
        limiter: Limiter | None = None,
        counters: Counters | None = None,
        capacity_rows: int,
        capacity_bytes: int,
        transaction_rows: int | None = None,
    ) -> None:
        self._writer = writer
        self._plan = plan
        self._task = task
        self._attempt = attempt
        self._channel = MemoryChannel(
            capacity_rows, capacity_bytes, transaction_rows=transaction_rows, limiter=limiter
        )
        self._counters = counters or Counters(task, attempt)
        self._receipt: Receipt | None = None
        self._error: BaseException | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Receipt:
        """Push all of `batches` and wait for the target to have them.

        Raises:
            ChannelError: what the writer met; or whatever `batches` raised.
        """
        thread = threading.Thread(target=self._consume, name="spark-channel-write", daemon=True)
        self._counters.follow(self._channel.statistics, writes=True)
        thread.start()
        try:
            for batch in batches:
                self._channel.push(conform(batch, self._plan.schema))
            self._channel.close()
        except BaseException as error:
            self._channel.fail(error)
            thread.join()
            self._counters.enter(Phase.FAILED)
            raise
        thread.join()
        if self._error is not None:
            self._counters.enter(Phase.FAILED)
            raise self._error
        assert self._receipt is not None
        self._counters.enter(Phase.DONE)
        return self._receipt

    def statistics(self) -> ChannelStatistics:
        """What passed so far, and who waited for whom."""
        return self._channel.statistics()

    def _consume(self) -> None:
        task_writer: TaskWriter | None = None
        try:
            task_writer = self._writer.open(self._plan, self._task, self._attempt)
            self._drain_into(task_writer)
            self._receipt = task_writer.close()
        except BaseException as error:
            self._error = error
            self._channel.fail(error)
            if task_writer is not None:
                self._roll_back(task_writer)

    def _drain_into(self, task_writer: TaskWriter) -> None:
        while True:
            try:
                with self._channel.transaction() as transaction:
                    batch = transaction.take()
                    if batch is not None:
                        task_writer.write(batch)
            except EndOfChannel:
                return

    def _roll_back(self, task_writer: TaskWriter) -> None:
        try:
            task_writer.rollback()
        except Exception:
            _log.exception("rolling back task %d, attempt %d failed", self._task, self._attempt)
