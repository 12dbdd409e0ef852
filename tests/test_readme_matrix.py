"""The tables of systems say what the connectors do, and were tested against."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.registry import all_connectors
from spark_channel.connectors.records.direct_writer import DirectWriter
from spark_channel.errors import OptionError
from spark_channel.options import Options
from tests import systems_table, versions_table
from tests.benchmarks.harm_caption import BEGIN, END, HarmFigures, caption
from tests.systems_table import own_connectors

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NEEDED = {
    "url": None,
    "path": "/tmp/t",
    "dbtable": "shop.t",
    "driver": "sqlite",
    "uri": "x",
    "catalog": "c",
    "collection": "t",
    "index": "t",
    "database": "shop",
    "bootstrapservers": "host:9092",
}
SHIPPED = [
    each
    for each in all_connectors()
    if (each.reader or each.writer or "").startswith("spark_channel.")
]
MARK = re.compile(r"mark\.real_server\(([^)]*)\)")


def takes(model: type[Options], **more: str) -> bool:
    """Whether the writer's options accept `more`, beside what they need."""
    names = model.names()
    given = {name: value for name, value in NEEDED.items() if name in names and value}
    if "keyprefix" in names:
        given |= {"keycolumns": "k", "url": "redis://host/0"}
    elif "index" in names or "queryserver" in names:
        given["url"] = "http://host:9200"
    elif "path" not in names and "url" in names:
        scheme = next(
            each.schemes
            for each in SHIPPED
            if each.writer and each.options_class("writer") is model
        )
        given |= {"url": f"{scheme[0]}://host/base"} if scheme else {}
    try:
        model.parse({**given, **more})
    except OptionError as error:
        if error.option not in ("commit", "txn"):
            raise
        return False
    return True


def marks() -> set[tuple[str, str]]:
    """What the tests' markers `real_server` say, from their source: (what is started, connector)."""
    found = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for arguments in MARK.findall(file.read_text(encoding="utf-8")):
            what, *connectors = ast.literal_eval(f"({arguments},)")
            found |= {(what, connector) for connector in connectors}
    return found


MARKS = marks()


@pytest.mark.parametrize("page", systems_table.pages(), ids=lambda page: page.name)
def test_the_tables_are_what_the_connectors_declare(page: Path) -> None:
    written, wanted = systems_table.pages()[page]
    assert written == wanted, "run: python -m tests.systems_table"


def test_the_table_of_versions_is_what_was_run() -> None:
    written, wanted = versions_table.page()
    assert written == wanted, "run: python -m tests.versions_table"


def test_every_connector_has_a_row() -> None:
    assert set(systems_table.TITLES) == set(own_connectors())


@pytest.mark.parametrize("connector", SHIPPED, ids=lambda each: each.name)
def test_a_connector_declares_what_it_was_tested_against(connector: Connector) -> None:
    assert connector.tested
    assert all(each.tested and each.tested != connector.tested for each in connector.also)


@pytest.mark.parametrize("connector", SHIPPED, ids=lambda each: each.name)
def test_what_is_called_stable_has_a_test_with_the_real_server(connector: Connector) -> None:
    reached = [(connector.maturity, connector.tested)]
    reached += [(each.maturity, each.tested) for each in connector.also]
    for tested in [tested for maturity, tested in reached if maturity == "stable"]:
        started = [
            what for what, name in MARKS if name == connector.name and tested.startswith(what)
        ]
        assert started, f"no test of {connector.name} is marked real_server with {tested!r}"


def test_a_mark_names_a_connector_that_exists() -> None:
    assert {name for _, name in MARKS} <= {each.name for each in SHIPPED}


@pytest.mark.parametrize(
    "connector", [each for each in SHIPPED if each.name != "discard"], ids=lambda each: each.name
)
def test_delivery_is_that_of_the_commit_modes(connector: Connector) -> None:
    """Each mode that the options take has a promise, and "once" needs the transaction id that makes a rerun safe."""
    if connector.writer is None:
        assert connector.delivery == {}
        return
    writer, options = connector.writer_class(), connector.options_class("writer")
    assert set(connector.delivery) == {
        mode for mode in ("job", "task") if takes(options, commit=mode)
    }
    promises = set(connector.delivery.values())
    assert ("once" in promises) == takes(options, txnAppId="a", txnVersion="1")
    assert bool(promises - {"once"}) == issubclass(writer, DirectWriter)


def test_the_table_of_extras_has_those_of_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "docs", "demo"}
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    lines = page.split("| Extra | Adds |")[1].split("\n\n")[0].splitlines()
    assert {
        name
        for line in lines
        for name in re.findall(r"`([\w-]+)`", line.split("|")[1] if line else "")
    } == extras


def test_the_caption_has_the_medians_of_the_benchmarks() -> None:
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    page = benchmarks.split("An application beside a copy\n")[1]

    def measured(name: str) -> tuple[float, float]:
        """The milliseconds, and the last cell, of the first row of that name."""
        line = re.findall(rf"^\| [^|]*{name}[^|]*\|.*\d ms.*$", page, re.MULTILINE)[0]
        ms = re.search(r"([\d.]+) ms", line)
        assert ms is not None
        speed = line.strip("| ").rpartition("|")[2].replace(" ", "")
        return float(ms[1]), float(speed) if speed.isdigit() else 0.0

    jdbc, limited = measured("Spark's JDBC source"), measured("40 000 rows/s")
    rows = re.search(r"(\d[\d ]+) rows (?:are copied )?out of", page)
    assert rows is not None
    wanted = HarmFigures(
        3,
        int(rows[1].replace(" ", "")),
        40_000,
        measured("idle")[0],
        jdbc[0],
        limited[0],
        jdbc[1],
        limited[1],
    )
    shown = README.split(BEGIN)[1].split(END)[0]
    assert shown == caption(wanted)


PROMISE = re.compile(
    r"\b(exactly once|atomic\w*|(?<!at least )once(?! in a run)|no row is lost)\b", re.IGNORECASE
)
NAMES = re.compile(r'"once"|\*\*once\*\*|commits\.md|`commit=job`|systems')


def test_the_readme_promises_nothing_without_its_targets() -> None:
    for line in README.splitlines():
        assert not PROMISE.search(line) or NAMES.search(line), line
