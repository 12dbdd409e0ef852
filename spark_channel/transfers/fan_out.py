"""Carries out a transfer to several targets."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from spark_channel.errors import CommitError, OptionError
from spark_channel.pipeline import FanOutOutcome, FanOutTarget, FanOutWork
from spark_channel.plain_text import log_of
from spark_channel.planning import Target, TransferSpec
from spark_channel.progress import JobSpec, TransferReport
from spark_channel.progress.report import combined_report
from spark_channel.transfers.fan_out_task import FanOutRunner
from spark_channel.transfers.options import target_options
from spark_channel.transfers.plan import (
    OpenedTransfer,
    open_targets,
    tell_experiments,
)
from spark_channel.transfers.resume import job_of
from spark_channel.transfers.run import Transfer
from spark_channel.transfers.task import Engine
from spark_channel.transfers.write_job import job_name
from spark_channel.transform import prepare

__all__ = ["fan_out"]

_log = log_of(__name__)


def fan_out(engine: Engine, spec: TransferSpec, job_settings: Mapping[str, Any]) -> TransferReport:
    """Carry out a transfer to several targets. The report has one for each in `targets`, in their order.

    Raises:
        ChannelError: as `transfer`; the message has the state of the targets that were written before.
    """
    if spec.reader.spark_format:
        raise OptionError(
            f"the reader has format {spec.reader.name!r}, and there are {len(spec.targets)} writers: "
            "a transfer to several targets reads with a connector of spark-channel. "
            "Name one with 'name', or make a transfer for each",
            option="format",
            got=spec.reader.name,
        )
    jobs = [target_options(spec, number, job_settings) for number in range(len(spec.targets))]
    tell_experiments(spec)
    with ExitStack() as stack:
        transfers = open_targets(spec, jobs, engine.parallelism(), stack)
        return _FanOut(engine, spec, transfers).run()


class _FanOut:
    """One run. Targets that may be left behind are published last, so that a failure undoes as much as it can."""

    def __init__(
        self, engine: Engine, spec: TransferSpec, transfers: Sequence[OpenedTransfer]
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._opened = transfers
        self._job = job_name(transfers[0].options.job_id)
        self._copies = [
            Transfer(engine, transfer, job_of(self._job, number))
            for number, transfer in enumerate(transfers)
        ]
        self._reports: dict[int, TransferReport] = {}

    def run(self) -> TransferReport:
        live = self._prepare()
        specs = {number: self._copies[number].spec() for number in live}
        try:
            for number in live:
                self._copies[number].write.open(specs[number])
            if live:
                outcomes = self._move(live, specs)
                self._publish(live, specs, outcomes)
        except BaseException as error:
            channel_error = self._engine.own_error(error) or error
            for number in live:
                if number not in self._reports:
                    self._copies[number].fail(error)
            if channel_error is error:
                raise
            raise channel_error from error
        return combined_report(
            self._job, [self._reports[number] for number in sorted(self._reports)]
        )

    def _prepare(self) -> list[int]:
        """Claim the targets; returns those that are not published yet."""
        live: list[int] = []
        for number, copy in enumerate(self._copies):
            try:
                if copy.prepare():
                    live.append(number)
                else:
                    self._reports[number] = copy.published_before()
            except BaseException as error:
                if self._may_be_left(number, error):
                    self._reports[number] = copy.failed_report(copy.spec(), error)
                    continue
                for target_number in live:
                    self._copies[target_number].fail(error)
                raise
        if (
            not live
            and self._reports
            and all(report.phase == "failed" for report in self._reports.values())
        ):
            raise CommitError(f"no target is left: {self._reports[0].error}")
        return live

    def _move(self, live: Sequence[int], specs: Mapping[int, JobSpec]) -> list[FanOutOutcome]:
        transfer, options = self._opened[0], self._opened[0].options
        branches = tuple(self._branch(number) for number in live)
        work = FanOutWork(
            transfer.sources,
            branches,
            options.capacity_rows,
            options.capacity_bytes,
            options.transaction_rows,
        )
        links = [self._copies[number].link(specs[number]) for number in live]
        targets = ", ".join(specs[number].target for number in live)
        with self._engine.named(transfer.source, targets):
            return self._engine.run(FanOutRunner(work, links), transfer.plan.groups, self._job)

    def _branch(self, number: int) -> FanOutTarget:
        target, copy = self._spec.targets[number], self._copies[number]
        steps = prepare(target.transformers, self._opened[0].sources[0].pipeline.output_schema)
        ((writer, plan),) = copy.targets()
        return FanOutTarget(
            writer,
            plan,
            copy.job,
            steps,
            copy.write.dirty_store,
            target.on_failure,
        )

    def _publish(
        self, live: Sequence[int], specs: Mapping[int, JobSpec], outcomes: Sequence[FanOutOutcome]
    ) -> None:
        """Judge all, then publish all; what fails of those that may be left behind ends nothing but itself."""
        sound: list[int] = []
        for position, number in enumerate(live):
            reason = next(
                (outcome.left[position] for outcome in outcomes if outcome.left[position]), ""
            )
            try:
                if reason:
                    self._copies[number].receive(
                        [outcome.targets[position] for outcome in outcomes]
                    )
                    raise CommitError(f"this target was left out (onFailure=leave): {reason}")
                self._copies[number].judge([outcome.targets[position] for outcome in outcomes])
                sound.append(number)
            except Exception as error:
                self._leave(number, specs[number], error)
        for number in sorted(
            sound, key=lambda target_number: self._target(target_number).on_failure == "leave"
        ):
            try:
                self._reports[number] = self._copies[number].commit(specs[number])
            except Exception as error:
                published = [
                    self._opened[target_number].target
                    for target_number in self._reports
                    if self._reports[target_number].phase == "done"
                ]
                if published:
                    error.add_note(f"published before it: {', '.join(published)}")
                self._leave(number, specs[number], error)
        if not any(report.phase == "done" for report in self._reports.values()):
            raise CommitError(f"no target is left: {next(iter(self._reports.values())).error}")

    def _leave(self, number: int, spec: JobSpec, error: Exception) -> None:
        if not self._may_be_left(number, error):
            raise error
        copy = self._copies[number]
        copy.fail(error)
        self._reports[number] = copy.failed_report(spec, error)
        _log.warning(
            "job %s continues without %s: %s", self._job, self._opened[number].target, error
        )

    def _may_be_left(self, number: int, error: BaseException) -> bool:
        return isinstance(error, Exception) and self._target(number).on_failure == "leave"

    def _target(self, number: int) -> Target:
        return self._spec.targets[number]
