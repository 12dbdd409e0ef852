"""Existing rows in chunks beside the changes of the binary log, on a real server."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.connectors.mysql.log.snapshot import BinlogWatermarks
from spark_channel.connectors.sql.feed.base_chunk import BaseChunk
from spark_channel.errors import SchemaError, SourceError
from tests.connectors.mysql.log.test_feed import NO_LIMIT, feed_of, plain
from tests.connectors.mysql.shop import Shop
from tests.connectors.mysql.test_binlog_copy import Writer

Found = list[tuple[Any, ...]]


def begin(feed: ChangeFeed) -> Any:
    made = feed.with_base(feed.now())
    assert made is not None
    return made[0]


def rows(feed: ChangeFeed, after: Any, upto: Any) -> Found:
    return [
        (row["_op"], row["id"], row["item"])
        for split in feed.changes(after, upto)
        for batch in feed.read(split)
        for row in batch.to_pylist()
    ]


def played(found: Found) -> dict[int, Any]:
    state: dict[int, Any] = {}
    for what, key, item in found:
        if what == "truncate":
            state.clear()
        elif what == "delete":
            state.pop(key, None)
        else:
            state[key] = item
    return state


def state_of(shop: Shop, table: str = "t") -> dict[int, Any]:
    return {
        int(key): None if item == "NULL" else item
        for key, item in shop.rows(f"SELECT id, item FROM {table}")
    }


def reads(found: Found) -> list[Any]:
    return [row[1] for row in found if row[0] == "read"]


def filled(shop: Shop, count: int) -> ChangeFeed:
    plain(shop)
    shop.sql(f"INSERT INTO t SELECT seq, 'old', seq FROM seq_1_to_{count}")
    return feed_of(shop)


def test_the_base_comes_in_chunks_beside_the_changes(logged: Shop) -> None:
    feed = filled(logged, 100)
    token = begin(feed)
    logged.sql(
        "UPDATE t SET item = 'new' WHERE id <= 10; DELETE FROM t WHERE id = 50; INSERT INTO t VALUES (0, 'x', 1); "
        "UPDATE t SET id = 200 WHERE id = 20"
    )
    first = feed.latest(token, FeedLimit(rows=40))
    found = rows(feed, token, first)
    assert [row for row in found if row[0] != "read"] == [
        *(("update", n, "new") for n in range(1, 11)),
        ("delete", 50, "old"),
        ("insert", 0, "x"),
        ("delete", 20, "old"),
        ("update", 200, "old"),
    ]
    assert reads(found) == [n for n in range(11, 27) if n != 20], (
        "26 rows are left of 40, of which 11 have changed"
    )
    assert rows(feed, token, first) == found, "a range can be read again"
    out, at = list(found), first
    lag = feed.lag(at)
    assert lag.base_rows is not None
    assert (lag.base_read, lag.base_chunks) == (26, 1)
    assert lag.chunks is not None
    assert lag.chunks > 1
    while "base" in at:
        end = feed.latest(at, FeedLimit(rows=40))
        out += rows(feed, at, end)
        at = end
    assert feed.latest(at, NO_LIMIT) == at
    assert played(out) == state_of(logged)
    assert len(out) == 14 + 88


def test_a_range_that_is_read_again_drops_what_changed_meanwhile(logged: Shop) -> None:
    feed = filled(logged, 20)
    token = begin(feed)
    end = feed.latest(token, NO_LIMIT)
    assert len(rows(feed, token, end)) == 20
    logged.sql(
        "UPDATE t SET item = 'new' WHERE id = 5; DELETE FROM t WHERE id = 6; INSERT INTO t VALUES (0, 'x', 1)"
    )
    assert reads(rows(feed, token, end)) == [n for n in range(1, 21) if n not in (5, 6)]
    last = feed.latest(end, NO_LIMIT)
    assert rows(feed, end, last) == [("update", 5, "new"), ("delete", 6, "old"), ("insert", 0, "x")]


def test_a_paused_base_waits_while_the_changes_are_read_on(logged: Shop) -> None:
    feed = filled(logged, 20)
    token = begin(feed)
    feed.reads_base = False
    assert feed.latest(token, NO_LIMIT) == token
    logged.sql("UPDATE t SET item = 'new' WHERE id = 5")
    (limit,) = feed.end()
    logged.sql("UPDATE t SET item = 'later' WHERE id = 5")
    end = feed.latest(token, NO_LIMIT, limit)
    assert rows(feed, token, end) == [("update", 5, "new")]
    assert feed.latest(end, NO_LIMIT, limit) == end
    feed.reads_base = True
    last = feed.latest(end, NO_LIMIT)
    assert "base" not in last
    found = rows(feed, end, last)
    assert found[0] == ("update", 5, "later")
    assert reads(found) == [n for n in range(1, 21) if n != 5]


def test_a_truncate_empties_a_chunk(logged: Shop) -> None:
    feed = filled(logged, 20)
    token = begin(feed)
    end = feed.latest(token, NO_LIMIT)
    logged.sql("TRUNCATE t; INSERT INTO t VALUES (3, 'new', 0)")
    assert rows(feed, token, end) == []
    assert rows(feed, end, feed.latest(end, NO_LIMIT)) == [
        ("truncate", None, None),
        ("insert", 3, "new"),
    ]


def test_a_table_that_is_made_anew_between_snapshot_and_statement(
    logged: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses to read it (1412), and the chunk is read again."""
    feed = filled(logged, 20)
    token = begin(feed)
    end = feed.latest(token, NO_LIMIT)
    position, left = feed._seen, ["TRUNCATE t", "ALTER TABLE t FORCE"]  # type: ignore[attr-defined] # a part of this kind of feed

    def late(session: Any) -> Any:
        found = position(session)
        if left:
            logged.sql(left.pop())
        return found

    monkeypatch.setattr(feed, "_seen", late)
    assert rows(feed, token, end) == []
    assert left == []


