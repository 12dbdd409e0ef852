"""Tables whose keys are 99 % in 1 % of their range, and what splits of them are held to."""

from collections.abc import Callable, Iterator
from typing import Any

from spark_channel.connectors import Reader

__all__ = ["numbers", "rows", "uneven"]

_ROWS, _DENSE = 10_000, 9_900
_PARTS = 4
_MOST = 1.3
_QUERY = "SELECT id, name FROM texts WHERE id > 0"
_SOURCES: dict[str, dict[str, Any]] = {
    "a key of numbers": {"dbtable": "ints"},
    "a key of texts": {"dbtable": "texts"},
    "a composite key": {"dbtable": "pairs"},
    "a view by a text": {"dbtable": "v", "partitionColumn": "name"},
    "a view by a number": {"dbtable": "v", "partitionColumn": "id"},
    "a query by a text": {"dbtable": None, "query": _QUERY, "partitionColumn": "name"},
    "a query by a number": {"dbtable": None, "query": _QUERY, "partitionColumn": "id"},
    "a part of the key": {"dbtable": "pairs", "partitionColumn": "b"},
    "a condition": {"dbtable": "texts", "where": "id < 5000 OR id > 9900"},
}


def numbers() -> list[int]:
    """The ids: 9 900 from 1 on, and one in each 9 900 up to 990 000."""
    return [*range(1, _DENSE + 1), *(_DENSE * step for step in range(2, _ROWS - _DENSE + 2))]


def rows() -> Iterator[tuple[int, str, str, int]]:
    """(id, name, a, b): tables ints(id), texts(name, id) and pairs(a, b, id); view v is texts."""
    for number in numbers():
        yield (
            number,
            f"key-{number:07d}",
            "common" if number <= _DENSE else f"rare {number}",
            number,
        )


def uneven(make: Callable[..., Reader]) -> dict[str, list[int]]:
    """The sources whose splits are not of even size, and those that do not give each row once, with the sizes."""
    found = {}
    for name, options in _SOURCES.items():
        reader = make(**options)
        reader.schema()
        parts = [
            [value for batch in reader.read(split) for value in batch["id"].to_pylist()]
            for split in reader.split(_PARTS)
        ]
        sizes = [len(part) for part in parts]
        expected = [
            number for number in numbers() if "where" not in options or not 5000 <= number <= 9900
        ]
        whole = sorted(value for part in parts for value in part) == expected
        if not whole or len(sizes) != _PARTS or max(sizes) > _MOST * min(sizes):
            found[name] = sizes
    return found
