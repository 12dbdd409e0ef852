"""Runs a transfer on a Spark session."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from pyspark.sql import SparkSession

from spark_channel.planning import TransferSpec
from spark_channel.progress import TransferReport
from spark_channel.spark.engine import SparkEngine
from spark_channel.spark.session import context_of, directory_of, register
from spark_channel.transfers.carry_out import carry_out as carry_out_on
from spark_channel.transfers.options import job_options
from spark_channel.transfers.plan import begin_transfer
from spark_channel.verification.carry_out import verify_with
from spark_channel.verification.report import VerifyReport
from spark_channel.verification.settings import RepairSettings, VerifySettings
from spark_channel.working_directory import relative_to

__all__ = ["carry_out", "verify"]


def carry_out(
    spark: SparkSession, spec: TransferSpec, more: Mapping[str, Any] | None = None
) -> TransferReport:
    """Run a transfer; `more` are options of the whole job beside those of `spec`. Raises as `transfer`."""
    context = context_of(spark)
    with nullcontext() if context is None else relative_to(directory_of(context)):
        return _carry_out(spark, spec, more)


def _carry_out(
    spark: SparkSession, spec: TransferSpec, more: Mapping[str, Any] | None
) -> TransferReport:
    if not spec.targets and (spec.reader.spark_format or spec.writer.spark_format):
        from spark_channel.spark.frames import copy_frames

        return copy_frames(spark, begin_transfer(job_options(spec, more or {})))
    register(spark)
    return carry_out_on(SparkEngine(spark), spec, more)


def verify(
    spark: SparkSession,
    spec: TransferSpec,
    more: Mapping[str, Any],
    settings: VerifySettings,
    repairs: RepairSettings | None = None,
) -> VerifyReport:
    """Verify by Spark tasks; `more` are options of the whole job. Raises as `spark_channel.verify`."""
    context = context_of(spark)
    with nullcontext() if context is None else relative_to(directory_of(context)):
        register(spark)
        return verify_with(SparkEngine(spark), spec, more, settings, repairs)
