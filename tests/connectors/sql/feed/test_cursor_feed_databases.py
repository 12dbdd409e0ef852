"""A table read by a column that only grows: the same of every database that has such a feed."""

import json
import pickle
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pymysql
import pytest
from pyspark.sql import SparkSession

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.connectors.sql import SqlReader
from spark_channel.connectors.sql.feed.cursor_feed import CursorFeed
from spark_channel.errors import OptionError, SchemaError, SourceError, UnsupportedError
from spark_channel.testing import VirtualClock
from spark_channel.tunnel import Delivery, Tunnel
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

NO_LIMIT = FeedLimit()
ROWS = 60
TYPES = {
    "duckdb": {
        "big": "UBIGINT",
        "amount": "DECIMAL(30,4)",
        "day": "DATE",
        "made": "TIMESTAMP",
        "name": "VARCHAR",
    },
    "mysql": {
        "big": "BIGINT UNSIGNED",
        "amount": "DECIMAL(30,4)",
        "day": "DATE",
        "made": "DATETIME(6)",
        "name": "VARCHAR(40)",
    },
    "postgresql": {
        "big": "bigint",
        "amount": "numeric(30,4)",
        "day": "date",
        "made": "timestamptz",
        "name": "text",
    },
}


@dataclass
class Place:
    """A table `orders` in its own database, its `seen` column nullable and never NULL. `day` and `seen` have no
    unique index."""

    kind: str
    options: dict[str, str]
    run: Callable[[str], Any]

    def make(self) -> None:
        types = TYPES[self.kind]
        columns = ", ".join(
            f"{name} {declared} NOT NULL{'' if name == 'day' else ' UNIQUE'}"
            for name, declared in types.items()
        )
        self.run(f"CREATE TABLE orders (id INT PRIMARY KEY, {columns}, seen INT, good BOOLEAN)")
        self.fill(1, ROWS)

    def fill(self, start: int, end: int) -> None:
        self.run(
            "INSERT INTO orders VALUES "
            + ", ".join(
                f"({n}, {2**40 + n}, 12345678901234567890.{n:04d}, '2026-01-{1 + n % 28:02d}', "
                f"'2026-01-01 00:00:00.{n:06d}', 'item {n:04d}', {n}, {'TRUE' if n % 2 else 'FALSE'})"
                for n in range(start, end + 1)
            )
        )

    def feed(
        self, column: str = "id", *, clock: VirtualClock | None = None, late: float = 0.0
    ) -> ChangeFeed:
        reader, _ = load_reader({**self.options, "dbtable": "orders"})
        options = FeedOptions(
            column, cursor_order="text" if column == "name" else None, late_seconds=late
        )
        feed = reader.feed(options)
        if clock is not None:
            assert isinstance(reader, SqlReader)
            feed = CursorFeed(reader, options, clock=clock)
        return feed


