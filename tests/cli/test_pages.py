"""help: pages of the documentation, and what the help of each command has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from spark_channel.cli import pages
from spark_channel.cli.app import complete
from spark_channel.errors import OptionError
from tests.cli.typed import typed

ROOT = Path(__file__).resolve().parents[2]


def test_a_page_and_a_section_of_it() -> None:
    text = (ROOT / "docs" / "commits.md").read_text("utf-8")
    assert pages.page("commits") == text
    for topic in ("docs/commits.md", "COMMITS"):
        assert pages.page(topic) == text
    section = pages.page("commits#errors")
    assert section.startswith("## Errors\n")
    assert section in text
    assert section.count("\n## ") == 0


def test_every_page_is_a_topic() -> None:
    assert {name for name, _ in pages.list_pages()} == {
        each.stem.lower() for each in (ROOT / "docs").rglob("*.md")
    }


@pytest.mark.parametrize(
    ("topic", "near"), [("limts", "'limits'"), ("commits#error", "'errors'"), ("zzz", "there are:")]
)
def test_a_topic_that_is_not_there(topic: str, near: str) -> None:
    with pytest.raises(OptionError, match=near):
        pages.page(topic)


@pytest.mark.parametrize("command", ["copy", "verify", "replicate", "run"])
def test_the_help_of_a_command_has_groups_examples_and_an_address(command: str) -> None:
    said = typed(command, "--help").stdout
    assert said.count("Example: spark-channel") == 2
    topic = "datax" if command == "run" else command
    assert f"More: spark-channel help {topic}" in said
    for panel in ("Limit", "Safety", "Engine", "Output"):
        assert f"─ {panel} ─" in said
    assert pages.page(topic)


def test_no_help_cuts_a_word_in_80_columns() -> None:
    def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from commands(inner, (*path, name))

    app = complete(())
    every = list(commands(typer.main.get_command(app), ()))
    assert len(every) > 30
    for path in every:
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).output
        assert "Usage: " in shown
        assert "…" not in shown, path


def test_commands_are_in_the_order_of_use() -> None:
    said = typed("--help").stdout
    names = ["demo", "copy", "replicate", "verify", "run", "check", "plan", "convert", "ui"]
    places = [said.index(f"│ {name} ") for name in names]
    assert places == sorted(places)
