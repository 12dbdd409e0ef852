"""Several tables by one slot, on a real server."""

import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.connectors.base.registry import load_reader
from spark_channel.connectors.postgresql import PostgresReader
from spark_channel.connectors.sql.feed.log_tables import listed
from spark_channel.errors import ChannelError, OptionError, SchemaError, SourceError, TunnelError
from tests.servers.postgres import PostgresServer

NO_LIMIT = FeedLimit()
_numbers = itertools.count()


class Shop:
    """A schema with tables, its publication, and a slot of the same name."""

    def __init__(self, server: PostgresServer, *names: str) -> None:
        self.server = server
        self.name = f"shop_{next(_numbers)}"
        server.psql(f"CREATE SCHEMA {self.name}; CREATE PUBLICATION {self.name}")
        for name in names:
            self.add(name)

    def add(self, name: str, columns: str = "id int PRIMARY KEY, item text") -> None:
        self.run(f"CREATE TABLE $s.{name} ({columns}); ALTER PUBLICATION $s ADD TABLE $s.{name}")

    def run(self, statement: str) -> str:
        return self.server.psql(statement.replace("$s", self.name))

    def reader(self, **options: Any) -> PostgresReader:
        reader, _ = load_reader({**self.server.login, "dbtable": "any", **options})
        assert isinstance(reader, PostgresReader)
        return reader

    def feed(
        self, tables: str = "$s.*", *, has_base: bool = True, mode: str = "fail", **options: Any
    ) -> ChangeFeed:
        """`mode`: option `onSchemaChange`."""
        given = FeedOptions(
            slot=self.name,
            publication=self.name,
            tables=tables.replace("$s", self.name),
            has_base=has_base,
            evolves=mode == "evolve",
            ignores=mode == "ignore",
        )
        return self.reader(**options).tables_feed(given)

    def one(self, name: str, slot: str) -> ChangeFeed:
        """One table by its own slot."""
        reader = self.reader(dbtable=f"{self.name}.{name}")
        return reader.feed(FeedOptions(slot=slot, publication=self.name))

    def state(self, name: str) -> dict[int, str]:
        lines = self.run(f"SELECT id, item FROM $s.{name}").splitlines()
        return {int(line.split("|")[0]): line.split("|")[1] for line in lines}

    def drop(self) -> None:
        self.run(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE '$s%'; "
            "DROP PUBLICATION $s; SET client_min_messages = error; DROP SCHEMA $s CASCADE"
        )


@pytest.fixture
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    made = Shop(postgres_server, "orders", "items")
    yield made
    made.drop()


def rows(feed: ChangeFeed, after: Any, upto: Any) -> list[dict[str, Any]]:
    return [
        row
        for split in feed.changes(after, upto)
        for batch in feed.read(split)
        for row in batch.to_pylist()
    ]


def brief(shop: Shop, found: list[dict[str, Any]], name: str) -> list[tuple[Any, ...]]:
    """The rows of one table."""
    return [
        (row["_op"], row["id"], row["item"])
        for row in found
        if row["_table"] == f"{shop.name}.{name}"
    ]


def begin(feed: ChangeFeed) -> Any:
    made = feed.with_base(feed.now())
    assert made is not None
    return made[0]


def waits(token: Any) -> bool:
    return any("since" in each for each in token["tables"].values())


def follow(
    feed: ChangeFeed, at: Any, limit: FeedLimit = NO_LIMIT
) -> tuple[Any, list[dict[str, Any]]]:
    """Range after range, each confirmed, until the existing rows of all tables are read, and the changes till then."""
    out = []
    while waits(at):
        end = feed.latest(at, limit)
        out += rows(feed, at, end)
        feed.settle(end)
        at = end
    return at, out


def played(found: list[tuple[Any, ...]]) -> dict[int, str]:
    state: dict[int, str] = {}
    for what, key, item in found:
        if what == "truncate":
            state.clear()
        elif what == "delete":
            state.pop(key, None)
        else:
            state[key] = item
    return state


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("shop.orders,shop.items", ["shop.orders", "shop.items"]),
        (' shop.* , "My, shop"."A""b" ', ["shop.*", '"My, shop"."A""b"']),
        ("*", ["*"]),
    ],
)
def test_a_list_of_tables(text: str, items: list[str]) -> None:
    assert listed(text) == items


