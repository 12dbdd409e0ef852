"""Options of every database connector, named as Spark's JDBC source names them.

A connector subclasses `SqlReadOptions` and `SqlWriteOptions`, and adds `ServerOptions` for a server, with its login,
TLS and timeouts, or `FileOptions` for a database that is a file. JDBC's options that have no meaning here are
warned of or refused with the reason, so that code changes its format name and runs.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from spark_channel.errors import OptionError
from spark_channel.option_types import LARGEST
from spark_channel.options import (
    Amount,
    CertificateFile,
    ColumnList,
    CommitMode,
    DiskPath,
    Options,
    ReadOptions,
    Secret,
    Trait,
    Url,
    WriteMode,
    WriteOptions,
)
from spark_channel.working_directory import absolute_url

__all__ = [
    "CreateTable",
    "Credentials",
    "FileOptions",
    "FileReadOptions",
    "FileUrl",
    "FileWriteOptions",
    "LedgerOptions",
    "OnePassOptions",
    "ServerOptions",
    "SqlReadOptions",
    "SqlWriteOptions",
    "Statements",
]

_COLUMNS_PUSH = "the options 'columns' and 'where' run in the source instead"
_KERBEROS: Mapping[str, str] = dict.fromkeys(
    ("keytab", "principal", "refreshKrb5Config", "connectionProvider"),
    "Kerberos logins are not supported",
)
_DRIVER: Mapping[str, str] = {"driver": "no JDBC driver takes part"}
_READ_ONLY: Mapping[str, str] = dict.fromkeys(
    (
        "partitionColumn",
        "lowerBound",
        "upperBound",
        "fetchsize",
        "customSchema",
        "preferTimestampNTZ",
        "preferTimestampNanos",
        "hint",
        "pushDownPredicate",
        "pushDownAggregate",
        "pushDownLimit",
        "pushDownOffset",
        "pushDownTableSample",
        "pushDownJoin",
    ),
    "it applies to reading",
)
_WRITE_ONLY: Mapping[str, str] = dict.fromkeys(
    (
        "batchsize",
        "truncate",
        "cascadeTruncate",
        "createTableOptions",
        "createTableColumnTypes",
        "tableComment",
        "isolationLevel",
    ),
    "it applies to writing",
)
_LOCK = "timeout for a lock on the file that another process holds, in seconds"


@dataclass(frozen=True, slots=True)
class FileUrl:
    """The urls of a file database: its scheme (`sqlite`), its name (`SQLite`), and advice for a url's parameters."""

    scheme: str
    label: str
    suffix: str
    instead_of_parameters: str
    ends_path: str = "?"
    not_in_path: str = ""

    @property
    def takes(self) -> str:
        scheme, file = self.scheme, f"file.{self.suffix}"
        return f"jdbc:{scheme}:/path/to/{file}, {scheme}:///path/to/{file} or {scheme}:{file}"

    def path(self, url: str | None, path: str | None) -> Path:
        """The file that `url` and `path` name: `sqlite:///a/b.db` is /a/b.db, a relative file is `sqlite:a/b.db`.

        Raises:
            OptionError: none, two different ones, a url of another scheme, or a database in memory.
        """
        from_url = None if url is None else self._of(url)
        if from_url is not None and path is not None and Path(from_url) != Path(path):
            raise OptionError(
                f"options 'url' ({url}) and 'path' ({path}) name different files: give one of them",
                option="path",
            )
        text = from_url if from_url is not None else path
        if text is None:
            raise OptionError(
                f"nothing names the database file: give a path, or 'url' as {self.takes}",
                option="url",
            )
        if not text or text.startswith(":") or "\0" in text:
            raise OptionError(
                f"a {self.label} database in memory belongs to one process, and Spark has several: name a file",
                option="url" if from_url is not None else "path",
                got=text,
                takes=self.takes,
            )
        option = "url" if from_url is not None else "path"
        if strange := next((mark for mark in self.not_in_path if mark in text), None):
            raise OptionError(
                f"option {option!r} holds {strange!r} in the path of the file, where {self.label} would use another "
                "file than this; name another file or folder",
                option=option,
            )
        return Path(text)

    def _of(self, url: str) -> str:
        text = re.sub(r"^jdbc:", "", url.lstrip(), flags=re.IGNORECASE)
        scheme, colon, text = text.partition(":")
        if scheme.lower() != self.scheme or not colon:
            scheme_shown = scheme if colon else ""  # the rest may hold a login
            raise OptionError(
                f"option 'url' has scheme {scheme_shown!r}; it takes {self.takes}",
                option="url",
                got=scheme_shown,
                takes=self.takes,
            )
        if text != text.rstrip():
            raise OptionError(
                "option 'url' ends with a blank, which may belong to the file's name or not; remove it, or name the "
                "file with option 'path'",
                option="url",
            )
        text = text.removeprefix("file:")
        text, mark, parameters = self._split(text)
        if mark:
            names = [
                part.partition("=")[0] for part in re.split("[&;]", parameters)
            ]  # a value may be a secret
            raise OptionError(
                f"option 'url' carries parameters ({', '.join(names)}), which are JDBC's or {self.label}'s own; "
                f"{self.instead_of_parameters}",
                option="url",
                takes=self.takes,
            )
        if text.startswith("//"):
            host, slash, path_text = text[2:].partition("/")
            if host not in ("", "localhost") or not slash:
                scheme_shown = host.rpartition("@")[2]  # before it is a login
                raise OptionError(
                    f"option 'url' names host {scheme_shown!r}; a {self.label} file is local: {self.takes}",
                    option="url",
                    takes=self.takes,
                )
            text = "/" + path_text
        return text

    def _split(self, text: str) -> tuple[str, str, str]:
        at = min(
            (index for mark in self.ends_path if (index := text.find(mark)) >= 0), default=len(text)
        )
        return text[:at], text[at : at + 1], text[at + 1 :]


