"""Runs one task group of a transfer: several channels over one queue of tasks, without the JVM."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, cast

import pyarrow as pa

from spark_channel.arrow_schema import TextLengths, conform
from spark_channel.channel import Limiter, MemoryChannel
from spark_channel.channel.batches import arrow_bytes
from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors import Read, Reader, Receipt, TaskWriter, WritePlan, Writer
from spark_channel.errors import ChannelError, DirtyRowsError, StalledError
from spark_channel.pipeline.dirty import DirtyBudget, DirtyLog, DirtyStore, TaskDirtyRows
from spark_channel.pipeline.read import ReadCancelledError
from spark_channel.pipeline.threads import HandoffSlot, HeldBack, PrefetchingPayer, join
from spark_channel.pipeline.write import drain, end_phase, roll_back
from spark_channel.planning import Split, Task, TaskGroup
from spark_channel.progress import Counters, Phase
from spark_channel.transform import Pipeline

__all__ = ["GroupOutcome", "GroupTransfer", "TaskOutcome", "TransferSource", "TransferWork"]

_BLOCKED_SECONDS = 0.005
"""How long the end waits for reader threads: one that hangs in its source must not hang Spark."""
_MOST_DELAY = 4.0
"""Seconds by which the rows of a limited transfer reach the target later than they came, at most."""
_DELAY_SHRINKS = 0.02
"""By this part of the time that passes it becomes shorter, where one task was slow: rows come so much faster
meanwhile."""
_LIMITED_WAITING_PART = 1 / 4
_WAITING_PART = 1 / 8
"""Tasks that are read and wait for the target have this part of a channel's capacity at most: the target adds the rows
of one task slowly, and tasks without rows, as filters make them, must not keep the next one from being read. Under a
limit two tasks should fit: one waits until those before it are in the target, while another one is read."""
_UNLIMITED_PART = 1 / 8
"""More rows in memory make no copy faster. Under a limit, whole tasks wait for their turn."""
_NATIVE_PART = 1 / 4
"""Native rows come in small pieces, which the target takes as they are: less of them than of others is enough."""
_MOST_WAITING = 8
"""The most tasks that wait, however few rows they have: a lane that is free finds none of them."""
_MOST_PAID = 64
"""Points of a task's time that are kept: where there are more, every second one goes."""
_MANY_BEFORE = 2
"""After so many tasks of a lane, its last one ends as slowly as these did: the target does not feel it, and what waits
for the transfer, such as the next table, waits for little longer."""


@dataclass(frozen=True)
class TransferSource:
    """One reader, and the steps from its batches to the target's columns.

    `text_lengths`: the lengths that the texts of the target's columns may have, where the reader reports them.
    """

    reader: Reader
    pipeline: Pipeline
    text_lengths: TextLengths = field(default_factory=dict, hash=False)

    @staticmethod
    def wrap(number: int, split: Split) -> Split:
        """`split` of the source `number`, as the planner deals it out beside splits of other sources."""
        return Split({"source": number, "split": split}, split.rows, split.nbytes)


@dataclass(frozen=True)
class TransferWork:
    """The data that all task groups of a transfer share. Picklable.

    A task's split is one that `TransferSource.wrap` made; its writer part is the number of its target, None
    when there is one.
    """

    sources: tuple[TransferSource, ...]
    targets: tuple[tuple[Writer, WritePlan], ...]
    job: str
    capacity_rows: int
    capacity_bytes: int
    transaction_rows: int | None = None
    dirty_store: DirtyStore | None = None

    def source_of(self, task: Task) -> tuple[TransferSource, Split]:
        return self.sources[task.split.params["source"]], task.split.params["split"]

    def target_of(self, task: Task) -> tuple[Writer, WritePlan]:
        return self.targets[task.writer_part or 0]

    def schema_of(self, task: Task) -> pa.Schema:
        """Return the schema of the rows that are read, before the steps; native rows have no steps."""
        _, plan = self.target_of(task)
        return plan.arriving if plan.native else self.source_of(task)[0].pipeline.schema


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The outcome of one task: its receipt (None when it refused too many rows), and what it refused."""

    task: int
    receipt: Receipt | None
    dirty: TaskDirtyRows = field(default_factory=TaskDirtyRows)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The outcome of one attempt of a task group. `stopped`: the dirty limit that ended it, or empty.

    `static`: it kept its fixed share of the limit, since it did not reach the service.
    """

    group: int
    tasks: tuple[TaskOutcome, ...]
    stopped: str = ""
    static: bool = False


