"""The rows of COPY's binary format, as they are sent: the marks at both ends, and bytes between them. Pure.

The format of a row is in https://www.postgresql.org/docs/current/sql-copy.html.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["ELEMENT", "HEADER", "TRAILER", "CopyRows", "bits"]


HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
ELEMENT = b"element"
"""In the metadata of a list's field: PostgreSQL's number (oid) for the type of its elements."""
_BIT_BYTES = 8_192
"""As libpq sends them."""


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Rows as they are sent between `HEADER` and `TRAILER`, with the names of their columns."""

    names: Sequence[str]
    count: int
    pieces: Sequence[memoryview]


def bits(pieces: Sequence[memoryview]) -> Iterator[memoryview]:
    """The bytes in parts, each of which is sent at once."""
    for piece in pieces:
        for at in range(0, len(piece), _BIT_BYTES):
            yield piece[at : at + _BIT_BYTES]
