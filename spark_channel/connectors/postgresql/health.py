"""Health signals of a PostgreSQL server: some for any role, more with `pg_monitor`."""

import time
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any, Self

from spark_channel.connectors.base.health import (
    RowCost,
    SessionHealth,
    StatementLatency,
    WakeLatency,
    way_seconds,
)
from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.postgresql.session import PgWriteSession
from spark_channel.errors import ChannelError, TargetError
from spark_channel.limits import HealthSample
from spark_channel.limits.health import signal_bound

__all__ = ["Lag", "PerMinute", "PostgresHealth"]

_NEWS = 170000
"""From this version on `pg_stat_checkpointer` counts checkpoints."""
_PINGS = 2
_NAP, _NAPS, _LOOK_EACH = 0.0015, 20, 4
_REST, _LONGEST_REST, _LOOKS_SEEN = 1_000.0, 5.0, 3
"""A sample looks at statements each second, and less often where that takes more than a thousandth of the time, as it
does with thousands of them. The shortest of the last looks counts: longer ones waited for a core."""
_NEEDS_MONITOR = "needs pg_monitor"

_SESSIONS = """
SELECT count(*) FILTER (WHERE state = 'active' AND is_client)::float8 AS active,
  count(*) FILTER (WHERE state = 'active' AND is_client
    AND wait_event_type IN ('Lock', 'LWLock', 'IO', 'BufferPin'))::float8 AS waiting,
  max(age(backend_xmin))::float8 AS xmin_age,
  count(*) FILTER (WHERE query = '<insufficient privilege>')::float8 AS hidden
FROM (SELECT state, wait_event_type, backend_xmin, query, backend_type = 'client backend' AS is_client
  FROM pg_stat_get_activity(NULL)
  WHERE coalesce(application_name, '') NOT LIKE 'spark-channel%' AND pid <> pg_backend_pid()) AS others
"""
_SLOTS = "SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn))::float8 FROM pg_replication_slots"
_FORCED = (
    "SELECT checkpoints_req::float8 FROM pg_stat_bgwriter",
    "SELECT num_requested::float8 FROM pg_stat_checkpointer",
)
_OF_STANDBYS = """
FROM pg_stat_get_wal_senders() AS sender JOIN pg_stat_get_activity(NULL) AS session USING (pid)
WHERE coalesce(application_name, '') NOT LIKE 'spark-channel%'
"""
_LAG = (
    "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8, "
    f"min(pg_wal_lsn_diff(replay_lsn, '0/0'))::float8 {_OF_STANDBYS}"
)
_OWN_LAG = (
    "SELECT pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '0/0')::float8, "
    "pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::float8"
)
_STATEMENTS_SCHEMA = """
SELECT quote_ident(n.nspname), string_to_array(e.extversion, '.')::int[] >= '{1,8}'
FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'pg_stat_statements'
"""
_STATEMENTS = """
SELECT userid::text || ' ' || dbid::text || ' ' || queryid::text, calls::float8, {total}::float8 / 1000
FROM {schema}.pg_stat_statements(false)
WHERE queryid IS NOT NULL AND userid <> quote_ident(current_user)::regrole
ORDER BY calls DESC LIMIT 100
"""
"""Of other roles than the job's own: which statement is of which session is not known."""
_TOTAL = ("total_time", "total_exec_time")
_NEEDS_STATEMENTS = "application (needs pg_monitor, and pg_stat_statements loaded)"
_ASLEEP = f"""
SELECT extract(epoch FROM clock_timestamp())::float8, pg_sleep({_NAP})::text,
  extract(epoch FROM clock_timestamp())::float8,
  CASE WHEN n % {_LOOK_EACH} = 0 AND pg_stat_clear_snapshot()::text = '' THEN (
    SELECT coalesce(string_agg(split_part(own.application_name, ' ', 2), ' '), '')
    FROM pg_stat_get_activity(NULL) AS own
    WHERE n > 0 AND own.usesysid = quote_ident(current_user)::regrole AND own.state = 'active'
      AND coalesce(own.wait_event_type, '') NOT IN ('Client', 'Timeout', 'Lock')
      AND own.application_name LIKE 'spark-channel %'
  ) END
FROM generate_series(1, {_NAPS}) AS n
"""  # noqa: S608 - constants
"""Naps of a session: the time beyond the shortest is a wait for a core, whatever the client does. Behind some of
them, which sessions that `read` or `write` for jobs have or want a core, or wait for a disk: not those that wait for
their client.

The server waits for whole milliseconds: for two here, and then is done. A wait of one may end a little early, and then
it waits for another one.
"""
_RATE_SECONDS = 60.0
_MOST_POSITIONS = 20_000
"""Four a second for more than an hour. An older position counts as that old."""


