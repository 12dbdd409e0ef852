"""Writes into docs/CONTRIBUTING.md which tests each source file has: `python -m tests.source_map`."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

__all__ = [
    "PAGE",
    "has_its_place",
    "own_test",
    "sources",
    "table",
    "with_table",
    "without_table",
    "written",
]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "CONTRIBUTING.md"
PACKAGE = "spark_channel"
BEGINS = "<details markdown><summary>The tests of each source file</summary>"
ENDS = "</details>"
OF_TOOLS = ("benchmarks", "notebooks", "servers")
"""Folders of what is neither a package nor its tests, each with a test of its own."""
MOST_NAMED = 3
"""Tests that a row names beside the file's own: those that use it most."""
_ROW = re.compile(r"^\| `([\w/]+\.py)` \| (?:`([\w/]+\.py)`|none) \| (.*) \|$", re.MULTILINE)

HEAD = f"""{BEGINS}

Beside a file's own test are those that import it most. Written by `python -m tests.source_map`.

| Source | Its test | Other tests that import it |
|---|---|---|
"""


def sources() -> list[str]:
    """The modules of the package that hold more than a package's exports, by their paths in it."""
    package = ROOT / PACKAGE
    return sorted(
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    )


def own_test(source: str) -> str:
    """The test file of the same name, in the folder of the same name; "" = there is none."""
    path = Path(source)
    name = (Path("tests") / path.parent / f"test_{path.name}").as_posix()
    return name if (ROOT / name).is_file() else ""


def has_its_place(test: str) -> bool:
    """Whether a test file, named from `tests/` on, is where docs/CONTRIBUTING.md says that one looks for it."""
    folder, _, name = test.rpartition("/")
    if not folder or folder in OF_TOOLS:
        return True
    if folder.split("/")[0] == "behaviour":
        return folder.count("/") == 1
    package = ROOT / PACKAGE / folder
    words = name.removeprefix("test_").removesuffix(".py").split("_")
    named = {package / "_".join(words[:count]) for count in range(1, len(words) + 1)}
    return package.is_dir() and (
        folder.startswith("connectors/")
        or any(path.is_dir() or path.with_suffix(".py").is_file() for path in named)
    )


@cache
def _exports() -> dict[tuple[str, str], str]:
    """The module that each name of a package comes from."""
    origins = {}
    for file in (ROOT / PACKAGE).rglob("__init__.py"):
        package = ".".join(file.parent.relative_to(ROOT).parts)
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    origins[package, alias.asname or alias.name] = node.module
    return origins


def _path_of(module: str, name: str) -> str:
    """The source file, by its path in the package, that `from module import name` takes the name from."""
    while (module, name) in _exports() and _exports()[module, name] != module:
        module = _exports()[module, name]
    if (ROOT / module.replace(".", "/") / f"{name}.py").is_file():
        module = f"{module}.{name}"
    return module.removeprefix(f"{PACKAGE}.").replace(".", "/") + ".py"


def _uses(test: Path) -> Counter[str]:
    """How often a test file uses names of each source file."""
    tree = ast.parse(test.read_text("utf-8"))
    origins = {
        alias.asname or alias.name: _path_of(node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE
        for alias in node.names
    }
    uses = Counter(set(origins.values()))
    uses.update(
        origins[node.id]
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in origins
    )
    return uses


def table() -> str:
    importers: dict[str, Counter[str]] = defaultdict(Counter)
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        for source, count in _uses(test).items():
            importers[source][test.relative_to(ROOT).as_posix()] = count
    rows = []
    for source in sources():
        own = own_test(source)
        others = [name for name, _ in importers[source].most_common() if name != own]
        named = [f"`{name}`" for name in others[:MOST_NAMED]]
        if len(others) > MOST_NAMED:
            named.append(f"{len(others) - MOST_NAMED} more")
        rows.append(f"| `{source}` | {f'`{own}`' if own else 'none'} | {', '.join(named)} |")
    return HEAD + "\n".join(rows) + f"\n\n{ENDS}"


def with_table(page: str) -> str:
    """The page with the table in place of its older one."""
    before, _, rest = page.partition(BEGINS)
    return before + table() + rest.partition(ENDS)[2]


def without_table(page: str) -> str:
    before, _, rest = page.partition(BEGINS)
    return before + rest.partition(ENDS)[2] if rest else page


def written(page: str) -> dict[str, tuple[str, list[str]]]:
    """What the page's table says: of each source its own test, "" for none, and the others that it names."""
    return {
        source: (own, re.findall(r"`([\w/]+\.py)`", others))
        for source, own, others in _ROW.findall(page.partition(BEGINS)[2].partition(ENDS)[0])
    }


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