@contextmanager
def waiting_replica(shop: Shop) -> Iterator[None]:
    """Each commit is in the log, and waits for a replica that is not there, before others see it."""
    names = ("wait_point = AFTER_SYNC", "timeout = 600000", "enabled = ON")
    shop.sql("; ".join(f"SET GLOBAL rpl_semi_sync_master_{name}" for name in names))
    try:
        yield
    finally:
        shop.sql("SET GLOBAL rpl_semi_sync_master_enabled = OFF")


@pytest.mark.timeout(120)
def test_a_commit_that_waits_for_its_replica_is_not_undone_by_a_chunk(logged: Shop) -> None:
    """It is in the log, and no statement sees it yet: the rows that a chunk reads are older than the log."""
    feed = filled(logged, 40)
    at = begin(feed)
    before = feed.end()
    waiting = threading.Thread(
        target=logged.sql,
        args=["UPDATE t SET item = 'new' WHERE id IN (5, 35); DELETE FROM t WHERE id = 1"],
    )
    out: Found = []
    with waiting_replica(logged):
        waiting.start()
        until = time.monotonic() + 60
        while feed.end() == before:
            assert time.monotonic() < until
        assert state_of(logged)[5] == "old", "it is not visible"
        while "base" in at:
            end = feed.latest(at, FeedLimit(rows=15))
            out += rows(feed, at, end)
            at = end
    waiting.join()
    assert [row for row in out if row[0] != "read"] == [("update", 5, "new"), ("update", 35, "new")]
    assert sorted(reads(out)) == [n for n in range(1, 41) if n not in (5, 35)]
    out += rows(feed, at, feed.latest(at, NO_LIMIT))
    assert out[-1] == ("delete", 1, "old")
    assert played(out) == state_of(logged)


