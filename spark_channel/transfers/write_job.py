"""The driver's half of a write, which `df.write`, `writeStream` and `transfer` share. Their tasks stage the rows.

The steps are called in this order: `prepare` claims the targets, and `open` shows the job. The tasks run. `receive`
takes what they hand back, `judge` decides whether it is to be published, and `publish` does it. `fail` follows an error
of any step. Spark calls `prepare` and `publish` in two processes, the second one with a copy of the object.
"""

import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer
from spark_channel.connectors.base.contract import DirtyRow
from spark_channel.errors import ChannelError, CommitError, DirtyRowsError
from spark_channel.options import CommitMode, WriteOptions
from spark_channel.pipeline.dirty import (
    DirtyStore,
    TaskDirtyRows,
    dirty_row_totals,
    merged_reasons,
    too_many,
)
from spark_channel.plain_text import log_of
from spark_channel.progress import JobSpec, Phase
from spark_channel.progress.report import grouped
from spark_channel.service import ServiceAddress
from spark_channel.service.launch import JobReporter

__all__ = ["TaskResult", "WriteJob", "commit_of", "job_name", "transaction_of"]

_log = log_of(__name__)

_MANY_ROWS = 50_000
"""An index of fewer rows is there before a progress line is drawn."""


class TaskResult(Protocol):
    """What a task hands back: its receipt, None when it refused too many rows, and what it refused."""

    @property
    def receipt(self) -> Receipt | None: ...

    @property
    def dirty(self) -> TaskDirtyRows: ...


