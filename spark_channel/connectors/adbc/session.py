"""The options of ADBC, and a connection through any driver, in transactions."""

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, cast

import adbc_driver_manager
import pyarrow as pa
from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator

from spark_channel.connectors.sql.adbc_driver import dbapi
from spark_channel.connectors.sql.options import Credentials, SqlReadOptions, SqlWriteOptions
from spark_channel.connectors.sql.postgresql_family import (
    QUOTES,
    SETTINGS,
    for_transaction,
    is_pooler,
    refused_by_pooler,
    refused_by_quotes,
    set_config,
    verified,
)
from spark_channel.connectors.sql.session import HIDDEN, BatchSize, BoundSession, session_script
from spark_channel.connectors.sql.statements import only_name
from spark_channel.errors import ChannelError, OptionError, TargetError
from spark_channel.final_errors import of_input
from spark_channel.masking import hide
from spark_channel.options import Secret, Trait
from spark_channel.working_directory import absolute_path, absolute_url

__all__ = [
    "FAILURES",
    "AdbcReadOptions",
    "AdbcSession",
    "AdbcWriteOptions",
    "BusyError",
    "is_busy",
    "is_conflict",
    "is_lost",
]


_TAKES = 'a JSON object of the driver\'s own options, such as {"adbc.snowflake.sql.db": "SHOP"}'
_DIALECTS: Mapping[str, str] = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "sqlite": "sqlite",
    "snowflake": "snowflake",
    "bigquery": "bigquery",
    "duckdb": "duckdb",
    "mssql": "tsql",
    "sqlserver": "tsql",
    "oracle": "oracle",
    "mysql": "mysql",
    "mariadb": "mysql",
    "exasol": "exasol",
    "redshift": "redshift",
    "databricks": "databricks",
    "trino": "trino",
    "clickhouse": "clickhouse",
    "chdb": "clickhouse",
}
_DDL_IN_TRANSACTIONS = frozenset({"postgres", "redshift", "sqlite", "duckdb", "tsql"})
"""SQL whose databases make a table in a transaction, and undo it with that. In others, CREATE TABLE commits."""
_PROFILE = "profile://"
_ADDRESS = re.compile("[:;=@]")
"""A url or a connection string has one of these, and may hold a password; no name of a driver has."""
_LIBRARY_PARTS = re.compile(r"^(lib)?(adbc[_-]driver[_-])?|(\.so|\.dylib|\.dll|\.toml)[.\d]*$")
_LIBPQ = ("postgresql", "postgres")
"""Drivers whose `uri` libpq reads."""
_MERGING = ("sqlite", "postgres")
_IGNORED: Mapping[str, str] = {
    "queryTimeout": "ADBC knows none; give the driver's own with 'driverOptions'",
    "isolationLevel": "give the driver's own with 'driverOptions'",
    "hint": "write hints inside 'query'",
    "cascadeTruncate": "an overwrite deletes rows, and cascades where the foreign keys say so",
    "tableComment": "write it into 'postSql'",
}


_FILE_DATABASES = ("sqlite", "duckdb")
_FILE_OPTIONS = ("path", "uri")


def _absolute(driver: str, text: str) -> str:
    """Return the name of the database of `driver`, as an absolute path if it is a file."""
    if not any(name in driver.rpartition("/")[2].lower() for name in _FILE_DATABASES):
        return text
    return (
        absolute_url(text, ("file",))
        if text.startswith("file:")
        else absolute_path(text, uri=False)
    )


def _driver_options(value: SecretStr) -> SecretStr:
    """They may hold tokens, so the whole text is a secret."""
    text = value.get_secret_value()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(_TAKES) from None
    if not isinstance(found, dict) or not all(
        isinstance(each, str | int | float | bool) for each in found.values()
    ):
        raise ValueError(_TAKES)
    return SecretStr(text)


DriverTexts = Annotated[Secret, AfterValidator(_driver_options)]


