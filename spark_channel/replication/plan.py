"""What a run of a replication would do, what it asks of the servers, and the faults of its file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.overlap import server_facts
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.errors import ChannelError
from spark_channel.replication.config import Limit, Replication
from spark_channel.replication.deletes import kept_key
from spark_channel.replication.demands import (
    ROW_ESTIMATES,
    estimated_rows,
    followed_columns,
    locks_of,
    log_facts_of,
    log_kept,
    staging_of,
    store_lacks,
    unfollowed,
    unreadable,
    unwritable,
)
from spark_channel.replication.drift import decide
from spark_channel.replication.foreign_keys import ForeignKeys
from spark_channel.replication.groups import looked_up
from spark_channel.replication.renames import key_of
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.table_run import RunSettings, TableRun, reader_of, why_of, writer_of
from spark_channel.replication.tables import (
    TableCopy,
    connector_of,
    find_tables,
    options_but_names,
    target_schema,
)
from spark_channel.replication.tunnels import tunnel_of
from spark_channel.service.windows import Speeds, seconds_for, zone_of
from spark_channel.transfers.plan import OpenedTransfer, rehearse
from spark_channel.transform.transformer import prepare

__all__ = ["RunPlan", "TablePlan", "plan_replication"]

_AT_ONCE = 100
_OF_A_TUNNEL = 2
"""Connections beside those that read or write rows: the log, and the catalog or the tunnel's store."""


@dataclass(frozen=True)
class TablePlan:
    """What a run would do with one table. `rows`, `nbytes`: estimates of the source's catalog; None = it has none.

    `rows_between`: as far as the catalog is as exact as it usually is. `does` says what becomes of the target, and
    `alters` what will be created or altered there; `fault` why the table would be parked, each reason in a line.
    `connections`: most at a time, at each end. `source_lock`, `target_lock`: of its tables. `staging`: bytes that the
    target has twice until they are published. `statement` is the first one of the read, and `server_plan` what the
    server says that it would do for it. `lacks`: what the target, which no run changes, lacks of the definition that
    `schema` asks for, as statements. `left_out`: what the table that the run makes lacks of it, `renamed` its parts
    with other names than the source's, and `builds` the indexes and constraints that it gets after its rows, which no
    limit slows down. `waits`: seconds before its copy begins, for rows that may be committed late.
    """

    stream: str
    object: str
    mode: str
    does: str = ""
    rows: int | None = None
    nbytes: int | None = None
    connections: int = 0
    columns: str = ""
    statement: str = ""
    server_plan: str = ""
    fault: str = ""
    rows_between: tuple[int, int] | None = None
    alters: tuple[str, ...] = ()
    source_lock: str = ""
    target_lock: str = ""
    staging: int | None = None
    waits: float = 0.0
    lacks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunPlan:
    """What a run would do. `seconds`: how long the limit makes it last, at least; None = more than four weeks.

    `seconds_between`: the same for the fewest and the most rows. `numbers`: where the rows come from. `staging`: the
    most bytes at a time. `waits`: seconds of the duration in which it waits for late rows. `log`: which log the source
    keeps for the run. `missing`: rights and settings that the run needs.
    `servers`: what source and target are, and how many connections they have free.
    """

    tables: tuple[TablePlan, ...]
    notes: tuple[str, ...]
    limit: str
    seconds: float | None
    ends_at: datetime | None
    connections: int
    seconds_between: tuple[float | None, float | None] = (0.0, 0.0)
    numbers: str = ""
    staging: int = 0
    waits: float = 0.0
    log: str = ""
    missing: tuple[str, ...] = ()
    servers: tuple[str, str] = ("", "")

    @property
    def rows(self) -> int:
        """Expected rows of all tables that are not parked, and whose number is known."""
        return sum(table.rows or 0 for table in self.tables if not table.fault)

    @property
    def nbytes(self) -> int:
        """Expected bytes of all tables that are not parked, and whose size is known."""
        return sum(table.nbytes or 0 for table in self.tables if not table.fault)


