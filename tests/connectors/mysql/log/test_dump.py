"""The dump of the binary log stays open from range to range: the server searches a position once for each start."""

import pytest

from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.connectors.mysql.log import dump as binlog_dump
from spark_channel.connectors.mysql.log.position import GtidSet
from tests.connectors.mysql.log.test_tables import follow, made, of, tables_of
from tests.connectors.mysql.shop import Shop


@pytest.fixture
def dumps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The positions from which dumps were asked for."""
    positions: list[str] = []
    command = binlog_dump._command

    def counted(after: GtidSet) -> tuple[int, bytes]:
        positions.append(str(after))
        return command(after)

    monkeypatch.setattr(binlog_dump, "_command", counted)
    return positions


def _changes(shop: Shop, first: int, count: int) -> None:
    values = (f"INSERT INTO orders VALUES ({first + number}, 'a')" for number in range(count))
    shop.sql("; ".join(values))


def test_ten_times_the_ranges_take_as_many_dumps(logged: Shop, dumps: list[str]) -> None:
    made(logged, "orders")
    feed = tables_of(logged)
    (at,) = feed.now()
    counts, first = [], 0
    for count in (30, 300):
        _changes(logged, first, count)
        dumps.clear()
        at, rows = follow(feed, at, FeedLimit(rows=10))
        counts.append(len(dumps))
        assert [row[1] for row in of(logged, rows, "orders")] == list(range(first, first + count))
        first += count
    assert counts[1] <= counts[0] <= 6, counts


def test_a_dump_that_the_server_ended_between_two_ranges_is_opened_again(
    logged: Shop, dumps: list[str]
) -> None:
    made(logged, "orders", "items")
    feed = tables_of(logged)
    (at,) = feed.now()
    _changes(logged, 0, 100)
    found = []
    for ended in range(10):
        end = feed.latest(at, FeedLimit(rows=10))
        for split in feed.changes(at, end):
            found += [row for batch in feed.read(split) for row in batch.to_pylist()]
        at = end
        if ended == 4:
            query = (
                "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
            )
            for (number,) in logged.rows(query):
                logged.sql(f"KILL {number}")
    assert [row["id"] for row in found] == list(range(100))
    assert len(dumps) <= 6


def test_a_range_that_is_read_again_gets_its_own_dump(logged: Shop, dumps: list[str]) -> None:
    """The kept one is behind it."""
    made(logged, "orders")
    feed = tables_of(logged)
    (at,) = feed.now()
    _changes(logged, 0, 30)
    end = feed.latest(at, FeedLimit(rows=10))

    def read() -> list[int]:
        return [
            row["id"]
            for split in feed.changes(at, end)
            for batch in feed.read(split)
            for row in batch.to_pylist()
        ]

    assert read() == read() == list(range(10))
    rest = follow(feed, end, FeedLimit(rows=7))[1]
    assert [row["id"] for row in rest] == list(range(10, 30))