class DriverOptions(Credentials):
    """The driver and what it is given."""

    driver: Annotated[str, Trait.HOLDS_LOGIN] = Field(
        description="an ADBC driver: `NAME` of a package adbc-driver-NAME or of a driver manifest, the path of a "
        "library or a manifest, or `profile://NAME` of a connection profile"
    )
    entrypoint: str | None = Field(
        None, description="entry point of the driver library; default: the usual one"
    )
    uri: Annotated[Secret | None, Trait.NAMES_SOURCE] = Field(
        None,
        description="the database, in the driver's syntax, or `${env:NAME}` or `${file:PATH}`; default: none",
    )
    driver_options: Annotated[DriverTexts | None, Trait.NAMES_SOURCE] = Field(
        None, description=_TAKES + "; or `${env:NAME}` or `${file:PATH}`; default: none"
    )
    dialect: str | None = Field(
        None,
        description="SQL dialect of the database, by sqlglot's name; default: from the driver's name",
    )

    @field_validator("driver")
    @classmethod
    def _library(cls, driver: str) -> str:
        """A name without a folder is a package, or what the driver manager finds."""
        driver = driver.strip()
        name = driver.removeprefix(_PROFILE)
        if not name or (_ADDRESS.search(name) and not Path(name).exists()):
            raise ValueError("the driver's name; 'uri' takes the address of the database")
        return absolute_path(driver, uri=False) if "/" in name and name == driver else driver

    @field_validator("uri", "driver_options")
    @classmethod
    def _database_file(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is None or "driver" not in info.data:
            return value
        driver, text = info.data["driver"], value.get_secret_value()
        if info.field_name == "uri":
            return SecretStr(_absolute(driver, text))
        found = json.loads(text)
        named = {
            name: _absolute(driver, str(found[name])) for name in _FILE_OPTIONS if name in found
        }
        return SecretStr(json.dumps(found | named)) if named else value

    def database(self) -> dict[str, str]:
        """The options that open the driver's database, including secrets."""
        found: dict[str, str] = {}
        if self.driver_options is not None:
            found = {
                name: str(value).lower() if isinstance(value, bool) else str(value)
                for name, value in json.loads(self.driver_options.get_secret_value()).items()
            }
        if self.uri is not None:
            found["uri"] = self.uri.get_secret_value()
        if self.user is not None:
            found["username"] = self.user
        if self.password is not None:
            found["password"] = self.password.get_secret_value()
        if "uri" in found and self._named_driver() in _LIBPQ:
            found["uri"] = verified(
                found["uri"], "uri" if self.uri is not None else "driverOptions"
            )
        return found

    def _named_driver(self) -> str:
        """ "" for a connection profile, whose name says nothing of its driver."""
        if self.driver.startswith(_PROFILE):
            return ""
        return _LIBRARY_PARTS.sub("", self.driver.rpartition("/")[2].lower())

    def sql_dialect(self) -> str:
        """sqlglot's name of the SQL; "" is standard SQL."""
        if self.dialect is not None:
            return self.dialect.lower()
        return _DIALECTS.get(self._named_driver(), "")

    def makes_tables_in_transactions(self) -> bool:
        """Whether rows can be staged in tables, and published in one transaction."""
        return self.sql_dialect() in _DDL_IN_TRANSACTIONS


def _check_dialect(options: DriverOptions) -> None:
    import sqlglot

    known = sorted(each.value for each in sqlglot.Dialects)
    if options.sql_dialect() not in known:
        raise OptionError(
            f"option 'dialect' got {options.dialect!r}; it takes one of: {', '.join(each for each in known if each)}",
            option="dialect",
            got=options.dialect,
        )


class AdbcReadOptions(DriverOptions, SqlReadOptions):
    """Options of the ADBC reader."""

    ignored: ClassVar[Mapping[str, str]] = {**SqlReadOptions.ignored, **_IGNORED}
    refused: ClassVar[Mapping[str, str]] = {
        **SqlReadOptions.refused,
        "url": "an ADBC driver takes its own 'uri'",
        "customSchema": "convert the column with 'query'",
    }

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        _check_dialect(self)


class AdbcWriteOptions(DriverOptions, SqlWriteOptions):
    """Options of the ADBC writer."""

    keeps_table: ClassVar[str] = "a driver makes a table in a separate transaction"
    ignored: ClassVar[Mapping[str, str]] = {**SqlWriteOptions.ignored, **_IGNORED}
    refused: ClassVar[Mapping[str, str]] = {
        **SqlWriteOptions.refused,
        "url": "an ADBC driver takes its own 'uri'",
        "createTableOptions": "the driver makes the table; create it yourself for more",
        "createTableColumnTypes": "the driver makes the table; create it yourself for more",
        "onSchemaChange": "add the columns yourself; the database's own connector does, where it has one",
    }

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        _check_dialect(self)
        if self.create_table in ("keys", "full"):
            raise OptionError(
                f"option 'createTable' got {self.create_table!r}; it takes true or false: the driver makes the table. "
                "The database's own connector makes keys, where it has one",
                option="createTable",
                got=self.create_table,
                takes="true, false",
            )
        if self.write_mode != "insert":
            self._check_merge()

    def _check_merge(self) -> None:
        if self.sql_dialect() not in _MERGING:
            spoken = self.sql_dialect() or "standard SQL"
            raise OptionError(
                f"option 'writeMode' got {self.write_mode!r}; with a database that speaks {spoken} it takes insert: "
                f"the others need INSERT ... ON CONFLICT, as {', '.join(_MERGING)} have it ('dialect' names the SQL). "
                "Write into a table beside the target, with your MERGE as 'postSql', which is in the same transaction",
                option="writeMode",
                got=self.write_mode,
                takes="insert",
            )
        if self.key_columns is None:
            raise OptionError(
                f"option 'writeMode' {self.write_mode} needs 'keyColumns': "
                "an ADBC driver does not report the primary key",
                option="keyColumns",
            )
        if self.tolerates_dirty_rows:
            raise OptionError(
                f"options 'maxDirtyRows' and 'maxDirtyFraction' need writeMode=insert, and it is {self.write_mode}: "
                "rows are merged all together. The database's own connector judges them one by one",
                option="maxDirtyRows",
            )


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


class _RefusedError(Exception):
    """The driver's error as codes, because its text may contain secrets."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(sqlstate or "no SQLSTATE")
        self.sqlstate = sqlstate or ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
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


_MAY_QUOTE = ("22", "23", "44")
"""Classes of SQLSTATE whose words may quote a value."""


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
        with self.closed_on_failure():
            self._run_first(options)

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
            raise self.explain(error) from _RefusedError.of(error)
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
            given = [(statement, for_transaction(statement)) for statement in statements]
            own_settings = [own for _, own in given if own is not None]
            self._each = [*own_settings, set_config(SETTINGS, local=True)]
            statements = [statement for statement, own in given if own is None]
            if statements:
                self._refuse_pooler(options, statements[0])
        if dialect == "sqlite":  # its driver does not wait for another transaction by itself
            statements = ["PRAGMA busy_timeout = 60000", *statements]
        if statements:
            connection = self._connection.adbc_connection
            with self.explained():
                connection.set_autocommit(True)
                for statement in statements:
                    self.rows(statement)
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
            self.rows(statement)

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
            found = self._connection.adbc_get_table_schema(name, db_schema_filter=schema)
        except adbc_driver_manager.Error as error:
            is_missing = error.status_code == adbc_driver_manager.AdbcStatusCode.NOT_FOUND
            if not (is_missing or "not" in str(error).lower()):
                raise self.explain(error) from _RefusedError.of(error)
            found = None
        self.undo()
        return found

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
            found = self._connection.adbc_get_objects(
                depth="tables",
                db_schema_filter=schema or self.current_schema(),
                table_name_filter=f"{beginning}%",
            ).read_all()
        names = set()
        for catalog in found.to_pylist():
            for each in catalog["catalog_db_schemas"] or ():
                names |= {table["table_name"] for table in each["db_schema_tables"] or ()}
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
            raise self.explain(error) from _RefusedError.of(error)

    def explain(self, error: BaseException) -> ChannelError:
        """Without anything that the driver was given."""
        text = str(error).split("\nquery", 1)[0].strip()
        # All that the driver was given may hold a login, in the driver's own syntax.
        own = [each for each in self._options.database().values() if each != self._options.user]
        text = self._options.hide(hide(text, own))
        state = getattr(error, "sqlstate", None) or ""
        may_quote = state[:2] in _MAY_QUOTE if state else not is_busy(error)
        if getattr(self._options, "hide_values", False) and may_quote:
            text = f"error {state or 'without a code'}; {HIDDEN}"
        made = self._failure(f"ADBC driver {self.name}: {text}")
        return of_input(made, is_of_input=state in ("42501", "42P01", "42S02", "28000", "28P01"))
