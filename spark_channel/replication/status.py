"""What a run would do, and what the runs before it have done, for each table."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spark_channel.clock import utc_now
from spark_channel.connectors.base.feed import TableLag
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.session_pool import keeping_sessions
from spark_channel.errors import ChannelError, OptionError
from spark_channel.option_types import resolve_references
from spark_channel.replication.config import Limit, Replication
from spark_channel.replication.renames import key_of
from spark_channel.replication.report import ReplicationReport, TableOutcome
from spark_channel.replication.run import RunSettings, TableRun, writer_of
from spark_channel.replication.sheet import (
    NUMBERS,
    altered,
    estimated,
    followed_columns,
    locks_of,
    log_facts_of,
    log_kept,
    staging_of,
    store_lacks,
    unreadable,
    unwritable,
)
from spark_channel.replication.tables import TableCopy, connector_of, find_tables, target_schema
from spark_channel.replication.tunnels import (
    begin_again,
    log_options,
    parked_of,
    parts_of,
    read_again,
    tunnel_of,
)
from spark_channel.service.windows import Speeds, seconds_for, zone_of
from spark_channel.transfers.plan import OpenedTransfer, rehearse
from spark_channel.tunnel.records import ChannelState
from spark_channel.tunnel.tunnel import ChannelView

__all__ = [
    "RunPlan",
    "TablePlan",
    "TableStatus",
    "plan_replication",
    "reset_tables",
    "resume_tables",
    "status_of",
]

_OF_A_TUNNEL = 2
"""Connections beside those that read or write rows: the log, and the catalog or the tunnel's store."""


@dataclass(frozen=True)
class TableStatus:
    """What the target records of one table, and the tunnel of one that is followed.

    `state`: "copied", "not copied", "reset"; "followed", "parked"; or "unknown" with `why`. `lag_rows` and
    `lag_seconds` are of a table that is followed: existing rows and changes that are left, and the age of the first.
    """

    stream: str
    object: str
    mode: str
    state: str
    rows: int | None = None
    position: int | None = None
    published_at: str = ""
    lag_rows: int | None = None
    lag_seconds: float | None = None
    why: str = ""


def status_of(replication: Replication, select: Sequence[str] = ()) -> list[TableStatus]:
    """The tables, as the target records them. Opens both ends, and changes nothing.

    Raises:
        ChannelError: the source cannot be opened.
    """
    copies = find_tables(replication, select).copies
    followed = any(each.mode == "full_then_changes" and not each.fault for each in copies)
    tunnel = _Followed(replication) if followed else None
    return [_status(each, tunnel) for each in copies]


class _Followed:
    """The tunnel's view of its tables. `why`: it cannot be looked at."""

    def __init__(self, replication: Replication) -> None:
        self.exists, self.why = False, ""
        self.parked: dict[str, tuple[str, str]] = {}
        self._channel: ChannelView | None = None
        self._lags: dict[tuple[str, str], TableLag] = {}
        try:
            source = resolve_references(replication.source.options())
            options = {**source, **log_options(replication), "tables": "*"}
            tunnel = tunnel_of(replication, options)
            self.exists = tunnel.exists()
            if not self.exists:
                return
            self.parked = parked_of(tunnel)
            for each in tunnel.describe().channels:
                if each.stage == "stream" and each.channel.state is not ChannelState.TERMINATED:
                    self._channel = each
            lag = None if self._channel is None else self._channel.lag
            self._lags = {} if lag is None else {parts_of(each.name): each for each in lag.tables}
            self.why = "" if self._channel is None else self._channel.no_lag
        except ChannelError as error:
            self.why = str(error)

    def of(self, copy: TableCopy, shown: TableStatus) -> TableStatus:
        if not self.exists:
            return replace(shown, state="unknown" if self.why else "not copied", why=self.why)
        what, why = self.parked.get(copy.stream, ("", ""))
        assert copy.table is not None
        lag = self._lags.get((copy.table.schema, copy.table.name))
        if lag is None and self._lags and not what:
            return replace(shown, state="not copied")  # the file has it since the last run
        base = None
        if lag is not None and lag.base_rows is not None:
            base = max(0, lag.base_rows - (lag.base_read or 0))
        changes = None if lag is None else lag.changes
        left = None if changes is None and base is None else (changes or 0) + (base or 0)
        return replace(
            shown,
            state={"parked": "parked", "again": "reset"}.get(what, "followed"),
            position=None if self._channel is None else self._channel.channel.sequence,
            lag_rows=left,
            lag_seconds=None if lag is None else lag.seconds,
            why=why or self.why,
        )


def _status(copy: TableCopy, followed: _Followed | None) -> TableStatus:
    shown = TableStatus(copy.stream, copy.object, copy.mode, "unknown", why=copy.fault)
    if copy.fault:
        return shown
    if copy.mode == "full_then_changes":
        assert followed is not None
        return followed.of(copy, shown)
    try:
        known = writer_of(copy).stream_progress(copy.state_name())
    except ChannelError as error:
        return replace(shown, why=str(error))
    if known is None:
        return replace(shown, state="not copied")
    if known.position is None:
        return replace(shown, state="reset", published_at=known.published_at)
    return replace(
        shown,
        state="copied",
        rows=known.rows,
        position=known.position if copy.mode == "incremental" else None,
        published_at=known.published_at,
    )


