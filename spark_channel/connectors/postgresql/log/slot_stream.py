"""A replication connection that stays open: a slot's log, decoded once, as far as it was not confirmed.

A look at a slot decodes from its `restart_lsn`, which anybody's open transaction keeps back. This connection decodes
each byte once. What it holds is a copy of what the slot still has: the slot moves by `settle` alone, so a lost
connection loses nothing, and looks continue where it ended.
"""

import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector
from typing import Self

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.postgresql.failures import is_gone
from spark_channel.connectors.postgresql.log.pgoutput import RELATION
from spark_channel.connectors.postgresql.log.position import lsn_text
from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.postgresql.session.settings import Settings
from spark_channel.connectors.sql.postgresql_family import connected
from spark_channel.connectors.sql.statements import quoted_name, quoted_text

__all__ = ["STREAM_NAME", "SlotStream", "StreamLostError", "Streamed"]

STREAM_NAME = "spark-channel stream"
"""`application_name` of the connection."""
_HELD_BYTES = 8 << 20
_MESSAGE_BYTES = 64
"""What Python adds to each message."""
_LOOK_SECONDS, _OPEN_SECONDS, _CLOSE_SECONDS = 2.0, 10.0, 1.0
_SILENT_SECONDS = 60.0
_TIMEOUT = "60s"
"""The server ends the connection of a process that stands still, also where its own setting is 0: another process that
takes over needs the slot."""
_DATA = struct.Struct(">xQQq").size
_KEEPALIVE = struct.Struct(">xQqB").unpack_from
_STATUS = struct.Struct(">cQQQqB").pack
_BEGIN = struct.Struct(">xQ").unpack_from
_COMMIT = struct.Struct(">xxQQ").unpack_from
_CHANGES = frozenset(b"IUDT")


