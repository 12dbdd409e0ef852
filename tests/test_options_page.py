"""The tables of options in docs say what the models say."""

import re
from pathlib import Path

import pytest

from spark_channel.connectors.files import feed
from spark_channel.connectors.files.options import OrcWriteOptions, ParquetWriteOptions
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.tunnel.options import TunnelOptions
from spark_channel.tunnel.store import default_store
from tests.options_page import connector_tables, default, options_page, pages
from tests.systems_table import own_connectors

pytest.importorskip(
    "deltalake", reason="options of all connectors are looked at where all are installed"
)

TABLES = {connector.name: connector_tables(connector) for connector in own_connectors().values()}
ROWS = [
    line.split(" | ")
    for tables in (options_page(), *TABLES.values())
    for line in tables.splitlines()
    if line.startswith("| `")
]
OTHERS = re.compile(r"^- \*\*(?:Refused|Ignored)\*\*(.*(?:\n  .*)*)$", re.MULTILINE)
USE = re.compile(r"\s*(?:in a (\w+))?: (.*)", re.DOTALL)


@pytest.mark.parametrize(
    ("path", "text"), [pytest.param(*each, id=each[0].stem) for each in pages().items()]
)
def test_a_page_with_options_is_true(path: Path, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, "run: python -m tests.options_page"


def test_no_cell_of_the_page_is_blank() -> None:
    blank = [row for row in ROWS if any(not cell.strip(" |") for cell in row)]
    assert blank == []


@pytest.mark.parametrize("name", sorted(TABLES))
def test_no_option_is_both_offered_and_refused_or_ignored(name: str) -> None:
    connector = own_connectors()[name]
    halves = [use for use in ("reader", "writer") if getattr(connector, use)]
    every = tuple({"reader": "read", "writer": "write"}[half] for half in halves)
    offered: set[tuple[str, str]] = set()
    for line in TABLES[name].splitlines():
        if line.startswith("| `"):
            cells = line.strip("| ").split(" | ")
            uses = ("read", "write") if cells[-1] == "both" else (cells[-1],)
            offered |= {
                (option, use) for option in re.findall(r"`([\w.]+)`", cells[0]) for use in uses
            }
    unsupported: set[tuple[str, str]] = set()
    for part in ";".join(OTHERS.findall(TABLES[name])).split(";"):
        if match := USE.match(part):
            halves_of = [match[1]] if match[1] else every
            found = re.findall(r"`([\w.]+)`", match[2])
            unsupported |= {(option, each) for option in found for each in halves_of}
    assert offered & unsupported == set()
    assert bool(unsupported) == ("- **" in TABLES[name])


@pytest.mark.parametrize("name", sorted(TABLES))
def test_each_option_that_is_refused_or_ignored_is_listed_and_has_a_reason(name: str) -> None:
    listed = " ".join(f"{options_page()} {TABLES[name]}".split())
    connector = own_connectors()[name]
    for half in ("reader", "writer"):
        if getattr(connector, half):
            options = connector.options_class(half)
            for option, reason in {**options.ignored, **options.refused}.items():
                assert f"`{option}`" in listed, option
                assert reason, option


def test_defaults_that_are_told_in_text_are_those_of_the_code() -> None:
    late = f"{Dialect.late_seconds:g} for server databases, {feed._LATE_SECONDS:g} for files, 0 for SQLite and DuckDB"
    assert default(TunnelOptions, "late_seconds") == late
    assert default(TunnelOptions, "tunnel_store") == f"`~/{'/'.join(default_store().parts[-2:])}`"
    codecs = f"{ParquetWriteOptions.default_codec} for Parquet, zstd for ORC, else none"
    assert (
        default(ParquetWriteOptions, "compression")
        == default(OrcWriteOptions, "compression")
        == codecs
    )
