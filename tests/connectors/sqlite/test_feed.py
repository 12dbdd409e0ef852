"""A SQLite table as a change feed."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.connectors.sql.feed.cursor_feed import CursorFeed, CursorQuery
from spark_channel.connectors.sqlite.reader import SqliteReader
from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.testing import VirtualClock

NO_LIMIT = FeedLimit()


def run(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    run(
        path,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, price REAL, done BOOLEAN, at TIMESTAMP)",
        "INSERT INTO orders SELECT value, 'item ' || value, value * 1.5, value % 2, "
        "'2026-01-01 00:00:00.' || printf('%06d', value) FROM generate_series(1, 100)"
        if _has_series()
        else "WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 100) "
        "INSERT INTO orders SELECT value, 'item ' || value, value * 1.5, value % 2, "
        "'2026-01-01 00:00:00.' || printf('%06d', value) FROM n",
    )
    return path


def _has_series() -> bool:
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("SELECT * FROM generate_series(1, 1)")
        except sqlite3.OperationalError:
            return False
    return True


def feed_of(
    path: Path, column: str = "id", *, clock: VirtualClock | None = None, **options: Any
) -> CursorFeed:
    late, order = options.pop("late", None), options.pop("order", None)
    reader, _ = load_reader({"path": str(path), "dbtable": "orders", **options})
    assert isinstance(reader, SqliteReader)
    return CursorFeed(reader, FeedOptions(column, order, late), clock=clock)


def ids(feed: ChangeFeed, after: Any, upto: Any) -> list[int]:
    return [
        row["id"]
        for split in feed.changes(after, upto)
        for batch in feed.read(split)
        for row in batch.to_pylist()
    ]


def test_rows_past_the_token_are_the_changes(shop: Path) -> None:
    feed = feed_of(shop)
    start, end = feed.earliest()[0], feed.now()[0]
    assert sorted(ids(feed, start, end)) == list(range(1, 101))
    assert feed.latest(end, NO_LIMIT) == end
    run(shop, "INSERT INTO orders (id) VALUES (101), (107)")
    after = feed.latest(end, NO_LIMIT)
    assert sorted(ids(feed, end, after)) == [101, 107]
    assert feed.changes(after, after) == []


def test_a_limit_cuts_a_range_and_keeps_rows_of_one_value_together(shop: Path) -> None:
    feed = feed_of(shop)
    token, seen = feed.earliest()[0], []
    while (end := feed.latest(token, FeedLimit(rows=30))) != token:
        seen.append(len(ids(feed, token, end)))
        token = end
    assert seen == [30, 30, 30, 10]
    run(shop, "UPDATE orders SET at = '2026-01-01 00:00:01.000000' WHERE id > 50 AND id < 100")
    run(shop, "UPDATE orders SET at = '2026-01-01 00:00:02.000000' WHERE id = 100")
    clock = VirtualClock()
    by_time = feed_of(shop, "at", clock=clock)
    (start,) = by_time.earliest()
    assert by_time.latest(start, FeedLimit(rows=60)) == start, "the newest time is not a second old"
    clock.advance(1)
    token = by_time.latest(start, FeedLimit(rows=60))
    assert len(ids(by_time, start, token)) == 99
    assert ids(by_time, token, by_time.latest(token, FeedLimit(rows=60))) == [100]


@pytest.mark.parametrize(
    ("declared", "index", "waits"),
    [
        ("TIMESTAMP", "", True),
        ("TIMESTAMP", "CREATE INDEX by_at ON t (at)", True),
        ("TIMESTAMP", "CREATE UNIQUE INDEX by_at ON t (at, id)", True),
        ("TIMESTAMP", "CREATE UNIQUE INDEX by_at ON t (at) WHERE id > 1", True),
        ("TIMESTAMP", "CREATE UNIQUE INDEX by_at ON t (at)", False),
        ("TIMESTAMP UNIQUE", "", False),
        ("TEXT COLLATE NOCASE", "CREATE UNIQUE INDEX by_at ON t (at COLLATE BINARY)", True),
    ],
)
def test_rows_of_the_highest_value_wait_where_others_may_get_it(
    tmp_path: Path, declared: str, index: str, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "shop.db"

    def feed() -> CursorFeed:
        return feed_of(path, "at", dbtable="t", order="text", clock=VirtualClock())

    run(path, f"CREATE TABLE t (id REAL PRIMARY KEY, at {declared} NOT NULL)")
    run(path, "INSERT INTO t VALUES (1, '2026-01-01 00:00:01'), (2, '2026-01-01 00:00:02')")
    if index:
        run(path, index)
    waiting = feed()
    (token,) = waiting.now()
    assert token == {"cursor": f"2026-01-01 00:00:0{1 if waits else 2}"}
    assert waiting.latest(waiting.earliest()[0], NO_LIMIT) == token
    messages = [each.getMessage() for each in caplog.records]
    assert len(messages) == waits
    assert all(
        "rows of table 't' with the highest value of column 'at'" in each for each in messages
    )
    run(path, "DROP TABLE t", f"CREATE TABLE t (id INTEGER PRIMARY KEY, at {declared} NOT NULL)")
    run(path, "INSERT INTO t VALUES (1, '2026-01-01 00:00:01'), (2, '2026-01-01 00:00:02')")
    if index:
        run(path, index)
    keys = {"key": "id", "keys": [2], "below": "2026-01-01 00:00:01"} if waits else {}
    assert feed().now() == [{"cursor": "2026-01-01 00:00:02", **keys}]


def test_rows_of_one_value_that_come_one_by_one_are_read_each_once(tmp_path: Path) -> None:
    """Ranges name the same rows again later. Some rows leave, and more share the value than a position names."""
    path, clock = tmp_path / "shop.db", VirtualClock()
    run(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, day DATE NOT NULL)")
    run(path, "INSERT INTO t VALUES (5, '2026-01-01'), (7, '2026-01-02')")
    feed = feed_of(path, "day", dbtable="t", clock=clock)
    ranges: list[tuple[Any, Any, list[int]]] = []
    token = feed.earliest()[0]

    def follow() -> list[int]:
        nonlocal token
        feed.latest(token, NO_LIMIT)
        clock.advance(1)
        end = json.loads(json.dumps(feed.latest(token, NO_LIMIT)))
        found = sorted(ids(feed, token, end))
        ranges.append((token, end, found))
        token = end
        return found

    assert follow() == [5, 7]
    assert follow() == []
    run(path, "INSERT INTO t VALUES (2, '2026-01-02'), (9, '2026-01-02')")
    assert feed.lag(token).rows == 2
    assert follow() == [2, 9]
    for after, upto, found in ranges:
        assert sorted(ids(feed, after, upto)) == found
    (end,) = feed.now()
    run(path, "DELETE FROM t WHERE id = 9", "INSERT INTO t VALUES (3, '2026-01-02')")
    assert follow() == [3]
    assert feed.before(token, NO_LIMIT, end) is None, "row 9 has left"
    halves = feed.divide(token)
    run(path, "INSERT INTO t VALUES (10, '2026-01-02'), (11, '2026-01-02')")
    assert [ids(feed, half, feed.latest(half, NO_LIMIT)) for half in halves] == [[10], [11]]
    assert follow() == [10, 11]
    many = "WITH RECURSIVE n(i) AS (SELECT 20 UNION ALL SELECT i + 1 FROM n WHERE i < 1100)"
    run(path, f"INSERT INTO t {many} SELECT i, '2026-01-02' FROM n")
    assert follow() == []
    assert feed.lag(token).rows == 1081
    run(path, "INSERT INTO t VALUES (12, '2026-01-03')")
    assert follow() == [12, *range(20, 1101)]
    with pytest.raises(SourceError, match="not a position in cursor column 'day'"):
        feed.latest({**token, "keys": ["1"]}, NO_LIMIT)


def test_a_stream_continues_when_the_rows_with_the_highest_value_are_deleted(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "shop.db", VirtualClock()
    run(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT NOT NULL)")
    run(path, "INSERT INTO t VALUES (1, '01'), (2, '02'), (3, '02')")
    feed = feed_of(path, "at", dbtable="t", order="text", clock=clock)

    def follow(token: Any) -> Any:
        feed.latest(token, NO_LIMIT)
        clock.advance(1)
        return feed.latest(token, NO_LIMIT)

    start = feed.earliest()[0]
    token = follow(start)
    assert ids(feed, start, token) == [1, 2, 3]
    run(path, "DELETE FROM t WHERE at = '02'")
    assert follow(token) == token
    assert feed.changes(token, token) == []
    assert feed.lag(token).rows == 0
    run(path, "INSERT INTO t VALUES (4, '03')")
    later = follow(token)
    assert ids(feed, token, later) == [4]
    run(path, "DELETE FROM t WHERE id > 1", "INSERT INTO t VALUES (5, '02')")
    with pytest.raises(SourceError, match="the column does not only grow"):
        feed.latest(later, NO_LIMIT)


def test_a_range_costs_what_is_in_it_and_not_what_is_behind_it(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a backlog of millions, counting it for each micro-batch would be most of the work."""
    feed = feed_of(shop)
    counted: list[int] = []
    count = CursorQuery.rows

    def rows(self: CursorQuery, within: dict[str, Any]) -> int:
        counted.append(count(self, within))
        return counted[-1]

    monkeypatch.setattr(CursorQuery, "rows", rows)
    token = feed.earliest()[0]
    for _ in range(3):
        end = feed.latest(token, FeedLimit(rows=10))
        feed.changes(token, end)
        token = end
    assert counted == [10, 10, 10]