@keeping_sessions(looks=True)
def plan_replication(
    replication: Replication,
    settings: RunSettings,
    *,
    parallelism: int,
    now: datetime | None = None,
    explains: bool = True,
) -> RunPlan:
    """What a run would do. Logs in at both ends, and holds rights and columns; changes nothing, and moves no row.

    `explains`: the source's server is asked how it would read each table.

    Raises:
        ChannelError: the source cannot be opened, or the file and `select` match no table.
    """
    found_tables = find_tables(replication, settings.select)
    found_tables.check_some("copied", settings.select)
    begin = now or utc_now()
    dry = replace(settings, dry_run=True)
    limit = replication.limit
    unread, keys = (
        unreadable(replication, found_tables.copies),
        ForeignKeys(found_tables.copies),
    )
    runs: dict[str, TableRun] = {}

    def planned(copies: Sequence[TableCopy]) -> Iterator[TablePlan]:
        """Nothing is changed in a session, so the next table needs no new one."""
        with looked_up(copies):
            for copy in copies:
                yield _plan(
                    replication,
                    copy,
                    dry,
                    parallelism,
                    begin,
                    unread.get(copy.stream, ""),
                    keys,
                    runs,
                    explains=explains,
                )

    places = range(0, len(found_tables.copies), _AT_ONCE)
    tables = tuple(
        table
        for place in places
        for table in planned(found_tables.copies[place : place + _AT_ONCE])
    )
    copied = [table for table in tables if not table.fault]
    nbytes = sum(table.nbytes or 0 for table in copied)

    late = [table for table in copied if table.waits]
    waits = max((table.waits for table in late), default=0.0)

    def lasts(rows: Callable[[TablePlan], int]) -> float | None:
        """The tables that wait are copied after the others, and after their wait."""
        every = _lasts(limit, begin, sum(map(rows, copied)), nbytes or None)
        late_bytes = sum(table.nbytes or 0 for table in late)
        after = _lasts(limit, begin, sum(map(rows, late)), late_bytes or None) if late else 0.0
        return None if every is None or after is None else max(every, waits + after)

    seconds = lasts(lambda table: table.rows or 0)
    log, missing = _log_of(replication, tables, seconds)
    source = connector_of(replication.source, "reader").name
    return RunPlan(
        tables,
        found_tables.notes,
        _shown(limit),
        seconds,
        None if seconds is None else begin + timedelta(seconds=seconds),
        _connections(replication, tables),
        (
            lasts(lambda table: (table.rows_between or (0, 0))[0]),
            lasts(lambda table: (table.rows_between or (0, 0))[1]),
        ),
        ROW_ESTIMATES.get(source, ("the source's catalog", 0.0))[0],
        sum(sorted((table.staging or 0 for table in tables), reverse=True)[: replication.parallel]),
        waits,
        log,
        missing,
        _servers_of(found_tables.copies),
    )


def _servers_of(copies: Sequence[TableCopy]) -> tuple[str, str]:
    first = next((copy for copy in copies if copy.table is not None), None)
    if first is None:
        return "", ""
    source = target = ""
    with suppress(ChannelError):  # which each table has met before
        source = server_facts(reader_of(first))
        target = server_facts(writer_of(first))
    return source, target


def _connections(replication: Replication, tables: Sequence[TablePlan]) -> int:
    """The most at a time, at each end: tables side by side, and after them those that are followed."""
    followed = any(table.mode == "full_then_changes" and not table.fault for table in tables)
    batch = (table.connections for table in tables if table.mode != "full_then_changes")
    most = sum(sorted(batch, reverse=True)[: replication.parallel])
    return max(most, replication.parallel + _OF_A_TUNNEL if followed else 0)


def _log_of(
    replication: Replication, tables: Sequence[TablePlan], seconds: float | None
) -> tuple[str, tuple[str, ...]]:
    """Which log the source keeps, and what is missing to follow it."""
    if not any(table.mode == "full_then_changes" for table in tables):
        return "none is kept for this run; no transaction outlives a statement", ()
    try:
        facts = log_facts_of(replication)
        tunnel_of(replication).exists()
        lacks = tuple(filter(None, (store_lacks(replication),)))
    except ChannelError as error:
        return "unknown", (str(error),)
    if facts is None:
        return "unknown", lacks
    return log_kept(facts, seconds), (*facts.missing, *lacks)


