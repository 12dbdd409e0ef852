"""By which entries a publication has a table: the log lacks the changes of the time without one. Pure.

The server decodes each change with the publication as it was then, so what it has now says nothing of changes before: a
table that left and came back lacks those between. But it comes back by another entry. So a stream keeps the entries in
its checkpoints: as long as one of them is there, the table never left.
"""

__all__ = ["Entries", "differ", "read_entries"]


Entries = tuple[str, ...]
"""One table's numbers of catalog rows, each with a letter for its catalog, and behind "@" the transaction that last
changed the publication's options. Empty: not known."""


def read_entries(noted: object) -> Entries:
    """Entries as a token has them.

    Raises:
        ValueError: it was damaged.
    """
    if not isinstance(noted, list | tuple) or not all(isinstance(entry, str) for entry in noted):
        raise ValueError(noted)
    return tuple(noted)


def differ(was: Entries, now: Entries) -> bool:
    """Whether a table that was in its publication by some entries, and is by others now, may have left it between.

    Then the log lacks changes, and does not say so: findings/postgresql-publication-gap.sh
    Entries of an older version have no transaction.
    """
    if not all("@" in entry for entry in was):
        now = tuple(entry.partition("@")[0] for entry in now)
    return bool(was and now) and set(was).isdisjoint(now)
