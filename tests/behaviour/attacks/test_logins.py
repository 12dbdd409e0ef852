"""TLS that was asked for is proven before the login is sent.

Servers without TLS, with a certificate of another CA or for another host, and such that fall back to plain text, by
each way to ask for TLS. The last test asks for less, and gets what it asks for: the traps do hear a password.
"""

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import load_reader, load_writer
from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.base.server_url import is_of_this_machine
from spark_channel.connectors.mysql.session import connection as mysql_session
from spark_channel.connectors.postgresql.options import PostgresReadOptions
from spark_channel.connectors.postgresql.read.asyncpg_arguments import asyncpg_arguments
from spark_channel.connectors.sql import postgresql_family as libpq
from spark_channel.errors import ChannelError, OptionError
from tests.behaviour.attacks.traps import KINDS, PASSWORD, Authority, trap

# A client that leaves before the handshake: Python leaves the trap's socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
)

MYSQL_ASKS = ("mysql_clear_password", "dialog", "sha256_password", "caching_sha2_password")
LOGIN = {"user": "u", "password": PASSWORD}
SQL = {**LOGIN, "dbtable": "t", "retryTimeout": "0", "connectTimeout": "5"}
QUICK = {"retryTimeout": "0.01"}
Options = dict[str, Any]


def _redis(scheme: str, port: int, **more: str) -> Options:
    url = f"{scheme}://127.0.0.1:{port}/0"
    return {"url": url, **LOGIN, "keys": "a*", "schema": "key STRING", **QUICK, **more}


def _elastic(scheme: str, port: int, **more: str) -> Options:
    url = f"{scheme}://127.0.0.1:{port}"
    return {"name": "elasticsearch", "url": url, "index": "t", **LOGIN, **QUICK, **more}


def _web(scheme: str, port: int, **more: str) -> Options:
    return {"name": "http", "url": f"{scheme}://127.0.0.1:{port}/", **LOGIN, **QUICK, **more}


def _load(scheme: str, port: int, **more: str) -> Options:
    url = f"{scheme}://127.0.0.1:{port}"
    table = {"database": "d", "dbtable": "t"}
    return {"name": "streamload", "url": url, **table, **LOGIN, **QUICK, **more}


def _kafka(protocol: str | None, port: int, **more: str) -> Options:
    given = {
        "name": "kafka",
        "bootstrapServers": f"127.0.0.1:{port}",
        "topic": "t",
        **LOGIN,
        **more,
    }
    named = {} if protocol is None else {"securityProtocol": protocol}
    return {**given, **named, "timeout": "1"}


def _mongo(parameters: str, port: int) -> Options:
    url = f"mongodb://127.0.0.1:{port}/d?authMechanism=PLAIN&authSource=%24external&{parameters}"
    schema = {"schema": "_id BIGINT", "connectTimeout": "1"}
    return {"url": url, "collection": "t", **LOGIN, **schema}


def _clickhouse(url: str, port: int, **more: str) -> Options:
    return {"name": "clickhouse", "url": url.replace("PORT", str(port)), **SQL, **more}


def _files(scheme: str, port: int, **settings: str) -> Options:
    uri = f"{scheme}://u@127.0.0.1:{port}/f.csv"
    storage = {"password": PASSWORD, "timeout": "5", **settings}
    return {"name": "csv", "path": uri, "storageOptions": json.dumps(storage)}


def _postgres(parameters: str, port: int, scheme: str = "postgresql", **more: str) -> Options:
    return {"url": f"{scheme}://127.0.0.1:{port}/d{parameters}", **SQL, **more}


def _adbc(uri: str) -> Options:
    return {"name": "adbc", "driver": "postgresql", "uri": uri, "dbtable": "t"}


def _mysql(parameters: str, port: int, scheme: str = "mysql", **more: str) -> Options:
    return {"url": f"{scheme}://127.0.0.1:{port}/d{parameters}", **SQL, **more}


