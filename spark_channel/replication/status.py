"""What the runs of a replication have done, for each table; tables that are reset, or resumed."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from spark_channel.connectors.base.claims import StreamProgress
from spark_channel.connectors.base.feed import TableLag
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.errors import ChannelError, OptionError
from spark_channel.replication.config import Replication
from spark_channel.replication.foreign_keys import ForeignKeys
from spark_channel.replication.table_run import continue_numbers_of, writer_of
from spark_channel.replication.tables import TableCopy, find_tables
from spark_channel.replication.tunnels import (
    AGAIN,
    ENDED,
    PARKED,
    begin_again,
    changes_of_channel,
    done_of,
    known_tables,
    note,
    parked_of,
    parts_of,
    read_again,
    tunnel_of,
    tunnel_options,
    tunnel_with_source,
)
from spark_channel.tunnel.records import ChannelState
from spark_channel.tunnel.source import slot_of
from spark_channel.tunnel.tunnel import ChannelView, TunnelView

__all__ = [
    "Ended",
    "TableStatus",
    "end_tables",
    "reset_tables",
    "resume_tables",
    "status_of",
]


_CHANNELS = 8
"""The newest channels of a tunnel, which are asked for the last changes of a table."""


@dataclass(frozen=True)
class TableStatus:
    """What the target records of one table, and the tunnel of one that is followed.

    `state`: "copied", "not copied", "reset"; "followed", "reading rows", "not followed", "parked"; or "unknown" with
    `why`. "reading rows": existing rows are left to read, for the first time or again. `rows`: of the last publication,
    at `published_at`. `columns`: what a run did with columns last, at `columns_at`; files and lake tables
    keep it of followed tables alone. `lag_rows` and `lag_seconds` are of a table that is followed: existing rows and
    changes that are left (None: not known), and the age of the first change; `log_kept_bytes`: what the source keeps
    for all that are followed. `lacks`: what a table that is copied lacks of the definition that `schema` asks for, as
    statements.
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
    log_kept_bytes: int | None = None
    columns: str = ""
    columns_at: str = ""
    why: str = ""
    lacks: tuple[str, ...] = ()


@keeping_sessions(looks=True)
def status_of(replication: Replication, select: Sequence[str] = ()) -> list[TableStatus]:
    """The tables, as the target records them. Opens both ends, and changes nothing.

    Raises:
        ChannelError: the source cannot be opened.
    """
    copies = find_tables(replication, select).copies
    followed = any(copy.mode == "full_then_changes" and not copy.fault for copy in copies)
    tunnel = _Followed(replication) if followed else None
    keys = ForeignKeys(copies)
    return [_status(copy, tunnel, keys) for copy in copies]


