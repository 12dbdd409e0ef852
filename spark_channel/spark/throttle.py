"""`throttle`: the limit for any DataFrame, whatever source it comes from and sink it goes to."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, is_remote
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructType

from spark_channel.errors import LimitError, OptionError, SchemaError, UnsupportedError
from spark_channel.options import CommonOptions
from spark_channel.pipeline.read import BatchRateLimiter
from spark_channel.plain_text import log_of
from spark_channel.progress import Phase
from spark_channel.service import new_job_id, run_id
from spark_channel.spark.schema import types_inside
from spark_channel.spark.session import context_of, is_local, service_of, session_slots
from spark_channel.spark.worker import HangupWatch, Versioned, pass_of, sent_as_they_come
from spark_channel.transfers.job_link import JobLink
from spark_channel.transfers.job_spec import read_spec
from spark_channel.transfers.limits import JobLimits, is_limited, static_of_spec

__all__ = ["by_number", "throttle"]

_log = log_of(__name__)

_NOT_CARRIED = ("YearMonthIntervalType", "CalendarIntervalType")
"""Types of Spark that `mapInArrow` refuses."""
_BARRIERS = {
    r"\bExchange\b|\bBroadcastExchange\b|\bShuffle": "an exchange (a shuffle, sort or join)",
    r"\bInMemoryTableScan\b|\bInMemoryRelation\b": "a cache",
}
_IN_A_PIPELINE = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"


def throttle(
    df: DataFrame,
    rows_per_second: int | str | None = None,
    bytes_per_second: int | str | None = None,
    shared_limit: str | None = None,
    shared_limit_token: str | None = None,
    limit_fallback: str | None = None,
) -> DataFrame:
    """`df`, whose rows pass no faster than the limit over all its tasks: `df.transform(throttle, "50k")`.

    Bytes are Arrow bytes. `50k`, `64MB`, `64MiB` are understood. The rows, their order within a partition and
    the schema stay. Each action on the result is a job with the whole limit. Spark's `mapInArrow` does it,
    so pandas must be installed on the driver.

    What lies below an exchange or a cache runs at full speed before the first row passes here; a warning
    says so: put the throttle next to the source instead, or use `option("rowsPerSecond")` of this format.

    A streaming DataFrame has the whole limit in each of its batches.

    Raises:
        OptionError: no limit was given, or one that makes no sense.
        SchemaError: a type that `mapInArrow` does not carry; names the column.
        ServiceUnavailableError: the driver's service cannot be started.
        UnsupportedError: `df` is of a classic session, and this process has one of Spark Connect, too; or this is a
            query function of a declarative pipeline.
    """
    settings = {
        "rowsPerSecond": rows_per_second,
        "bytesPerSecond": bytes_per_second,
        "sharedLimit": shared_limit,
        "sharedLimitToken": shared_limit_token,
        "limitFallback": limit_fallback,
    }
    options, _ = CommonOptions.parse(
        {name: value for name, value in settings.items() if value is not None}
    )
    if not is_limited(options):
        raise OptionError(
            "throttle takes rows_per_second, bytes_per_second or shared_limit",
            option="rowsPerSecond",
        )
    if is_remote() and context_of(df.sparkSession) is not None:
        raise UnsupportedError(
            "throttle cannot limit a DataFrame of a classic session in a process that also has a session of Spark "
            "Connect: Spark's mapInArrow takes its columns for those of Spark Connect. Use the option rowsPerSecond of "
            "format('channel'), or a process for each kind of session"
        )
    _check_types(_schema_of(df))
    if not df.isStreaming:  # a stream has a physical plan when it runs
        _warn_of_barriers(df)
    limits = JobLimits.from_options(options)
    share = limits.static(session_slots(df.sparkSession))
    try:
        service = service_of(df.sparkSession)
    except LimitError as error:
        if share is None or options.shared_limit is not None:
            raise
        _log.warning("each task keeps its fixed share of the limit: %s", error)
        service = None
    spec = read_spec(
        "throttle",
        limits,
        **static_of_spec(share, one_host=lambda: is_local(df.sparkSession)),
    )
    task = _Throttle(JobLink(new_job_id(), spec, service, limits.address, (share,)), options)
    # By their numbers: Spark looks names up, and some hold a dot, or occur twice. A row without columns needs one.
    rows = (
        df.toDF(*(f"c{n}" for n in range(len(df.columns)))) if df.columns else df.select(f.lit(1))
    )
    passed = rows.mapInArrow(task, rows.schema)
    return passed.toDF(*df.columns) if df.columns else passed.select()


def _schema_of(df: DataFrame) -> StructType:
    try:
        return df.schema
    except PySparkException as error:
        if error.getCondition() != _IN_A_PIPELINE:
            raise
        raise UnsupportedError(
            "throttle needs the schema of its DataFrame, which Spark does not look up in a query function of a "
            "declarative pipeline: give the read the option rowsPerSecond or sharedLimit"
        ) from error


def by_number(df: DataFrame) -> DataFrame:
    """With names that `mapInArrow` can look up: others hold a dot, or occur twice."""
    return df.toDF(*(f"c{n}" for n in range(len(df.columns))))


class _Throttle(Versioned):
    """The function that runs in each Spark task; pickled by reference to this class."""

    def __init__(
        self,
        link: JobLink,
        options: CommonOptions,
    ) -> None:
        self._link = link
        """Its job is the plan's: each run of it has its own."""
        self._options = options

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        watch = HangupWatch()
        task = TaskContext.get()
        assert task is not None
        partition = task.partitionId()
        job = run_id(
            self._link.job, task.getLocalProperty("spark.sql.execution.id"), task.stageId()
        )
        with ExitStack() as stack:
            link = stack.enter_context(
                replace(self._link, job=job).connect(self._options, f"partition {partition}")
            )
            assert link.limiter is not None
            counters = link.counters(partition, **pass_of(task))
            pacer = BatchRateLimiter(link.limiter, counters=counters)
            stack.enter_context(watch.calling(pacer.cancel))
            try:
                yield from sent_as_they_come(pacer.pace(batches))
            except GeneratorExit:
                counters.enter(Phase.ENDED)
                raise
            except BaseException:
                counters.enter(Phase.ENDED if pacer.cancelled else Phase.FAILED)
                raise
            counters.enter(Phase.DONE)