def test_a_limit_in_bytes_cuts_too(shop: Path) -> None:
    feed = feed_of(shop)
    token = feed.latest(feed.earliest()[0], FeedLimit(nbytes=1000))
    assert 0 < len(ids(feed, feed.earliest()[0], token)) < 50


def test_base_and_changes_cover_every_row_once(shop: Path) -> None:
    feed = feed_of(shop)
    (token,) = feed.now()
    run(shop, "INSERT INTO orders (id) VALUES (101)")
    base = [
        r["id"] for split in feed.base([token], 4) for b in feed.read(split) for r in b.to_pylist()
    ]
    assert sorted(base) == list(range(1, 101))
    assert ids(feed, token, feed.latest(token, NO_LIMIT)) == [101]


def test_an_empty_table_begins_with_its_first_row(shop: Path) -> None:
    run(shop, "DELETE FROM orders")
    feed = feed_of(shop)
    (token,) = feed.now()
    assert [list(feed.read(split)) for split in feed.base([token], 2)] == []
    run(shop, "INSERT INTO orders (id) VALUES (1)")
    assert ids(feed, token, feed.latest(token, NO_LIMIT)) == [1]


def test_a_row_that_commits_late_is_not_missed(shop: Path) -> None:
    """Row 101 took its id before row 102, and commits after it was seen."""
    clock = VirtualClock()
    feed = feed_of(shop, clock=clock, late=5.0)
    token: Any = {"cursor": 100}
    assert feed.latest(token, NO_LIMIT) == token
    run(shop, "INSERT INTO orders (id) VALUES (102)")
    clock.advance(4)
    assert feed.latest(token, NO_LIMIT) == token, "102 was not there 5 seconds ago"
    run(shop, "INSERT INTO orders (id) VALUES (101)")
    clock.advance(5)
    assert ids(feed, token, feed.latest(token, NO_LIMIT)) == [101, 102]