class Lag:
    """The lag of a replica in seconds, from positions in the log: clocks of two hosts are never compared."""

    def __init__(self) -> None:
        self._written: deque[tuple[float, float]] = deque(maxlen=_MOST_POSITIONS)

    def seconds(self, now: float, written: float, replayed: float) -> float:
        """The log is `written` long now, and the replica has `replayed` so much of it."""
        if not self._written or written > self._written[-1][1]:
            self._written.append((now, written))
        while self._written and self._written[0][1] <= replayed:
            self._written.popleft()
        return now - self._written[0][0] if self._written else 0.0


class PerMinute:
    """The rate, over the last minute, of a counter that only grows, but for a restart of the server."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def count(self, now: float, counter: float) -> float:
        if self._seen and counter < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, counter))
        while self._seen[0][0] < now - _RATE_SECONDS:
            self._seen.popleft()
        return counter - self._seen[0][1]


class PostgresHealth(SessionHealth[PgWriteSession]):
    """The health of a primary, or of a standby that is read."""

    def __init__(
        self, options: PostgresOptions, failure: type[ChannelError], cost: RowCost | None = None
    ) -> None:
        super().__init__(cost)
        self._options = options
        self._failure = failure
        self._is_standby = False
        self._forced_sql = ""
        self._standbys = 0
        self._lag = Lag()
        self._kind = "write" if failure is TargetError else "read"
        self._working: list[list[str]] = []
        self._naps = WakeLatency(_NAP)
        self._forced = PerMinute()
        self._statements = StatementLatency()
        self._statements_sql: str | None = None
        self._application: list[float] = []
        self._took: deque[float] = deque(maxlen=_LOOKS_SEEN)
        self._way = 0.0
        self._rests_until = 0.0
        self._slow: dict[str, Any] = {}
        self._hides_sessions = False
        self._turns: dict[str, float] = {}

    def ask(self, session: PgWriteSession) -> HealthSample:
        latency = [_seconds_of(session) for _ in range(_PINGS)]
        with session.transaction():
            return self._asked(session, latency)

    def _asked(self, session: PgWriteSession, latency: list[float]) -> HealthSample:
        self._look(session)
        lag = self._lag_of(session)
        all_delays = {**self._slow, "replication_lag": lag}
        naps = session.rows(_ASLEEP)
        self._working = [kinds.split() for *_, kinds in naps if kinds is not None]
        delays = {
            "latency": latency,
            "wakeup": self._naps.late(end - begin for begin, _, end, _ in naps),
            "own_sessions": self._own_sessions(self._kind),
        }
        if self._application:
            delays["application"], self._application = self._application, []
        return HealthSample(
            {
                name: (float(value), signal_bound(name))
                for name, value in all_delays.items()
                if value is not None
            },
            delays,
            tuple(self._missing(lag)),
            row_seconds=self._cost.seconds,
        )

    @property
    def server(self) -> Hashable:
        options = self._options
        script = getattr(options, "session_init_statement", None)
        return options.conninfo(), script, options.query_timeout

    def sample_for(self, other: Self, sample: HealthSample) -> HealthSample:
        sessions = {"own_sessions": self._own_sessions(other._kind)}
        return replace(super().sample_for(other, sample), delays={**sample.delays, **sessions})

    def connect(self) -> PgWriteSession:
        session = PgWriteSession.lent(self._options, failure=self._failure, purpose="health")
        with session.closed_on_failure():
            version, self._is_standby = session.rows(
                "SELECT current_setting('server_version_num')::int, pg_is_in_recovery()"
            )[0]
        self._forced_sql = _FORCED[version >= _NEWS]
        self._statements_sql = _statements_sql(session)
        # After a failover it is another server, and a standby reports less than a primary.
        self._slow, self._turns, self._standbys, self._rests_until = {}, {}, 0, 0.0
        self._took.clear()
        self._way = way_seconds(session.ping)
        self._lag, self._naps, self._forced = Lag(), WakeLatency(_NAP), PerMinute()
        return session

    def _own_sessions(self, kind: str) -> list[float]:
        return [float(kinds.count(kind)) for kinds in self._working]

    def _missing(self, lag: float | None) -> Iterator[str]:
        """The signals that this role may not read, each with the reason."""
        if lag is None and self._standbys:
            yield f"replication_lag ({_NEEDS_MONITOR})"
        if self._statements_sql == "":
            yield _NEEDS_STATEMENTS
        if self._hides_sessions:
            yield f"active_sessions, waiting_sessions ({_NEEDS_MONITOR})"

    def _look(self, session: PgWriteSession) -> None:
        """Read what changes slowly. No two parts share a sample: others would wait for both of them."""
        now = time.monotonic()
        for look, every, shift in (
            (self._look_at_statements, 1.0, 0.0),
            (self._look_at_sessions, 2.0, 0.5),
            (self._look_at_log, 2.0, 1.5),
        ):
            turn = (now + shift) // every
            if turn != self._turns.get(look.__name__):
                self._turns[look.__name__] = turn
                look(session)

    def _look_at_sessions(self, session: PgWriteSession) -> None:
        active, waiting, xmin_age, hidden = session.rows(_SESSIONS)[0]
        self._hides_sessions = bool(hidden)
        counts = (None, None) if hidden else (active, waiting)
        self._slow |= {
            "xmin_age": xmin_age,
            "active_sessions": counts[0],
            "waiting_sessions": counts[1],
        }

    def _look_at_log(self, session: PgWriteSession) -> None:
        if not self._is_standby:
            self._slow["slot_wal"] = session.value(_SLOTS)
            self._slow["forced_checkpoints"] = self._forced.count(
                time.monotonic(), session.value(self._forced_sql)
            )
            self._standbys = session.value(f"SELECT count(*) {_OF_STANDBYS}")

    def _look_at_statements(self, session: PgWriteSession) -> None:
        begun = time.monotonic()
        if self._statements_sql and begun >= self._rests_until:
            mean = self._statements.mean(session.rows(self._statements_sql))
            self._took.append(time.monotonic() - begun - self._way)
            self._rests_until = begun + min(_LONGEST_REST, _REST * min(self._took))
            self._application = [] if mean is None else [mean]

    def _lag_of(self, session: PgWriteSession) -> float | None:
        """None: the server has no replica, or this role may not see its lag."""
        if not self._is_standby and not self._standbys:
            return None
        now = time.monotonic()
        written, replayed = session.rows(_OWN_LAG if self._is_standby else _LAG)[0]
        return (
            None
            if written is None or replayed is None
            else self._lag.seconds(now, written, replayed)
        )


def _statements_sql(session: PgWriteSession) -> str | None:
    """The question for the sums of others' statements; None = the server has none, "" = this role may not read them."""
    rows_found = session.rows(_STATEMENTS_SCHEMA)
    if not rows_found:
        return None
    schema, is_new = rows_found[0]
    sql = _STATEMENTS.format(schema=schema, total=_TOTAL[is_new])
    try:
        session.rows(sql)
        reads_all = session.value("SELECT pg_has_role('pg_read_all_stats', 'USAGE')")
    except ChannelError:  # it was not loaded when the server started
        if not session.is_open:
            raise
        return ""
    return sql if reads_all else ""


def _seconds_of(session: PgWriteSession) -> float:
    begun = time.monotonic()
    session.ping()
    return time.monotonic() - begun
