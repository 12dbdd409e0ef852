"""What a run of a replication would do, what it asks of the servers, and the faults of its file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.feed import FollowsTables, LogFacts
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.connectors.base.stored import server_facts
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.rights import lacking_to_read
from spark_channel.connectors.sql.write.job import SqlWriter
from spark_channel.connectors.sql.write.rights import lacking_to_write
from spark_channel.errors import ChannelError, JobFileError, MissingPackageError, OptionError
from spark_channel.option_types import resolve_references, without_references
from spark_channel.progress.report import short
from spark_channel.replication.config import (
    Limit,
    Place,
    Replication,
    StreamOptions,
    load_replication,
    over,
)
from spark_channel.replication.deletes import kept_key, with_columns
from spark_channel.replication.drift import LoadColumns, decide
from spark_channel.replication.foreign_keys import ForeignKeys
from spark_channel.replication.groups import looked_up
from spark_channel.replication.masks import MaskColumns
from spark_channel.replication.renames import key_of
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.table_run import RunSettings, TableRun, reader_of, why_of, writer_of
from spark_channel.replication.tables import (
    TableCopy,
    batch_options,
    connector_of,
    ends_fault,
    find_tables,
    options_but_names,
    target_schema,
)
from spark_channel.replication.tunnels import (
    check_publication,
    log_options,
    options_of,
    store_of,
    tunnel_of,
)
from spark_channel.service.windows import Speeds, seconds_for, zone_of
from spark_channel.transfers.plan import OpenedTransfer, rehearse
from spark_channel.transform.transformer import Transformer, prepare
from spark_channel.tunnel.source import StreamSource

__all__ = ["RunPlan", "TablePlan", "check_replication", "plan_replication"]

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
    with keeping_sessions():
        unread, keys = (
            _unreadable(replication, found_tables.copies),
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
        _NUMBERS.get(source, ("the source's catalog", 0.0))[0],
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
        facts = _log_facts_of(replication)
        tunnel_of(replication).exists()
        lacks = tuple(filter(None, (_store_lacks(replication),)))
    except ChannelError as error:
        return "unknown", (str(error),)
    if facts is None:
        return "unknown", lacks
    return _log_kept(facts, seconds), (*facts.missing, *lacks)


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
            every = (unread, _unwritable(copy), _unfollowed(replication, copy))
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
    source_lock, target_lock = _locks_of(source, target, writes)
    rows = table_plan.rows if plan.rows is None else plan.rows
    nbytes = table_plan.nbytes if plan.nbytes is None else plan.nbytes
    return replace(
        table_plan,
        does="; ".join(part for part in (does, outcome.why) if part),
        rows=rows,
        nbytes=nbytes,
        rows_between=_estimated(source, rows),
        alters=_altered(copy.object, adds, target_columns),
        lacks=() if target_columns is None else keys.lacks(copy),
        left_out=keys.left_out(copy, transfer.left_out),
        renamed=transfer.renamed,
        builds=transfer.builds,
        source_lock=source_lock,
        target_lock=target_lock,
        staging=_staging_of(target, nbytes),
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
    columns = _followed_columns(replication, copy)
    target_columns = target_schema(copy, writer_of(copy))
    decision = decide(copy.contract, columns, target_columns, keeps_columns=True)
    if decision.skip:
        return replace(table_plan, does=decision.skip, rows=0, nbytes=0)
    names = [] if target_columns is None else [name.lower() for name in target_columns.names]
    new = [column for column in columns if column.name.lower() not in names]
    alters = bool(target_columns and new) and copy.contract.columns == "evolve"
    if refusal := _unwritable(copy, alters=alters):
        return replace(table_plan, fault=refusal)
    if target_columns is not None and not copy.is_lake:
        key_options = {"writeMode": "upsert", "keyColumns": list(kept_key(keys, copy.deletes))}
        keyed_copy = replace(copy, writer={**copy.writer, **key_options, **dict(decision.options)})
        writer_of(keyed_copy).rehearse(
            WriteContext("plan", commit="job"), prepare(decision.steps, columns).output_schema
        )
    source_lock, target_lock = _locks_of(*ends, "key")
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
        rows_between=_estimated(ends[0], table_plan.rows),
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


# What a run asks of the servers, for those who answer for them: locks, staging, log that is kept, and rights.


_NUMBERS: Mapping[str, tuple[str, float]] = {
    "postgresql": (
        "pg_class, within about 10 %: autovacuum analyzes a table after so many changes",
        0.1,
    ),
    "mysql": ("information_schema.tables, within about 50 %: InnoDB samples pages", 0.5),
    "duckdb": ("duckdb_tables()", 0.0),
    "sqlite": ("the span of the keys: at most so many", 0.0),
}
"""Where a source's numbers of rows come from, and by how much they may be wrong."""