def test_lag_is_told_in_rows_and_seconds(shop: Path) -> None:
    lag = feed_of(shop, "at").lag({"cursor": "2026-01-01 00:00:00.000060"})
    assert lag.rows == 40
    assert lag.nbytes is not None
    assert lag.nbytes > 40 * 10
    assert lag.seconds is not None
    assert lag.seconds > 0
    assert feed_of(shop).lag({"cursor": 100}).rows == 0


def test_large_ranges_are_read_in_several_splits(shop: Path) -> None:
    run(
        shop,
        "WITH RECURSIVE n(value) AS (SELECT 101 UNION ALL SELECT value + 1 FROM n WHERE value < 400000) "
        "INSERT INTO orders (id) SELECT value FROM n",
    )
    feed = feed_of(shop)
    splits = feed.changes({"cursor": 100}, {"cursor": 400_000})
    assert 2 <= len(splits) <= 16
    assert sum(batch.num_rows for split in splits for batch in feed.read(split)) == 399_900


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("none", "", "names 'none', which table 'orders' does not have; it has id, item"),
        (
            "at",
            "UPDATE orders SET at = NULL WHERE id = 7",
            "'at', which is read as NULL in at least one row",
        ),
        ("item", "", "'item' of type string: texts are compared by .* '1000' comes before '999'"),
        ("done", "", "'done' of type bool, whose values have no order"),
        ("price", "", "'price' of type double, whose values have no order"),
    ],
)
def test_a_column_that_is_no_cursor_is_refused(
    shop: Path, column: str, change: str, message: str
) -> None:
    if change:
        run(shop, change)
    with pytest.raises(OptionError, match=message):
        feed_of(shop, column)


