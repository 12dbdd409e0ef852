"""Texts from outside on the console: no markup, no line ends, nothing cut."""

import json

import pytest
from rich.table import Table

from spark_channel.cli.text import cell, json_line, print_table, say


def test_a_text_with_markup_and_a_line_end_is_one_plain_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table("name")
    table.add_row(cell("[red]a[/]\nb"))
    print_table(table)
    printed = capsys.readouterr().out
    assert "[red]a[/]" in printed
    assert sum("a[/]" in line for line in printed.split("\n")) == 1


def test_an_error_goes_to_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\nb", error=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


def test_json_is_one_line_whatever_it_holds() -> None:
    data = {"text": "a\u2028b\nc", "path": "ü"}
    line = json_line(data)
    assert len(line.splitlines()) == 1
    assert json.loads(line) == data


def test_a_value_without_a_json_form_is_its_text() -> None:
    assert json.loads(json_line({"kind": int})) == {"kind": "<class 'int'>"}


def test_a_table_wider_than_a_pipe_shows_each_row_as_a_block(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = Table("table", *(f"column_{number}" for number in range(12)), "empty")
    table.add_row("shop.orders", *(f"value_{number}" for number in range(12)), "")
    print_table(table)
    printed = capsys.readouterr().out
    assert all(f"column_{number}: value_{number}" in printed for number in range(12))
    assert "empty" not in printed
    assert max(map(len, printed.split("\n"))) <= 80