class _Followed:
    """The tunnel's view of its tables. `why`: it cannot be looked at."""

    def __init__(self, replication: Replication) -> None:
        self.exists, self.why = False, ""
        self.parked: dict[str, tuple[str, str]] = {}
        self._done: dict[str, tuple[str, str]] = {}
        self._id = ""
        self._channel: ChannelView | None = None
        self._channels: list[ChannelView] = []
        self._lags: dict[tuple[str, str], TableLag] = {}
        self._names: dict[tuple[str, str], str] = {}
        """The tables that the tunnel follows, as its source writes their names."""
        self.kept: int | None = None
        try:
            tunnel = tunnel_with_source(replication)
            self.exists = tunnel.exists()
            if not self.exists:
                return
            self.parked, self._done = parked_of(tunnel), done_of(tunnel)
            self._names = {
                parts_of(name): name for name in known_tables(tunnel, tunnel_options(replication))
            }
            self._look(tunnel.describe())
        except ChannelError as error:
            self.why = str(error)
            if self.exists:  # what the store knows without the source
                with suppress(ChannelError):
                    self._look(tunnel_of(replication).describe())

    def _look(self, view: TunnelView) -> None:
        self._id, self._channels = view.record.id, []
        for channel in view.channels:
            if channel.stage == "stream":
                self._channels.append(channel)
                if channel.channel.state is not ChannelState.TERMINATED:
                    self._channel = channel
        lag = None if self._channel is None else self._channel.lag
        self._lags = {} if lag is None else {parts_of(table.name): table for table in lag.tables}
        self.kept = None if lag is None else lag.kept
        self.why = self.why or ("" if self._channel is None else self._channel.no_lag)

    def table_status(self, copy: TableCopy, status: TableStatus) -> TableStatus:
        if not self.exists:
            if self.why:
                return replace(status, why=self.why)
            return replace(status, state=_without_tunnel(copy))
        state, reason = self.parked.get(copy.stream, ("", ""))
        assert copy.table is not None
        parts = copy.table.schema, copy.table.name
        lag, name = self._lags.get(parts), self._names.get(parts)
        if (name is None and self._names and not state) or (state, reason) == (AGAIN, ENDED):
            return replace(status, state=_without_tunnel(copy))
        reads = lag is not None and lag.stage in ("base", "waits")
        last = None if name is None else self._last(copy, name)
        columns, columns_at = self._done.get(copy.stream, ("", ""))
        return replace(
            status,
            columns=columns,
            columns_at=columns_at,
            rows=None if last is None else last.rows,
            published_at="" if last is None else last.published_at,
            state={PARKED: "parked", AGAIN: "reset"}.get(
                state, "reading rows" if reads else "followed"
            ),
            position=None if self._channel is None else self._channel.channel.sequence,
            lag_rows=None if lag is None else _left(lag),
            lag_seconds=None if lag is None else lag.seconds,
            log_kept_bytes=self.kept,
            why=reason or self.why,
        )

    def _last(self, copy: TableCopy, table: str) -> StreamProgress | None:
        """Return the last changes that the target got; None = none yet.

        Raises:
            ChannelError: the target does not answer.
        """
        # One follows another when a table joins or is read again.
        for view in self._channels[: -_CHANNELS - 1 : -1]:
            channel = changes_of_channel(self._id, f"{view.channel.id}/{table}")
            progress = writer_of(copy).stream_progress(channel)
            if progress is not None:
                return progress
        return None


def _without_tunnel(copy: TableCopy) -> str:
    """The state of a table that no tunnel follows: its following was ended, or has not begun."""
    return "not copied" if writer_of(copy).exists() is False else "not followed"


def _left(lag: TableLag) -> int | None:
    """Existing rows and changes that are left; None = not known. The catalog's number of rows may be too low."""
    if lag.stage not in ("base", "waits"):
        return lag.changes
    if lag.base_rows is None or lag.base_rows <= (lag.base_read or 0):
        return None
    return lag.base_rows - (lag.base_read or 0) + (lag.changes or 0)


def _status(copy: TableCopy, followed: _Followed | None, keys: ForeignKeys) -> TableStatus:
    status = TableStatus(copy.stream, copy.object, copy.mode, "unknown", why=copy.fault)
    if copy.fault:
        return status
    if copy.mode == "full_then_changes":
        assert followed is not None
        try:
            return followed.table_status(copy, status)
        except ChannelError as error:
            return replace(status, why=str(error))
    try:
        writer = writer_of(copy)
        progress = writer.stream_progress(copy.state_name())
        note = None if progress is None else writer.stream_note(copy.state_name())
    except ChannelError as error:
        return replace(status, why=str(error))
    if progress is None:
        return replace(status, state="not copied")
    if note is not None:
        status = replace(status, columns=note.text, columns_at=note.at)
    with suppress(ChannelError):  # what the target has to say of its rows is known already
        status = replace(status, lacks=keys.lacks(copy))
    if progress.position is None:
        return replace(status, state="reset", published_at=progress.published_at)
    return replace(
        status,
        state="copied",
        rows=progress.rows,
        position=progress.position if copy.mode == "incremental" else None,
        published_at=progress.published_at,
    )


@dataclass(frozen=True)
class Ended:
    """What `end_tables` has ended. `slot`: the replication slot that was dropped with the last of them; "" = none."""

    streams: tuple[str, ...]
    others: tuple[str, ...] = ()
    """Tables that were named, and are not followed."""
    slot: str = ""
    is_whole: bool = False


