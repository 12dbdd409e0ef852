"""A task group on its way from reader to writer: lanes, errors, dirty rows, retries."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_channel.channel import MemoryChannel
from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors import Receipt, TaskWriter, WriteContext, WritePlan, Writer
from spark_channel.errors import BatchRefusedError, SourceError, TargetError
from spark_channel.limits import RateLimiter
from spark_channel.options import WriteOptions
from spark_channel.pipeline import (
    DirtyBudget,
    GroupOutcome,
    GroupTransfer,
    ReadCancelledError,
    TransferSource,
    TransferWork,
)
from spark_channel.pipeline.threads import HandoffSlot
from spark_channel.pipeline.transfer import _InFlight
from spark_channel.planning import Split, Task, TaskGroup
from spark_channel.progress import Counters, DirtyLimit, Phase
from spark_channel.progress.counters import trace_of
from spark_channel.testing import VirtualClock
from spark_channel.transform import prepare
from tests.pipeline.fakes import SCHEMA, MemoryReader, batch


class Table(Writer):
    """Keeps rows by task; refuses numbers that `refuses` names. `ends` is told of each task that closes."""

    def __init__(
        self,
        refuses: Callable[[int], bool] = lambda _n: False,
        before: Callable[[int], None] = lambda _task: None,
        ends: "Callable[[TableTask], None]" = lambda _task: None,
    ) -> None:
        super().__init__(WriteOptions())
        self.refuses, self.before, self.ends = refuses, before, ends
        self.rows: dict[int, list[int]] = {}
        self.rolled_back: list[int] = []
        self.spreads = False
        self.most_open = self.now_open = 0
        self.lock = threading.Lock()

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        return WritePlan(job=context.job, schema=schema, commit="task")

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        with self.lock:
            self.now_open += 1
            self.most_open = max(self.now_open, self.most_open)
        return TableTask(self, task, attempt)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None: ...

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None: ...


class TableTask(TaskWriter):
    def __init__(self, owner: Table, task: int, attempt: int) -> None:
        self.owner, self.task, self.attempt = owner, task, attempt
        self.spreads = owner.spreads
        self.rows: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.owner.before(self.task)
        numbers = batch.column(0).to_pylist()
        if any(self.owner.refuses(n) for n in numbers):
            raise BatchRefusedError(f"refused among {len(numbers)}")
        self.rows += numbers

    def close(self) -> Receipt:
        self.owner.ends(self)
        with self.owner.lock:
            self.owner.now_open -= 1
        self.owner.rows[self.task] = self.rows
        return Receipt(self.task, self.attempt, len(self.rows), 8 * len(self.rows))

    def rollback(self) -> None:
        self.owner.rolled_back.append(self.task)


def group(tasks: int, channels: int, rows: Sequence[int] = ()) -> TaskGroup:
    splits = [Split({"number": n}, rows=rows[n] if rows else None) for n in range(tasks)]
    return TaskGroup(
        0, tuple(Task(n, TransferSource.wrap(0, split)) for n, split in enumerate(splits)), channels
    )


def transfer(
    reader: MemoryReader,
    writer: Table,
    tasks: TaskGroup,
    *,
    steps: Sequence[Any] = (),
    limit: DirtyLimit = DirtyLimit(),  # noqa: B008 - frozen
    **more: Any,
) -> GroupTransfer:
    pipeline = prepare(steps, SCHEMA)
    plan = writer.prepare(WriteContext("j"), pipeline.output_schema)
    work = TransferWork((TransferSource(reader, pipeline),), ((writer, plan),), "j", 100, 1 << 20)
    return GroupTransfer(work, tasks, 7, budget=DirtyBudget(limit), **more)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in set(threading.enumerate()) - before] == []


def receipts(outcome: GroupOutcome) -> list[tuple[int, int]]:
    return [(each.task, each.receipt.rows) for each in outcome.tasks if each.receipt is not None]


@pytest.mark.parametrize("channels", [1, 3, 8])
def test_every_task_arrives_once_in_order(channels: int) -> None:
    reader, writer = MemoryReader(batches=20), Table()
    outcome = transfer(reader, writer, group(8, channels)).run()
    assert receipts(outcome) == [(n, 200) for n in range(8)]
    assert writer.rows == {n: list(range(n * 200, n * 200 + 200)) for n in range(8)}
    assert (outcome.stopped, reader.open) == ("", 0)
    assert reader.most_open <= channels


def test_no_channel_waits_while_a_task_does() -> None:
    """Four begin together, and one lasts until the nineteen others are through: none of them waits behind it."""
    others, through, together = set(range(1, 20)), threading.Event(), threading.Barrier(4)

    def work(split: Split, number: int) -> None:
        task = split.params["number"]
        if task < 4 and number == 0:
            together.wait(60)
        if task == 0:
            assert through.wait(60), f"tasks {sorted(others)} waited for task 0"
        elif number == 4:  # its last batch
            others.discard(task)
            if not others:
                through.set()

    assert (
        len(receipts(transfer(MemoryReader(batches=5, before=work), Table(), group(20, 4)).run()))
        == 20
    )


@pytest.mark.parametrize(
    ("tasks", "overlapped"), [(1, [False]), (2, [True, False]), (3, [True, True, True])]
)
def test_a_task_that_closes_is_told_whether_the_next_one_is_read_meanwhile_or_it_ends_many(
    tasks: int, overlapped: list[bool]
) -> None:
    overlaps: list[bool] = []

    begun = [threading.Event() for _ in range(tasks + 1)]
    begun[tasks].set()

    def read(split: Split, _number: int) -> None:
        begun[split.params["number"]].set()

    def write(task: int) -> None:
        assert begun[task + 1].wait(60)

    target = Table(before=write, ends=lambda task: overlaps.append(task.overlapped))
    transfer(MemoryReader(batches=5, before=read), target, group(tasks, 1)).run()
    assert overlaps == overlapped


def test_the_next_task_is_read_while_the_last_rows_of_the_one_before_are_paid() -> None:
    """At a row a second, the first task alone takes ten seconds."""
    asked = threading.Event()

    def note(split: Split, _number: int) -> None:
        if split.params["number"] == 1:
            asked.set()

    moving = transfer(
        MemoryReader(1, before=note), Table(), group(2, 1), limiter=RateLimiter(rows_per_second=1)
    )

    def run() -> None:
        with pytest.raises(ReadCancelledError):
            moving.run()

    thread = threading.Thread(target=run)
    thread.start()
    assert asked.wait(5), "nothing was read while rows were paid"
    moving.cancel()
    thread.join(5)
    assert not thread.is_alive()


class Uneven(MemoryReader):
    """Its first and its last task have rows."""

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        if split.params["number"] in (0, 4):
            yield from super().read(split)


def test_tasks_without_rows_do_not_keep_the_next_one_from_being_read() -> None:
    """While the target adds a task's rows slowly, the limit is used by the next one that has rows."""
    read = threading.Event()

    def note(split: Split, _number: int) -> None:
        if split.params["number"] == 4:
            read.set()

    def write(task: int) -> None:
        assert task == 4 or read.wait(60), "the last task waited for those without rows"

    writer = Table(before=write)
    outcome = transfer(Uneven(1, before=note), writer, group(5, 1)).run()
    assert receipts(outcome) == [(0, 10), (1, 0), (2, 0), (3, 0), (4, 10)]


