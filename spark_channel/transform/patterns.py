"""Java's date patterns, which job files hold, as strptime's."""

import re

from spark_channel.errors import OptionError

__all__ = ["strptime_pattern"]

_LETTERS = {
    "yyyy": "%Y",
    "yy": "%y",
    "MM": "%m",
    "M": "%m",
    "MMM": "%b",
    "MMMM": "%B",
    "dd": "%d",
    "d": "%d",
    "HH": "%H",
    "H": "%H",
    "hh": "%I",
    "mm": "%M",
    "m": "%M",
    "ss": "%S",
    "s": "%S",
    "a": "%p",
    "EEE": "%a",
    "EEEE": "%A",
}
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([^A-Za-z'])")


def strptime_pattern(pattern: str) -> str:
    """`yyyy-MM-dd HH:mm:ss` -> `%Y-%m-%d %H:%M:%S`; text in single quotes is literal.

    Raises:
        OptionError: a letter without a counterpart (`S`, `Z`, ...), or an unterminated quote.
    """
    made, position = [], 0
    for token in _TOKEN.finditer(pattern):
        if token.start() != position:
            break
        position = token.end()
        quoted, letter, other = token.groups()
        if quoted is not None:
            made.append((quoted.replace("''", "'") or "'").replace("%", "%%"))
        elif letter is None:
            made.append(other.replace("%", "%%"))
        elif token.group() in _LETTERS:
            made.append(_LETTERS[token.group()])
        else:
            raise _unknown(pattern, token.group())
    if position != len(pattern) or not pattern:
        raise _unknown(pattern, pattern[position:])
    return "".join(made)


def _unknown(pattern: str, part: str) -> OptionError:
    takes = "a date pattern of " + ", ".join(_LETTERS)
    return OptionError(
        f"date pattern {pattern!r} has {part!r}, which cannot be read; it takes {takes}",
        option="format", got=pattern, takes=takes,
    )  # fmt: skip
