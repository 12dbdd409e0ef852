"""`run`: DataX's job.json on a Spark session."""

import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from spark_channel.jobs import load_job
from spark_channel.jobs.load import Source
from spark_channel.progress import TransferReport
from spark_channel.spark.transfer import carry_out

__all__ = ["run"]

_log = logging.getLogger(__name__)


def run(
    spark: SparkSession,
    job: Source,
    variables: Mapping[str, Any] | None = None,
    *,
    dirty_rows_path: str | None = None,
    commit: str | None = None,
    transaction: str | None = None,
) -> TransferReport:
    """Carry out a DataX job: a path, the file's text, or its data; `variables` are put in for `${name}`.

    The first entry of `job.content` runs, as in DataX. What of the job has no effect is logged as a
    warning. `dirty_rows_path` keeps refused rows as Parquet; see docs/datax.md for each key. `commit` ("job" or "task")
    and `transaction` ("name:version") count instead of those of `job.setting`.

    Raises:
        JobFileError: the file is broken; names the JSON path, what it got and what it takes.
        ChannelError: as `transfer`.
    """
    loaded = load_job(job, variables, commit=commit, transaction=transaction)
    for warning in loaded.warnings:
        _log.warning(warning)
    more = {} if dirty_rows_path is None else {"dirtyRowsPath": dirty_rows_path}
    return carry_out(spark, loaded.spec, more)
