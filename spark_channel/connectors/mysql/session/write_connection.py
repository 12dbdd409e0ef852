"""A connection that writes: each statement sees what was committed before it, and locks no gap between rows."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self, cast

from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.mysql.options import ServerOptions
from spark_channel.connectors.mysql.session.connection import (
    LostConnectionError,
    MysqlSession,
    code_of,
)
from spark_channel.errors import ChannelError

__all__ = [
    "DUPLICATE",
    "IGNORED_ROWS",
    "NO_TABLE",
    "TABLE_EXISTS",
    "MysqlWriteSession",
    "is_conflict",
    "passes",
    "was_rolled_back",
]


DUPLICATE, TABLE_EXISTS, NO_TABLE = 1062, 1050, 1146
_LOCK_TIMEOUT, _DEADLOCK, _CHANGED = 1205, 1213, 1020
_OF_KEYS = frozenset({DUPLICATE, 1287})
"""Warnings that a key is in the table (INSERT IGNORE), and that VALUES() is an old word."""
IGNORED_ROWS = 20_000
"""Rows of an INSERT IGNORE: a server stores other values than were sent with a warning, of which it keeps 65 535."""
_MOST_WARNINGS = 65_535
_IN_TRANSACTION = 1
"""A bit of the status that the server sends with each answer."""
_SILENT_SECONDS = 30
"""Less than `innodb_lock_wait_timeout` (50): a run that needs the lock of a silent client gets it in one wait."""


class MysqlWriteSession(MysqlSession):
    """`local_infile`: the server takes LOAD DATA LOCAL. `most_packet`: bytes of the longest statement.

    `lenient`: the user has asked for a mode in which the server changes values that do not fit.

    It raises LostConnectionError where an answer is missing. The caller then checks which rows were written.
    """

    pool_key: Hashable | None = None

    @classmethod
    def lent(cls, options: ServerOptions, failure: type[ChannelError], *, patient: bool) -> Self:
        """A session for a look, which sets nothing in it: one that was kept for the next tables, else a new one."""
        key = _key(options)

        def make() -> "MysqlWriteSession":
            session = cls(options, failure, patient=patient)
            session.pool_key = key
            return session

        return cast(Self, sessions.take(key, lambda session: session.renewed(failure), make))

    def renewed(self, failure: type[ChannelError]) -> bool:
        """Let another table use it; False = its server does not answer."""
        self._failure = failure
        self._kept.clear()
        try:
            self.ping()
        except (ChannelError, LostConnectionError):
            return False
        return True

    def is_reusable(self) -> bool:
        return self._connection is not None and not self._connection.server_status & _IN_TRANSACTION

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None or not sessions.give(self):
            self.close()

    def lost(self, text: str) -> Exception:
        return LostConnectionError(text)

    def undo(self) -> None:
        """End the transaction without its changes; a lost connection has done so."""
        with suppress(ChannelError, LostConnectionError):
            super().undo()

    def _make_ready(self, options: ServerOptions) -> None:
        super()._make_ready(options)
        self._kept: dict[Any, Any] = {}
        variables = {
            str(name).lower(): str(value).upper()
            for name, value in self.rows(
                "SHOW SESSION VARIABLES WHERE Variable_name IN ('local_infile', 'max_allowed_packet', "
                "'log_bin', 'binlog_format', 'sql_mode', 'time_zone')"
            )
        }
        self.local_infile = variables.get("local_infile") == "ON"
        self.most_packet = self._connection.most_packet = int(variables["max_allowed_packet"])
        self.lenient = options.sql_mode == "session" and "STRICT_" not in variables.get(
            "sql_mode", ""
        )
        self._zone = variables.get("time_zone", "SYSTEM")
        # A server that logs statements refuses to write under READ COMMITTED. SERIALIZABLE, too, reads nothing old.
        by_statement = (
            variables.get("log_bin") == "ON" and variables.get("binlog_format") == "STATEMENT"
        )
        level = "SERIALIZABLE" if by_statement else "READ COMMITTED"
        self.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")

    def kept(self, key: object, make: Callable[[], Any]) -> Any:
        """The value that this session cached for `key`."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    @contextmanager
    def in_utc(self) -> Iterator[None]:
        """While this is open the session's zone is UTC, so that the text of an instant means one instant."""
        self.execute("SET SESSION time_zone = '+00:00'")
        try:
            yield
        finally:
            self.execute("SET SESSION time_zone = %s", [self._zone])

    def list_warnings(self) -> None:
        """From here on the server keeps the warnings of every row that INSERT IGNORE leaves out."""
        self.execute(f"SET SESSION max_error_count = {_MOST_WARNINGS}, sql_notes = 0")

    def warnings_but_keys(self) -> list[str]:
        """The first texts of the last statement's warnings that say anything but that a key is in the table.

        A statement of `IGNORED_ROWS` rows leaves fewer than the server keeps.
        """
        warnings = self.rows("SHOW WARNINGS")
        if len(warnings) >= _MOST_WARNINGS:
            return [f"more than {_MOST_WARNINGS} warnings, of which the server shows no more"]
        return [str(text) for _, code, text in warnings if int(code) not in _OF_KEYS][:3]

    def end_when_silent(self) -> None:
        """From here on the server ends this session, and its transaction, when the client says nothing for 30 s.

        A process that is paused, or whose host is lost, so holds a claim for no longer.
        """
        self.execute(f"SET SESSION wait_timeout = {_SILENT_SECONDS}")


def _key(options: ServerOptions) -> Hashable | None:
    """Equal for sessions that may replace each other; None = a user's statements, or a bound, need a new one."""
    names = ("session_init_statement", "start_sql", "pre_sql", "post_sql", "max_connections")
    if any(getattr(options, name, None) for name in names):
        return None
    names_compared = {*ServerOptions.model_fields, "query_timeout", "hide_values"} - {
        "dbtable",
        *names,
    }
    return MysqlWriteSession, *(getattr(options, name, None) for name in sorted(names_compared))


def is_conflict(error: BaseException) -> bool:
    """Another transaction was first, or holds what this one needs."""
    return code_of(error) in (DUPLICATE, TABLE_EXISTS, _LOCK_TIMEOUT, _DEADLOCK, _CHANGED)


def was_rolled_back(error: BaseException) -> bool:
    """The server has rolled the whole transaction back, to end a deadlock."""
    return code_of(error) in (_DEADLOCK, _CHANGED)


def passes(error: BaseException) -> bool:
    """A lock that was not free in time, or a deadlock: the same transaction may do, run again."""
    return code_of(error) in (_LOCK_TIMEOUT, _DEADLOCK, _CHANGED)
