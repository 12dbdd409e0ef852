"""Arrow values as Python's, to show them or to look them up."""

from typing import Any

import pyarrow as pa

__all__ = ["TextOf", "python_values"]


class TextOf(str):
    """The text of a value that Python's dates and times cannot hold: of a year after 9999, or with nanoseconds."""

    __slots__ = ()


def python_values(values: pa.ChunkedArray) -> list[Any]:
    """The values as Python's objects, and as `TextOf` where Python has none."""
    if not (pa.types.is_temporal(values.type) and getattr(values.type, "unit", "") == "ns"):
        try:
            return list(values.to_pylist())
        except (OverflowError, ValueError):
            pass
    return [_python_value(each) for each in values]


def _python_value(value: pa.Scalar) -> Any:
    if not value.is_valid:
        return None
    if getattr(value.type, "unit", "") != "ns":
        try:
            return value.as_py()
        except (OverflowError, ValueError):
            pass
    try:
        text = str(value.cast(pa.string()).as_py())
    except pa.ArrowNotImplementedError:  # an array, a map or a struct has no such cast
        return TextOf(f"<a value of {value.type} that Python cannot hold>")
    return TextOf(f"{text} ns" if pa.types.is_duration(value.type) else text)
