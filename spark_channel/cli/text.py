"""Texts from outside on the console."""

from spark_channel.plain_text import one_line

__all__ = ["cell"]


def cell(text: object) -> str:
    """A text for a table of `rich`: one line that is neither markup nor a terminal's code."""
    from rich.markup import escape

    return escape(one_line(text))