def test_a_text_is_a_cursor_when_its_order_is_asked_for(shop: Path) -> None:
    run(shop, "CREATE TABLE codes (code TEXT NOT NULL PRIMARY KEY)")
    run(shop, "INSERT INTO codes VALUES ('01J8A'), ('01J8B')")
    reader, _ = load_reader({"path": str(shop), "dbtable": "codes"})
    feed = reader.feed(FeedOptions("code", cursor_order="text", late_seconds=0))
    (start,) = feed.earliest()
    assert feed.latest(start, FeedLimit()) == {"cursor": "01J8B"}


@pytest.mark.parametrize(
    ("declared", "custom"),
    [("DECIMAL_TEXT(20,0)", None), ("DECIMAL_TEXT(20,0)", "BIGINT"), ("TEXT", "BIGINT")],
)
def test_what_compares_as_text_is_no_cursor_whatever_it_is_read_as(
    shop: Path, declared: str, custom: str | None
) -> None:
    """'1000' after '999' would never arrive."""
    run(shop, f"CREATE TABLE texts (code {declared} NOT NULL)")
    run(shop, "INSERT INTO texts VALUES ('999'), ('1000')")
    schema = {} if custom is None else {"customSchema": f"code {custom}"}
    reader, _ = load_reader({"path": str(shop), "dbtable": "texts", **schema})
    with pytest.raises(OptionError, match="'1000' comes before '999'"):
        reader.feed(FeedOptions("code"))


def test_a_text_among_numbers_is_no_position(shop: Path) -> None:
    run(shop, "CREATE TABLE mixed (code NOT NULL)")
    run(shop, "INSERT INTO mixed VALUES ('999'), ('1000')")
    reader, _ = load_reader({"path": str(shop), "dbtable": "mixed", "customSchema": "code BIGINT"})
    feed = reader.feed(FeedOptions("code", late_seconds=0))
    with pytest.raises(SourceError, match="'999' is not a position in cursor column 'code'"):
        feed.latest(feed.earliest()[0], NO_LIMIT)


def test_a_stream_of_a_table_needs_a_cursor(shop: Path) -> None:
    reader, _ = load_reader({"path": str(shop), "dbtable": "orders"})
    with pytest.raises(OptionError, match="name it with option 'cursorColumn'"):
        reader.feed(FeedOptions())


def test_a_cursor_that_goes_back_or_an_offset_from_the_future_is_an_error(shop: Path) -> None:
    feed = feed_of(shop)
    with pytest.raises(
        SourceError, match="is at id = 500, and the highest value in the table is 100"
    ):
        feed.latest({"cursor": 500}, NO_LIMIT)
    (token,) = feed.now()
    run(shop, "DELETE FROM orders WHERE id > 90")
    with pytest.raises(SourceError, match="the column does not only grow"):
        feed.latest(token, NO_LIMIT)


@pytest.mark.parametrize("token", [{}, {"cursor": [1]}, {"lsn": "0/1"}, {"cursor": 1, "x": 2}])
def test_a_damaged_token_is_named(shop: Path, token: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="not a position in cursor column 'id'"):
        feed_of(shop).latest(token, NO_LIMIT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ALTER TABLE orders ADD COLUMN note TEXT", "new column 'note'"),
        ("ALTER TABLE orders DROP COLUMN price", "lost column 'price'"),
        ("ALTER TABLE orders RENAME COLUMN item TO thing", "lost column 'item'"),
    ],
)
def test_a_changed_schema_is_an_error_that_names_the_column(
    shop: Path, change: str, message: str
) -> None:
    feed = feed_of(shop)
    run(shop, change)
    with pytest.raises(SchemaError, match=message):
        feed.latest({"cursor": 100}, NO_LIMIT)


def test_another_file_in_its_place_is_looked_at_anew(shop: Path, tmp_path: Path) -> None:
    """Its schema has the same version, and other columns."""
    feed = feed_of(shop)
    token = feed.now()[0]
    other = tmp_path / "other.db"
    run(other, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    other.replace(shop)
    with pytest.raises(SchemaError, match="lost column 'price'"):
        feed.latest(token, NO_LIMIT)


def test_a_file_that_went_is_named(shop: Path) -> None:
    feed = feed_of(shop)
    shop.unlink()
    with pytest.raises(SourceError, match=f"database file {shop} does not exist"):
        feed.now()
