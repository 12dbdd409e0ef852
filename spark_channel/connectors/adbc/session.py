"""The options of ADBC, and a connection through any driver, in transactions."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Self, cast

import adbc_driver_manager
import pyarrow as pa

from spark_channel.connectors.adbc.options import DriverOptions
from spark_channel.connectors.base.open_sessions import note_open
from spark_channel.connectors.sql.adbc_driver import dbapi
from spark_channel.connectors.sql.postgresql_family import (
    QUOTES,
    SETTINGS,
    for_transaction,
    is_pooler,
    refused_by_pooler,
    refused_by_quotes,
    set_config,
)
from spark_channel.connectors.sql.session import HIDDEN, BatchSize, BoundSession, session_script
from spark_channel.connectors.sql.statements import only_name
from spark_channel.errors import ChannelError, OptionError, TargetError
from spark_channel.final_errors import of_input
from spark_channel.masking import hide

__all__ = ["FAILURES", "AdbcSession", "BusyError", "is_busy", "is_conflict", "is_lost"]


FAILURES = (adbc_driver_manager.Error, pa.ArrowException, OSError)
"""The errors that drivers raise, while they connect and while a result is being read. SQLite's raises one when a value
does not fit the type that the first rows gave: findings/adbc-sqlite-type-of-first-batch.sh
"""


_BUSY = frozenset({"40001", "40P01", "55P03"})
_LOST = frozenset({"57P01", "57P02", "57P03"})
_THERE = frozenset({"23505", "42P07", "42710"})
_BUSY_TEXTS = ("database is locked", "database table is locked", "Conflict", "conflict")
_THERE_TEXTS = ("already exists", "UNIQUE constraint failed", "uplicate key")
_LOST_TEXTS = (
    "server closed the connection",
    "no connection to the server",
    "connection to server was lost",
    "terminating connection",
    "could not receive data",
    "could not send data",
    "Connection reset",
)
_MAY_QUOTE = ("22", "23", "44")
"""Classes of SQLSTATE whose words may quote a value."""


class _RefusedError(Exception):
    """The driver's error as codes, because its text may contain secrets."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(sqlstate or "no SQLSTATE")
        self.sqlstate = sqlstate or ""

    @classmethod
    def from_driver(cls, error: BaseException) -> Self:
        return cls(getattr(error, "sqlstate", None))


class BusyError(TargetError):
    """Another transaction was in the way, so that this one was rolled back: the same again may succeed."""


def is_busy(error: BaseException) -> bool:
    """Whether another transaction is in the way: a lock, a deadlock, a failed serialization."""
    state, text = _reported(error)
    if isinstance(error, BusyError) or state:
        return isinstance(error, BusyError) or state in _BUSY
    return any(words in text for words in _BUSY_TEXTS)


def is_conflict(error: BaseException) -> bool:
    """Whether another transaction was first, or is in the way: a duplicate too."""
    state, text = _reported(error)
    return (
        is_busy(error)
        or state in _THERE
        or (not state and any(words in text for words in _THERE_TEXTS))
    )


def is_lost(error: BaseException) -> bool:
    """Whether the connection is lost: a new one may succeed."""
    state, text = _reported(error)
    return state in _LOST or state.startswith("08") or any(words in text for words in _LOST_TEXTS)


def _reported(error: BaseException) -> tuple[str, str]:
    refusal = error.__cause__
    return (refusal.sqlstate, str(error)) if isinstance(refusal, _RefusedError) else ("", "")


def driver_path(name: str) -> tuple[str, str | None]:
    """What the driver manager loads for `name`, and its entry point, None for the usual one.

    That is the library of the package adbc_driver_NAME. The manager itself finds libraries, manifests and profiles.
    """
    bare = name.lower().removeprefix("adbc_driver_").replace("-", "_")
    if not bare.isidentifier():
        return name, None
    module = f"adbc_driver_{bare}"
    try:
        package: Any = importlib.import_module(module)
        if hasattr(package, "_driver_path"):
            return str(package._driver_path()), None  # noqa: SLF001 - how the packages' own dbapi modules find it
        # DuckDB's and chDB's: drivers inside the databases' own libraries
        if hasattr(package, "driver_path"):
            return str(package.driver_path()), f"{bare}_adbc_init"
    except Exception as error:
        if not (isinstance(error, ModuleNotFoundError) and error.name == module):
            raise OptionError(
                f"option 'driver' got {name!r}, whose Python package {module} fails: {type(error).__name__}: {error}. "
                "Install it again on this machine",
                option="driver",
                got=name,
            ) from error
    return name, None