@pytest.mark.parametrize("text", ["", " ", ",", "a,,b", "a, ", '"a', 'a, "b'])
def test_a_list_that_is_none(text: str) -> None:
    with pytest.raises(OptionError, match=r"option 'tables' got"):
        listed(text)


def test_the_changes_are_those_of_a_slot_for_each_table(shop: Shop) -> None:
    """One decoding of the log, with transactions over both tables, held against one for each table."""
    feed = shop.feed(has_base=False)
    (start,) = feed.now()
    for name in ("orders", "items"):
        shop.run(f"SELECT pg_copy_logical_replication_slot('$s', '$s_{name}', false)")
    chance = random.Random(3)
    statements = []
    for number in range(300):
        table, key = f"$s.{chance.choice(['orders', 'items'])}", chance.randrange(40)
        statements.append(
            chance.choice(
                [
                    f"INSERT INTO {table} VALUES ({key}, '{number}') ON CONFLICT (id) DO UPDATE SET item = '{number}';",
                    f"DELETE FROM {table} WHERE id = {key};",
                    f"UPDATE {table} SET id = {100 + number} WHERE id = {key};",
                    "COMMIT; BEGIN;",
                ]
            )
        )
    shop.run("BEGIN;" + "".join(statements) + "TRUNCATE $s.orders, $s.items; COMMIT")
    shop.run("INSERT INTO $s.items VALUES (1, 'last')")
    end = feed.latest(start, NO_LIMIT)
    found = rows(feed, start, end)
    assert len(found) > 100
    for name in ("orders", "items"):
        single = shop.one(name, f"{shop.name}_{name}")
        expected = rows(single, {"lsn": start["lsn"]}, {"lsn": end["lsn"]})
        mine = [row for row in found if row["_table"] == f"{shop.name}.{name}"]
        assert [{k: v for k, v in row.items() if k != "_table"} for row in mine] == expected
    feed.settle(end)
    assert feed.latest(end, NO_LIMIT) == end


def test_existing_rows_of_each_table_come_beside_the_changes_of_all(shop: Shop) -> None:
    shop.run(
        "INSERT INTO $s.orders SELECT i, 'old' FROM generate_series(1, 100) i;"
        "INSERT INTO $s.items SELECT i, 'old' FROM generate_series(1, 50) i"
    )
    feed = shop.feed("$s.orders, $s.items")
    at = begin(feed)
    shop.run("UPDATE $s.items SET item = 'new' WHERE id <= 5; DELETE FROM $s.orders WHERE id = 50")
    first = feed.latest(at, FeedLimit(rows=40))
    found = rows(feed, at, first)
    assert [row for row in brief(shop, found, "items") if row[0] != "read"] == [
        ("update", n, "new") for n in range(1, 6)
    ], "the changes of the table whose turn has not come"
    assert {row[0] for row in brief(shop, found, "orders")} == {"delete", "read"}
    lag = feed.lag(first)
    assert [(each.name.rpartition(".")[2], each.stage, each.base_read) for each in lag.tables] == [
        ("orders", "base", 34),
        ("items", "base", 0),
    ]
    assert lag.kept is not None
    at, more = follow(feed, first, FeedLimit(rows=40))
    assert feed.latest(at, NO_LIMIT) == at
    for name in ("orders", "items"):
        assert played(brief(shop, found + more, name)) == shop.state(name)
    assert len(found + more) == 99 + 1 + 50 + 5, (
        "a row that changes before its chunk is read arrives by both"
    )
    assert [each.stage for each in feed.lag(at).tables] == ["changes", "changes"]


def behind(feed: ChangeFeed, at: Any) -> dict[str, int | None]:
    """The changes of each table that wait in the log."""
    return {each.name.rpartition(".")[2]: each.changes for each in feed.lag(at).tables}


