"""Patterns of names: `*` is any text, `?` any character, all others stand for themselves."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

__all__ = ["Labels", "Names", "is_pattern", "matches"]


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    expression = "".join(
        ".*" if letter == "*" else "." if letter == "?" else re.escape(letter) for letter in pattern
    )
    return re.compile(expression, re.IGNORECASE | re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` matches the whole name, without regard to case."""
    return _compiled(pattern).fullmatch(name) is not None


def is_pattern(text: str) -> bool:
    """Whether `text` may match several names."""
    return "*" in text or "?" in text


class Names:
    """Names and patterns. A table finds its name among thousands by one look, and is compared with patterns only."""

    def __init__(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        self.patterns = [key for key in keys if is_pattern(key)]
        self._compiled = [_compiled.__wrapped__(key) for key in self.patterns]
        self._by_name: dict[str, list[str]] = {}
        for key in keys:
            if not is_pattern(key):
                self._by_name.setdefault(key.lower(), []).append(key)

    def patterns_of(self, names: Sequence[str]) -> list[str]:
        """The patterns that match one of the names, in their order."""
        return [
            key
            for key, pattern in zip(self.patterns, self._compiled, strict=True)
            if any(pattern.fullmatch(name) for name in names)
        ]

    def same_as(self, names: Sequence[str]) -> list[str]:
        """The names that are equal to one of `names`, without regard to case."""
        return [key for name in names for key in self._by_name.get(name.lower(), ())]

    def __contains__(self, name: str) -> bool:
        """Whether one of these is or matches `name`."""
        return name.lower() in self._by_name or any(
            pattern.fullmatch(name) for pattern in self._compiled
        )


class Labels:
    """The labels of tables, in which a `*` is a letter: whether a name or a pattern matches one."""

    def __init__(self, labels: Iterable[str]) -> None:
        self._labels = list(labels)
        self._folded = {label.lower() for label in self._labels}

    def some(self, name: str) -> bool:
        if not is_pattern(name):
            return name.lower() in self._folded
        return any(matches(name, label) for label in self._labels)