_READS: Mapping[str, str] = {
    "postgresql": "ACCESS SHARE while a statement runs",
    "mysql": "a metadata lock while a statement runs, and no row",
    "sqlite": "shared, while a statement runs",
    "duckdb": "the file is open for reading during the run",
}
_WRITES: Mapping[str, tuple[str, str, str]] = {
    "postgresql": (
        "ACCESS EXCLUSIVE from TRUNCATE to the publish's commit; it waits 2 s for that, and tries again",
        "ROW EXCLUSIVE while the rows are published",
        "ROW EXCLUSIVE and the changed rows, while they are published",
    ),
    "mysql": (
        "all its rows (DELETE) while the rows are published",
        "the new rows and a metadata lock, while they are published",
        "the changed rows and a metadata lock, while they are published",
    ),
    "sqlite": ("the whole file while the rows are published",) * 3,
    "duckdb": ("the whole file during the run: one process at a time may write it",) * 3,
}
"""The locks of an overwrite, of an append, and of a write by key."""
_NO_LOCK = "none: the rows become visible by one commit of the table's log"
_STAGED = ("postgresql", "mysql", "sqlite", "duckdb")
"""Databases have the rows twice until they are published; files are written once."""


def _estimated(source: str, rows: int | None) -> tuple[int, int] | None:
    """Between which numbers the rows are, if the catalog is as exact as it usually is; None = it does not say."""
    if rows is None:
        return None
    error = _NUMBERS.get(source, ("", 0.0))[1]
    return int(rows * (1 - error)), -int(-rows * (1 + error) // 1)


def _locks_of(source: str, target: str, writes: str) -> tuple[str, str]:
    """The locks on the source's table and on the target's; `writes` is "overwrite", "append" or "key"."""
    index = ("overwrite", "append", "key").index(writes)
    return _READS.get(source, "those of a SELECT"), _WRITES.get(target, (_NO_LOCK,) * 3)[index]


def _staging_of(target: str, nbytes: int | None) -> int | None:
    """The bytes that the target stages for a table, about; 0 of files, whose staging is the new files themselves."""
    return nbytes if target in _STAGED else 0


def _altered(
    object_: str, new: Sequence[pa.Field], target_columns: pa.Schema | None
) -> tuple[str, ...]:
    """What will be created or altered in the target."""
    if target_columns is None:
        columns = ", ".join(f"{column.name} {column.type}" for column in new)
        return (f"CREATE {object_} ({columns})",)
    return tuple(f"ALTER {object_} ADD {column.name} {column.type}" for column in new)


def _unreadable(replication: Replication, copies: Sequence[TableCopy]) -> dict[str, str]:
    """The streams whose tables the source's login may not read, each with what to do.

    Raises:
        ChannelError: the source does not answer.
    """
    tables = {copy.stream: copy.table for copy in copies if copy.table and not copy.fault}
    reader = next((reader_of(copy) for copy in copies if copy.stream in tables), None)
    if not isinstance(reader, SqlReader):
        return {}
    lacking = lacking_to_read(reader, {(table.schema, table.name) for table in tables.values()})
    refusals = {name: lacking.get((table.schema, table.name), "") for name, table in tables.items()}
    return {name: reason for name, reason in refusals.items() if reason}


def _unwritable(copy: TableCopy, *, alters: bool = False) -> str:
    """What to do for the rights that the target's login lacks; "" = it has them, or the target is not asked.

    Raises:
        ChannelError: the target does not answer.
    """
    follows = copy.mode == "full_then_changes" and not copy.is_lake
    applied = {"writeMode": "apply"} if follows else {}
    writer = writer_of(replace(copy, writer={**copy.writer, **applied}))
    if not isinstance(writer, SqlWriter):
        return ""
    return lacking_to_write(writer.database, overwrite=copy.mode == "full", alters=alters)


def _unfollowed(replication: Replication, copy: TableCopy) -> str:
    """Why the log of a table that the login may not read cannot be followed either; "" = it can, or is not to be."""
    if copy.mode != "full_then_changes" or copy.table is None:
        return ""
    try:
        StreamSource(options_of(replication, [copy])).feed.joining(copy.table.dbtable, again=False)
    except ChannelError as error:
        return why_of(error)
    return ""


def _store_lacks(replication: Replication) -> str:
    """What to do for the rights that the tunnel's store in a database of PostgreSQL asks for; "" = it has them.

    Raises:
        ChannelError: the store does not answer.
    """
    store, target = store_of(replication), connector_of(replication.target, "writer")
    if store is None or target.name != "postgresql":
        return ""
    options = {"url": store, "dbtable": "spark_channel_tunnels", "ledger": "none"}
    writer, _ = target.writer_with({**options, "writeMode": "apply"})
    assert isinstance(writer, SqlWriter)
    return lacking_to_write(writer.database, overwrite=False)


def _followed_columns(replication: Replication, copy: TableCopy) -> pa.Schema:
    """The columns that the target gets of a table that is followed. Holds its log to have its changes.

    Raises:
        ChannelError: the log does not have them, or the table cannot be followed; says what to do.
    """
    assert copy.table is not None
    name = copy.table.dbtable
    source = StreamSource(
        {
            **resolve_references(replication.source.options()),
            **log_options(replication, [name]),
            "dbtable": name,
            "onSchemaChange": "evolve",
        }
    )
    source.feed.schema()
    StreamSource(options_of(replication, [copy])).feed.joining(name, again=False)
    masks = copy.options.columns
    steps: list[Transformer] = [MaskColumns.for_stream(copy.stream, masks)] if masks else []
    if copy.options.load_columns:
        steps.append(LoadColumns("plan", utc_now()))
    return with_columns(prepare(steps, source.reader.schema()).output_schema, copy.deletes)


def _log_facts_of(replication: Replication) -> LogFacts | None:
    """What the source's log asks of the login and of the server; None = its connector does not say.

    Raises:
        ChannelError: the source does not answer.
    """
    options = {**resolve_references(replication.source.options()), **log_options(replication)}
    source = StreamSource({**options, "tables": "*"})
    reader = source.reader
    if not isinstance(reader, FollowsTables):
        return None
    return reader.log_facts(source.options.slot)


def _log_kept(facts: LogFacts, seconds: float | None) -> str:
    """The log that the server keeps for a run: while existing rows are copied, and after that."""
    if facts.bytes_per_second is None or seconds is None:
        return facts.keeps
    while_copying = (
        f"about {short(facts.bytes_per_second * seconds)}B while the existing rows are copied"
    )
    return f"{facts.keeps}; {while_copying}, at the rate at which the server has written WAL on average"


# The faults of the file, which are found without a connection.


_Half = Literal["reader", "writer"]


def check_replication(path: Path) -> tuple[list[str], list[str]]:
    """Every fault of the file, and the packages that it needs and this Python does not have."""
    try:
        replication = load_replication(path)
    except JobFileError as error:
        return [str(error), *error.others], []
    faults: list[str] = []
    needs: list[str] = []
    ends: tuple[tuple[str, _Half, Place], ...] = (
        ("source", "reader", replication.source),
        ("target", "writer", replication.target),
    )
    for name, half, end in ends:
        try:
            _check_options(replication, name, half, end)
        except MissingPackageError as error:
            needs.append(f"{name}: {error}")
        except ChannelError as error:
            faults.append(f"{path}: {error}")
    faults += [f"{path}: {fault}" for fault in _stream_faults(replication)]
    modes = {options.mode for options in (replication.defaults, *replication.streams.values())}
    if "full_then_changes" in modes and not faults and not needs:
        try:
            check_publication(replication)
        except OptionError as error:
            faults.append(f"{path}: {error}")
    return faults, needs


def _check_options(replication: Replication, name: str, half: _Half, end: Place) -> None:
    """Check that the options of one end, also with those of each stream, are options of its connector."""
    connector = connector_of(end, half)
    whole: dict[str, Any] = without_references(batch_options(end))
    names = connector.options_class(half).names()
    if "dbtable" in names:
        whole["dbtable"] = "no.table"
    if half == "reader" and "dbtable" not in names:
        raise JobFileError(
            f"{name}: connector {connector.name!r} has no catalog of tables: replicate reads databases, and `copy` "
            "one folder or file"
        )
    options_key = "source_options" if half == "reader" else "target_options"
    entries = {"defaults": replication.defaults}
    entries |= {f"streams.'{key}'": section for key, section in replication.streams.items()}
    tried: list[tuple[str, dict[str, Any]]] = [(name, {})]
    tried += [
        (f"{key}.{options_key}", options)
        for key, section in entries.items()
        if (options := getattr(section, options_key))
    ]
    for where, extra in tried:
        try:
            options = {**whole, **without_references(extra)}
            connector.reader_with(options) if half == "reader" else connector.writer_with(options)
        except MissingPackageError:
            raise
        except ChannelError as error:
            raise JobFileError(f"{where}: {error}") from error


def _stream_faults(replication: Replication) -> list[str]:
    """What is missing in a stream, or too much for the source and the target, whichever tables it matches."""
    faults = []
    for key, options in replication.streams.items():
        merged = over(replication.defaults, options)
        with suppress(JobFileError):  # an unknown connector has its own fault
            name, fault = ends_fault(replication, merged)
            if fault and not merged.disabled:
                is_own = getattr(options, name) is not None
                faults.append(
                    f"streams.'{key}'.{name}: {fault}" if is_own else f"defaults.{name}: {fault}"
                )
        update_key = options.update_key or replication.defaults.update_key
        mode = options.mode or replication.defaults.mode
        if mode == "incremental" and update_key is None and not _may_come(replication, key):
            faults.append(
                f"streams.'{key}' has mode incremental and no update_key; it takes a column's name"
            )
    return list(dict.fromkeys(faults))


def _may_come(replication: Replication, key: str) -> bool:
    """Whether another pattern may give the tables of this one their update_key."""
    others: list[StreamOptions] = [
        options for name, options in replication.streams.items() if name != key
    ]
    return any(other.update_key is not None for other in others)
