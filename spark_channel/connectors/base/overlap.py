"""Detects writes to the table that their own source reads.

`commit=task` makes rows visible while other tasks still read. If the source is the target, those tasks read them, and
write them again. A write that empties the target first leaves the source nothing to read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

__all__ = [
    "MOST_COUNTED",
    "FreeConnections",
    "Overlap",
    "Stored",
    "counted",
    "most_overlap",
    "overlap",
    "server_facts",
]

MOST_COUNTED = 10_000
"""A plan counts what an overwrite replaces up to this number, so it costs little, however large the target is."""


class Overlap(IntEnum):
    """Whether a source reads what a target writes."""

    NONE = 0
    PERHAPS = 1
    SURE = 2


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a reader's rows come from, or a writer's rows go, as the system itself names it. Plain data.

    `system` is the kind of system; connectors of one kind use one name. `servers` are names that the server gives
    itself, whatever the url calls it; any one in common makes two the same. `parts` are its tables,
    also those behind a view. `complete`: nothing else is read or written.
    """

    system: str
    servers: frozenset[str]
    parts: frozenset[tuple[str, ...]]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class FreeConnections:
    """How many more connections a server takes from a login.

    `server` is a name that the server gives itself, equal for every login. `place` is for messages, as is `product`,
    the server's kind and version.
    """

    server: str
    place: str
    count: int
    product: str = ""


class _Counts(Protocol):
    def free_connections(self) -> FreeConnections | None: ...


def server_facts(end: _Counts) -> str:
    """The server of a reader or a writer, and how many connections it has left, for people; "" = it does not say."""
    free = end.free_connections()
    if free is None:
        return ""
    return f"{free.product or free.place}, {free.count} connections free"


def overlap(source: Stored, target: Stored) -> Overlap:
    """Whether `source` reads what is written to `target`."""
    if source.system != target.system:
        return Overlap.NONE
    is_known = bool(source.servers and target.servers)
    if is_known and source.servers.isdisjoint(target.servers):
        return Overlap.NONE
    if not source.parts.isdisjoint(target.parts):
        return Overlap.SURE if is_known else Overlap.PERHAPS
    return Overlap.NONE if source.complete and target.complete else Overlap.PERHAPS


def most_overlap(sources: Iterable[Stored], target: Stored) -> Overlap:
    """The surest of what the sources have in common with `target`."""
    return max((overlap(source, target) for source in sources), default=Overlap.NONE)


def counted(count: int, noun: str) -> str:
    """How many, for people; `noun` is the noun in the singular. A count above `MOST_COUNTED` has not ended."""
    if count > MOST_COUNTED:
        return f"more than {MOST_COUNTED} {noun}s"
    return f"{count} {noun}{'' if count == 1 else 's'}"
