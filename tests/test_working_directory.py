"""Relative paths become absolute once, where the driver runs."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors import load_reader, load_writer
from spark_channel.connectors.base.registry import describe
from spark_channel.errors import OptionError
from spark_channel.spark.driver import working_directory
from spark_channel.tunnel.options import TunnelOptions
from spark_channel.working_directory import (
    WorkingDirectory,
    absolute_path,
    absolute_url,
    relative_to,
)

DRIVER = WorkingDirectory("/srv/job")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("out", "/srv/job/out"),
        ("./out/x.parquet", "/srv/job/out/x.parquet"),
        ("../out", "/srv/job/../out"),
        ("/data/out", "/data/out"),
        ("s3://bucket/out", "s3://bucket/out"),
        ("file:out%20of/x", "/srv/job/out of/x"),
        ("file:///data/x", "file:///data/x"),
        ("year=2020/*.csv", "/srv/job/year=2020/*.csv"),
    ],
)
def test_a_path_begins_where_the_driver_runs(given: str, path: str) -> None:
    with relative_to(DRIVER):
        assert absolute_path(given) == path


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("sqlite:a/b.db", "sqlite:/srv/job/a/b.db"),
        ("jdbc:sqlite:b.db", "jdbc:sqlite:/srv/job/b.db"),
        ("jdbc:sqlite:file:b.db", "jdbc:sqlite:file:/srv/job/b.db"),
        ("jdbc:sqlite:file:/b.db", "jdbc:sqlite:file:/b.db"),
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        ("sqlite::memory:", "sqlite::memory:"),
    ],
)
def test_so_does_the_url_of_a_file(given: str, url: str) -> None:
    with relative_to(DRIVER):
        assert absolute_url(given, ("sqlite",)) == url


@pytest.mark.parametrize(
    "options",
    [
        {"path": "out.db", "dbtable": "t"},
        {"url": "sqlite:out.db", "dbtable": "t"},
        {"path": "out.duckdb", "dbtable": "t"},
        {"url": "duckdb:out.duckdb", "dbtable": "t"},
        {"writer": "parquet", "path": "out", "dirtyRowsPath": "bad"},
    ],
)
def test_what_travels_to_executors_is_absolute(
    options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relative_to(DRIVER):
        writer, _ = load_writer(options)
        assert (
            describe(writer.options)
            .split("#")[0]
            .removeprefix("sqlite:")
            .removeprefix("duckdb:")
            .startswith("out")
        ), "people see what they typed"
    monkeypatch.chdir(tmp_path)
    there = pickle.loads(pickle.dumps(writer))
    shown = str(there.options.model_dump(exclude_none=True))
    assert "/srv/job/out" in shown
    if "dirtyRowsPath" in options:
        assert there.options.dirty_rows_path == "/srv/job/bad"


def test_every_path_of_a_list_and_the_store_of_tunnels_too() -> None:
    with relative_to(DRIVER):
        reader: Any = load_reader(
            {"reader": "csv", "paths": '["a.csv", "/b.csv"]', "basePath": "."}
        )[0]
        assert reader.options.paths == ("/srv/job/a.csv", "/b.csv")
        for given, store in {
            "t.db": "/srv/job/t.db",
            "sqlite:t.db": "sqlite:/srv/job/t.db",
            "postgresql://u@h/d": "postgresql://u@h/d",
        }.items():
            assert TunnelOptions.parse({"tunnelStore": given})[0].store == store


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"url": "jdbc:postgresql://h/d", "dbtable": "t", "sslmode": "verify-full"}, "sslrootcert"),
        ({"url": "postgresql://h/d", "dbtable": "t"}, "sslkey"),
        ({"url": "mysql://h/d", "dbtable": "t"}, "sslcert"),
        ({"url": "mysql://h/d", "dbtable": "t"}, "serverRsaPublicKeyFile"),
        ({"reader": "http", "url": "https://h/x"}, "sslrootcert"),
        ({"reader": "kafka", "bootstrapServers": "h:1", "topic": "t"}, "sslrootcert"),
    ],
)
def test_files_of_certificates_are_found_by_executors(options: dict[str, str], name: str) -> None:
    with relative_to(DRIVER):
        reader, _ = load_reader({**options, name: "tls/a.pem"})
    assert "/srv/job/tls/a.pem" in reader.options.model_dump(by_alias=True).values()


def test_so_are_those_in_the_url_of_postgresql() -> None:
    with relative_to(DRIVER):
        reader: Any = load_reader(
            {"url": "postgresql://h/d?sslrootcert=a.pem&sslcrl=b.pem", "dbtable": "t"}
        )[0]
        assert reader.options.parameters("x")["sslrootcert"] == "/srv/job/a.pem"
        assert reader.options.parameters("x")["sslcrl"] == "/srv/job/b.pem"
        reader, _ = load_reader(
            {"url": "postgresql://h/d", "sslrootcert": "system", "dbtable": "t"}
        )
        assert reader.options.sslrootcert == "system", "libpq's name of no file"


def test_and_in_that_of_mongodb() -> None:
    url = "mongodb://h/d?tls=true&tlsCAFile=tls%2Fa+b.pem&tlsCertificateKeyFile=/c.pem"
    with relative_to(DRIVER):
        reader: Any = load_reader({"url": url, "collection": "c"})[0]
    made = "mongodb://h/d?tls=true&tlsCAFile=/srv/job/tls/a%20b.pem&tlsCertificateKeyFile=/c.pem"
    assert reader.options.url == made


def test_a_key_of_a_server_of_files() -> None:
    with relative_to(DRIVER):
        reader: Any = load_reader(
            {
                "reader": "csv",
                "path": "sftp://h/x",
                "storageOptions": '{"private_key_file": "id_rsa"}',
            }
        )[0]
    assert reader.options.login.get("private_key_file") == "/srv/job/id_rsa"


def test_a_secret_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("pw\n")
    with relative_to(WorkingDirectory(str(tmp_path))):
        reader: Any = load_reader(
            {"url": "postgresql://h/d", "dbtable": "t", "password": "${file:secret}"}
        )[0]
    assert reader.options.password.get_secret_value() == "pw"


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (
            {"type": "sql", "uri": "sqlite:///ice.db", "warehouse": "wh"},
            {"uri": "sqlite:////srv/job/ice.db", "warehouse": "/srv/job/wh"},
        ),
        ({"uri": "sqlite:////ice.db", "warehouse": "file:wh"}, {"warehouse": "/srv/job/wh"}),
        (
            {"type": "sql", "uri": "postgresql://h/d", "warehouse": "wh"},
            {"warehouse": "/srv/job/wh"},
        ),
        ({"type": "sql", "uri": "sqlite:///:memory:", "warehouse": "s3://b/wh"}, {}),
        ({"type": "rest", "uri": "https://h", "warehouse": "prod"}, {}),
    ],
)
def test_a_catalog_in_a_file(given: dict[str, str], made: dict[str, str]) -> None:
    with relative_to(DRIVER):
        options = {"reader": "iceberg", "dbtable": "shop.t", "catalogProperties": json.dumps(given)}
        reader: Any = load_reader(options)[0]
    assert reader.options.properties() == given | made


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({"driver": "sqlite", "uri": "a.db"}, {"uri": "/srv/job/a.db"}),
        ({"driver": "sqlite", "uri": "file:a.db?mode=ro"}, {"uri": "file:/srv/job/a.db?mode=ro"}),
        ({"driver": "sqlite", "uri": ":memory:"}, {"uri": ":memory:"}),
        ({"driver": "postgresql", "uri": "postgresql://h/d"}, {"uri": "postgresql://h/d"}),
        (
            {"driver": "lib/libduckdb.so", "driverOptions": '{"path": "a.duckdb", "x": "y"}'},
            {"path": "/srv/job/a.duckdb", "x": "y"},
        ),
    ],
)
def test_a_file_behind_an_adbc_driver(options: dict[str, str], made: dict[str, str]) -> None:
    with relative_to(DRIVER):
        reader: Any = load_reader(
            {"reader": "adbc", "dbtable": "t", "dialect": "sqlite", **options}
        )[0]
    assert reader.options.database() == made
    assert reader.options.driver in ("sqlite", "postgresql", "/srv/job/lib/libduckdb.so")


def test_where_the_start_is_not_known_the_absolute_form_is_asked_for() -> None:
    with relative_to(WorkingDirectory(None)):
        assert absolute_path("/data/x") == "/data/x"
        with pytest.raises(
            OptionError, match=r"'path' got 'out'; it takes an absolute path such as /data/out"
        ):
            load_writer({"writer": "parquet", "path": "out"})


def test_another_default_filesystem_is_not_guessed_at() -> None:
    with relative_to(WorkingDirectory("/srv/job", "hdfs://nn:8020")):
        with pytest.raises(OptionError, match=r"hdfs://nn:8020/<folder>/out or.*/srv/job/out"):
            load_writer({"writer": "parquet", "path": "out"})
        writer: Any = load_writer({"path": "out.db", "dbtable": "t"})[0]
        assert writer.options.path == "/srv/job/out.db", "a database file is always on a disk"


def test_the_hadoop_configuration_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>s3a://lake</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert working_directory() == WorkingDirectory(str(Path.cwd()), "s3a://lake")
