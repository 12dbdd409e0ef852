"""Refused rows of a job: opened on the driver, counted in the tasks, judged before the rows are published."""

import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer
from spark_channel.connectors.base.contract import DirtyRow
from spark_channel.options import WriteOptions
from spark_channel.pipeline import DirtyBudget, DirtyStore, dirty_limit_of

if TYPE_CHECKING:
    from spark_channel.transfers.task import TaskServiceClient

__all__ = ["dirty_budget", "dirty_row_totals", "prepare_write", "tell_refused", "too_many"]

_log = logging.getLogger(__name__)
_TOLD = 10
"""Refused rows that the log shows."""


def prepare_write(
    writer: Writer, context: WriteContext, schema: pa.Schema, target: str
) -> tuple[WritePlan, DirtyStore | None]:
    """Driver: the writer's plan, and where refused rows go when `dirtyRowsPath` names a place.

    Raises:
        ChannelError: what `Writer.prepare` raises, for either of the two.
    """
    path = writer.options.dirty_rows_path
    store = None if path is None else DirtyStore.prepare(path, context.job, target)
    try:
        writer.begin()
        plan = writer.prepare(context, schema)
    except BaseException:
        if store is not None:
            store.drop()
        raise
    if plan.published_at is not None and store is not None:
        store.drop()
        store = None
    return plan, store


def dirty_budget(link: "TaskServiceClient", options: WriteOptions) -> DirtyBudget:
    """Task: what its attempts may refuse; its first `check` knows what the job has refused before."""
    limit = dirty_limit_of(options)
    place = options.dirty_rows_path
    budget = DirtyBudget(
        limit, link.stop_reason, hint=f". The refused rows are in {place}" if place else ""
    )
    if limit.tolerant and limit.limited:
        link.hear()
    return budget


def too_many(options: WriteOptions, dirty: int, receipts: Sequence[Receipt]) -> str:
    """Driver, at the end: why `dirty` refused rows are too many; empty when they are not."""
    rows = sum(receipt.rows for receipt in receipts)
    return dirty_limit_of(options).exceeded(dirty, dirty + rows, final=True)


def tell_refused(job: str, samples: Iterable[DirtyRow], rows: int, place: str) -> None:
    """Driver: log the first refused rows, each with its reason, and how many there are; nothing without any."""
    if not rows:
        return
    shown = list(islice(samples, _TOLD))
    for sample in shown:
        _log.warning("job %s: refused row %s: %s", job, sample.row, sample.reason)
    where = (
        f"they are in {place}" if place else "option dirtyRowsPath (--dirty-rows-path) keeps them"
    )
    more = f", of which the first {len(shown)} are shown above" if rows > len(shown) else ""
    _log.warning("job %s: %d rows were refused%s; %s", job, rows, more, where)


def dirty_row_totals(plan: WritePlan, target: str, receipts: Sequence[Receipt]) -> str:
    """Return the state of the target of a job that refused too many rows."""
    rows = sum(receipt.rows for receipt in receipts)
    if plan.commit == "task" and rows:
        return f"{rows} rows of the tasks that had committed (commit=task) stay in {target}"
    return f"{target} contains nothing of this job"
