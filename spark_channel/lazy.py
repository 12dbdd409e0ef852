"""Names and modules that are imported on their first use, because every Python process of Spark pays for its imports.

A package names what it exports, and where it is; `tests/test_lazy.py` holds the three lists together::

    if TYPE_CHECKING:
        from spark_channel.channel.memory import MemoryChannel
    else:
        __getattr__, __dir__ = lazy.exports(__name__, {"memory": ["MemoryChannel"]})

    __all__ = ["MemoryChannel"]

A name must not be that of a module of the package: Python sets that module as the package's attribute.
"""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["LazyModule", "compute", "exports", "left_out", "load", "postponed"]


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


@contextmanager
def postponed(name: str) -> Iterator[None]:
    """Let the block import a library without module `name`, which that library imports and may never use.

    Something in its place imports it as soon as it is used; others import it as ever.
    """
    if name in sys.modules:
        yield
        return
    module = ModuleType(name)

    def vacate() -> None:
        if sys.modules.get(name) is module:
            del sys.modules[name]

    def __getattr__(attribute: str) -> Any:  # noqa: N807 - it becomes the module's
        vacate()
        return getattr(load(name), attribute)

    vars(module)["__getattr__"] = __getattr__
    parent, _, child = name.rpartition(".")
    setattr(import_module(parent), child, module)
    sys.modules[name] = module
    try:
        yield
    finally:
        vacate()


@contextmanager
def left_out(name: str) -> Iterator[None]:
    """Let the block import a library that does without module `name` where it is not installed."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment] # which Python takes for a module that is not there
    try:
        yield
    finally:
        if sys.modules.get(name, sys) is None:
            del sys.modules[name]


class LazyModule:
    """Stands for a library's module in one of this package, and imports it when something of it is first used::

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


def exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` (PEP 562) of `package`, for the names that each of its `modules` has."""
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the package's
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(load(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807 - it becomes the package's
        return sorted({*vars(sys.modules[package]), *homes})

    return __getattr__, __dir__


if TYPE_CHECKING:
    import pyarrow.compute as compute
else:
    compute = LazyModule("pyarrow.compute")
    """Arrow's functions: 35 ms, which a process that only plans a job does not need."""
