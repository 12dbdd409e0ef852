"""A session on a SQLite file, through Python's `sqlite3`.

A process should have one SQLite library: POSIX locks belong to a process, and closing a file in one library drops the
locks that another one holds on it. Programs use `sqlite3`, so this package does. For the same reason nothing else
opens the file: findings/sqlite-locks-and-open.sh
"""

import os
import re
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from spark_channel.connectors.sql.session import IN_SESSION, IN_TRANSACTION, BatchSize, FileSession
from spark_channel.errors import ChannelError, OptionError, SourceError, TargetError
from spark_channel.final_errors import final, of_input

__all__ = ["SqliteSession", "check_file", "refuses_data", "session_statements", "statements_of"]


_OFF = ("case_sensitive_like", "foreign_keys", "ignore_check_constraints", "recursive_triggers")
"""Settings that change rows, and that a build of SQLite may switch on by default; a file has no such settings."""
_SAFE = ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0")
"""A file that came from elsewhere: its views, triggers and defaults call no function or virtual table that has effects
outside of it, and a damaged page is an error."""
_ROWS_INSERTED = 100
_TRANSACTION = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
    r"(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|ATTACH|DETACH|VACUUM)\b",
    re.IGNORECASE | re.DOTALL,
)
_OUTSIDE = frozenset({"ATTACH", "DETACH", "VACUUM"})
"""Statements that only run outside a transaction, as a session's first statements do."""
_EMPTY = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)


