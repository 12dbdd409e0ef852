"""Runs of a write as processes: a driver and its workers, as Spark has them, which a test may stop, kill and wake.

Drivers are forked from one process that has imported everything, so that a run costs milliseconds. A driver forks its
workers before it does anything else; those outlive it, and end when their task has ended.
"""

import multiprocessing
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from multiprocessing.connection import Connection, wait
from signal import Signals
from typing import Any

import pyarrow as pa

from spark_channel import clock, processes
from spark_channel.connectors import (
    Receipt,
    TaskWriter,
    WriteContext,
    WritePlan,
    Writer,
    load_writer,
)
from spark_channel.errors import ChannelError, SupersededError
from spark_channel.options import CommitMode

__all__ = ["SECONDS", "TASKS", "Order", "Run", "start"]

TASKS = 2
ROWS = 120
_ATTEMPTS = 3
_PIECE = 15
SECONDS = 120.0
"""How long anything may take that ends by itself."""


@dataclass(frozen=True)
class Order:
    """A write: rows with the ids `ids`. `run` is unique to each try of it.

    `days` is what the run's clock is ahead; `elsewhere`: its driver is on a machine that no other driver knows.
    """

    options: dict[str, Any]
    number: int
    commit: CommitMode
    overwrite: bool = False
    run: str = ""
    days: int = 0
    elsewhere: bool = False
    seed: int = 0

    @property
    def ids(self) -> range:
        return range(self.number * ROWS, (self.number + 1) * ROWS)

    def rows(self, task: int) -> pa.RecordBatch:
        return pa.record_batch({"id": pa.array(self.ids[task::TASKS], pa.int64())})


@dataclass
class Run:
    """A run that continues: the lines that its driver printed, and its processes."""

    order: Order
    process: Any
    reports: Connection
    workers: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def listen(self, until: Callable[["Run"], bool], seconds: float = SECONDS) -> bool:
        """Read the driver's lines until `until` holds, it ends, or the time is over. Return whether `until` holds."""
        end = time.monotonic() + seconds
        while not until(self):
            if not self.reports.poll(max(0.0, end - time.monotonic())):
                return False
            try:
                kind, value = self.reports.recv()
            except (EOFError, OSError):
                return until(self)
            if kind == "workers":
                self.workers = value
                for each in value:
                    with suppress(ProcessLookupError):  # it has ended
                        self.descriptors.append(os.pidfd_open(each))
            elif kind == "busy":
                self.busy.append(value)
            else:
                self.reported.append(f"{kind} {value}".strip())
        return True

    def send(self, number: Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def send_to_worker(self, number: Signals) -> None:
        """To the last one that was given a task, whether it still has it or not."""
        with suppress(ProcessLookupError):
            os.kill(self.busy[-1], number)

    def end(self, seconds: float = SECONDS) -> int | None:
        """Wait for the driver: 0 = published, 3 = overtaken, 1 = failed, negative = killed, None = still running."""
        end = time.monotonic() + seconds
        self.listen(lambda _: False, seconds)
        self.process.join(max(0.0, end - time.monotonic()))
        found: int | None = self.process.exitcode
        return found

    def close(self) -> None:
        """Wait for its workers, which end by themselves."""
        self.listen(lambda run: bool(run.workers), 5.0)
        for descriptor in self.descriptors:
            ended = wait([descriptor], SECONDS)
            os.close(descriptor)
            assert ended, f"a worker of {self.order} does not end"
        self.descriptors = []
        self.reports.close()
        self.process.close()


def start(order: Order) -> Run:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_drive, args=(order, theirs), daemon=False)
    process.start()
    theirs.close()
    return Run(order, process, ours)


