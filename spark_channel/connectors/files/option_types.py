"""The values of the file connectors' options: separators, encodings, zones, times and Spark's patterns of times."""

import codecs
import json
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator

from spark_channel.transform.time_patterns import TimePattern
from spark_channel.working_directory import absolute_path

__all__ = [
    "Character",
    "Encoding",
    "Instant",
    "OptionalCharacter",
    "Pattern",
    "Zone",
    "known_encoding",
    "path_list",
]


def path_list(value: object) -> tuple[str, ...]:
    takes = "a JSON list of paths"
    if isinstance(value, (list, tuple)):
        found = list(value)
    else:
        try:
            found = json.loads(str(value))
        except (ValueError, RecursionError):
            raise ValueError(takes) from None
    if not isinstance(found, list) or not found or not all(isinstance(path, str) for path in found):
        raise ValueError(takes)
    return tuple(absolute_path(path) for path in found)


def _instant(value: object) -> datetime:
    text = str(value)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time such as 2020-06-01T13:00:00") from None
    return found if found.tzinfo else found.replace(tzinfo=ZoneInfo("UTC"))


_SEPARATORS = {"\\t": "\t", "\\0": "\0", "\\\\": "\\"}


def _character(value: object) -> str:
    text = _SEPARATORS.get(str(value), str(value))
    if len(text) != 1 or not text.isascii() or text in "\r\n":
        raise ValueError(r"one ASCII character, or \t")
    return text


def _character_or_none(value: object) -> str:
    return "" if str(value) in ("", "\0", "\\u0000") else _character(value)


def known_encoding(value: object) -> str:
    try:
        return codecs.lookup(str(value)).name
    except LookupError:
        raise ValueError("an encoding that Python knows, such as UTF-8 or ISO-8859-1") from None


def _zone(value: object) -> str:
    try:
        ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError("a time zone such as UTC or Europe/Berlin") from None
    return str(value)


Character = Annotated[str, BeforeValidator(_character)]
OptionalCharacter = Annotated[str, BeforeValidator(_character_or_none)]
Encoding = Annotated[str, BeforeValidator(known_encoding)]
Zone = Annotated[str, BeforeValidator(_zone)]
Instant = Annotated[datetime, BeforeValidator(_instant)]


def _pattern(value: object) -> str:
    return TimePattern.of(str(value)).text


Pattern = Annotated[str, BeforeValidator(_pattern)]
