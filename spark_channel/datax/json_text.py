"""From a job file's text to plain JSON data, with what DataX's own parser forgives."""

import json
import re
from pathlib import Path
from typing import Any

from spark_channel.datax.variables import MOST_TEXT, TextLength, expand_text
from spark_channel.errors import JobFileError

__all__ = ["parse_text", "read_job_text"]


_STRING = r"""(?:"(?:\\.|[^"\\])*+"|'(?:\\.|[^'\\])*+')"""
_UNCLOSED = r"""["'].*|/\*.*"""
"""A text or a comment that does not end takes the rest: it is looked at once, not again from each quote in it."""
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*+|/\*.*?\*/|(?P<unclosed>{_UNCLOSED})", re.DOTALL)
_LOOSE = re.compile(
    rf"{_STRING}|(?P<unclosed>{_UNCLOSED})|(?P<commas>,[\s,]*+)|(?<![\w$-])[A-Za-z_$][\w$-]*+(?=\s*+:)",
    re.DOTALL,
)
_NOT_NEWLINE = re.compile(r"[^\n]")
_INSIDE = re.compile(r"""\\(?:x([0-9A-Fa-f]{2})|(.))|(")""", re.DOTALL)
_ESCAPED = {"'": "'", "v": "\\u000b", "0": "\\u0000"}


def read_job_text(path: Path) -> str:
    """The text of a job file, of which no more is read than a job may have.

    Raises:
        OSError, ValueError: it cannot be read, or is not UTF-8.
    """
    with path.open(encoding="utf-8") as file:
        return file.read(MOST_TEXT + 1)


def parse_text(text: str, variables: dict[str, str], source: str) -> Any:
    """Parse JSON with what DataX's own parser forgives, and `${var}` put in as text.

    It forgives comments, commas too many, single quotes, keys without quotes, `\\x01`, and line ends in texts:
    findings/fastjson-forgives.sh

    Raises:
        JobFileError: broken JSON, with line and column; a variable that is not set.
    """
    TextLength(source).add(len(text))
    bare = expand_text(_COMMENT.sub(_blank, text.removeprefix("\ufeff")), variables, source)
    try:
        return json.loads(_LOOSE.sub(_strict, bare), parse_constant=_no_constant, strict=False)
    except json.JSONDecodeError as error:
        raise JobFileError(
            f"{source}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except RecursionError:
        raise JobFileError(f"{source}: nested too deeply") from None
    except ValueError as error:
        raise JobFileError(f"{source}: not JSON: {error}") from None


def _blank(match: re.Match[str]) -> str:
    """Strings stay; the rest becomes spaces, so that lines and columns stay what they are."""
    piece = match.group()
    is_kept = piece[0] in "\"'" or match["unclosed"]
    return piece if is_kept else _NOT_NEWLINE.sub(" ", piece)


def _strict(match: re.Match[str]) -> str:
    """A string or a key as JSON writes it; a comma too many as a space."""
    piece = match.group()
    if match["unclosed"]:
        return piece
    if match["commas"]:
        ends = match.string[match.end() : match.end() + 1] in ("}", "]")
        last = len(piece) if ends else piece.rindex(",")
        return piece[:last].replace(",", " ") + piece[last:]
    if piece[0] not in "\"'":
        return f'"{piece}"'
    return f'"{_INSIDE.sub(_escape, piece[1:-1])}"'


def _escape(match: re.Match[str]) -> str:
    code, sign, quote = match.groups()
    if quote:  # between single quotes
        return '\\"'
    return f"\\u00{code}" if code else _ESCAPED.get(sign, match.group())


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")
