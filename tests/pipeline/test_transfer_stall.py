"""A task that makes no progress is named in the progress line, and ended if asked."""

import threading
import time
from dataclasses import replace

import pytest

from spark_channel.errors import OptionError, StalledError
from spark_channel.limits import RateLimiter
from spark_channel.options import WriteOptions
from spark_channel.pipeline import DirtyBudget, GroupTransfer, TransferSource, TransferWork
from spark_channel.pipeline.threads import StallWatch
from spark_channel.planning import Split, Task, TaskGroup
from spark_channel.progress import (
    Counters,
    DirtyLimit,
    JobProgress,
    JobSpec,
    Phase,
    Snapshot,
    progress_line,
)
from spark_channel.spark.write import refuse_on_stall
from spark_channel.testing.clock import VirtualClock
from spark_channel.testing.comparison import held_resources
from spark_channel.transform import prepare
from tests.carrier.helpers import JOIN_SECONDS
from tests.pipeline.fakes import SCHEMA, MemoryReader, MemoryWriter, plan


def transfer(
    reader: MemoryReader,
    writer: MemoryWriter,
    seconds: float,
    limiter: RateLimiter | None = None,
    *,
    hangs: bool = False,
    tasks: int = 1,
) -> GroupTransfer:
    """As a Spark task runs it with onStall=fail."""
    work = TransferWork(
        (TransferSource(reader, prepare((), SCHEMA)),), ((writer, plan()),), "j", 1000, 1 << 20
    )
    splits = [TransferSource.wrap(0, Split({"number": number})) for number in range(tasks)]
    group = TaskGroup(0, tuple(Task(7 + number, split) for number, split in enumerate(splits)), 1)
    held = held_resources()

    def stalled(error: BaseException) -> None:
        running.cancel(error)

    watch = StallWatch(seconds, stalled)
    running = GroupTransfer(
        work,
        group,
        0,
        budget=DirtyBudget(DirtyLimit(0, None)),
        limiter=limiter,
        counters=lambda task: watch.add(Counters(task.id, 0)),
    )
    with watch:
        running.run()
    if not hangs:
        held.expect_no_more("after a transfer")
    return running


def test_a_target_that_takes_no_row_ends_the_task() -> None:
    gate = threading.Event()
    writer = MemoryWriter(on_write=lambda _number: waits(gate))
    began = time.monotonic()
    with pytest.raises(
        StalledError, match=r"task 7 has read 30 rows and written 0, and none for [123] s"
    ):
        transfer(MemoryReader(3), writer, 1.5, hangs=True)
    assert time.monotonic() - began < 20, "though the target hangs on"
    gate.set()


def waits(event: threading.Event) -> None:
    event.wait(JOIN_SECONDS)


def test_a_task_that_moves_slowly_or_waits_for_its_limit_has_not_stalled() -> None:
    slow = MemoryWriter(on_write=lambda _number: time.sleep(0.2))
    transfer(MemoryReader(8), slow, 0.8)
    limited = MemoryWriter()
    transfer(MemoryReader(2), limited, 0.5, RateLimiter(10, None))
    assert len(slow.batches) == 8


def test_a_task_that_waits_for_the_one_before_it_has_not_stalled() -> None:
    """A lane reads the next task while the target still takes the rows of the last one."""
    slow = MemoryWriter(on_write=lambda _number: time.sleep(0.15))
    transfer(MemoryReader(8), slow, 0.6, tasks=3)
    assert len(slow.batches) == 24


def test_the_progress_line_names_what_has_stalled() -> None:
    clock = VirtualClock()
    progress = JobProgress("j", JobSpec("transfer", tasks=3, stall_timeout=30.0), clock=clock)
    for task in range(3):
        progress.update(Snapshot(task, 0, rows_read=5, sequence=1))
    clock.advance(29)
    assert "stalled" not in progress_line(progress.status())
    progress.update(Snapshot(0, 0, rows_read=6, sequence=2))
    progress.update(Snapshot(1, 0, rows_read=5, sequence=2, waits={"limit:rows": 29.0}))
    clock.advance(11)
    assert "task 2 has stalled for 40 s" in progress_line(progress.status())
    clock.advance(60)
    assert "tasks 2, 0, 1 have stalled for 100 s" in progress_line(progress.status())
    for task in range(3):
        done = Snapshot(task, 0, rows_read=9, sequence=5, phase=Phase.DONE)
        progress.update(replace(done, task=task))
    assert "stalled" not in progress_line(progress.status())


def test_a_job_that_is_paused_has_not_stalled() -> None:
    clock = VirtualClock()
    progress = JobProgress("j", JobSpec("transfer", tasks=1, stall_timeout=30.0), clock=clock)
    progress.update(Snapshot(0, 0, rows_read=5))
    progress.set_limits(0, None, "paused")
    clock.advance(100)
    line = progress_line(progress.status())
    assert "paused" in line
    assert "stalled" not in line


def test_a_write_of_a_dataframe_is_named_and_not_ended() -> None:
    refuse_on_stall(WriteOptions(stall_timeout=30.0))
    with pytest.raises(OptionError, match="'onStall' got 'fail', which is for transfer"):
        refuse_on_stall(WriteOptions(stall_timeout=30.0, on_stall="fail"))