def test_the_changes_that_wait_are_counted_for_each_table(shop: Shop) -> None:
    shop.add("other")
    feed = shop.feed("$s.orders, $s.items", has_base=False)
    (at,) = feed.now()
    assert behind(feed, at) == {"orders": 0, "items": 0}
    assert {each.seconds for each in feed.lag(at).tables} == {0.0}
    shop.run("INSERT INTO $s.orders SELECT i, 'x' FROM generate_series(1, 50) i")
    time.sleep(0.2)
    shop.run(
        "INSERT INTO $s.items VALUES (1, 'x'); UPDATE $s.items SET item = 'y'; INSERT INTO $s.other VALUES (1)"
    )
    lag = feed.lag(at)
    orders, items = lag.tables
    assert (orders.changes, items.changes, lag.rows) == (50, 2, 52), (
        "one that is not followed is not counted"
    )
    assert orders.nbytes is not None
    assert orders.nbytes >= 50 * 20
    assert orders.seconds is not None
    assert items.seconds is not None
    assert items.seconds + 0.2 <= orders.seconds == lag.seconds
    shop.run("TRUNCATE $s.orders, $s.items, $s.other")
    assert behind(feed, at) == {"orders": 51, "items": 3}
    end = feed.latest(at, NO_LIMIT)
    assert behind(feed, end) == {"orders": 0, "items": 0}, (
        "the slot was not advanced, and shows them still"
    )


def test_the_changes_of_a_table_that_joined_are_counted_from_there(shop: Shop) -> None:
    feed = shop.feed("$s.orders", has_base=False)
    (at,) = feed.now()
    shop.run("INSERT INTO $s.items VALUES (1, 'early'); INSERT INTO $s.orders VALUES (1, 'early')")
    at = feed.joining(f"{shop.name}.items", again=False)(at)
    assert behind(feed, at) == {"orders": 1, "items": 0}
    shop.run("INSERT INTO $s.items VALUES (2, 'late')")
    assert behind(feed, at) == {"orders": 1, "items": 1}


