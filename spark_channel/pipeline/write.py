"""Writes one task: the caller's thread pushes into the channel, a writer thread takes from it."""

import threading
from collections.abc import Callable, Iterable

import pyarrow as pa

from spark_channel.arrow_schema import conform
from spark_channel.channel import ChannelStatistics, Limiter, MemoryChannel
from spark_channel.channel.batches import arrow_bytes
from spark_channel.connectors import Receipt, TaskWriter, WritePlan, Writer
from spark_channel.connectors.base.contract import bisect_refused
from spark_channel.errors import DirtyRowsError, EndOfChannel
from spark_channel.pipeline.dirty import DirtyLog, TaskDirtyRows
from spark_channel.pipeline.threads import HeldBack, pushing
from spark_channel.plain_text import log_of
from spark_channel.progress import Counters, Phase
from spark_channel.transform import Pipeline

__all__ = ["TaskWrite", "drain", "end_phase", "roll_back", "writing"]

_log = log_of(__name__)


class TaskWrite:
    """One attempt of one task; `run` is called once.

    Batches leave the channel in take-transactions: their room is free only when the target has them.
    An error on either side reaches the other at once; the attempt is rolled back, and `run` raises
    the first cause.

    `dirty` takes the rows that the target refuses, when the job allows some; the others are written. After
    `run`, also one that raised, `dirty_part` is what it kept. `steps` make the rows
    that the plan expects of those that arrive.
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
        dirty: DirtyLog | None = None,
        steps: Pipeline | None = None,
    ) -> None:
        self._writer = writer
        self._plan = plan
        self._task = task
        self._attempt = attempt
        self._channel = MemoryChannel(
            capacity_rows, capacity_bytes, transaction_rows=transaction_rows, limiter=limiter
        )
        self._limiter = limiter
        self._capacity_bytes = capacity_bytes
        self._counters = counters or Counters(task, attempt)
        self._dirty = dirty
        self._steps = steps
        self.dirty_part = TaskDirtyRows()
        self._receipt: Receipt | None = None
        self._error: BaseException | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Receipt:
        """Push all of `batches` and wait for the target to have them.

        Raises:
            ChannelError: what the writer met; or whatever `batches` raised.
        """
        arriving = self._plan.schema if self._steps is None else self._steps.schema
        thread = threading.Thread(target=self._consume, name="spark-channel-write", daemon=True)
        held_back = HeldBack()
        self._counters.follow(self._channel.statistics, writes=True, held_back=held_back.seconds)
        thread.start()
        try:
            with pushing(
                self._channel.push,
                self._channel.fail,
                limiter=self._limiter,
                name="spark-channel-pay",
                lanes=1,
                capacity_bytes=self._capacity_bytes,
                held_back=held_back,
            ) as give:
                for batch in self._counters.trace.reading(batches):
                    fitting = conform(batch, arriving)
                    give(fitting, arrow_bytes(fitting))
            self._channel.close()
        except BaseException as error:
            self._channel.fail(error)
            thread.join()
            self._counters.enter(end_phase(error))
            raise
        thread.join()
        if self._error is not None:
            self._counters.enter(end_phase(self._error))
            raise self._error
        assert self._receipt is not None
        self._counters.enter(Phase.DONE)
        return self._receipt

    def statistics(self) -> ChannelStatistics:
        """Return the rows that passed so far, and how long each side waited."""
        return self._channel.statistics()

    def _consume(self) -> None:
        task_writer: TaskWriter | None = None
        try:
            trace = self._counters.trace
            with trace.timed("connect"):
                task_writer = self._writer.open(self._plan, self._task, self._attempt)
            write = writing(task_writer, self._dirty)
            self._drain_into(
                write if self._steps is None else self._after_steps(self._steps, write)
            )
            with trace.timed("publish"):
                receipt = task_writer.close()
            if self._dirty is not None:
                self.dirty_part = self._dirty.finish()
                receipt = self.dirty_part.into(receipt)
            self._receipt = receipt
        except BaseException as error:
            self._error = error
            self._channel.fail(error)
            if task_writer is not None:
                roll_back(task_writer.rollback, self._task, self._attempt)
            self._end_dirty(error)

    def _after_steps(
        self, steps: Pipeline, write: Callable[[pa.RecordBatch], None]
    ) -> Callable[[pa.RecordBatch], None]:
        def convert(batch: pa.RecordBatch) -> None:
            outcome = steps.run(batch)
            for refused in outcome.refused:
                if self._dirty is None:
                    raise DirtyRowsError(
                        f"{refused.rows.num_rows} rows are refused: {refused.reason}"
                    )
                self._dirty.refuse(refused.rows, refused.reason)
            write(outcome.batch)

        return convert

    def _drain_into(self, write: Callable[[pa.RecordBatch], None]) -> None:
        while True:
            try:
                with self._channel.transaction() as transaction:
                    batch = transaction.take()
                    if batch is not None:
                        with self._counters.trace.timed("write"):
                            write(batch)
            except EndOfChannel:
                return

    def _end_dirty(self, error: BaseException) -> None:
        """Too many refused rows are kept, to show the reason; other attempts refuse theirs again."""
        if self._dirty is None:
            return
        try:
            if isinstance(error, DirtyRowsError):
                self.dirty_part = self._dirty.finish()
            else:
                self._dirty.rollback()
        except Exception:
            _log.exception(
                "keeping the refused rows of task %d, attempt %d failed", self._task, self._attempt
            )


def end_phase(error: BaseException) -> Phase:
    """How an attempt ends that met `error`.

    One that exceeded the dirty limit is not tried again, and must go on to count: other tasks stop for it.
    """
    return Phase.DONE if isinstance(error, DirtyRowsError) else Phase.FAILED


def drain(
    channel: MemoryChannel,
    task_writer: TaskWriter,
    steps: Pipeline,
    plan: WritePlan,
    dirty: DirtyLog,
    counters: Counters,
) -> None:
    """Write the batches of `channel`, after `steps`, to `task_writer` until the channel ends.

    A batch leaves the channel when the target has it. Refused rows go into `dirty`.
    """
    write = writing(task_writer, dirty)
    while True:
        try:
            with channel.transaction() as transaction:
                batch = transaction.take()
                if batch is None:
                    continue
                if steps.steps:
                    with counters.trace.timed("transform"):
                        outcome = steps.run(batch, counters.trace.dropped)
                    batch = outcome.batch
                    for refused in outcome.refused:
                        dirty.refuse(refused.rows, refused.reason)
                if batch.num_rows:
                    refused_before = dirty.rows
                    with counters.trace.timed("write"):
                        write(conform(batch, plan.arriving))
                    counters.wrote(batch.num_rows - (dirty.rows - refused_before), batch.nbytes)
        except EndOfChannel:
            return


def roll_back(rollback: Callable[[], None], task: int, attempt: int) -> None:
    """Call `rollback` of an attempt that has failed already: a further error is logged."""
    try:
        rollback()
    except Exception:
        _log.exception("rolling back task %d, attempt %d failed", task, attempt)


def writing(task_writer: TaskWriter, dirty: DirtyLog | None) -> Callable[[pa.RecordBatch], None]:
    """Return a function that writes a batch to `task_writer`; refused rows go into `dirty` when some are allowed."""
    if dirty is None or not dirty.tolerant:
        return task_writer.write
    task_writer.tolerant = True
    task_writer.refused = dirty.refuse

    def write(batch: pa.RecordBatch) -> None:
        bisect_refused(batch, task_writer.write, dirty.refuse)
        dirty.budget.check()

    return write