class AdbcSession(BoundSession):
    """Used by one thread. `failure` is the class of what it raises for anything that the database refuses."""

    failures = FAILURES

    def __init__(self, options: DriverOptions, failure: type[ChannelError]) -> None:
        self._failure = failure
        self._options = options
        self._each: list[str] = []
        """Statements that begin every transaction."""
        self.name = options.driver
        self.place = f"ADBC driver {options.driver}"
        self._connection = self._connect(options)
        self.has_transactions = self._begin()
        note_open(self)
        with self.closed_on_failure():
            self._run_first(options)

    def cancel(self) -> None:
        """See `CancelledAtEnd`."""
        connection = self._connection
        if connection is not None:
            connection.adbc_cancel()

    @property
    def opens_the_file_alone(self) -> bool:
        """Whether another connection of this process does not see what this one writes, as in DuckDB:
        findings/adbc-duckdb-connections-apart.sh
        """
        try:
            return str(self._connection.adbc_get_info().get("vendor_name")).lower() == "duckdb"
        except adbc_driver_manager.Error:  # which some drivers do not tell
            return False

    def _connect(self, options: DriverOptions) -> dbapi.Connection:
        library, entrypoint = driver_path(options.driver)
        try:
            with self.explained():
                return dbapi.connect(
                    driver=library,
                    entrypoint=options.entrypoint or entrypoint,
                    db_kwargs=options.database(),
                    autocommit=True,  # else a driver without transactions is a warning each time
                )
        except ChannelError as error:
            if "[Driver Manager]" not in str(error):
                raise
            if options.entrypoint is not None and f"dlsym({options.entrypoint})" in str(error):
                raise OptionError(
                    f"option 'entrypoint' got {options.entrypoint!r}, which the library of driver {options.driver!r} "
                    "does not have: omit it, or see the documentation of the driver",
                    option="entrypoint",
                    got=options.entrypoint,
                ) from error
            raise OptionError(
                f"option 'driver' got {options.driver!r}, which the driver manager does not load: {error}. Install "
                "the driver on all machines: its package adbc-driver-NAME, or its library with a manifest that the "
                "manager finds; or give the path of either",
                option="driver",
                got=options.driver,
            ) from error

    def _begin(self) -> bool:
        """Begin a transaction; whether the driver has them."""
        try:
            self._connection.adbc_connection.set_autocommit(False)
        except adbc_driver_manager.NotSupportedError:
            return False
        except FAILURES as error:
            self._connection.close()
            raise self.explain(error) from _RefusedError.from_driver(error)
        return True

    def _run_first(self, options: DriverOptions) -> None:
        """Outside transactions: some settings are taken only there, and all must outlive a rollback.

        Those of PostgreSQL hold for a transaction each: a pooler hands the session to other clients.
        """
        dialect = options.sql_dialect()
        statements = session_script(options, dialect)
        if dialect == "postgres":
            if self.rows(QUOTES):
                raise self._failure(refused_by_quotes(self.place, "uri"))
            settings = [(statement, for_transaction(statement)) for statement in statements]
            own_settings = [setting for _, setting in settings if setting is not None]
            self._each = [*own_settings, set_config(SETTINGS, local=True)]
            statements = [statement for statement, setting in settings if setting is None]
            if statements:
                self._refuse_pooler(options, statements[0])
        if dialect == "sqlite":  # its driver does not wait for another transaction by itself
            statements = ["PRAGMA busy_timeout = 60000", *statements]
        if statements:
            connection = self._connection.adbc_connection
            with self.explained():
                connection.set_autocommit(True)
                for statement in statements:
                    self.execute(statement)
                if self.has_transactions:
                    connection.set_autocommit(False)
        self._run_each()

    def _refuse_pooler(self, options: DriverOptions, statement: str) -> None:
        login = {
            name: value
            for name, value in options.database().items()
            if name in ("username", "password")
        }
        uri = options.database().get("uri", "")
        if "username" in login:
            login["user"] = login.pop("username")
        try:
            with self.explained():
                is_shared = is_pooler(uri, **login)
        except ImportError:
            return  # only psycopg can detect a pooler
        if is_shared:
            raise self._failure(refused_by_pooler(self.place, statement, "uri"))

    def _run_each(self) -> None:
        for statement in self._each:
            self.execute(statement)

    def start(self, begin: str) -> None:
        """The driver has begun one with the first statement: what was read before is seen anew."""
        self.undo()

    def commit(self) -> None:
        """The driver begins the next transaction."""
        with self.explained():
            if self.has_transactions:
                self._connection.adbc_connection.commit()
        with suppress(self._failure):
            # It is committed; without its settings the next one runs no statement.
            self._run_each()

    def undo(self) -> None:
        """As `commit`."""
        with self.explained():
            if self.has_transactions:
                self._connection.adbc_connection.rollback()
        self._run_each()

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.explained(), closing(self._connection.cursor()) as cursor:
            cursor.execute(sql, tuple(parameters) or None)
            return cast(list[tuple[Any, ...]], cursor.fetchall()) if cursor.description else []

    def affected(self, sql: str) -> int:
        """Run a statement: the rows that it affected, -1 if the driver does not report them."""
        with self.explained(), closing(self._connection.cursor()) as cursor:
            cursor.execute(sql)
            return int(cursor.rowcount)

    def stream(self, sql: str, size: BatchSize) -> Iterator[pa.RecordBatch]:
        """In the driver's own batches, cut where they are larger."""
        with self.explained(), closing(self._connection.cursor()) as cursor:
            cursor.execute(sql)
            with cursor.fetch_record_batch() as batches:
                for batch in batches:
                    rows = max(
                        1, min(size.rows, size.nbytes * batch.num_rows // max(1, batch.nbytes))
                    )
                    yield from (
                        batch.slice(start, rows) for start in range(0, batch.num_rows, rows)
                    )

    def schema_of(self, query: str) -> pa.Schema:
        """The Arrow schema of a query's result. Ends the transaction."""
        with self.explained(), closing(self._connection.cursor()) as cursor:
            cursor.execute(query)
            with cursor.fetch_record_batch() as batches:
                schema = batches.schema
        self.undo()
        return schema

    def table_schema(self, schema: str | None, name: str) -> pa.Schema | None:
        """The columns of a table as the driver sees them; None when it does not exist. Ends the transaction."""
        try:
            table = self._connection.adbc_get_table_schema(name, db_schema_filter=schema)
        except adbc_driver_manager.Error as error:
            is_missing = error.status_code == adbc_driver_manager.AdbcStatusCode.NOT_FOUND
            if not (is_missing or "not" in str(error).lower()):
                raise self.explain(error) from _RefusedError.from_driver(error)
            table = None
        self.undo()
        return table

    def spelled(self, schema: str | None, name: str, *, folds: bool) -> str | None:
        """A table's name as the catalog has it; None = it does not exist. `folds`: another case is the same name."""
        if name in self.tables(schema, name):
            return name
        return only_name(name, self.tables(schema, "")) if folds else None

    def tables(self, schema: str | None, beginning: str) -> list[str]:
        """Return the names of tables that begin with `beginning`, whose only wildcard is `_`.

        Without `schema`, search the current schema, where the driver reports it.
        """
        with self.explained():
            objects = self._connection.adbc_get_objects(
                depth="tables",
                db_schema_filter=schema or self.current_schema(),
                table_name_filter=f"{beginning}%",
            ).read_all()
        names = set()
        for catalog in objects.to_pylist():
            for db_schema in catalog["catalog_db_schemas"] or ():
                names |= {table["table_name"] for table in db_schema["db_schema_tables"] or ()}
        return sorted(name for name in names if name.startswith(beginning))

    def current_schema(self) -> str | None:
        """The schema in which a plain name is resolved, if the driver reports it."""
        try:
            return str(self._connection.adbc_current_db_schema) or None
        except FAILURES:
            return None  # a database without schemas, or a driver that does not say

    def ingest(self, schema: str, name: str, rows: pa.RecordBatch | pa.Table, mode: str) -> int:
        """Append rows to a table; `mode` "create" makes it, "create_append" where it does not exist.

        Returns how many rows the driver says that it brought in; -1 = it says nothing.
        """
        with self.explained(), closing(self._connection.cursor()) as cursor:
            return int(cursor.adbc_ingest(name, rows, mode=mode, db_schema_name=schema or None))

    @contextmanager
    def explained(self) -> Iterator[None]:
        """From the error's codes: its text may contain secrets."""
        try:
            yield
        except FAILURES as error:
            raise self.explain(error) from _RefusedError.from_driver(error)

    def explain(self, error: BaseException) -> ChannelError:
        """Without anything that the driver was given."""
        text = str(error).split("\nquery", 1)[0].strip()
        # All that the driver was given may hold a login, in the driver's own syntax.
        secrets = [
            secret for secret in self._options.database().values() if secret != self._options.user
        ]
        text = self._options.hide(hide(text, secrets))
        state = getattr(error, "sqlstate", None) or ""
        may_quote = state[:2] in _MAY_QUOTE if state else not is_busy(error)
        if getattr(self._options, "hide_values", False) and may_quote:
            text = f"error {state or 'without a code'}; {HIDDEN}"
        failure = self._failure(f"ADBC driver {self.name}: {text}")
        return of_input(failure, is_of_input=state in ("42501", "42P01", "42S02", "28000", "28P01"))
