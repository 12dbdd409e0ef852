"""The same traps for logins that go other ways: feeds of a database's log, catalogs, stores, clusters."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedOptions
from spark_channel.errors import ChannelError
from tests.behaviour.attacks.test_logins import (
    Options,
    _elastic,
    _mysql,
    _postgres,
    _redis,
    log_in,
)
from tests.behaviour.attacks.traps import KINDS, PASSWORD, Authority, trap

pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
)

Way = Callable[[int, str], Options]


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    folder = tmp_path_factory.mktemp("authorities")
    return Authority(folder / "ours"), Authority(folder / "theirs")


def _iceberg(scheme: str, port: int, **login: str) -> Options:
    pytest.importorskip("pyiceberg")
    uri = f"{scheme}://127.0.0.1:{port}"
    properties = {"type": "rest", "uri": uri, **login}
    properties["oauth2-server-uri"] = f"{uri}/v1/oauth/tokens"
    given = {"dbtable": "shop.t", "catalog": "trap", "catalogProperties": json.dumps(properties)}
    return {"name": "iceberg", **given}


def _store(scheme: str, port: int, form: str) -> Options:
    if form == "delta":
        pytest.importorskip("deltalake")
    uri = f"s3://bucket/t?scheme={scheme}&endpoint_override=127.0.0.1%3A{port}&region=eu-west-1"
    keys = {"aws_access_key_id": "u", "aws_secret_access_key": PASSWORD}
    return {"name": form, "path": uri, "storageOptions": json.dumps(keys)}


WAYS: dict[str, tuple[str, Way]] = {
    "Iceberg's catalog, token": (
        "http",
        lambda port, root: _iceberg("https", port, token=PASSWORD),
    ),
    "Iceberg's catalog, credential": (
        "http",
        lambda port, root: _iceberg("https", port, credential=f"u:{PASSWORD}"),
    ),
    "files in a store": ("http", lambda port, root: _store("https", port, "csv")),
    "Delta in a store": ("http", lambda port, root: _store("https", port, "delta")),
    "cluster of Redis": (
        "redis",
        lambda port, root: _redis("rediss", port, sslrootcert=root, cluster="true"),
    ),
    "key of Elasticsearch": (
        "http",
        lambda port, root: {
            name: value
            for name, value in _elastic("https", port, sslrootcert=root, apiKey=PASSWORD).items()
            if name not in ("user", "password")
        },
    ),
    "parameters of a web service": (
        "http",
        lambda port, root: {
            "name": "http",
            "url": f"https://127.0.0.1:{port}/",
            "params": json.dumps({"api_key": PASSWORD}),
            "headers": json.dumps({"X-Api-Key": PASSWORD}),
            "sslrootcert": root,
            "retryTimeout": "0.01",
        },
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_no_login_goes_to_a_server_that_proves_nothing(
    way: str,
    kind: str,
    authorities: tuple[Authority, Authority],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = authorities
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ours.root))
    protocol, options = WAYS[way]
    with trap(protocol, kind, ours, theirs, "") as heard:
        log_in(options(heard.port, str(ours.root)))
    assert heard.connections > 0
    assert not heard.has_password
    assert b"uthorization" not in heard.data


FEEDS: dict[str, tuple[str, Way, FeedOptions]] = {
    "PostgreSQL's log": (
        "postgresql",
        lambda port, root: _postgres("", port, sslrootcert=root),
        FeedOptions(slot="s", publication="p"),
    ),
    "MySQL's log": (
        "mysql",
        lambda port, root: _mysql("", port, sslrootcert=root, binlog="true"),
        FeedOptions(),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", FEEDS)
def test_a_feed_proves_its_server_as_a_read_does(
    way: str, kind: str, authorities: tuple[Authority, Authority]
) -> None:
    ours, theirs = authorities
    protocol, options, feed = FEEDS[way]
    with (
        trap(protocol, kind, ours, theirs, "mysql_clear_password") as heard,
        suppress(ChannelError, OSError),
    ):
        load_reader(options(heard.port, str(ours.root)))[0].feed(feed).now()
    assert heard.connections > 0
    assert not heard.has_password


def test_the_traps_hear_a_catalogs_login_where_less_was_asked_for(
    authorities: tuple[Authority, Authority],
) -> None:
    ours, theirs = authorities
    for login in ({"token": PASSWORD}, {"credential": f"u:{PASSWORD}"}):
        with trap("http", "no TLS", ours, theirs, "") as heard:
            log_in(_iceberg("http", heard.port, **login))
        assert heard.has_password


def test_a_store_without_tls_hears_a_signature_and_no_key(
    authorities: tuple[Authority, Authority], tmp_path: Path
) -> None:
    ours, theirs = authorities
    with trap("http", "no TLS", ours, theirs, "") as heard:
        log_in(_store("http", heard.port, "csv"))
    assert b"Signature=" in heard.data
    assert not heard.has_password