def _check_types(schema: StructType) -> None:
    for field in schema.fields:
        for path, kind in types_inside(field.dataType, field.name):
            fault = _why_not(kind)
            if fault is not None:
                raise SchemaError(f"column {path!r} {fault}, which throttle cannot carry: cast it")


def _why_not(kind: DataType) -> str | None:
    """What keeps a type from passing; None if nothing does."""
    if type(kind).__name__ in _NOT_CARRIED:
        return f"is of type {kind.simpleString().upper()}"
    if isinstance(kind, StructType):
        twice = next((name for name in kind.names if kind.names.count(name) > 1), None)
        return None if twice is None else f"has two fields {twice!r}"
    # The type of `array()` and `map()`: no value has it, and Arrow has no such elements.
    empty_array = isinstance(kind, ArrayType) and isinstance(kind.elementType, NullType)
    empty_map = isinstance(kind, MapType) and isinstance(kind.keyType, NullType)
    return f"is of type {kind.simpleString().upper()}" if empty_array or empty_map else None


def _warn_of_barriers(df: Any) -> None:
    plan = _plan_of(df)
    for pattern, name in _BARRIERS.items():
        if re.search(pattern, plan):
            _log.warning(
                "throttle: the plan has %s below it, which reads its input at full speed. "
                "Call throttle on the DataFrame of the source",
                name,
            )


def _plan_of(df: Any) -> str:
    """The physical plan as text; explain() prints it, and nothing public returns it."""
    if hasattr(df, "_jdf"):
        return str(df._jdf.queryExecution().executedPlan().toString())  # noqa: SLF001 - see above
    return str(df._explain_string()) if hasattr(df, "_explain_string") else ""  # noqa: SLF001 - `explain` only prints