@pytest.fixture(params=["postgresql", "mysql", "duckdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    name = f"feed_{uuid.uuid4().hex[:12]}"
    match request.param:
        case "postgresql":
            postgres: PostgresServer = request.getfixturevalue("postgres_server")
            postgres.psql(f"CREATE SCHEMA {name}")
            made = Place(
                request.param,
                {**postgres.login, "currentSchema": name},
                lambda text: postgres.psql(f"SET search_path = {name}; {text}"),
            )
            made.make()
            yield made
            postgres.psql(f"DROP SCHEMA {name} CASCADE")
        case "mysql":
            mariadb: MariadbServer = request.getfixturevalue("mariadb_server")
            mariadb.sql(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            url = f"mysql://127.0.0.1:{mariadb.port}/{name}"
            made = Place(
                request.param,
                {"url": url, "user": mariadb.user, "password": mariadb.password},
                lambda text: mariadb.sql(text, database=name),
            )
            made.make()
            yield made
            mariadb.sql(f"DROP DATABASE {name}")
        case "duckdb":
            path = tmp_path / "shop.duckdb"

            def run(text: str) -> None:
                with duckdb.connect(str(path)) as connection:
                    connection.execute(text)

            made = Place(request.param, {"path": str(path)}, run)
            made.make()
            yield made


def ids(feed: ChangeFeed, after: Any, upto: Any) -> list[int]:
    """As executors read: from copies of feed and splits, out of tokens that were JSON."""
    after, upto = json.loads(json.dumps([after, upto]))
    feed, splits = pickle.loads(pickle.dumps((feed, feed.changes(after, upto))))
    return sorted(
        row["id"] for split in splits for batch in feed.read(split) for row in batch.to_pylist()
    )


def test_rows_past_the_token_are_the_changes(place: Place) -> None:
    feed = place.feed()
    (start,), (end,) = feed.earliest(), feed.now()
    assert ids(feed, start, end) == list(range(1, ROWS + 1))
    assert feed.latest(end, NO_LIMIT) == end
    place.fill(ROWS + 1, ROWS + 5)
    after = feed.latest(end, NO_LIMIT)
    assert ids(feed, end, after) == list(range(ROWS + 1, ROWS + 6))
    assert feed.changes(after, after) == []
    lag = feed.lag(end)
    assert lag.rows == 5
    assert lag.nbytes is not None
    assert lag.nbytes >= 5 * 30
    assert 0 < len(ids(feed, start, feed.latest(start, FeedLimit(nbytes=2_000)))) < ROWS


def test_a_column_of_any_ordered_type_cuts_the_same_ranges(place: Place) -> None:
    for column in ("big", "amount", "made", "name"):
        feed = place.feed(column)
        (start,) = feed.earliest()
        token, seen = start, []
        while (cut := feed.latest(token, FeedLimit(rows=25))) != token:
            seen.append(ids(feed, token, cut))
            token = cut
        assert seen == [list(range(1, 26)), list(range(26, 51)), list(range(51, 61))], column
        if column == "made":
            behind = feed.lag(feed.latest(start, FeedLimit(rows=25)))
            assert (behind.rows, behind.seconds is not None and behind.seconds > 86_400) == (
                35,
                True,
            )


def test_rows_of_one_value_stay_together(place: Place) -> None:
    feed = place.feed("day")
    (start,), (now,) = feed.earliest(), feed.now()
    token = feed.latest(start, FeedLimit(rows=1), now)
    assert ids(feed, start, token) == [28, 56]


def same(place: Place, number: int, column: str, value: str) -> None:
    """Add a row whose cursor value is `value`."""
    row = {
        "id": str(number),
        "big": str(2**41 + number),
        "amount": f"12345678901234567891.{number:04d}",
        "day": "'2026-03-01'",
        "made": f"'2026-01-02 00:00:00.{number:06d}'",
        "name": f"'item {number:04d}'",
        "seen": str(number),
        "good": "TRUE",
        column: value,
    }
    place.run(f"INSERT INTO orders VALUES ({', '.join(row.values())})")


def drop_unique(place: Place, column: str) -> None:
    place.run(
        {
            "mysql": f"ALTER TABLE orders DROP INDEX {column}",
            "postgresql": f"ALTER TABLE orders DROP CONSTRAINT orders_{column}_key",
            "duckdb": "CREATE TABLE other AS FROM orders; DROP TABLE orders; ALTER TABLE other RENAME TO orders",
        }[place.kind]
    )


def drop_key(place: Place) -> None:
    place.run(
        {
            "mysql": "ALTER TABLE orders DROP PRIMARY KEY",
            "postgresql": "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
            "duckdb": "CREATE TABLE other AS FROM orders; DROP TABLE orders; ALTER TABLE other RENAME TO orders",
        }[place.kind]
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("day", "'2026-02-01'"),
        ("seen", "1000"),
        ("made", "'2026-02-01 10:00:00'"),
        ("name", "'yes'"),
    ],
)
def test_rows_with_one_value_are_read_as_they_come(place: Place, column: str, value: str) -> None:
    """A position names them by their keys."""
    if column in ("made", "name"):
        if place.kind == "duckdb":
            pytest.skip("a copy of its table has no primary key")
        drop_unique(place, column)
    clock = VirtualClock()
    same(place, ROWS + 3, column, value)
    feed = place.feed(column, clock=clock)
    (start,), (now,) = feed.earliest(), feed.now()
    assert feed.latest(start, NO_LIMIT) == start, "the newest value is not a second old"
    clock.advance(1)
    assert feed.latest(start, NO_LIMIT) == now
    assert ids(feed, start, now) == [*range(1, ROWS + 1), ROWS + 3]
    # The same value for the database, which may hold texts of another case for equal.
    same(place, ROWS + 1, column, value.upper() if place.kind == "mysql" else value)
    after = feed.latest(now, NO_LIMIT)
    assert ids(feed, now, after) == [ROWS + 1]
    assert ids(feed, start, now) == [*range(1, ROWS + 1), ROWS + 3], "the same as before"
    base = [row["id"] for s in feed.base([now], 3) for b in feed.read(s) for row in b.to_pylist()]
    assert sorted(base) == [*range(1, ROWS + 1), ROWS + 3]
    assert ids(feed, after, feed.latest(after, NO_LIMIT)) == []


@pytest.mark.parametrize(
    ("column", "highest", "next_one"),
    [
        ("day", "'2026-02-01'", "'2026-02-02'"),
        ("seen", "1000", "1001"),
        ("made", "'2026-02-01 10:00:00'", "'2026-02-01 10:00:01'"),
        ("name", "'yes'", "'zed'"),
    ],
)
def test_a_row_that_comes_later_with_a_value_already_seen_is_read(
    place: Place, column: str, highest: str, next_one: str
) -> None:
    """Nothing but a higher value says that the highest one has all its rows. They wait until it is there, where no
    whole number distinguishes the rows."""
    drop_key(place)
    if column in ("made", "name"):
        drop_unique(place, column)
    same(place, ROWS + 1, column, highest)
    feed = place.feed(column)
    (start,) = feed.earliest()
    (now,) = feed.now()
    assert feed.latest(start, NO_LIMIT) == now
    found = ids(feed, start, now)
    assert ROWS + 1 not in found
    assert feed.lag(now).rows == 1
    # The same value for the database, which may hold texts of another case for equal.
    same(place, ROWS + 2, column, highest.upper() if place.kind == "mysql" else highest)
    assert feed.latest(now, NO_LIMIT) == now
    same(place, ROWS + 3, column, next_one)
    after = feed.latest(now, NO_LIMIT)
    assert sorted([*found, *ids(feed, now, after)]) == list(range(1, ROWS + 3))
    base = [
        row["id"]
        for split in feed.base([after], 3)
        for batch in feed.read(split)
        for row in batch.to_pylist()
    ]
    assert sorted(base) == list(range(1, ROWS + 3))


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
def test_rows_of_a_date_that_is_none_are_refused_and_not_lost(place: Place) -> None:
    """Nothing compares with it: behind it, and up to it, a server may find no row."""
    place.run("SET sql_mode = ''; UPDATE orders SET day = '0000-00-00' WHERE id < 4")
    feed = place.feed("day")
    (start,), (now,) = feed.earliest(), feed.now()
    token = feed.latest(start, FeedLimit(rows=1), now)
    with pytest.raises(SourceError, match=r"column 'day' holds '0000-00-00'.*'where'"):
        feed.changes(start, token)
    reader, _ = load_reader({**place.options, "dbtable": "orders", "where": "id >= 4"})
    feed = reader.feed(FeedOptions("day", late_seconds=0))
    (start,), (end,) = feed.earliest(), feed.now()
    assert len(ids(feed, start, end)) == ROWS - 3


@pytest.mark.parametrize("place", ["postgresql", "mysql"], indirect=True)
def test_a_row_that_commits_late_comes_with_those_below_the_highest(place: Place) -> None:
    """Which row was the next lower one when the highest was first seen says nothing of later commits."""
    drop_key(place)
    clock = VirtualClock()
    feed = place.feed("day", clock=clock, late=5.0)
    token = feed.latest({"cursor": None}, NO_LIMIT)
    with open_transaction(place) as insert_and_commit:  # of 1 February
        same(place, ROWS + 2, "day", "'2026-02-02'")
        assert feed.latest(token, NO_LIMIT) == token
        clock.advance(3)
        insert_and_commit()
    clock.advance(3)
    token = feed.latest(token, NO_LIMIT)
    assert ids(feed, {"cursor": None}, token) == list(range(1, ROWS + 2))


@pytest.mark.parametrize("place", ["postgresql", "duckdb"], indirect=True)
def test_a_channel_ends_though_the_rows_behind_its_end_wait(place: Place) -> None:
    drop_key(place)
    feed = place.feed("day")
    same(place, ROWS + 1, "day", "'2026-02-03'")
    (start,) = feed.earliest()
    (end,) = feed.at(datetime(2026, 2, 2, tzinfo=UTC))
    token = feed.before(start, FeedLimit(rows=30), end)
    seen: list[int] = []
    while token is not None:
        seen += ids(feed, start, token)
        start, token = token, feed.before(token, FeedLimit(rows=30), end)
    assert sorted(seen) == list(range(1, ROWS + 1))
    (later,) = feed.at(datetime(2026, 2, 4, tzinfo=UTC))
    assert feed.before(start, NO_LIMIT, later) == start, "other rows of 3 February may come"


def test_base_and_changes_cover_every_row_once(place: Place) -> None:
    feed = place.feed()
    (token,) = feed.now()
    place.fill(ROWS + 1, ROWS + 5)
    base = feed.base([token], 4)
    assert len(base) >= 2
    found = [row["id"] for split in base for batch in feed.read(split) for row in batch.to_pylist()]
    assert sorted(found) == list(range(1, ROWS + 1))
    assert ids(feed, token, feed.latest(token, NO_LIMIT)) == list(range(ROWS + 1, ROWS + 6))


def test_an_empty_table_begins_with_its_first_row(place: Place) -> None:
    place.run("DELETE FROM orders")
    feed = place.feed()
    (token,) = feed.now()
    assert [batch for split in feed.base([token], 2) for batch in feed.read(split)] == []
    assert feed.lag(token).rows == 0
    place.fill(1, 1)
    assert ids(feed, token, feed.latest(token, NO_LIMIT)) == [1]


@pytest.mark.parametrize("place", ["postgresql", "mysql"], indirect=True)
def test_what_is_read_up_to_now_waits_once(place: Place) -> None:
    """As a query with Trigger.AvailableNow: the wait began when the end was seen, and is over for all batches."""
    clock = VirtualClock()
    feed = place.feed(clock=clock, late=5.0)
    (start,), (end,) = feed.earliest(), feed.now()
    assert clock.now() == 0, "nothing is read yet"
    clock.advance(3)  # what Spark does meanwhile
    first = feed.latest(start, FeedLimit(rows=25), end)
    assert clock.now() == 5
    assert feed.latest(first, NO_LIMIT, end) == end
    feed.settled([end])
    assert feed.latest(end, NO_LIMIT, end) == end
    assert clock.now() == 5


@pytest.mark.parametrize("place", ["postgresql", "mysql"], indirect=True)
def test_where_nothing_is_new_nothing_is_waited_for(place: Place) -> None:
    clock = VirtualClock()
    feed = place.feed(clock=clock, late=5.0)
    (end,) = feed.now()
    assert feed.latest(end, NO_LIMIT, end) == end
    assert clock.now() == 0


@pytest.mark.parametrize("place", ["postgresql", "mysql"], indirect=True)
def test_a_row_that_commits_late_belongs_to_what_is_read_up_to_now(place: Place) -> None:
    clock = VirtualClock()
    feed = place.feed(clock=clock, late=5.0)
    with open_transaction(place) as insert_and_commit:
        place.fill(ROWS + 2, ROWS + 2)
        (start,), (end,) = feed.earliest(), feed.now()
        insert_and_commit()
    token = feed.latest(start, NO_LIMIT, end)
    assert clock.now() == 5
    assert ids(feed, start, token) == list(range(1, ROWS + 3))


@pytest.mark.parametrize("place", ["postgresql", "mysql"], indirect=True)
def test_a_row_that_commits_late_is_not_missed(place: Place) -> None:
    """Row 61 took its id before row 62, in a transaction that is open when that is seen.

    No other process reads a DuckDB file while a transaction of its writer is open.
    """
    clock = VirtualClock()
    feed = place.feed(clock=clock, late=5.0)
    token = feed.latest({"cursor": None}, NO_LIMIT)
    clock.advance(6)
    token = feed.latest(token, NO_LIMIT)
    assert ids(feed, {"cursor": None}, token) == list(range(1, ROWS + 1))
    with open_transaction(place) as insert_and_commit:
        place.fill(ROWS + 2, ROWS + 2)
        assert feed.latest(token, NO_LIMIT) == token
        clock.advance(4)
        assert feed.latest(token, NO_LIMIT) == token, "62 was not there 5 seconds ago"
        insert_and_commit()
    clock.advance(2)
    assert ids(feed, token, feed.latest(token, NO_LIMIT)) == [ROWS + 1, ROWS + 2]


class open_transaction:  # noqa: N801 - used as a function
    """Has inserted row `ROWS + 1` already; the call commits."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def __enter__(self) -> Callable[[], None]:
        values = f"({ROWS + 1}, 1, 1, '2026-02-01', '2026-02-01 00:00:00', 'late', 1, TRUE)"
        statement = f"INSERT INTO orders VALUES {values}"
        options = self.place.options
        if self.place.kind == "mysql":
            port, database = options["url"].rpartition(":")[2].split("/")
            self.connection: Any = pymysql.connect(
                host="127.0.0.1",
                port=int(port),
                user=options["user"],
                password=options["password"],
                database=database,
                autocommit=False,
            )
        else:
            import adbc_driver_postgresql.dbapi as adbc

            host = options["url"].partition("//")[2]
            self.connection = adbc.connect(
                f"postgresql://{options['user']}:{options['password']}@{host}"
            )
            statement = statement.replace("orders", f"{options['currentSchema']}.orders")
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
        return self.connection.commit  # type: ignore[no-any-return] # untyped

    def __exit__(self, *error: object) -> None:
        self.connection.close()


def alter(place: Place, column: str, declared: str) -> str:
    if place.kind == "mysql":
        return f"ALTER TABLE orders MODIFY {column} {declared} NULL"
    return f"ALTER TABLE orders ALTER COLUMN {column} DROP NOT NULL"


def test_a_column_that_may_be_null_serves_until_it_is(place: Place) -> None:
    feed = place.feed("seen")
    (token,) = feed.now()
    place.run(f"UPDATE orders SET seen = NULL WHERE id = {ROWS}")
    with pytest.raises(
        OptionError, match=r"'seen', which is read as NULL in at least one row of table .*orders"
    ):
        feed.latest(token, NO_LIMIT)
    with pytest.raises(OptionError, match=r"which is read as NULL in at least one row"):
        place.feed("seen")


def test_a_column_that_was_never_null_and_may_be_now_is_looked_at_again(place: Place) -> None:
    feed = place.feed("big")
    (token,) = feed.now()
    place.run(alter(place, "big", TYPES[place.kind]["big"]))
    place.fill(ROWS + 1, ROWS + 1)
    after = feed.latest(token, NO_LIMIT)
    assert ids(feed, token, after) == [ROWS + 1]
    place.run(f"UPDATE orders SET big = NULL WHERE id = {ROWS - 1}")
    with pytest.raises(OptionError, match=r"'big', which is read as NULL in at least one row"):
        feed.latest(after, NO_LIMIT)


def test_what_is_no_cursor_is_refused_by_name(place: Place) -> None:
    with pytest.raises(OptionError, match=r"'good' of type .*, whose values have no order"):
        place.feed("good")
    with pytest.raises(
        OptionError, match=r"'nothing', which table .* does not have; it has id, big"
    ):
        place.feed("nothing")
    reader, _ = load_reader({**place.options, "dbtable": "orders"})
    with pytest.raises(OptionError, match=r"cursorColumn"):
        reader.feed(FeedOptions())
    with pytest.raises(OptionError, match=r"'name' of type .*cursorOrder=text"):
        reader.feed(FeedOptions("name"))


def test_a_column_that_goes_back_and_a_token_that_is_damaged(place: Place) -> None:
    feed = place.feed()
    (token,) = feed.now()
    place.run("DELETE FROM orders WHERE id > 50")
    with pytest.raises(
        SourceError, match=r"is at id = .*60.*, and the highest value in the table is .*50"
    ):
        feed.latest(token, NO_LIMIT)
    for damaged in ({}, {"cursor": 1, "x": 2}, {"lsn": "0/1"}, {"cursor": "1) OR (1 = 1"}):
        with pytest.raises(SourceError):
            feed.changes(damaged, {"cursor": 40})


def test_a_changed_schema_names_the_column(place: Place) -> None:
    feed = place.feed()
    (token,) = feed.now()
    place.run("ALTER TABLE orders ADD COLUMN note INT")
    with pytest.raises(SchemaError, match=r"new column 'note'"):
        feed.latest(token, NO_LIMIT)


def test_a_tunnel_hands_it_out_once(place: Place, tmp_path: Path) -> None:
    options = {
        **place.options,
        "dbtable": "orders",
        "cursorColumn": "id",
        "lateSeconds": "0",
        "maxRowsPerTrigger": "20",
    }
    tunnel = Tunnel("orders", options, store=str(tmp_path / "tunnels.db"))
    tunnel.create(channels=3)
    place.fill(ROWS + 1, 2 * ROWS)
    found: Counter[int] = Counter()

    def process(delivery: Delivery) -> None:
        found.update(n for batch in delivery.batches for n in batch.column("id").to_pylist())

    tunnel.consume(process, threads=1, drained=True)
    assert found == Counter(range(1, 2 * ROWS + 1))
    assert {view.lag.rows for view in tunnel.describe().channels if view.lag is not None} == {0}


@pytest.mark.parametrize("column", ["id", "made"])
def test_the_parts_of_a_split_channel_are_the_whole(place: Place, column: str) -> None:
    """Each row has one part, by its key, whatever its cursor; negative keys too."""
    feed = place.feed(column)
    (start,) = feed.earliest()
    half = feed.latest(start, FeedLimit(rows=20))
    place.run(f"UPDATE orders SET id = -id WHERE id > {ROWS - 7}")
    tokens = [token for part in feed.divide(half) for token in feed.divide(part)]
    assert len({json.dumps(token) for token in tokens}) == 4
    found = [ids(feed, token, feed.latest(token, NO_LIMIT)) for token in tokens]
    assert len({tuple(sorted({n % 4 for n in each})) for each in found}) == 4
    assert all(len({n % 4 for n in each}) == 1 for each in found)
    passed = set(ids(feed, start, half))
    left = [n for n in ids(feed, start, feed.now()[0]) if n not in passed]
    assert sorted(n for each in found for n in each) == sorted(left)
    assert sum(feed.lag(token).rows or 0 for token in tokens) == len(left)
    cut = feed.latest(tokens[0], FeedLimit(rows=3))
    assert len(ids(feed, tokens[0], cut)) == 3
    assert feed.before(feed.latest(tokens[0], NO_LIMIT), NO_LIMIT, feed.now()[0]) is None


def test_a_channel_is_split_by_a_whole_number_of_its_tables_key(place: Place) -> None:
    feed = place.feed()
    (token,) = feed.now()
    part = feed.divide(token)[0]
    drop = {
        "postgresql": "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
        "mysql": "ALTER TABLE orders DROP PRIMARY KEY",
        "duckdb": "CREATE TABLE other AS FROM orders; DROP TABLE orders; ALTER TABLE other RENAME TO orders",
    }[place.kind]
    place.run(drop)
    without = place.feed()
    with pytest.raises(
        UnsupportedError,
        match=r"a channel of table .* cannot be split.*whole number in the primary",
    ):
        without.divide(token)
    free = {
        "mysql": "ALTER TABLE orders MODIFY id INT",
        "postgresql": "ALTER TABLE orders ALTER id DROP NOT NULL",
    }
    if place.kind in free:
        place.run(free[place.kind])
    with pytest.raises(SourceError, match=r"split by column 'id'.*no channel"):
        without.latest(part, NO_LIMIT)
    with pytest.raises(SourceError, match="not a position in cursor column"):
        without.latest({**part, "part": 2}, NO_LIMIT)


@pytest.mark.spark
@pytest.mark.newest
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "place", [pytest.param("mysql", marks=pytest.mark.soak), "duckdb"], indirect=True
)
def test_spark_reads_it_as_a_stream(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """Batches keep to `maxBytesPerTrigger`: about 58 bytes a row."""
    batches: list[list[int]] = []
    given = {
        **place.options,
        "dbtable": "orders",
        "cursorColumn": "made",
        "lateSeconds": "0",
        "tunnelType": "stream",
        "startingOffsets": "earliest",
        "maxBytesPerTrigger": "1200",
    }

    query = (
        spark.readStream.format("channel")
        .options(**given)
        .load()
        .writeStream.foreachBatch(
            lambda frame, _: batches.append(sorted(r.id for r in frame.collect()))
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    assert [n for batch in batches for n in batch] == list(range(1, ROWS + 1))
    sizes = {len(batch) for batch in batches[:-1]}
    assert len(batches) >= 3
    assert len(sizes) == 1
    assert max(sizes) <= 30


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
def test_a_mysql_session_that_is_killed_passes(place: Place) -> None:
    feed = place.feed()
    assert isinstance(feed, CursorFeed)
    with feed.looking() as look:
        place.run("SELECT 1")  # another session may
        number = int(
            place.run("SELECT max(id) FROM information_schema.processlist WHERE user = 'tester'")
        )
        place.run(f"KILL {number}")
        with pytest.raises(SourceError) as lost:
            look.highest("id")
    assert feed.is_passing(lost.value)
    assert not feed.is_passing(SourceError("table 't' does not exist"))
    assert feed.latest({"cursor": None}, NO_LIMIT) == {"cursor": ROWS}


@pytest.mark.parametrize("place", ["duckdb"], indirect=True)
def test_a_duckdb_file_that_another_process_writes_passes(place: Place) -> None:
    place.options["lockTimeout"] = "0.05"
    feed = place.feed()
    program = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, place.options["path"]]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(SourceError, match="another process held the file") as held:
                feed.latest({"cursor": None}, NO_LIMIT)
        finally:
            holder.kill()
    assert feed.is_passing(held.value)
    assert feed.latest({"cursor": None}, NO_LIMIT) == {"cursor": ROWS}
