"""Texts from outside on the console, and tables that keep names whole."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from spark_channel.plain_text import one_line, one_line_json

if TYPE_CHECKING:
    from rich.table import Column, Table

__all__ = ["cell", "json_line", "print_table", "say", "say_indented"]

_WIDE = 10_000
_TEXT = 30
"""A column of texts is not wrapped into fewer columns."""
_BLANK = "\0"
"""Stands for a blank at which no line is to end."""


def cell(text: object) -> str:
    """A text for a table of `rich`: one line that is neither markup nor a terminal's code."""
    from rich.markup import escape

    return escape(one_line(text))


def say(text: str, *, error: bool = False) -> None:
    """Print one line for people; `error`: to the standard error, in one piece, since threads talk side by side."""
    typer.echo(one_line(text), err=error)


def say_indented(text: str) -> None:
    """Print one line for people below another: lines of the terminal's width, which end between words."""
    _indent(one_line(text))


def _indent(text: str) -> None:
    width = shutil.get_terminal_size((80, 24)).columns - 2
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    typer.echo(textwrap.indent("\n".join(lines), "  ").replace(_BLANK, " "))


def json_line(data: object) -> str:
    """The data as JSON in one line of printable characters; a value without a JSON form is its text."""
    return one_line_json(json.dumps(data, ensure_ascii=False, default=str))


def print_table(table: "Table") -> None:
    """Print `table` with nothing cut: as wide as its cells, else with one column of texts wrapped between words.

    Where even that is wider than the terminal, or than a pipe's 80 columns, each row is a block: its first cell, and
    below it the others with the names of their columns. A column of empty cells is left out.
    """
    from rich.console import Console

    console = Console(highlight=False)
    table.columns = [column for column in table.columns if any(column.cells)] or table.columns
    widths = [_width(column) for column in table.columns]
    texts = widths.index(max(widths[1:], default=widths[0]))
    for number, column in enumerate(table.columns):
        column.no_wrap = number != texts or number == 0
        column.min_width = min(widths[number], _TEXT)
    wide = console.options.update(width=_WIDE)
    if console.measure(table, options=wide).minimum <= console.width:
        console.print(table)
        return
    names = [str(column.header) for column in table.columns[1:]]
    for first, *others in zip(*(column.cells for column in table.columns), strict=True):
        typer.echo(_plain(first))
        for line in _block(names, [*map(_plain, others)]):
            _indent(line)


def _block(names: Sequence[str], texts: Sequence[str]) -> list[str]:
    """What is known of a row: short texts side by side, and sentences below them."""
    pairs = zip(names, texts, strict=True)
    fields = [f"{name}: {text}" for name, text in pairs if text not in ("", "-")]
    sentences = [field for field in fields if len(field) > _TEXT and field.count(" ") > 2]
    short = ", ".join(field.replace(" ", _BLANK) for field in fields if field not in sentences)
    return [*([short] if short else []), *sentences]


def _plain(text: object) -> str:
    from rich.text import Text

    return Text.from_markup(str(text)).plain


def _width(column: "Column") -> int:
    from rich.cells import cell_len

    texts = [_plain(text) for text in (column.header, *column.cells)]
    return max(cell_len(line) for text in texts for line in text.split("\n"))