def _statements(value: object) -> tuple[str, ...]:
    takes = "SQL text, or a JSON list of statements"
    if isinstance(value, (list, tuple)):
        texts = list(value)
    elif str(value).lstrip().startswith("["):
        try:
            texts = json.loads(str(value))
        except (ValueError, RecursionError):
            raise ValueError(takes) from None
    else:
        texts = [str(value)]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(takes)
    return tuple(texts)


def _fetch_rows(value: object) -> int | None:
    """JDBC's `fetchsize`: 0 leaves the choice to the connector."""
    from spark_channel.options import parse_amount

    return None if value is None or str(value).strip() == "0" else parse_amount(value)


Statements = Annotated[tuple[str, ...], BeforeValidator(_statements)]
"""SQL texts, run in this order; one text may hold several statements."""


def _create_table(value: object) -> object:
    """`true` is what it was before there were keys."""
    text = str(value).strip().lower()
    return {"true": "columns", "false": "false"}.get(text, text)


CreateTable = Annotated[
    Literal["false", "columns", "auto", "keys", "full"], BeforeValidator(_create_table)
]
_FetchRows = Annotated[int | None, BeforeValidator(_fetch_rows)]


class Credentials(Options):
    """The login of a server, for connectors that have one."""

    user: Annotated[str | None, Trait.SAME_ROWS] = Field(
        None, description="login name; default: from the url, else the driver library's own"
    )
    password: Secret | None = Field(
        None,
        description="password, or `${env:NAME}` or `${file:PATH}`; default: from the url, else none",
    )