def end_tables(replication: Replication, select: Sequence[str] = ()) -> Ended:
    """End the following of tables, without `select` of all: the tunnel leaves them, and the target its claims of them.

    With the last table the tunnel, its checkpoints and its slot are dropped. The rows in the target stay.

    Raises:
        OptionError: none of the names is a table. ChannelError: an end cannot be reached, or a run follows the tables.
    """
    copies = _named(replication, select, "end") if select else find_tables(replication).copies
    tunnel = tunnel_with_source(replication)
    existing = [copy for copy in copies if copy.table is not None]
    if not tunnel.exists():
        return Ended((), tuple(copy.stream for copy in existing) if select else ())
    followed = known_tables(tunnel, tunnel_options(replication))
    names = {parts_of(name): name for name in followed}
    ended = {}
    for copy in existing:
        assert copy.table is not None
        name = names.get((copy.table.schema, copy.table.name))
        if name is not None and copy.mode == "full_then_changes":
            ended[name] = copy
    streams = tuple(copy.stream for copy in ended.values())
    others = tuple(copy.stream for copy in existing if copy.stream not in streams) if select else ()
    state, record = tunnel.store.state(tunnel.name), tunnel.store.get(tunnel.name)
    channels = [channel.id for channel in state.channels.values() if not channel.is_base]
    is_whole = not select or followed <= ended.keys()
    for copy in (
        ended.values()
    ):  # while the tunnel is there, so that `end` can be repeated where an end does not answer
        continue_numbers_of(copy)
    if is_whole:
        tunnel.delete()
    else:
        for name, copy in ended.items():
            note(tunnel, copy.stream, AGAIN, ENDED)  # one that comes back is read again
            tunnel.remove_table(name)
    for name, copy in ended.items():
        writer = writer_of(copy)
        for channel in channels:
            writer.end_stream(changes_of_channel(record.id, f"{channel}/{name}"))
    return Ended(streams, others, slot_of(record) if is_whole else "", is_whole)


def reset_tables(replication: Replication, select: Sequence[str]) -> list[str]:
    """Let the tables begin again: the next run replaces all their rows. Returns their names.

    All tables that are followed, together, also begin at the present end of the source's log.

    Raises:
        OptionError: no table is named, or none of this name is there. ChannelError: an end cannot be opened.
    """
    copies = _named(replication, select, "reset")
    followed = [copy for copy in copies if copy.mode == "full_then_changes" and not copy.fault]
    if followed and tunnel_of(replication).exists():
        others = [copy for copy in find_tables(replication).copies if copy not in copies]
        # before the tunnel begins again: where this ends between the two, no row stays that the source has deleted
        read_again(replication, [copy.stream for copy in followed])
        if not any(other.mode == "full_then_changes" and other.table for other in others):
            begin_again(replication, followed)
    for copy in copies:
        if copy.mode != "full_then_changes":
            writer_of(copy).forget_stream(copy.state_name())
    return [copy.stream for copy in copies]


def resume_tables(replication: Replication, select: Sequence[str]) -> tuple[list[str], list[str]]:
    """Have the next run read all rows of parked tables again. Returns their names, and those that are not parked.

    A table of another mode is tried again by each run.

    Raises:
        OptionError: no table is named, or none of this name is there. ChannelError: an end cannot be opened.
    """
    copies = _named(replication, select, "resume")
    parked: set[str] = set()
    if any(copy.mode == "full_then_changes" for copy in copies):
        tunnel = tunnel_of(replication)
        if tunnel.exists():
            parked = {name for name, (state, _) in parked_of(tunnel).items() if state == "parked"}
    names = [copy.stream for copy in copies]
    resumed = [name for name in names if name in parked]
    read_again(replication, resumed)
    return resumed, [name for name in names if name not in parked]


def _named(replication: Replication, select: Sequence[str], action: str) -> list[TableCopy]:
    copies = find_tables(replication, select).copies
    existing = [copy for copy in copies if copy.table is not None]
    if not select or not existing:
        raise OptionError(
            f"{action} got {', '.join(select) or 'no table'}; it takes the names of tables that the streams of the "
            "file name, or patterns of them",
            option="TABLE",
        )
    return existing