Way = Callable[[int, str], Options]
WAYS: dict[str, dict[str, Way]] = {
    "postgresql": {
        "option sslrootcert": lambda port, root: _postgres("", port, sslrootcert=root),
        "options": lambda port, root: _postgres("", port, sslrootcert=root, sslmode="verify-full"),
        "url": lambda port, root: _postgres(f"?sslrootcert={root}", port),
        "url and option": lambda port, root: _postgres(
            "?sslmode=verify-full", port, sslrootcert=root
        ),
        "JDBC ssl": lambda port, root: _postgres(
            "?ssl=true", port, "jdbc:postgresql", sslrootcert=root
        ),
        "JDBC sslrootcert": lambda port, root: _postgres(
            f"?sslrootcert={root}", port, "jdbc:postgresql"
        ),
        "JDBC sslMode": lambda port, root: _postgres(
            f"?sslMode=VERIFY-FULL&sslrootcert={root}", port, "jdbc:postgresql"
        ),
        "ADBC url": lambda port, root: _adbc(
            f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/d?sslrootcert={root}"
        ),
        "ADBC string": lambda port, root: _adbc(
            f"host=127.0.0.1 port={port} user=u password='{PASSWORD}' dbname=d sslrootcert='{root}'"
        ),
        "system's": lambda port, root: _postgres("?sslrootcert=system", port),
    },
    "mysql": {
        "option sslrootcert": lambda port, root: _mysql("", port, sslrootcert=root),
        "options": lambda port, root: _mysql("", port, sslrootcert=root, sslmode="verify_identity"),
        "url": lambda port, root: _mysql("?sslMode=VERIFY_IDENTITY", port, sslrootcert=root),
        "JDBC verifyServerCertificate": lambda port, root: _mysql(
            "?verifyServerCertificate=true", port, "jdbc:mysql"
        ),
        "JDBC verifyServerCertificate, root": lambda port, root: _mysql(
            "?verifyServerCertificate=true", port, "jdbc:mysql", sslrootcert=root
        ),
        "JDBC of MariaDB": lambda port, root: _mysql(
            "?sslMode=verify-full", port, "jdbc:mariadb", sslrootcert=root
        ),
    },
    "clickhouse": {
        "ssl": lambda port, root: _clickhouse(
            "clickhouse://127.0.0.1:PORT/d?ssl=true", port, sslrootcert=root
        ),
        "secure": lambda port, root: _clickhouse("clickhouse://127.0.0.1:PORT/d?secure=1", port),
        "protocol": lambda port, root: _clickhouse(
            "clickhouse://127.0.0.1:PORT/d?protocol=https", port
        ),
        "https": lambda port, root: _clickhouse("https://127.0.0.1:PORT/d", port, sslrootcert=root),
        "JDBC": lambda port, root: _clickhouse("jdbc:clickhouse:https://127.0.0.1:PORT/d", port),
        "JDBC ssl": lambda port, root: _clickhouse(
            "jdbc:clickhouse://127.0.0.1:PORT/d?ssl=yes", port, sslrootcert=root
        ),
    },
    "redis": {"url": lambda port, root: _redis("rediss", port, sslrootcert=root)},
    "elasticsearch": {"url": lambda port, root: _elastic("https", port, sslrootcert=root)},
    "http": {
        "url": lambda port, root: _web("https", port, sslrootcert=root),
        "token": lambda port, root: {
            "name": "http",
            "url": f"https://127.0.0.1:{port}/",
            "token": PASSWORD,
            **QUICK,
            "sslrootcert": root,
        },
    },
    "streamload": {"url": lambda port, root: _load("https", port, sslrootcert=root)},
    "kafka": {
        "option sslrootcert": lambda port, root: _kafka(None, port, sslrootcert=root),
        "default": lambda port, root: _kafka(None, port),
        "securityProtocol": lambda port, root: _kafka("SASL_SSL", port, sslrootcert=root),
    },
    "mongodb": {
        "tls": lambda port, root: _mongo(f"tls=true&tlsCAFile={root}", port),
        "tlsCAFile": lambda port, root: _mongo(f"tlsCAFile={root}", port),
        "ssl": lambda port, root: _mongo("ssl=true", port),
    },
    "ftps": {
        "scheme": lambda port, root: _files("ftps", port, sslrootcert=root),
        "sslmode": lambda port, root: _files("ftps", port, sslrootcert=root, sslmode="verify-full"),
    },
}
SPEAKS = {
    **{name: name for name in ("postgresql", "mysql", "redis", "kafka", "mongodb")},
    **dict.fromkeys(("clickhouse", "elasticsearch", "http", "streamload"), "http"),
    "ftps": "ftp",
}
MATRIX = [
    pytest.param(connector, way, kind, id=f"{connector}-{way}-{kind}")
    for connector, ways in WAYS.items()
    for way in ways
    for kind in KINDS
]


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    folder = tmp_path_factory.mktemp("authorities")
    return Authority(folder / "ours"), Authority(folder / "theirs")


