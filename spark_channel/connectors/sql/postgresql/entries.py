"""By which entries a publication has a table: the log lacks the changes of the time without one. Pure.

The server decodes each change with the publication as it was then, so what it has now says nothing of changes before:
a table that left and came back lacks those between. But it comes back by another entry. So a stream keeps the
entries in its checkpoints: as long as one of them is there, the table never left. So it is with the operations that
the publication has.
"""

__all__ = ["OPERATIONS", "Entries", "differ", "lost_operations", "read_entries", "read_operations"]

OPERATIONS = {"i": "insert", "u": "update", "d": "delete", "t": "truncate"}
"""What a publication may have, each by the letter that a token has for it."""

Entries = tuple[str, ...]
"""Of one table: numbers of catalog rows, each with a letter for its catalog. Empty: not known."""


def read_entries(found: object) -> Entries:
    """Entries as a token has them.

    Raises:
        ValueError: it was damaged.
    """
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise ValueError(found)
    return tuple(found)


def read_operations(found: object) -> str:
    """Operations as a token has them; "" = not known.

    Raises:
        ValueError: it was damaged.
    """
    if not isinstance(found, str) or not set(found) <= set(OPERATIONS):
        raise ValueError(found)
    return found


def lost_operations(was: str, now: str) -> list[str]:
    """Those that a publication had, and does not have any more."""
    return [name for letter, name in OPERATIONS.items() if letter in was and letter not in now]


def differ(was: Entries, now: Entries) -> bool:
    """Whether a table that was in its publication by some entries, and is by others now, may have left it between."""
    return bool(was and now) and set(was).isdisjoint(now)
