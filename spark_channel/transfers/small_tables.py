"""Copies small tables in groups: under one lease of the limit, and with a job and a report for each of them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from spark_channel.channel import Limiter, MemoryChannel
from spark_channel.channel.batches import arrow_bytes
from spark_channel.clock import SYSTEM_CLOCK, utc_now
from spark_channel.connectors.base.registry import describe
from spark_channel.connectors.base.small_tables import MOST_BYTES, ReadTable, SmallTable, Together
from spark_channel.errors import ChannelError, JobCancelledError, SourceError
from spark_channel.options import CommonOptions
from spark_channel.plain_text import log_of
from spark_channel.progress import Counters, JobColumn, Phase, TransferReport
from spark_channel.service import ServiceAddress, ServiceClient
from spark_channel.transfers.job_spec import write_spec
from spark_channel.transfers.limits import JobLimits
from spark_channel.transfers.write_job import job_name

if TYPE_CHECKING:
    from spark_channel.service.jobs import JobRegistry

__all__ = ["SmallTablesEngine", "carry_out_small_tables"]

_log = log_of(__name__)

_MOST_READ = 2 * MOST_BYTES
"""Of a table that has grown since its size was looked up."""
_CAPACITY = 1 << 30
"""Rows and bytes: what was read is bounded by the group."""
_LONGEST_SECONDS = 2.0
"""Rows that were read and paid in this time are published: under a slow limit a group is published in parts."""


class SmallTablesEngine(Protocol):
    """An engine in this process."""

    def service(self) -> ServiceAddress: ...

    def registry(self) -> "JobRegistry":
        """The jobs of the service."""

    def cancelling(self, cancel: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `cancel` when the engine's jobs are ended while the block runs.

        Raises:
            JobCancelledError: they were ended before.
        """


def carry_out_small_tables(
    engine: SmallTablesEngine,
    together: Together,
    tables: Sequence[SmallTable],
    placed: Callable[[SmallTable], None],
    ended: Callable[[SmallTable, TransferReport], None],
    job_settings: Mapping[str, Any],
    part_of: str,
) -> None:
    """Copy the tables. Each is paid before the next one is read, as its batches are where it is copied alone.

    `placed` sets the position of a table that was looked up. `ended` takes the report of each that is published, or was
    before, as soon as that is known; the others have a `why`. `job_settings` are options of the whole job.

    Raises:
        ChannelError: the tables that have not ended are not published.
    """
    began, began_at = SYSTEM_CLOCK.now(), utc_now()
    limits = JobLimits.from_options(CommonOptions.parse(job_settings)[0])
    waits: dict[SmallTable, float] = {}
    is_over = False

    def publish(some: Sequence[SmallTable]) -> None:
        if is_over:
            raise JobCancelledError("the run was ended")
        try:
            together.publish(some)
        except ChannelError as error:
            for table in some:
                if table.is_left:
                    table.why = error
        for table in some:
            table.batches.clear()
            note(table)

    def note(table: SmallTable) -> None:
        if table.published_at is None:
            return
        if not table.is_new:
            table.rows = table.nbytes = 0
        report = _recorded(engine, table, limits, part_of, waits.get(table, 0.0))
        seconds = round(SYSTEM_CLOCK.now() - began, 3)
        ended(
            table,
            replace(report, seconds=seconds, started_at=began_at.isoformat(timespec="seconds")),
        )

    with ExitStack() as stack:
        limiter = _limiter(engine, limits, stack)
        channel = MemoryChannel(_CAPACITY, _CAPACITY, limiter=limiter)

        def cancel() -> None:
            nonlocal is_over
            is_over = True
            channel.fail(JobCancelledError("the run was ended"))

        stack.enter_context(engine.cancelling(cancel))
        together.look(tables)
        for table in tables:
            note(table)
        tables_left = [table for table in tables if table.is_left]
        for table in tables_left:
            placed(table)
        tables_left = [table for table in tables_left if table.is_left]
        if limiter is not None and any(table.builds for table in tables_left):
            builds = (
                f"{table.label}: {', '.join(table.builds)}" for table in tables_left if table.builds
            )
            _log.warning(
                "tables get, after their rows, what no limit slows down: %s", "; ".join(builds)
            )
        while tables_left:
            ready: list[SmallTable] = []
            until = SYSTEM_CLOCK.now() + _LONGEST_SECONDS
            with together.reading(at_once=limiter is None) as read_rows:
                while tables_left:
                    table = tables_left.pop(0)
                    _read(read_rows, table)
                    waits[table] = _pay(channel, table)
                    ready.append(table)
                    if SYSTEM_CLOCK.now() > until:
                        break
            publish(ready)


def _limiter(engine: SmallTablesEngine, limits: JobLimits, stack: ExitStack) -> Limiter | None:
    if limits.address is None:
        return None
    job = job_name("tables")
    spec = write_spec("transfer", None, None)
    client = ServiceClient(engine.service(), job, spec, shared_limit=limits.address)
    return stack.enter_context(client).limiter("tables")


def _read(read_rows: ReadTable, table: SmallTable) -> None:
    try:
        for batch in read_rows(table):
            table.batches.append(batch)
            table.rows += batch.num_rows
            table.nbytes += arrow_bytes(batch)
            if table.nbytes > _MOST_READ:
                raise SourceError("the table has grown")
    except ChannelError as error:
        table.why = error
        table.batches.clear()


def _pay(channel: MemoryChannel, table: SmallTable) -> float:
    """Pay for the rows; the seconds that this took."""
    began = SYSTEM_CLOCK.now()
    for batch in table.batches:
        channel.push(batch, nbytes=arrow_bytes(batch))
    return SYSTEM_CLOCK.now() - began


def _recorded(
    engine: SmallTablesEngine, table: SmallTable, limits: JobLimits, part_of: str, waited: float
) -> TransferReport:
    """Make the copy a job of the service, so that progress, metrics and lineage have it as any other."""
    assert table.schema is not None
    columns = JobColumn.from_schema(table.schema)
    reads, writes = table.reader.options, table.writer.options
    source, target = f"{reads.reader} {describe(reads)}", f"{writes.writer} {describe(writes)}"
    spec = write_spec(
        "transfer",
        writes,
        limits,
        counts_dirty=False,
        name=table.label,
        source=source,
        target=target,
        source_columns=columns,
        target_columns=columns,
        part_of=part_of,
        channels=1,
        tasks=1,
        splits=1,
        commit="job",
        where=target,
    )
    counters = Counters(0, 0)
    counters.read(table.rows, table.nbytes)
    counters.pushed(table.rows, table.nbytes)
    counters.wrote(table.rows, table.nbytes)
    counters.waited("limit", waited)
    counters.enter(Phase.DONE)
    jobs = engine.registry()
    jobs.open(spec, table.job)
    jobs.report(table.job, table.job, [counters.snapshot()], leaving=True)
    jobs.enter(table.job, Phase.DONE, rows=table.rows)
    report = jobs.find(table.job).report()
    return replace(
        report,
        rows=table.rows,
        bytes=table.nbytes,
        left_out=table.left_out,
        renamed=table.renamed,
    )