@dataclass(slots=True)
class _InFlight:
    """One task on its way: its channel, between the lane's two threads."""

    task: Task
    channel: MemoryChannel
    counters: Counters
    rows: int = 0
    nbytes: int = 0
    """What was read so far, paid or not."""
    begun: float = 0.0
    arrived_seconds: float = 0.0
    paid_rows: int = 0
    paid: list[tuple[int, float]] = field(default_factory=list)
    """(rows, when they were paid), at most `_MOST_PAID` points."""

    def push(self, batch: pa.RecordBatch, nbytes: int) -> None:
        self.channel.push(batch, nbytes=nbytes)
        self.paid_rows += batch.num_rows
        if len(self.paid) == _MOST_PAID:
            del self.paid[::2]
        self.paid.append((self.paid_rows, SYSTEM_CLOCK.now()))

    def arrived_parts(self) -> list[tuple[float, float]]:
        """See `TaskWriter.arrived_parts`."""
        if not self.paid_rows or self.arrived_seconds <= 0:
            return []
        return [
            (rows / self.paid_rows, min(1.0, max(0.0, at - self.begun) / self.arrived_seconds))
            for rows, at in self.paid
        ]

    def turn_came(self, waits: "_LaneWaits") -> None:
        """The rows of the task before are all paid."""
        self.begun = SYSTEM_CLOCK.now()
        self.counters.turn_came()
        waits.follow(self.channel)

    def finish(self) -> None:
        self.arrived_seconds = SYSTEM_CLOCK.now() - self.begun
        self.counters.pushed_all()
        self.channel.close()


