"""A replication slot, and what waits in the log behind it: created, looked into without advancing it, confirmed.

A position T means: all transactions whose commit record begins before T are done. That is also how the server skips
transactions behind a slot, and what the consistent point of a new slot says about a copy that begins after it.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import Any, cast

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.postgresql.failures import sqlstate_of
from spark_channel.connectors.postgresql.log.pgoutput import begin_time
from spark_channel.connectors.postgresql.log.position import lsn_text
from spark_channel.connectors.postgresql.log.slot_stream import STREAM_NAME
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.connectors.sql.feed.tables_lag import TableWaiting
from spark_channel.connectors.sql.read.short_statements import SessionHolder
from spark_channel.connectors.sql.statements import quoted_text
from spark_channel.errors import ChannelError, SourceError
from spark_channel.final_errors import of_input
from spark_channel.plain_text import log_of
from spark_channel.retry import Retry

__all__ = [
    "BUSY",
    "CHANGE_KINDS",
    "MOST_COUNTED",
    "ReplicationSlot",
    "create_slot",
    "end_stream",
    "flushed_lsn",
    "identifier",
    "lacks_slots",
    "lent",
    "lsn_literal",
    "peek",
    "quoted",
    "wait_until_free",
    "waiting_changes",
    "waiting_query",
]

_log = log_of(__name__)

_DENIED = "42501"
MOST_COUNTED = 100_000
"""Messages of the log that one look goes through."""
_SHOWN = """ordinality AS n, get_byte(data, 0) AS kind, octet_length(data) AS nbytes,
  CASE WHEN get_byte(data, 0) = ascii('T') THEN data ELSE substring(data FROM 1 FOR 21) END AS head"""
"""The head of a message shows its table, or when its transaction was committed. A truncate names all its tables."""
_QUERY = """
WITH shown AS ({shown}),
followed (oid, start) AS (VALUES {followed}),
placed AS (SELECT *, max(n) FILTER (WHERE kind = ascii('B')) OVER (ORDER BY n) AS begun FROM shown),
named AS (
  SELECT begun, nbytes, ('x' || encode(substring(
    head FROM CASE WHEN kind = ascii('T') THEN 7 + 4 * number ELSE 2 END FOR 4), 'hex'))::bit(32)::bigint AS oid
  FROM placed CROSS JOIN LATERAL generate_series(0, CASE WHEN kind = ascii('T') THEN
    get_byte(head, 3) * 256 + get_byte(head, 4) - 1 ELSE 0 END) AS number
  WHERE kind IN ({kinds})),
counted AS (
  SELECT oid, min(begun) AS first, count(*) AS changes, sum(named.nbytes) AS nbytes
  FROM named JOIN shown b ON b.n = begun JOIN followed USING (oid)
  WHERE substring(b.head FROM 2 FOR 8) >= start GROUP BY oid)
SELECT (SELECT count(*) FROM shown)::bigint, oid, changes::bigint, nbytes::bigint,
  (SELECT head FROM shown WHERE n = first)
FROM (SELECT 1) one LEFT JOIN counted ON true
"""
CHANGE_KINDS = ", ".join(str(ord(kind)) for kind in "IUDT")
"""The first bytes of messages that are changes."""
BUSY = "is active for PID"
_BUSY_SECONDS = 60.0
_NEW = """
WITH shown AS ({shown}), first AS (
  SELECT min(n) AS n FROM shown
  WHERE get_byte(data, 0) = ascii('B') AND substring(data FROM 2 FOR 8) >= decode('{start}', 'hex'))
SELECT (SELECT count(*) FROM shown s JOIN first f ON s.n > f.n WHERE get_byte(s.data, 0) IN ({changes}))::bigint,
  (SELECT count(*) FROM shown)::bigint
