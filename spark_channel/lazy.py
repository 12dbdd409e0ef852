"""Names and modules that are imported on their first use, because every Python process of Spark pays for its imports.

A package states what it exports once, for readers, type checkers, import-linter and this module::

    if TYPE_CHECKING:
        from spark_channel.channel.memory import MemoryChannel
    else:
        __getattr__, __dir__ = lazy.exports(__name__)

    __all__ = ["MemoryChannel"]

A name must not be that of a module of the package: Python sets that module as the package's attribute.
"""

import gc
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["LazyModule", "exports", "load"]


def load(name: str) -> ModuleType:
    """`import_module`, with no collection of garbage on the way.

    What is imported stays. A worker of Spark begins with 100 000 objects, and its first imports had them looked through
    several times: 40 of 320 ms.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if collects:
            gc.enable()


class LazyModule:
    """Stands for a library's module in one of ours, and imports it when something of it is first used::

    if TYPE_CHECKING:
        from sqlglot import exp
    else:
        exp = lazy.LazyModule("sqlglot.expressions")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(load(self._name), attribute)
        setattr(self, attribute, value)
        return value


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` (PEP 562) of `package`, whose import statements say where its `__all__` is."""
    module = sys.modules[package]

    @cache
    def homes() -> dict[str, str]:
        import ast

        source = module.__loader__.get_source(package)  # type: ignore[union-attr] # of files and of zips
        if source is None:
            raise ImportError(
                f"{package} is installed without its source, which says where its names are"
            )
        return {
            name.name: statement.module
            for statement in ast.walk(ast.parse(source))
            if isinstance(statement, ast.ImportFrom) and statement.module
            for name in statement.names
        }

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the package's
        if name not in module.__all__:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(load(homes()[name]), name)
        setattr(module, name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807 - it becomes the package's
        return sorted({*vars(module), *module.__all__})

    return __getattr__, __dir__
