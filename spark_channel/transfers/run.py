"""Runs one transfer from the prepared target to the report, with any engine."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_channel.clock import utc_now
from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer
from spark_channel.connectors.base.claims import Follows
from spark_channel.connectors.base.contract import NativeRows, is_row_refusal
from spark_channel.errors import ChannelError, CommitError, DirtyRowsError, LimitError
from spark_channel.pipeline import GroupOutcome, TaskOutcome, TransferWork
from spark_channel.pipeline.dirty import tell_refused
from spark_channel.plain_text import log_of
from spark_channel.progress import JobColumn, JobSpec, Phase, TransferReport
from spark_channel.service import ServiceAddress, ServiceControl
from spark_channel.service.launch import reason_of
from spark_channel.transfers.job_link import JobLink
from spark_channel.transfers.job_spec import write_spec
from spark_channel.transfers.limits import is_limited, static_of_spec, static_shares, told_static
from spark_channel.transfers.plan import (
    OpenedTransfer,
    left_out_of,
    path_of,
    refuse_existing,
    renamed_of,
)
from spark_channel.transfers.resume import job_of, plan_text
from spark_channel.transfers.task import Engine, GroupRunner
from spark_channel.transfers.write_job import WriteJob, commit_of, job_name, transaction_of

if TYPE_CHECKING:
    from spark_channel.limits import StaticShare

__all__ = ["Transfer"]


_log = log_of(__name__)


class Transfer:
    """One run, from the prepared target to the report."""

    def __init__(self, engine: Engine, opened: OpenedTransfer, job: str | None = None) -> None:
        self._engine = engine
        self._opened = opened
        self.job = job or job_name(opened.options.job_id)
        self._options = opened.options
        self._started = utc_now()
        self.write = WriteJob(self.job, opened.writers, opened.target, self._reach_service())
        self._rows_left: int | None = 0
        """Rows that stay in the target of a run that failed; None = as the tasks have counted."""
        self._path = ""

    def run(self) -> TransferReport:
        if not self.prepare():
            return self.published_before()
        opened, options = self._opened, self._options
        spec = self.spec()
        work = TransferWork(
            opened.sources,
            self.targets(),
            self.job,
            options.capacity_rows,
            options.capacity_bytes,
            options.transaction_rows,
            self.write.dirty_store,
        )
        runner = GroupRunner(work, self.link(spec))
        try:
            self.write.open(spec)
            with self._engine.named(spec.source, spec.target):
                outcomes = self._engine.run(runner, opened.plan.groups, self.job)
            return self.publish(spec, outcomes)
        except BaseException as error:
            channel_error = self.fail(error)
            if channel_error is error:
                raise
            raise channel_error from error

    def prepare(self) -> bool:
        """Claim the targets; False when all of them are published already.

        Raises:
            ChannelError: what a target refuses; nothing is left of this run then.
        """
        opened = self._opened
        # Before the claim, which may create the target.
        if opened.spec.save_mode == "errorIfExists" and opened.begun is None:
            for writer in opened.writers:
                refuse_existing(writer, opened)
        (native, reason), plans = opened.native_rows(), self.write.plans
        self.write.prepare(self._contexts(native), opened.schema)
        if plans[0].published_at is None:
            self._path = path_of(native, reason, plans[0])
        # The target has decided whether it takes the source's bytes as they are.
        for source in opened.sources:
            source.reader.native = plans[0].native
        # A run that continues follows the plan that is kept already.
        if opened.begun is None and transaction_of(self._options) is not None:
            try:
                self._keep()
            except BaseException:
                self.write.abort(None)
                raise
        published = {number for number, plan in enumerate(plans) if plan.published_at is not None}
        if published and not self.write.is_published:
            self._opened = opened.without(published)
        return not self.write.is_published

    def targets(self) -> tuple[tuple[Writer, WritePlan], ...]:
        """The writers with their plans, after `prepare`."""
        return tuple(zip(self.write.writers, self.write.plans, strict=True))

    def link(self, spec: JobSpec) -> JobLink:
        """What the task groups know of the service."""
        return JobLink(
            self.job,
            spec,
            self.write.service,
            self._opened.limits.address,
            self.shares(),
        )

    def publish(self, spec: JobSpec, outcomes: Sequence[GroupOutcome]) -> TransferReport:
        """Commit what the task groups have written.

        Raises:
            ChannelError: rows are missing, too many were refused, or a target does not publish; then call `fail`.
        """
        self.judge(outcomes)
        return self.commit(spec)

    def receive(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Before `fail`, of a target that was left behind: what it has committed by task stays in it."""
        self.write.receipts = [
            task.receipt
            for outcome in outcomes
            for task in outcome.tasks
            if task.receipt is not None
        ]

    def judge(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Check that the outcomes are complete and clean enough to be published."""
        tasks = self._first_of_each(outcomes)
        write = self.write
        # Before any check: of a run that fails one, `fail` reports the rows that its tasks have committed.
        write.receive(tasks, self._committed(tasks))
        place = self._options.dirty_rows_path or ""
        tell_refused(self.job, write.dirty_samples, write.dirty, place, write.dirty_reasons)
        write.judge(next((outcome.stopped for outcome in outcomes if outcome.stopped), ""))
        shares = self.shares()
        static = told_static(
            sum(outcome.static for outcome in outcomes),
            len(outcomes),
            shares[0] if shares else None,
        )
        if static:
            _log.warning("job %s: %s", self.job, static)
        write.reporter.enter(Phase.PUBLISHING, limit=static)

    def commit(self, spec: JobSpec) -> TransferReport:
        """Publish what `judge` has let pass."""
        write = self.write
        try:
            receipts = write.publish()
        except ChannelError as error:
            if not write.targets_published and is_row_refusal(write.writers[0], error):
                raise DirtyRowsError(str(error)) from error
            raise
        rows = sum(receipt.rows for receipt in receipts)
        nbytes = sum(receipt.nbytes for receipt in receipts)
        return self._report(spec, rows, nbytes, write.dirty)

    def fail(self, error: BaseException) -> BaseException:
        """Remove the staged rows, report the failure, and return the error to raise (spark-channel's, if any)."""
        channel_error = self._engine.own_error(error)
        reason = reason_of(channel_error or error)
        self._rows_left = self.write.fail(self.write.receipts, reason)
        return channel_error or error

    def _reach_service(self) -> ServiceAddress | None:
        try:
            return self._engine.service()
        except LimitError:
            shared, counted = (
                self._options.shared_limit is not None,
                self._max_connections() is not None,
            )
            if shared or counted or (is_limited(self._options) and not any(self.shares())):
                raise
            # Each group has its share of the limit without the service: only the progress is missing.
            _log.warning("progress is not shown", exc_info=True)
            return None

    def shares(self) -> "list[StaticShare | None]":
        """Return the share of the limit that each group has when its task does not reach the service."""
        opened = self._opened
        return static_shares(
            opened.limits, opened.plan.groups, self._engine.slots(), per_mark=opened.per_mark
        )

    def _max_connections(self) -> int | None:
        """`maxConnections`, unless so many channels never run at a time: then they need no counting."""
        most, slots = self._options.max_connections, self._engine.slots()
        channels = sorted((group.channels for group in self._opened.plan.groups), reverse=True)
        return None if most is not None and sum(channels[:slots]) <= most else most

    def _contexts(self, native: NativeRows | None) -> Iterator[WriteContext]:
        opened, options = self._opened, self._options
        begun, stream = opened.begun, opened.spec.stream
        reads = opened.reads()
        for number in range(len(opened.writers)):
            yield WriteContext(
                job=job_of(self.job, number),
                commit=commit_of(options) if begun is None else "task",
                overwrite=opened.spec.save_mode == "overwrite",
                txn=transaction_of(options),
                stream=None if stream is None else (stream.name, stream.batch),
                follows=Follows(stream.previous) if stream is not None and stream.chained else None,
                native=native,
                resume=None if begun is None else begun.epochs.get(number),
                text_lengths=opened.text_lengths,
                reads=reads,
                alone=len(opened.plan.tasks) == 1,
                one_pass=opened.one_pass and len(opened.plan.tasks) == 1,
                definition=opened.definition,
                leaves_builds=opened.spec.leaves_builds,
                gathers=True,
            )

    def _keep(self) -> None:
        """With a transaction pair, a transfer that commits by task can go on after it has failed."""
        opened = self._opened
        unfinished = [
            (writer, plan)
            for writer, plan in self.targets()
            if plan.commit == "task" and plan.published_at is None
        ]
        text = plan_text(opened.spec, opened.sources, opened.plan.tasks) if unfinished else None
        if text is not None:
            for writer, plan in unfinished:
                writer.keep(plan, text)

    def _committed(self, tasks: Sequence[TaskOutcome]) -> list[Receipt]:
        """Receipts of an earlier run, of tasks that were not run again."""
        begun = self._opened.begun
        again = {task.task for task in tasks}
        return (
            []
            if begun is None
            else [receipt for receipt in begun.receipts if receipt.task not in again]
        )

    def spec(self) -> JobSpec:
        opened, plan, plans = self._opened, self._opened.plan, self.write.plans
        return write_spec(
            "transfer",
            self._options,
            opened.limits,
            per_mark=opened.per_mark,
            source=opened.source,
            target=opened.target,
            source_columns=JobColumn.from_schema(opened.sources[0].pipeline.schema),
            target_columns=_target_columns(opened),
            part_of=opened.spec.part_of,
            channels=plan.channels,
            tasks=len(plan.tasks),
            splits=len(plan.tasks),
            rows_expected=plan.rows,
            bytes_expected=plan.nbytes,
            commit=plans[0].commit if plans else "",
            path=self._path,
            at_least_once=any(plan.at_least_once for plan in plans),
            max_connections=self._max_connections(),
            where=opened.target,
            **static_of_spec(
                next(iter(self.shares()), None),
                len(plan.groups),
                self._engine.slots(),
                one_host=self._engine.one_host,
            ),
        )

    def _first_of_each(self, outcomes: Sequence[GroupOutcome]) -> list[TaskOutcome]:
        """The first outcome of each task; all tasks have one unless the dirty limit ended the job."""
        first: dict[int, TaskOutcome] = {}
        for outcome in outcomes:
            for task in outcome.tasks:
                first.setdefault(task.task, task)
        if not any(outcome.stopped for outcome in outcomes):
            missing = [task.id for task in self._opened.plan.tasks if task.id not in first]
            if missing:
                raise CommitError(
                    f"task {missing[0]} has no receipt: nothing was published; run the job again"
                )
        return [first[task] for task in sorted(first)]

    def published_before(self) -> TransferReport:
        plan, stream = self.write.plans[0], self._opened.spec.stream
        app, version = plan.txn or ("", 0)
        _log.warning(
            "%s was published at %s: nothing written",
            f"transaction id '{app}:{version}'"
            if stream is None
            else f"position {stream.position} of stream {stream.name!r}",
            plan.published_at,
        )
        return self._plain_report(self.spec(), 0, 0, 0)

    def _report(self, spec: JobSpec, rows: int, nbytes: int, dirty: int) -> TransferReport:
        report = None
        if self.write.service is not None:
            try:
                with ServiceControl(self.write.service) as control:
                    report = control.report(self.job)
            except LimitError as error:
                _log.warning("the report lacks what the service counted: %s", error)
        report = report or self._plain_report(spec, rows, nbytes, dirty)
        return replace(
            report,
            rows=rows,
            bytes=nbytes,
            rows_dirty=dirty,
            dirty_rows_path=self._options.dirty_rows_path or "",
            left_out=left_out_of(self.write.writers),
            renamed=renamed_of(self.write.writers),
            dirty_reasons=self.write.dirty_reasons,
        )

    def failed_report(self, spec: JobSpec, error: BaseException) -> TransferReport:
        """After `fail`, of a target that was left behind."""
        report = self._report(spec, self._rows_left or 0, 0, 0)
        return replace(report, phase=str(Phase.FAILED), error=reason_of(error))

    def _plain_report(self, spec: JobSpec, rows: int, nbytes: int, dirty: int) -> TransferReport:
        return TransferReport(
            job=self.job,
            kind=spec.kind,
            phase=str(Phase.DONE),
            source=spec.source,
            target=spec.target,
            where=spec.where,
            commit=spec.commit,
            path=spec.path,
            started_at=self._started.isoformat(timespec="seconds"),
            seconds=round((utc_now() - self._started).total_seconds(), 3),
            rows=rows,
            bytes=nbytes,
            rows_moved=rows,
            bytes_moved=nbytes,
            rows_dirty=dirty,
            rows_per_second_limit=spec.rows_per_second,
            bytes_per_second_limit=spec.bytes_per_second,
        )


def _target_columns(opened: OpenedTransfer) -> tuple[JobColumn, ...]:
    """The columns that arrive at the target, and which columns of the source each is made of, if the steps say so."""
    flows = opened.sources[0].pipeline.flows()
    if flows is not None and opened.steps is not None:
        further = opened.steps.flows()
        flows = None if further is None else tuple(flow.after(flows) for flow in further)
    if flows is None:
        return JobColumn.from_schema(opened.schema)
    names = opened.sources[0].pipeline.schema.names
    return JobColumn.bounded(
        JobColumn(
            field.name,
            str(field.type),
            tuple(names[number] for number in flow.sources),
            flow.how,
            flow.masked,
        )
        for field, flow in zip(opened.schema, flows, strict=True)
    )
