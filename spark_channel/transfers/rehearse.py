"""Checks both ends of a transfer without changing them: what the job would refuse is refused here."""

from contextlib import ExitStack
from dataclasses import replace

from spark_channel.connectors import WriteContext
from spark_channel.planning import TransferSpec
from spark_channel.transfers.options import JobOptions, job_options
from spark_channel.transfers.plan import OpenedTransfer, open_targets, open_transfer, refuse_existing
from spark_channel.transfers.targets import target_options

__all__ = ["rehearse"]


def rehearse(spec: TransferSpec, parallelism: int, held: ExitStack) -> tuple[OpenedTransfer, ...]:
    """Log in at both ends, read the source's schema, plan, and hold the rows against the targets' columns and rights.

    Scripts are not run: a table that `preSql` or `startSql` would make is not there.

    Raises:
        ChannelError: what a run would be refused for.
    """
    if spec.targets:
        jobs = [target_options(spec, number, {}) for number in range(len(spec.targets))]
        every = open_targets(spec, jobs, parallelism, held)
    else:
        every = (open_transfer(_without_script(job_options(spec, {})), parallelism, held),)
    for opened in every:
        options = opened.options
        commit = options.commit or (options.dirty_commit if options.tolerates_dirty_rows else None)
        context = WriteContext(
            job="rehearsal",
            commit=commit,
            overwrite=opened.spec.save_mode == "overwrite",
            text_lengths=opened.text_lengths,
            reads=opened.reads(),
        )
        for writer in opened.writers:
            if opened.spec.save_mode == "errorIfExists":
                refuse_existing(writer, opened)
            writer.rehearse(context, opened.schema)
    return every


def _without_script(job: JobOptions) -> JobOptions:
    """`startSql` is for those who run the job."""
    writer = job.spec.writer
    options = {key: value for key, value in writer.options.items() if key.lower() != "startsql"}
    parts = tuple(
        replace(
            part, options={key: value for key, value in part.options.items() if key.lower() != "startsql"}
        )
        for part in writer.parts
    )
    return replace(job, spec=replace(job.spec, writer=replace(writer, options=options, parts=parts)))