def reset_tables(replication: Replication, select: Sequence[str]) -> list[str]:
    """Let the tables begin again: the next run replaces all their rows. Returns their names.

    All tables that are followed, together, also begin at the present end of the source's log.

    Raises:
        OptionError: no table is named, or none of this name is there. ChannelError: an end cannot be opened.
    """
    there = _named(replication, select, "reset")
    followed = [each for each in there if each.mode == "full_then_changes" and not each.fault]
    if followed and tunnel_of(replication).exists():
        others = [each for each in find_tables(replication).copies if each not in there]
        # before the tunnel begins again: where this ends between the two, no row stays that the source has deleted
        read_again(replication, [each.stream for each in followed])
        if not any(each.mode == "full_then_changes" and each.table for each in others):
            begin_again(replication, followed)
    for each in there:
        if each.mode != "full_then_changes":
            writer_of(each).forget_stream(each.state_name())
    return [each.stream for each in there]


def resume_tables(replication: Replication, select: Sequence[str]) -> tuple[list[str], list[str]]:
    """Have the next run read all rows of parked tables again. Returns their names, and those that are not parked.

    A table of another mode is tried again by each run.

    Raises:
        OptionError: no table is named, or none of this name is there. ChannelError: an end cannot be opened.
    """
    there = _named(replication, select, "resume")
    parked: set[str] = set()
    if any(each.mode == "full_then_changes" for each in there):
        tunnel = tunnel_of(replication)
        if tunnel.exists():
            parked = {name for name, (what, _) in parked_of(tunnel).items() if what == "parked"}
    names = [each.stream for each in there]
    found = [name for name in names if name in parked]
    read_again(replication, found)
    return found, [name for name in names if name not in parked]


def _named(replication: Replication, select: Sequence[str], action: str) -> list[TableCopy]:
    found = find_tables(replication, select).copies
    there = [each for each in found if each.table is not None]
    if not select or not there:
        raise OptionError(
            f"{action} got {', '.join(select) or 'no table'}; it takes the names of tables that the streams of the "
            "file name, or patterns of them",
            option="TABLE",
        )
    return there


