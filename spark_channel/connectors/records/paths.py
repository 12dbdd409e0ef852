"""Where a value is inside nested ones: `address.city`, `lines[0].price`, `['a.b'].c`."""

import re
from collections.abc import Mapping

__all__ = ["MISSING", "Path", "found_at", "path_in", "path_of"]

Path = tuple[str | int, ...]
_STEP = re.compile(r"""\.?([^.\[\]'"]+)|\[([0-9]{1,9})\]|\[(?:'([^']+)'|"([^"]+)")\]""")
MISSING = object()


def path_of(text: str) -> Path:
    """The steps of a path.

    Raises:
        ValueError: it is not one.
    """
    steps: list[str | int] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None or (match[0].startswith(".") != bool(steps) and match[1] is not None):
            raise ValueError("a path, such as data.items, lines[0].price or ['a.b'].c")
        name, number, *quoted = match.groups()
        steps.append(int(number) if number is not None else name or next(filter(None, quoted)))
        position = match.end()
    return tuple(steps)


def path_in(name: str) -> Path | None:
    """The path that a column's name may be; None = it is only a name."""
    if "." not in name and "[" not in name:
        return None
    try:
        return path_of(name)
    except ValueError:
        return None


def found_at(value: object, path: Path) -> object:
    """The value there, or `MISSING`."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return MISSING
            value = value[step]
        elif isinstance(value, Mapping) and step in value:
            value = value[step]
        else:
            return MISSING
    return value