def _lasts(limit: Limit, begin: datetime, rows: int, nbytes: int | None) -> float | None:
    otherwise = Speeds(limit.rows_per_second, limit.bytes_per_second)
    return seconds_for(
        limit.parsed, otherwise, begin, zone_of(limit.timezone), rows=rows, nbytes=nbytes
    )


def _shown(limit: Limit) -> str:
    windows = f"; {', '.join(limit.windows)} ({limit.timezone})" if limit.windows else ""
    return f"{Speeds(limit.rows_per_second, limit.bytes_per_second)}{windows}"


def _plan(
    replication: Replication,
    copy: TableCopy,
    settings: RunSettings,
    parallelism: int,
    at: datetime,
    unread: str,
    keys: ForeignKeys,
    runs: dict[str, TableRun],
    *,
    explains: bool,
) -> TablePlan:
    """`unread`: why the login may not read the table; "" = it may. `runs`: of tables before it, by their options."""
    limit = replication.limit
    table, source, target = (
        copy.table,
        str(copy.reader.get("reader")),
        str(copy.writer.get("writer")),
    )
    rows = None if table is None or (table.rows == 0 and table.nbytes) else table.rows
    table_plan = TablePlan(
        copy.stream,
        copy.object,
        copy.mode,
        rows=rows,  # PostgreSQL has 0 for a table that was never analyzed
        nbytes=None if table is None else table.nbytes,
        fault=copy.fault,
    )
    if copy.fault:
        return table_plan
    try:
        if unread:
            every = (unread, unwritable(copy), unfollowed(replication, copy))
            return replace(table_plan, fault="\n".join(filter(None, every)))
        if copy.mode == "full_then_changes":
            return _followed(replication, copy, table_plan, (source, target))
        outcome = TableOutcome(copy.stream, copy.object, copy.mode)
        alike = options_but_names(copy)
        run = TableRun(copy, outcome, settings, ReplicationReport("plan", at), like=runs.get(alike))
        if alike:
            runs.setdefault(alike, run)
        spec = run.spec()
        if spec is None:
            reason = outcome.why or "no new rows"
            return replace(table_plan, does=reason, rows=0, nbytes=0)
        planned = replace(
            spec,
            stream=None,
            rows_per_second=limit.rows_per_second,  # which decides how the table is read
            bytes_per_second=limit.bytes_per_second,
        )
        with ExitStack() as stack:
            transfer, *_ = rehearse(planned, parallelism, stack)
            statement, server_plan = _explained(transfer) if explains else ("", "")
    except ChannelError as error:
        return replace(table_plan, fault=why_of(error))
    target_columns = run.target_schema()
    does = (
        "creates"
        if target_columns is None
        else "replaces all rows"
        if spec.save_mode == "overwrite"
        else "adds rows"
    )
    if str(spec.writer.options.get("writeMode", "")) == "upsert" and spec.save_mode == "append":
        does = "adds and updates rows"
    new = (
        []
        if target_columns is None
        else [name for name in transfer.schema.names if name not in target_columns.names]
    )
    if new and "onSchemaChange" in spec.writer.options:
        does += f", adds column {', '.join(new)}"
    plan = transfer.plan
    writes = (
        "overwrite" if does == "replaces all rows" else "key" if "updates" in does else "append"
    )
    adds = [column for column in transfer.schema if target_columns is None or column.name in new]
    source_lock, target_lock = locks_of(source, target, writes)
    rows = table_plan.rows if plan.rows is None else plan.rows
    nbytes = table_plan.nbytes if plan.nbytes is None else plan.nbytes
    return replace(
        table_plan,
        does="; ".join(part for part in (does, outcome.why) if part),
        rows=rows,
        nbytes=nbytes,
        rows_between=estimated_rows(source, rows),
        alters=_altered(copy.object, adds, target_columns),
        lacks=() if target_columns is None else keys.lacks(copy),
        left_out=keys.left_out(copy, transfer.left_out),
        renamed=transfer.renamed,
        builds=transfer.builds,
        source_lock=source_lock,
        target_lock=target_lock,
        staging=staging_of(target, nbytes),
        connections=plan.channels,
        columns=", ".join(f"{column.name} {column.type}" for column in transfer.schema),
        statement=statement,
        server_plan=server_plan,
        waits=run.wait_seconds,
    )


