"""A model of chunks: a table with concurrent writers, its log, and a tunnel's client that reads both.

A commit is two steps, as in PostgreSQL: a transaction is in the log first, and statements see it later; its row locks
last until then. Every call that the client makes lets writers take steps before and after it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spark_channel.connectors.sql.feed.incremental_snapshot import (
    BaseProgress,
    ChunkWindow,
    Key,
    read_window,
)

Event = tuple[str, int, int | None]
"""What happened to a key, and its value; the key of a truncate is -1."""


@dataclass
class Transaction:
    number: int
    events: list[Event] = field(default_factory=list)
    commit: int | None = None
    waits: int = 0
    """Steps that it waits for a standby, between its commit in the log and the moment at which others see it."""


@dataclass
class Table:
    """`log`: committed transactions, in the order of their commits, a position each."""

    chance: random.Random
    keys: int
    position: int = 100
    numbers: int = 10
    rows: dict[int, int] = field(default_factory=dict)
    open: list[Transaction] = field(default_factory=list)
    log: list[Transaction] = field(default_factory=list)
    locks: dict[int, int] = field(default_factory=dict)
    values: int = 0
    can_truncate: bool = True
    is_quiet: bool = False

    def step(self) -> None:
        """One step of one writer."""
        if self.is_quiet:
            return
        what = self.chance.random()
        if what < 0.2 and len(self.open) < 4:
            self.open.append(Transaction(self._number()))
        elif self.open:
            one = self.chance.choice(self.open)
            if one.commit is not None and one.waits:
                one.waits -= 1
            elif one.commit is not None:
                self._end(one)
            elif what < 0.7:
                self._write(one)
            elif what < 0.75:  # rolled back
                one.events.clear()
                self._end(one)
            else:
                self.position += 10
                one.commit = self.position
                one.waits = self.chance.randrange(30) if self.chance.random() < 0.2 else 0
                self.log.append(one)

    def settle(self) -> None:
        """All transactions end; those that were not committed are rolled back."""
        for one in list(self.open):
            if one.commit is None:
                one.events.clear()
            self._end(one)

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _write(self, one: Transaction) -> None:
        if self.can_truncate and self.chance.random() < 0.03:
            others = [each for each in self.locks.values() if each != one.number]
            if not others:
                one.events.append(("truncate", -1, None))
                self.locks.update(dict.fromkeys(range(self.keys), one.number))
            return
        key = self.chance.randrange(self.keys)
        if self.locks.setdefault(key, one.number) != one.number:
            return  # it would wait
        seen = dict(self.rows)
        play(seen, one.events)
        self.values += 1
        if key not in seen:
            one.events.append(("insert", key, self.values))
        elif self.chance.random() < 0.3:
            one.events.append(("delete", key, None))
        else:
            other = self.chance.randrange(self.keys)
            if other not in seen and self.locks.setdefault(other, one.number) == one.number:
                one.events += [
                    ("delete", key, None),
                    ("update", other, self.values),
                ]  # its key changes
            else:
                one.events.append(("update", key, self.values))

    def _end(self, one: Transaction) -> None:
        if one.commit is not None:
            play(self.rows, one.events)
        self.open.remove(one)
        self.locks = {key: number for key, number in self.locks.items() if number != one.number}


def play(rows: dict[int, int], events: list[Event]) -> None:
    for what, key, value in events:
        if what == "truncate":
            rows.clear()
        elif what == "delete":
            rows.pop(key, None)
        else:
            assert value is not None
            rows[key] = value


@dataclass
class ModelChunk:
    rows: list[tuple[int, int]]
    last: Key | None
    unseen: frozenset[int]

    @property
    def nbytes(self) -> int:
        return len(self.rows)

    def sees(self, transaction: int) -> bool:
        return transaction not in self.unseen

    def kept(self, window: ChunkWindow) -> Iterator[Event]:
        for key, value in self.rows:
            if not window.is_emptied and (key,) not in window.keys:
                yield "read", key, value


class ModelLog:
    """`confirmed`: the log no longer contains transactions before it."""

    def __init__(self, table: Table, confirmed: int) -> None:
        self.table = table
        self.confirmed = confirmed

    def others(self) -> None:
        for _ in range(self.table.chance.randrange(6)):
            self.table.step()

    def mark(self) -> int:
        self.others()
        self.table.position += 10
        found = self.table.position
        self.others()
        return found

    def running(self) -> list[int]:
        self.others()
        return [each.number for each in self.table.open]

    def bound(self, lower: Key | None, upper: Key, rows: int) -> Key | None:
        self.others()
        found = self._between(lower, upper)
        return (found[rows - 1][0],) if len(found) >= rows else None

    def chunk(self, lower: Key | None, upper: Key, rows: int) -> ModelChunk:
        self.others()
        found = self._between(lower, upper)[:rows]
        # Transactions that begin later have higher numbers, and are not seen either.
        unseen = {each.number for each in self.table.open} | set(
            range(self.table.numbers + 1, self.table.numbers + 500)
        )
        last = (found[-1][0],) if len(found) == rows else None
        made = ModelChunk(found, last, frozenset(unseen))
        self.others()
        return made

    def events(self, after: int, upto: int, high: int, window: ChunkWindow) -> Iterator[Event]:
        self.others()
        for each in list(self.table.log):
            assert each.commit is not None
            if each.commit < self.confirmed or each.commit >= max(high, upto):
                continue
            holds = window.holds(each.commit >= after, each.number)
            for event in each.events:
                if holds and event[0] == "truncate":
                    window.emptied()
                elif holds:
                    window.changed((event[1],))
                if after <= each.commit < upto:
                    yield event
        self.others()

    def _between(self, lower: Key | None, upper: Key) -> list[tuple[int, int]]:
        low = -1 if lower is None else lower[0]
        return sorted(
            (key, value) for key, value in self.table.rows.items() if low < key <= upper[0]
        )


@dataclass
class Client:
    """Reads ranges as a feed does, dies at any moment, and reads a range that was planned again."""

    table: Table
    log: ModelLog
    at: int
    base: BaseProgress | None
    out: list[Event] = field(default_factory=list)
    ranges: list[tuple[int, list[Event]]] = field(default_factory=list)
    """Where each range begins, and what it delivered."""

    @classmethod
    def of(cls, table: Table) -> "Client":
        """All that is committed before it is visible, as a new slot makes sure."""
        table.settle()
        start = table.position = table.position + 10
        log = ModelLog(table, start)
        log.others()
        until = max(table.rows, default=None)
        base = None if until is None else BaseProgress(None, (until,), start, start)
        return cls(table, log, start, base)

    def range(self, chance: random.Random) -> None:
        """Plan a range, read it until it is delivered, and confirm it now or later."""
        log, base, start = self.log, self.base, self.at
        log.others()
        end = max(start, self.table.position - (30 if chance.random() < 0.2 else 0))
        chunk: dict[str, Any] | None = None
        after = base
        if base is not None:
            log.mark()
            after = base.confirmable(end, log.running())
            if chance.random() < 0.9:
                rows = chance.randrange(1, 8)
                bound = log.bound(base.after, base.until, rows)
                chunk = {
                    "lower": base.after,
                    "upper": bound or base.until,
                    "rows": chance.randrange(1, 6),
                }
                after = after.advanced(bound, rows)
        while True:
            if chunk is None:
                found = list(log.events(start, end, end, ChunkWindow(lambda _: True)))
            else:
                found = list(read_window(log, start, end, **chunk))
            if chance.random() < 0.8:
                break  # else it died before all was delivered, and reads it again
            for _ in range(chance.randrange(20)):
                self.table.step()
        self.ranges.append((start, found))
        self.out += found
        self.at, self.base = end, after
        if chance.random() < 0.8:
            log.confirmed = max(log.confirmed, end if after is None else after.safe)
