"""Finds the connector of a name, a url or a path.

Built-ins are listed here, since a source zip carries no entry points; others are found under the entry
point group `spark_channel.connectors`, whose entries load a `Connector`.
"""

import difflib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, cast

from spark_channel import lazy
from spark_channel.connectors.base.contract import Reader, Writer
from spark_channel.errors import MissingPackageError, OptionError
from spark_channel.masking import mask_text, mask_url, scheme_of, without_login
from spark_channel.options import CommitMode, Options
from spark_channel.requirements import check_versions
from spark_channel.working_directory import shorten

if TYPE_CHECKING:
    from spark_channel.connectors.base.together import Together

__all__ = [
    "AlsoReaches",
    "Connector",
    "DataxCompatibility",
    "Delivery",
    "Maturity",
    "all_connectors",
    "connector_names",
    "describe",
    "experiment_remark",
    "find_connector",
    "has_third_parties",
    "is_database",
    "load_reader",
    "load_writer",
]


@dataclass(frozen=True, slots=True)
class DataxCompatibility:
    """Options of a database's connector, for jobs of DataX's plugin for it.

    `reader`: of every read; `writer`: of every write. `texts`: of a read whose rows become texts in files. `own_mode`:
    of a session that sets its SQL mode itself. `modes`: of a write, by DataX's `writeMode`, if the database has it.
    `zone`: the option for the zone of the machine, which the driver of DataX gives to its sessions; "" = it gives none.
    `short_decimals`: DataX's plugin drops zeros at the end of decimals.
    """

    reader: Mapping[str, str] = field(default_factory=dict)
    writer: Mapping[str, str] = field(default_factory=lambda: {"convert": "lenient"})
    texts: Mapping[str, str] = field(default_factory=dict)
    own_mode: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    zone: str = ""
    short_decimals: bool = False


_TEXTS = {"timestampsAs": "local", "floatsAs": "text"}
_SERVER = {"convert": "lenient", "ledger": "optional"}

Maturity = Literal["stable", "preview", "experimental"]
"""The system that the tests ran against. "stable": the system itself. "preview": a substitute (an emulator, an old
release, its engine without its server, another product with its protocol), or a part of what the connector reaches.
"experimental": only servers written for the tests, or nothing."""

Delivery = Literal["once", "once in a run", "at least once"]
"""How often the target gets a row. "once": however often a task runs, and a job with a transaction id. "once in a run":
however often a task runs; a job that runs again adds its rows again. "at least once": also a task that runs again."""


