"""A `commit=task` version that did not end: what the ledger knows of it, and what a run of the same pair is told."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from spark_channel.connectors.contracts import Receipt, Unfinished, WriteContext, WritePlan
from spark_channel.connectors.sql.kept import KeptPlans
from spark_channel.connectors.sql.ledger import LEDGER
from spark_channel.errors import CommitError, TargetError

__all__ = ["KeptLedger", "refuse_half_done", "refuse_two_receipts", "unfinished"]


class KeptLedger(Protocol):
    """What is asked of a ledger here."""

    @property
    def plans(self) -> KeptPlans: ...

    def published_at(self, write: WriteContext | WritePlan) -> str | None: ...

    def half_done(
        self, txn: tuple[str, int] | None, job: str, batch: int | None
    ) -> tuple[str, int, int] | None: ...

    def receipts(self, job: str) -> list[Receipt]:
        """Of each task of a transfer's job that committed."""
        ...


def unfinished(ledger: KeptLedger, context: WriteContext) -> Unfinished | None:
    """The job of the same pair that committed some tasks and did not end."""
    if ledger.published_at(context) is not None:
        return None
    half = ledger.half_done(context.txn, context.job, context.batch)
    if half is None:
        return None
    return Unfinished(half[0], ledger.plans.find(half[0]), tuple(ledger.receipts(half[0])))


def refuse_half_done(ledger: KeptLedger, context: WriteContext) -> None:
    """Hold the pair not to be half done by another job.

    Raises:
        TargetError: it is; says what stands, and what to do.
    """
    half = ledger.half_done(context.txn, context.job, context.batch)
    if half is None or context.txn is None:
        return
    job, tasks, rows = half
    app, version = context.txn
    raise TargetError(
        f"txnVersion {version} of {app!r} is half done: job {job!r} committed {tasks} tasks with {rows} rows "
        "(commit=task) and did not end. A new job cannot tell which rows these were: delete them, and the job's rows "
        f"in {LEDGER}. A transfer with commit=task goes on by itself, where its plan was kept"
    )


def refuse_two_receipts(receipts: Sequence[Receipt]) -> None:
    """Hold each task to have one receipt.

    Raises:
        CommitError: one has two, so that nothing says which rows are meant.
    """
    counts = Counter(receipt.task for receipt in receipts)
    twice = [task for task, count in counts.items() if count > 1]
    if twice:
        raise CommitError(f"two receipts of task {min(twice)}: nothing was published")