def _followed(
    replication: Replication, copy: TableCopy, table_plan: TablePlan, ends: tuple[str, str]
) -> TablePlan:
    """
    Raises:
        ChannelError: why the table cannot be followed.
    """
    keys = key_of(copy)
    columns = followed_columns(replication, copy)
    target_columns = target_schema(copy, writer_of(copy))
    decision = decide(copy.contract, columns, target_columns, keeps_columns=True)
    if decision.skip:
        return replace(table_plan, does=decision.skip, rows=0, nbytes=0)
    names = [] if target_columns is None else [name.lower() for name in target_columns.names]
    new = [column for column in columns if column.name.lower() not in names]
    alters = bool(target_columns and new) and copy.contract.columns == "evolve"
    if refusal := unwritable(copy, alters=alters):
        return replace(table_plan, fault=refusal)
    if target_columns is not None and not copy.is_lake:
        key_options = {"writeMode": "upsert", "keyColumns": list(kept_key(keys, copy.deletes))}
        keyed_copy = replace(copy, writer={**copy.writer, **key_options, **dict(decision.options)})
        writer_of(keyed_copy).rehearse(
            WriteContext("plan", commit="job"), prepare(decision.steps, columns).output_schema
        )
    source_lock, target_lock = locks_of(*ends, "key")
    # The base is read by short statements, whatever the options of the source say of other reads.
    others = {key: value for key, value in copy.reader.items() if key.lower() != "statementseconds"}
    reader = reader_of(replace(copy, reader={**others, "statementSeconds": 1}))
    assert isinstance(reader, SqlReader)  # other sources have no log that is followed
    splits = reader.split(1)  # none of an empty table
    statement, server_plan = reader.explained(splits[0]) if splits else ("", "")
    does = (
        f"copies all rows, then applies each change by {', '.join(keys)}; deletes: {copy.deletes}"
    )
    if unlogged := reader.unlogged():
        name = copy.stream if copy.table is None else copy.table.dbtable
        does += (
            f"; is parked at the first update that leaves a large value of {', '.join(unlogged)} as it was, which the "
            f"log does not have: run ALTER TABLE {name} REPLICA IDENTITY FULL first"
        )
    return replace(
        table_plan,
        connections=1,  # those of the log are the run's
        statement=statement,
        server_plan=server_plan,
        does=does,
        rows_between=estimated_rows(ends[0], table_plan.rows),
        columns=", ".join(f"{column.name} {column.type}" for column in columns),
        alters=_altered(copy.object, new, target_columns),
        source_lock=source_lock,
        target_lock=target_lock,
        staging=0,  # chunk by chunk
    )


def _explained(transfer: OpenedTransfer) -> tuple[str, str]:
    """The first statement of the read, and the server's plan; "" of a source without statements."""
    reader = transfer.sources[0].reader
    if not transfer.plan.tasks or not isinstance(reader, SqlReader):
        return "", ""
    return reader.explained(transfer.plan.tasks[0].split.params["split"])


def _altered(
    object_: str, new: Sequence[pa.Field], target_columns: pa.Schema | None
) -> tuple[str, ...]:
    """What will be created or altered in the target."""
    if target_columns is None:
        columns = ", ".join(f"{column.name} {column.type}" for column in new)
        return (f"CREATE {object_} ({columns})",)
    return tuple(f"ALTER {object_} ADD {column.name} {column.type}" for column in new)
