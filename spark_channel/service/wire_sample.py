"""A `Sample` as JSON, and back: bounded, and checked, since it comes from another process."""

from collections.abc import Mapping
from typing import Any

from spark_channel.limits import Sample
from spark_channel.service.wire import RequestError

__all__ = ["sample_from_json", "sample_to_json"]

_MOST_NAMES = 50
_MOST_DELAYS = 1_000
_LONGEST_TEXT = 200
_LARGEST = float(1 << 62)


def sample_to_json(sample: Sample) -> dict[str, Any]:
    return {
        "values": {name: list(pair) for name, pair in sample.values.items()},
        "delays": {name: list(each) for name, each in sample.delays.items()},
        "missing": [_shown(each) for each in sample.missing],
        "error": _shown(sample.error),
        "row_seconds": sample.row_seconds,
    }


def sample_from_json(data: Mapping[str, Any]) -> Sample:
    """Of the fields of a request.

    Raises:
        RequestError: it makes no sense.
    """
    values, delays = _named(data["values"], "values"), _named(data["delays"], "delays")
    missing, error = data["missing"], data["error"]
    if any(len(_numbers(pair)) != 2 for pair in values.values()):
        raise RequestError("a value is a number and what it may be")
    if not isinstance(missing, list) or len(missing) > _MOST_NAMES:
        raise RequestError("missing is a list of texts")
    return Sample(
        {name: (float(pair[0]), float(pair[1])) for name, pair in values.items()},
        {name: tuple(_numbers(each)) for name, each in delays.items()},
        tuple(_text(each) for each in missing),
        _text(error),
        _numbers([data.get("row_seconds", 0.0)])[0],
    )


def _named(data: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(data, dict) or len(data) > _MOST_NAMES:
        raise RequestError(f"{name} is an object of at most {_MOST_NAMES} names")
    for each in data:
        _text(each)
    return data


def _numbers(data: Any) -> list[float]:
    if not isinstance(data, list) or len(data) > _MOST_DELAYS:
        raise RequestError(f"a signal has at most {_MOST_DELAYS} numbers")
    for each in data:
        if type(each) not in (int, float) or not 0 <= each <= _LARGEST:
            raise RequestError("a signal is a number of 0 or more")
    return [float(each) for each in data]


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or not value.isprintable():
        raise RequestError(f"a text has at most {_LONGEST_TEXT} printable characters")
    return value


def _shown(text: str) -> str:
    """What a driver says, in one line."""
    return "".join(each if each.isprintable() else " " for each in text)[:_LONGEST_TEXT]
