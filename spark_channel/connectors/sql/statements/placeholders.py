"""Placeholders: the `?` of a statement in the database's own syntax."""

import itertools
import re
from collections.abc import Callable

__all__ = [
    "marked",
]

_MARK = re.compile(r"""("[^"]*"|`[^`]*`|'[^']*')|\?""")


def marked(sql: str, mark: Callable[[int], str]) -> str:
    """`sql` with `mark(n)` for its n-th `?`, counted from 1; names and texts in quotes keep theirs."""
    numbers = itertools.count(1)
    return _MARK.sub(lambda match: match[1] or mark(next(numbers)), sql)