class SqliteSession(FileSession):
    """A connection in autocommit: transactions are begun and ended by statements.

    Used by one thread. `failure` is the class of what it raises for anything that SQLite refuses.
    `init` are statements that run first.
    """

    failures = (sqlite3.Error, sqlite3.Warning, pa.ArrowException, OSError)

    def __init__(
        self,
        path: Path,
        mode: Literal["ro", "rw", "rwc"],
        *,
        lock_timeout: float,
        failure: type[ChannelError],
        init: Sequence[str] = (),
    ) -> None:
        self.path, self.place = path, str(path)
        self._failure = failure
        self._lock_timeout = lock_timeout
        self.looked_up: tuple[object, dict[str, Any]] | None = None
        """For the dialect: the version of the schema, and what the catalog then had of tables by their names."""
        self._connection: sqlite3.Connection | None = None
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        with self.explained():
            self._connection = sqlite3.connect(
                uri, uri=True, timeout=lock_timeout, isolation_level=None, check_same_thread=False
            )
        with self.closed_on_failure():
            if sys.version_info >= (3, 12):
                self._connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
            for setting in _SAFE:
                self.execute(f"PRAGMA {setting}")
            for name in _OFF:
                self.execute(f"PRAGMA {name} = OFF")
            for statement in init:
                self.execute(statement)

    @classmethod
    def kept(
        cls,
        path: Path,
        mode: Literal["ro", "rw", "rwc"],
        *,
        lock_timeout: float,
        failure: type[ChannelError],
        init: Sequence[str] = (),
    ) -> "SqliteSession":
        """A session of the file, kept from table to table; outside a transaction it holds no lock."""
        key = None if init or mode == "rwc" else (mode, lock_timeout)

        def make() -> SqliteSession:
            return cls(path, mode, lock_timeout=lock_timeout, failure=failure, init=init)

        return cls.lent(key, path, failure, make)

    def is_reusable(self) -> bool:
        return self._connection is not None and not self._connection.in_transaction

    def cleared(self) -> bool:
        return True  # no statement of the package leaves anything in it

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        connection = self._open
        with self.explained(), closing(connection.cursor()) as cursor:
            connection.text_factory = str
            return cursor.execute(sql, tuple(parameters)).fetchall()

    def insert(self, sql: str, columns: Sequence[Sequence[object]]) -> None:
        """Run `sql`, an INSERT of one row of parameters, for all rows, whose columns are in its order.

        A statement has many rows, since Python's lock changes hands with each statement.
        """
        values = list(chain.from_iterable(zip(*columns, strict=True)))
        width, row = len(columns), f", ({', '.join('?' * len(columns))})"
        with self.explained(), closing(self._open.cursor()) as cursor:
            most = self._open.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
            many = max(1, min(_ROWS_INSERTED, most // width))
            step, remainder = many * width, len(values) % (many * width)
            whole = (values[at : at + step] for at in range(0, len(values) - remainder, step))
            cursor.executemany(sql + row * (many - 1), whole)
            if remainder:
                cursor.execute(sql + row * (remainder // width - 1), values[-remainder:])

    def stream(
        self, sql: str, size: BatchSize, kinds: Sequence[pa.DataType] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Batches with columns of `kinds`: int64, double, string or binary. Texts may be invalid UTF-8.

        Raises:
            ChannelError: a value of another storage class, or SQLite failed.
        """
        connection = self._open
        with self.explained(), closing(connection.cursor()) as cursor:
            cursor.execute(sql)
            names = [column[0] for column in cursor.description]
            while True:
                connection.text_factory = bytes
                # No name here holds the rows while their batch is away: a long value would be there twice.
                batch = _batch(cursor.fetchmany(size.rows), names, kinds)
                if batch is None:
                    return
                yield batch
                del batch

    def rest(self) -> None:
        """A transaction that has read nothing yet holds no lock."""
        self.execute("COMMIT")
        self.execute("BEGIN")

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "the session is closed"
        return self._connection

    def explain(self, error: BaseException) -> ChannelError:
        text = str(error)
        hint = ""
        if "is locked" in text or "is busy" in text:
            hint = (
                "another process, or another connection of this program, held its lock for longer than lockTimeout "
                f"({self._lock_timeout:g} s); end that transaction, or raise 'lockTimeout'"
            )
        elif "disk is full" in text or "No space left" in text:
            hint = "the disk is full (or max_page_count is reached); free space on it and run again"
        elif "readonly" in text:
            hint = (
                "this user may not write the file or its directory, where SQLite keeps its journal"
            )
        elif "not a database" in text:
            return self._failure(
                f"{self.path} is not a SQLite database, or it is encrypted; name another file"
            )
        elif "malformed" in text and "JSON" not in text:
            hint = "the file is damaged: see PRAGMA integrity_check, and restore it"
        elif "unsafe use of" in text:
            hint = (
                "a view, trigger or expression of the file uses something that SQLite lets only trusted files use; "
                "where you trust it, set 'sessionInitStatement' to PRAGMA trusted_schema = ON"
            )
        elif "failed to open" in text or "unable to open" in text:
            hint = "the file or its directory cannot be opened by this user"
        failure = self._failure(f"{self.path}: {hint}{'. ' if hint else ''}SQLite says: {text}")
        is_missing = any(
            message in text for message in ("no such table", "readonly", "unable to open")
        )
        is_full = "disk is full" in text or "No space left" in text
        return final(of_input(failure, is_of_input=is_missing), is_final=is_full)


def _batch(
    rows: list[tuple[object, ...]], names: list[str], kinds: Sequence[pa.DataType]
) -> pa.RecordBatch | None:
    if not rows:
        return None
    columns = zip(*rows, strict=True)
    arrays = [_array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names)


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Texts come as bytes: invalid UTF-8 is found, and its row named, when the batch is decoded."""
    if kind == pa.string():
        return pa.array(values, pa.binary()).cast(kind, safe=False)
    if kind == pa.int64() and float in set(map(type, values)):
        raise pa.ArrowInvalid("a REAL among integers")  # which pyarrow would cut to one
    return pa.array(values, kind)


def refuses_data(error: BaseException) -> bool:
    """Whether `error` of a `Session` says that a row is bad (a constraint, a type), not that SQLite is in trouble."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.IntegrityError | sqlite3.DataError)


def check_file(path: Path, failure: type[SourceError] | type[TargetError]) -> None:
    """Check that `path` is a readable file. SQLite's first read shows whether it is a database.

    The file is not opened: closing it again would drop the locks that this process holds on it.

    Raises:
        failure: missing, a directory or unreadable; says what to do.
    """
    if path.is_dir():
        raise of_input(failure(f"{path} is a directory; name the database file in it"))
    if not path.exists():
        hint = "; correct the path in option 'url'"
        if path.is_absolute() and Path(str(path).lstrip("/")).exists():
            hint = f"; a relative path is written sqlite:{str(path).lstrip('/')}"
        raise of_input(failure(f"database file {path} does not exist{hint}"))
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise of_input(failure(f"{path}: Permission denied; let this user read the file"))


def statements_of(texts: Iterable[str], option: str) -> list[str]:
    """The single statements of `texts`, in order; triggers with their semicolons stay whole.

    Raises:
        OptionError: a statement that would leave the transaction in which they run.
    """
    return [
        _allowed(statement, option, frozenset(), IN_TRANSACTION)
        for text in texts
        for statement in _split(text)
    ]


def session_statements(texts: Iterable[str]) -> list[str]:
    """The single statements of `sessionInitStatement`; it may attach files.

    Raises:
        OptionError: a statement that begins or ends a transaction.
    """
    option = "sessionInitStatement"
    return [
        _allowed(statement, option, _OUTSIDE, IN_SESSION)
        for text in texts
        for statement in _split(text)
    ]


def _allowed(statement: str, option: str, but: frozenset[str], reason: str) -> str:
    match = _TRANSACTION.match(statement)
    if match and match.group(1).upper() not in but:
        raise OptionError(
            f"option {option!r} holds {match.group(1).upper()}: {reason}",
            option=option,
            got=statement.strip(),
        )
    return statement.strip()


def _split(text: str) -> Iterator[str]:
    begin = 0
    for index, letter in enumerate(text):
        # complete_statement knows quotes, comments and triggers; it opens no file.
        if letter == ";" and sqlite3.complete_statement(text[begin : index + 1]):
            if not _EMPTY.fullmatch(text, begin, index + 1):
                yield text[begin : index + 1]
            begin = index + 1
    if not _EMPTY.fullmatch(text, begin):
        yield text[begin:]
