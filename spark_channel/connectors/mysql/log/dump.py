"""A connection that receives the binary log, as mysqlbinlog does: to the end of what there is, and no further.

It is a session as every other of this connector: the same login, TLS and timeouts, and it sends no file to a server. It
registers as no replica (server id 0), so it displaces none.
"""

import threading
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from struct import pack
from typing import Any, cast
from uuid import UUID

from spark_channel.connectors.base.feed import LogFacts
from spark_channel.connectors.mysql.log.events import Event, Kind, events
from spark_channel.connectors.mysql.log.position import GtidSet, MysqlGtids
from spark_channel.connectors.mysql.log.table import RESET
from spark_channel.connectors.mysql.options import MysqlReadOptions
from spark_channel.connectors.mysql.session import MysqlSession, code_of, is_away
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import SourceError

__all__ = ["KeptLogs", "OpenLog", "dumped", "log_facts", "rights"]

_COM_BINLOG_DUMP, _COM_BINLOG_DUMP_GTID = 0x12, 0x1E
_NON_BLOCK, _THROUGH_GTID = 1, 4
_FIRST = 4
"""Where a file's first event begins."""
_EOF, _EOF_SIZE = 0xFE, 9
_CAPABLE_OF_GTIDS = 4
_MOST_IDLE = 2
_FATAL, _DENIED = 1236, (1045, 1227)
_KEPT = "SHOW GLOBAL VARIABLES WHERE variable_name IN ('binlog_expire_logs_seconds', 'expire_logs_days')"
_MAY = (("REPLICATION SLAVE", "REPLICATION REPLICA"), ("REPLICATION CLIENT", "BINLOG MONITOR"))
_DAY = 86_400


class OpenLog:
    """The events of all transactions after `after`, by one connection. `position` is behind those it has returned."""

    def __init__(self, options: MysqlReadOptions, after: GtidSet) -> None:
        """
        Raises:
            SourceError: missing rights; a lost connection.
        """
        self.position = after.copy()
        self.is_kept = self._is_continued = False
        self._ahead: deque[Event] = deque()
        self._options = options
        self._session = MysqlSession(options, SourceError)
        try:
            self._events = self._opened()
        except BaseException:
            self._session.abandon()
            raise

    def _opened(self) -> Iterator[Event]:
        checksums = _prepare(self._session, self.position)
        return events(_packets(self._session, self.position.copy()), checksums=checksums)

    def __iter__(self) -> "OpenLog":
        return self

    def __next__(self) -> Event:
        """
        Raises:
            SourceError: the server no longer has the transaction, or never had; a lost connection.
        """
        if self.is_kept:
            self.is_kept, self._is_continued = False, True
            try:
                self._ahead.extend(self._more())
            except SourceError as error:
                if not is_away(error):
                    raise
                self._reopen()  # the server, or the network, has ended a connection that was idle
        event = self._ahead.popleft() if self._ahead else next(self._events, None)
        if event is None and self._is_continued:
            # The log had its end here when the server came to it, and there may be more by now.
            self._reopen()
            event = next(self._events, None)
        if event is None:
            raise StopIteration
        if event.kind in (Kind.MARIADB_GTID, Kind.MYSQL_GTID):
            self.position.add(event.gtid())
        return event

    def keep(self) -> None:
        """Let the next range continue here, where the log has more. Between two transactions only."""
        with suppress(SourceError):
            self._ahead.extend(self._more())
        self.is_kept = bool(self._ahead)

    def _more(self) -> list[Event]:
        return list(islice(self._events, 1))

    def _reopen(self) -> None:
        """At `position`. What is ahead was not returned, so that the server sends it again."""
        self._ahead.clear()
        self._is_continued = False
        self._session.abandon()
        self._session = MysqlSession(self._options, SourceError)
        self._events = self._opened()

    def close(self) -> None:
        self._session.abandon()


@contextmanager
def dumped(options: MysqlReadOptions, after: GtidSet) -> Iterator[OpenLog]:
    """The log after `after`, by a new connection.

    Raises:
        SourceError: the server no longer has it, or never had; missing rights; a lost connection.
    """
    log = OpenLog(options, after)
    try:
        yield log
    finally:
        log.close()


