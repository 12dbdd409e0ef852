"""`${env:NAME}` and `${file:PATH}` become their values, at the last moment before something is opened."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_channel.errors import OptionError

__all__ = ["resolve_references"]

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def resolve_references(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with every reference replaced, also inside a longer text such as a url.

    For the process that opens the source or the target, and for Spark's own formats, which know no
    references. The result holds secrets: it belongs in no plan, message or log.

    Raises:
        OptionError: a variable that is not set or a file that cannot be read; names it, shows no value.
    """
    return {key: _resolved(key, value) for key, value in options.items()}


def _resolved(option: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return _REFERENCE.sub(lambda match: _value(option, match.group(1), match.group(2)), value)


def _value(option: str, kind: str, name: str) -> str:
    if kind == "env":
        if name not in os.environ:
            raise OptionError(
                f"option {option!r}: the environment variable {name} is not set on the driver",
                option=option, takes=f"the environment variable {name}",
            )  # fmt: skip
        return os.environ[name]
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(
            f"option {option!r}: {name} cannot be read: {reason}", option=option, takes="a readable file"
        ) from None
