"""The public names: each package exports all that it promises, and nothing else, and the reference has each."""

import ast
import gc
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from spark_channel import lazy
from spark_channel.lazy import left_out, postponed

ROOT = Path(__file__).resolve().parents[1]
API = ROOT / "docs" / "reference" / "api.md"
SOURCES = ROOT / "spark_channel"
PACKAGES = (
    "carrier",
    "channel",
    "connectors",
    "datax",
    "errors",
    "limits",
    "planning",
    "progress",
    "service",
    "testing",
    "transform",
    "tunnel",
)
NOT_THERE = {"datax"}  # docs/datax.md describes it key by key


def module(name: str) -> ModuleType:
    return importlib.import_module(f"spark_channel.{name}" if name else "spark_channel")


@pytest.mark.parametrize("name", ["", *PACKAGES])
def test_what_is_promised_is_there_in_order(name: str) -> None:
    package = module(name)
    assert package.__all__ == sorted(package.__all__)
    assert [each for each in package.__all__ if not hasattr(package, each)] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_what_is_brought_in_is_promised(name: str) -> None:
    package = module(name)
    for each in package.__all__:
        getattr(package, each)
    brought = {
        each
        for each, value in vars(package).items()
        if not each.startswith("_")
        and getattr(value, "__module__", "").startswith("spark_channel")
        and not isinstance(value, ModuleType)
    }
    assert brought <= set(package.__all__)


LAZY = {
    ".".join(init.parent.relative_to(ROOT).parts): init
    for init in sorted(SOURCES.rglob("__init__.py"))
    if "lazy.exports(" in init.read_text("utf-8")
}


@pytest.mark.parametrize("name", LAZY)
def test_a_package_names_the_same_to_python_to_type_checkers_and_in_all(name: str) -> None:
    init = LAZY[name]
    found = list(ast.walk(ast.parse(init.read_text("utf-8"))))
    checked = {
        node.module.removeprefix(f"{name}."): [each.name for each in node.names]
        for node in found
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{name}.")
    }
    (call,) = (
        node for node in found if isinstance(node, ast.Call) and "exports" in ast.unparse(node.func)
    )
    assert ast.literal_eval(call.args[1]) == checked
    package = importlib.import_module(name)
    names = {each for module in checked.values() for each in module}
    assert {*names, *({"CONNECTOR"} & {*vars(package)})} == {*package.__all__}
    assert not names & {each.stem for each in init.parent.iterdir()}
    assert names <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        package.no_such_name  # noqa: B018 - to ask is the test


@pytest.mark.parametrize(
    "name",
    ["spark_channel", *(f"spark_channel.{each}" for each in sorted({*PACKAGES} - NOT_THERE))],
)
def test_the_reference_has_each_package(name: str) -> None:
    shown = re.findall(r"^::: ([\w.]+)$", API.read_text("utf-8"), re.MULTILINE)
    assert any(each == name or each.startswith(f"{name}.") for each in shown)


def test_each_name_is_imported_when_it_is_used() -> None:
    package = module("")
    assert {each: getattr(package, each).__name__ for each in package.__all__} == {
        each: each for each in package.__all__
    }


@pytest.mark.parametrize("collects", [True, False])
def test_an_import_leaves_the_collection_of_garbage_as_it_was(collects: bool) -> None:
    try:
        (gc.enable if collects else gc.disable)()
        assert lazy.load("spark_channel.errors").ChannelError
        with pytest.raises(ModuleNotFoundError):
            lazy.load("spark_channel.no_such_module")
        assert gc.isenabled() is collects
    finally:
        gc.enable()


def test_a_postponed_module_is_imported_when_it_is_used_and_by_others_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        package = tmp_path / f"{name}_of_test"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "heavy.py").write_text(f"NAME = {name!r}\n")
        monkeypatch.setitem(sys.modules, f"{name}_of_test", ModuleType("kept for the end"))
        del sys.modules[f"{name}_of_test"]
    monkeypatch.syspath_prepend(tmp_path)

    with postponed("one_of_test.heavy"):
        import one_of_test.heavy as by_library  # type: ignore[import-not-found]
    assert "one_of_test.heavy" not in sys.modules
    assert by_library.NAME == "one"
    assert "one_of_test.heavy" in sys.modules

    with postponed("two_of_test.heavy"):
        import two_of_test.heavy  # type: ignore[import-not-found]

        assert two_of_test.heavy.NAME == "two", "it is used while the block runs"
    import two_of_test.heavy as by_others

    assert by_others is sys.modules["two_of_test.heavy"]
    assert vars(by_others)["NAME"] == "two"

    import three_of_test.heavy  # type: ignore[import-not-found]

    with postponed("three_of_test.heavy"):
        pass
    assert vars(three_of_test.heavy)["NAME"] == "three", "it was there before"


def test_a_module_is_left_out_of_a_library_and_is_there_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "left_of_test.py").write_text("NAME = 'left'\n")
    (tmp_path / "library_of_test.py").write_text(
        "try:\n    import left_of_test as left\nexcept ImportError:\n    left = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with left_out("left_of_test"):
        import library_of_test  # type: ignore[import-not-found]
    import left_of_test  # type: ignore[import-not-found]

    assert library_of_test.left is None
    assert left_of_test.NAME == "left"
    with left_out("left_of_test"):
        import left_of_test as again

        assert again is left_of_test, "it was there before"
