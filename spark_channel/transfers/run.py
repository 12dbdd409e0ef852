"""Runs one transfer from the prepared target to the report, with any engine."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spark_channel.clock import utc_now
from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer
from spark_channel.connectors.base.claims import Follows
from spark_channel.connectors.base.contract import is_row_refusal
from spark_channel.errors import ChannelError, CommitError, DirtyRowsError, LimitError
from spark_channel.limits import StaticShare
from spark_channel.pipeline import DirtyStore, GroupOutcome, TaskOutcome, TransferWork
from spark_channel.pipeline.dirty import dirty_row_totals, merged_reasons, tell_refused, too_many
from spark_channel.plain_text import log_of
from spark_channel.progress import JobColumn, JobSpec, Phase, TransferReport
from spark_channel.progress.report import grouped
from spark_channel.service import ServiceAddress, ServiceControl
from spark_channel.service.launch import JobReporter, reason_of
from spark_channel.transfers.limits import is_limited, static_of_spec, static_shares, told_static
from spark_channel.transfers.plan import (
    OpenedTransfer,
    left_out_of,
    path_of,
    refuse_existing,
    renamed_of,
)
from spark_channel.transfers.resume import job_of, plan_text, transaction_of
from spark_channel.transfers.task import Engine, GroupRunner

__all__ = [
    "Transfer",
    "job_name",
]


_log = log_of(__name__)

_MANY_ROWS = 50_000
"""An index of fewer rows is there before a progress line is drawn."""


class Transfer:
    """One run, from the prepared target to the report."""

    def __init__(self, engine: Engine, opened: OpenedTransfer, job: str | None = None) -> None:
        self._engine = engine
        self._opened = opened
        self.job = job or job_name(opened.options.job_id)
        self._options = opened.options
        self._started = utc_now()
        self.service = self._reach_service()
        self._plans: list[WritePlan] = []
        self.dirty_store: DirtyStore | None = None
        self._reporter = JobReporter(self.service, self.job)
        self._receipts: list[Receipt] = []
        self._left: int | None = 0
        """Rows that stay in the target of a run that failed; None = as the tasks have counted."""
        self._dirty = 0
        self._dirty_reasons: dict[str, int] = {}
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
            self.dirty_store,
        )
        shares = self.shares()
        runner = GroupRunner(work, spec, self.service, opened.limits.address, shares)
        try:
            self.begin(spec)
            with self._engine.named(spec.source, spec.target):
                outcomes = self._engine.run(runner, opened.plan.groups, self.job)
            return self.publish(spec, outcomes)
        except BaseException as error:
            own = self.fail(error)
            if own is error:
                raise
            raise own from error

    def prepare(self) -> bool:
        """Claim the targets; False when all of them are published already.

        Raises:
            ChannelError: what a target refuses; nothing is left of this run then.
        """
        try:
            self._prepare()
        except BaseException:
            self._abort(None)
            raise
        published = {
            number for number, plan in enumerate(self._plans) if plan.published_at is not None
        }
        if len(published) == len(self._plans):
            return False
        if published:
            self._opened = self._opened.without(published)
        return True

    def targets(self) -> tuple[tuple[Writer, WritePlan], ...]:
        """The writers with their plans, after `prepare`."""
        return tuple(zip(self._opened.writers, self._plans, strict=True))

    def begin(self, spec: JobSpec) -> None:
        """Open the job at the service."""
        self._reporter.open(spec)

    def publish(self, spec: JobSpec, outcomes: Sequence[GroupOutcome]) -> TransferReport:
        """Commit what the task groups have written.

        Raises:
            ChannelError: rows are missing, too many were refused, or a target does not publish; then call `fail`.
        """
        self.judge(outcomes)
        return self.commit(spec)

    def receive(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Before `fail`, of a target that was left behind: what it has committed by task stays in it."""
        self._receipts = [
            task.receipt
            for outcome in outcomes
            for task in outcome.tasks
            if task.receipt is not None
        ]

    def judge(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Check that the outcomes are complete and clean enough to be published."""
        tasks = self._first_of_each(outcomes)
        self._receipts = [
            *self._committed(tasks),
            *(task.receipt for task in tasks if task.receipt is not None),
        ]
        self._dirty = self._judge(outcomes, tasks, self._receipts)
        shares = self.shares()
        static = told_static(
            sum(outcome.static for outcome in outcomes),
            len(outcomes),
            shares[0] if shares else None,
        )
        if static:
            _log.warning("job %s: %s", self.job, static)
        self._reporter.enter(Phase.PUBLISHING, limit=static)

    def commit(self, spec: JobSpec) -> TransferReport:
        """Publish what `judge` has let pass."""
        receipts = self._commit(self._receipts)
        rows, nbytes = (
            sum(receipt.rows for receipt in receipts),
            sum(receipt.nbytes for receipt in receipts),
        )
        self._reporter.enter(Phase.DONE, rows=rows)
        return self._report(spec, rows, nbytes, self._dirty)

    def fail(self, error: BaseException) -> BaseException:
        """Remove the staged rows, report the failure, and return the error to raise (spark-channel's, if any)."""
        own = self._engine.own_error(error)
        self._left = self._abort(self._receipts)
        self._reporter.enter(Phase.FAILED, error=reason_of(own or error), rows=self._left)
        return own or error

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
            _log.warning("progress is not shown", exc_info=True)
            return None

    def shares(self) -> list[StaticShare | None]:
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

    def _prepare(self) -> None:
        opened, options = self._opened, self._options
        if opened.spec.save_mode == "errorIfExists" and opened.begun is None:
            for writer in opened.writers:
                refuse_existing(writer, opened)
        path = options.dirty_rows_path
        if path is not None:
            self.dirty_store = DirtyStore.prepare(path, self.job, opened.target)
        begun, stream = opened.begun, opened.spec.stream
        commit = options.commit or (options.dirty_commit if options.tolerates_dirty_rows else None)
        (native, why), reads = opened.native_rows(), opened.reads()
        for number, writer in enumerate(opened.writers):
            context = WriteContext(
                job=job_of(self.job, number),
                commit=commit if begun is None else "task",
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
                gathers=(opened.spec.channels or 1) == 1,
            )
            replaced = writer.foreign_content(opened.schema) if context.overwrite else ""
            plan = writer.prepare(context, opened.schema)
            self._plans.append(plan)
            if replaced and plan.published_at is None:
                _log.warning("job %s replaces %s in %s", self.job, replaced, opened.target)
        if self._plans[0].published_at is None:
            self._path = path_of(native, why, self._plans[0])
        for source in opened.sources:
            source.reader.native = self._plans[0].native
        if begun is None and transaction_of(options) is not None:
            self._keep()  # a run that continues follows the plan that is kept

    def _keep(self) -> None:
        """With a transaction pair, a transfer that commits by task can go on after it has failed."""
        opened = self._opened
        kept = [
            (writer, plan)
            for writer, plan in zip(opened.writers, self._plans, strict=True)
            if plan.commit == "task" and plan.published_at is None
        ]
        text = plan_text(opened.spec, opened.sources, opened.plan.tasks) if kept else None
        if text is not None:
            for writer, plan in kept:
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
        opened, options = self._opened, self._options
        made = opened.plan
        return JobSpec(
            "transfer",
            name=options.job_id or "",
            source=opened.source,
            target=opened.target,
            source_columns=JobColumn.from_schema(opened.sources[0].pipeline.schema),
            target_columns=_target_columns(opened),
            part_of=opened.spec.part_of,
            channels=made.channels,
            tasks=len(made.tasks),
            splits=len(made.tasks),
            rows_expected=made.rows,
            bytes_expected=made.nbytes,
            commit=self._plans[0].commit if self._plans else "",
            path=self._path,
            at_least_once=any(plan.at_least_once for plan in self._plans),
            **opened.limits.of_spec(per_mark=opened.per_mark),
            **static_of_spec(
                next(iter(self.shares()), None),
                len(made.groups),
                self._engine.slots(),
                one_host=self._engine.one_host,
            ),
            max_connections=self._max_connections(),
            max_dirty_rows=options.most_dirty_rows,
            max_dirty_fraction=options.max_dirty_fraction,
            where=opened.target,
            stall_timeout=options.stall_timeout,
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

    def _judge(
        self,
        outcomes: Sequence[GroupOutcome],
        tasks: Sequence[TaskOutcome],
        receipts: Sequence[Receipt],
    ) -> int:
        """Publish the refused rows, and count them.

        Raises:
            DirtyRowsError: they are too many.
        """
        dirty = sum(
            task.dirty.rows if task.receipt is None else task.receipt.dirty_rows for task in tasks
        )
        samples = (
            sample
            for task in tasks
            for sample in (
                task.dirty.samples if task.receipt is None else task.receipt.dirty_samples
            )
        )
        self._dirty_reasons = merged_reasons(
            task.dirty.reasons if task.receipt is None else task.receipt.dirty_reasons
            for task in tasks
        )
        place = self._options.dirty_rows_path or ""
        tell_refused(self.job, samples, dirty, place, self._dirty_reasons)
        stopped = next((outcome.stopped for outcome in outcomes if outcome.stopped), "")
        why = stopped or too_many(self._options, dirty, receipts)
        if self.dirty_store is not None:
            self.dirty_store.publish([task.dirty for task in tasks])
        if why:
            raise DirtyRowsError(
                f"{why}. {dirty_row_totals(self._plans[0], self._opened.target, receipts)}"
            )
        return dirty

    def _commit(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Return the receipts of the rows that this run has published."""
        published: list[Receipt] = []
        for number, (writer, plan) in enumerate(
            zip(self._opened.writers, self._plans, strict=True)
        ):
            own = [receipt for receipt in receipts if self._target_of(receipt) == number]
            rows = sum(receipt.rows for receipt in own)
            if rows >= _MANY_ROWS:
                writer.on_build = partial(self._tell_of_build, rows)
            try:
                if writer.commit(plan, own) is not False:
                    published += own
            except ChannelError as error:
                if number == 0 and is_row_refusal(writer, error):
                    raise DirtyRowsError(str(error)) from error
                if number == 0:
                    raise
                raise CommitError(
                    f"{error}. The {number} targets before it are published"
                ) from error
        return published

    def _tell_of_build(self, rows: int, what: str) -> None:
        said = f"builds {what} over {grouped(rows)} rows, under no limit" if what else ""
        self._reporter.enter(Phase.PUBLISHING, building=said)

    def _target_of(self, receipt: Receipt) -> int:
        return self._opened.target_of(receipt.task)

    def _abort(self, receipts: Sequence[Receipt] | None) -> int | None:
        """Remove what was staged; an error here must not hide the one that led to it.

        Returns how many rows stay, by the receipts or by what the targets record; None = not known.
        """
        stay: int | None = 0
        for number, (writer, plan) in enumerate(
            zip(self._opened.writers, self._plans, strict=False)
        ):
            recorded: Sequence[Receipt] | None = None
            try:
                if plan.published_at is None:
                    recorded = writer.abort(plan, receipts)
            except Exception:
                _log.exception("the staging of job %s was not removed", plan.job)
            if plan.commit != "task" or plan.published_at is not None:
                continue
            known = [receipt for receipt in receipts or () if self._target_of(receipt) == number]
            if not known and (recorded is None or plan.at_least_once):
                stay = None
            elif stay is not None:
                stay += sum(receipt.rows for receipt in known or recorded or ())
        if self.dirty_store is not None:
            try:
                self.dirty_store.drop()
            except Exception:
                _log.exception("the staging of refused rows of job %s was not removed", self.job)
        return stay

    def published_before(self) -> TransferReport:
        plan, stream = self._plans[0], self._opened.spec.stream
        app, version = plan.txn or ("", 0)
        _log.warning(
            "%s was published at %s: nothing written",
            f"transaction id '{app}:{version}'"
            if stream is None
            else f"position {stream.position} of stream {stream.name!r}",
            plan.published_at,
        )
        if self.dirty_store is not None:
            self.dirty_store.drop()
        return self._plain_report(self.spec(), 0, 0, 0)

    def _report(self, spec: JobSpec, rows: int, nbytes: int, dirty: int) -> TransferReport:
        report = None
        if self.service is not None:
            try:
                with ServiceControl(self.service) as control:
                    report = control.report(self.job)
            except LimitError as error:
                _log.warning("the report lacks what the service counted: %s", error)
        report = report or self._plain_report(spec, rows, nbytes, dirty)
        place = self._options.dirty_rows_path or ""
        made = replace(report, rows=rows, bytes=nbytes, rows_dirty=dirty, dirty_rows_path=place)
        writers = self._opened.writers
        return replace(
            made,
            left_out=left_out_of(writers),
            renamed=renamed_of(writers),
            dirty_reasons=self._dirty_reasons,
        )

    def failed_report(self, spec: JobSpec, error: BaseException) -> TransferReport:
        """After `fail`, of a target that was left behind."""
        report = self._report(spec, self._left or 0, 0, 0)
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


def job_name(label: str | None) -> str:
    """A name for one run, unique even when the user gives the same `jobId` twice."""
    unique = uuid.uuid4().hex[:12]
    return f"{label}-{unique}" if label else unique
