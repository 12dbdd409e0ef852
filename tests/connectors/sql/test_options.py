"""Spark's JDBC options, each taken, warned of, or refused; and which file an url means."""

from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.mysql.options import MysqlReadOptions, MysqlWriteOptions
from spark_channel.connectors.postgresql.options import PostgresReadOptions, PostgresWriteOptions
from spark_channel.connectors.sql.options import Credentials
from spark_channel.connectors.sqlite.options import SqliteReadOptions, SqliteWriteOptions
from spark_channel.errors import OptionError

database_path = SqliteReadOptions.file_url.path
JDBC_OPTIONS = [
    "url",
    "dbtable",
    "query",
    "prepareQuery",
    "driver",
    "partitionColumn",
    "lowerBound",
    "upperBound",
    "numPartitions",
    "queryTimeout",
    "fetchsize",
    "batchsize",
    "isolationLevel",
    "sessionInitStatement",
    "truncate",
    "cascadeTruncate",
    "createTableOptions",
    "createTableColumnTypes",
    "tableComment",
    "customSchema",
    "pushDownPredicate",
    "pushDownAggregate",
    "pushDownLimit",
    "pushDownOffset",
    "pushDownTableSample",
    "pushDownJoin",
    "keytab",
    "principal",
    "refreshKrb5Config",
    "connectionProvider",
    "preferTimestampNTZ",
    "preferTimestampNanos",
    "hint",
    "user",
    "password",
]
"""As `JDBCOptions` of Spark 4.3 names them."""

READ = {"path": "/a.db", "dbtable": "t"}
DOCS = (Path(__file__).parents[3] / "docs" / "options.md").read_text("utf-8")


def read(**options: Any) -> SqliteReadOptions:
    return SqliteReadOptions.parse({**READ, **options}, connector="sqlite")[0]


def write(**options: Any) -> SqliteWriteOptions:
    return SqliteWriteOptions.parse({**READ, **options}, connector="sqlite")[0]


def fate(cls: Any, name: str) -> str:
    """What becomes of an option: supported, ignored or refused."""
    lowered = name.lower()
    if lowered in {alias.lower() for alias in cls.aliases} | set(cls.names()):
        return "supported"
    if lowered in {each.lower() for each in cls.ignored}:
        return "ignored"
    return "refused" if lowered in {each.lower() for each in cls.refused} else "unknown"


@pytest.mark.parametrize("name", JDBC_OPTIONS)
@pytest.mark.parametrize("cls", [SqliteReadOptions, SqliteWriteOptions])
def test_no_option_of_jdbc_is_unknown(cls: Any, name: str) -> None:
    assert fate(cls, name) != "unknown"


def test_the_docs_name_each() -> None:
    assert [name for name in JDBC_OPTIONS if f"`{name}`" not in DOCS] == []