def log_in(options: Options) -> None:
    """What a job does first."""
    given = {name: value for name, value in options.items() if name != "name"}
    with suppress(ChannelError, OSError):
        if options.get("name") != "streamload":
            named = {"reader": options["name"]} if "name" in options else {}
            reader = load_reader({**given, **named})[0]
            reader.schema()
            for split in reader.split(1):
                list(reader.read(split))
            return
        schema = pa.schema([("a", pa.int64())])
        writer = load_writer({**given, "writer": "streamload"})[0]
        task = writer.open(writer.prepare(WriteContext("job"), schema), 0, 0)
        task.write(pa.record_batch([pa.array([1])], schema=schema))
        task.close()


def heard_by(
    authorities: tuple[Authority, Authority], protocol: str, kind: str, way: Way, ask: str
) -> tuple[bool, int]:
    """Whether the trap has the password, and how many connections came."""
    ours, theirs = authorities
    with trap(protocol, kind, ours, theirs, ask) as heard:
        log_in(way(heard.port, str(ours.root)))
    return heard.has_password, heard.connections


@pytest.mark.parametrize(("connector", "way", "kind"), MATRIX)
def test_no_password_is_sent_where_tls_was_asked_for(
    authorities: tuple[Authority, Authority], connector: str, way: str, kind: str
) -> None:
    for ask in MYSQL_ASKS if connector == "mysql" else ("",):
        found, connections = heard_by(
            authorities, SPEAKS[connector], kind, WAYS[connector][way], ask
        )
        assert not found
        assert connections > 0


