"""Each option of each command, each option of a connector and each public name is used by a test.

The lists are derived: typer's tree of commands, the option models, and `__all__`. A use is a word of the code or of a
text in a test, beside the words of its command where it is a command's option.
"""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

import spark_channel
from spark_channel.cli.app import complete
from spark_channel.connectors.base.registry import connector_names, find_connector
from spark_channel.errors import MissingPackageError, OptionError

TESTS = Path(__file__).parent
NOT_YET: frozenset[str] = frozenset(
    {
        "elasticsearch scrollSeconds",  # OpenSearch's own clock ends a scroll: a test would wait for it
        "kafka transactionTimeout",  # the broker's own clock ends a transaction
    }
)
"""What no test uses by its name. Remove what gets a use; nothing may be added."""
_FOR_US_ALONE = {"arrow_schema", "local", "serialization", "signals"}
"""Packages of functions that only this project calls: the tests of their callers use them."""
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@cache
def functions() -> list[frozenset[str]]:
    """The words in the texts of each function of the tests, its decorators and defaults, and each module's others."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        if path == Path(__file__):
            continue
        tree = ast.parse(path.read_text())
        of_module: set[str] = set()
        of_functions = []
        for node in tree.body:
            words = {
                word
                for each in ast.walk(node)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
                for word in re.split(r"[\s=]+", each.value)
            }
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                of_functions.append(words)
            else:
                of_module |= words
        found += [frozenset(words | of_module) for words in of_functions]
    return found


@cache
def words() -> frozenset[str]:
    texts = (path.read_text() for path in TESTS.rglob("*.py") if path != Path(__file__))
    return frozenset(word for text in texts for word in WORD.findall(text))


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from commands(each, (*path, name))


def test_each_option_of_each_command_is_used() -> None:
    unused, count = [], 0
    for path, command in commands(typer.main.get_command(complete(()))):
        own = [each for each in functions() if each.issuperset(path)]
        for parameter in command.params:
            names = [name for name in parameter.opts if name.startswith("-")]
            names += [name for name in parameter.secondary_opts if name.startswith("-")]
            if not names or names == ["--help"]:
                continue
            count += 1
            if not any(each.intersection(names) for each in own):
                unused.append(f"{' '.join(path)} {names[0]}")
    assert count > 80
    assert set(unused) <= NOT_YET, sorted(set(unused) - NOT_YET)


def test_each_option_of_each_connector_is_used() -> None:
    unused, count = set(), 0
    for connector in connector_names():
        if connector == "firebird":
            continue  # the tests' own, where they have installed it
        for half in ("reader", "writer"):
            try:
                options = find_connector({half: connector}, half).options_class(half)
            except (OptionError, MissingPackageError):
                continue
            for name, field in options.model_fields.items():
                count += 1
                if not {name, str(field.alias)} & words():
                    unused.add(f"{connector} {field.alias}")
    assert count > 200
    assert unused <= NOT_YET, sorted(unused - NOT_YET)


def test_each_public_name_is_used() -> None:
    unused, count = [], 0
    packages = (each.name for each in pkgutil.iter_modules(spark_channel.__path__) if each.ispkg)
    for package in ("", *(name for name in packages if name not in _FOR_US_ALONE), "errors"):
        module = importlib.import_module(f"spark_channel.{package}".rstrip("."))
        for name in getattr(module, "__all__", ()):
            count += 1
            if name not in words():
                unused.append(name)
    assert count > 100
    assert set(unused) <= NOT_YET, sorted(set(unused) - NOT_YET)
