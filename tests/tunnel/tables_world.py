"""A feed of several tables in memory, behind a tunnel's own options and store."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import TABLE, ChangeFeed, FeedLag, FeedLimit
from spark_channel.errors import TunnelError
from spark_channel.planning import Split
from spark_channel.tunnel import Delivery, Tunnel
from spark_channel.tunnel.source import StreamSource
from tests.tunnel.test_worker_consume import run

Key = tuple[str, int]
"""A delivery's channel and sequence."""


class Log:
    """Changes of tables in commit order: (table, number). `reads`: the ranges that were read, each time."""

    def __init__(
        self, changes: Sequence[tuple[str, int]], tables: Sequence[str] = (), width: int = 1000
    ) -> None:
        self.changes = list(changes)
        self.tables = list(tables) or sorted({table for table, _ in changes})
        self.width = width
        self.reads: list[tuple[int, int]] = []
        self.settled = 0
        self.before_row: Callable[[int], None] = lambda place: None
        self.at_end: Callable[[], None] = lambda: None

    def start(self) -> Token:
        return {"at": 0, "tables": self.tables}

    def rows(self, table: str, after: int, upto: int) -> list[int]:
        return [number for name, number in self.changes[after:upto] if name == table]


class LogFeed(ChangeFeed):
    has_tables = True

    def __init__(self, log: Log) -> None:
        self.log = log

    def schema(self) -> pa.Schema:
        return pa.schema([(TABLE, pa.string())])

    def earliest(self) -> list[Token]:
        return [self.log.start()]

    def now(self) -> list[Token]:
        return [{**self.log.start(), "at": len(self.log.changes)}]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        end = min(len(self.log.changes), after["at"] + (limit.rows or 10_000))
        if end == after["at"]:
            self.log.at_end()
            return after
        return {**after, "at": end}

    def reaches(self, token: Token, end: Token) -> bool:
        return bool(token["at"] >= end["at"])

    def changes(self, after: Token, upto: Token) -> list[Split]:
        return [Split({"after": after["at"], "upto": upto["at"], "tables": list(after["tables"])})]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        after, upto = int(split.params["after"]), int(split.params["upto"])
        self.log.reads.append((after, upto))
        place = after
        while place < upto:
            self.log.before_row(place)
            table = self.log.changes[place][0]
            end = place
            while end < min(upto, place + self.log.width) and self.log.changes[end][0] == table:
                end += 1
            numbers = [number for _, number in self.log.changes[place:end]]
            place = end
            if table in split.params["tables"]:
                yield pa.record_batch(
                    {"n": pa.array(numbers, pa.int64()), TABLE: [table] * len(numbers)}
                )

    def tables(self, token: Token) -> Sequence[str]:
        return tuple(token["tables"])

    def joining(self, table: str, *, again: bool) -> Callable[[Token], Token]:
        def changed(token: Token) -> Token:
            if table in token["tables"]:
                raise TunnelError(f"the tunnel has table {table!r} already")
            return {**token, "tables": [*token["tables"], table]}

        return changed

    def settle(self, upto: Token) -> None:
        self.log.settled = max(self.log.settled, upto["at"])

    def lag(self, token: Token) -> FeedLag:
        return FeedLag(len(self.log.changes) - token["at"])


class Shop:
    """A tunnel of a log."""

    def __init__(self, folder: Path, log: Log, **options: str) -> None:
        self.path, self.log = folder / "shop.db", log
        if not self.path.exists():
            run(self.path, "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        self.options = {
            "path": str(self.path),
            "dbtable": "orders",
            "cursorColumn": "id",
            "tunnelType": "stream",
            "startingOffsets": "earliest",
            "heartbeatInterval": "5",
            "maxRetryInterval": "0.02",
            **options,
        }
        self.tunnel.create()

    @property
    def tunnel(self) -> Tunnel:
        """Another one each time, as of another process."""
        return Tunnel("shop", self.options, store=str(self.path.parent / "tunnels.db"))

    @property
    def at(self) -> int:
        """How far the checkpoints of all stream channels are."""
        return int(
            max(each.token["at"] for each in self.tunnel.store.state("shop").channels.values())
        )


class Copy:
    """A target: the rows of each table, in the order in which they came, and each delivery."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.rows: dict[str, list[int]] = {}
        self.seen: dict[Key, list[int]] = {}
        self.done: Counter[Key] = Counter()
        self.lock = threading.Lock()

    def process(self, delivery: Delivery) -> None:
        """Take it, unless it is there already, as a target's ledger would."""
        self.keep(delivery, *self.look(delivery))

    def keep(self, delivery: Delivery, key: Key, rows: list[int]) -> None:
        with self.lock:
            if not self.done[key]:
                self.rows.setdefault(delivery.table, []).extend(rows)
            self.done[key] += 1

    def look(self, delivery: Delivery) -> tuple[Key, list[int]]:
        """Its key and rows, which are the same each time."""
        assert delivery.channel.endswith(f"/{delivery.table}")
        rows = taken(delivery)
        after, upto = delivery.start["at"], delivery.end["at"]
        assert rows == self.log.rows(delivery.table, after, upto), "all rows of one table, in order"
        key = delivery.channel, delivery.sequence
        with self.lock:
            assert self.seen.setdefault(key, rows) == rows, "the same rows each time"
        return key, rows

    def has(self, upto: int) -> bool:
        """Whether everything up to a place was processed."""
        with self.lock:
            return all(
                set(self.log.rows(table, 0, upto)) <= set(self.rows.get(table, ()))
                for table in self.log.tables
            )

    def is_whole(self) -> bool:
        return all(
            self.rows.get(table, []) == self.log.rows(table, 0, len(self.log.changes))
            for table in self.log.tables
        )


def taken(delivery: Delivery) -> list[int]:
    found = []
    for batch in delivery.batches:
        assert set(batch.column(TABLE).to_pylist()) == {delivery.table}
        found += batch.column("n").to_pylist()
    return found


def of_log(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    """From now on, all sources of tunnels are this log."""
    real = StreamSource.__init__

    def begin(self: Any, *args: Any, **named: Any) -> None:
        real(self, *args, **named)
        self.feed = LogFeed(log)

    monkeypatch.setattr(StreamSource, "__init__", begin)


def mixed(tables: Sequence[str], rows: int) -> list[tuple[str, int]]:
    """Changes of tables in turn."""
    return [(tables[number % len(tables)], number) for number in range(rows)]