def test_a_task_with_rows_that_waits_for_the_target_keeps_the_next_one_from_being_read() -> None:
    begun = [threading.Event() for _ in range(3)]

    def note(split: Split, _number: int) -> None:
        begun[split.params["number"]].set()

    def write(task: int) -> None:
        if task == 0:
            assert begun[1].wait(60)
            assert not begun[2].wait(0.2), "the rows of two tasks waited in memory"

    transfer(MemoryReader(2, before=note), Table(before=write), group(3, 1)).run()
    assert begun[2].is_set()


@pytest.mark.parametrize(("limited", "part"), [(False, 8), (True, 1)])
def test_without_a_limit_few_rows_are_between_the_ends(
    monkeypatch: pytest.MonkeyPatch, limited: bool, part: int
) -> None:
    sizes: list[int] = []

    def noted(rows: int, nbytes: int, **more: Any) -> MemoryChannel:
        sizes.append(nbytes)
        return MemoryChannel(rows, nbytes, **more)

    monkeypatch.setattr("spark_channel.pipeline.transfer.MemoryChannel", noted)
    limiter = RateLimiter(rows_per_second=1e9) if limited else None
    transfer(MemoryReader(batches=2), Table(), group(2, 1), limiter=limiter).run()
    assert sizes == [(1 << 20) // part] * 2


def test_tasks_without_rows_are_shared_by_the_lanes() -> None:
    """One lane that took them all would write them one by one, while the other has nothing to do."""
    names: dict[int, str] = {}

    def end(task: TableTask) -> None:
        names[task.task] = threading.current_thread().name
        if task.task == 1:
            threading.Event().wait(0.5)

    class OneWithRows(MemoryReader):
        def read(self, split: Split) -> Iterator[pa.RecordBatch]:
            if split.params["number"] == 0:
                threading.Event().wait(0.2)
                yield from super().read(split)

    outcome = transfer(OneWithRows(1), Table(ends=end), group(40, 2)).run()
    assert len(receipts(outcome)) == 40
    assert sum(name == names[0] for name in names.values()) > 20


def test_a_task_that_was_read_before_its_turn_came_is_told_how_long_its_rows_took() -> None:
    """A limited target spreads its work over a part of that time."""
    arrived: dict[int, float] = {}
    read = threading.Event()

    def end(task: TableTask) -> None:
        if task.task == 0:
            assert read.wait(60)
        arrived[task.task] = task.arrived_seconds

    def wait(split: Split, number: int) -> None:
        if split.params["number"] == 1 and number == 1:
            threading.Event().wait(0.1)
            read.set()

    transfer(MemoryReader(2, before=wait), Table(ends=end), group(2, 1)).run()
    assert 0 <= arrived[0] < 0.1 <= arrived[1]


def test_the_time_in_which_the_task_before_is_paid_is_not_the_next_ones() -> None:
    """Its rows are read meanwhile."""
    arrived: dict[int, float] = {}

    def end(task: TableTask) -> None:
        arrived[task.task] = task.arrived_seconds

    begun = SYSTEM_CLOCK.now()
    limiter = RateLimiter(rows_per_second=40)
    transfer(MemoryReader(2), Table(ends=end), group(4, 1), limiter=limiter).run()
    assert len(arrived) == 4
    assert 0 < sum(arrived.values()) <= SYSTEM_CLOCK.now() - begun


def test_a_target_is_told_when_the_rows_of_a_task_came(clock: VirtualClock) -> None:
    """So that it can add them at the speeds at which they came: another task ended, and this one had its share, too."""
    batch = pa.record_batch({"id": pa.array(range(10), pa.int64())})
    task, long = came(clock.now(), 0.0), came(clock.now(), 0.0)
    assert task.arrived_parts() == []
    for _ in range(10):
        clock.advance(0.2)
        task.push(batch, 80)
    for _ in range(10):
        clock.advance(0.1)
        task.push(batch, 80)
    task.finish()
    parts = task.arrived_parts()
    assert parts[9] == pytest.approx((0.5, 2 / 3))
    assert parts[-1] == pytest.approx((1.0, 1.0))
    for _ in range(1_000):
        clock.advance(0.001)
        long.push(batch, 80)
    long.finish()
    assert 32 <= len(long.arrived_parts()) <= 64


class Lane(HandoffSlot[_InFlight]):
    """Keeps the seconds of each rest, and does not rest. `blocked_after`: then the reader waits for room."""

    def __init__(self, clock: VirtualClock, blocked_after: float | None = None) -> None:
        super().__init__(clock=clock)
        self.clock, self.blocked_after = clock, blocked_after
        self.seconds: list[float] = []

    def rest(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        if self.blocked_after is None or self.blocked_after > seconds:
            return False
        self.clock.advance(self.blocked_after)
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    clock = VirtualClock(100.0)
    monkeypatch.setattr("spark_channel.pipeline.transfer.SYSTEM_CLOCK", clock)
    return clock


def limited() -> GroupTransfer:
    return transfer(MemoryReader(), Table(), group(4, 1), limiter=RateLimiter(10))


def came(begun: float, seconds: float, rows: int = 10) -> _InFlight:
    task = _InFlight(Task(0, Split({})), MemoryChannel(), Counters(0, 0), rows=rows)
    task.begun, task.arrived_seconds = begun, seconds
    return task


def test_rows_of_all_tasks_are_brought_to_a_target_as_long_after_they_came(
    clock: VirtualClock,
) -> None:
    """What the limit let through evenly arrives evenly, also where the next task came in half the time."""
    moving, lane = limited(), Lane(clock)
    for seconds in (2.0, 1.0, 1.0, 30.0):
        begun = clock.now()
        clock.advance(seconds)
        moving._await_turn(came(begun, seconds), lane)
    assert lane.seconds == pytest.approx([0.98, 0.96])


def test_one_slow_task_does_not_make_all_later_ones_wait(clock: VirtualClock) -> None:
    """The first that keeps the reader from its next tasks ends the wait, its own and theirs."""
    moving, lane = limited(), Lane(clock, blocked_after=0.3)
    for seconds in (3.0, *[0.1] * 39):
        begun = clock.now()
        clock.advance(seconds)
        moving._await_turn(came(begun, seconds), lane)
    assert lane.seconds == pytest.approx([2.898])
    assert clock.now() - 100.0 == pytest.approx(3.0 + 39 * 0.1 + 0.3)


def test_the_wait_becomes_shorter_with_the_time_that_passes(clock: VirtualClock) -> None:
    """Not with the time of the tasks alone, of which short ones would be waited for ever after."""
    moving, lane = limited(), Lane(clock)
    clock.advance(3.0)
    moving._await_turn(came(100.0, 3.0), lane)
    clock.advance(100.0)
    moving._await_turn(came(clock.now() - 0.1, 0.1), lane)
    assert lane.seconds == pytest.approx([0.9])


def test_tasks_without_rows_and_those_of_which_no_two_fit_into_the_channel_do_not_wait(
    clock: VirtualClock,
) -> None:
    """Nor does a later one wait because they were slow."""
    moving, lane = limited(), Lane(clock)
    for rows in (0, 30):
        moving._await_turn(came(clock.now(), 60.0, rows), lane)
    moving._await_turn(came(clock.now() - 0.1, 0.1), lane)
    assert lane.seconds == []


def test_the_wait_for_the_target_is_in_the_trace(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, lane, task = limited(), Lane(clock), came(100.0, 2.0)
    monkeypatch.setattr(lane, "rest", lambda _seconds: threading.Event().wait(0.05))
    moving._await_turn(task, lane)
    assert trace_of(task.counters.snapshot(), 1).phases["wait"] >= 0.05


def test_a_group_that_failed_while_a_task_waited_does_not_begin_to_end_it(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, lane = limited(), Lane(clock)

    def fail(_seconds: float) -> bool:
        moving.cancel(SourceError("gone"))
        return False

    monkeypatch.setattr(lane, "rest", fail)
    with pytest.raises(SourceError, match="gone"):
        moving._await_turn(came(100.0, 2.0), lane)


def test_a_rest_lasts_until_the_giver_waits_for_room_or_the_slot_is_cancelled() -> None:
    clock = VirtualClock()
    for end, is_blocked in (("gives", True), ("cancels", False), ("time", False)):
        lane, answers = HandoffSlot[int](clock=clock), list[bool]()
        lane.give(1)
        rests = threading.Thread(target=lambda lane=lane, to=answers: to.append(lane.rest(60.0)))
        rests.start()
        clock.wait_until_blocked(rests)
        gives = threading.Thread(target=lane.give, args=(2,))
        if end == "gives":
            gives.start()
        elif end == "cancels":
            lane.cancel()
        else:
            clock.advance(60.0)
        rests.join(30)
        assert answers == [is_blocked]
        if end == "gives":
            assert lane.rest(60.0)
            lane.take()
            gives.join(30)


def test_a_task_that_cannot_be_spread_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []

    def rest(_lane: object, seconds: float) -> bool:
        rests.append(seconds)
        return False

    monkeypatch.setattr(HandoffSlot, "rest", rest)

    def stall(split: Split, _number: int) -> None:
        threading.Event().wait(0.3 if split.params["number"] == 0 else 0.0)

    for spreads in (False, True):
        target = Table()
        target.spreads = spreads
        reader = MemoryReader(1, before=stall)
        transfer(reader, target, group(9, 1), limiter=RateLimiter(10_000)).run()
        assert bool(rests) == spreads


def test_an_error_of_a_source_ends_all_lanes() -> None:
    def broken(split: Split, number: int) -> None:
        if split.params["number"] == 2 and number == 1:
            raise SourceError("gone")

    writer = Table()
    with pytest.raises(SourceError, match="gone"):
        transfer(MemoryReader(before=broken), writer, group(40, 4)).run()
    assert 2 not in writer.rows
    assert len(writer.rows) < 40


def test_an_error_of_the_target_ends_all_lanes_and_readers_that_are_blocked() -> None:
    def full(task: int) -> None:
        if task == 1:
            raise TargetError("disk full")

    writer = Table(before=full)
    counters: dict[int, Counters] = {}

    def count(task: Task) -> Counters:
        return counters.setdefault(task.id, Counters(task.id, 7))

    with pytest.raises(TargetError, match="disk full"):
        transfer(MemoryReader(batches=10_000), writer, group(2, 2), counters=count).run()
    assert counters[1].snapshot().phase is Phase.FAILED
    assert writer.rows == {}


def test_cancelling_wakes_everyone() -> None:
    started = threading.Event()
    writer = Table(before=lambda _task: started.set())
    running = transfer(MemoryReader(batches=1_000_000), writer, group(3, 2))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            running.run()
        except ReadCancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(30)
    running.cancel()
    thread.join(30)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert writer.rows == {}


def test_counters_tell_what_was_read_written_and_dirty() -> None:
    counters = Counters(0, 7)
    steps = [lambda rows: rows.filter(pc.not_equal(rows["n"], 3))]
    running = transfer(
        MemoryReader(batches=2),
        Table(lambda n: n in (5, 17)),
        group(1, 1),
        steps=steps,
        limit=DirtyLimit(2),
        counters=lambda _task: counters,
    )
    (outcome,) = running.run().tasks
    seen = counters.snapshot()
    assert (seen.rows_read, seen.rows_written, seen.dirty_rows, seen.phase) == (
        20,
        17,
        2,
        Phase.DONE,
    )
    assert outcome.receipt is not None
    assert (outcome.receipt.rows, outcome.receipt.dirty_rows) == (17, 2)
    assert [each.row for each in outcome.receipt.dirty_samples] == ['{"n": 5}', '{"n": 17}']
    assert set(seen.waits) >= {"source", "target"}


def test_one_dirty_row_too_many_ends_the_group_without_an_error() -> None:
    writer = Table(lambda n: n % 10 == 3)
    outcome = transfer(MemoryReader(batches=50), writer, group(4, 2), limit=DirtyLimit(20)).run()
    assert "21 rows were refused, and maxDirtyRows is 20" in outcome.stopped
    assert any(each.receipt is None and each.dirty.rows for each in outcome.tasks)
    assert 0 < len(outcome.tasks) < 4


def test_the_job_stops_when_others_have_refused_too_many() -> None:
    budget = DirtyBudget(DirtyLimit(5), lambda: "9 rows were refused, and maxDirtyRows is 5")
    pipeline = prepare((), SCHEMA)
    writer = Table()
    plan = writer.prepare(WriteContext("j"), SCHEMA)
    work = TransferWork(
        (TransferSource(MemoryReader(), pipeline),), ((writer, plan),), "j", 100, 1 << 20
    )
    outcome = GroupTransfer(work, group(3, 2), 7, budget=budget).run()
    assert (outcome.stopped, outcome.tasks) == ("9 rows were refused, and maxDirtyRows is 5", ())
    assert writer.rows == {}


def test_without_leave_a_refused_batch_stops_the_job_and_is_not_tried_again() -> None:
    outcome = transfer(MemoryReader(), Table(lambda n: n == 5), group(1, 1)).run()
    assert "refused among 10" in outcome.stopped
    assert [task.receipt for task in outcome.tasks] == [None]


def test_rows_that_a_step_refuses_count_as_dirty() -> None:
    from spark_channel.transform import Output, Select, Substr

    texts = Select((Output("n", "n", pa.string()),))
    outcome = transfer(
        MemoryReader(batches=2),
        Table(),
        group(1, 1),
        steps=[texts, Substr("n", 1, 1)],
        limit=DirtyLimit(10),
    ).run()
    (task,) = outcome.tasks
    assert task.receipt is not None
    assert (task.receipt.rows, task.receipt.dirty_rows) == (
        20 - task.receipt.dirty_rows,
        task.receipt.dirty_rows,
    )
    stopped = transfer(
        MemoryReader(batches=2), Table(), group(1, 1), steps=[texts, Substr("n", 2, 1)]
    ).run()
    assert "maxDirtyRows is 0" in stopped.stopped


def test_a_permit_is_held_while_a_target_is_open() -> None:
    permits = threading.Semaphore(2)
    writer = Table()
    outcome = transfer(MemoryReader(batches=5), writer, group(12, 6), permit=lambda: permits).run()
    assert len(outcome.tasks) == 12
    assert writer.most_open <= 2


@pytest.mark.parametrize("keeps", [True, False])
def test_a_thread_keeps_what_the_tasks_of_one_target_share(keeps: bool) -> None:
    """Not of each target that it wrote to, and nothing where connections are counted by permits."""
    events: list[str] = []

    class Sharing(Table):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        @contextmanager
        def writing(self) -> Iterator[None]:
            events.append(f"{self.name} begins")
            yield
            events.append(f"{self.name} ends")

    targets = (Sharing("first"), Sharing("second"))
    source = TransferSource(MemoryReader(), prepare((), SCHEMA))
    plans = tuple((each, each.prepare(WriteContext("j"), SCHEMA)) for each in targets)
    work = TransferWork((source,), plans, "j", 100, 1 << 20)
    tasks = tuple(Task(n, TransferSource.wrap(0, Split({"number": n})), n // 2) for n in range(4))
    GroupTransfer(
        work, TaskGroup(0, tasks, 1), 7, budget=DirtyBudget(DirtyLimit()), keeps=keeps
    ).run()
    assert [sorted(each.rows) for each in targets] == [[0, 1], [2, 3]]
    kept = ["first begins", "first ends", "second begins", "second ends"]
    assert events == (kept if keeps else [])


@pytest.mark.parametrize("fails", ["write", "close"])
def test_a_failed_attempt_holds_its_permit_until_it_is_rolled_back(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    @contextmanager
    def permit() -> Iterator[None]:
        events.append("permit")
        try:
            yield
        finally:
            events.append("returned")

    def broken(*_arguments: object) -> None:
        raise TargetError("the connection is lost")

    monkeypatch.setattr(TableTask, fails, broken)
    monkeypatch.setattr(TableTask, "rollback", lambda _task: events.append("rollback"))
    with pytest.raises(TargetError, match="lost"):
        transfer(MemoryReader(), Table(), group(1, 1), permit=permit).run()
    assert events == ["permit", "rollback", "returned"]


def test_batches_of_a_split_come_from_its_own_source() -> None:
    one, two = MemoryReader(batches=1), MemoryReader(batches=2)
    pipeline = prepare((), SCHEMA)
    writer = Table()
    plan = writer.prepare(WriteContext("j"), SCHEMA)
    sources = (TransferSource(one, pipeline), TransferSource(two, pipeline))
    work = TransferWork(sources, ((writer, plan),), "j", 100, 1 << 20)
    tasks = tuple(Task(n, TransferSource.wrap(n, Split({"number": 0}))) for n in range(2))
    GroupTransfer(work, TaskGroup(0, tasks, 2), 7, budget=DirtyBudget(DirtyLimit())).run()
    assert {task: len(rows) for task, rows in writer.rows.items()} == {0: 10, 1: 20}
    assert batch(0, 10).column(0).to_pylist() == writer.rows[0]
