"""Health signals of a MySQL or MariaDB server: some for any role, more with PROCESS and REPLICATION rights."""

import time
from collections.abc import Callable
from typing import Any

from spark_channel.connectors.base.health import (
    RowCost,
    SessionHealth,
    StatementLatency,
    WakeLatency,
)
from spark_channel.connectors.mysql.options import ServerOptions
from spark_channel.connectors.mysql.session import MysqlSession, is_away
from spark_channel.errors import ChannelError
from spark_channel.limits import HealthSample
from spark_channel.limits.health import signal_bound

__all__ = ["MysqlHealth"]

_PINGS = 4

_WAKEUPS = 10

_NAP = 0.002

_RUNNING = "SHOW GLOBAL STATUS LIKE 'Threads_running'"

_HISTORY = (
    "SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
)

_REPLICA = ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
"""Of MySQL from 8.0.22 on and of MariaDB from 10.5.1 on, and the older name for it."""

_BEHIND = ("Seconds_Behind_Source", "Seconds_Behind_Master")

_STATEMENTS = """
SELECT CONCAT(USER, ' ', EVENT_NAME), COUNT_STAR, SUM_TIMER_WAIT / 1e12
FROM performance_schema.events_statements_summary_by_user_by_event_name
WHERE COUNT_STAR > 0 AND USER <> SUBSTRING_INDEX(USER(), '@', 1)
  AND (EVENT_NAME LIKE 'statement/sql/%' OR EVENT_NAME = 'statement/com/Execute')
"""
"""Of other users than the job's own. No table has users and digests, so a kind is one of SQL's verbs."""

_STATEMENTS_SECONDS = 1.0

_COUNTS_STATEMENTS = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name = 'performance_schema' AND Value = 'ON'"
)

_ASLEEP = " UNION ALL ".join(
    [f"SELECT UNIX_TIMESTAMP(SYSDATE(6)), SLEEP({_NAP}), UNIX_TIMESTAMP(SYSDATE(6))"] * _WAKEUPS
)


class MysqlHealth(SessionHealth[MysqlSession]):
    """The health of a server that is read or written. Only a replica knows its lag, so that is a signal of a read."""

    def __init__(
        self, options: ServerOptions, failure: type[ChannelError], cost: RowCost | None = None
    ) -> None:
        super().__init__(cost)
        self._options = options
        self._failure = failure
        self._readable: dict[str, Callable[[MysqlSession], float | None]] = {}
        self._missing: tuple[str, ...] = ()
        self._naps = WakeLatency(_NAP)
        self._statements = StatementLatency()
        self._counts_statements = False
        self._statements_at = 0.0

    def connect(self) -> MysqlSession:
        session = MysqlSession(self._options, self._failure, patient=False)
        self._naps = WakeLatency(_NAP)
        with session.closed_on_failure():
            self._find_readable(session)
        return session

    def ask(self, session: MysqlSession) -> HealthSample:
        values = {}
        for name, ask in self._readable.items():
            value = ask(session)
            if value is not None:
                values[name] = (value, signal_bound(name))
        naps = session.rows(_ASLEEP)
        delays = {
            "wakeup": self._naps.late(float(end) - float(begin) for begin, _, end in naps),
            "latency": [_seconds_of(session, "SELECT 1") for _ in range(_PINGS)],
        }
        if (mean := self._application(session)) is not None:
            delays["application"] = [mean]
        return HealthSample(values, delays, self._missing, row_seconds=self._cost.seconds)

    def _application(self, session: MysqlSession) -> float | None:
        """How slow others' statements are; None = not known, or nothing new."""
        now = time.monotonic()
        if not self._counts_statements or now - self._statements_at < _STATEMENTS_SECONDS:
            return None
        self._statements_at = now
        return self._statements.mean(
            (kind, float(calls), float(seconds))
            for kind, calls, seconds in session.rows(_STATEMENTS)
        )

    def _find_readable(self, session: MysqlSession) -> None:
        """Which signals the role may read, and the server has."""
        candidates: dict[str, tuple[tuple[Callable[[MysqlSession], float | None], ...], str]] = {
            "threads_running": ((_running,), ""),
            "history_length": ((_history,), "PROCESS"),
            "replication_lag": (tuple(_behind(sql) for sql in _REPLICA), "REPLICATION CLIENT"),
        }
        self._readable, missing = {}, []
        for name, (ways, right) in candidates.items():
            for ask in ways:
                try:
                    ask(session)
                except ChannelError as error:
                    if is_away(error):
                        raise
                    continue  # no right, or no such statement
                self._readable[name] = ask
                break
            else:
                missing.append(f"{name} (needs {right})" if right else name)
        try:
            self._counts_statements = False
            if session.rows(_COUNTS_STATEMENTS):
                session.rows(_STATEMENTS)
                self._counts_statements = True
        except ChannelError as error:
            if is_away(error):
                raise
            missing.append("application (needs SELECT on performance_schema)")
        self._missing = tuple(missing)


def _running(session: MysqlSession) -> float | None:
    """Without this session, which runs while it asks."""
    rows = session.rows(_RUNNING)
    return max(0.0, float(rows[0][1]) - 1) if rows else None


def _seconds_of(session: MysqlSession, sql: str) -> float:
    begun = time.monotonic()
    session.rows(sql)
    return time.monotonic() - begun


def _history(session: MysqlSession) -> float | None:
    value = session.value(_HISTORY)
    return None if value is None else float(value)


def _behind(sql: str) -> Callable[[MysqlSession], float | None]:
    def ask(session: MysqlSession) -> float | None:
        row: dict[str, Any] = session.named(sql)
        seconds = next((row[name] for name in _BEHIND if row.get(name) is not None), None)
        return None if seconds is None else float(seconds)

    return ask
