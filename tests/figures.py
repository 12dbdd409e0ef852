"""Puts measured figures into the pages that show them: `python -m tests.figures`.

`docs/figures.json` has each figure once, with the text around it on each page. `make bench` writes what it measures.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Row

__all__ = ["pages", "record"]

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures.json"
_NUMBER = r"(\d[\d.]*(?: to \d[\d.]*)?)"


def figures() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def pages() -> dict[Path, tuple[str, str]]:
    """Each page in its current and in its correct form.

    Raises:
        LookupError: a page lacks the text around a figure, or has it more than once.
    """
    current: dict[Path, str] = {}
    correct: dict[Path, str] = {}
    for figure in figures():
        for name, around in figure["pages"].items():
            path = ROOT / name
            text = correct.setdefault(path, current.setdefault(path, path.read_text("utf-8")))
            before, after = (re.escape(part).replace(r"\ ", r"\s+") for part in around.split("{}"))
            pattern = f"{before}{_NUMBER}{after}"
            found = list(re.finditer(pattern, text))
            if len(found) != 1:
                raise LookupError(f"{name} has {around!r} {len(found)} times ({figure['name']})")
            begin, end = found[0].span(1)
            correct[path] = f"{text[:begin]}{figure['value']}{text[end:]}"
    return {path: (current[path], correct[path]) for path in current}


def record(bench: str, rows: Iterable[Row]) -> None:
    """Keep the figures that a benchmark has measured, and put them into the pages."""
    measured = {row.name: row.value for row in rows}
    found = figures()
    for figure in found:
        if figure.get("bench") == bench and figure["row"] in measured:
            figure["value"] = figure["format"].format(measured[figure["row"]])
    FIGURES.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    main()


def main() -> None:
    for path, (_, correct) in pages().items():
        path.write_text(correct, encoding="utf-8")


if __name__ == "__main__":
    main()