class WriteJob:
    """One job that writes to one target, or to the parts of one: then task n writes to part n. Picklable.

    `target` names the target for people. `service` may be set until `open`; None = the job is not shown.
    """

    def __init__(
        self,
        job: str,
        writers: Sequence[Writer],
        target: str,
        service: ServiceAddress | None = None,
        plans: Sequence[WritePlan] = (),
    ) -> None:
        self.job = job
        self.writers = tuple(writers)
        self.target = target
        self.service = service
        self.plans = list(plans)
        """Of the writers that are prepared, in their order."""
        self.dirty_store: DirtyStore | None = None
        self.receipts: list[Receipt] = []
        self._refused: list[TaskDirtyRows] = []
        self.dirty = 0
        self.dirty_samples: list[DirtyRow] = []
        self.dirty_reasons: dict[str, int] = {}
        self.targets_published = 0

    @property
    def options(self) -> WriteOptions:
        """The writer's options, which hold those of the whole job."""
        options: WriteOptions = self.writers[0].options
        return options

    @property
    def reporter(self) -> JobReporter:
        return JobReporter(self.service, self.job)

    @property
    def is_published(self) -> bool:
        """Whether an earlier run has published all of it, after `prepare`."""
        return all(plan.published_at is not None for plan in self.plans)

    def prepare(
        self, contexts: Iterable[WriteContext], schema: pa.Schema, *, begins: bool = False
    ) -> None:
        """Claim the targets, a context for each. `begins`: call `Writer.begin`, which a transfer has called before.

        Raises:
            ChannelError: what a target refuses, or the directory for refused rows; nothing is left of this job then.
        """
        path = self.options.dirty_rows_path
        try:
            # The directory of refused rows comes first: where it cannot be written, no target has been claimed.
            if path is not None:
                self.dirty_store = DirtyStore.prepare(path, self.job, self.target)
            for writer, context in zip(self.writers, contexts, strict=True):
                # What an overwrite replaces is named before the claim, with which `commit=task` empties the target.
                replaced = writer.foreign_content(schema) if context.overwrite else ""
                # The user's script runs before the claim, since it may create the table that is claimed.
                if begins:
                    writer.begin()
                # The claim keeps earlier runs of this write from publishing, and tells whether one already has.
                plan = writer.prepare(context, schema)
                self.plans.append(plan)
                if replaced and plan.published_at is None:
                    _log.warning("job %s replaces %s in %s", self.job, replaced, self.target)
        except BaseException:
            # A target that is refused leaves no claim and no staging of those before it.
            self.abort(None)
            raise
        if self.is_published and self.dirty_store is not None:
            self.dirty_store.drop()
            self.dirty_store = None

    def open(self, spec: JobSpec) -> None:
        """Show the job. It comes after `prepare`: what a target refuses never was a job that runs."""
        self.reporter.open(spec)

    def receive(self, results: Sequence[TaskResult], earlier: Sequence[Receipt] = ()) -> None:
        """Take what the tasks hand back; `earlier` receipts are of tasks that an earlier run has committed."""
        self.receipts = [
            *earlier,
            *(result.receipt for result in results if result.receipt is not None),
        ]
        self._refused = [result.dirty for result in results]
        # A receipt has the figures of its own attempt; a task without one stopped, and has none but these.
        self.dirty = sum(
            result.dirty.rows if result.receipt is None else result.receipt.dirty_rows
            for result in results
        )
        self.dirty_samples = [
            sample
            for result in results
            for sample in (
                result.dirty.samples if result.receipt is None else result.receipt.dirty_samples
            )
        ]
        self.dirty_reasons = merged_reasons(
            result.dirty.reasons if result.receipt is None else result.receipt.dirty_reasons
            for result in results
        )

    def judge(self, stopped: str = "") -> None:
        """Publish the refused rows, and check that they are few enough; `stopped`: why a task stopped the job.

        Raises:
            DirtyRowsError: they are too many; then call `fail`.
        """
        reason = stopped or too_many(self.options, self.dirty, self.receipts)
        # Refused rows are published also where they end the job: then above all its user wants to read them.
        if self.dirty_store is not None:
            self.dirty_store.publish(self._refused)
        if reason:
            raise DirtyRowsError(
                f"{reason}. {dirty_row_totals(self.plans[0], self.target, self.receipts)}"
            )

    def publish(self) -> list[Receipt]:
        """Commit what the tasks have staged. Returns the receipts of the rows that this run has added.

        Raises:
            ChannelError: a target does not publish; then call `fail`.
        """
        published: list[Receipt] = []
        for number, (writer, plan) in enumerate(zip(self.writers, self.plans, strict=True)):
            receipts = self._of_target(number, self.receipts)
            rows = sum(receipt.rows for receipt in receipts)
            if rows >= _MANY_ROWS:
                writer.on_build = partial(self._tell_of_build, rows)
            try:
                # A second call is a no-op, so a driver that got no answer may call again.
                if writer.commit(plan, receipts) is not False:
                    published += receipts
            except ChannelError as error:
                if number == 0:
                    raise
                raise CommitError(
                    f"{error}. The {number} targets before it are published"
                ) from error
            self.targets_published += 1
        # Last, for whoever sees a job that is done may read its rows.
        self.reporter.enter(Phase.DONE, rows=sum(receipt.rows for receipt in published))
        return published

    def fail(self, receipts: Sequence[Receipt | None] | None, error: str = "") -> int | None:
        """Remove what is staged, and report the failure. Returns how many rows stay; None = not known."""
        # The staging goes first: the report says how many rows stay, which the target knows by then.
        rows = self.abort(receipts)
        self.reporter.enter(Phase.FAILED, error=error, rows=rows)
        return rows

    def abort(self, receipts: Sequence[Receipt | None] | None) -> int | None:
        """Remove what was staged; an error here must not hide the one that led to it.

        `receipts` are None, or contain None, where tasks may have committed whose receipts did not arrive. Returns how
        many rows stay, by the receipts or by what the targets record; None = not known.
        """
        stay: int | None = 0
        complete = [receipt for receipt in receipts or () if receipt is not None]
        if receipts is None or len(complete) < len(receipts):
            complete = []
        for number, (writer, plan) in enumerate(zip(self.writers, self.plans, strict=False)):
            recorded: Sequence[Receipt] | None = None
            try:
                if plan.published_at is None:
                    recorded = writer.abort(plan, receipts)
            except Exception:
                _log.exception("the staging of job %s was not removed", plan.job)
            if plan.commit != "task" or plan.published_at is not None:
                continue
            received = self._of_target(number, complete)
            if not received and (recorded is None or plan.at_least_once):
                stay = None
            elif stay is not None:
                stay += sum(receipt.rows for receipt in received or recorded or ())
        if self.dirty_store is not None:
            try:
                self.dirty_store.drop()
            except Exception:
                _log.exception("the staging of refused rows of job %s was not removed", self.job)
        return stay

    def _of_target(self, number: int, receipts: Sequence[Receipt]) -> list[Receipt]:
        """The receipts of a target, by its number."""
        if len(self.writers) == 1:
            return list(receipts)
        return [
            receipt for receipt in receipts if receipt.task == number
        ]  # see `planning.merge_tasks`

    def _tell_of_build(self, rows: int, index: str) -> None:
        text = f"builds {index} over {grouped(rows)} rows, under no limit" if index else ""
        self.reporter.enter(Phase.PUBLISHING, building=text)


def commit_of(options: WriteOptions) -> CommitMode | None:
    """The commit mode that the options ask for; None = the target's own."""
    return options.commit or (options.dirty_commit if options.tolerates_dirty_rows else None)


def transaction_of(options: WriteOptions) -> tuple[str, int] | None:
    """The transaction pair that names one write, if the options have one."""
    if options.txn_app_id is None or options.txn_version is None:
        return None
    return options.txn_app_id, options.txn_version


def job_name(label: str | None) -> str:
    """A name for one run, unique even when the user gives the same `jobId` twice."""
    unique = uuid.uuid4().hex[:12]
    return f"{label}-{unique}" if label else unique
