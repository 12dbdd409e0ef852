"""Plugins for servers that speak another's protocol: what is asked of our connectors, and rows through real ones."""

from typing import Any

import pytest

from spark_channel.errors import JobFileError
from spark_channel.jobs import load_job
from spark_channel.jobs.plugins import readers, writers
from spark_channel.jobs.plugins.aliases import ALIASES
from tests.jobs.conftest import make_job
from tests.jobs.moved import move
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

OCEANBASE = "||_dsc_ob10_dsc_||cluster:tenant||_dsc_ob10_dsc_||jdbc:mysql://h:2883/shop"


def reads(plugin: str, url: Any, **more: Any) -> Any:
    given = {
        "username": "u",
        "password": "p",
        "column": ["*"],
        "connection": [{"jdbcUrl": url, "table": ["t"]}],
        **more,
    }
    return load_job(make_job(plugin, given))


@pytest.mark.parametrize(
    ("plugin", "url", "connector", "wanted"),
    [
        ("drdsreader", ["jdbc:mysql://h/d"], "mysql", "jdbc:mysql://h/d"),
        ("oceanbasev10reader", ["jdbc:oceanbase://h:2881/d"], "mysql", "jdbc:mysql://h:2881/d"),
        ("oceanbasev10reader", [OCEANBASE], "mysql", "jdbc:mysql://h:2883/shop"),
        ("adbmysqlreader", "jdbc:mysql://h/d", "mysql", "jdbc:mysql://h/d"),
        ("gaussdbreader", ["jdbc:opengauss://h:8000/d"], "postgresql", "jdbc:postgresql://h:8000/d"),
        ("adbpgreader", ["jdbc:postgresql://h/d"], "postgresql", "jdbc:postgresql://h/d"),
        ("kingbaseesreader", ["jdbc:kingbase8://h:54321/d"], "postgresql", "jdbc:postgresql://h:54321/d"),
    ],
)
def test_a_url_becomes_one_of_the_protocol(plugin: str, url: Any, connector: str, wanted: str) -> None:
    loaded = reads(plugin, url)
    assert (loaded.spec.reader.name, loaded.spec.reader.options["url"]) == (connector, wanted)
    assert any("it was not tested against this kind of server" in text for text in loaded.warnings)


def test_the_tenant_is_a_part_of_the_users_name() -> None:
    assert reads("oceanbasev10reader", [OCEANBASE]).spec.reader.options["user"] == "u@tenant#cluster"
    own = reads("oceanbasev10reader", [OCEANBASE], username="u@other#c")
    assert own.spec.reader.options["user"] == "u@other#c"


def test_faults_are_those_of_the_protocol() -> None:
    with pytest.raises(JobFileError, match=r"jdbcUrl got a url of oracle; it takes jdbc:postgresql"):
        reads("gaussdbreader", ["jdbc:oracle:thin:@h"])
    with pytest.raises(JobFileError, match=r"connection got 'x'"):
        load_job(make_job("drdsreader", {"column": ["*"], "connection": "x"}))


def test_rows_go_from_one_protocol_to_the_other(
    mariadb_server: MariadbServer, postgres_server: PostgresServer
) -> None:
    """Through MariaDB and PostgreSQL, which are what these servers speak like."""
    mariadb_server.sql("CREATE TABLE aliased (id INT PRIMARY KEY, name VARCHAR(20))", database="shop")
    mariadb_server.sql("INSERT INTO aliased VALUES (1, 'ada'), (2, NULL)", database="shop")
    postgres_server.psql("CREATE TABLE aliased (id INT PRIMARY KEY, name TEXT)")
    job = make_job(
        "oceanbasev10reader",
        {
            **_login(mariadb_server.login),
            "column": ["id", "name"],
            "connection": [{"jdbcUrl": [_at("jdbc:oceanbase", mariadb_server.url)], "table": ["aliased"]}],
        },
        "gaussdbwriter",
        {
            **_login(postgres_server.login),
            "column": ["id", "name"],
            "connection": [{"jdbcUrl": _at("jdbc:opengauss", postgres_server.url), "table": ["aliased"]}],
        },
    )
    assert move(job) == []
    assert postgres_server.rows("SELECT id, coalesce(name, '-') FROM aliased ORDER BY id") == [
        ("1", "ada"),
        ("2", "-"),
    ]


def _login(found: dict[str, str]) -> dict[str, str]:
    return {"username": found["user"], "password": found.get("password", "")}


def _at(scheme: str, url: str) -> str:
    """The server of `url`, in the words of another driver."""
    return scheme + url[url.index("://") :]


def test_each_alias_has_a_reader_and_a_writer() -> None:
    known = {**readers(), **writers()}
    assert all(f"{name}{half}" in known for name in ALIASES for half in ("reader", "writer"))