class ServerOptions(Credentials):
    """Connection options of a server, under the names of Spark's JDBC source and of libpq."""

    sslrootcert: Annotated[CertificateFile | None, Trait.SAME_ROWS] = Field(
        None,
        description="file of the CA certificates that verify the server's; default: from the url, else none",
    )
    sslcert: Annotated[CertificateFile | None, Trait.SAME_ROWS] = Field(
        None, description="file of the client's certificate; default: from the url, else none"
    )
    sslkey: Annotated[CertificateFile | None, Trait.SAME_ROWS] = Field(
        None, description="file of the client's private key; default: from the url, else none"
    )
    connect_timeout: Annotated[float, Field(gt=0, le=86_400), Trait.SAME_ROWS] = Field(
        10.0, description="timeout of one attempt to connect, in seconds"
    )
    query_timeout: Annotated[int, Field(ge=0, le=2_000_000), Trait.SAME_ROWS] = Field(
        0, description="timeout of one statement, in seconds; 0: unlimited"
    )
    retry_timeout: Annotated[float, Field(ge=0, le=86_400), Trait.SAME_ROWS] = Field(
        60.0,
        description="how long a running job tries to reconnect, with growing pauses, in seconds",
    )


class LedgerOptions(Options):
    """Where a server keeps what a write needs beside its table, for roles that may not create tables there."""

    staging_schema: str | None = Field(
        None,
        description="schema (MySQL: database) of staging tables, and of the claims without `ledgerTable`; default: the "
        "target's",
    )
    ledger_table: str | None = Field(
        None,
        description="table of claims, `schema.table`; `_tasks` and `_transfers` are added to the names of the others; "
        "all jobs that write to one table must name the same; default: `spark_channel_claims`",
    )
    ledger: Annotated[Literal["required", "optional", "none"], Trait.SAME_ROWS] = Field(
        "required",
        description="`required`: the write is recorded in the claims, or fails; `optional`: without them where the "
        "role may not create or use them; `none`: without them. Without them rows are written at least once",
    )

    @field_validator("staging_schema", "ledger_table")
    @classmethod
    def _named(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("a name")
        return value


class OnePassOptions(Options):
    """Of writers whose one task may write and publish all rows in one transaction."""

    max_direct_rows: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        5_000_000,
        description="append by `commit=job` up to so many rows straight into the table, in one transaction, where one "
        "task brings all rows without a limit; more are staged; 0 stages all",
    )


class FileOptions(Options):
    """A database that is a file: `file_url` says how its urls name it."""

    file_url: ClassVar[FileUrl]

    path: DiskPath | None = Field(None, description="the database file; default: from `url`")

    @field_validator("url", mode="before", check_fields=False)
    @classmethod
    def _absolute(cls, url: object) -> object:
        return absolute_url(url, (cls.file_url.scheme,)) if isinstance(url, str) else url

    @property
    def file(self) -> Path:
        """The file that `url` and `path` name."""
        return self.file_url.path(getattr(self, "url", None), self.path)

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        self.file_url.path(getattr(self, "url", None), self.path)