@dataclass(frozen=True, slots=True)
class AlsoReaches:
    """A system or a place that a connector reaches as well, with less proof or another delivery.

    `delivery` {} = that of the connector.
    """

    system: str
    maturity: Maturity
    tested: str
    delivery: Mapping[CommitMode, Delivery] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Connector:
    """One connector: where its classes are (`module:Class`), and which urls and paths select it.

    `schemes` are url schemes (`sqlite` for `sqlite:...` and `jdbc:sqlite:...`), `suffixes` path
    endings (`.csv`), `needs` the libraries that the extra of its name installs.

    Known before any class is loaded: `port`, the port of its server when the url has none; None = its url names no
    server. `dialect`, sqlglot's name of its SQL; "" = none. `datax`, its names as a DataX plugin, without `reader` and
    `writer`: with a `dialect` it takes the parameters of DataX's databases, else its own options. `as_datax`, the
    options with which it behaves as DataX does. `secrets`, the options that are `Secret`, and `Url`s except paths:
    Spark's plans and event logs hide them. `feed`, the option of its change feed, or a text; () = it has none.
    `keeps`: the target exists after a write, so that `errorIfExists` checks it. `together`: where its function is
    (`module:function`) for `copied_together`.

    `maturity`, and what it was `tested` against, in a few words; "" = not declared. `delivery`: what each commit mode
    that the writer takes promises. `also`: what else it reaches. `untested`: whether options reach an experiment.
    """

    name: str
    reader: str | None
    writer: str | None
    schemes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    about: str = ""
    needs: tuple[str, ...] = ()
    port: int | None = None
    dialect: str = ""
    datax: tuple[str, ...] = ()
    as_datax: DataxCompatibility = DataxCompatibility()
    secrets: tuple[str, ...] = ()
    feed: tuple[str, ...] = ()
    keeps: bool = True
    maturity: Maturity = "experimental"
    tested: str = ""
    delivery: Mapping[CommitMode, Delivery] = field(default_factory=dict)
    also: tuple[AlsoReaches, ...] = ()
    untested: Callable[[Mapping[str, Any]], bool] | None = None
    together: str | None = None

    def _load(self, target: str | None, half: str) -> Any:
        if target is None:
            raise OptionError(f"connector {self.name!r} has no {half}", option=half, got=self.name)
        if missing := ", ".join(name for name in self.needs if not _is_installed(name)):
            raise MissingPackageError(
                f"connector {self.name!r} needs {missing}, which {sys.executable} does not have: "
                f"pip install 'spark-channel[{self.name}]', on the driver's host and on the workers",
                name=missing,
            )
        check_versions(self.name)
        module, _, name = target.partition(":")
        return getattr(lazy.load(module), name)

    def reader_class(self) -> type[Reader]:
        """Load the reader. Raises OptionError if it has none, MissingPackageError if it lacks a library."""
        return cast(type[Reader], self._load(self.reader, "reader"))

    def writer_class(self) -> type[Writer]:
        """Load the writer. Raises the errors of `reader_class`."""
        return cast(type[Writer], self._load(self.writer, "writer"))

    def options_class(self, half: str) -> type[Options]:
        """The options of its reader or its writer; `half` is "reader" or "writer"."""
        return self.reader_class().Options if half == "reader" else self.writer_class().Options

    def reader_with(self, options: Mapping[str, Any]) -> tuple[Reader, list[str]]:
        """See `load_reader`."""
        cls = self.reader_class()
        parsed, warnings = cls.Options.parse(options, connector=self.name)
        return cls(parsed), warnings

    def writer_with(self, options: Mapping[str, Any]) -> tuple[Writer, list[str]]:
        """See `load_writer`."""
        cls = self.writer_class()
        parsed, warnings = cls.Options.parse(options, connector=self.name)
        return cls(parsed), warnings

    def copied_together(self, reader: Reader, writer: Writer) -> "Together | None":
        """Return how small tables go from `reader`'s source to the target of `writer`, its own; None = one by one."""
        if self.together is None:
            return None
        return cast("Together | None", self._load(self.together, "writer")(reader, writer))


def _other_driver(options: Mapping[str, Any]) -> bool:
    """Whether ADBC's driver, a name or a path, is none of those that the tests run."""
    name = str(options.get("driver", "")).lower().rpartition("/")[2]
    return not any(tested in name for tested in ("postgresql", "sqlite", "duckdb"))


def _other_catalog(options: Mapping[str, Any]) -> bool:
    """Whether Iceberg's catalog is none of those that the tests run, as far as the options say it."""
    try:
        given = dict(json.loads(options.get("catalogproperties") or "{}"))
    except (TypeError, ValueError):
        return False
    by_address = "rest" if str(given.get("uri", "")).startswith("http") else "sql"
    return "py-catalog-impl" in given or given.get("type", by_address) not in ("sql", "rest")