class KeptLogs:
    """Connections that stay open from one range to the next: a server searches a position from its file's beginning.

    One finds the ends of ranges, and one reads their rows. Used by any thread.
    """

    def __init__(self, options: MysqlReadOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._idle: list[OpenLog] = []

    def __reduce__(self) -> tuple[type["KeptLogs"], tuple[MysqlReadOptions]]:
        return KeptLogs, (self._options,)

    def __del__(self) -> None:
        for log in self._idle:
            log.close()

    @contextmanager
    def after(self, position: GtidSet) -> Iterator[OpenLog]:
        """As `dumped`; a log that its user keeps is continued by the range that begins where it is."""
        log = self._taken(position) or OpenLog(self._options, position)
        try:
            yield log
        finally:
            if log.is_kept:
                self._give(log)
            else:
                log.close()

    def _taken(self, position: GtidSet) -> OpenLog | None:
        with self._lock:
            for log in self._idle:
                if log.position == position:
                    self._idle.remove(log)
                    return log
        return None

    def _give(self, log: OpenLog) -> None:
        with self._lock:
            self._idle.append(log)
            old = self._idle[:-_MOST_IDLE]
            self._idle = self._idle[-_MOST_IDLE:]
        for other in old:
            other.close()


def _prepare(session: MysqlSession, after: GtidSet) -> bool:
    session.wait_for_slow_reader()
    session.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
    session.execute("SET @source_binlog_checksum = @@global.binlog_checksum")
    if not isinstance(after, MysqlGtids):
        session.execute(f"SET @mariadb_slave_capability = {_CAPABLE_OF_GTIDS}")
        session.execute("SET @slave_connect_state = %s", [str(after)])
        session.execute("SET @slave_gtid_strict_mode = 0, @slave_gtid_ignore_duplicates = 0")
    return str(session.value("SELECT @@global.binlog_checksum")) != "NONE"


def _command(after: GtidSet) -> tuple[int, bytes]:
    if not isinstance(after, MysqlGtids):
        return _COM_BINLOG_DUMP, pack("<IHI", _FIRST, _NON_BLOCK, 0)
    data = pack("<Q", len(after.held))
    for server, spans in sorted(after.held.items()):
        data += UUID(server).bytes + pack("<Q", len(spans))
        data += b"".join(pack("<QQ", first, last + 1) for first, last in spans)
    head = pack("<HIIQI", _NON_BLOCK | _THROUGH_GTID, 0, 0, _FIRST, len(data))
    return _COM_BINLOG_DUMP_GTID, head + data


def _packets(session: MysqlSession, after: GtidSet) -> Generator[bytes]:
    import pymysql

    connection: Any = session.connection
    try:
        # PyMySQL has no public way to send another command than a statement.
        connection._execute_command(*_command(after))  # noqa: SLF001 - PyMySQL has no public way
        while True:
            data = cast(bytes, connection._read_packet().get_all_data())  # noqa: SLF001 - PyMySQL has no public way
            if data[0] == _EOF and len(data) < _EOF_SIZE:
                return
            yield data[1:]
    except (pymysql.err.MySQLError, OSError) as error:
        raise _explained(session, after, error) from error


def _explained(session: MysqlSession, after: GtidSet, error: Exception) -> SourceError:
    text = str(session.explain(error))
    explained = SourceError(text)
    explained.__cause__ = error
    code = code_of(explained)
    if code in _DENIED:
        return SourceError(f"{text}. {rights()}")
    if code != _FATAL:
        return explained
    lowered = text.lower()
    if "purged" in lowered or "too old" in lowered:
        return SourceError(
            f"{session.place} no longer has the changes after {str(after) or 'the beginning'}, "
            f"since its binary logs were purged; the server says: {text}. {RESET}, and have the server keep "
            "its logs for longer than a stream may be stopped (binlog_expire_logs_seconds)"
        )
    return SourceError(
        f"the binary log of {session.place} does not go on from {str(after) or 'its beginning'}: it is another server, "
        f"or its log was reset; the server says: {text}. {RESET}"
    )


def rights() -> str:
    """The statement that gives a login what the change feed needs."""
    return (
        "The change feed reads the binary log: run GRANT REPLICATION SLAVE, "
        "REPLICATION CLIENT ON *.* TO the user of option 'user'"
    )


def log_facts(session: Session) -> LogFacts:
    """Return the rights that the login lacks to follow the log, and for how long the server keeps it."""
    grants = " ".join(str(row[0]).upper() for row in session.rows("SHOW GRANTS"))
    # A role's are not listed.
    has_all = "GRANT ALL PRIVILEGES ON *.*" in grants or "GRANT `" in grants
    may = has_all or all(any(right in grants for right in rights_of_one) for rights_of_one in _MAY)
    settings = {str(name).lower(): float(value) for name, value in session.rows(_KEPT)}
    days = settings.get("binlog_expire_logs_seconds", 0.0) / _DAY or settings.get(
        "expire_logs_days", 0.0
    )
    long = f"for {days:g} days" if days else "until they are purged by hand"
    return LogFacts(
        () if may else (rights(),),
        f"the server keeps its binary logs {long}, and no longer for a run: one that comes later begins again",
    )