class SqlReadOptions(ReadOptions):
    """Options of every database reader."""

    aliases: ClassVar[Mapping[str, str]] = {**ReadOptions.aliases}
    ignored: ClassVar[Mapping[str, str]] = {
        **_DRIVER,
        **_WRITE_ONLY,
        "pushDownPredicate": _COLUMNS_PUSH,
        "pushDownAggregate": _COLUMNS_PUSH,
        "pushDownLimit": _COLUMNS_PUSH,
        "pushDownOffset": _COLUMNS_PUSH,
        "pushDownTableSample": _COLUMNS_PUSH,
        "pushDownJoin": _COLUMNS_PUSH,
        "preferTimestampNTZ": "a timestamp keeps its source's kind; 'customSchema' changes it",
        "preferTimestampNanos": "timestamps have microseconds, as Spark's have",
    }
    refused: ClassVar[Mapping[str, str]] = {
        **_KERBEROS,
        "prepareQuery": "write the WITH clause inside 'query'",
        "paths": "a read names one database",
    }

    url: Url | None = Field(
        None, description="the database's url, with or without `jdbc:`; default: none"
    )
    dbtable: str | None = Field(
        None,
        description="a table, `schema.table`, or `(subquery) alias`; default: none; give it or `query`",
    )
    query: str | None = Field(
        None, description="one SELECT statement instead of `dbtable`; default: none"
    )
    duplicate_names: Literal["fail", "number"] = Field(
        "fail",
        description="columns of `query` that have one name: `fail`, or `number` the later ones, as in `id`, `id_4`, "
        "where 4 is the position from 0",
    )
    partition_column: str | None = Field(
        None,
        description="the column whose ranges make the splits; default: chosen by the connector",
    )
    lower_bound: str | None = Field(
        None,
        description="with `upperBound`: where the stride begins; filters nothing; default: quantiles",
    )
    upper_bound: str | None = Field(
        None,
        description="with `lowerBound`: where the stride ends; filters nothing; default: quantiles",
    )
    hide_values: Annotated[bool, Trait.SAME_ROWS] = Field(
        False, description="errors quote no values of rows"
    )
    fetch_size: Annotated[_FetchRows, Trait.SAME_ROWS] = Field(
        None, alias="fetchsize", description="rows per batch; default: about 8 MiB"
    )
    statement_seconds: Annotated[float | None, Field(ge=0, le=86_400), Trait.SAME_ROWS] = Field(
        None,
        description="target seconds of one statement of a read: a split is read by ranges of a unique key; "
        "0: one statement per split; default: 5 under a limit, else 0",
    )
    burst_millis: Annotated[float | None, Field(ge=0, le=60_000), Trait.SAME_ROWS] = Field(
        None,
        description="under a limit: milliseconds that the server may work without a rest, judged by latency; "
        "0: up to half a second's rows at once; default: 0.3 on PostgreSQL, else 5",
    )
    custom_schema: str | None = Field(
        None,
        description="types of single columns, as Spark writes them: `id BIGINT`; default: none",
    )
    session_init_statement: Statements | None = Field(
        None, description="SQL that runs in every session before it reads; default: none"
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.dbtable is not None and self.query is not None:
            raise OptionError(
                "options 'dbtable' and 'query' exclude each other: give one", option="query"
            )
        if self.dbtable is None and self.query is None:
            raise OptionError(
                "nothing says what to read: give 'dbtable' or 'query'", option="dbtable"
            )
        for name, text in (("dbtable", self.dbtable), ("query", self.query)):
            if text is not None and not text.strip():
                raise OptionError(
                    f"option {name!r} is empty: give a table or a SELECT", option=name, got=text
                )
        bounds = (self.lower_bound is not None, self.upper_bound is not None)
        if any(bounds) and not all(bounds):
            raise OptionError(
                "options 'lowerBound' and 'upperBound' go together: give both, or omit both",
                option="upperBound" if bounds[0] else "lowerBound",
            )
        if all(bounds) and self.partition_column is None:
            raise OptionError(
                "options 'lowerBound' and 'upperBound' need 'partitionColumn': "
                "set it to the column that they are bounds of",
                option="partitionColumn",
            )


class SqlWriteOptions(WriteOptions):
    """Options of every database writer."""

    dirty_commit: ClassVar[CommitMode | None] = "task"
    keeps_table: ClassVar[str] = ""
    """Why an overwrite cannot drop the table and make it again in one transaction; "": it can."""
    aliases: ClassVar[Mapping[str, str]] = {
        **WriteOptions.aliases,
        "numPartitions": "maxConnections",
        "upsertKeyColumns": "keyColumns",
    }
    ignored: ClassVar[Mapping[str, str]] = {**_DRIVER, **_READ_ONLY}
    refused: ClassVar[Mapping[str, str]] = {
        **_KERBEROS,
        "query": "a write names its table with 'dbtable'",
        "prepareQuery": "a write names its table with 'dbtable'",
        "columns": "select the columns in the DataFrame",
        "where": "filter the rows in the DataFrame",
        "paths": "a write names one database",
        "upsert": "it is 'writeMode=upsert' here, with the key's columns in 'keyColumns'",
    }

    url: Url | None = Field(
        None, description="the database's url, with or without `jdbc:`; default: none"
    )
    dbtable: str = Field(description="the table to write, or `schema.table`")
    batch_size: Amount = Field(
        65_536, alias="batchsize", description="rows sent to the database in one batch"
    )
    create_table: CreateTable = Field(
        "columns",
        description="what a table that does not exist gets: `columns` (also `true`): its columns; in copies also "
        "`keys`: NOT NULL and the primary key of its source; `full`: the whole definition; `auto`: `keys` where the "
        "source has keys that hold in the target, else `columns`; `false` is an error",
    )
    schema_after: DiskPath | None = Field(
        None,
        description="a file, or a folder for a file of each table, that takes the statements of indexes and "
        "constraints; with `createTable` `auto`, `keys` or `full`, which then build none; default: they are built",
    )
    create_table_options: str | None = Field(
        None, description="SQL after the column list of a new table; default: none"
    )
    create_table_column_types: str | None = Field(
        None,
        description="types of single columns of a new table: `name VARCHAR(64)`; default: by its Arrow type",
    )
    truncate: bool = Field(
        True,
        description="overwrite: true replaces the rows and keeps the table with its indexes and grants; false drops "
        "and recreates the table",
    )
    session_init_statement: Statements | None = Field(
        None, description="SQL that runs in every session before it writes; default: none"
    )
    start_sql: Statements = Field(
        (),
        description="SQL that a transfer runs before it reads its source, one statement at a time, outside the write's "
        "transaction; each run repeats it; both ends are checked first if it only removes rows; default: none",
    )
    pre_sql: Statements = Field(
        (), description="SQL that runs before the rows, in their transaction; default: none"
    )
    post_sql: Statements = Field(
        (), description="SQL that runs after the rows, in their transaction; default: none"
    )
    write_mode: WriteMode = Field(
        "insert",
        description="`insert`: add rows; `upsert`: update rows whose key exists; `skipExisting`: keep those; "
        "`apply`: apply a change feed",
    )
    on_schema_change: Literal["fail", "ignore", "evolve"] = Field(
        "fail",
        description="columns that the table lacks: `fail` is an error, `ignore` leaves them out, `evolve` adds them as "
        "nullable, and widens columns whose type does not hold the rows' numbers",
    )
    convert: Literal["strict", "lenient"] = Field(
        "strict",
        description="`strict`: the rows' types must fit the table's columns exactly; `lenient`: values are converted "
        "as DataX does, and a value that cannot be converted is a refused row",
    )
    key_columns: ColumnList | None = Field(
        None,
        description="key columns of upsert, skipExisting and apply; default: the table's primary key",
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if not self.dbtable.strip() or self.dbtable.lstrip().startswith("("):
            raise OptionError(
                f"option 'dbtable' got {self.dbtable!r}; a write takes a table's name",
                option="dbtable",
                got=self.dbtable,
                takes="a table's name",
            )
        if self.schema_after is not None and self.create_table in ("false", "columns"):
            raise OptionError(
                f"option 'schemaAfter' got {self.schema_after!r}, and createTable={self.create_table} makes no indexes "
                "and constraints: set 'createTable' to keys or full, or omit it",
                option="schemaAfter",
                got=self.schema_after,
            )
        if self.keeps_table and not self.truncate:
            raise OptionError(
                f"option 'truncate' got 'false'; {self.keeps_table}, so an overwrite keeps the table "
                "and replaces its rows. Drop the table first if that is what you mean",
                option="truncate",
                got="false",
                takes="true",
            )
        if self.write_mode == "insert" and self.key_columns is not None:
            raise OptionError(
                "option 'keyColumns' needs 'writeMode' upsert or skipExisting: a plain insert has no key",
                option="keyColumns",
            )


_LockTimeout = Annotated[float, Field(gt=0, le=86_400), Trait.SAME_ROWS]


class FileReadOptions(FileOptions, SqlReadOptions):
    lock_timeout: _LockTimeout = Field(30.0, description=_LOCK)


class FileWriteOptions(FileOptions, SqlWriteOptions):
    lock_timeout: _LockTimeout = Field(60.0, description=_LOCK)
