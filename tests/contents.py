"""Writes the table of contents into each long page of docs/: `python -m tests.contents`."""

import re
from pathlib import Path

from spark_channel.cli.pages import anchor

ROOT = Path(__file__).resolve().parents[1]
LONG = 100
"""Lines above which a page has a table of contents."""
BEGINS = "On this page: "


def pages() -> list[Path]:
    return sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")])


def with_contents(text: str) -> str:
    """The page with the line before its first section; a short page has none."""
    lines = [line for line in text.split("\n") if not line.startswith(BEGINS)]
    code, headings = False, []
    for number, line in enumerate(lines):
        code ^= line.startswith("```")
        if not code and line.startswith("## "):
            headings.append((number, line.removeprefix("## ")))
    if len(lines) <= LONG or len(headings) < 2:
        return "\n".join(lines)
    links = (f"[{re.sub(r'[`*]', '', name)}](#{anchor(name)})" for _, name in headings)
    first = headings[0][0]
    while lines[first - 1] == "":
        del lines[first - 1]
        first -= 1
    return "\n".join([*lines[:first], "", BEGINS + ", ".join(links) + ".", "", *lines[first:]])


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_contents(page.read_text("utf-8")), "utf-8")
