"""Which connector a name, a url or a path means."""

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.base import connector as declaring
from spark_channel.connectors.base import registry
from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.contract import Reader, Writer
from spark_channel.connectors.base.registry import (
    all_connectors,
    connector_names,
    find_connector,
    load_reader,
    load_writer,
)
from spark_channel.errors import MissingPackageError, OptionError
from spark_channel.options import Trait

ROOT = Path(__file__).resolve().parents[3]

MINE = Connector(
    "mine",
    "spark_channel.connectors.generator:GeneratorReader",
    None,
    schemes=("mine",),
    suffixes=(".mine",),
)


@pytest.mark.parametrize(
    ("options", "half", "name"),
    [
        ({"reader": "SQLite"}, "reader", "sqlite"),
        ({"Reader": "csv", "path": "a.db"}, "reader", "csv"),
        ({"url": "jdbc:sqlite:/a.db"}, "reader", "sqlite"),
        ({"URL": "JDBC:SQLITE:/a.db"}, "writer", "sqlite"),
        ({"url": "sqlite:///a", "path": "a.csv"}, "reader", "sqlite"),
        ({"path": "/a/b.DB"}, "writer", "sqlite"),
        ({"path": "/a/b.sqlite3"}, "reader", "sqlite"),
        ({"path": "/a/b.csv.gz"}, "reader", "csv"),
        ({"path": "/a/b.parquet/"}, "writer", "parquet"),
        ({"paths": '["/a/b.jsonl"]'}, "reader", "json"),
        ({"writer": "discard"}, "writer", "discard"),
    ],
)
def test_what_options_mean(options: dict[str, Any], half: str, name: str) -> None:
    assert find_connector(options, half).name == name


@pytest.mark.parametrize(
    ("options", "half", "message"),
    [
        ({"reader": "sqlit"}, "reader", "did you mean 'sqlite'"),
        ({"reader": "discard"}, "reader", "'reader' got 'discard'; .*it takes one of: "),
        ({"writer": "generator"}, "writer", "'writer' got 'generator'"),
        (
            {"url": "jdbc:oracle:thin:@x"},
            "reader",
            "scheme 'oracle'; known reader schemes: .*sqlite",
        ),
        ({"path": "/a/b.xyz"}, "reader", "path '/a/b.xyz' does not show which connector"),
        ({}, "reader", "nothing says what to read"),
        ({}, "writer", "nothing says what to write"),
    ],
)
def test_what_means_nothing_is_told(options: dict[str, Any], half: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        find_connector(options, half)


LIBRARIES = {need for connector in all_connectors() for need in connector.needs} | {
    "sqlglot",
    "stamina",
    "adbc_driver_manager",
}


def test_a_password_in_an_url_stays_out_of_the_message() -> None:
    with pytest.raises(OptionError) as caught:
        find_connector({"url": "oracle://scott:tiger@host/db"}, "reader")
    assert "tiger" not in str(caught.value)


@pytest.mark.parametrize("connector", all_connectors(), ids=lambda connector: connector.name)
def test_every_built_in_loads_and_keeps_to_the_classes(connector: Connector) -> None:
    if connector.reader:
        assert issubclass(connector.reader_class(), Reader)
    if connector.writer:
        assert issubclass(connector.writer_class(), Writer)
    assert connector.reader or connector.writer
    assert connector.about


@pytest.mark.parametrize("connector", all_connectors(), ids=lambda connector: connector.name)
def test_what_a_connector_declares_is_what_its_classes_are(connector: Connector) -> None:
    """It is declared beside them, since nothing of them is loaded to ask for it."""
    halves = [half for half in ("reader", "writer") if getattr(connector, half)]
    models = [connector.options_class(half) for half in halves]
    hidden = {"sharedlimittoken", "path", "paths", "basepath", "dirtyrowspath"}
    if connector.name in ("generator", "discard"):
        hidden.add("url")  # a name, and no place
    secret = {
        name for model in models for name in model.secrets() | model.with_trait(Trait.HOLDS_LOGIN)
    }
    refused = {name.lower() for model in models for name in model.refused}
    assert {name.lower() for name in connector.secrets} == secret - hidden - refused
    feeds = connector.reader is not None and connector.reader_class().feed is not Reader.feed
    assert bool(connector.feed) == feeds
    serves = any("connecttimeout" in model.names() for model in models)
    assert (connector.port is not None) == serves


def test_a_missing_half_is_told() -> None:
    with pytest.raises(OptionError, match="connector 'mine' has no writer"):
        MINE.writer_class()


@pytest.mark.parametrize("name", ["postgresql", "mysql", "duckdb"])
def test_a_library_that_is_not_there_is_told_with_the_command(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (connector,) = (each for each in all_connectors() if each.name == name)
    gone = connector.needs[0]
    monkeypatch.setattr(
        declaring, "find_spec", lambda each: None if each == gone else find_spec(each)
    )
    monkeypatch.setattr(declaring, "_FOUND", set())
    with pytest.raises(
        MissingPackageError, match=rf"{name}' needs {gone}, .*pip install 'spark-channel\[{name}\]'"
    ):
        connector.writer_class()


def test_what_a_connector_needs_is_what_its_extra_brings() -> None:
    """But for libraries that spark-channel itself needs."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for connector in all_connectors():
        brought = {
            re.split(r"[\[>=<]", each)[0].lower().replace("-", "_")
            for each in extras.get(connector.name, [])
        }
        assert set(connector.needs) == brought


def test_third_parties_are_found_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is installed while the process runs."""
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine" not in connector_names()
    package = tmp_path / "mine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        f"[spark_channel.connectors]\nMine = {__name__}:MINE\n"
    )
    assert "mine" in connector_names("reader")
    assert "mine" not in connector_names("writer")
    reader, _ = load_reader({"reader": "mine", "rows": "5"})
    assert [split.rows for split in reader.split(1)] == [5]
    assert find_connector({"path": "x.mine"}, "reader") is MINE


def test_names_are_sorted_and_halves_are_told_apart() -> None:
    assert connector_names() == sorted(connector_names())
    assert {"generator", "sqlite"} <= set(connector_names("reader"))
    assert "generator" not in connector_names("writer")
    assert "discard" not in connector_names("reader")


def test_warnings_of_ignored_options_come_with_the_connector() -> None:
    _, warnings = load_reader(
        {"url": "jdbc:sqlite:/a.db", "dbtable": "t", "driver": "org.sqlite.JDBC"}
    )
    assert warnings == ["option 'driver' is ignored: no JDBC driver takes part"]
    _, warnings = load_writer({"url": "jdbc:sqlite:/a.db", "dbtable": "t", "fetchsize": "10"})
    assert warnings == ["option 'fetchsize' is ignored: it applies to reading"]


def test_a_declaration_imports_nothing_of_its_system() -> None:
    code = (
        "import sys; before = {*sys.modules}; import spark_channel.connectors.base.connector; "
        "known = {*sys.modules}; from spark_channel.connectors.base import registry; "
        "found = registry.all_connectors(); "
        "print(len(found), *sorted({*sys.modules} - known))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    count, *imported = run.stdout.split()
    assert int(count) > 20
    packages = {f"spark_channel.connectors.{home}" for home in registry._HOMES.values()}
    ours = {name for name in imported if name.startswith("spark_channel.connectors.")}
    assert ours == {*packages, "spark_channel.connectors.base.registry"}
    assert not {name.partition(".")[0] for name in imported} & LIBRARIES
