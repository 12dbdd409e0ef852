"""Where a task's time goes."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_channel.pipeline import (
    DirtyBudget,
    GroupRead,
    GroupTransfer,
    TransferSource,
    TransferWork,
)
from spark_channel.planning import Split, Task, TaskGroup
from spark_channel.progress import (
    Counters,
    DirtyLimit,
    JobProgress,
    JobSpec,
    Phase,
    Snapshot,
    TransferReport,
)
from spark_channel.progress.counters import PHASES, PhaseTimes
from spark_channel.progress.report import combined_report
from spark_channel.transform import DropRows, prepare
from tests.pipeline.fakes import SCHEMA, MemoryReader, MemoryWriter, plan


def test_the_phases_of_a_task_are_timed_and_travel_into_the_report() -> None:
    reader = MemoryReader(4, lambda _split, number: time.sleep(0.12 if number == 0 else 0.03))
    writer = MemoryWriter(
        on_write=lambda _number: time.sleep(0.05), on_close=lambda: time.sleep(0.06)
    )
    steps = prepare([DropRows("n", "<", "10"), keep], SCHEMA)
    work = TransferWork((TransferSource(reader, steps),), ((writer, plan()),), "j", 1000, 1 << 20)
    made: list[Counters] = []

    def counters(task: Task) -> Counters:
        made.append(Counters(task.id, 0))
        return made[-1]

    group = TaskGroup(0, (Task(0, TransferSource.wrap(0, Split({"number": 0}))),), 1)
    GroupTransfer(work, group, 0, budget=DirtyBudget(DirtyLimit(0, None)), counters=counters).run()
    progress = JobProgress("j", JobSpec("transfer", tasks=1))
    progress.update(Snapshot.from_json(made[0].snapshot().to_json()))
    progress.enter(Phase.DONE)
    report = TransferReport.from_json(progress.report().to_json())
    (trace,) = report.traces
    assert 0.1 < trace.phases["first_row"] < 0.2
    assert 0.08 < trace.phases["read"] < 0.2
    assert 0.14 < trace.phases["write"] < 0.4, "three batches: the first was dropped as a whole"
    assert 0.05 < trace.phases["publish"] < 0.2
    assert set(trace.phases) <= set(PHASES)
    assert (trace.rows_read, trace.rows_written, trace.attempts) == (40, 25, 1)
    assert report.rows_dropped == {"transformers[0] DropRows": 10, "transformers[1] keep": 5}
    frame = report.trace()
    assert list(frame.columns)[-8:] == [*PHASES, "dropped"]
    assert frame.loc[0, "dropped"] == 15
    assert frame.loc[0, "write"] == trace.phases["write"]


def test_the_phases_of_a_read_travel_into_its_report() -> None:
    counters = Counters(0, 0)
    task = TaskGroup(0, (Task(0, Split({"number": 0})),), 1)
    read = GroupRead(
        MemoryReader(3, lambda *_: time.sleep(0.02)),
        task,
        SCHEMA,
        counters=counters,
        capacity_rows=1000,
        capacity_bytes=1 << 20,
    )
    assert sum(batch.num_rows for batch in read.batches()) == 30
    progress = JobProgress("j", JobSpec("read", tasks=1))
    progress.update(Snapshot.from_json(counters.snapshot().to_json()))
    progress.enter(Phase.DONE)
    frame = TransferReport.from_json(progress.report().to_json()).trace()
    traced = frame.iloc[0].to_dict()
    assert (traced["rows_read"], traced["write"]) == (30, 0)
    assert traced["first_row"] >= 0.02
    assert traced["read"] >= 0.04


def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(
        pa.array([n < 30 or n % 2 == 0 for n in batch.column(0).to_pylist()], pa.bool_())
    )


def test_of_several_attempts_the_one_that_counts_is_traced() -> None:
    progress = JobProgress("j", JobSpec("transfer", tasks=1))
    first = Snapshot(0, 0, phases={"write": 1.0}, phase=Phase.FAILED, sequence=1, dropped={"a": 3})
    progress.update(first)
    progress.update(replace(first, attempt=1, phase=Phase.DONE, phases={"write": 2.0}))
    report = progress.report()
    assert [(each.attempts, each.phases["write"]) for each in report.traces] == [(2, 2.0)]
    assert report.rows_dropped == {"a": 3}


def test_of_several_targets_the_phases_and_dropped_rows_are_those_of_all() -> None:
    """Whichever target has the fewest rows: the reading and the shared steps were counted once, as the first one's."""

    def report(task: Snapshot) -> TransferReport:
        progress = JobProgress("j", JobSpec("transfer", tasks=1))
        progress.update(replace(task, phase=Phase.DONE))
        progress.enter(Phase.DONE)
        return progress.report()

    first = report(
        Snapshot(
            3,
            0,
            phases={"read": 2.0, "write": 1.0},
            dropped={"shared": 5},
            rows_read=9,
            rows_written=4,
        )
    )
    second = report(
        Snapshot(
            3,
            0,
            phases={"connect": 0.5, "write": 4.0},
            dropped={"own": 1},
            rows_read=9,
            rows_written=3,
        )
    )
    first = replace(first, rows_dirty=3, dirty_reasons={"a": 1, "b": 2})
    second = replace(second, rows_dirty=5, dirty_reasons={"b": 2, "z": 3})
    whole = combined_report("j", [first, second])
    assert list(whole.dirty_reasons.items()) == [("b", 4), ("z", 3), ("a", 1)]
    assert (whole.rows, whole.rows_dropped) == (3, {"own": 1, "shared": 5})
    (trace,) = whole.traces
    phases = {"connect": 0.5, "read": 2.0, "wait": 0.0, "write": 5.0}
    assert (trace.task, trace.rows_written, trace.phases) == (3, 3, phases)
    assert trace.rows_dropped == {"shared": 5, "own": 1}
    assert [each.rows_dropped for each in whole.targets] == [{"shared": 5}, {"own": 1}]


def test_a_thousand_of_the_slowest_tasks_are_kept() -> None:
    progress = JobProgress("j", JobSpec("transfer"))
    for task in range(1200):
        progress.update(Snapshot(task, 0, phases={"write": 1.0}, seconds=float(task)))
    assert [each.task for each in progress.report().traces] == list(range(200, 1200))


def test_an_error_of_the_source_passes_and_its_time_counts() -> None:
    trace = PhaseTimes()

    def breaks() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})
        time.sleep(0.02)
        raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        list(trace.reading(breaks()))
    assert trace.phases()["read"] >= 0.02
