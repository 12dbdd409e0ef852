"""Runs one task group of a transfer to several targets: each split is read once, and every target gets its rows."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa

from spark_channel.arrow_schema import conform
from spark_channel.carrier import DataCarrier
from spark_channel.channel import Limiter, MemoryChannel
from spark_channel.channel.batches import arrow_bytes
from spark_channel.connectors import TaskWriter, WritePlan, Writer
from spark_channel.errors import ChannelError, DirtyRowsError, FlowError, StalledError
from spark_channel.pipeline.dirty import DirtyBudget, DirtyLog, DirtyStore
from spark_channel.pipeline.read import ReadCancelledError
from spark_channel.pipeline.threads import HandoffSlot, Pay, StallWatch, join
from spark_channel.pipeline.transfer import GroupOutcome, TaskOutcome, TransferSource
from spark_channel.pipeline.write import drain, end_phase, roll_back
from spark_channel.plain_text import log_of
from spark_channel.planning import Split, Task, TaskGroup
from spark_channel.planning.transfer import OnFailure
from spark_channel.progress import Counters, Phase
from spark_channel.transform import Pipeline

__all__ = ["FanOutOutcome", "FanOutTarget", "FanOutTargetRun", "FanOutWork", "GroupFanOut"]

_log = log_of(__name__)


@dataclass(frozen=True)
class FanOutTarget:
    """One target, as all task groups know it. Picklable. `steps` come after the source's own."""

    writer: Writer
    plan: WritePlan
    job: str
    steps: Pipeline
    dirty_store: DirtyStore | None = None
    on_failure: OnFailure = "fail"


@dataclass(frozen=True)
class FanOutWork:
    """The data that all task groups share. Picklable. `TransferSource.wrap` made the split of each task."""

    sources: tuple[TransferSource, ...]
    branches: tuple[FanOutTarget, ...]
    capacity_rows: int
    capacity_bytes: int
    transaction_rows: int | None = None

    def source_of(self, task: Task) -> tuple[TransferSource, Split]:
        return self.sources[task.split.params["source"]], task.split.params["split"]


