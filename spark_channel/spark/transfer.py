"""Runs a transfer on a Spark session: by task groups, or by DataFrames where a Spark format is on one side."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, DataFrameReader, Observation, SparkSession
from pyspark.sql import functions as f

from spark_channel.arrow_schema import conform
from spark_channel.clock import utc_now, utc_text
from spark_channel.errors import DirtyRowsError, LimitError, OptionError, TargetError
from spark_channel.masking import mask_text, mask_url, without_login
from spark_channel.options import CommonOptions, WriteOptions
from spark_channel.pipeline import DirtyBudget, DirtyLog, dirty_limit_of
from spark_channel.plain_text import log_of
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.progress import JobSpec, Phase, TransferReport
from spark_channel.service import ServiceAddress, ServiceControl, new_job_id
from spark_channel.service.launch import reason_of
from spark_channel.spark.driver import JobReporter
from spark_channel.spark.engine import SparkEngine, described
from spark_channel.spark.schema import as_arrow, as_spark
from spark_channel.spark.session import (
    context_of,
    directory_of,
    prepare_session,
    register,
    service_of,
)
from spark_channel.spark.throttle import by_number, throttle
from spark_channel.spark.worker import Versioned, own_error
from spark_channel.transfers.dispatch import carry_out as carry_out_on
from spark_channel.transfers.job_link import JobLink
from spark_channel.transfers.job_spec import write_spec
from spark_channel.transfers.limits import is_limited, limit_scope_of
from spark_channel.transfers.options import JobOptions, job_options, take_schema
from spark_channel.transfers.plan import begin_transfer, first_reachable
from spark_channel.transform import Pipeline, prepare
from spark_channel.verification import verify_with
from spark_channel.verification.report import RepairSettings, VerifyReport, VerifySettings
from spark_channel.working_directory import relative_to

__all__ = ["carry_out", "verify"]

_log = log_of(__name__)
_STRICT = "hive.exec.dynamic.partition.mode"
_JAVA = re.compile(r"^(?:: )?(?:\w+\.)+[\w$]*(?:Exception|Error): (?P<text>.+)$", re.MULTILINE)
"""An exception of Java's in the text of one of py4j's."""


def carry_out(
    spark: SparkSession, spec: TransferSpec, job_settings: Mapping[str, Any] | None = None
) -> TransferReport:
    """Run a transfer; `job_settings` are options of the whole job beside those of `spec`. Raises as `transfer`."""
    context = context_of(spark)
    with nullcontext() if context is None else relative_to(directory_of(context)):
        return _carry_out(spark, spec, job_settings)


def _carry_out(
    spark: SparkSession, spec: TransferSpec, job_settings: Mapping[str, Any] | None
) -> TransferReport:
    if not spec.targets and (spec.reader.spark_format or spec.writer.spark_format):
        return _copy_frames(spark, begin_transfer(job_options(spec, job_settings or {})))
    prepare_session(spark)
    return carry_out_on(SparkEngine(spark), spec, job_settings)


def verify(
    spark: SparkSession,
    spec: TransferSpec,
    job_settings: Mapping[str, Any],
    settings: VerifySettings,
    repairs: RepairSettings | None = None,
) -> VerifyReport:
    """Verify by Spark tasks; `job_settings` are options of the whole job. Raises as `spark_channel.verify`."""
    context = context_of(spark)
    with nullcontext() if context is None else relative_to(directory_of(context)):
        prepare_session(spark)
        return verify_with(SparkEngine(spark), spec, job_settings, settings, repairs)


def _copy_frames(spark: SparkSession, job: JobOptions) -> TransferReport:
    """Run the transfer as a DataFrame. The connector keeps the limit if one end has one, else `throttle` does.

    Raises:
        OptionError: several targets, or an option that Spark's formats have no place for.
        ChannelError: an error of the connector. Spark's exceptions: errors of its format.
    """
    register(spark)
    spec = job.spec
    writers, readers = spec.writer.resolve(first_reachable), spec.reader.resolve(first_reachable)
    if len(writers) > 1:
        raise OptionError(
            f"{len(writers)} targets: with a Spark format at either end a transfer has one target for all "
            f"{len(readers)} parts of its reader",
            option="writer",
            got=str(len(writers)),
            takes="1",
        )
    (writer,) = writers
    options, _ = WriteOptions.parse(job.job)
    run = _Run(spark, job, writer, options)
    return run.carry_out(readers)


class _Run:
    """A transfer with a Spark format on one side: `spark.read`, steps, limit, `df.write`."""

    def __init__(
        self, spark: SparkSession, job: JobOptions, writer: Endpoint, options: WriteOptions
    ) -> None:
        self._spark = spark
        self._job = job
        self._writer = writer
        self._options = options
        self._id = f"{options.job_id}-{new_job_id()}" if options.job_id else new_job_id()

    def carry_out(self, readers: tuple[Endpoint, ...]) -> TransferReport:
        started, options, spec = utc_now(), self._options, self._job.spec
        frame = reduce(DataFrame.unionByName, [self._read(end) for end in readers])
        service = self._reach_service()
        job_spec = self._spec(spec.reader, frame)
        reporter = JobReporter(service, self._id)
        try:
            reporter.open(job_spec)
            if spec.transformers:
                frame = self._transformed(frame, service, job_spec)
            if is_limited(options) and spec.reader.spark_format and self._writer.spark_format:
                frame = throttle(frame, **_limits(self._job.job))
            counted = Observation()
            frame = frame.observe(counted, f.count(f.lit(1)).alias("rows"))
            with described(self._spark, job_spec.source, job_spec.target):
                self._write(frame)
        except BaseException as error:
            channel_error = own_error(error)
            reporter.enter(Phase.FAILED, error=reason_of(channel_error or error))
            if channel_error is None or channel_error is error:
                raise
            raise channel_error from error
        rows = int(counted.get["rows"])
        dirty = self._refused(service) if spec.transformers else 0
        if refusal := dirty_limit_of(options).exceeded(dirty, dirty + rows, final=True):
            refusal = f"{refusal}. The other rows are in {job_spec.target}: rows that Spark has written are not removed"
            reporter.enter(Phase.FAILED, error=refusal, rows=rows)
            raise DirtyRowsError(refusal)
        reporter.enter(Phase.DONE, rows=rows)
        service_report = self._counted(service)
        return TransferReport(
            job=self._id,
            kind="transfer",
            phase=str(Phase.DONE),
            started_at=service_report.started_at if service_report else utc_text(started),
            seconds=service_report.seconds
            if service_report
            else round((utc_now() - started).total_seconds(), 3),
            rows=rows,
            bytes=0,
            rows_moved=rows,
            bytes_moved=0,
            source=job_spec.source,
            target=job_spec.target,
            where=job_spec.where,
            rows_per_second_limit=options.rows_per_second,
            bytes_per_second_limit=options.bytes_per_second,
            limit_scope=limit_scope_of(options) if is_limited(options) else "",
            rows_dirty=dirty,
            dirty_rows_path=options.dirty_rows_path or "",
        )

    def _reach_service(self) -> ServiceAddress | None:
        try:
            return service_of(self._spark)
        except LimitError:
            if is_limited(self._options):
                raise
            return None

    def _refused(self, service: ServiceAddress | None) -> int:
        """How many rows the transformers refused, as their tasks reported it."""
        counted = self._counted(service)
        return 0 if counted is None else counted.rows_dirty

    def _counted(self, service: ServiceAddress | None) -> TransferReport | None:
        """Return the service's report of this job, so that the shown and the returned numbers use one clock."""
        if service is None:
            return None
        try:
            with ServiceControl(service) as control:
                return control.report(self._id)
        except LimitError as error:
            _log.warning("what the service counted of job %s is not known: %s", self._id, error)
            return None

    def _spec(self, reader: Endpoint, frame: DataFrame) -> JobSpec:
        target = _shown(self._writer)
        return write_spec(
            "transfer",
            self._options,
            None,  # the connector keeps the limit, or `throttle` does
            source=_shown(reader),
            target=target,
            limit_scope=limit_scope_of(self._options),
            where=target,
            stall_timeout=None,
        )

    # ---- reading

    def _read(self, end: Endpoint) -> DataFrame:
        options = _texts(end.options)
        if not end.spark_format:
            connector_options = _texts(
                {**options, **({"reader": end.name} if end.name else {}), **self._reader_options()}
            )
            reader_options: dict[str, Any] = {**connector_options}
            schema = take_schema(reader_options)
            reader = self._spark.read.format("channel")
            reader = reader if schema is None else reader.schema(schema)
            path = reader_options.pop("path", None)
            return reader.options(**reader_options).load(path)
        if end.name.lower() == "hive":
            query, table = options.get("query"), options.get("dbtable") or options.get("table")
            if (query is None) == (table is None):
                raise OptionError("a hive reader takes 'query' or 'dbtable'", option="query")
            return self._spark.sql(query) if query is not None else self._spark.table(str(table))
        return _load(self._spark.read.format(end.name), options)

    def _reader_options(self) -> dict[str, Any]:
        spec = self._job.spec
        planned = {"channels": spec.channels, "channelsPerTask": spec.channels_per_task}
        limits = self._job.limits if self._writer.spark_format else {}
        return {**planned, **limits}

    # ---- on the way

    def _transformed(
        self, frame: DataFrame, service: ServiceAddress | None, spec: JobSpec
    ) -> DataFrame:
        pipeline = prepare(self._job.spec.transformers, as_arrow(frame.schema))
        plain = as_spark(pipeline.output_schema)
        return by_number(frame).mapInArrow(
            _TransformRunner(pipeline, self._options, service, self._id, spec), plain
        )

    # ---- writing

    def _write(self, frame: DataFrame) -> None:
        end, mode = self._writer, self._job.spec.save_mode
        options = _texts(end.options)
        if not end.spark_format:
            named = {"writer": end.name} if end.name else {}
            writer_options = _texts({**options, **named, **self._job.job})
            path = writer_options.pop("path", None)
            frame.write.format("channel").options(**writer_options).mode(mode).save(path)
            return
        if end.name.lower() == "hive":
            self._write_table(frame, options)
            return
        if end.name.lower() == "jdbc" and options.pop("createTable", "true") == "false":
            self._check_target(end.name, options)
        path = options.pop("path", None)
        frame.write.format(end.name).options(**options).mode(mode).save(path)

    def _check_target(self, name: str, options: dict[str, str]) -> None:
        """Spark would create a table that is missing, with its own types.

        Raises:
            TargetError: it cannot be read. MissingPackageError: Spark has no driver for it.
        """
        table = options.get("dbtable", "")
        try:
            _ = _load(self._spark.read.format(name), dict(options)).schema
        except Exception as error:
            channel_error = own_error(error)
            if channel_error is not None:
                raise channel_error from error
            raise TargetError(
                f"table {table} cannot be read: {_said(error)}. A job writes to tables that exist: "
                "create it, or correct its name or the login"
            ) from error

    def _write_table(self, frame: DataFrame, options: dict[str, str]) -> None:
        """Write into a table of Spark's catalog: by column name if it exists, else create it."""
        table = options.pop("dbtable", None) or options.pop("table", None)
        if table is None:
            raise OptionError("a hive writer takes 'dbtable'", option="dbtable")
        keys = [name.strip() for name in options.pop("partitionBy", "").split(",") if name.strip()]
        overwrite = self._job.spec.save_mode == "overwrite"
        if self._spark.catalog.tableExists(table):
            names = self._spark.table(table).columns
            columns = [f"`{name.replace('`', '``')}`" for name in names]
            try:
                frame.select(*columns).write.options(**options).insertInto(
                    table, overwrite=overwrite
                )
            except Exception as error:
                if _STRICT not in str(error):
                    raise
                raise TargetError(
                    f"table {table} is partitioned, and this session does not allow dynamic partitions: set "
                    f"{_STRICT} to nonstrict, such as by spark.conf.set"
                ) from error
            return
        writer = frame.write.options(**options).mode(self._job.spec.save_mode)
        (writer.partitionBy(*keys) if keys else writer).saveAsTable(table)


