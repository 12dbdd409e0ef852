"""No file imports, by way of others, a file that imports it: neither at its top nor inside its functions."""

import ast
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def modules(root: Path, package: str) -> dict[str, ast.Module]:
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text("utf-8"))
    return found


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """The node and those below it, without what only type checkers read."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.If) or ast.unparse(child.test) != "TYPE_CHECKING":
            yield from executed(child)
        else:
            for other in child.orelse:
                yield from executed(other)


def imports(
    trees: Mapping[str, ast.Module], nodes: Callable[[ast.AST], Iterator[ast.AST]] = executed
) -> dict[str, set[str]]:
    """The modules that each module imports by its `nodes`. A name that a package passes on is its own module's."""
    homes = {
        f"{name}.{each.asname or each.name}": f"{node.module}.{each.name}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for each in node.names
    }

    def home(name: str) -> str:
        while name not in trees and name in homes:
            name = homes[name]
        return name if name in trees else name.rpartition(".")[0]

    return {
        name: {
            found
            for node in nodes(tree)
            for each in (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            if (found := home(each)) in trees and found != name
        }
        for name, tree in trees.items()
    }


def cycle(root: Path, package: str) -> list[str]:
    """The modules of a cycle, each imported by the next; empty if there is none."""
    try:
        TopologicalSorter(imports(modules(root, package))).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_closes_a_cycle_of_files() -> None:
    assert cycle(ROOT, "spark_channel") == []


def test_no_type_closes_a_cycle_of_files_either() -> None:
    TopologicalSorter(imports(modules(ROOT, "spark_channel"), ast.walk)).prepare()


@pytest.mark.parametrize(
    ("imported", "found"),
    [
        ("def f():\n    from shop.one import A", True),
        ("import shop.one", True),
        ("from shop import A", True),
        ("from shop import one", True),
        ("if TYPE_CHECKING:\n    from shop.one import A", False),
        ("if TYPE_CHECKING:\n    from shop.one import A\nelse:\n    from shop import A", True),
    ],
)
def test_each_form_of_an_import_is_seen(tmp_path: Path, imported: str, found: bool) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").write_text("if TYPE_CHECKING:\n    from shop.one import A\n")
    (shop / "one.py").write_text("from shop.two import B\nA = B\n")
    (shop / "two.py").write_text(f"B = 1\n{imported}\n")
    assert bool(cycle(tmp_path, "shop")) is found
