"""Plugins for servers that speak another's protocol: what is asked of our connectors, and jobs on such servers."""

from pathlib import Path
from typing import Any

import pytest

from spark_channel.datax import load_job
from spark_channel.datax.plugins import readers, writers
from spark_channel.datax.plugins.aliases import ALIASES
from spark_channel.errors import JobFileError
from tests.datax.ran import ran
from tests.datax.small_jobs import make_job
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

TENANT = "||_dsc_ob10_dsc_||cluster:tenant||_dsc_ob10_dsc_||"
OCEANBASE = f"{TENANT}jdbc:mysql://h:2883/shop"


def reads(plugin: str, url: Any, **more: Any) -> Any:
    given = {
        "username": "u",
        "password": "p",
        "column": ["*"],
        "connection": [{"jdbcUrl": url, "table": ["t"]}],
        **more,
    }
    return load_job(make_job(plugin, given))


def writes(plugin: str, url: str = "jdbc:mysql://h/d", **more: Any) -> Any:
    connection = {"connection": [{"jdbcUrl": url, "table": ["t"]}]} if url else {}
    return load_job(make_job(writer=plugin, writes={"column": ["a", "b"], **connection, **more}))


@pytest.mark.parametrize(
    ("plugin", "url", "connector", "wanted"),
    [
        ("drdsreader", ["jdbc:mysql://h/d"], "mysql", "jdbc:mysql://h/d"),
        ("oceanbasev10reader", ["jdbc:oceanbase://h:2881/d"], "mysql", "jdbc:mysql://h:2881/d"),
        ("oceanbasev10reader", [OCEANBASE], "mysql", "jdbc:mysql://h:2883/shop"),
        ("adbmysqlreader", "jdbc:mysql://h/d", "mysql", "jdbc:mysql://h/d"),
        (
            "gaussdbreader",
            ["jdbc:opengauss://h:8000/d"],
            "postgresql",
            "jdbc:postgresql://h:8000/d",
        ),
        ("adbpgreader", ["jdbc:postgresql://h/d"], "postgresql", "jdbc:postgresql://h/d"),
        (
            "kingbaseesreader",
            ["jdbc:kingbase8://h:54321/d"],
            "postgresql",
            "jdbc:postgresql://h:54321/d",
        ),
    ],
)
def test_a_url_becomes_one_of_the_protocol(
    plugin: str, url: Any, connector: str, wanted: str
) -> None:
    loaded = reads(plugin, url)
    assert (loaded.spec.reader.name, loaded.spec.reader.options["url"]) == (connector, wanted)
    assert any("it was not tested against this kind of server" in text for text in loaded.warnings)


def test_the_tenant_is_a_part_of_the_users_name() -> None:
    assert (
        reads("oceanbasev10reader", [OCEANBASE]).spec.reader.options["user"] == "u@tenant#cluster"
    )
    own = reads("oceanbasev10reader", [OCEANBASE], username="u@other#c")
    assert own.spec.reader.options["user"] == "u@other#c"
    with pytest.raises(JobFileError, match="connection got urls of several tenants"):
        reads("oceanbasev10reader", [OCEANBASE, OCEANBASE.replace("tenant", "other")])


def test_faults_are_those_of_the_protocol() -> None:
    with pytest.raises(
        JobFileError, match=r"jdbcUrl got a url of oracle; it takes jdbc:postgresql"
    ):
        reads("gaussdbreader", ["jdbc:oracle:thin:@h"])
    with pytest.raises(JobFileError, match=r"connection got 'x'"):
        load_job(make_job("drdsreader", {"column": ["*"], "connection": "x"}))


@pytest.mark.parametrize(
    ("plugin", "given", "message"),
    [
        (
            "oceanbasev10writer",
            {"obUpdateColumns": "b"},
            "obUpdateColumns is not supported: a row whose key",
        ),
        (
            "oceanbasev10writer",
            {"obWriteMode": "upsert"},
            r"obWriteMode got 'upsert'; it takes .*'insert' or 'update'",
        ),
        (
            "adbpgwriter",
            {"url": "", "host": "h", "table": "t"},
            r"database is missing; adbpgwriter takes host, port",
        ),
        (
            "adbpgwriter",
            {"url": "", "host": "h", "port": "x", "table": "t"},
            r"parameter\.port got 'x'",
        ),
    ],
)
def test_settings_that_would_write_other_rows_are_refused(
    plugin: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobFileError, match=message):
        writes(plugin, **given)
    with pytest.raises(
        JobFileError, match=r"partitionName is not supported: the whole table would be read"
    ):
        reads("oceanbasev10reader", [OCEANBASE], partitionName="p0")


def test_what_has_no_effect_is_said_with_its_reason() -> None:
    loaded = writes(
        "oceanbasev10writer", writeMode="insert", memstoreThreshold="0.9", directPath=True
    )
    (left,) = (text for text in loaded.warnings if text.startswith("without effect"))
    assert "writeMode (oceanbasev10writer uses obWriteMode)" in left
    assert "memstoreThreshold (set a limit" in left
    assert "directPath (rows are inserted by SQL)" in left
    assert loaded.spec.writer.options["duplicates"] == "update"
    fetched = reads(
        "oceanbasev10reader", [OCEANBASE], readBatchSize=500, timeout=5
    ).spec.reader.options
    assert fetched["fetchsize"] == "500"
    assert any(
        "page names replace as the default" in text for text in writes("adbmysqlwriter").warnings
    )