_FILES = "spark_channel.connectors.files"
_S3 = "SeaweedFS 4.48; Amazon's store was not run"
_ONCE: Mapping[CommitMode, Delivery] = {"job": "once", "task": "once"}
_ONCE_BY_JOB: Mapping[CommitMode, Delivery] = {"job": "once"}
_AT_LEAST_ONCE: Mapping[CommitMode, Delivery] = {"task": "at least once"}
_OF_FILES: dict[str, Any] = {
    "feed": ("files that arrive",),
    "secrets": ("storageOptions",),
    "maturity": "stable",
    "tested": "files on a disk",
    "delivery": _ONCE,
    "also": (
        AlsoReaches("files on S3", "stable", _S3),
        AlsoReaches("files on GCS, Azure", "preview", "emulators of the stores"),
        AlsoReaches("files on HDFS", "stable", "Hadoop 3.4, with and without Kerberos"),
        AlsoReaches(
            "files over SFTP, FTP",
            "stable",
            "OpenSSH, vsftpd, ProFTPD and pure-ftpd of Debian 12, without streams",
            delivery={"job": "at least once"},
        ),
    ),
}
_CURSOR = "cursorColumn"
_BUILT_IN = (
    Connector(
        "parquet",
        f"{_FILES}.reader:ParquetReader",
        f"{_FILES}.writer:ParquetWriter",
        suffixes=(".parquet", ".pq"),
        about="Parquet files",
        **_OF_FILES,
    ),
    Connector(
        "csv",
        f"{_FILES}.reader:CsvReader",
        f"{_FILES}.writer:CsvWriter",
        suffixes=(".csv", ".csv.gz", ".tsv"),
        about="CSV files, also compressed",
        **_OF_FILES,
    ),
    Connector(
        "json",
        f"{_FILES}.reader:JsonReader",
        f"{_FILES}.writer:JsonWriter",
        suffixes=(".jsonl", ".ndjson", ".json", ".jsonl.gz"),
        about="JSON lines",
        **_OF_FILES,
    ),
    Connector(
        "arrow",
        f"{_FILES}.reader:ArrowReader",
        f"{_FILES}.writer:ArrowWriter",
        suffixes=(".arrow", ".feather", ".ipc"),
        about="Arrow IPC files",
        **_OF_FILES,
    ),
    Connector(
        "orc",
        f"{_FILES}.reader:OrcReader",
        f"{_FILES}.writer:OrcWriter",
        suffixes=(".orc",),
        about="ORC files",
        **_OF_FILES,
    ),
    Connector(
        "sqlite",
        "spark_channel.connectors.sqlite:SqliteReader",
        "spark_channel.connectors.sqlite:SqliteWriter",
        schemes=("sqlite",),
        suffixes=(".db", ".sqlite", ".sqlite3"),
        about="SQLite databases",
        dialect="sqlite",
        datax=("sqlite3", "sqlite"),
        secrets=("url",),
        feed=(_CURSOR,),
        maturity="stable",
        tested="SQLite 3.40",
        delivery=_ONCE,
    ),
    Connector(
        "duckdb",
        "spark_channel.connectors.duckdb:DuckdbReader",
        "spark_channel.connectors.duckdb:DuckdbWriter",
        schemes=("duckdb",),
        suffixes=(".duckdb", ".ddb"),
        about="DuckDB databases",
        needs=("duckdb",),
        dialect="duckdb",
        secrets=("url",),
        feed=(_CURSOR,),
        maturity="stable",
        tested="DuckDB 2.0",
        delivery=_ONCE_BY_JOB,
    ),
    Connector(
        "postgresql",
        "spark_channel.connectors.postgresql:PostgresReader",
        "spark_channel.connectors.postgresql:PostgresWriter",
        schemes=("postgresql", "postgres"),
        about="PostgreSQL databases",
        needs=("adbc_driver_postgresql", "asyncpg", "psycopg", "numpy"),
        port=5432,
        dialect="postgres",
        datax=("postgresql",),
        secrets=("url", "password", "sslpassword"),
        feed=(_CURSOR, "slot"),
        as_datax=DataxCompatibility(writer=_SERVER, texts=_TEXTS, zone="sessionTimeZone"),
        maturity="stable",
        tested="PostgreSQL 15; the main tests also on 13 and 18",
        delivery=_ONCE,
        together="spark_channel.connectors.postgresql.write.small_tables:joined",
    ),
    Connector(
        "mysql",
        "spark_channel.connectors.mysql:MysqlReader",
        "spark_channel.connectors.mysql:MysqlWriter",
        schemes=("mysql", "mariadb"),
        about="MySQL and MariaDB",
        needs=("pymysql", "numpy"),
        port=3306,
        dialect="mysql",
        datax=("mysql",),
        secrets=("url", "password"),
        feed=(_CURSOR, "binlog"),
        as_datax=DataxCompatibility(
            reader={"tinyInt1IsBit": "false", "zeroDates": "null", "wideDecimals": "text"},
            writer=_SERVER,
            texts=_TEXTS,
            own_mode={"sqlMode": "session"},
            modes={
                word: {"duplicates": word.rpartition(" ")[2]}
                for word in ("update", "replace", "insert ignore")
            },
        ),
        maturity="stable",
        tested="MariaDB 10.11 and 11.8",
        delivery=_ONCE,
        also=(
            AlsoReaches(
                "MySQL",
                "stable",
                "MySQL 9.7, and recorded logs of MySQL 5.6 to 8.0",
            ),
        ),
        together="spark_channel.connectors.mysql.write.small_tables:joined",
    ),
    Connector(
        "clickhouse",
        "spark_channel.connectors.clickhouse:ClickhouseReader",
        "spark_channel.connectors.clickhouse:ClickhouseWriter",
        schemes=("clickhouse",),
        about="ClickHouse, over HTTP",
        needs=("clickhouse_connect",),
        port=8123,
        dialect="clickhouse",
        datax=("clickhouse",),
        secrets=("url", "password"),
        as_datax=DataxCompatibility(texts=_TEXTS, zone="sessionTimeZone", short_decimals=True),
        maturity="preview",
        tested="ClickHouse's engine 26.9 (chdb), without its server; a server of 18.16 is refused",
        delivery=_AT_LEAST_ONCE,
    ),
    Connector(
        "adbc",
        "spark_channel.connectors.adbc:AdbcReader",
        "spark_channel.connectors.adbc:AdbcWriter",
        about="any database with an ADBC driver",
        secrets=("driver", "password", "uri", "driverOptions"),
        maturity="stable",
        tested="ADBC's drivers of PostgreSQL 15 and SQLite 3; reads also DuckDB's",
        delivery=_ONCE,
        also=(AlsoReaches("other ADBC drivers", "experimental", "none of them was run"),),
        untested=_other_driver,
    ),
    Connector(
        "delta",
        "spark_channel.connectors.delta:DeltaReader",
        "spark_channel.connectors.delta:DeltaWriter",
        about="Delta Lake tables",
        needs=("deltalake", "obstore"),
        datax=("delta",),
        secrets=("storageOptions",),
        feed=("new versions",),
        maturity="stable",
        tested="deltalake 1.6, and Delta Lake 4.4 in Spark 4.1, tables on a disk",
        delivery=_ONCE_BY_JOB,
        also=(
            AlsoReaches("Delta tables on S3", "stable", _S3),
            AlsoReaches("Delta tables on GCS, Azure", "preview", "emulators of the stores"),
        ),
    ),
    Connector(
        "iceberg",
        "spark_channel.connectors.iceberg:IcebergReader",
        "spark_channel.connectors.iceberg:IcebergWriter",
        about="Apache Iceberg tables",
        needs=("pyiceberg",),
        datax=("iceberg",),
        secrets=("catalogProperties",),
        feed=("new snapshots",),
        maturity="stable",
        tested="pyiceberg 0.12, and Iceberg 1.12 in Spark 4.1, a SQL catalog, tables on a disk",
        delivery=_ONCE_BY_JOB,
        also=(
            AlsoReaches("Iceberg tables on S3", "stable", _S3),
            AlsoReaches("Iceberg tables on GCS, Azure", "preview", "emulators of the stores"),
            AlsoReaches(
                "Iceberg tables in a REST catalog",
                "stable",
                "Iceberg's REST catalog 1.11, Project Nessie 0.99",
            ),
        ),
        untested=_other_catalog,
    ),
    Connector(
        "elasticsearch",
        "spark_channel.connectors.elasticsearch:ElasticsearchReader",
        "spark_channel.connectors.elasticsearch:ElasticsearchWriter",
        about="Elasticsearch and OpenSearch indexes",
        secrets=("url", "password", "apiKey"),
        maturity="stable",
        tested="OpenSearch 2.19",
        delivery=_AT_LEAST_ONCE,
        also=(AlsoReaches("Elasticsearch", "stable", "Elasticsearch 7.17; 8 was not run"),),
    ),
    Connector(
        "http",
        "spark_channel.connectors.http:HttpReader",
        None,
        about="JSON answers of web services",
        secrets=("url", "password", "token", "params", "body", "headers", "proxy"),
        maturity="experimental",
        tested="HTTP servers written for the tests",
    ),
    Connector(
        "mongodb",
        "spark_channel.connectors.mongodb:MongoReader",
        "spark_channel.connectors.mongodb:MongoWriter",
        schemes=("mongodb", "mongodb+srv"),
        about="MongoDB collections",
        needs=("pymongo",),
        port=27017,
        secrets=("url", "password"),
        maturity="preview",
        tested="only FerretDB, another server of its protocol",
        delivery=_AT_LEAST_ONCE,
        also=(AlsoReaches("FerretDB", "stable", "FerretDB 1.24 over SQLite"),),
    ),
    Connector(
        "redis",
        "spark_channel.connectors.redis:RedisReader",
        "spark_channel.connectors.redis:RedisWriter",
        schemes=("redis", "rediss"),
        about="keys of Redis and Valkey",
        needs=("redis",),
        port=6379,
        secrets=("url", "password"),
        maturity="stable",
        tested="Redis 7.0 and 8.0, alone and as a cluster of three",
        delivery={"job": "once", "task": "at least once"},
        also=(AlsoReaches("Valkey", "stable", "Valkey 9.1, alone and as a cluster of three"),),
    ),
    Connector(
        "kafka",
        "spark_channel.connectors.kafka:KafkaReader",
        "spark_channel.connectors.kafka:KafkaWriter",
        about="topics of Apache Kafka",
        needs=("confluent_kafka",),
        secrets=("password", "sslpassword", "clientProperties"),
        feed=("new records",),
        maturity="stable",
        tested="Apache Kafka 4.1",
        delivery=_AT_LEAST_ONCE,
    ),
    Connector(
        "streamload",
        None,
        "spark_channel.connectors.stream_load:StreamLoadWriter",
        about="Apache Doris, StarRocks and SelectDB, by Stream Load",
        secrets=("url", "password"),
        maturity="experimental",
        tested="servers written for the tests",
        delivery={"task": "once in a run"},
    ),
    Connector(
        "generator",
        "spark_channel.connectors.generator:GeneratorReader",
        None,
        schemes=("generator",),
        about="generated rows, for tests and benchmarks",
        maturity="stable",
        tested="this process, the only system that it needs",
    ),
    Connector(
        "discard",
        None,
        "spark_channel.connectors.generator:DiscardWriter",
        schemes=("discard",),
        about="counts rows and drops them",
        keeps=False,
        maturity="stable",
        tested="this process, the only system that it needs",
        delivery=_ONCE,
    ),
)


