"""Positions in a server's binary log as sets of transactions (GTIDs), of MariaDB and of MySQL. Pure.

A set names the same transactions on every server of a replication topology, so a position outlives a fail-over.
MariaDB keeps the last transaction of each domain; MySQL keeps intervals of numbers for each server that wrote.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

__all__ = ["GtidSet", "MariadbGtids", "MysqlGtids", "Remaining", "TaggedGtidError", "gtids_of"]

_MARIADB = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")

Gtid = tuple[Any, ...]
"""MariaDB: (domain, server, number). MySQL: (uuid of the server, number)."""


class TaggedGtidError(ValueError):
    """A transaction of the set has a tag (MySQL 8.3), and such positions are not read."""


class GtidSet(ABC):
    """Transactions of a log. `parse` raises ValueError for a text that is none."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """The set that a server writes as `text`."""

    @staticmethod
    @abstractmethod
    def name(gtid: Gtid) -> str:
        """One transaction as the server writes it."""

    @abstractmethod
    def add(self, gtid: Gtid) -> None:
        """Add a transaction, in the order of the log."""

    @abstractmethod
    def covers(self, other: Self) -> bool:
        """Whether every transaction of `other` is in this set."""

    @abstractmethod
    def meet(self, other: Self) -> Self:
        """The transactions that are in both."""

    @abstractmethod
    def union(self, other: Self) -> Self:
        """The transactions that are in one of them, of two positions in one log."""

    @abstractmethod
    def remaining(self, upto: Self) -> "Remaining":
        """The transactions that a reader with this set must read to reach `upto`."""

    def copy(self) -> Self:
        return self.parse(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class Remaining(ABC):
    """The transactions of a range that were not read yet."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether all were read."""

    @abstractmethod
    def takes(self, gtid: Gtid) -> bool:
        """Whether `gtid`, the next of the log, belongs to the range."""


class MariadbGtids(GtidSet):
    """`0-1-270,1-3-7`: in each domain everything up to this transaction, in the order of the log."""

    def __init__(self, last: dict[int, tuple[int, int]]) -> None:
        self.last = last

    @classmethod
    def parse(cls, text: str) -> Self:
        last = {}
        for part in filter(None, (text_of_one.strip() for text_of_one in text.split(","))):
            match = _MARIADB.fullmatch(part)
            if match is None or int(match[1]) in last:
                raise ValueError(text)
            last[int(match[1])] = (int(match[2]), int(match[3]))
        return cls(last)

    @staticmethod
    def name(gtid: Gtid) -> str:
        return "-".join(map(str, gtid))

    def add(self, gtid: Gtid) -> None:
        domain, server, number = gtid
        self.last[domain] = (server, number)

    def covers(self, other: Self) -> bool:
        return all(
            domain in self.last and self.last[domain][1] >= number
            for domain, (_, number) in other.last.items()
        )

    def meet(self, other: Self) -> Self:
        both = self.last.keys() & other.last.keys()
        return type(self)(
            {
                domain: min(self.last[domain], other.last[domain], key=lambda at: at[1])
                for domain in both
            }
        )

    def union(self, other: Self) -> Self:
        union = dict(other.last)
        for domain, at in self.last.items():
            union[domain] = max(at, union.get(domain, at), key=lambda pair: pair[1])
        return type(self)(union)

    def remaining(self, upto: Self) -> Remaining:
        return _MariadbRemaining(
            {
                domain: (domain, *at)
                for domain, at in upto.last.items()
                if self.last.get(domain) != at
            }
        )

    def __str__(self) -> str:
        return ",".join(
            f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items())
        )


class _MariadbRemaining(Remaining):
    """A domain ends with exactly its last transaction: numbers alone need not grow where two servers wrote to it."""

    def __init__(self, ends: dict[int, Gtid]) -> None:
        self._ends = ends

    @property
    def done(self) -> bool:
        return not self._ends

    def takes(self, gtid: Gtid) -> bool:
        end = self._ends.get(gtid[0])
        if end == gtid:
            del self._ends[gtid[0]]
        return end is not None


class MysqlGtids(GtidSet):
    """`3E11FA47-...:1-5:11,...`: numbers of transactions for each server that wrote them."""

    def __init__(self, spans: dict[str, list[tuple[int, int]]]) -> None:
        self.held = spans

    @classmethod
    def parse(cls, text: str) -> Self:
        held_spans: dict[str, list[tuple[int, int]]] = {}
        for part in filter(
            None, (text_of_one.strip() for text_of_one in text.lower().replace("\n", "").split(","))
        ):
            server, *intervals = part.split(":")
            if not _UUID.fullmatch(server) or not intervals:
                raise ValueError(text)
            for interval in intervals:
                match = _INTERVAL.fullmatch(interval.strip())
                if match is None and _TAG.fullmatch(interval.strip()):
                    raise TaggedGtidError(interval.strip())
                if match is None:
                    raise ValueError(text)
                held_spans.setdefault(server, []).append((int(match[1]), int(match[2] or match[1])))
        return cls({server: _merged(spans) for server, spans in held_spans.items()})

    @staticmethod
    def name(gtid: Gtid) -> str:
        return f"{gtid[0]}:{gtid[1]}"

    def add(self, gtid: Gtid) -> None:
        server, number = gtid
        spans = self.held.setdefault(server, [])
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            self.held[server] = _merged([*spans, (number, number)])

    def covers(self, other: Self) -> bool:
        return self.meet(other) == other

    def meet(self, other: Self) -> Self:
        common = {}
        for server, spans in self.held.items():
            both = [
                (max(first, start), min(last, end))
                for first, last in spans
                for start, end in other.held.get(server, ())
                if max(first, start) <= min(last, end)
            ]
            if both:
                common[server] = _merged(both)
        return type(self)(common)

    def union(self, other: Self) -> Self:
        spans = {
            server: _merged([*self.held.get(server, []), *other.held.get(server, [])])
            for server in self.held.keys() | other.held.keys()
        }
        return type(self)(spans)

    def remaining(self, upto: Self) -> Remaining:
        remaining = {}
        for server, spans in upto.held.items():
            spans_left = list(_without(spans, self.held.get(server, [])))
            if spans_left:
                remaining[server] = spans_left
        return _MysqlRemaining(remaining)

    def __str__(self) -> str:
        return ",".join(
            ":".join(
                [
                    server,
                    *(str(first) if first == last else f"{first}-{last}" for first, last in spans),
                ]
            )
            for server, spans in sorted(self.held.items())
        )


class _MysqlRemaining(Remaining):
    """Transactions of one server may be in the log in another order than that of their numbers."""

    def __init__(self, remaining: dict[str, list[tuple[int, int]]]) -> None:
        self._left = remaining
        self._count = sum(last - first + 1 for spans in remaining.values() for first, last in spans)

    @property
    def done(self) -> bool:
        return self._count == 0

    def takes(self, gtid: Gtid) -> bool:
        server, number = gtid
        takes = any(first <= number <= last for first, last in self._left.get(server, ()))
        self._count -= takes
        return takes


def gtids_of(is_mariadb: bool) -> type[GtidSet]:
    return MariadbGtids if is_mariadb else MysqlGtids


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _without(
    spans: list[tuple[int, int]], others: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    for first, last in spans:
        for start, end in others:
            if end < first or start > last:
                continue
            if start > first:
                yield first, start - 1
            first = end + 1
        if first <= last:
            yield first, last
