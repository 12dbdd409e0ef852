"""Keeps imports that a short job does not need from slowing it down."""

import importlib
import sys
from importlib.abc import MetaPathFinder
from typing import Any

__all__ = ["without_pandas"]


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("not now", name=fullname)


def without_pandas() -> None:
    """Keep pyarrow from importing pandas, which takes longer than a small job.

    It does so at its first `pa.array`, wherever pandas is installed, to see whether the values are pandas'. A later
    `to_pandas` imports it all the same.
    """
    if "pandas" in sys.modules:
        return
    pa = importlib.import_module("pyarrow")
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