_FOUND: set[str] = set()


def _is_installed(module: str) -> bool:
    """Whether `module` can be imported. Found modules are cached: `check` may read a thousand files."""
    if module not in _FOUND and find_spec(module) is not None:
        _FOUND.add(module)
    return module in _FOUND


def has_third_parties() -> bool:
    """Whether connectors are installed that do not ship with this package."""
    return bool(_third_parties())


def _third_parties() -> dict[str, Connector]:
    return _installed(tuple((place, _changed(place)) for place in sys.path))


@functools.lru_cache(maxsize=1)
def _installed(_places: tuple[tuple[str, int], ...]) -> dict[str, Connector]:
    """Looked for again when something was put where Python imports from: each look costs 10 ms."""
    return {
        entry.name.lower(): cast(Connector, entry.load())
        for entry in entry_points(group="spark_channel.connectors")
    }


def _changed(place: str) -> int:
    try:
        return os.stat(place).st_mtime_ns  # noqa: PTH116 - asked for each name, and `Path` takes ten times as long
    except OSError:
        return 0


def _all() -> dict[str, Connector]:
    return {**{connector.name: connector for connector in _BUILT_IN}, **_third_parties()}


def all_connectors() -> list[Connector]:
    """Every connector that can be named, by name."""
    return sorted(_all().values(), key=lambda connector: connector.name)


