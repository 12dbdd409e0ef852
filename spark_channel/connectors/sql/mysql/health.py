"""Health signals of a MySQL or MariaDB server: some for any role, more with PROCESS and REPLICATION CLIENT."""

import time
from collections.abc import Callable
from typing import Any

from spark_channel.connectors.health import Health, Naps, RowCost
from spark_channel.connectors.sql.mysql.options import ServerOptions
from spark_channel.connectors.sql.mysql.session import LostConnectionError, MysqlSession
from spark_channel.errors import ChannelError
from spark_channel.limits import Sample
from spark_channel.limits.signals import most_of

__all__ = ["MysqlHealth"]

_PINGS = 4
_WAKEUPS = 10
_NAP = 0.002
_RUNNING = "SHOW GLOBAL STATUS LIKE 'Threads_running'"
_HISTORY = "SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
_REPLICA = ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
"""Of MySQL from 8.0.22 on and of MariaDB from 10.5.1 on, and the older name for it."""
_BEHIND = ("Seconds_Behind_Source", "Seconds_Behind_Master")
_ASLEEP = " UNION ALL ".join(
    [f"SELECT UNIX_TIMESTAMP(SYSDATE(6)), SLEEP({_NAP}), UNIX_TIMESTAMP(SYSDATE(6))"] * _WAKEUPS
)


class MysqlHealth(Health):
    """The health of a server that is read or written. Only a replica knows its lag, so that is a signal of a read."""

    def __init__(
        self, options: ServerOptions, failure: type[ChannelError], cost: RowCost | None = None
    ) -> None:
        self._options = options
        self._cost = cost or RowCost()
        self._failure = failure
        self._session: MysqlSession | None = None
        self._readable: dict[str, Callable[[MysqlSession], float | None]] = {}
        self._missing: tuple[str, ...] = ()
        self._naps = Naps(_NAP)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def sample(self) -> Sample:
        try:
            return self._sample()
        except LostConnectionError as error:
            self.close()
            raise self._failure(error.text) from error
        except ChannelError:
            self.close()
            raise

    def _sample(self) -> Sample:
        if self._session is None:
            self._session = MysqlSession(self._options, self._failure, patient=False)
            self._naps = Naps(_NAP)
            self._find_readable(self._session)
        session, values = self._session, {}
        for name, ask in self._readable.items():
            value = ask(session)
            if value is not None:
                values[name] = (value, most_of(name))
        naps = session.rows(_ASLEEP)
        delays = {
            "wakeup": self._naps.late(float(end) - float(begin) for begin, _, end in naps),
            "latency": [_seconds_of(session, "SELECT 1") for _ in range(_PINGS)],
        }
        return Sample(values, delays, self._missing, row_seconds=self._cost.seconds)

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
                except LostConnectionError:
                    raise
                except ChannelError:  # no right, or no such statement
                    continue
                self._readable[name] = ask
                break
            else:
                missing.append(f"{name} (needs {right})" if right else name)
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
        found = next((row[name] for name in _BEHIND if row.get(name) is not None), None)
        return None if found is None else float(found)

    return ask
