"""`${var}` in job files, and `-p "-Dvar=value"` on the command line.

`${env:NAME}` and `${file:PATH}` are references to secrets: they stay as they are until a connector
asks for the value, so that no plan and no message holds it.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from spark_channel.errors import JobFileError, OptionError

__all__ = ["expand_data", "expand_text", "parse_parameters", "unset_names"]

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_BRACED_OR_BARE = re.compile(r"\$\{([\w.-]+)\}|\$(\w+)")
_TAKES = '"-Dname=value", several of them separated by spaces'


def parse_parameters(text: str) -> dict[str, str]:
    """Read DataX's `-p` argument: `-Dday=2024-01-31 -Dtable=orders`; quotes keep spaces in a value.

    Raises:
        OptionError: something that is not `-Dname=value`; never shows a value.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise OptionError(f"option '-p' takes {_TAKES}: {error}", option="-p", takes=_TAKES) from None
    variables = {}
    for word in words:
        name, equals, value = word.removeprefix("-D").partition("=")
        if not word.startswith("-D") or not equals or _NAME.fullmatch(name) is None:
            raise OptionError(f"option '-p' got {name!r}; it takes {_TAKES}", option="-p", takes=_TAKES)
        variables[name] = value
    return variables


def unset_names(text: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """The names of `${name}` in a text that no variable sets, each once."""
    names = (match.group(1) for match in _BRACED_OR_BARE.finditer(text))
    return tuple(dict.fromkeys(name for name in names if name and name not in variables))


def expand_text(text: str, variables: Mapping[str, str], source: str) -> str:
    """Put values in as text, before the JSON is read: a value may be a number, or a part of a list.

    `$name` without braces counts only when it is set, so that regular expressions stay whole.

    Raises:
        JobFileError: a `${name}` that is not set; names the place and all such names.
    """

    def place(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        return f"{source}: line {line}, column {column}"

    return _expand(text, variables, place)


def expand_data(data: Any, variables: Mapping[str, str], path: str = "") -> Any:
    """The same in every text of JSON data that was never a file; keys stay.

    Raises:
        JobFileError: a `${name}` that is not set; names the JSON path.
    """
    if isinstance(data, str):
        return _expand(data, variables, lambda _match: path)
    if isinstance(data, dict):
        return {
            key: expand_data(value, variables, f"{path}.{key}" if path else str(key))
            for key, value in data.items()
        }
    if isinstance(data, list):
        return [expand_data(value, variables, f"{path}[{n}]") for n, value in enumerate(data)]
    return data


def _expand(text: str, variables: Mapping[str, str], place: Callable[[re.Match[str]], str]) -> str:
    unset = [
        match
        for match in _BRACED_OR_BARE.finditer(text)
        if match.group(1) and match.group(1) not in variables
    ]
    if unset:
        names = list(dict.fromkeys(match.group(1) for match in unset))
        shown = ", ".join(f"${{{name}}}" for name in names)
        verb = "is" if len(names) == 1 else "are"
        raise JobFileError(
            f'{place(unset[0])}: {shown} {verb} not set; give -p "-D{names[0]}=..." or '
            f"variables={{{names[0]!r}: ...}}. A secret may be given as ${{env:NAME}} or ${{file:PATH}}"
        )
    return _BRACED_OR_BARE.sub(
        lambda match: variables.get(match.group(1) or match.group(2), match.group()), text
    )