def connector_names(half: str | None = None) -> list[str]:
    """Names of all connectors; `half` = "reader" or "writer" keeps those that have that half."""
    return sorted(name for name, found in _all().items() if half is None or getattr(found, half))


def _lowered(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in options.items()}


def experiment_remark(used: Iterable[tuple[Connector, Mapping[str, Any]]]) -> str | None:
    """Return the warning that a job logs at its start, if it uses something experimental: by (connector, options)."""
    found = {
        each.name: each.tested
        for each, options in used
        if each.maturity == "experimental" or (each.untested and each.untested(_lowered(options)))
    }
    if not found:
        return None
    listed = "; ".join(
        f"{name}, tested only against {tested}"
        if tested
        else f"{name}, which does not declare what it was tested against"
        for name, tested in found.items()
    )
    return f"an experimental connector is used: {listed}. Compare target and source before you rely on it"


def is_database(connector: str) -> bool:
    """Whether the connector of that name is of a database."""
    return any(each.name == connector and each.dialect for each in all_connectors())


def find_connector(options: Mapping[str, Any], half: str) -> Connector:
    """The connector that `options` (Spark's, lower-cased keys) ask for; `half` is "reader" or "writer".

    The option named like the half wins, then `url`'s scheme, then `path`'s suffix.

    Raises:
        OptionError: unknown name, or nothing that points to a connector.
    """
    lowered = _lowered(options)
    known = _all()
    if (name := lowered.get(half)) is not None:
        found = known.get(str(name).lower())
        if found is None or getattr(found, half) is None:
            names = connector_names(half)
            near = difflib.get_close_matches(str(name).lower(), names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(
                f"option {half!r} got {mask_text(str(name))!r}; {hint}it takes one of: {', '.join(names)}",
                option=half,
                got=mask_text(str(name)),
                takes=", ".join(names),
            )
        return found
    if (url := lowered.get("url")) is not None:
        scheme = scheme_of(str(url))
        for connector in known.values():
            if scheme in connector.schemes and getattr(connector, half):
                return connector
        _refuse_other_half(lowered, half)
        schemes = sorted({s for c in known.values() if getattr(c, half) for s in c.schemes})
        raise OptionError(
            f"option 'url' has scheme {scheme!r}; known {half} schemes: {', '.join(schemes)}. "
            f"Or name the connector with option {half!r}",
            option="url",
            got=scheme,
            takes=", ".join(schemes),
        )
    path = str(lowered.get("path") or lowered.get("paths") or "").lower().rstrip("/\"]' ")
    for connector in known.values():
        if getattr(connector, half) and path.endswith(connector.suffixes or ("\0",)):
            return connector
    _refuse_other_half(lowered, half)
    names = connector_names(half)
    if path:
        raise OptionError(
            f"path {mask_url(path)!r} does not show which connector to use; "
            f"name it with option {half!r}, one of: {', '.join(names)}",
            option=half,
            takes=", ".join(names),
        )
    raise OptionError(
        f"nothing says what to {'read' if half == 'reader' else 'write'}: "
        f"give a path, a 'url', or option {half!r} (one of: {', '.join(names)})",
        option=half,
        takes=", ".join(names),
    )


def _refuse_other_half(options: Mapping[str, Any], half: str) -> None:
    other, verb = ("writer", "reads") if half == "reader" else ("reader", "writes")
    if (name := options.get(other)) is not None:
        raise OptionError(
            f"option {other!r} got {mask_text(str(name))!r}, but this {verb}: use option {half!r}",
            option=other,
            got=mask_text(str(name)),
        )


def load_reader(options: Mapping[str, Any]) -> tuple[Reader, list[str]]:
    """The reader that `options` describe, and warnings about ignored options. Opens nothing."""
    return find_connector(options, "reader").reader_with(options)


def load_writer(options: Mapping[str, Any]) -> tuple[Writer, list[str]]:
    """The writer that `options` describe, and warnings about ignored options. Opens nothing."""
    return find_connector(options, "writer").writer_with(options)


def describe(options: object) -> str:
    """ "flights.db#flights", "/data/*.csv", "postgresql://db:5432/shop#orders". For people, not programs."""
    url, path, paths = (getattr(options, name, None) for name in ("url", "path", "paths"))
    place = ""
    if url:
        scheme, mark, rest = without_login(str(url)).rpartition(":")
        place = scheme + mark + shorten(rest)
    elif path:
        place = mask_url(shorten(str(path)))
    elif paths:
        listed = json.loads(paths) if isinstance(paths, str) else list(paths)
        more = f" and {len(listed) - 1} more" if len(listed) > 1 else ""
        place = mask_url(shorten(str(listed[0]))) + more
    if table := getattr(options, "dbtable", None):
        return f"{place}#{table}"
    return f"{place}#(query)" if getattr(options, "query", None) else place
