"""Texts from outside as text: names, values and messages of servers may not move a cursor or forge a line.

`one_line` and `one_line_json` are the only functions that escape. Errors and our loggers call them where they are made;
the display and the command line, where they print. The page of the service has the same in `page.js`.
"""

import json
import logging
import re
from collections.abc import Mapping
from numbers import Number
from typing import Any

__all__ = ["LineFormatter", "log_in_lines", "log_of", "one_line", "one_line_json", "shortened"]

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters, with line breaks and the begin of a terminal's codes
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # line breaks of Unicode, and changes of direction
    "\ud800-\udfff\ufeff\U000e0000-\U000e007f]"  # halves of characters, and characters that are never seen
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def one_line(text: object) -> str:
    r"""The text in one line of printable characters: others are shown as `\n`, `\x1b` or `\u202e`.

    A text that is shown so already stays the same.
    """
    return _UNSAFE.sub(_escape, str(text))


def one_line_json(text: str) -> str:
    r"""JSON of one line, in which characters that are not printed are escapes of JSON: the same data."""
    return _UNSAFE.sub(_escape_json, text)


def shortened(text: str, most: int) -> str:
    """The text, or of a longer one its beginning and its end: a value may differ in its last digit."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 3]}...{text[-end:]}"


def _escape_json(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else json.dumps(match[0])[1:-1]


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def log_of(name: str) -> logging.Logger:
    """The logger of a module. What is filled into its messages is shown in one line, whatever formats the records."""
    logger = logging.getLogger(name)
    if _in_one_line not in logger.filters:
        logger.addFilter(_in_one_line)
    return logger


def _in_one_line(record: logging.LogRecord) -> bool:
    if isinstance(record.args, Mapping):
        record.args = {name: _shown(value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(_shown(value) for value in record.args)
    else:
        record.msg = _shown(record.msg)
    return True


def _shown(value: object) -> object:
    if isinstance(value, str):
        return one_line(value)
    return value if value is None or isinstance(value, Number) else _InOneLine(value)


class _InOneLine:
    """An object in a message, such as an error of a driver: `%s` and `%r` show it in one line."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return one_line(self._value)

    def __repr__(self) -> str:
        return one_line(repr(self._value))


class LineFormatter(logging.Formatter):
    """Formats the records of all libraries: a message is one line, as is each line of a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as in the base class
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as in the base class
        return "\n".join(map(one_line, super().formatException(ei).split("\n")))


def log_in_lines(level: int) -> None:
    """Let this program log from `level` on, to the standard error, if it does not log yet."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
