"""The examples of docs/carrier.md run unchanged."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.carrier.helpers import JOIN_SECONDS

PAGE = Path(__file__).parents[2] / "docs" / "carrier.md"
EXAMPLES = re.findall(
    r"^## (.*?)\n+```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize(("title", "source"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_the_example_runs(title: str, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(source, f"{PAGE.name}: {title}", "exec"), {"__name__": "example"})
    if title.startswith("Fan-out"):
        written = re.findall(r"(\d+) rows written", capsys.readouterr().out)
        assert len(written) == 4
        assert sum(map(int, written)) == 1_000_000


def test_the_page_has_its_examples() -> None:
    assert len(EXAMPLES) == 3


def test_leaving_the_fan_in_early_ends_its_readers() -> None:
    source = next(source for title, source in EXAMPLES if title.startswith("Fan-in"))
    names: dict[str, Any] = {"__name__": "example"}
    exec(source, names)
    before = set(threading.enumerate())
    batches = names["read_all"]([10**12, 10**12], threads=2)
    assert next(batches).num_rows == 1_000
    readers = set(threading.enumerate()) - before
    assert len(readers) == 2
    batches.close()
    for reader in readers:
        reader.join(JOIN_SECONDS)
        assert not reader.is_alive()
