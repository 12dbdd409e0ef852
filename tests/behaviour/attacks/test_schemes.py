"""A url's scheme and parameters say whether there is TLS: those that are not known are refused, by each connector."""

import json
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors import load_reader, load_writer
from spark_channel.connectors.base.server_url import server_url
from spark_channel.connectors.files.filesystem import locate
from spark_channel.errors import OptionError

SQL = {"dbtable": "t"}
OF: dict[str, dict[str, Any]] = {
    "postgresql": SQL,
    "mysql": SQL,
    "clickhouse": SQL,
    "elasticsearch": {"index": "t"},
    "http": {},
    "redis": {"keys": "a", "schema": "key STRING"},
    "mongodb": {"collection": "t", "database": "d", "schema": "_id BIGINT"},
    "streamload": {"database": "d", "dbtable": "t"},
}
DOCUMENTED = {
    "postgresql": (
        "postgresql://h/d",
        "postgres://h/d",
        "jdbc:postgresql://h/d?ssl=true",
        "postgresql://h/d?sslmode=verify-full&require_auth=scram-sha-256&sslnegotiation=direct",
        "JDBC:POSTGRESQL://h/d",
    ),
    "mysql": (
        "mysql://h/d",
        "mariadb://h/d",
        "jdbc:mysql://h/d?useSSL=true&verifyServerCertificate=true",
        "jdbc:mariadb://h/d?sslMode=verify-full",
    ),
    "clickhouse": (
        "clickhouse://h/d",
        "clickhouse://h/d?ssl=true",
        "clickhouse://h/d?secure=1&protocol=https",
        "jdbc:clickhouse://h/d?socket_timeout=1",
        "jdbc:clickhouse:http://h:8123/d",
        "jdbc:clickhouse:https://h/d",
        "jdbc:ch:https://h/d",
        "http://h/d",
        "https://h/d",
    ),
    "elasticsearch": ("http://h:9200", "https://h:9200"),
    "http": ("http://h/p?a=b", "https://h/p"),
    "redis": ("redis://h:6379/0", "rediss://h"),
    "mongodb": (
        "mongodb://h/d",
        "mongodb://h1,h2/d?replicaSet=r&tls=true",
        "mongodb+srv://h.example.com/d",
    ),
    "streamload": ("http://fe:8030", "https://fe:8443"),
}
MISSPELT = {
    "postgresql": (
        "postgresqls://h/d",
        "postgresql+ssl://h/d",
        "pg://h/d",
        "https://h/d",
        "jdbc:postgresqls://h/d",
        "postgresql://h/d?sslmod=verify-full",
        "postgresql://h/d?sslmode=verify_full",
        "postgresql://h/d?sslmode=on",
        "postgresql://h/d?tls=true",
        "postgresql://h/d?ssl_root_cert=/r",
    ),
    "mysql": (
        "mysqls://h/d",
        "mysql+ssl://h/d",
        "https://h/d",
        "jdbc:mysql:loadbalance://h/d",
        "jdbc:mysql:replication://h1,h2/d",
        "jdbc:mariadb:sequential://h/d",
        "mysql://h/d?ssl=true",
        "mysql://h/d?tls=true",
        "mysql://h/d?sslmode=on",
        "mysql://h/d?trustCertificateKeyStoreUrl=file:/r",
        "mysql://h/d?serverSslCert=/r",
    ),
    "clickhouse": (
        "clickhouses://h/d",
        "clickhouse+https://h/d",
        "clickhouse+http://h/d",
        "clickhouse+ssl://h/d",
        "clickhousedb://h/d",
        "https+clickhouse://h/d",
        "jdbc:clickhouses://h/d",
        "jdbc:clickhouse:tcp://h/d",
        "jdbc:clickhouse:httpss://h/d",
        "tcp://h/d",
        "clickhouse://h/d?protocol=tcp",
        "clickhouse://h/d?protocol=httpss",
        "clickhouse://h/d?tls=true",
        "clickhouse://h/d?ssl=require",
        "clickhouse://h/d?ssl=",
        "clickhouse://h/d?sslmode=none",
        "clickhouse://h/d?verify=false",
    ),
    "elasticsearch": ("httpss://h:9200", "elasticsearch+https://h", "https://h?ssl=true", "h:9200"),
    "http": ("httpss://h/", "http+tls://h/", "ftp://h/", "https:/h/"),
    "redis": ("redisss://h", "redis+ssl://h", "redis://h?ssl=true", "tls://h", "https://h"),
    "mongodb": (
        "mongodbs://h/d",
        "mongodb+ssl://h/d",
        "mongodb://h/d?tsl=true",
        "mongodb://h/d?tls=on",
        "mongodb://h/d?useSSL=true",
        "mongodb://h/d?tls=true;sssl=true",
    ),
    "streamload": ("httpss://fe", "mysql://fe", "https://fe?ssl=true"),
}


def load(name: str, url: str) -> None:
    if name == "streamload":
        load_writer({"writer": name, "url": url, **OF[name]})
    else:
        load_reader({"reader": name, "url": url, **OF[name]})


@pytest.mark.parametrize(
    ("name", "url"), [(name, url) for name, urls in DOCUMENTED.items() for url in urls]
)
def test_documented_urls_are_taken(name: str, url: str) -> None:
    load(name, url)


