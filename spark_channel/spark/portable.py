"""Makes classes that pass between Spark's processes known by way of `pyspark_channel`."""

from contextlib import suppress
from typing import TypeVar

__all__ = ["portable"]

_Kind = TypeVar("_Kind", bound=type)


def portable(kind: _Kind) -> _Kind:
    """Have `kind` pickled by its name in `pyspark_channel`, which finds this package where Spark left it.

    Without that module, as when the package alone was copied, by its own: then the package must be on the path.
    """
    with suppress(ModuleNotFoundError):
        import pyspark_channel  # noqa: F401 - cloudpickle goes by name only where the module is imported

        kind.__module__ = "pyspark_channel"
    return kind