class _TransformRunner(Versioned):
    """The transformers in a Spark task; what they refuse counts against the job's dirty limit."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: WriteOptions,
        service: ServiceAddress | None,
        job: str,
        spec: JobSpec,
    ) -> None:
        self._pipeline = pipeline
        self._options = options
        self._service = service
        self._job = job
        self._spec = spec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        bare, _ = CommonOptions.parse({})
        with contextlib.ExitStack() as stack:
            link = stack.enter_context(
                JobLink(self._job, self._spec, self._service).connect(bare, "steps")
            )
            counters = link.counters(task.partitionId(), task.taskAttemptId())
            budget = DirtyBudget(dirty_limit_of(self._options), link.stop_reason)
            log = DirtyLog(budget, task.partitionId(), task.taskAttemptId(), counters=counters)
            for batch in batches:
                counters.read(batch.num_rows, batch.nbytes)
                # Spark's batches are of the session's time zone, and NOT NULL where a filter says so.
                named = batch.rename_columns(self._pipeline.schema.names)
                outcome = self._pipeline.run(conform(named, self._pipeline.schema))
                for refused in outcome.refused:
                    log.refuse(refused.rows, refused.reason)
                counters.wrote(outcome.batch.num_rows, outcome.batch.nbytes)
                yield outcome.batch
            counters.enter(Phase.DONE)


def _load(reader: DataFrameReader, options: dict[str, str]) -> DataFrame:
    """A format of Spark's; `schema` is not an option there."""
    schema = options.pop("schema", None)
    if schema is not None:
        reader = reader.schema(schema)
    path = options.pop("path", None)
    return reader.options(**options).load(path)


def _said(error: Exception) -> str:
    """Return a driver's message without Spark's stack frames."""
    text = str(error)
    java_message = _JAVA.search(text)
    return mask_text(java_message["text"] if java_message else text.partition("\n")[0])[
        :300
    ].rstrip(". ")


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
        if value is not None
    }


def _limits(job: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `throttle`."""
    names = {
        "rowspersecond": "rows_per_second",
        "bytespersecond": "bytes_per_second",
        "sharedlimit": "shared_limit",
        "sharedlimittoken": "shared_limit_token",
    }
    return {names[key.lower()]: value for key, value in job.items() if key.lower() in names}


def _shown(end: Endpoint) -> str:
    """Return the source or target in a few words, without secrets: "jdbc jdbc:oracle:...#orders"."""
    texts = {key.lower(): str(value) for key, value in end.options.items()}
    address = without_login(texts["url"]) if texts.get("url") else mask_url(texts.get("path", ""))
    table = texts.get("dbtable") or texts.get("table") or ("(query)" if "query" in texts else "")
    parts = f" and {len(end.parts) - 1} more" if len(end.parts) > 1 else ""
    return f"{end.name} {address}{'#' if address and table else ''}{table}{parts}".strip()