class _LaneWaits:
    """For how many seconds the rows of a lane have waited so far: for the limit, for room in their channel, and for a
    share of the limit.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: MemoryChannel | None = None
        self._before = (0.0, 0.0, 0.0)

    def follow(self, channel: MemoryChannel) -> None:
        """The rows of the task before are all in their channel: from now on those of `channel` wait."""
        with self._lock:
            self._before, self._channel = self._sum(), channel

    def __call__(self) -> tuple[float, float, float]:
        with self._lock:
            return self._sum()

    def _sum(self) -> tuple[float, float, float]:
        limit, room, share = self._before
        if self._channel is not None:
            waits = self._channel.statistics()
            for_share = waits.throttled_seconds.get("share", 0.0)
            limit += sum(waits.throttled_seconds.values()) - for_share
            room += waits.wait_writer_seconds
            share += for_share
        return limit, room, share


class _Reading:
    """State that one thread shares between splits, for one source at a time."""

    def __init__(self) -> None:
        self._reader: Reader | None = None
        self._shared = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shared.close()

    def read_of(self, reader: Reader) -> Read:
        if reader is not self._reader:
            self._shared.close()
            self._read = self._shared.enter_context(reader.reading())
            self._reader = reader
        return self._read


class GroupTransfer:
    """One attempt of one task group; `run` is called once.

    Each of the group's channels is a lane of two threads, one that reads and one that writes. Lanes take
    tasks from one queue, so none idles while a task waits; a lane reads its next task while the last one is
    being closed. Batches leave a channel when the target has them. The first error ends all lanes: every
    attempt that is open is rolled back, and `run` raises it.

    `counters(task)` makes the counters of a task, `permit()` gives a context in which its target may be open.
    `keeps`: between two tasks a writing thread may keep what they share, such as a connection, without a permit.
    `again`: an earlier attempt of the group may have committed tasks (`commit=task`): these are not read again.
    """

    def __init__(
        self,
        work: TransferWork,
        group: TaskGroup,
        attempt: int,
        *,
        budget: DirtyBudget,
        limiter: Limiter | None = None,
        counters: Callable[[Task], Counters] | None = None,
        permit: Callable[[], AbstractContextManager[Any]] = nullcontext,
        keeps: bool = True,
        again: bool = False,
    ) -> None:
        self._work = work
        self._group = group
        self._attempt = attempt
        self._budget = budget
        self._limiter = limiter
        self._make_counters = counters or (lambda task: Counters(task.id, attempt))
        self._permit = permit
        self._keeps = keeps
        self._again = again
        self._lock = threading.Lock()
        self._queue: deque[Task] = deque(group.tasks)
        self._lanes = [
            HandoffSlot[_InFlight](self._weight, SYSTEM_CLOCK)
            for _ in range(min(group.channels, len(group.tasks)))
        ]
        self._open: dict[int, MemoryChannel] = {}
        self._outcomes: list[TaskOutcome] = []
        self._error: BaseException | None = None
        self._writing = len(self._lanes)
        self._delay, self._delay_at = 0.0, SYSTEM_CLOCK.now()
        """Seconds from when a limited task's rows came to when they are brought to the target: as long as the slowest
        task took to come. The same for all, so that the target sees the limit as it was used, only later. Shorter
        where a lane's reader would have to wait for it. `_delay_at` is when it was set."""
        self._over = threading.Event()
        """All writers have ended; or one hangs, and is not waited for."""

    def run(self) -> GroupOutcome:
        """Move all tasks of the group.

        Too many refused rows are no error here: the outcome says so, since Spark would only try again.

        Raises:
            ChannelError: what the first thread met that failed.
        """
        readers = [self._thread("read", number, self._read) for number in range(len(self._lanes))]
        writers = [self._thread("write", number, self._write) for number in range(len(self._lanes))]
        try:
            self._budget.check()
            for thread in (*readers, *writers):
                thread.start()
            if writers:
                self._over.wait()
        except BaseException as error:
            self._fail(error)
        join((*writers, *readers), patient=self._error is None)
        failed = self._error
        if failed is not None and not isinstance(failed, DirtyRowsError):
            raise failed
        outcomes = tuple(sorted(self._outcomes, key=lambda outcome: outcome.task))
        return GroupOutcome(self._group.id, outcomes, "" if failed is None else str(failed))

    def cancel(self, error: BaseException | None = None) -> None:
        """End it from any thread: the engine needs no more rows, or `error` happened."""
        self._fail(error or ReadCancelledError("the transfer was cancelled"))
        if isinstance(error, StalledError):
            self._over.set()

    # ---- the reading half of a lane

    def _read(self, lane: HandoffSlot[_InFlight]) -> None:
        payer = PrefetchingPayer(
            self._fail,
            limiter=self._limiter,
            name="spark-channel-pay",
            lanes=len(self._lanes),
            capacity_bytes=self._work.capacity_bytes,
            held_back=(held_back := HeldBack()),
        )
        waits = _LaneWaits()
        with _Reading() as reading, payer:
            while (in_flight := self._next()) is not None:
                if self._was_committed(in_flight):
                    continue
                since = SYSTEM_CLOCK.now()
                if not lane.give(in_flight):
                    return
                # The target is behind: the rows of the next tasks wait in memory, and no more are read.
                if (waited := SYSTEM_CLOCK.now() - since) > _BLOCKED_SECONDS:
                    in_flight.counters.waited("target:task", waited)
                source, split = self._work.source_of(in_flight.task)
                schema = self._work.schema_of(in_flight.task)
                counters = in_flight.counters
                counters.follow(
                    in_flight.channel.statistics, ahead=waits, held_back=held_back.seconds
                )
                payer.then(partial(in_flight.turn_came, waits))  # once the task before is paid
                batches = reading.read_of(source.reader)(split)
                with contextlib.closing(cast("Generator[pa.RecordBatch]", batches)):
                    for batch in counters.trace.reading(batches):
                        fitting = conform(batch, schema)
                        nbytes = arrow_bytes(fitting)
                        in_flight.rows += fitting.num_rows
                        in_flight.nbytes += nbytes
                        payer.put(in_flight.push, fitting, nbytes)
                payer.then(in_flight.finish)  # meanwhile the next task's rows are fetched
        lane.close()

    def _weight(self, waiting: _InFlight) -> float:
        rows = waiting.rows / self._work.capacity_rows
        part = max(rows, waiting.nbytes / self._work.capacity_bytes)
        most = _WAITING_PART if self._limiter is None else _LIMITED_WAITING_PART
        return max(part / most, 1 / _MOST_WAITING)

    def _next(self) -> _InFlight | None:
        with self._lock:
            if self._error is not None or not self._queue:
                return None
            task = self._queue.popleft()
            work = self._work
            _, plan = work.target_of(task)
            part = _UNLIMITED_PART if self._limiter is None else 1.0
            part *= _NATIVE_PART if plan.native else 1.0
            channel = MemoryChannel(
                work.capacity_rows,
                max(1, round(work.capacity_bytes * part)),
                transaction_rows=work.transaction_rows,
                limiter=self._limiter,
            )
            self._open[task.id] = channel
        counters = self._make_counters(task)
        counters.waits_for_target = True
        return _InFlight(task, channel, counters)

    def _was_committed(self, in_flight: _InFlight) -> bool:
        writer, plan = self._work.target_of(in_flight.task)
        if not self._again or plan.commit != "task" or self._budget.limit.tolerant:
            return (
                False  # rows that the earlier attempt refused are only found by reading them again
            )
        with self._permit():
            receipt = writer.committed(plan, in_flight.task.id)
        if receipt is None:
            return False
        in_flight.counters.wrote(receipt.rows, receipt.nbytes)
        in_flight.counters.enter(Phase.DONE)
        with self._lock:
            self._open.pop(in_flight.task.id, None)
            self._outcomes.append(TaskOutcome(in_flight.task.id, receipt))
        return True

    # ---- the writing half

    def _write(self, lane: HandoffSlot[_InFlight]) -> None:
        last_target: int | None = None
        ended = 0
        with contextlib.ExitStack() as shared:
            while (in_flight := lane.take()) is not None:
                target = in_flight.task.writer_part or 0
                if self._keeps and target != last_target:
                    shared.close()  # one target's at a time: there may be hundreds
                    shared.enter_context(self._work.targets[target][0].writing())
                    last_target = target
                outcome = self._write_task(in_flight, lane, ended)
                ended += 1
                with self._lock:
                    self._open.pop(in_flight.task.id, None)
                    self._outcomes.append(outcome)

    def _write_task(
        self, in_flight: _InFlight, lane: HandoffSlot[_InFlight], ended: int
    ) -> TaskOutcome:
        """`ended`: so many tasks of the lane came before."""
        task, counters = in_flight.task, in_flight.counters
        writer, plan = self._work.target_of(task)
        log = DirtyLog(
            self._budget,
            task.id,
            self._attempt,
            store=self._work.dirty_store,
            job=self._work.job,
            counters=counters,
        )
        try:
            with self._opened(writer, plan, task, counters) as task_writer:
                steps = self._work.source_of(task)[0].pipeline
                drain(in_flight.channel, task_writer, steps, plan, log, counters)
                task_writer.overlapped = lane.holds or ended >= _MANY_BEFORE
                task_writer.arrived_seconds = in_flight.arrived_seconds
                task_writer.arrived_parts = in_flight.arrived_parts()
                if task_writer.spreads and task_writer.overlapped:
                    self._await_turn(in_flight, lane)
                with counters.trace.timed("publish"):
                    receipt = task_writer.close()
                part = log.finish()
        except BaseException as error:
            self._fail(error)
            counters.enter(end_phase(error))
            if isinstance(error, ChannelError) and error.is_final:
                counters.explain(str(error), ends_job=True)
            if not isinstance(error, DirtyRowsError):
                roll_back(log.rollback, task.id, self._attempt)
                raise
            return TaskOutcome(task.id, None, log.finish())
        counters.enter(Phase.DONE)
        return TaskOutcome(task.id, part.into(receipt), replace(part, samples=()))

    def _await_turn(self, in_flight: _InFlight, lane: HandoffSlot[_InFlight]) -> None:
        """Wait until the rows of the task may be brought to the target, or the next tasks could not be read meanwhile.

        A task of which no two fit does not wait, nor one without rows.

        Raises:
            ChannelError: the group has failed.
        """
        if not in_flight.rows or self._weight(in_flight) >= 1.0:
            return
        took = min(in_flight.arrived_seconds, _MOST_DELAY)
        with self._lock:
            now = SYSTEM_CLOCK.now()
            shorter = self._delay - _DELAY_SHRINKS * (now - self._delay_at)
            self._delay, self._delay_at = max(shorter, took), now
            wait = in_flight.begun + self._delay - now
        if wait > 0:
            with in_flight.counters.trace.timed("wait"):
                is_blocked = lane.rest(wait)
            if is_blocked:
                with self._lock:
                    self._delay = min(self._delay, took)
        if self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def _opened(
        self, writer: Writer, plan: WritePlan, task: Task, counters: Counters
    ) -> Iterator[TaskWriter]:
        """Open an attempt for the block. A failed one keeps its permit until its rollback has closed the connection."""
        with self._permit():
            counters.waits_for_target = False
            with counters.trace.timed("connect"):
                task_writer = writer.open(plan, task.id, self._attempt)
            try:
                yield task_writer
            except BaseException as error:
                raised = self._error_to_raise(writer, error)
                # Before the rollback, which may be slow: the other lanes stop now.
                self._fail(raised)
                roll_back(task_writer.rollback, task.id, self._attempt)
                if raised is error:
                    raise
                raise raised from error

    def _error_to_raise(self, writer: Writer, error: BaseException) -> BaseException:
        """Return the error to raise: a task that may refuse no row and did would fail again if it were retried."""
        if (
            isinstance(error, DirtyRowsError)
            or self._budget.limit.tolerant
            or not writer.is_refusal(error)
        ):
            return error
        return DirtyRowsError(str(error))

    # ---- the end

    def _thread(
        self, half: str, number: int, work: Callable[[HandoffSlot[_InFlight]], None]
    ) -> threading.Thread:
        lane = self._lanes[number]

        def run() -> None:
            try:
                work(lane)
            except BaseException as error:
                self._fail(error)
            if half == "write":
                with self._lock:
                    self._writing -= 1
                    over = not self._writing
                if over:
                    self._over.set()

        return threading.Thread(target=run, name=f"spark-channel-{half}-{number}", daemon=True)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
            channels = list(self._open.values())
        for channel in channels:
            channel.fail(self._error)
        for lane in self._lanes:
            lane.cancel()
