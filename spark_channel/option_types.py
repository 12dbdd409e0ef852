"""`${env:NAME}` and `${file:PATH}` become their values, at the last moment before something is opened."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_channel.errors import OptionError
from spark_channel.serialization import parsed, written

__all__ = ["has_reference", "resolve_references", "without_references"]

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def resolve_references(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with every reference replaced, also inside a longer text such as a url.

    For the process that opens the source or the target, and for Spark's own formats, which know no
    references. The result holds secrets: it belongs in no plan, message or log.

    Raises:
        OptionError: a variable that is not set or a file that cannot be read; names it, shows no value.
    """
    return {key: _resolved(key, value) for key, value in options.items()}


def has_reference(value: Any) -> bool:
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def without_references(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with a word in place of every reference, for a look at them before the job runs."""
    return {
        key: _REFERENCE.sub("reference", value) if isinstance(value, str) else value
        for key, value in options.items()
    }


def _resolved(option: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if _REFERENCE.search(value) is None:
        return value
    found = _json_in(value)
    if found is not None:  # a value with a quote or a backslash must not end its text
        return written(_inside(option, found))
    return _REFERENCE.sub(lambda match: _value(option, match.group(1), match.group(2)), value)


def _json_in(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return parsed(text)
    except (ValueError, RecursionError):
        return None


def _inside(option: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _inside(option, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_inside(option, each) for each in value]
    return _resolved(option, value)


def _value(option: str, kind: str, name: str) -> str:
    if kind == "env":
        if name not in os.environ:
            raise OptionError(
                f"option {option!r}: the environment variable {name} is not set on the driver",
                option=option,
                takes=f"the environment variable {name}",
            )
        return os.environ[name]
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(
            f"option {option!r}: {name} cannot be read: {reason}",
            option=option,
            takes="a readable file",
        ) from None
