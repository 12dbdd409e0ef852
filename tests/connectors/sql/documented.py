"""The tables of types in docs/, whose rows are the names of test cases; and texts that a database must keep."""

from pathlib import Path

__all__ = ["PLANES", "table_rows"]

PLANES = "".join(chr(plane * 0x10000 + 0x1F4) for plane in range(17)) + "\U0001f600\U0010fffd"
"""A letter of each of Unicode's 17 planes, and two beyond the usual."""

_DOCS = Path(__file__).parents[3] / "docs"


def table_rows(page: str, header: str) -> list[str]:
    """The first cells of the table in docs/`page`.md whose first column is called `header`, without backticks."""
    lines = iter((_DOCS / f"{page}.md").read_text().splitlines())
    begin = f"| {header} |"
    assert any(line.startswith(begin) for line in lines), (
        f"docs/{page}.md has no table that begins {begin!r}"
    )
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("| "):
            break
        rows.append(line.split(" | ")[0].removeprefix("| ").replace("`", ""))
    return rows