def test_more_changes_than_one_look_counts_are_not_known(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("slot", "feed"):
        monkeypatch.setattr(f"spark_channel.connectors.postgresql.log.{module}.MOST_COUNTED", 20)
    feed = shop.feed(has_base=False)
    (at,) = feed.now()
    shop.run(
        "INSERT INTO $s.orders SELECT i, 'x' FROM generate_series(1, 30) i; INSERT INTO $s.items VALUES (1, 'x')"
    )
    lag = feed.lag(at)
    assert lag.rows is None
    assert {
        each.name.rpartition(".")[2]: (each.changes, each.seconds is None) for each in lag.tables
    } == {
        "orders": (None, False),
        "items": (None, True),
    }
    assert lag.seconds is not None, "the first change is the oldest"


def test_a_table_joins_and_one_is_read_again(shop: Shop) -> None:
    shop.run("INSERT INTO $s.orders SELECT i, 'old' FROM generate_series(1, 20) i")
    feed = shop.feed("$s.orders")
    at, _ = follow(feed, begin(feed))
    shop.run(
        "CREATE TABLE $s.later (id int PRIMARY KEY, item text);"
        "INSERT INTO $s.later SELECT i, 'old' FROM generate_series(1, 30) i"
    )
    shop.run("ALTER PUBLICATION $s ADD TABLE $s.later")  # it gets what changes from now on
    at = feed.joining(f"{shop.name}.later", again=False)(at)
    with pytest.raises(TunnelError, match="already"):
        feed.joining(f"{shop.name}.later", again=False)(at)
    lag = feed.lag(at)
    assert lag.tables[-1].stage == "waits"
    assert (lag.rows, lag.base_read, lag.base_rows) == (None, 0, None), (
        "30 rows wait, which were not counted yet"
    )
    shop.run(
        "UPDATE $s.later SET item = 'new' WHERE id = 3; UPDATE $s.orders SET item = 'new' WHERE id = 3"
    )
    at, found = follow(shop.feed("$s.orders"), at)
    assert brief(shop, found, "orders") == [("update", 3, "new")]
    later = brief(shop, found, "later")
    assert later[0] == ("update", 3, "new")
    assert sorted(row[1] for row in later if row[0] == "read") == list(range(1, 31))
    assert played(later) == shop.state("later")
    at = feed.joining(f"{shop.name}.orders", again=True)(at)
    at, found = follow(feed, at)
    assert brief(shop, found, "later") == []
    assert {row[0] for row in brief(shop, found, "orders")} == {"read"}
    assert played(brief(shop, found, "orders")) == shop.state("orders")


@pytest.mark.parametrize("is_behind", [False, True], ids=["read", "not read"])
def test_a_table_whose_columns_changed_before_it_joined(shop: Shop, is_behind: bool) -> None:
    """The log still has rows from before, which are not its own, whether the tunnel has read that far or not."""
    feed = shop.feed("$s.orders")
    at, _ = follow(feed, begin(feed))
    shop.run(
        "INSERT INTO $s.items VALUES (1, 'x'); ALTER TABLE $s.items ADD n int; INSERT INTO $s.items VALUES (2)"
    )
    at = at if is_behind else feed.latest(at, NO_LIMIT)
    at = feed.joining(f"{shop.name}.items", again=False)(at)
    shop.run("UPDATE $s.items SET n = 7 WHERE id = 2")
    _, found = follow(feed, at)
    mine = [
        (row["_op"], row["id"], row["n"]) for row in found if row["_table"] == f"{shop.name}.items"
    ]
    assert mine[0] == ("update", 2, 7)
    assert sorted(mine[1:]) == [("read", 1, None), ("read", 2, 7)]


def test_existing_rows_wait_for_transactions_that_ran_when_their_table_joined(shop: Shop) -> None:
    import psycopg

    feed = shop.feed("$s.orders")
    at, _ = follow(feed, begin(feed))
    shop.run("INSERT INTO $s.items VALUES (1, 'old')")
    at = feed.latest(at, NO_LIMIT)
    server = shop.server
    with psycopg.connect(
        host=str(server.directory), port=server.port, user=server.user, dbname="postgres"
    ) as session:
        session.execute(f"UPDATE {shop.name}.orders SET item = 'x'; SELECT txid_current()")
        at = feed.joining(f"{shop.name}.items", again=False)(at)
        for _ in range(3):
            end = feed.latest(at, NO_LIMIT)
            assert end != at, "a reader that is to end when all is read does not end"
            assert rows(feed, at, end) == []
            at = end
    _, found = follow(feed, at)
    assert brief(shop, found, "items") == [("read", 1, "old")]


def test_a_pattern_names_the_tables_of_the_publication(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.run("CREATE TABLE $s.apart (id int PRIMARY KEY)")
    (token,) = shop.feed(has_base=False).now()
    assert list(token["tables"]) == [f"{shop.name}.items", f"{shop.name}.orders"]
    (warning,) = [each.getMessage() for each in caplog.records]
    assert f"does not have {shop.name}.apart" in warning
    assert "ALTER PUBLICATION" in warning


def test_a_name_that_needs_quotes_has_them(shop: Shop) -> None:
    shop.add('"Or.ders"')
    feed = shop.feed('$s."Or.ders"', has_base=False)
    (start,) = feed.now()
    shop.run("INSERT INTO $s.\"Or.ders\" VALUES (1, 'x')")
    (row,) = rows(feed, start, feed.latest(start, NO_LIMIT))
    assert row["_table"] == f'{shop.name}."Or.ders"'


@pytest.mark.parametrize(
    ("columns", "error", "what"),
    [
        (
            "id int, item text",
            SourceError,
            r"'\S+\.odd'(, whose existing rows are read .*)? cannot be read beside its changes: it has no primary key",
        ),
        (
            "id int PRIMARY KEY, _table text",
            SchemaError,
            r"column '_table', which is a name of the feed's own",
        ),
        ("id int PRIMARY KEY, a int[]", SchemaError, r"column 'a'.*is an array.*its own slot"),
    ],
)
def test_a_table_that_cannot_be_followed_is_refused_by_name_and_leaves_no_slot(
    shop: Shop, columns: str, error: type[ChannelError], what: str
) -> None:
    shop.add("odd", columns)
    with pytest.raises(error, match=what):
        shop.feed().now()
    assert shop.run("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '$s'") == "0"
    feed = shop.feed("$s.orders")
    begin(feed)
    with pytest.raises(error, match=what):
        feed.joining(f"{shop.name}.odd", again=False)


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (
            "DROP TABLE $s.items; CREATE TABLE $s.items (id int PRIMARY KEY)",
            SourceError,
            r"'\S+\.items' of the tunnel was dropped, and made again.* resnapshot",
        ),
        (
            "ALTER TABLE $s.items RENAME TO other",
            SourceError,
            r"'\S+\.items' of the tunnel is '\S+\.other' now",
        ),
        (
            "ALTER PUBLICATION $s SET TABLE $s.orders",
            SourceError,
            r"no longer holds \S+\.items, .* resnapshot",
        ),
    ],
)
def test_a_table_that_changed_is_told(
    shop: Shop, change: str, error: type[ChannelError], what: str
) -> None:
    feed = shop.feed()
    at = begin(feed)
    shop.run(change)
    with pytest.raises(error, match=f"{what}.*tunnel remove-table") as raised:
        feed.latest(at, NO_LIMIT)
    assert "eset the tunnel" not in str(raised.value), "the other tables are not read again"


