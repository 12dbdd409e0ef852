"""`${var}` in job files, and `-p "-Dvar=value"` on the command line.

`${env:NAME}` and `${file:PATH}` are references to secrets: they stay as they are until a connector asks for the value,
so that no plan and no message holds it.
"""

import re
import shlex
from collections.abc import Callable, Mapping

from spark_channel.errors import JobFileError, OptionError

__all__ = [
    "MOST_TEXT",
    "TextLength",
    "expand_data",
    "expand_text",
    "parse_parameters",
    "unset_names",
]


_NAME = re.compile(r"[A-Za-z_][\w.-]*")
MOST_TEXT = 16 << 20
"""Characters of a job, in its file and with its variables put in: it is held in memory, several times."""
_MOST_NAMES = 20
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
        raise OptionError(
            f"option '-p' takes {_TAKES}: {error}", option="-p", takes=_TAKES
        ) from None
    variables = {}
    for word in words:
        name, equals, value = word.removeprefix("-D").partition("=")
        if not word.startswith("-D") or not equals or _NAME.fullmatch(name) is None:
            raise OptionError(
                f"option '-p' got {name!r}; it takes {_TAKES}", option="-p", takes=_TAKES
            )
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
        JobFileError: a `${name}` that is not set; names the place and such names. Or the text becomes too long.
    """

    def place(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        return f"{source}: line {line}, column {column}"

    return _expand(text, variables, place, TextLength(source))


def expand_data(data: object, variables: Mapping[str, str]) -> object:
    """The same in every text of JSON data that was never a file; keys stay.

    Raises:
        JobFileError: a `${name}` that is not set; names the JSON path. Or the texts become too long.
    """
    length = TextLength("job")

    def expanded(inside: object, path: str) -> object:
        if isinstance(inside, str):
            return _expand(inside, variables, lambda _match: path, length, lambda: path)
        if isinstance(inside, dict):
            return {
                key: expanded(value, f"{path}.{key}" if path else str(key))
                for key, value in inside.items()
            }
        if isinstance(inside, list):
            return [expanded(value, f"{path}[{n}]") for n, value in enumerate(inside)]
        return inside

    return expanded(data, "")


class TextLength:
    """Counts the characters of a job before they are made."""

    def __init__(self, source: str) -> None:
        self._source, self._count = source, 0

    def add(self, count: int, path_of: Callable[[], str] | None = None) -> None:
        """
        Raises:
            JobFileError: there are too many; names the place of the text that is one too much.
        """
        self._count += count
        if self._count > MOST_TEXT:
            where = self._source if path_of is None else path_of()
            raise JobFileError(
                f"{where}: the job has more than {MOST_TEXT >> 20} MiB of text with its variables put in; "
                "shorten their values ('-p'), or split the job"
            )


def _expand(
    text: str,
    variables: Mapping[str, str],
    path_of: Callable[[re.Match[str]], str],
    length: TextLength,
    whole: Callable[[], str] | None = None,
) -> str:
    length.add(len(text), whole)
    unset: dict[str, re.Match[str]] = {}
    for match in _BRACED_OR_BARE.finditer(text):
        if match.group(1) and match.group(1) not in variables:
            unset.setdefault(match.group(1), match)
    if unset:
        names = list(unset)
        names_shown = ", ".join(f"${{{name}}}" for name in names[:_MOST_NAMES])
        names_shown += f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        verb = "is" if len(names) == 1 else "are"
        raise JobFileError(
            f'{path_of(unset[names[0]])}: {names_shown} {verb} not set; give -p "-D{names[0]}=..." or '
            f"variables={{{names[0]!r}: ...}}. A secret may be given as ${{env:NAME}} or ${{file:PATH}}"
        )

    def value(match: re.Match[str]) -> str:
        replacement = variables.get(match.group(1) or match.group(2), match.group())
        length.add(len(replacement), lambda: path_of(match))
        return replacement

    return _BRACED_OR_BARE.sub(value, text)