LESS: dict[str, tuple[str, str, Way]] = {
    "postgresql": ("postgresql", "no TLS", lambda port, root: _postgres("", port)),
    "postgresql downgrade": ("postgresql", "downgrade", lambda port, root: _postgres("", port)),
    "postgresql require": (
        "postgresql",
        "other host",
        lambda port, root: _postgres("?sslmode=require", port),
    ),
    "postgresql verify-ca": (
        "postgresql",
        "other host",
        lambda port, root: _postgres("?sslmode=verify-ca", port, sslrootcert=root),
    ),
    "adbc": (
        "postgresql",
        "no TLS",
        lambda port, root: _adbc(f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/d"),
    ),
    "mysql": (
        "mysql",
        "other certificate",
        lambda port, root: _mysql("", port, enableCleartextPlugin="true"),
    ),
    "mysql verify-ca": (
        "mysql",
        "other host",
        lambda port, root: _mysql("", port, sslmode="verify-ca", sslrootcert=root),
    ),
    "clickhouse": (
        "http",
        "no TLS",
        lambda port, root: _clickhouse("clickhouse://127.0.0.1:PORT/d", port),
    ),
    "redis": ("redis", "no TLS", lambda port, root: _redis("redis", port)),
    "elasticsearch": ("http", "no TLS", lambda port, root: _elastic("http", port)),
    "http": ("http", "no TLS", lambda port, root: _web("http", port)),
    "streamload": ("http", "no TLS", lambda port, root: _load("http", port)),
    "kafka": ("kafka", "no TLS", lambda port, root: _kafka("SASL_PLAINTEXT", port)),
    "mongodb": ("mongodb", "no TLS", lambda port, root: _mongo("tls=false", port)),
    "mongodb unverified": (
        "mongodb",
        "other certificate",
        lambda port, root: _mongo("tls=true&tlsInsecure=true", port),
    ),
    "ftp": ("ftp", "no TLS", lambda port, root: _files("ftp", port)),
    "ftps": ("ftp", "other host", lambda port, root: _files("ftps", port, sslmode="require")),
}


@pytest.mark.parametrize("name", LESS)
def test_what_asks_for_less_sends_the_password_to_the_same_traps(
    authorities: tuple[Authority, Authority], name: str
) -> None:
    protocol, kind, way = LESS[name]
    found, _ = heard_by(authorities, protocol, kind, way, "mysql_clear_password")
    assert found


@pytest.mark.parametrize("mode", ["", "prefer", "require"])
@pytest.mark.parametrize("ask", MYSQL_ASKS)
@pytest.mark.parametrize("kind", ["no TLS", "other certificate", "other host", "downgrade"])
def test_mysql_sends_no_plain_password_to_a_server_that_is_not_verified(
    authorities: tuple[Authority, Authority],
    mode: str,
    ask: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not mode:
        monkeypatch.setattr(mysql_session, "is_of_this_machine", lambda host: False)
    more = {"sslmode": mode} if mode else {}
    found, connections = heard_by(
        authorities, "mysql", kind, lambda port, root: _mysql("", port, **more), ask
    )
    assert (found, connections > 0) == (False, True)


@pytest.mark.parametrize("ask", MYSQL_ASKS)
@pytest.mark.parametrize("kind", ["no TLS", "other certificate", "downgrade"])
def test_a_mysql_server_of_this_machine_gets_the_first_login_of_its_own_plugin_inside_tls(
    authorities: tuple[Authority, Authority], ask: str, kind: str
) -> None:
    """A new MySQL asks for it, and its certificate is its own. Other plugins and plain connections get nothing."""
    found, _ = heard_by(authorities, "mysql", kind, lambda port, root: _mysql("", port), ask)
    assert found == (ask == "caching_sha2_password" and kind != "no TLS")


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer"])
@pytest.mark.parametrize(
    "url", ["postgresql://h/d", "jdbc:postgresql://h/d?sslrootcert=/r", "mysql://h/d"]
)
def test_a_mode_that_proves_nothing_is_refused_beside_a_root_certificate(
    mode: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url.startswith("mysql") and mode == "allow":
        return  # not one of its modes
    with pytest.raises(OptionError, match=f"'sslmode' got '{mode}'.*sslrootcert"):
        load_reader({"url": url, "dbtable": "t", "sslrootcert": "/r", "sslmode": mode})
    if not url.startswith("mysql"):
        mark = "&" if "?" in url else "?"
        with pytest.raises(OptionError, match=f"'sslmode' got '{mode}'.*sslrootcert"):
            load_reader({"url": f"{url}{mark}sslrootcert=/r&sslmode={mode}", "dbtable": "t"})


def test_a_root_certificate_means_the_same_for_each_driver_of_postgresql() -> None:
    given = {"url": "postgresql://u:p@h/d?sslrootcert=/r", "dbtable": "t"}
    options = PostgresReadOptions.parse(given)[0]
    assert options.parameters()["sslmode"] == "verify-full"
    assert "sslmode='verify-full'" in options.conninfo()
    assert "sslmode=verify-full" in asyncpg_arguments(options.parameters(), {})["dsn"]
    required = PostgresReadOptions.parse({**given, "sslmode": "require"})[0]
    assert required.parameters()["sslmode"] == "verify-ca"


def test_a_root_certificate_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLROOTCERT", "/r")
    options = PostgresReadOptions.parse({"url": "postgresql://h/d", "dbtable": "t"})[0]
    assert options.parameters()["sslmode"] == "verify-full"
    off = {"url": "postgresql://h/d?sslmode=disable", "dbtable": "t"}
    assert PostgresReadOptions.parse(off)[0].parameters()["sslmode"] == "disable"
    with pytest.raises(OptionError, match="PGSSLROOTCERT"):
        load_reader({"url": "postgresql://h/d?sslmode=prefer", "dbtable": "t"})


def test_require_auth_of_libpq_is_taken_and_holds(
    authorities: tuple[Authority, Authority],
) -> None:
    found, connections = heard_by(
        authorities,
        "postgresql",
        "no TLS",
        lambda port, root: _postgres("?require_auth=scram-sha-256", port),
        "",
    )
    assert (found, connections > 0) == (False, True)


def test_a_server_that_asks_for_a_plain_password_is_named_once(
    authorities: tuple[Authority, Authority],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(libpq, "_asks_for_plain", set())

    def warned() -> list[str]:
        return [record.getMessage() for record in caplog.records if "plain text" in record.msg]

    ours, theirs = authorities
    caplog.set_level(logging.WARNING)
    with trap("postgresql", "no TLS", ours, theirs, "") as heard:
        log_in(_postgres("", heard.port))
        assert warned() == []  # a loopback address
        monkeypatch.setattr(libpq, "is_of_this_machine", lambda host: False)
        for parameters in ("?require_auth=password", "?require_auth=none,password"):
            log_in(_postgres(parameters, heard.port))
        assert warned() == []
        for _ in range(2):
            with suppress(OSError):
                libpq.is_pooler(f"host=127.0.0.1 port={heard.port} user=u password={PASSWORD}")
        (line,) = warned()
        assert f"127.0.0.1:{heard.port} asks for the password in plain text" in line


def test_sockets_and_loopback_addresses_are_of_this_machine() -> None:
    for host in ("", "/var/run", "@abstract", "localhost", "127.0.0.2", "::1", "[::1]"):
        assert is_of_this_machine(host)
    for host in ("db", "10.0.0.1", "::2"):
        assert not is_of_this_machine(host)