def test_a_table_that_came_back_to_the_publication_is_read_again(shop: Shop) -> None:
    """Nothing else shows which of its changes the log lacks."""
    shop.run("INSERT INTO $s.items VALUES (1, 'old'), (2, 'old')")
    feed = shop.feed()
    at, _ = follow(feed, begin(feed))
    shop.run(
        "ALTER PUBLICATION $s DROP TABLE $s.items; UPDATE $s.items SET item = 'lost' WHERE id = 1; "
        "ALTER PUBLICATION $s ADD TABLE $s.items; INSERT INTO $s.orders VALUES (1, 'new')"
    )
    with pytest.raises(SourceError, match=r"the entry of \S+\.items in publication .* resnapshot"):
        feed.latest(at, NO_LIMIT)
    with pytest.raises(SourceError, match="the entry of"):
        shop.feed().latest(at, NO_LIMIT)
    at = feed.joining(f"{shop.name}.items", again=True)(at)
    at, found = follow(feed, at)
    assert played(brief(shop, found, "items")) == shop.state("items")
    assert brief(shop, found, "orders") == [("insert", 1, "new")]
    assert feed.latest(at, NO_LIMIT) == at


def test_a_name_that_the_tunnel_does_not_have_is_told(shop: Shop) -> None:
    at = begin(shop.feed("$s.orders"))
    with pytest.raises(
        OptionError, match=r"'\S+\.items', which the tunnel does not follow: .*add-table --table"
    ):
        shop.feed("$s.orders, $s.items").latest(at, NO_LIMIT)
    with pytest.raises(OptionError, match="table 'nowhere' does not exist"):
        shop.feed("nowhere").now()
    with pytest.raises(SourceError, match=r"no table that 'absent\.\*' names"):
        shop.feed("absent.*").now()
    with pytest.raises(OptionError, match="option 'columns' goes with one table"):
        shop.feed(columns="id")


def test_an_operation_that_the_publication_lost_is_told(shop: Shop) -> None:
    feed = shop.feed()
    at, _ = follow(feed, begin(feed))
    shop.run(
        "INSERT INTO $s.items VALUES (1, 'a'); ALTER PUBLICATION $s SET (publish = 'insert'); "
        "DELETE FROM $s.items"
    )
    with pytest.raises(
        SourceError, match=r"does not publish update, delete, truncate, .*resnapshot"
    ):
        feed.latest(at, NO_LIMIT)
