"""Texts from outside on the console, and tables that keep names whole."""

import json
from typing import TYPE_CHECKING

import typer

from spark_channel.plain_text import one_line, one_line_json

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["cell", "json_line", "print_table", "say"]


def cell(text: object) -> str:
    """A text for a table of `rich`: one line that is neither markup nor a terminal's code."""
    from rich.markup import escape

    return escape(one_line(text))


def say(text: str, *, error: bool = False) -> None:
    """Print one line for people; `error`: to the standard error, in one piece, since threads talk side by side."""
    typer.echo(one_line(text), err=error)


def json_line(data: object) -> str:
    """The data as JSON in one line of printable characters; a value without a JSON form is its text."""
    return one_line_json(json.dumps(data, ensure_ascii=False, default=str))


def print_table(table: "Table") -> None:
    """Print `table` with nothing left out: the first column has names that are typed again, each in one line.

    Other columns continue in the next line where the terminal, or a pipe's 80 columns, are too narrow. What does not
    fit even so makes lines longer than the terminal.
    """
    from rich.console import Console

    console = Console(highlight=False)
    for number, column in enumerate(table.columns):
        column.overflow = "fold"
        column.no_wrap = number == 0 or all(len(str(text)) <= _SHORT for text in column.cells)
    wide = console.options.update(width=_WIDE)
    least = console.measure(table, options=wide).minimum
    if least > console.width:
        console = Console(highlight=False, width=least)
    console.print(table)


_WIDE = 10_000
_SHORT = 10
"""What is not longer stays in one line: a speed, a state, a count."""
