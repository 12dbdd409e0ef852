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
    offered: set[tuple[str, str]] = set()
    unsupported: set[tuple[str, str]] = set()
    for cells in (
        line.strip("| ").split(" | ")
        for line in TABLES[name].splitlines()
        if line.startswith("| `")
    ):
        found = unsupported if cells[1] in ("refused", "ignored") else offered
        uses = ("read", "write") if cells[-1] == "both" else (cells[-1],)
        found |= {(option, use) for option in re.findall(r"`(\w+)`", cells[0]) for use in uses}
    assert offered & unsupported == set()


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
