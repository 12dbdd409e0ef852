"""README's table of systems says what the connectors do."""

import re
import tomllib
from pathlib import Path

import pytest

from spark_channel.connectors.registry import Connector, all_connectors
from spark_channel.errors import OptionError
from spark_channel.options import WriteOptions

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COLUMNS = ("system", "connector", "read", "write", "stream from", "stream into", "commit modes")
FOR_TESTS = {"generator", "discard"}
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
FEEDS = {
    "cursorColumn": "a growing column",
    "slot": "logical replication",
    "binlog": "the binary log",
    "files that arrive": "new files",
    "new versions": "new versions",
    "new snapshots": "new snapshots",
    "new records": "new records",
}


def table() -> dict[str, dict[str, str]]:
    """The rows of the table by connector, each a cell by column."""
    lines = iter(README.splitlines())
    assert any(line == f"| {' | '.join(COLUMNS)} |" for line in lines), "README has no such table"
    rows = {}
    for line in lines:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not set(line) <= set("|-"):
            row = dict(zip(COLUMNS, cells, strict=True))
            rows[row["connector"].strip("`")] = row
    return rows


def own() -> dict[str, Connector]:
    return {
        each.name: each
        for each in all_connectors()
        if (each.reader or each.writer or "").startswith("spark_channel.") and each.name not in FOR_TESTS
    }


def commits(connector: Connector) -> str:
    """The values of `commit` that the writer's options take."""
    if connector.writer is None:
        return "no"
    model: type[WriteOptions] = connector.writer_class().Options
    names = model.names()
    given = {name: value for name, value in NEEDED.items() if name in names and value}
    if connector.schemes and "path" not in names:
        given["url"] = f"{connector.schemes[0]}://host/base"
    elif "index" in names or "queryserver" in names:
        given["url"] = "http://host:9200"
    if "keyprefix" in names:
        given |= {"keycolumns": "k", "url": "redis://host/0"}
    taken = []
    for mode in ("job", "task"):
        try:
            model.parse({**given, "commit": mode})
        except OptionError as error:
            if error.option != "commit":
                raise
        else:
            taken.append(mode)
    return ", ".join(taken)


def test_the_overview_has_the_same_matrix() -> None:
    """docs/index.md has one row for all formats of files, and no column of connectors."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for name, row in table().items():
        (page,) = re.findall(r"\]\(docs/(\w+\.md)\)", row["system"])
        (line,) = [each for each in index.splitlines() if each.startswith("| [") and f"]({page})" in each]
        cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
        assert cells == [row[each] for each in ("read", "write", "stream from", "commit modes")], name


def test_the_table_of_extras_has_those_of_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "docs", "demo"}
    lines = README.split("| extra | adds |")[1].split("\n\n")[0].splitlines()
    assert {
        name for line in lines for name in re.findall(r"`([\w-]+)`", line.split("|")[1] if line else "")
    } == extras


def test_every_connector_is_in_the_table() -> None:
    assert set(table()) == set(own())


@pytest.mark.parametrize("name", sorted(own()))
def test_a_row_of_the_table_is_true(name: str) -> None:
    connector, row = own()[name], table()[name]
    yes = {True: "yes", False: "no"}
    assert row["read"] == yes[connector.reader is not None]
    assert row["write"] == yes[connector.writer is not None]
    assert row["stream from"] == ("; ".join(FEEDS[each] for each in connector.feed) or "no")
    assert row["stream into"] == yes[connector.writer is not None]
    assert row["commit modes"] == commits(connector)
    (page,) = re.findall(r"\]\((docs/\w+\.md)\)", row["system"])
    assert (ROOT / page).exists()
