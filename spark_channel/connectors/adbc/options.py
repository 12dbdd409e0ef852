"""Options of the ADBC connector: a driver, and what it needs."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator

from spark_channel.connectors.sql.options import Credentials, SqlReadOptions, SqlWriteOptions
from spark_channel.connectors.sql.postgresql_family import verified
from spark_channel.errors import OptionError
from spark_channel.options import Secret, Trait
from spark_channel.working_directory import absolute_path, absolute_url

__all__ = ["AdbcReadOptions", "AdbcWriteOptions", "DriverOptions"]

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
        options = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(_TAKES) from None
    if not isinstance(options, dict) or not all(
        isinstance(option, str | int | float | bool) for option in options.values()
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
        options = json.loads(text)
        named = {
            name: _absolute(driver, str(options[name])) for name in _FILE_OPTIONS if name in options
        }
        return SecretStr(json.dumps(options | named)) if named else value

    def database(self) -> dict[str, str]:
        """The options that open the driver's database, including secrets."""
        options: dict[str, str] = {}
        if self.driver_options is not None:
            options = {
                name: str(value).lower() if isinstance(value, bool) else str(value)
                for name, value in json.loads(self.driver_options.get_secret_value()).items()
            }
        if self.uri is not None:
            options["uri"] = self.uri.get_secret_value()
        if self.user is not None:
            options["username"] = self.user
        if self.password is not None:
            options["password"] = self.password.get_secret_value()
        if "uri" in options and self._named_driver() in _LIBPQ:
            options["uri"] = verified(
                options["uri"], "uri" if self.uri is not None else "driverOptions"
            )
        return options

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

    names = sorted(name.value for name in sqlglot.Dialects)
    if options.sql_dialect() not in names:
        raise OptionError(
            f"option 'dialect' got {options.dialect!r}; it takes one of: {', '.join(name for name in names if name)}",
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