def test_a_chunk_that_would_see_all_of_the_log_undoes_a_waiting_commit(
    logged: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above finds it."""
    monkeypatch.setattr(BaseChunk, "sees", lambda self, transaction: self.seen(transaction) or True)
    with pytest.raises(AssertionError):
        test_a_commit_that_waits_for_its_replica_is_not_undone_by_a_chunk(logged)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("id INT, item TEXT", "no primary key"),
        ("id INT PRIMARY KEY, item TEXT) ENGINE = (MyISAM", "engine is MyISAM"),
        ("id TIMESTAMP PRIMARY KEY, item TEXT", "differ as texts"),
        ("id VARBINARY(9) PRIMARY KEY, item TEXT", "differ as texts"),
        ("id INT, item TEXT, PRIMARY KEY (id DESC)", "descending"),
    ],
)
def test_what_cannot_be_read_so_is_read_first(
    logged: Shop, columns: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    logged.sql(f"CREATE TABLE t ({columns})".replace("(MyISAM)", "MyISAM"))
    feed = feed_of(logged)
    assert feed.with_base(feed.now()) is None
    (warning,) = [each.getMessage() for each in caplog.records]
    assert why in warning
    assert "binlog_expire_logs_seconds" in warning


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        (
            "id INT, part VARCHAR(9), item VARCHAR(9), PRIMARY KEY (part, id)",
            "seq % 7, CONCAT('p''', seq), 'old'",
        ),
        ("id DECIMAL(6,2) PRIMARY KEY, item VARCHAR(9)", "seq / 4, 'old'"),
        (
            "id UUID PRIMARY KEY, item VARCHAR(9)",
            "CONCAT('0190163d-8694-739b-aea5-', LPAD(seq, 12, '0')), 'old'",
        ),
        (
            "id DATETIME(3) PRIMARY KEY, item VARCHAR(9)",
            "'2026-01-01' + INTERVAL seq * 1001000 MICROSECOND, 'old'",
        ),
        ("id DATE PRIMARY KEY, item VARCHAR(9)", "'2026-01-01' + INTERVAL seq DAY, 'old'"),
        (
            "id CHAR(20) CHARACTER SET latin1 PRIMARY KEY, item VARCHAR(9)",
            "CONCAT('É', seq), 'old'",
        ),
        ("id BIGINT UNSIGNED PRIMARY KEY, item VARCHAR(9)", "18446744073709551000 + seq, 'old'"),
        (
            "item VARCHAR(9), id VARCHAR(20) PRIMARY KEY",
            "'old', CONCAT(IF(seq % 2, 'a', 'B'), seq)",
        ),
    ],
)
def test_keys_of_other_types(logged: Shop, columns: str, values: str) -> None:
    logged.sql(f"CREATE TABLE t ({columns}); INSERT INTO t SELECT {values} FROM seq_1_to_50")
    feed = feed_of(logged)
    token = begin(feed)
    out, at, wide = [], token, FeedLimit(rows=20)
    while "base" in at:
        end = feed.latest(at, wide)
        out += rows(feed, at, end)
        at = end
    assert len({row[1:] for row in out}) in (50, 7)
    assert len(out) == 50
    end = feed.latest(token, NO_LIMIT)
    logged.sql("UPDATE t SET item = 'new' LIMIT 20")
    assert [row[2] for row in rows(feed, token, end)] == ["old"] * 30
    assert [row[2] for row in rows(feed, end, feed.latest(end, NO_LIMIT))] == ["new"] * 20


def test_a_chunk_waits_for_a_replica_that_has_not_come_to_where_the_stream_began(
    logged: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several behind one name lags: rows that were made shortly before are neither there, nor in the log."""
    feed = filled(logged, 20)
    token = begin(feed)
    end = feed.latest(token, NO_LIMIT)
    position, behind = feed._seen, [1, 1]  # type: ignore[attr-defined] # a part of this kind of feed

    def lagging(session: Any) -> Any:
        found = position(session)
        return type(found).parse("") if behind and behind.pop() else found

    monkeypatch.setattr(feed, "_seen", lagging)
    assert reads(rows(feed, token, end)) == list(range(1, 21))
    assert behind == []


@pytest.mark.parametrize(
    "change",
    [
        "DROP PRIMARY KEY, ADD PRIMARY KEY (item, id)",
        "MODIFY id VARCHAR(9) COLLATE utf8mb4_general_ci",
    ],
    ids=["another key", "another collation"],
)
def test_a_key_whose_order_changes_while_the_base_is_read(logged: Shop, change: str) -> None:
    """After the change, other rows follow a key."""
    logged.sql(
        "CREATE TABLE t (id VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, item VARCHAR(9) NOT NULL); "
        "INSERT INTO t SELECT CONCAT(IF(seq % 2, 'a', 'B'), seq), 'x' FROM seq_1_to_50"
    )
    feed = feed_of(logged)
    token = begin(feed)
    first = feed.latest(token, FeedLimit(rows=20))
    logged.sql(f"ALTER TABLE t {change}")
    for read in (lambda: rows(feed, token, first), lambda: feed.latest(first, NO_LIMIT)):
        with pytest.raises(
            SourceError, match=r"was by \(id utf8mb4_bin\) when the reading.*Reset the tunnel"
        ):
            read()


def test_a_key_whose_order_changes_between_two_chunks_of_a_range(
    logged: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BinlogWatermarks, "chunk_rows", lambda _: 10)
    logged.sql(
        "CREATE TABLE t (id VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, item VARCHAR(9) NOT NULL); "
        "INSERT INTO t SELECT CONCAT(IF(seq % 2, 'a', 'B'), seq), 'x' FROM seq_1_to_50"
    )
    feed = feed_of(logged)
    token = begin(feed)
    (split,) = feed.changes(token, feed.latest(token, NO_LIMIT))
    found = feed.read(split)
    next(found)
    logged.sql("ALTER TABLE t MODIFY id VARCHAR(9) COLLATE utf8mb4_general_ci")
    with pytest.raises(SourceError, match="which of them are left to read is not known"):
        list(found)


def test_a_key_that_widens_while_the_base_is_read(logged: Shop) -> None:
    feed = filled(logged, 60)
    token = begin(feed)
    first = feed.latest(token, FeedLimit(rows=20))
    found = rows(feed, token, first)
    logged.sql("ALTER TABLE t MODIFY id BIGINT")
    feed = logged.reader(binlog="true").feed(FeedOptions(evolves=True))
    found += rows(feed, first, feed.latest(first, NO_LIMIT))
    assert reads(found) == list(range(1, 61))


@pytest.mark.parametrize("base", [{}, {"after": None}, "x", {"until": []}])
def test_a_damaged_base_is_told(logged: Shop, base: Any) -> None:
    plain(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    with pytest.raises(SourceError, match="not a position in this server's binary log"):
        feed.latest({**token, "base": base}, NO_LIMIT)


def test_a_column_that_is_added_while_the_base_is_read(logged: Shop) -> None:
    filled(logged, 60)

    def feed() -> ChangeFeed:
        return logged.reader(binlog="true").feed(FeedOptions(evolves=True))

    token = begin(feed())
    first = feed().latest(token, FeedLimit(rows=20))
    out = rows(feed(), token, first)
    late = feed()
    planned = late.latest(first, FeedLimit(rows=20))
    logged.sql(
        "ALTER TABLE t ADD note TEXT; UPDATE t SET note = 'x', item = 'new' WHERE id IN (5, 30, 55)"
    )
    with pytest.raises(SchemaError, match="new column 'note'"):
        rows(late, first, planned)
    at = first
    while "base" in at:
        end = feed().latest(at, FeedLimit(rows=20))
        out += rows(feed(), at, end)
        at = end
    assert played(out) == state_of(logged)
    assert len(out) == 59 + 3, "30 has changed while its chunk was read"


def test_columns_that_change_are_ignored_while_the_base_is_read(logged: Shop) -> None:
    filled(logged, 60)
    feed = logged.reader(binlog="true").feed(FeedOptions(ignores=True))
    at = begin(feed)
    first = feed.latest(at, FeedLimit(rows=20))
    out = rows(feed, at, first)
    logged.sql(
        "ALTER TABLE t ADD note TEXT FIRST, DROP n; UPDATE t SET note = 'x' WHERE id IN (5, 30, 55)"
    )
    out += rows(feed, first, middle := feed.latest(first, FeedLimit(rows=20)))
    logged.sql("ALTER TABLE t DROP item")
    out += rows(feed, middle, feed.latest(middle, NO_LIMIT))
    assert sorted(played(out)) == list(range(1, 61))
    assert [item for key, item in sorted(played(out).items()) if key <= 20] == ["old"] * 20
    assert played(out)[60] is None, "read behind the change"


def follow(shop: Shop, changes: int, seed: int, count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Copy the table while it changes, with clients and sessions that die; returns how many ranges it took."""
    monkeypatch.setattr(BinlogWatermarks, "chunk_rows", lambda _: 37)
    chance = random.Random(seed)
    columns = (
        "id BIGINT PRIMARY KEY, item VARCHAR(40), n DECIMAL(12,2), at DATETIME(6), flag TINYINT(1)"
    )
    shop.sql(
        f"CREATE TABLE source ({columns}); INSERT INTO source SELECT seq, 'old', seq, NOW(6), 0 FROM seq_1_to_{count}"
    )
    feed = feed_of(shop, "source")
    start = feed.now()
    made = feed.with_base(start)
    assert made is not None
    at, out, ranges = made[0], list[tuple[Any, ...]](), 0
    writers = [Writer(shop, seed * 10 + number, changes // 4, 0.002) for number in range(4)]
    for writer in writers:
        writer.start()
    try:
        while True:
            done = not any(writer.is_alive() for writer in writers)
            end = feed.latest(at, FeedLimit(rows=chance.randrange(50, 400)))
            if done and end == at:
                break
            if chance.random() < 0.2:  # a client that dies in a range, or before its checkpoint
                for split in feed.changes(at, end):
                    for _ in feed.read(split):
                        break
                feed = feed_of(shop, "source")
            if chance.random() < 0.02 and "base" not in at:
                shop.sql("TRUNCATE source")
            out += rows(feed, at, end)
            at, ranges = end, ranges + 1
    finally:
        for writer in writers:
            writer.join()
    for writer in writers:
        assert writer.error is None
    whole = feed_of(shop, "source")
    events = rows(whole, start[0], whole.latest(start[0], NO_LIMIT))
    assert [row for row in out if row[0] != "read"] == events, (
        "each event once, in the order of the log"
    )
    found = reads(out)
    assert len(found) == len(set(found)), "no row of the base twice"
    assert played(out) == state_of(shop, "source")
    return ranges


@pytest.mark.timeout(240)
def test_a_copy_beside_writers_and_clients_that_die_is_equal(
    logged: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert follow(logged, 2_000, 1, 1_000, monkeypatch) > 5


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_copies_beside_many_changes_are_equal(
    logged: Shop, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert follow(logged, 40_000, seed, 20_000, monkeypatch) > 20


def test_a_lost_session_of_a_chunk_passes(logged: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = filled(logged, 20)
    token = begin(feed)
    end = feed.latest(token, NO_LIMIT)
    position, left = feed._seen, [1]  # type: ignore[attr-defined] # a part of this kind of feed

    def killed(session: Any) -> Any:
        found = position(session)
        if left:
            left.pop()
            logged.sql(f"KILL {session.id}")
        return found

    monkeypatch.setattr(feed, "_seen", killed)
    assert len(rows(feed, token, end)) == 20
    assert logged.server.connections() == 0, "no connection is left behind"
