"""The examples in the docstring of `spark_channel.carrier` run unchanged."""

import re
import threading
from typing import Any

import pytest

import spark_channel.carrier
from tests.carrier.helpers import JOIN_SECONDS

EXAMPLES = re.findall(
    r"^(\S[^\n]*):\n+```python\n(.*?)^```",
    spark_channel.carrier.__doc__ or "",
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize(("title", "source"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_the_example_runs(title: str, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(source, title, "exec"), {"__name__": "example"})
    if title.startswith("Fan-out"):
        written = re.findall(r"(\d+) rows written", capsys.readouterr().out)
        assert len(written) == 4
        assert sum(map(int, written)) == 1_000_000


def test_the_docstring_has_its_examples() -> None:
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
