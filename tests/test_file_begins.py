"""A file of the package begins once: one docstring, one logger, constants on top, no heading behind a definition."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def paths() -> Iterator[Path]:
    yield from sorted((ROOT / "spark_channel").rglob("*.py"))


def headings(text: str) -> list[int]:
    """Lines of comments that stand alone, between blank lines, behind a file's first definition."""
    definitions = [
        statement.lineno
        for statement in ast.parse(text).body
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    if not definitions:
        return []
    lines = ["", *text.splitlines(), ""]
    comments = [
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and token.start[1] == 0
    ]
    return [
        line
        for line in comments
        if line > definitions[0]
        and not lines[line - 1].startswith("#")
        and not next(text for text in lines[line:] if not text.startswith("#")).strip()
    ]


def loggers(tree: ast.Module) -> int:
    return sum(
        isinstance(target, ast.Name) and target.id == "_log"
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    )


_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|_log")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def late_constants(text: str) -> list[str]:
    """Constants behind the first definition that need none of the file's own functions and classes."""
    statements = ast.parse(text).body
    needs = {statement.name for statement in statements if isinstance(statement, _Definition)}
    late = []
    is_top = True
    for statement in statements:
        is_top = is_top and not isinstance(statement, _Definition)
        if is_top or isinstance(statement, _Definition):
            continue
        nodes = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        names = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
        is_constant = isinstance(statement, ast.Assign | ast.AnnAssign) and names
        if (
            is_constant
            and all(map(_CONSTANT.fullmatch, names))
            and needs.isdisjoint(node.id for node in nodes)
        ):
            late += sorted(names)
        else:
            needs |= names
    return late


def test_constants_stand_above_the_first_definition() -> None:
    assert {
        str(path.relative_to(ROOT)): late
        for path in paths()
        if (late := late_constants(path.read_text("utf-8")))
    } == {}


def test_a_constant_that_needs_a_definition_stands_below_it() -> None:
    text = "A = 1\n\n\ndef f():\n    pass\n\n\nB = f()\nC = [B]\nD = 2\n"
    assert late_constants(text) == ["D"]


def test_no_heading_stands_behind_the_first_definition() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{line}"
        for path in paths()
        for line in headings(path.read_text("utf-8"))
    ] == []


def test_no_file_has_a_second_logger() -> None:
    assert [str(path) for path in paths() if loggers(ast.parse(path.read_text("utf-8"))) > 1] == []


def test_no_function_is_called_of() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in paths()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "of"
    ] == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def f():\n    pass\n\n\n# Another thought.\n\n\ndef g():\n    pass\n", [5]),
        ("def f():\n    pass\n\n\n# Another thought,\n# in two lines.\n\nX = 1\n", [5]),
        ("def f():\n    pass\n\n\n# Why one.\nX = 1\n", []),
        ("# What follows.\n\n\ndef f():\n    # A step.\n\n    pass\n", []),
    ],
)
def test_a_heading_is_a_comment_alone(text: str, lines: list[int]) -> None:
    assert headings(text) == lines