@pytest.mark.parametrize(
    ("name", "url"), [(name, url) for name, urls in MISSPELT.items() for url in urls]
)
def test_misspelt_urls_are_refused_by_the_option_that_has_them(name: str, url: str) -> None:
    with pytest.raises(OptionError, match=r"option '(url|sslmode)'"):
        load(name, url)


CONTRADICTED = {
    "postgresql": (
        "postgresql://h/d?sslmode=verify-full&sslmode=disable",
        "postgresql://h/d?SSLMODE=verify-full&sslmode=disable",
        "jdbc:postgresql://h/d?sslrootcert=/r&sslrootcert=",
        "jdbc:postgresql://h/d?ssl=true&sslmode=disable",
        "jdbc:postgresql://h/d?sslmode=prefer&ssl=true",
        "jdbc:postgresql://h/d;sslmode=verify-full",
        "jdbc:postgresql:d;ssl=true",
    ),
    "mysql": (
        "mysql://h/d?sslMode=VERIFY_IDENTITY&sslMode=DISABLED",
        "jdbc:mysql://h/d?verifyServerCertificate=true&verifyservercertificate=false",
        "jdbc:mysql://h/d;sslMode=VERIFY_IDENTITY",
    ),
    "clickhouse": (
        "clickhouse://h/d?ssl=true&ssl=false",
        "https://h/d?protocol=http&PROTOCOL=https",
    ),
    "mongodb": (
        "mongodb://h/d?tls=true&tls=false",
        "mongodb://h/d?tls=true;ssl=true;TLS=false",
        "mongodb://h/d?tlsDisableOCSPEndpointCheck=true",
    ),
    "adbc": (
        "postgresql://h/d?sslmode=verify-full&sslmode=disable",
        "host=h sslmode=verify-full sslmode='disable'",
        "postgresql://h/d?sslrootcert=/r&sslrootcert=",
    ),
}


@pytest.mark.parametrize(
    ("name", "url"), [(name, url) for name, urls in CONTRADICTED.items() for url in urls]
)
def test_a_url_that_asks_for_tls_and_for_none_is_refused(name: str, url: str) -> None:
    """Drivers take the first, the last or any of two values: the other one may be what its author relies on."""
    refusal = r"twice|asks for TLS|is for TLS|begin with '\?'"
    if name == "adbc":
        given = {"reader": "adbc", "driver": "postgresql", "uri": url, "dbtable": "t"}
        reader = load_reader(given)[0]
        with pytest.raises(OptionError, match=refusal):
            reader.schema()
    else:
        with pytest.raises(OptionError, match=refusal):
            load(name, url)


@pytest.mark.parametrize("scheme", ["ftp", "sftp"])
@pytest.mark.parametrize("setting", ["sslmode", "sslrootcert"])
def test_settings_of_tls_are_refused_where_the_scheme_has_none(scheme: str, setting: str) -> None:
    given = {"path": f"{scheme}://h/f.csv", "storageOptions": json.dumps({setting: "verify-full"})}
    with pytest.raises(OptionError, match=f"'{setting}' in option 'storageOptions' is for TLS"):
        load_reader({"reader": "csv", **given})[0].schema()


def test_no_part_of_a_login_is_in_what_is_said_of_a_url() -> None:
    for url in ("https://u:s3cret@/x", "ftp://u:s3cret@h", "https://u:s3cret@h:x/", "u:s3cret@h"):
        with pytest.raises(ValueError, match="takes") as met:
            server_url(url, ("https",), "it takes https://host")
        assert "s3cret" not in str(met.value)


@pytest.mark.parametrize(
    "path",
    [
        *("s3a:/b/k", "s3:/b/k", "S3A:/b", "s3:b/k", "hdfs:/x", "ftp:/h/x", "sftp:h/x", "dbfs:/x"),
        *("hfds://n/x", "s3x://b/k", "gcss://b/k", "abfsss://c@a/k", "ftpss://h/x", "sftps://h/x"),
        *("http://h/x", "oss://b/k", "wasb://c@a/x"),
    ],
)
def test_a_misspelt_scheme_of_files_is_no_local_path(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refusal = r"starts with a scheme and two slashes|cannot be opened"
    with pytest.raises(OptionError, match=refusal):
        load_writer({"writer": "csv", "path": path})[0].exists()
    reader = load_reader({"reader": "csv", "path": path})[0]
    with pytest.raises(OptionError, match=refusal):
        reader.schema()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("uri", "host"),
    [
        ("s3://b/k?scheme=http&endpoint_override=store.example.com:9000", "store.example.com"),
        ("s3://b/k?endpoint_override=http://store.example.com:9000", "store.example.com"),
        ("s3://b/k?scheme=https&endpoint_override=store.example.com", ""),
        ("s3://b/k?scheme=http&endpoint_override=127.0.0.1:9000", ""),
        ("s3://b/k?scheme=http&endpoint_override=localhost:9000", ""),
        ("s3://b/k?region=eu-west-1", ""),
        (
            "abfs://c@a/k?enable_tls=false&blob_storage_authority=store.example.com:80",
            "store.example.com",
        ),
    ],
)
def test_an_object_store_without_tls_is_named_once(
    uri: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        locate(uri)
    said = [
        record.getMessage() for record in caplog.records if "not encrypted" in record.getMessage()
    ]
    assert len(said) == (1 if host else 0)
    assert all(f"store at {host} " in line for line in said)
