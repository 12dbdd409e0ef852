"""Patterns of names: `*` is any text, `?` any character, all others stand for themselves."""

import re
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["is_pattern", "matches", "selected"]


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    made = "".join(
        ".*" if letter == "*" else "." if letter == "?" else re.escape(letter) for letter in pattern
    )
    return re.compile(made, re.IGNORECASE | re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` matches the whole name, without regard to case."""
    return _compiled(pattern).fullmatch(name) is not None


def is_pattern(text: str) -> bool:
    """Whether `text` may match several names."""
    return "*" in text or "?" in text


def selected(patterns: Sequence[str], name: str) -> bool:
    """Whether `--select` takes the name; without patterns it takes all."""
    return not patterns or any(matches(each, name) for each in patterns)