KEPT, REPLACED = ("1", "old", "kept", "0"), ("1", "ada", "new", "10")
UPDATED = ("1", "ada", "kept", "10")
PARAMETERS = "useUnicode=true&characterEncoding=utf8&rewriteBatchedStatements=true"
CASES: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...], int]] = {
    "drds": ("drds", f"jdbc:mysql://@at?{PARAMETERS}", {}, REPLACED, 0),
    "drds-ignore": ("drds", "jdbc:mysql://@at", {"writeMode": "insert ignore"}, KEPT, 0),
    "oceanbase": (
        "oceanbasev10",
        f"{TENANT}jdbc:mysql://@at?{PARAMETERS}",
        {"memstoreThreshold": "0.9"},
        UPDATED,
        0,
    ),
    "oceanbase-insert": (
        "oceanbasev10",
        "jdbc:oceanbase://@at",
        {"obWriteMode": "insert"},
        KEPT,
        1,
    ),
    "oceanbase-commit": (
        "oceanbasev10",
        "jdbc:oceanbase://@at",
        {"preSql": ["truncate table @table"]},
        REPLACED,
        0,
    ),
    "adbmysql": (
        "adbmysql",
        "jdbc:mysql://@at?useUnicode=true",
        {"writeMode": "replace"},
        REPLACED,
        0,
    ),
    "adbmysql-update": ("adbmysql", "jdbc:mysql://@at", {"writeMode": "update"}, REPLACED, 0),
    "adbmysql-default": ("adbmysql", "jdbc:mysql://@at", {}, KEPT, 1),
    "gaussdb": ("gaussdb", "jdbc:opengauss://@at?currentSchema=public", {}, KEPT, 1),
    "gaussdb-empty": (
        "gaussdb",
        "jdbc:gaussdb://@at",
        {"preSql": ["delete from @table"]},
        REPLACED,
        0,
    ),
    "kingbase": (
        "kingbasees",
        "jdbc:kingbase8://@at",
        {"preSql": ["truncate table @table"]},
        REPLACED,
        0,
    ),
    "adbpg": ("adbpg", "jdbc:postgresql://@at", {"preSql": ["delete from @table"]}, REPLACED, 0),
    "adbpg-ignore": ("adbpg", "jdbc:postgresql://@at", {"ignoreInsert": True}, KEPT, 0),
}
"""The plugin, its url, how it writes, what becomes of a row whose key exists, and how many rows are refused."""


@pytest.fixture(scope="module")
def tenants(mariadb_server: MariadbServer) -> MariadbServer:
    """With a user of a tenant, whose password is another than that of the user without one."""
    mariadb_server.sql(
        "CREATE USER 'tester@tenant#cluster'@'127.0.0.1' IDENTIFIED BY 'of-tenant'; "
        "GRANT ALL ON *.* TO 'tester@tenant#cluster'@'127.0.0.1'"
    )
    return mariadb_server


@pytest.mark.parametrize("case", CASES)
def test_a_job_of_each_alias(
    case: str, tenants: MariadbServer, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """From and into servers of the same protocol: MariaDB and PostgreSQL."""
    name, url, how, wanted, refused = CASES[case]
    is_mysql = ALIASES[name].protocol == "mysql"
    sign = "`" if is_mysql else '"'
    server = tenants if is_mysql else postgres_server
    tables = (
        f"DROP TABLE IF EXISTS alias_from; DROP TABLE IF EXISTS alias_to; CREATE TABLE alias_from "
        f"(id INT PRIMARY KEY, name VARCHAR(20), {sign}order{sign} INT); "
        "INSERT INTO alias_from VALUES (1, 'ada', 10), (2, NULL, 20), (300, 'filtered', 30); "
        "CREATE TABLE alias_to (id INT PRIMARY KEY, name VARCHAR(20), note VARCHAR(20) DEFAULT 'new', "
        f"{sign}order{sign} INT); INSERT INTO alias_to VALUES (1, 'old', 'kept', 0)"
    )
    tenants.sql(tables, database="shop") if is_mysql else postgres_server.psql(tables)
    here = url.replace("@at", server.url.partition("://")[2])
    login = {
        "username": server.user,
        "password": "of-tenant" if url.startswith(TENANT) else server.password,
        # DataX escapes keywords for OceanBase alone; elsewhere jobs do.
        "column": ["id", "name", "order" if name == "oceanbasev10" else f"{sign}order{sign}"],
    }
    to: dict[str, Any] = {"connection": [{"jdbcUrl": here, "table": ["alias_to"]}]}
    if name == "adbpg":
        to = {
            "host": "127.0.0.1",
            "port": str(server.port),
            "database": "postgres",
            "schema": "public",
            "table": "alias_to",
        }
    job = make_job(
        f"{name}reader",
        {
            **login,
            "connection": [{"jdbcUrl": [here], "table": ["alias_from"]}],
            "splitPk": "id",
            "where": "id < 100",
        },
        f"{name}writer",
        {**login, **to, **how},
        setting={"speed": {"channel": 2}, **({"commit": "job"} if case.endswith("commit") else {})},
    )
    report = ran(tmp_path, job)
    assert (report["rows_written"], report["rows_refused"]) == (2 - refused, refused)
    query = f"SELECT id, coalesce(name, '-'), note, {sign}order{sign} FROM alias_to ORDER BY id"
    rows = (
        [tuple(line.split("\t")) for line in tenants.sql(query, database="shop").split("\n")]
        if is_mysql
        else postgres_server.rows(query)
    )
    assert rows == [wanted, ("2", "-", "new", "20")]


def test_each_alias_has_a_reader_and_a_writer_and_ran_as_a_job() -> None:
    known = {**readers(), **writers()}
    assert all(f"{name}{half}" in known for name in ALIASES for half in ("reader", "writer"))
    assert {name for name, *_ in CASES.values()} == set(ALIASES)
