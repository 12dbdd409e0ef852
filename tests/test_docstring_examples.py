"""Every ```python block in a docstring of the package runs by itself, in an empty folder."""

import ast
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """(file and line of the definition, code) of each block."""
    found = []
    for path in sorted((ROOT / "spark_channel").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "```python" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                doc = ast.get_docstring(node) or ""
                where = f"{path.relative_to(ROOT)}:{getattr(node, 'name', 'module')}"
                found += [(where, textwrap.dedent(code)) for code in BLOCK.findall(doc)]
    return found


EXAMPLES = examples()


@pytest.mark.parametrize(("where", "code"), EXAMPLES, ids=[where for where, _ in EXAMPLES])
def test_the_example_of_a_docstring_runs(
    where: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, where, "exec"), {"__name__": "example"})


def test_the_packages_for_developers_have_examples() -> None:
    packages = {where.split("/")[1] for where, _ in EXAMPLES}
    assert packages >= {"carrier", "channel", "limits", "planning", "testing", "transform"}
