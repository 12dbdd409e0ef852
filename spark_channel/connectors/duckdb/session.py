"""The options of DuckDB, and a connection to a file."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.sql.session import HIDDEN, BatchSize, FileSession
from spark_channel.errors import ChannelError, SourceError, TargetError
from spark_channel.final_errors import final, of_input
from spark_channel.retry import Retry

__all__ = ["DuckdbSession", "check_file", "is_locked", "text_literal"]

_SETTINGS = {
    "default_collation": "''",
    "default_null_order": "'nulls_last'",
    "default_order": "'asc'",
    "integer_division": "false",
}
"""Settings that change rows, and that another connection of this process may have set for the file (SET GLOBAL)."""
_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
}
"""What a view or a macro of a file reaches: the file. They are given when the file is opened, since a database that is
open takes no external access back, and shares its settings with every connection of this process."""
_SHARED = (
    "A connection of this process has the file with other settings: close it, or, where it may read other files, set "
    "option 'externalAccess' to true. "
)
_REFUSES_ACCESS = ("Permission Error", "Loading external extensions is disabled")
_REFUSES_SETTING = (
    "has been disabled by configuration",
    "Cannot enable external access",
    "when enable_external_access is disabled",
)
_MAY_QUOTE = ("Conversion Error", "Invalid Input Error", "Out of Range Error", "Constraint Error")
"""Beginnings of errors whose text may hold a value of a row."""
_OF_ANOTHER = ("not a valid DuckDB database", "Failed to download extension")
"""What DuckDB says of a file that is no database, or that it takes for one of another system, such as SQLite."""
_KIND = "SELECT type FROM duckdb_databases() WHERE database_name = current_database()"


class DuckdbSession(FileSession):
    """A connection in autocommit: transactions are begun and ended by statements.

    Used by one thread. `failure` is the class of what it raises for anything that DuckDB refuses. DuckDB lets
    one process write, or several read. It fails immediately when another process has the file, so the session
    retries with growing pauses for `lock_timeout` seconds. `init` are statements that run first.
    `hides`: errors do not quote values of rows. `external_access`: views and statements may read other files, attach
    databases and load extensions.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool,
        lock_timeout: float,
        failure: type[ChannelError],
        init: Sequence[str] = (),
        hides: bool = False,
        external_access: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.path, self.place = path, str(path)
        self._config = {} if external_access else _CLOSED
        self.opened_as = read_only, external_access
        self._hides = hides
        self._listed: set[str] = set()
        self._failure = failure
        self._lock_timeout = lock_timeout
        self._connection: Any = self._open(read_only, clock)
        with self.closed_on_failure():
            if str(self.value(_KIND)).lower() != "duckdb":  # by an extension that is installed
                raise self._no_database()
            for name, value in _SETTINGS.items():
                self.execute(f"SET SESSION {name} = {value}")
            for statement in init:
                self.execute(statement)
            self.execute("SET TimeZone = 'UTC'")

    def _open(self, read_only: bool, clock: Clock) -> Any:
        import duckdb

        self.failures = (duckdb.Error, pa.ArrowException, OSError)
        retry = Retry(
            self._lock_timeout, first=0.02, longest=0.5, what=f"opening {self.path}", clock=clock
        )

        def attempt() -> Any:
            sessions.close_idle(self._hinders)
            return duckdb.connect(
                str(self.path.absolute()), read_only=read_only, config=self._config
            )

        try:
            return retry.call(
                attempt,
                lambda error: isinstance(error, duckdb.Error) and _in_the_way(str(error)),
            )
        except duckdb.Error as error:
            if str(error).startswith(_REFUSES_ACCESS):
                raise self._no_database() from None  # of another system, for which it wants an extension
            raise self.explain(error) from None

    def _hinders(self, other: object) -> bool:
        """Whether a session that was kept has the file open otherwise, or another file that was there before.

        A database that is open is shared by all connections of this process.
        """
        if not isinstance(other, DuckdbSession) or other.path.resolve() != self.path.resolve():
            return False
        return other.opened_as != self.opened_as or not other.is_of_path

    @classmethod
    def kept(
        cls,
        path: Path,
        *,
        lock_timeout: float,
        failure: type[ChannelError],
        init: Sequence[str] = (),
        hides: bool = False,
        external_access: bool = False,
    ) -> "DuckdbSession":
        """A session that only reads, kept from table to table: other processes read meanwhile, and do not write."""

        def make() -> DuckdbSession:
            return cls(
                path,
                read_only=True,
                lock_timeout=lock_timeout,
                failure=failure,
                init=init,
                hides=hides,
                external_access=external_access,
            )

        return cls.lent(
            None if init else (lock_timeout, hides, external_access), path, failure, make
        )

    def catalog(self, function: str) -> str:
        """What stands for `function`, such as duckdb_tables, in a statement.

        Each call of it goes through all tables. A session that is kept calls it once: no process writes a file that is
        open for reading.
        """
        if self.pool_key is None or not sessions.keeps:
            return f"{function}()"
        if function not in self._listed:
            self.execute(
                f"CREATE TEMP TABLE spark_channel_{function} AS FROM {function}() "
                "WHERE database_name = current_database()"
            )
            self._listed.add(function)
        return f"temp.main.spark_channel_{function}"

    def cleared(self) -> bool:
        try:
            self.execute("RESET threads")
        except self._failure:  # one serious error ends the database for all connections
            return False
        return True

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.explained():
            self._connection.execute(sql, list(parameters) or None)
            return cast(list[tuple[Any, ...]], self._connection.fetchall())

    def stream(self, sql: str, size: BatchSize) -> Iterator[pa.RecordBatch]:
        with self.explained():
            yield from self._reader(sql, size.rows)

    def schema_of(self, query: str) -> pa.Schema:
        """The Arrow schema of a query's result."""
        with self.explained():
            return self._reader(query, 1).schema

    def _reader(self, sql: str, batch_rows: int) -> pa.RecordBatchReader:
        relation = self._connection.sql(sql)
        if hasattr(relation, "to_arrow_reader"):
            return relation.to_arrow_reader(batch_rows)
        return relation.fetch_arrow_reader(batch_rows)  # releases before 1.5

    def insert(
        self, sql: str, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> int:
        """Run `sql`, which reads the rows of `batches` as a table called `name`. Returns the rows that it stored."""
        import duckdb

        reader = pa.RecordBatchReader.from_batches(schema, batches)
        self._connection.register(name, reader)
        try:
            return int(self.rows(sql)[0][0])
        finally:
            try:
                self._connection.unregister(name)
            except duckdb.Error:
                pass  # a transaction that has failed takes nothing but ROLLBACK; the name ends with the session

    def _no_database(self) -> ChannelError:
        return self._failure(
            f"{self.path} is not a DuckDB database, or it is encrypted; name another file"
        )

    def explain(self, error: BaseException) -> ChannelError:
        text = str(error).strip()
        hint = ""
        if any(message in text for message in _OF_ANOTHER):
            return self._no_database()
        if _in_the_way(text):
            hint = (
                f"another process held the file for longer than lockTimeout ({self._lock_timeout:g} s); "
                "DuckDB lets one process write, or several read: end that process, or raise 'lockTimeout'. "
                f"{_SHARED if 'different configuration' in text else ''}"
            )
        elif self._config and any(refusal in text for refusal in _REFUSES_SETTING):
            hint = (
                "this setting is locked, since a file that may come from elsewhere reaches nothing but itself. Omit "
                "the statement, or, where you trust the file, set option 'externalAccess' to true. "
            )
        elif self._config and text.startswith(_REFUSES_ACCESS):
            hint = (
                "a view, a macro or a statement reaches outside of the database file, which may come from elsewhere. "
                "Where you trust it, set option 'externalAccess' to true. "
            )
        elif "No space left" in text or "enough space" in text:
            hint = "the disk is full; free space on it and run again. "
        elif "Permission denied" in text:
            hint = "this user may not use the file or its directory. "
        elif self._hides and text.startswith(_MAY_QUOTE):
            text = f"{text.partition(':')[0]}; {HIDDEN}"
            error.args = (text,)
        failure = self._failure(
            f"{self.path}: {hint}DuckDB says: {text.splitlines()[0] if text else 'nothing'}"
        )
        is_missing = text.startswith("Catalog Error: Table") or "Permission denied" in text
        is_full = "No space left" in text or "enough space" in text
        return final(of_input(failure, is_of_input=is_missing), is_final=is_full)


def _in_the_way(text: str) -> bool:
    return (
        "Conflicting lock" in text
        or "Could not set lock" in text
        or "different configuration" in text
        or "Unique file handle conflict" in text  # another thread closes the file: DuckDB 1.4
    )


def is_locked(error: BaseException) -> bool:
    """Whether `error`, of a session, is of a file that another process holds."""
    return _in_the_way(str(error.__cause__ or error.__context__ or error))


def check_file(path: Path, failure: type[SourceError] | type[TargetError]) -> None:
    """Check that `path` is a readable file. DuckDB itself finds out whether it is a database.

    The file is not opened: closing it again would drop the locks that this process holds on it, and another process
    would write beside a connection that believes itself alone.

    Raises:
        failure: missing, a directory or unreadable; says what to do.
    """
    if path.is_dir():
        raise failure(f"{path} is a directory; name the database file in it")
    if not path.exists():
        hint = "; correct the path in option 'url'"
        if path.is_absolute() and Path(str(path).lstrip("/")).exists():
            hint = f"; a relative path is written duckdb:{str(path).lstrip('/')}"
        raise of_input(failure(f"database file {path} does not exist{hint}"))
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise failure(f"{path}: Permission denied; let this user read the file")


def text_literal(text: str) -> str:
    """A text literal: DuckDB knows no escapes but the doubled quote."""
    return "'" + text.replace("'", "''") + "'"
