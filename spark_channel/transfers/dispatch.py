"""Carries out a transfer: to one target, or fanned out to several."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from spark_channel.planning import TransferSpec
from spark_channel.progress import TransferReport
from spark_channel.transfers.options import job_options
from spark_channel.transfers.plan import begin_transfer, open_transfer, tell_experiments
from spark_channel.transfers.run import Transfer
from spark_channel.transfers.task import Engine

__all__ = ["carry_out"]


def carry_out(
    engine: Engine, spec: TransferSpec, job_settings: Mapping[str, Any] | None = None
) -> TransferReport:
    """Run a transfer between two connectors; `job_settings` are options of the whole job beside those of `spec`.

    Raises:
        ChannelError: as `spark_channel.transfer`.
    """
    if spec.targets:
        from spark_channel.transfers.fan_out import fan_out

        return fan_out(engine, spec, job_settings or {})
    job = begin_transfer(job_options(spec, job_settings or {}))
    tell_experiments(spec)
    with ExitStack() as stack:
        opened_transfer = open_transfer(job, engine.parallelism(), stack, here=engine.here())
        return Transfer(engine, opened_transfer).run()