"""
"""The changes of transactions whose commit is at a position or behind it; and how many messages were shown."""
_INVALIDATED = {
    "wal_removed": "it kept more WAL than the setting max_slot_wal_keep_size allows, so raise that, or read more often",
    "idle_timeout": "no client read it for the time of the setting idle_replication_slot_timeout, so raise that, or "
    "read more often",
    "rows_removed": "the server removed rows that it needs",
    "wal_level_insufficient": "the setting wal_level is not logical any more",
}
"""By pg_replication_slots.invalidation_reason, which is there since PostgreSQL 17."""
_TOLD_SECONDS, _TOLD_AGAIN = 2.0, 30
"""A wait for a slot is told after 2 s, and again each minute."""
_WRITERS = """
SELECT text FROM (
  SELECT xact_start AS began, pg_catalog.format('process %s of user %s (%s, %s for %s s)', pid, usename,
    coalesce(nullif(application_name, ''), 'no application_name'), state,
    extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::int) AS text
  FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> {process}
  UNION ALL SELECT prepared, pg_catalog.format('prepared transaction %s', gid) FROM pg_catalog.pg_prepared_xacts
) writers ORDER BY began LIMIT 3
"""
_END_STREAM = """
SELECT pg_terminate_backend(a.pid) FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
WHERE s.slot_name = {slot} AND a.application_name = {name} AND a.usename = current_user AND a.backend_type = 'walsender'
"""


def waiting_query(look: Callable[[str], str], followed: Mapping[int, int]) -> str:
    """For `followed` tables, by their number in the log: the changes of transactions that were committed at a position
    or later. `look`: the query that shows columns of the log's messages, at most `MOST_COUNTED`.
    """
    values = ", ".join(
        f"({oid}::bigint, decode('{start:016x}', 'hex'))" for oid, start in followed.items()
    )
    return _QUERY.format(shown=look(_SHOWN), followed=values, kinds=CHANGE_KINDS)


def waiting_changes(
    rows: Sequence[tuple[Any, ...]], tables: Mapping[int, int], now: float
) -> dict[int, TableWaiting]:
    """What the query answered, for each table."""
    is_cut = int(rows[0][0]) >= MOST_COUNTED
    waiting = {oid: TableWaiting() if is_cut else TableWaiting(0, 0, 0.0) for oid in tables}
    for _, oid, changes, nbytes, first in rows:
        if oid is None:
            continue
        begun = begin_time(first)
        assert begun is not None
        seconds = max(0.0, now - begun / 1e6)
        waiting[int(oid)] = (
            TableWaiting(None, None, seconds)
            if is_cut
            else TableWaiting(int(changes), int(nbytes), seconds)
        )
    return waiting


class ReplicationSlot:
    """The slot of a feed, which decodes the changes of a publication."""

    _slot: str
    _publication: str

    def _made(self, session: PgReadSession) -> int | None:
        """The consistent point of the slot when it had to be made; None when it is there.

        One that the server has invalidated keeps nothing, and is made again.
        """
        rows = session.rows(self._slot_query())
        if rows and rows[0][2] is None:
            return None
        if rows:
            session.rows(f"SELECT pg_drop_replication_slot({quoted(self._slot)})::text")
        with session.transaction():
            return create_slot(session, self._slot, temporary=False)

    def _confirmed(self, session: PgReadSession) -> int:
        rows = session.rows(self._slot_query())
        if not rows:
            raise SourceError(
                f"replication slot {self._slot!r} does not exist in {session.place}: "
                "changes since it was dropped are lost to the stream. "
                "Reset the tunnel, or begin with a new checkpoint directory"
            )
        plugin, confirmed, lost = rows[0]
        if plugin != "pgoutput":
            raise SourceError(
                f"replication slot {self._slot!r} decodes with {plugin}, and the stream reads "
                "pgoutput: name another slot, which the stream creates"
            )
        if lost is not None:
            raise SourceError(
                f"replication slot {self._slot!r} in {session.place} was invalidated: "
                f"{_INVALIDATED.get(str(lost), str(lost))}. The changes since are lost to the stream. "
                "Reset the tunnel, or begin with a new checkpoint directory"
            )
        return int(confirmed)

    def _check_place(self, session: PgReadSession, start: int) -> None:
        confirmed = self._confirmed(session)
        advice = "Reset the tunnel, or begin with a new checkpoint directory"
        if start < confirmed:
            raise SourceError(
                f"the checkpoint is at {lsn_text(start)}, and slot {self._slot!r} at {lsn_text(confirmed)}: "
                f"it was created again, or another reader has advanced it, and the changes between are lost. {advice}"
            )
        flushed = flushed_lsn(session)
        if start > flushed:
            raise SourceError(
                f"the checkpoint is at {lsn_text(start)}, and the server's log ends at {lsn_text(flushed)}: "
                f"the offset is from the future, or of another server. {advice}"
            )

    def _slot_query(self) -> str:
        return (
            "SELECT plugin::text, (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, "  # noqa: S608 - quoted
            "CASE WHEN wal_status = 'lost' THEN coalesce(to_jsonb(s) ->> 'invalidation_reason', 'wal_removed') END "
            f"FROM pg_replication_slots s WHERE slot_name = {quoted(self._slot)} AND database = current_database()"
        )

    def _counted(self, session: PgReadSession, start: int, most: int) -> tuple[int | None, int]:
        """The position about `most` changes after `start`, and how many there are up to it."""
        new = f"lsn >= {lsn_literal(start)}"
        selected = (
            f"max(lsn - '0/0'::pg_lsn) FILTER (WHERE {new})::bigint, "
            f"count(*) FILTER (WHERE {new} AND get_byte(data, 0) IN ({CHANGE_KINDS}))::bigint, count(*)::bigint"
        )
        looked_at = most
        while True:
            ((last, count, looked_at_now),) = peek(
                session, self._slot, self._query(selected, None, looked_at)
            )
            if looked_at_now < looked_at or count >= most:
                return (None if last is None else int(last)), int(count)
            looked_at *= 4

    def _look_begins(self) -> None:
        self._looked_from = SYSTEM_CLOCK.now()

    def _last_of(self, session: PgReadSession, start: int, most: int) -> int | None:
        """The position about `most` changes after `start`; None if there are none.

        A slot that was not advanced to `start` yet shows older changes first, and may show nothing else.
        """
        selected = f"max(lsn - '0/0'::pg_lsn) FILTER (WHERE lsn > {lsn_literal(start)})::bigint, count(*)::bigint"
        while True:
            ((last, count),) = peek(
                session, self._slot, self._query(selected, None, most), begins=self._look_begins
            )
            if last is not None:
                return int(last)
            if count < most:
                return None
            most *= 4

    def _query(self, selected: str, upto: int | None, most: int | None, how: str = "") -> str:
        return (
            f"SELECT {selected} FROM pg_logical_slot_peek_binary_changes({quoted(self._slot)}, "  # noqa: S608 - quoted
            f"{'NULL' if upto is None else lsn_literal(upto)}, {'NULL' if most is None else most}, "
            f"'proto_version', '1', 'publication_names', {quoted(identifier(self._publication))}) {how}"
        )

    def _new_query(self, start: int, most: int) -> str:
        data_query = self._query("data, ordinality AS n", None, most, "WITH ORDINALITY")
        return _NEW.format(shown=data_query, start=f"{start:016x}", changes=CHANGE_KINDS)


@contextmanager
def lent(line: SessionHolder) -> Iterator[PgReadSession]:
    """The session of `line`, which is opened again after an error."""
    try:
        yield cast(PgReadSession, line.session())
    except BaseException:
        line.drop()
        raise


def lsn_literal(lsn: int) -> str:
    return f"'{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}'::pg_lsn"


def quoted(text: str) -> str:
    return quoted_text(text)


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def lacks_slots(role: str) -> str:
    """What to do for a role, as SQL writes it, that may not use replication slots."""
    return f"role {role} may not use replication slots: run ALTER ROLE {role} REPLICATION"


def create_slot(session: PgReadSession, name: str, *, temporary: bool) -> int:
    """Return the consistent point of a new slot. In a transaction, in which the session has written nothing.

    The server waits for all transactions that have written by now. It is told which, and a signal ends the wait: the
    session is not left waiting on the server.

    Raises:
        SourceError: the server makes none, as for a role without the right to use slots.
    """
    statement = (
        "SELECT (lsn - '0/0'::pg_lsn)::bigint FROM pg_create_logical_replication_slot("  # noqa: S608 - quoted
        f"{quoted(name)}, 'pgoutput', {str(temporary).lower()})"
    )
    process, role = session.rows("SELECT pg_backend_pid(), quote_ident(current_user)")[0]
    call: Future[Any] = Future()

    def run() -> None:
        try:
            call.set_result(session.value(statement))
        except BaseException as error:
            call.set_exception(error)

    thread = threading.Thread(target=run, name="spark-channel-slot", daemon=True)
    thread.start()
    told = 0
    try:
        while not wait([call], _TOLD_SECONDS).done:
            if told % _TOLD_AGAIN == 0:
                _tell_writers(session, name, process)
            told += 1
    except BaseException:
        with suppress(ChannelError), session.beside() as other:
            other.rows(f"SELECT pg_cancel_backend({process})")
        thread.join(_TOLD_SECONDS)
        raise
    try:
        return int(call.result())
    except ChannelError as error:
        if sqlstate_of(error) != _DENIED:
            raise
        raise of_input(SourceError(f"{session.place}: {lacks_slots(role)}")) from error


def _tell_writers(session: PgReadSession, name: str, process: int) -> None:
    with suppress(ChannelError), session.beside() as other:
        writers = [text for (text,) in other.rows(_WRITERS.format(process=process))]
        if writers:
            _log.warning(
                "replication slot %r is made when the transactions that write now have ended; the server waits for %s",
                name,
                "; ".join(map(str, writers)),
            )


def flushed_lsn(session: PgReadSession) -> int:
    return int(session.value("SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint"))


def end_stream(session: PgReadSession, slot: str) -> None:
    """End a connection of this program that keeps the slot, as of a process that was overtaken; it continues by looks.

    Nothing is lost by it: what it was sent and has not confirmed, the slot still has.
    """
    session.rows(_END_STREAM.format(slot=quoted(slot), name=quoted(STREAM_NAME)))


def peek(
    session: PgReadSession,
    slot: str,
    sql: str,
    seconds: float = _BUSY_SECONDS,
    *,
    begins: Callable[[], None] = lambda: None,
) -> list[tuple[Any, ...]]:
    """A look at the slot, which one session at a time may take. `begins` is called before each try."""

    def look() -> list[tuple[Any, ...]]:
        begins()
        try:
            return session.rows(sql)
        except SourceError as error:
            if BUSY in str(error):
                end_stream(session, slot)
            raise

    return Retry(seconds, first=0.05, longest=1.0, what="a look at the replication slot").call(
        look,
        lambda error: isinstance(error, SourceError) and BUSY in str(error),
    )


def wait_until_free(session: PgReadSession, slot: str) -> None:
    """A reader that was killed holds the slot until the server notices."""
    query = f"SELECT active FROM pg_replication_slots WHERE slot_name = {quoted(slot)}"  # noqa: S608 - quoted

    def look() -> None:
        if session.value(query):
            end_stream(session, slot)
            raise _SlotBusyError(f"replication slot {slot!r} {BUSY} of another reader")

    Retry(
        _BUSY_SECONDS, first=0.05, longest=1.0, what=f"waiting for replication slot {slot!r}"
    ).call(look, lambda error: isinstance(error, _SlotBusyError))


class _SlotBusyError(SourceError):
    """Another session reads from the slot."""
