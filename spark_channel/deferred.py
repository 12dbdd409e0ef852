"""Defers modules of libraries until they are used, although another library imports them immediately."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from threading import Lock
from types import ModuleType
from typing import Any

__all__ = ["defer"]


def defer(name: str) -> None:
    """Have `import name`, in whatever library, wait until something of that module is used.

    `name` is a module of a package. Nothing happens where it is imported already, or not there at all.
    """
    spec = None if name in sys.modules else find_spec(name)
    if spec is None:
        return
    module = module_from_spec(spec)
    module.__class__ = _Deferred
    parent, _, child = name.rpartition(".")
    setattr(import_module(parent), child, module)
    sys.modules[name] = module


class _Deferred(ModuleType):
    """Stands for a module; makes way for it when it is asked for anything. Thread-safe, as imports are."""

    def __getattr__(self, attribute: str) -> Any:
        with _making_way:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), attribute)

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return import_module, (self.__name__,)  # as cloudpickle sends modules that functions use


_making_way = Lock()
