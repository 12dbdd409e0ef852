"""A connection that writes: each statement sees what was committed before it, and locks no gap between rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_channel.connectors.sql.mysql.options import ServerOptions
from spark_channel.connectors.sql.mysql.session import MysqlSession, code_of

__all__ = [
    "DUPLICATE",
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
_SILENT_SECONDS = 30
"""Less than `innodb_lock_wait_timeout` (50): a run that needs the lock of a silent client gets it in one wait."""


class MysqlWriteSession(MysqlSession):
    """`local_infile`: the server takes LOAD DATA LOCAL. `most_packet`: bytes of the longest statement.

    `lenient`: the user has asked for a mode in which the server changes values that do not fit.
    """

    def _make_ready(self, options: ServerOptions) -> None:
        super()._make_ready(options)
        self._kept: dict[Any, Any] = {}
        shown = {
            str(name).lower(): str(value).upper()
            for name, value in self.rows(
                "SHOW SESSION VARIABLES WHERE Variable_name IN ('local_infile', 'max_allowed_packet', "
                "'log_bin', 'binlog_format', 'sql_mode', 'time_zone')"
            )
        }
        self.local_infile = shown.get("local_infile") == "ON"
        self.most_packet = int(shown["max_allowed_packet"])
        self.lenient = options.sql_mode == "session" and "STRICT_" not in shown.get("sql_mode", "")
        self._zone = shown.get("time_zone", "SYSTEM")
        # A server that logs statements refuses to write under READ COMMITTED. SERIALIZABLE, too, reads nothing old.
        by_statement = shown.get("log_bin") == "ON" and shown.get("binlog_format") == "STATEMENT"
        level = "SERIALIZABLE" if by_statement else "READ COMMITTED"
        self.rows(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value that this session cached for `key`."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    @contextmanager
    def in_utc(self) -> Iterator[None]:
        """While this is open the session's zone is UTC, so that the text of an instant means one instant."""
        self.rows("SET SESSION time_zone = '+00:00'")
        try:
            yield
        finally:
            self.rows("SET SESSION time_zone = %s", [self._zone])

    def list_warnings(self) -> None:
        """From here on the server keeps the warnings of every row that INSERT IGNORE leaves out."""
        self.rows("SET SESSION max_error_count = 65535, sql_notes = 0")

    def warnings_but_keys(self) -> list[str]:
        """The first texts of the last statement's warnings that say anything but that a key is in the table."""
        found = self.rows("SHOW WARNINGS")
        return [str(text) for _, code, text in found if int(code) not in _OF_KEYS][:3]

    def end_when_silent(self) -> None:
        """From here on the server ends this session, and its transaction, when the client says nothing for 30 s.

        A process that is paused, or whose host is lost, so holds a claim for no longer.
        """
        self.rows(f"SET SESSION wait_timeout = {_SILENT_SECONDS}")


def is_conflict(error: BaseException) -> bool:
    """Another transaction was first, or holds what this one needs."""
    return code_of(error) in (DUPLICATE, TABLE_EXISTS, _LOCK_TIMEOUT, _DEADLOCK, _CHANGED)


def was_rolled_back(error: BaseException) -> bool:
    """The server has rolled the whole transaction back, to end a deadlock."""
    return code_of(error) in (_DEADLOCK, _CHANGED)


def passes(error: BaseException) -> bool:
    """A lock that was not free in time, or a deadlock: the same transaction may do, run again."""
    return code_of(error) in (_LOCK_TIMEOUT, _DEADLOCK, _CHANGED)