@dataclass(frozen=True)
class FanOutTargetRun:
    """One target inside a Spark task: its budget of refused rows, limit, counters, and permits."""

    budget: DirtyBudget
    limiter: Limiter | None = None
    counters: Callable[[Task], Counters] | None = None
    permit: Callable[[], AbstractContextManager[Any]] = nullcontext
    watches: list[StallWatch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FanOutOutcome:
    """The outcome of one attempt of a task group, by target. `left`: why a target was left behind; empty = not."""

    targets: tuple[GroupOutcome, ...]
    left: tuple[str, ...]


class _Log(DirtyLog):
    """The log of one task and target. The reading thread may refuse rows for all targets while another one writes."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._one = threading.Lock()
        self._before = 0

    def refuse(self, rows: pa.RecordBatch, reason: str) -> None:
        with self._one:
            super().refuse(rows, reason)

    def refuse_before(self, rows: pa.RecordBatch, reason: str) -> None:
        """Keep and count rows that a step shared by all targets refused."""
        with self._one:
            self._before += rows.num_rows
            super().refuse(rows, reason)

    @property
    def rows(self) -> int:
        with self._one:
            return super().rows - self._before


class _Feeder:
    """Takes batches from the thread that reads, and gives them to `pay` in order from another thread.

    One batch waits while another is paid; then `put` waits.

    Args:
        pay: called as `pay(batch, nbytes)`; `fail` must end its wait.
        fail: called once with what `pay` raised.
        done: called when all is paid, after `finish`.
    """

    def __init__(
        self,
        pay: Pay,
        *,
        fail: Callable[[BaseException], None],
        done: Callable[[], None],
        name: str,
    ) -> None:
        self._pay = pay
        self._fail = fail
        self._done = done
        self._slot = HandoffSlot[tuple[pa.RecordBatch, int]]()
        self._dropped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, batch: pa.RecordBatch, nbytes: int) -> None:
        """Keep a batch; waits while another one waits. By one thread.

        Raises:
            FlowError: it was closed. What `pay` raised for a batch before it.
        """
        if not self._slot.give((batch, nbytes)):
            raise self._error or FlowError(
                "the target's feeder was closed: its rows are no longer wanted"
            )

    def finish(self) -> None:
        """End the input. Returns immediately; calls `done` when all rows are paid for."""
        self._slot.close()

    def close(self) -> None:
        """Drop what is not paid, and wait for the thread's end; a `pay` that waits is ended by who fails it."""
        self._dropped = True
        self._slot.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while (payment := self._slot.take()) is not None:
                self._pay(*payment)
                del payment  # while it waits for the next one, the batch may go
            if not self._dropped:
                self._done()
        except BaseException as error:
            self._error = error
            self._slot.cancel()
            self._fail(error)


class _Part:
    """One task on its way to one target: a channel of the task's carrier, and what feeds it."""

    def __init__(
        self,
        target: "_Branch",
        task: Task,
        channel: MemoryChannel,
        log: _Log,
        counters: Counters,
        permit: AbstractContextManager[Any],
    ) -> None:
        self.target = target
        self.task = task
        self.channel = channel
        self.log = log
        self.counters = counters
        self.permit = permit
        self._feeder: _Feeder | None = None
        self._ended = threading.Lock()
        if target.run.limiter is not None:
            # A thread pays each limit, so that the limits of all targets are used at the same time.
            self._feeder = _Feeder(
                self._push,
                fail=channel.fail,
                done=channel.close,
                name=f"spark-channel-feed-{target.number}",
            )

    def give(self, batch: pa.RecordBatch, nbytes: int) -> None:
        if self._feeder is None:
            self._push(batch, nbytes)
        else:
            self._feeder.put(batch, nbytes)

    def finish(self) -> None:
        """All was given."""
        if self._feeder is None:
            self.channel.close()
        else:
            self._feeder.finish()

    def close(self) -> None:
        """End the feed: the target has all rows, or gets no more. May be called twice."""
        if not self._ended.acquire(blocking=False):
            return
        if self._feeder is not None:
            self._feeder.close()
        self.permit.__exit__(None, None, None)

    def _push(self, batch: pa.RecordBatch, nbytes: int) -> None:
        self.channel.push(batch, nbytes=nbytes)


class _Branch:
    """One target in this attempt of a group."""

    def __init__(self, number: int, branch: FanOutTarget, run: FanOutTargetRun, lanes: int) -> None:
        self.number = number
        self.branch = branch
        self.run = run
        self.lanes = [HandoffSlot[_Part]() for _ in range(lanes)]
        self.outcomes: list[TaskOutcome] = []
        self.open: dict[int, MemoryChannel] = {}
        self.left: BaseException | None = None
        self.stopped = ""


class GroupFanOut:
    """One attempt of one task group; `run` is called once.

    Each of the group's channels is a lane: one thread reads a task and runs its steps, and each target has one that
    writes. A task has a carrier with a channel for each target. A target whose channel is full stops the reading; one
    that fails ends the group, or is left behind (`on_failure`) while the others go on.
    """

    def __init__(
        self, work: FanOutWork, group: TaskGroup, attempt: int, runs: Sequence[FanOutTargetRun]
    ) -> None:
        self._work = work
        self._group = group
        self._attempt = attempt
        self._lock = threading.Lock()
        self._queue: deque[Task] = deque(group.tasks)
        self._lanes = range(min(group.channels, len(group.tasks)))
        self._targets = [
            _Branch(number, branch, run, len(self._lanes))
            for number, (branch, run) in enumerate(zip(work.branches, runs, strict=True))
        ]
        self._parts_made: list[_Part] = []
        self._writing = len(self._lanes) * len(self._targets)
        self._over = threading.Event()
        """All writers have ended; or one hangs, and is not waited for."""
        self._error: BaseException | None = None

    def run(self) -> FanOutOutcome:
        """Move all tasks of the group to all targets.

        A target that refused too many rows does not raise here: its outcome says so, since Spark would only try again.

        Raises:
            ChannelError: what the source met, or a target that may not be left behind, or the last of those that may.
        """
        readers = [self._thread(f"read-{lane}", self._read, lane) for lane in self._lanes]
        writers = [
            self._thread(f"write-{lane}-{target.number}", self._write, target, lane)
            for lane in self._lanes
            for target in self._targets
        ]
        try:
            self._check_budgets()
            if self._error is None:
                for thread in (*readers, *writers):
                    thread.start()
                if writers:
                    self._over.wait()
        except BaseException as error:
            self._fail(error)
        join((*writers, *readers), patient=self._error is None)
        for part in self._unended():  # also those that no thread has taken
            part.channel.fail(self._error or ReadCancelledError("its target was left behind"))
            part.close()
        if self._error is not None and not isinstance(self._error, DirtyRowsError):
            raise self._error
        return FanOutOutcome(
            tuple(map(self._outcome, self._targets)), tuple(map(_why_left, self._targets))
        )

    def cancel(self, error: BaseException | None = None) -> None:
        """End it from any thread: the engine needs no more rows, or `error` happened."""
        self._fail(error or ReadCancelledError("the transfer was cancelled"))
        if isinstance(error, StalledError):
            self._over.set()

    def _unended(self) -> list[_Part]:
        with self._lock:
            return list(self._parts_made)

    def _check_budgets(self) -> None:
        for target in self._targets:
            try:
                target.run.budget.check()
            except (
                ChannelError
            ) as error:  # of refused rows, or of what another task of the target has met
                self._target_failed(target, error)

    # ---- the reading half of a lane

    def _read(self, lane: int) -> None:
        while (task := self._next()) is not None:
            parts = self._parts(task, lane)
            if not parts:
                return
            source, split = self._work.source_of(task)
            trace = parts[0].counters.trace  # the reading is traced once, as the first target's
            with source.reader.reading() as read:
                batches = read(split)
                with contextlib.closing(cast("Generator[pa.RecordBatch]", batches)):
                    for batch in trace.reading(batches):
                        self._give(source, conform(batch, source.pipeline.schema), parts)
            for part in parts:
                part.finish()
        for target in self._targets:
            target.lanes[lane].close()

    def _next(self) -> Task | None:
        with self._lock:
            return None if self._error is not None or not self._queue else self._queue.popleft()

    def _parts(self, task: Task, lane: int) -> list[_Part]:
        """The task's way to each target that is not left behind."""
        live = [target for target in self._targets if target.left is None]
        work = self._work
        carrier = DataCarrier(
            len(live),
            work.capacity_rows,
            work.capacity_bytes,
            limiter=[target.run.limiter for target in live],
        )
        if work.transaction_rows is not None:
            carrier.resize(transaction_rows=work.transaction_rows)
        parts = []
        for target, channel in zip(live, carrier.channels, strict=True):
            # Permits are taken in one order before a row is read: two tasks cannot wait for each other's.
            permit = target.run.permit()
            permit.__enter__()
            part = self._part(target, task, channel, permit)
            with self._lock:
                target.open[task.id] = channel
                self._parts_made.append(part)
                failed = self._error or target.left
            if failed is not None:
                channel.fail(failed)
            if target.lanes[lane].give(part):
                parts.append(part)
            else:
                part.close()
        return parts

    def _part(
        self,
        target: _Branch,
        task: Task,
        channel: MemoryChannel,
        permit: AbstractContextManager[Any],
    ) -> _Part:
        branch, run = target.branch, target.run
        counters = Counters(task.id, self._attempt) if run.counters is None else run.counters(task)
        counters.follow(channel.statistics)
        log = _Log(
            run.budget,
            task.id,
            self._attempt,
            store=branch.dirty_store,
            job=branch.job,
            counters=counters,
        )
        return _Part(target, task, channel, log, counters, permit)

    def _give(self, source: TransferSource, batch: pa.RecordBatch, parts: Sequence[_Part]) -> None:
        """The batch, after the steps that all targets share, to every target that is not left behind."""
        refused: Sequence[Any] = ()
        if source.pipeline.steps:
            trace = parts[0].counters.trace
            with trace.timed("transform"):
                outcome = source.pipeline.run(batch, trace.dropped)
            batch, refused = outcome.batch, outcome.refused
        nbytes = arrow_bytes(batch)
        for part in parts:
            if part.target.left is not None:
                continue
            try:
                for refusal in refused:
                    part.log.refuse_before(refusal.rows, refusal.reason)
                if batch.num_rows:
                    part.give(batch, nbytes)
            except BaseException as error:
                self._target_failed(part.target, error)
        with self._lock:
            if self._error is not None:
                raise self._error
        if all(part.target.left is not None for part in parts):
            raise ReadCancelledError("no target is left")

    # ---- the writing half

    def _write(self, target: _Branch, lane: int) -> None:
        while (part := target.lanes[lane].take()) is not None:
            try:
                outcome = self._write_task(part)
            finally:
                part.close()
            with self._lock:
                target.open.pop(part.task.id, None)
                self._parts_made.remove(part)
                target.outcomes.append(outcome)

    def _write_task(self, part: _Part) -> TaskOutcome:
        branch, task, counters = part.target.branch, part.task, part.counters
        task_writer: TaskWriter | None = None
        try:
            with counters.trace.timed("connect"):
                task_writer = branch.writer.open(branch.plan, task.id, self._attempt)
            drain(part.channel, task_writer, branch.steps, branch.plan, part.log, counters)
            with counters.trace.timed("publish"):
                receipt = task_writer.close()
            dirty = part.log.finish()
        except BaseException as error:
            self._target_failed(part.target, error)  # before the rollback, which may take its time
            counters.enter(end_phase(error))
            if isinstance(error, ChannelError) and error.is_final:
                counters.explain(str(error), ends_job=True)
            if task_writer is not None:
                roll_back(task_writer.rollback, task.id, self._attempt)
            if not isinstance(error, DirtyRowsError):
                roll_back(part.log.rollback, task.id, self._attempt)
                raise
            return TaskOutcome(task.id, None, part.log.finish())
        counters.enter(Phase.DONE)
        return TaskOutcome(task.id, dirty.into(receipt), replace(dirty, samples=()))

    # ---- the end

    def _outcome(self, target: _Branch) -> GroupOutcome:
        tasks = tuple(sorted(target.outcomes, key=lambda outcome: outcome.task))
        return GroupOutcome(self._group.id, tasks, target.stopped)

    def _thread(self, name: str, work: Callable[..., None], *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*args)
            except BaseException as error:
                owner = args[0] if isinstance(args[0], _Branch) else None
                if owner is None or owner.left is None:
                    self._fail(error)
            if isinstance(args[0], _Branch):
                with self._lock:
                    self._writing -= 1
                    over = not self._writing
                if over:
                    self._over.set()

        return threading.Thread(target=run, name=f"spark-channel-{name}", daemon=True)

    def _target_failed(self, target: _Branch, error: BaseException) -> None:
        """Leave the failed target behind, or end all targets; the first error of each counts."""
        with self._lock:
            if self._error is not None or target.left is not None:
                return
            others = any(other.left is None for other in self._targets if other is not target)
            leaves = target.branch.on_failure == "leave" and isinstance(error, Exception) and others
            if leaves:
                target.left = error
            elif isinstance(error, DirtyRowsError):
                target.stopped = str(error)
            channels = list(target.open.values())
        if not leaves:
            self._fail(error)
            return
        _log.warning(
            "job %s is left behind (onFailure=leave), the other targets continue: %s",
            target.branch.job,
            error,
        )
        for channel in channels:
            channel.fail(error)
        for lane in target.lanes:
            lane.cancel()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
            first = self._error
            channels = [channel for target in self._targets for channel in target.open.values()]
        for channel in channels:
            channel.fail(first)
        for target in self._targets:
            for lane in target.lanes:
                lane.cancel()


def _why_left(target: _Branch) -> str:
    return "" if target.left is None else f"{type(target.left).__name__}: {target.left}"