@dataclass(frozen=True)
class TablePlan:
    """What a run would do with one table. `rows`, `nbytes`: estimates of the source's catalog; None = it has none.

    `rows_between`: as far as the catalog is as exact as it usually is. `does` says what becomes of the target, and
    `alters` what will be created or altered there; `fault` why the table would be parked. `connections`: most at a
    time, at each end. `source_lock`, `target_lock`: of its tables. `staging`: bytes that the target has twice until
    they are published. `statement` is the first one of the read, and `server_plan` what the server says that it would
    do for it.
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


@dataclass(frozen=True)
class RunPlan:
    """What a run would do. `seconds`: how long the limit makes it last, at least; None = more than four weeks.

    `seconds_between`: the same for the fewest and the most rows. `numbers`: where the rows come from. `staging`: the
    most bytes at a time. `log`: which log the source keeps for the run. `missing`: rights and settings that the run
    needs.
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
    log: str = ""
    missing: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Expected rows of all tables that are not parked, and whose number is known."""
        return sum(each.rows or 0 for each in self.tables if not each.fault)

    @property
    def nbytes(self) -> int:
        """Expected bytes of all tables that are not parked, and whose size is known."""
        return sum(each.nbytes or 0 for each in self.tables if not each.fault)


def plan_replication(
    replication: Replication,
    settings: RunSettings,
    *,
    parallelism: int,
    now: datetime | None = None,
) -> RunPlan:
    """What a run would do. Logs in at both ends, and holds rights and columns; changes nothing, and moves no row.

    Raises:
        ChannelError: the source cannot be opened.
    """
    found = find_tables(replication, settings.select)
    begin = now or utc_now()
    dry = replace(settings, dry_run=True)
    limit = replication.limit
    with keeping_sessions():
        unread = unreadable(replication, found.copies)
        tables = tuple(
            _plan(replication, each, dry, parallelism, begin, unread.get(each.stream, ""))
            for each in found.copies
        )
    copied = [each for each in tables if not each.fault]
    nbytes = sum(each.nbytes or 0 for each in copied)

    def lasts(rows: int) -> float | None:
        return _lasts(limit, begin, rows, nbytes or None)

    seconds = lasts(sum(each.rows or 0 for each in copied))
    between = [each.rows_between or (0, 0) for each in copied]
    log, missing = _log_of(replication, tables, seconds)
    source = connector_of(replication.source, "reader").name
    return RunPlan(
        tables,
        found.notes,
        _shown(limit),
        seconds,
        None if seconds is None else begin + timedelta(seconds=seconds),
        _connections(replication, tables),
        (lasts(sum(low for low, _ in between)), lasts(sum(high for _, high in between))),
        NUMBERS.get(source, ("the source's catalog", 0.0))[0],
        sum(sorted((each.staging or 0 for each in tables), reverse=True)[: replication.parallel]),
        log,
        missing,
    )


def _connections(replication: Replication, tables: Sequence[TablePlan]) -> int:
    """The most at a time, at each end: tables side by side, and after them those that are followed."""
    followed = any(each.mode == "full_then_changes" and not each.fault for each in tables)
    batch = (each.connections for each in tables if each.mode != "full_then_changes")
    most = sum(sorted(batch, reverse=True)[: replication.parallel])
    return max(most, replication.parallel + _OF_A_TUNNEL if followed else 0)


def _log_of(
    replication: Replication, tables: Sequence[TablePlan], seconds: float | None
) -> tuple[str, tuple[str, ...]]:
    """Which log the source keeps, and what is missing to follow it."""
    if not any(each.mode == "full_then_changes" and not each.fault for each in tables):
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
) -> TablePlan:
    """`unread`: why the login may not read the table; "" = it may."""
    limit = replication.limit
    table, source, target = (
        copy.table,
        str(copy.reader.get("reader")),
        str(copy.writer.get("writer")),
    )
    rows = None if table is None or (table.rows == 0 and table.nbytes) else table.rows
    made = TablePlan(
        copy.stream,
        copy.object,
        copy.mode,
        rows=rows,  # PostgreSQL has 0 for a table that was never analyzed
        nbytes=None if table is None else table.nbytes,
        fault=copy.fault,
    )
    if copy.fault:
        return made
    try:
        if unread:
            return replace(made, fault="; ".join(filter(None, (unread, unwritable(copy)))))
        if copy.mode == "full_then_changes":
            return _followed(replication, copy, made, (source, target))
        outcome = TableOutcome(copy.stream, copy.object, copy.mode)
        run = TableRun(copy, outcome, settings, ReplicationReport("plan", at))
        spec = run.spec()
        if spec is None:
            why = outcome.why or "no new rows"
            return replace(made, does=why, rows=0, nbytes=0)
        planned = replace(
            spec,
            stream=None,
            rows_per_second=limit.rows_per_second,  # which decides how the table is read
            bytes_per_second=limit.bytes_per_second,
        )
        with ExitStack() as held:
            opened, *_ = rehearse(planned, parallelism, held)
            statement, server_plan = _explained(opened)
    except ChannelError as error:
        return replace(made, fault=str(error))
    there = run.target_schema()
    does = (
        "creates"
        if there is None
        else "replaces all rows"
        if spec.save_mode == "overwrite"
        else "adds rows"
    )
    if str(spec.writer.options.get("writeMode", "")) == "upsert" and spec.save_mode == "append":
        does = "adds and updates rows"
    new = [] if there is None else [name for name in opened.schema.names if name not in there.names]
    if new and "onSchemaChange" in spec.writer.options:
        does += f", adds column {', '.join(new)}"
    plan = opened.plan
    writes = (
        "overwrite" if does == "replaces all rows" else "key" if "updates" in does else "append"
    )
    adds = [each for each in opened.schema if there is None or each.name in new]
    source_lock, target_lock = locks_of(source, target, writes)
    rows = made.rows if plan.rows is None else plan.rows
    nbytes = made.nbytes if plan.nbytes is None else plan.nbytes
    return replace(
        made,
        does="; ".join(each for each in (does, outcome.why) if each),
        rows=rows,
        nbytes=nbytes,
        rows_between=estimated(source, rows),
        alters=altered(copy.object, adds, there),
        source_lock=source_lock,
        target_lock=target_lock,
        staging=staging_of(target, nbytes),
        connections=plan.channels,
        columns=", ".join(f"{each.name} {each.type}" for each in opened.schema),
        statement=statement,
        server_plan=server_plan,
    )


def _followed(
    replication: Replication, copy: TableCopy, made: TablePlan, ends: tuple[str, str]
) -> TablePlan:
    """
    Raises:
        ChannelError: why the table cannot be followed.
    """
    key = ", ".join(key_of(copy))
    columns = followed_columns(replication, copy)
    there = target_schema(copy, writer_of(copy))
    names = [] if there is None else [name.lower() for name in there.names]
    new = [each for each in columns if each.name.lower() not in names]
    alters = bool(there and new) and copy.contract.columns == "evolve"
    if why := unwritable(copy, alters=alters):
        return replace(made, fault=why)
    source_lock, target_lock = locks_of(*ends, "key")
    return replace(
        made,
        does=f"copies all rows, then applies each change by {key}; deletes: {copy.deletes}",
        rows_between=estimated(ends[0], made.rows),
        columns=", ".join(f"{each.name} {each.type}" for each in columns),
        alters=altered(copy.object, new, there),
        source_lock=source_lock,
        target_lock=target_lock,
        staging=0,  # chunk by chunk
    )


def _explained(opened: OpenedTransfer) -> tuple[str, str]:
    """The first statement of the read, and the server's plan; "" of a source without statements."""
    reader = opened.sources[0].reader
    if not opened.plan.tasks or not isinstance(reader, SqlReader):
        return "", ""
    return reader.explained(opened.plan.tasks[0].split.params["split"])
