"""Holds a `Writer` to its contract: call `writer_conformance` in a pytest test of your connector."""

import itertools
import multiprocessing
import os
import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from spark_channel.connectors import Receipt, TaskWriter, WriteContext, WritePlan, Writer
from spark_channel.errors import ChannelError
from spark_channel.options import CommitMode
from spark_channel.testing.comparison import expect, held_resources, rows_of, same_rows

__all__ = ["writer_conformance"]


_numbers = itertools.count(1)
_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
_WRITER_WAIT_SECONDS = 60.0
_KILLED = 86
_T = TypeVar("_T")


def writer_conformance(
    make_writer: Callable[[], Writer],
    *,
    read_back: Callable[[], pa.Table | None] | None,
    commits: Sequence[CommitMode] = ("job", "task"),
    ledger: bool = True,
    overwrite: bool = True,
    leftovers: Callable[[], Collection[object]] | None = None,
) -> None:
    """Test the writer that `make_writer` returns against the contract of `Writer`.

    The target accepts rows of `id` (int64) and `name` (string). It may contain rows, or not exist.
    `make_writer` returns a new, picklable writer to the same target each time. `read_back` returns the rows that a
    reader of the target sees, None if the target does not exist; pass None for a target that cannot be read.
    `commits` are the supported commit modes. `ledger`: whether the target remembers a job and a transaction id.
    `overwrite`: whether it can replace rows. `leftovers` returns the present staging, empty if there is none.

    Raises:
        AssertionError: says what the contract requires, and what the writer did.
    """
    for commit in commits:
        kit = _Kit(make_writer, read_back, leftovers, commit)
        kit.publishes_once()
        kit.derives_its_plan_again()
        kit.takes_one_attempt_of_two()
        kit.rolls_back()
        kit.aborts()
        kit.ends_a_task_writer()
        kit.publishes_nothing()
        kit.survives_a_kill()
        if overwrite:
            kit.replaces()
        if ledger:
            kit.knows_a_job_again()
            kit.knows_a_transaction_again()


def _rows(count: int) -> pa.RecordBatch:
    """Rows that no other call gives."""
    ids = list(itertools.islice(_numbers, count))
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([f"name {number}" for number in ids])], schema=_SCHEMA
    )