class _Driver:
    def __init__(self, order: Order, reports: Connection) -> None:
        self._order, self._reports = order, reports
        self._free: list[tuple[int, Connection]] = []
        self._tries = [0] * TASKS
        self._running: dict[Connection, int] = {}
        for number in range(TASKS * _ATTEMPTS):
            self._fork(number)
        reports.send(("workers", [pid for pid, _ in self._free]))

    def _fork(self, number: int) -> None:
        ours, theirs = multiprocessing.Pipe()
        pid = os.fork()
        if pid == 0:
            # It must see the end of its driver, and its driver its own: no other process holds their pipe.
            for _, other in self._free:
                other.close()
            ours.close()
            self._reports.close()
            _work(self._order, theirs, random.Random(f"{self._order.seed}-{number}"))
        theirs.close()
        self._free.append((pid, ours))

    def run(self) -> int:
        order, writer = self._order, load_writer(self._order.options)[0]
        context = WriteContext(
            order.run, order.commit, order.overwrite, txn=("storm", order.number)
        )
        plan: WritePlan | None = None
        try:
            if order.commit == "task" and (found := writer.unfinished(context)) is not None:
                context = replace(context, resume=found.epoch)
            plan = writer.prepare(context, order.rows(0).schema)
            self._report("prepared")
            receipts = [] if plan.published_at is not None else self._tasks(writer, plan)
            self._report("staged")
            if plan.published_at is None:
                writer.commit(plan, receipts)
            return 0
        except ChannelError as error:
            self._report("failed", f"{type(error).__name__}: {error}")
            if plan is not None:
                writer.abort(plan, None)
            return 3 if isinstance(error, SupersededError) else 1

    def _tasks(self, writer: Writer, plan: WritePlan) -> list[Receipt]:
        receipts: list[Receipt] = []
        for task in range(TASKS):
            done = writer.committed(plan, task) if self._order.commit == "task" else None
            if done is None:
                self._give(plan, task)
            else:
                receipts.append(done)
        failure: ChannelError | None = None
        while self._running:
            for pipe in wait(list(self._running)):
                assert isinstance(pipe, Connection)
                task = self._running.pop(pipe)
                try:
                    answer = pipe.recv()
                except (EOFError, OSError):
                    answer = ChannelError("the worker was killed")
                if isinstance(answer, Receipt):
                    receipts.append(answer)
                elif isinstance(answer, SupersededError) or self._tries[task] == _ATTEMPTS:
                    failure = answer
                elif failure is None:
                    self._give(plan, task)
        if failure is not None:
            raise failure
        return receipts

    def _give(self, plan: WritePlan, task: int) -> None:
        pid, pipe = self._free.pop()
        self._tries[task] += 1
        self._running[pipe] = task
        pipe.send((plan, task, task + TASKS * self._tries[task]))
        self._report("busy", pid)

    def _report(self, kind: str, value: object = "") -> None:
        with suppress(OSError):
            self._reports.send((kind, value))


def _drive(order: Order, reports: Connection) -> None:
    if order.days:
        clock.datetime = _Ahead.by(order.days)  # type: ignore[attr-defined] # a name that the module imports
    if order.elsewhere:
        processes._machine = lambda: [order.run, "", ""]
    os._exit(_Driver(order, reports).run())


class _Ahead(datetime):
    days = 0

    @classmethod
    def by(cls, days: int) -> type["_Ahead"]:
        cls.days = days
        return cls

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return datetime.now(tz) + timedelta(days=cls.days)


def _work(order: Order, pipe: Connection, chance: random.Random) -> None:
    """A worker: one task, and the end."""
    opened: TaskWriter | None = None
    try:
        plan, task, attempt = pipe.recv()
        opened = load_writer(order.options)[0].open(plan, task, attempt)
        rows = order.rows(task)
        for at in range(0, rows.num_rows, _PIECE):
            opened.write(rows.slice(at, _PIECE))
            time.sleep(chance.uniform(0, 0.01))
            if chance.random() < 0.3:
                opened.flush()
        receipt = opened.close()
        pipe.send(receipt)
    except ChannelError as error:
        if opened is not None:
            opened.rollback()
        with suppress(OSError):
            pipe.send(error)
    except (EOFError, OSError):
        pass  # the driver has ended
    finally:
        os._exit(0)
