"""The examples of docs/carrier.md run as they stand."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "carrier.md"
EXAMPLES = re.findall(r"^## (.*?)\n+```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("title", "source"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_the_example_runs(title: str, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(source, f"{PAGE.name}: {title}", "exec"), {"__name__": "example"})
    if title.startswith("Fan-out"):
        written = re.findall(r"(\d+) rows written", capsys.readouterr().out)
        assert len(written) == 4
        assert sum(map(int, written)) == 1_000_000


def test_the_page_has_its_examples() -> None:
    assert len(EXAMPLES) == 3