def test_ignored_options_say_why() -> None:
    options = {
        **READ,
        "user": "x",
        "password": "hunter2",
        "driver": "d",
        "queryTimeout": "5",
        "batchsize": "7",
        "pushDownLimit": "true",
    }
    warnings = SqliteReadOptions.parse(options)[1]
    assert len(warnings) == 6
    assert (
        "option 'queryTimeout' is ignored: a statement on a SQLite file has no timeout"
        in warnings[3]
    )
    assert "hunter2" not in str(warnings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dbtable": None}, "give 'dbtable' or 'query'"),
        ({"query": "SELECT 1"}, "'dbtable' and 'query' exclude each other"),
        ({"dbtable": " "}, "'dbtable' is empty"),
        ({"lowerBound": "1", "partitionColumn": "a"}, "'lowerBound' and 'upperBound' go together"),
        ({"upperBound": "1", "partitionColumn": "a"}, "'lowerBound' and 'upperBound' go together"),
        ({"lowerBound": "1", "upperBound": "5"}, "need 'partitionColumn'"),
        ({"fetchsize": "-1"}, "'fetchsize' got '-1'"),
        (
            {"prepareQuery": "WITH x"},
            "'prepareQuery' is not supported: write the WITH clause inside 'query'",
        ),
        ({"principal": "x"}, "Kerberos logins are not supported"),
        ({"lockTimeout": "0"}, "'lockTimeout' got '0'; it takes a number above 0"),
        ({"sessionInitStatement": "[1]"}, "'sessionInitStatement' got"),
        ({"numPartitions": "0"}, "'channels' got '0'; it takes a number of 1 or more"),
        ({"createTable": "true"}, "unknown option 'createTable'"),
        ({"path": None}, "nothing names the database file"),
        ({"path": ":memory:"}, "belongs to one process"),
        ({"path": ""}, "belongs to one process"),
        (
            {"url": "sqlite:/b.db"},
            r"'url' \(sqlite:/b.db\) and 'path' \(/a.db\) name different files",
        ),
        ({"url": "jdbc:postgresql:x"}, "'url' has scheme 'postgresql'"),
    ],
)
def test_read_options_that_contradict(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dbtable": None}, "option 'dbtable' is missing"),
        ({"dbtable": "(SELECT 1) q"}, "a write takes a table's name"),
        ({"query": "SELECT 1"}, "a write names its table with 'dbtable'"),
        ({"where": "1=1"}, "filter the rows in the DataFrame"),
        ({"keyColumns": "id"}, "'keyColumns' needs 'writeMode' upsert or skipExisting"),
        (
            {"writeMode": "merge"},
            "'writeMode' got 'merge'; it takes one of 'insert', 'upsert', 'skipExisting' or 'apply'",
        ),
        ({"batchSize": "0"}, "'batchsize' got '0'"),
        (
            {"upsert": "true"},
            "'upsert' is not supported: it is 'writeMode=upsert' here, with the key's columns in",
        ),
        ({"truncate": "perhaps"}, "'truncate' got 'perhaps'; it takes true or false"),
        ({"preSql": "[]"}, "'preSql' got"),
    ],
)
def test_write_options_that_contradict(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        write(**options)


def test_names_as_jdbc_spells_them() -> None:
    options = read(
        fetchSize="0", numPartitions="8", partitioncolumn="a", lowerbound="1", upperbound="9"
    )
    assert (
        options.fetch_size,
        options.channels,
        options.partition_column,
        options.lower_bound,
    ) == (
        None,
        8,
        "a",
        "1",
    )
    assert read(fetchsize="1k").fetch_size == 1000
    written = write(batchSize="10", numPartitions="3", preSql='["A", "B"]', postSql="C; D")
    assert (written.batch_size, written.max_connections) == (10, 3)
    assert write(writeMode="upsert", upsertKeyColumns="id").key_columns == ("id",)
    assert (written.pre_sql, written.post_sql) == (("A", "B"), ("C; D",))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("jdbc:sqlite:/data/a.db", "/data/a.db"),
        ("jdbc:sqlite:a.db", "a.db"),
        ("sqlite:a.db", "a.db"),
        ("sqlite:///data/a.db", "/data/a.db"),
        ("sqlite:////data/a.db", "/data/a.db"),
        ("SQLite://localhost/data/a.db", "/data/a.db"),
        ("jdbc:sqlite:file:/data/a%20b.db", "/data/a%20b.db"),
        ("sqlite:/data/a b#c.db", "/data/a b#c.db"),
    ],
)
def test_urls(url: str, path: str) -> None:
    assert Path(str(database_path(url, None)).replace("//", "/")) == Path(path)
    assert database_path(url, None) == database_path(url, str(database_path(url, None)))


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:",
        "jdbc:sqlite:",
        "sqlite::memory:",
        "jdbc:sqlite::memory:",
        "sqlite://",
        "sqlite://host/a.db",
        "sqlite:a.db?mode=rwc",
        "file:/a.db",
        "/a.db",
    ],
)
def test_urls_that_name_no_file(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        database_path(url, None)
    assert caught.value.option == "url"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://me:hunter2@host/a.db",
        "postgresql://me:hunter2@h/d",
        "sqlite:a.db?password=hunter2",
    ],
)
def test_a_login_in_an_url_is_not_shown(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        SqliteReadOptions.parse({"dbtable": "t", "url": url})
    assert "hunter2" not in str(caught.value) + repr(vars(caught.value))


def test_credentials_for_servers() -> None:
    credentials = Credentials.parse({"user": "me", "password": "hunter2"})[0]
    assert "hunter2" not in repr(credentials)
    assert credentials.password is not None
    assert credentials.password.get_secret_value() == "hunter2"


Server = MysqlReadOptions | MysqlWriteOptions | PostgresReadOptions | PostgresWriteOptions
SERVERS: dict[str, tuple[type[Server], ...]] = {
    "postgresql://h/d": (PostgresReadOptions, PostgresWriteOptions),
    "mysql://h/d": (MysqlReadOptions, MysqlWriteOptions),
}


@pytest.mark.parametrize(
    ("url", "model"), [(url, each) for url, models in SERVERS.items() for each in models]
)
def test_servers_take_the_same_names(url: str, model: type[Server]) -> None:
    given = {
        "url": url,
        "dbtable": "t",
        "sslmode": "verify-full",
        "sslrootcert": "/ca",
        "sslcert": "/c",
        "sslkey": "/k",
        "connectTimeout": "3",
        "queryTimeout": "4",
        "retryTimeout": "5",
    }
    options, warnings = model.parse(given)
    assert warnings == []
    found = (options.sslmode, options.sslrootcert, options.sslcert, options.sslkey)
    assert found == ("verify-full", "/ca", "/c", "/k")
    assert (options.connect_timeout, options.query_timeout, options.retry_timeout) == (3, 4, 5)


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ("disabled", "disable"),
        ("PREFERRED", "prefer"),
        ("REQUIRED", "require"),
        ("verify-ca", "verify-ca"),
        ("VERIFY_IDENTITY", "verify-full"),
        ("verify-identity", "verify-full"),
        ("verify-full", "verify-full"),
    ],
)
def test_mysql_takes_its_own_words_for_sslmode(given: str, mode: str) -> None:
    for raw in (
        {"url": "mysql://h/d", "sslMode": given},
        {"url": f"jdbc:mysql://h/d?sslMode={given}"},
    ):
        options = MysqlReadOptions.parse({**raw, "dbtable": "t"})[0]
        assert options.sslmode == mode
    with pytest.raises(
        OptionError,
        match=r"'sslmode' got 'allow'.*'disable', 'prefer', 'require', 'verify-ca' or 'verify-full'",
    ):
        MysqlReadOptions.parse({"url": "mysql://h/d", "dbtable": "t", "sslmode": "allow"})
