"""From a job file's text to plain JSON data, with what DataX's own parser forgives."""

import json
import re
from typing import Any

from spark_channel.errors import JobFileError
from spark_channel.jobs.variables import expand_text

__all__ = ["parse_text"]

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_NOT_NEWLINE = re.compile(r"[^\n]")


def parse_text(text: str, variables: dict[str, str], source: str) -> Any:
    """Parse JSON with comments and commas before a closing bracket, and `${var}` put in as text.

    Raises:
        JobFileError: broken JSON, with line and column; a variable that is not set.
    """
    bare = expand_text(_COMMENT.sub(_blank, text.removeprefix("\ufeff")), variables, source)
    try:
        return json.loads(_LAST_COMMA.sub(_blank, bare), parse_constant=_no_constant)
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
    found = match.group()
    return found if found.startswith('"') else _NOT_NEWLINE.sub(" ", found)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")