class StreamLostError(Exception):
    """The connection ended, or cannot continue. `refused`: the server does not allow it."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


@dataclass
class _Transaction:
    commit: int
    end: int = 0
    messages: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    has_changes: bool = False

    def add(self, message: bytes) -> None:
        self.messages.append(message)
        self.nbytes += len(message) + _MESSAGE_BYTES
        self.has_changes = self.has_changes or message[0] in _CHANGES


@dataclass(frozen=True)
class Streamed:
    """`end`: of the last transaction that is held, None = there is none. `is_whole`: all that was asked for is held."""

    end: int | None
    is_whole: bool


class SlotStream:
    """Used by one thread at a time. It holds at most 8 MiB of complete transactions, and reads no further then."""

    def __init__(self, connection: "psycopg.Connection[tuple[object, ...]]", after: int) -> None:
        self._connection = connection
        self._lock = threading.RLock()
        self._from = self._reached = after
        """All transactions whose commit is in [from, reached) were read; those that have changes are held."""
        self._settled = 0
        self._is_ending = False
        self._transactions: deque[_Transaction] = deque()
        self._nbytes = 0
        self._partial: _Transaction | None = None
        self._columns: dict[int, bytes] = {}
        """The last message about each table's columns before `_from`: the server sends it once a connection."""
        self._heard = SYSTEM_CLOCK.now()

    @classmethod
    def open(cls, options: PostgresOptions, slot: str, publication: str, after: int) -> Self:
        """Start with the first transaction whose commit is at `after` or behind it.

        Raises:
            StreamLostError: the server allows none, or another process has the slot.
        """
        settings = Settings.from_options(
            options, {"application_name": STREAM_NAME, "TimeZone": "UTC"}
        )
        try:
            connection = connected(
                options.conninfo(),
                autocommit=True,
                prepare_threshold=None,
                replication="database",
                application_name=STREAM_NAME,
                client_encoding="utf8",
            )
        except psycopg.Error as error:
            raise StreamLostError(str(error), refused=not is_gone(error)) from error
        stream = cls(connection, after)
        try:
            for statement in (*settings.once, *settings.of_session):
                connection.execute(statement.encode())
            with suppress(psycopg.Error):  # before PostgreSQL 12 it is the server's alone
                connection.execute(f"SET wal_sender_timeout = '{_TIMEOUT}'".encode())
            stream._start(
                f"START_REPLICATION SLOT {quoted_name(slot)} LOGICAL {lsn_text(after)} "
                f"(proto_version '1', publication_names {quoted_text(quoted_name(publication))})"
            )
        except psycopg.Error as error:
            connection.close()
            raise StreamLostError(str(error), refused=not is_gone(error)) from error
        except BaseException:
            connection.close()
            raise
        return stream

    def _start(self, command: str) -> None:
        pgconn = self._connection.pgconn
        pgconn.send_query(command.encode())
        until = SYSTEM_CLOCK.now() + _OPEN_SECONDS
        while self._flushes() or pgconn.is_busy():
            if not self._wait(until):
                raise StreamLostError("the server does not begin to send")
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None or result.status != ExecStatus.COPY_BOTH:
            text = "no answer" if result is None else result.error_message.decode(errors="replace")
            code = None if result is None else result.error_field(DiagnosticField.SQLSTATE)
            raise StreamLostError(text.strip(), refused=code != b"55006")

    def look(self, after: int, upto: int, most: int | None) -> Streamed | None:
        """Read on, up to `upto` if the server has decoded so far in 2 s: at most `most` messages behind `after`.

        Forgets what is before `after`. None: a transaction is larger than what is held, or what is before `after` was
        forgotten; look at the slot itself.

        Raises:
            StreamLostError: the connection ended.
        """
        with self._lock:
            if after < self._from or after > self._reached:
                return None
            self._forget(after)
            try:
                self._tell(asks=True)
                self._read(upto, most)
            except (psycopg.Error, OSError) as error:
                raise StreamLostError(str(error)) from error
            if self._is_ending:  # and nobody wants to know what the slot has
                self._connection.close()
                return Streamed(None, is_whole=False)
            if self._reached < upto and SYSTEM_CLOCK.now() - self._heard >= _SILENT_SECONDS:
                raise StreamLostError("the server does not answer")
            if not self._transactions and self._is_full():
                return None
            count, last = 0, None
            for transaction in self._transactions:
                count, last = count + len(transaction.messages), transaction.end
                if most is not None and count >= most:
                    return Streamed(last, is_whole=False)
            return Streamed(last, self._reached >= upto)

    def answer(self) -> None:
        """Show the server that this process lives, without a look."""
        with self._lock:
            try:
                self._tell()
            except (psycopg.Error, OSError) as error:
                raise StreamLostError(str(error)) from error

    def changes(self, after: int, upto: int) -> Iterator[list[bytes]] | None:
        """The messages of a range, as a look at the slot shows them; None: they are not held."""
        with self._lock:
            if after < self._from or upto > self._reached:
                return None
            columns = list(self._columns.values())
            held = [each.messages for each in self._transactions if after <= each.commit < upto]
        return iter([columns, *held] if columns else held)

    def settle(self, position: int) -> bool:
        """Let the server forget what is before `position`; False: it was not read here, or the connection ended."""
        with self._lock:
            if position <= self._settled:
                return True
            if position > self._reached:
                return False
            try:
                self._tell(settled=position)
                # A flushed position that stays behind would keep the server from stopping.
                self._tell()
            except (psycopg.Error, OSError):
                return False
            self._settled = position
            return True

    def close(self) -> None:
        """End the connection, or have the thread that uses it do so. An idle server has given back the slot then."""
        self._is_ending = True
        if not self._lock.acquire(timeout=_CLOSE_SECONDS):
            return
        try:
            if not self._connection.closed and self._partial is None:
                with suppress(psycopg.Error, OSError):
                    self._end()
            self._connection.close()
        finally:
            self._lock.release()

    # --- the protocol ---

    def _end(self) -> None:
        """End the sending in order: the server answers when it has given back the slot."""
        pgconn = self._connection.pgconn
        until = SYSTEM_CLOCK.now() + _CLOSE_SECONDS
        pgconn.put_copy_end()
        self._flushes()
        while (size := pgconn.get_copy_data(1)[0]) >= 0:
            if size == 0:
                if not self._wait(until):
                    return
                pgconn.consume_input()
        while True:
            while pgconn.is_busy():
                if not self._wait(until):
                    return
                pgconn.consume_input()
            if pgconn.get_result() is None:
                return

    def _flushes(self) -> bool:
        """Whether something is left to be sent."""
        return bool(self._connection.pgconn.flush())

    def _wait(self, until: float) -> bool:
        """Until the server has sent something; False: it has not by then."""
        left = until - SYSTEM_CLOCK.now()
        if left <= 0:
            return False
        with DefaultSelector() as selector:
            selector.register(self._connection.pgconn.socket, EVENT_READ)
            return bool(selector.select(left))

    def _tell(self, *, settled: int = 0, asks: bool = False) -> None:
        """Send what was read, and what the server may forget; 0: nothing more than before."""
        pgconn = self._connection.pgconn
        pgconn.put_copy_data(_STATUS(b"r", self._reached, settled, settled, 0, asks))
        self._flushes()

    def _read(self, upto: int, most: int | None) -> None:
        pgconn = self._connection.pgconn
        until = SYSTEM_CLOCK.now() + _LOOK_SECONDS
        count = sum(len(each.messages) for each in self._transactions)
        while self._reached < upto and not self._is_full() and (most is None or count < most):
            size, data = pgconn.get_copy_data(1)
            if size < 0:
                raise StreamLostError("the server has ended it")
            if size == 0:
                if not self._wait(until):
                    break
                pgconn.consume_input()
                continue
            self._heard = SYSTEM_CLOCK.now()
            message = bytes(data)
            if message[:1] == b"w":
                count += self._take(message[_DATA:])
            elif message[:1] == b"k":
                end, _, asks = _KEEPALIVE(message)
                self._reached = max(self._reached, end)
                if asks:
                    self._tell()

    def _take(self, message: bytes) -> int:
        """Hold a message; the number of messages of the transaction that it completes."""
        kind = message[:1]
        if kind == b"B":
            (commit,) = _BEGIN(message)
            self._partial = _Transaction(commit)
            self._reached = max(self._reached, commit)  # transactions come in the order of commits
        transaction = self._partial
        if transaction is None:
            return 0
        transaction.add(message)
        self._nbytes += len(message) + _MESSAGE_BYTES
        if kind != b"C":
            return 0
        _, transaction.end = _COMMIT(message)
        self._partial = None
        self._reached = max(self._reached, transaction.end)
        if not transaction.has_changes:
            self._drop(transaction)
            return 0
        self._transactions.append(transaction)
        return len(transaction.messages)

    def _is_full(self) -> bool:
        return self._nbytes >= _HELD_BYTES

    def _forget(self, after: int) -> None:
        while self._transactions and self._transactions[0].commit < after:
            self._drop(self._transactions.popleft())
        self._from = after

    def _drop(self, transaction: _Transaction) -> None:
        self._nbytes -= transaction.nbytes
        self._columns.update(_columns_in(transaction.messages))


def _columns_in(messages: Sequence[bytes]) -> dict[int, bytes]:
    return {RELATION(message, 1)[0]: message for message in messages if message[:1] == b"R"}