@dataclass
class _Kit:
    make_writer: Callable[[], Writer]
    read_back: Callable[[], pa.Table | None] | None
    leftovers: Callable[[], Collection[object]] | None
    commit: CommitMode
    attempts: Iterator[int] = field(default_factory=lambda: itertools.count(100))

    def context(
        self, *, overwrite: bool = False, txn: tuple[str, int] | None = None
    ) -> WriteContext:
        return WriteContext(
            job=f"conformance-{uuid.uuid4().hex}", commit=self.commit, overwrite=overwrite, txn=txn
        )

    def begin(self, context: WriteContext | None = None) -> tuple[Writer, WritePlan]:
        """A writer and its plan, both as they arrive in another process."""
        writer = self.make_writer()
        plan = writer.prepare(context or self.context(), _SCHEMA)
        expect(
            plan.commit == self.commit,
            f"asked for commit={self.commit}, the plan says {plan.commit}",
        )
        expect(plan.schema.equals(_SCHEMA), "the plan's schema is not the one given to prepare()")
        return _travel(writer), _travel(plan)

    def run(self, writer: Writer, plan: WritePlan, task: int, *batches: pa.RecordBatch) -> Receipt:
        attempt = next(self.attempts)
        task_writer = writer.open(plan, task, attempt)
        for batch in batches:
            task_writer.write(batch)
        task_writer.flush()
        receipt = _travel(task_writer.close())
        rows = sum(batch.num_rows for batch in batches)
        expect(
            (receipt.task, receipt.attempt) == (task, attempt),
            f"{receipt} is not of {task}, {attempt}",
        )
        expect(receipt.rows == rows, f"a receipt says {receipt.rows} rows; {rows} were written")
        expect(receipt.nbytes >= 0, f"a receipt says {receipt.nbytes} bytes")
        return receipt

    def seen(self) -> Counter[str]:
        table = self.read_back() if self.read_back is not None else None
        return Counter() if table is None else rows_of(table.select(_SCHEMA.names))

    def expect_seen(self, expected: Counter[str], when: str) -> None:
        if self.read_back is not None:
            same_rows(self.seen(), expected, f"commit={self.commit}, {when}")

    def expect_unseen(self, before: Counter[str], when: str) -> None:
        """Rows of `commit=job` are not seen before the commit."""
        if self.commit == "job":
            self.expect_seen(before, when)

    def expect_clean(self, when: str) -> None:
        leftovers = self.leftovers() if self.leftovers is not None else ()
        expect(
            not leftovers, f"commit={self.commit}, {when}: staging still holds {list(leftovers)}"
        )

    def publishes_once(self) -> None:
        before, held_before = self.seen(), held_resources()
        one, two, three = _rows(5), _rows(1), _rows(7)
        writer, plan = self.begin()
        receipts = [
            self.run(writer, plan, 0, one, two),
            self.run(writer, plan, 1),
            self.run(writer, plan, 2, three),
        ]
        self.expect_unseen(before, "before the commit")
        after = before + rows_of([one, two, three])
        writer.commit(plan, receipts)
        self.expect_seen(after, "after the commit")
        writer.commit(plan, receipts)
        self.expect_seen(after, "after a second commit")
        _travel(self.make_writer()).commit(plan, receipts)
        self.expect_seen(after, "after a third commit, by a new writer")
        writer.abort(plan, receipts)
        writer.abort(plan, None)
        self.expect_seen(after, "after abort() of what was published")
        self.expect_clean("after a commit")
        held_before.expect_no_more("after a commit")

    def derives_its_plan_again(self) -> None:
        before, rows, context = self.seen(), _rows(4), self.context()
        writer, plan = self.begin(context)
        receipt = self.run(writer, plan, 0, rows)
        other, again = self.begin(context)
        other.commit(again, [receipt])
        self.expect_seen(before + rows_of([rows]), "committed with a plan that was derived again")
        self.expect_clean("after that commit")

    def knows_a_job_again(self) -> None:
        """A driver that dies after the commit, before it is noted anywhere, comes back with the same job."""
        before, rows, context = self.seen(), _rows(3), self.context()
        writer, plan = self.begin(context)
        writer.commit(plan, [self.run(writer, plan, 0, rows)])
        writer, plan = self.begin(context)
        expect(plan.published_at, "a published job is not known again")
        attempt = writer.open(plan, 0, next(self.attempts))
        attempt.write(_rows(2))
        writer.commit(plan, [_travel(attempt.close())])
        writer.abort(plan, None)
        self.expect_seen(before + rows_of([rows]), "after the same job again")
        self.expect_clean("after the same job again")

    def takes_one_attempt_of_two(self) -> None:
        before, rows = self.seen(), _rows(6)
        writer, plan = self.begin()
        first, second = next(self.attempts), next(self.attempts)
        one, two = writer.open(plan, 0, first), writer.open(plan, 0, second)
        one.write(rows)
        two.write(rows)
        receipts = [_travel(one.close()), _travel(two.close())]
        expect(
            all(receipt.rows == rows.num_rows for receipt in receipts),
            f"rows of receipts: {receipts}",
        )
        writer.commit(plan, [receipts[1]])
        self.expect_seen(before + rows_of([rows]), "after two attempts of one task")
        self.expect_clean("after two attempts of one task")

    def rolls_back(self) -> None:
        before, lost, rows = self.seen(), _rows(3), _rows(2)
        writer, plan = self.begin()
        held_before = held_resources()
        attempt = writer.open(plan, 0, next(self.attempts))
        attempt.write(lost)
        attempt.flush()
        attempt.rollback()
        attempt.rollback()
        writer.open(plan, 1, next(self.attempts)).rollback()
        held_before.expect_no_more("after rollback()")
        self.expect_seen(before, "after rollback()")
        writer.commit(plan, [self.run(writer, plan, 0, rows)])
        self.expect_seen(before + rows_of([rows]), "after a rollback and another attempt")

    def aborts(self) -> None:
        before = self.seen()
        for receipts_known in (True, False):
            writer, plan = self.begin()
            running = writer.open(plan, 1, next(self.attempts))
            running.write(_rows(3))
            receipt = self.run(writer, plan, 0, _rows(4)) if self.commit == "job" else None
            writer.abort(plan, [receipt, None] if receipts_known else None)
            writer.abort(plan, None)
            _travel(self.make_writer()).abort(plan, None)
            self.expect_seen(before, "after abort()")
            _end(running)
            writer.abort(plan, None)
            self.expect_seen(before, "after abort(), and the end of a task that was still running")
            self.expect_clean("after abort()")

    def ends_a_task_writer(self) -> None:
        before, rows = self.seen(), _rows(2)
        writer, plan = self.begin()
        attempt = writer.open(plan, 0, next(self.attempts))
        attempt.write(rows)
        receipt = _travel(attempt.close())
        for name, call in (("write()", lambda: attempt.write(rows)), ("close()", attempt.close)):
            try:
                call()
            except ChannelError:
                continue
            raise AssertionError(f"{name} after close() went through: an attempt ends once")
        writer.commit(plan, [receipt])
        self.expect_seen(before + rows_of([rows]), "after close()")

    def publishes_nothing(self) -> None:
        before = self.seen()
        writer, plan = self.begin()
        writer.commit(plan, [])
        self.expect_seen(before, "after a job without tasks")
        writer, plan = self.begin()
        writer.commit(plan, [self.run(writer, plan, task) for task in range(2)])
        self.expect_seen(before, "after tasks without rows")
        self.expect_clean("after tasks without rows")

    def survives_a_kill(self) -> None:
        before, rows = self.seen(), _rows(5)
        writer, plan = self.begin()
        self.kill_mid_write(writer, plan, 0)
        writer.commit(plan, [self.run(writer, plan, 0, rows), self.run(writer, plan, 1)])
        after = before + rows_of([rows])
        self.expect_seen(after, "after an attempt that was killed, and another one")
        self.expect_clean("after a killed attempt and a commit")
        writer, plan = self.begin()
        self.kill_mid_write(writer, plan, 0)
        writer.abort(plan, None)
        self.expect_seen(after, "after an attempt that was killed, and abort()")
        self.expect_clean("after a killed attempt and abort()")

    def kill_mid_write(self, writer: Writer, plan: WritePlan, task: int) -> None:
        process = _fresh_processes().Process(
            target=_write_and_die,
            args=(dict(os.environ), writer, plan, task, next(self.attempts), _rows(3)),
        )
        process.start()
        process.join(_WRITER_WAIT_SECONDS)
        code = process.exitcode
        process.kill()
        process.join()
        expect(code == _KILLED, f"an attempt in another process ended with exit code {code}")

    def replaces(self) -> None:
        rows = _rows(3)
        writer, plan = self.begin(self.context(overwrite=True))
        receipt = self.run(writer, plan, 0, rows)
        writer.commit(plan, [receipt])
        self.expect_seen(rows_of([rows]), "after overwrite")
        before = self.seen()
        if self.commit == "job":
            writer, plan = self.begin(self.context(overwrite=True))
            self.run(writer, plan, 0, _rows(2))
            self.expect_seen(before, "before the commit of an overwrite")
            writer.abort(plan, None)
            self.expect_seen(before, "after abort() of an overwrite")

    def knows_a_transaction_again(self) -> None:
        before, rows = self.seen(), _rows(3)
        txn = (f"conformance-{uuid.uuid4().hex}", 7)
        writer, plan = self.begin(self.context(txn=txn))
        expect(plan.published_at is None, "a new transaction pair is said to be published")
        writer.commit(plan, [self.run(writer, plan, 0, rows)])
        after = before + rows_of([rows])
        self.expect_seen(after, "after a transaction pair")
        writer, plan = self.begin(self.context(txn=txn))
        expect(plan.published_at, "a published transaction pair is not known again")
        attempt = writer.open(plan, 0, next(self.attempts))
        attempt.write(_rows(2))
        writer.commit(plan, [_travel(attempt.close())])
        writer.abort(plan, None)
        self.expect_seen(after, "after the same transaction pair again")
        self.expect_clean("after the same transaction pair again")
        writer, plan = self.begin(self.context(txn=(txn[0], 8)))
        expect(
            plan.published_at is None,
            "the next version of a transaction pair is said to be published",
        )
        writer.abort(plan, None)


def _travel(thing: _T) -> _T:
    """`thing` as it arrives in another process."""
    return pickle.loads(pickle.dumps(thing))  # type: ignore[no-any-return]  # noqa: S301 - bytes of this line


def _end(attempt: TaskWriter) -> None:
    """A task that runs on after its job was aborted: it may fail, and then it is rolled back."""
    try:
        attempt.write(_rows(2))
        attempt.flush()
    except ChannelError:
        pass
    attempt.rollback()


def _fresh_processes() -> Any:
    """Processes that share nothing with this one, forked from one that may have imported what they need.

    They have the environment that this one had when the first of them was started.
    """
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")


def _write_and_die(
    environment: Mapping[str, str],
    writer: Writer,
    plan: WritePlan,
    task: int,
    attempt: int,
    batch: pa.RecordBatch,
) -> None:
    """Runs in a separate process, and ends it as SIGKILL would: no `finally`, nothing flushed."""
    os.environ.clear()
    os.environ.update(environment)
    task_writer = writer.open(plan, task, attempt)
    task_writer.write(batch)
    task_writer.flush()
    task_writer.write(batch)
    os._exit(_KILLED)
