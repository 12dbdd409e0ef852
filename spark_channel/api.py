"""The public functions that run with a Spark session or without one; they import pyspark only for a session."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from spark_channel.datax import load_job
from spark_channel.datax.load import Source
from spark_channel.errors import OptionError
from spark_channel.plain_text import log_of
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.planning.transfer import SaveMode
from spark_channel.progress import TransferReport
from spark_channel.transfers.options import read_targets

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_channel.replication import ReplicationReport
    from spark_channel.verification.report import VerifyReport

__all__ = [
    "replicate",
    "run",
    "transfer",
    "verify",
]

_log = log_of(__name__)


def transfer(
    spark: "SparkSession | None",
    reader: Mapping[str, Any],
    writer: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    transformers: Sequence[object] = (),
    mode: SaveMode = "append",
    channels: int | None = None,
    channels_per_task: int | None = None,
    rows_per_second: int | str | None = None,
    bytes_per_second: int | str | None = None,
    shared_limit: str | None = None,
    shared_limit_token: str | None = None,
    protect: str | None = None,
    pressure: str | None = None,
    max_connections: int | None = None,
    max_dirty_rows: int | str | None = None,
    max_dirty_fraction: float | None = None,
    dirty_rows_path: str | None = None,
    commit: str | None = None,
    job_id: str | None = None,
) -> TransferReport:
    """Copy what `reader` reads to where `writer` writes, through `transformers`, and wait for it.

    With `spark` None it runs in this process, without Spark, as `spark-channel run --engine local` does: a thread
    for each channel, a failed task is not retried, and SIGTERM in the main thread ends it as Ctrl-C does.

    `reader` and `writer` are `{"name": connector, **format options}`, or `{"format": Spark format,
    **options}` for any format of Spark; `schema` in a reader is what `spark.read.schema` takes. The rows
    go from one to the other inside the Python process of each Spark task; with a Spark format at either
    end they go through Spark. Delivery is that of the target's connector, as after `df.write`: once, or at least once;
    docs/commits.md has a table of targets.
    `writer` may be a list: the source is read once, and each target gets all rows, with its own claim, limit and
    report (`report.targets`). The reading waits for the slowest. In each, `onFailure` is `fail` (the job fails) or
    `leave` (the others go on).
    With `protect="auto"` the speed follows what both ends say of their health, and `pressure` says what is too much.
    `channels` None: the session's parallelism, without a session the cores of this machine. The speeds hold for the
    whole job, bytes are Arrow bytes; see docs/options.md for the other names, which `reader` and `writer` accept as
    well.

    Raises:
        OptionError: an option makes no sense, or a format of Spark has no session. SchemaError: a column does not fit.
        SourceError, TargetError: the source or the target failed, and retries did too.
        DirtyRowsError: more rows were refused than allowed; the message says what the target contains.
        CommitError: publishing failed; the message says what the target contains.
    """
    job_settings = {
        "jobId": job_id,
        "channels": channels,
        "channelsPerTask": channels_per_task,
        "rowsPerSecond": rows_per_second,
        "bytesPerSecond": bytes_per_second,
        "sharedLimit": shared_limit,
        "sharedLimitToken": shared_limit_token,
        "protect": protect,
        "pressure": pressure,
        "maxConnections": max_connections,
        "maxDirtyRows": max_dirty_rows,
        "maxDirtyFraction": max_dirty_fraction,
        "dirtyRowsPath": dirty_rows_path,
        "commit": commit,
    }
    if mode not in get_args(SaveMode):
        takes = f"one of {', '.join(get_args(SaveMode))}"
        raise OptionError(
            f"option 'mode' got {mode!r}; it takes {takes}", option="mode", takes=takes
        )
    targets = () if isinstance(writer, Mapping) else read_targets(writer, mode)
    spec = TransferSpec(
        Endpoint.parse("reader", reader),
        Endpoint.parse("writer", writer) if isinstance(writer, Mapping) else targets[0].writer,
        tuple(transformers),
        save_mode=mode,
        targets=targets if len(targets) > 1 else (),
    )
    return _carry_out(
        spark, spec, {key: value for key, value in job_settings.items() if value is not None}
    )


def run(
    spark: "SparkSession | None",
    job: Source,
    variables: Mapping[str, Any] | None = None,
    *,
    dirty_rows_path: str | None = None,
    commit: str | None = None,
    txn: str | None = None,
) -> TransferReport:
    """Carry out a DataX job: a path, the file's text, or its data; `variables` are put in for `${name}`.

    With `spark` None it runs in this process, without Spark: see `transfer`.

    The first entry of `job.content` runs, as in DataX. Keys of the job that have no effect are logged as a
    warning. `dirty_rows_path` keeps refused rows as Parquet; see docs/datax.md for each key. `commit` ("job" or "task")
    and `txn` ("name:version") count instead of those of `job.setting`.

    Raises:
        JobFileError: the file is broken; names the JSON path, what it got and what it takes.
        ChannelError: as `transfer`.
    """
    loaded = load_job(job, variables, commit=commit, txn=txn)
    for warning in loaded.warnings:
        _log.warning(warning)
    job_settings = {} if dirty_rows_path is None else {"dirtyRowsPath": dirty_rows_path}
    return _carry_out(spark, loaded.spec, job_settings)


def verify(
    spark: "SparkSession | None",
    reader: Mapping[str, Any],
    writer: Mapping[str, Any],
    *,
    key: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    json: Sequence[str] = (),
    text: Literal["exact", "nfc"] = "exact",
    confirm: int = 3,
    repair: bool = False,
    max_repairs: int = 1_000,
    delete: bool = False,
    dry_run: bool = False,
    channels: int | None = None,
    rows_per_second: int | str | None = None,
    bytes_per_second: int | str | None = None,
    shared_limit: str | None = None,
    protect: str | None = None,
    job_id: str | None = None,
) -> "VerifyReport":
    """Compare the rows that `reader` reads with those that are where `writer` writes, and repair the latter.

    `reader` and `writer` are as in `transfer`; `writer` may have options of the connector's reader, too, such as
    `where`. Columns are paired by name; `exclude` leaves some out. Rows are matched by `key`, by default the target's
    primary key, and compared by values, whatever types the two systems have: see docs/verify.md. A row that differs is
    looked at again up to `confirm` times, with growing waits. The limit holds for the rows of both sides together.
    With `repair`, at most `max_repairs` differing rows are read again and written by an upsert under one claim;
    `delete` removes rows that the target alone has, and `dry_run` writes nothing and lists the keys.

    Raises:
        OptionError, SchemaError, UnsupportedError: an argument is wrong, or the sides cannot be compared.
        SourceError: a side cannot be read. A repair that fails does not raise: the report's notes say why.
    """
    all_settings = {
        "jobId": job_id,
        "channels": channels,
        "rowsPerSecond": rows_per_second,
        "bytesPerSecond": bytes_per_second,
        "sharedLimit": shared_limit,
        "protect": protect,
    }
    from spark_channel.verification.report import RepairSettings, VerifySettings

    settings = VerifySettings(key, exclude, json, text, confirm)
    repairs = RepairSettings(max_repairs, delete, dry_run) if repair else None
    if (delete or dry_run) and not repair:
        name = "delete" if delete else "dry_run"
        raise OptionError(
            f"option '{name}' needs 'repair': without it nothing is written", option=name
        )
    spec = TransferSpec(Endpoint.parse("reader", reader), Endpoint.parse("writer", writer))
    job_settings = {name: value for name, value in all_settings.items() if value is not None}
    if spark is not None:
        from spark_channel.spark.transfer import verify as verify_by_spark

        return verify_by_spark(spark, spec, job_settings, settings, repairs)
    from spark_channel.local import has_speed, local_engine
    from spark_channel.verification import verify_with

    with local_engine(served=has_speed(spec, job_settings)) as engine:
        return verify_with(engine, spec, job_settings, settings, repairs)


def replicate(
    spark: "SparkSession | None",
    file: "str | Path | Mapping[str, Any]",
    *,
    select: Sequence[str] = (),
    full_refresh: bool = False,
    once: bool = False,
    shared_limit: str | None = None,
) -> "ReplicationReport":
    """Copy the tables that a YAML file names, and wait for them; docs/replicate.md describes the file.

    With `spark` None it runs in this process, without Spark. `file` is a path, or the file's data. `select` are names
    or patterns of tables; without them all are copied. `full_refresh` replaces all rows of incremental tables. `once`:
    tables of mode `full_then_changes` are followed up to now, and not until the program is ended.

    A table that fails is parked: the others go on, and `report.parked` says why.

    Raises:
        JobFileError: the file is broken; names the path in it, what it got and what it takes.
        ChannelError: the source or the target cannot be opened; no table was begun.
    """
    from spark_channel.replication import load_replication, replicate_on
    from spark_channel.replication.report import TablesProgress
    from spark_channel.replication.table_run import RunSettings

    job_file = load_replication(file)
    progress = TablesProgress()
    settings = RunSettings(
        ended=progress.table_ended,
        select=tuple(select),
        full_refresh=full_refresh,
        once=once,
        shared_limit=shared_limit,
    )
    if spark is not None:
        from spark_channel.spark.session import context_of
        from spark_channel.spark.transfer import carry_out

        context = context_of(spark)

        def cancel() -> None:
            if context is None:
                spark.interruptAll()
            else:
                context.cancelAllJobs()

        return replicate_on(job_file, partial(carry_out, spark), cancel, settings)
    from spark_channel.local import LocalMove, local_engine, may_be_found

    with progress, local_engine(served=may_be_found(), display=progress) as engine:
        return replicate_on(job_file, LocalMove(engine), engine.cancel, settings)


def _carry_out(
    spark: "SparkSession | None", spec: TransferSpec, job_settings: Mapping[str, Any]
) -> TransferReport:
    if spark is not None:
        from spark_channel.spark.transfer import carry_out

        return carry_out(spark, spec, job_settings)
    from spark_channel.local import carry_out_here, has_speed, local_engine

    if end := spec.spark_format:
        raise OptionError(
            f"{end!r} is a format of Spark, which needs a Spark session: pass a SparkSession instead of None, "
            "or give the name of a connector as 'name' instead of 'format'",
            option="format",
            got=end,
            takes="the name of a connector",
        )
    with local_engine(served=has_speed(spec, job_settings)) as engine:
        return carry_out_here(engine, spec, job_settings)
