"""One task group to several targets: read once, slow targets, and those that fail."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest

from spark_channel.connectors import TaskWriter, WritePlan
from spark_channel.errors import ChannelError, DirtyRowsError, SourceError, TargetError
from spark_channel.limits import RateLimiter
from spark_channel.pipeline import (
    DirtyBudget,
    FanOutOutcome,
    FanOutTarget,
    FanOutTargetRun,
    FanOutWork,
    GroupFanOut,
    ReadCancelledError,
    TransferSource,
)
from spark_channel.planning import Split, Task, TaskGroup
from spark_channel.progress import DirtyLimit
from spark_channel.testing.comparison import held_resources
from spark_channel.transform import prepare
from spark_channel.transform.transformer import Refused, Transformer, TransformResult
from tests.pipeline.fakes import SCHEMA, MemoryReader, MemoryWriter, plan


@dataclass
class Own(MemoryWriter):
    """Notes which task each writer is opened for."""

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        self.events.append(f"open {task}")
        return super().open(plan, task, attempt)

    @property
    def rows(self) -> Counter[int]:
        return Counter(n for each in self.batches for n in each.column("n").to_pylist())


def waits(event: threading.Event) -> None:
    event.wait(20)


def group(tasks: int, channels: int = 1) -> TaskGroup:
    return TaskGroup(
        0,
        tuple(Task(n, TransferSource.wrap(0, Split({"number": n}))) for n in range(tasks)),
        channels,
    )


def work(
    reader: MemoryReader, *branches: FanOutTarget, steps: tuple[object, ...] = (), rows: int = 40
) -> FanOutWork:
    return FanOutWork((TransferSource(reader, prepare(steps, SCHEMA)),), branches, rows, 1 << 20)


def branch(writer: MemoryWriter, steps: tuple[object, ...] = (), **more: object) -> FanOutTarget:
    return FanOutTarget(writer, plan(), "j", prepare(steps, SCHEMA), **more)  # type: ignore[arg-type] # mypy does not see what a mapping has


def runs(*limits: RateLimiter | None, dirty: int | None = 0) -> list[FanOutTargetRun]:
    return [FanOutTargetRun(DirtyBudget(DirtyLimit(dirty, None)), limit) for limit in limits]


def move(
    made: FanOutWork, given: list[FanOutTargetRun], tasks: int = 4, channels: int = 2
) -> FanOutOutcome:
    held = held_resources()
    try:
        return GroupFanOut(made, group(tasks, channels), 0, given).run()
    finally:
        held.expect_no_more("after run")


def receipts(outcome: FanOutOutcome, target: int) -> int:
    return sum(task.receipt is not None for task in outcome.targets[target].tasks)


def test_each_split_is_read_once_and_every_target_has_its_rows() -> None:
    read: Counter[tuple[int, int]] = Counter()
    reader = MemoryReader(5, lambda split, number: read.update([(split.params["number"], number)]))
    writers = [Own(), Own(), Own()]
    outcome = move(work(reader, *map(branch, writers)), runs(None, None, None))
    assert set(read.values()) == {1}
    assert len(read) == 20
    for number, writer in enumerate(writers):
        assert writer.rows == Counter(range(200))
        assert receipts(outcome, number) == 4
    assert outcome.left == ("", "", "")


def test_shared_steps_run_once_and_own_steps_for_their_target() -> None:
    calls: list[int] = []

    def even(given: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(given.num_rows)
        return given.filter(pa.array([n % 2 == 0 for n in given.column(0).to_pylist()], pa.bool_()))

    def tens(given: pa.RecordBatch) -> pa.RecordBatch:
        return given.filter(
            pa.array([n % 10 == 0 for n in given.column(0).to_pylist()], pa.bool_())
        )

    one, other = Own(), Own()
    made = work(MemoryReader(3), branch(one), branch(other, (tens,)), steps=(even,))
    calls.clear()  # a step is asked for its schema first
    move(made, runs(None, None))
    assert sum(calls) == 120, "once for both"
    assert one.rows == Counter(range(0, 120, 2))
    assert other.rows == Counter(range(0, 120, 10))


def test_a_slow_target_stops_the_reading() -> None:
    gate = threading.Event()
    read: list[int] = []
    reader = MemoryReader(50, lambda _split, number: read.append(number))
    slow, fast = Own(on_write=lambda _number: waits(gate)), Own()
    thread = threading.Thread(
        target=lambda: move(work(reader, branch(fast), branch(slow)), runs(None, None), 1, 1)
    )
    thread.start()
    time.sleep(0.5)
    assert len(read) < 12, "the channel of 40 rows, and a few batches on their way"
    gate.set()
    thread.join(20)
    assert slow.rows == fast.rows == Counter(range(500))


def test_limits_of_targets_are_used_at_the_same_time() -> None:
    """Two targets of 100 rows a second each take as long as one, not twice as long."""

    def took(targets: int) -> float:
        began = time.monotonic()
        branches = [branch(Own()) for _ in range(targets)]
        move(
            work(MemoryReader(10), *branches),
            runs(*(RateLimiter(100, None) for _ in branches)),
            1,
            1,
        )
        return time.monotonic() - began

    alone = took(1)
    assert alone > 0.9
    assert took(2) < 1.6 * alone


def breaks(error: Exception, at: int = 3) -> Callable[[int], None]:
    def on_write(number: int) -> None:
        if number >= at:
            raise error

    return on_write


def test_a_target_that_fails_fails_the_job() -> None:
    good, bad = Own(), Own(on_write=breaks(TargetError("disk full")))
    with pytest.raises(TargetError, match="disk full"):
        move(work(MemoryReader(20), branch(good), branch(bad)), runs(None, None))
    assert "rollback" in bad.events
    assert good.events.count("rollback") == len(
        [e for e in good.events if e.startswith("open ")]
    ) - good.events.count("close")


@pytest.mark.parametrize("limit", [None, 100_000])
def test_a_target_that_fails_is_left_behind(limit: int | None) -> None:
    good, bad = Own(), Own(on_write=breaks(TargetError("disk full")))
    leaves = branch(bad, on_failure="leave")
    meter = None if limit is None else RateLimiter(limit, None)
    outcome = move(work(MemoryReader(30), leaves, branch(good)), runs(meter, None))
    assert good.rows == Counter(range(1200))
    assert outcome.left == ("TargetError: disk full", "")
    assert receipts(outcome, 1) == 4
    assert "rollback" in bad.events


def test_a_target_that_failed_in_another_task_is_left_behind() -> None:
    good, bad = Own(), Own()
    heard = DirtyBudget(DirtyLimit(0, None), failure=lambda: "disk full")
    both = [FanOutTargetRun(heard), FanOutTargetRun(DirtyBudget(DirtyLimit(0, None)))]
    outcome = move(work(MemoryReader(3), branch(bad, on_failure="leave"), branch(good)), both)
    assert good.rows == Counter(range(120))
    assert outcome.left[0].endswith("disk full")
    assert outcome.left[1] == ""


def test_when_every_target_failed_the_job_fails() -> None:
    writers = [Own(on_write=breaks(TargetError(f"full {n}"))) for n in range(2)]
    made = work(MemoryReader(20), *(branch(writer, on_failure="leave") for writer in writers))
    with pytest.raises(ChannelError, match="full"):
        move(made, runs(None, None))


def test_a_source_that_fails_fails_all_targets() -> None:
    def before(_split: Split, number: int) -> None:
        if number == 2:
            raise SourceError("gone")

    writers = [Own(), Own()]
    made = work(
        MemoryReader(5, before), *(branch(writer, on_failure="leave") for writer in writers)
    )
    with pytest.raises(SourceError, match="gone"):
        move(made, runs(None, None))
    for writer in writers:
        assert "close" not in writer.events


@dataclass(frozen=True)
class RefuseFrom(Transformer):
    """Refuses the rows from 128 on."""

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        good = pa.array([n < 128 for n in batch.column(0).to_pylist()], pa.bool_())
        bad = pa.array([n >= 128 for n in batch.column(0).to_pylist()], pa.bool_())
        return TransformResult(batch.filter(good), (Refused(batch.filter(bad), "too high"),))


def test_rows_that_steps_refuse_count_for_every_target_and_its_own_limit() -> None:
    writers = [Own(), Own()]
    made = work(MemoryReader(3), *map(branch, writers), steps=(RefuseFrom(),))
    given = runs(None, None, dirty=None)
    outcome = move(made, given, 10, 1)
    for target in outcome.targets:
        dirty = sum(task.receipt.dirty_rows for task in target.tasks if task.receipt is not None)
        assert dirty == 300 - 128
    strict = runs(None, None)
    stopped = move(
        work(MemoryReader(3), *map(branch, writers), steps=(RefuseFrom(),)), strict, 10, 1
    )
    assert any("refused" in target.stopped for target in stopped.targets)
    assert issubclass(DirtyRowsError, ChannelError)


def test_a_cancel_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, held = threading.Event(), held_resources()

    def on_write(_number: int) -> None:
        begun.set()
        time.sleep(0.01)

    slow = Own(on_write=on_write)
    running = GroupFanOut(
        work(MemoryReader(10_000), branch(slow), branch(Own())), group(2), 0, runs(None, None)
    )
    met: list[ChannelError] = []

    def run() -> None:
        try:
            running.run()
        except ChannelError as error:
            met.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait(20)
    running.cancel()
    thread.join(20)
    assert not thread.is_alive()
    assert isinstance(met[0], ReadCancelledError)
    held.expect_no_more("after cancel")
