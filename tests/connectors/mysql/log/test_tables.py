"""Several tables by one connection to the binary log, on a real server."""

import json
import logging
import random
import threading
from pathlib import Path
from typing import Any

import pymysql
import pytest

from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.errors import OptionError, SchemaError, SourceError, TunnelError
from spark_channel.tunnel import Tunnel
from tests.connectors.mysql.log.test_feed import NO_LIMIT, rows
from tests.connectors.mysql.log.test_snapshot import played, state_of
from tests.connectors.mysql.shop import Shop
from tests.tunnel.children import Child

Row = dict[str, Any]


def tables_of(shop: Shop, tables: str = "$d.*", **options: Any) -> ChangeFeed:
    given = FeedOptions(tables=tables.replace("$d", shop.database), has_base=True, **options)
    return shop.reader("x", binlog="true").tables_feed(given)


def made(shop: Shop, *names: str, rows: int = 0) -> None:
    for name in names:
        shop.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY, item VARCHAR(20))")
        if rows:
            shop.sql(f"INSERT INTO {name} SELECT seq, 'old' FROM seq_1_to_{rows}")


def begin(feed: ChangeFeed) -> Any:
    found = feed.with_base(feed.now())
    assert found is not None
    return found[0]


def of(shop: Shop, found: list[Row], name: str) -> list[tuple[Any, ...]]:
    return [
        (row["_op"], row["id"], row["item"])
        for row in found
        if row["_table"] == f"{shop.database}.{name}"
    ]


def follow(feed: ChangeFeed, at: Any, limit: FeedLimit = NO_LIMIT) -> tuple[Any, list[Row]]:
    """Range after range, until nothing is left."""
    out: list[Row] = []
    while (end := feed.latest(at, limit)) != at:
        out += rows(feed, at, end)
        at = end
    return at, out


def test_tables_are_read_in_chunks_beside_the_changes_of_all(logged: Shop) -> None:
    made(logged, "orders", "items", rows=100)
    made(logged, "empty", "`odd, name`")
    feed = tables_of(logged)
    token = begin(feed)
    assert set(feed.tables(token)) == {
        *(f"{logged.database}.{name}" for name in ("orders", "items", "empty", "`odd, name`"))
    }
    logged.sql(
        "BEGIN; UPDATE items SET item = 'new' WHERE id <= 3; UPDATE orders SET id = 200 WHERE id = 2; COMMIT;"
        "DELETE FROM items WHERE id = 50; INSERT INTO `odd, name` VALUES (1, 'odd'); CREATE TABLE other (id INT)"
    )
    first = feed.latest(token, FeedLimit(rows=20))
    found = rows(feed, token, first)
    assert rows(feed, token, first) == found, "a range can be read again"
    lag = feed.lag(first)
    assert {each.name.partition(".")[2]: each.stage for each in lag.tables} == {
        "empty": "changes",
        "items": "base",
        "orders": "base",
        "`odd, name`": "changes",
    }
    at, more = follow(feed, first, FeedLimit(rows=20))
    found += more
    assert "base" not in at
    for name in ("orders", "items", "`odd, name`"):
        of_one = of(logged, found, name)
        assert played(of_one) == state_of(logged, name)
        keys = [row[1] for row in of_one if row[0] == "read"]
        assert len(keys) == len(set(keys))
    assert [row for row in of(logged, found, "items") if row[0] != "read"] == [
        *(("update", n, "new") for n in (1, 2, 3)),
        ("delete", 50, "old"),
    ]
    assert {row["_table"] for row in found} == {*feed.tables(token)} - {f"{logged.database}.empty"}
    assert feed.latest(at, NO_LIMIT) == at


def test_a_statement_that_ends_one_table_leaves_the_others(
    logged: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The range before it is delivered; the error names the table; without it, the tunnel continues there."""
    made(logged, "orders", "items")
    feed = tables_of(logged)
    (token,) = feed.now()
    logged.sql(
        "INSERT INTO items VALUES (1, 'a'); INSERT INTO orders VALUES (1, 'a'); RENAME TABLE items TO things; "
        "INSERT INTO orders VALUES (2, 'b')"
    )
    end = feed.latest(token, NO_LIMIT)
    assert of(logged, rows(feed, token, end), "items") == [("insert", 1, "a")]
    assert of(logged, rows(feed, token, end), "orders") == [("insert", 1, "a")]
    named = rf"table '{logged.database}.items' cannot be followed .*renames it.*remove-table"
    with pytest.raises(SourceError, match=named):
        feed.latest(end, NO_LIMIT)
    assert {each.changes for each in feed.lag(end).tables} == {None}
    rest = feed.leaving("items")(end)
    assert of(logged, follow(feed, rest)[1], "orders") == [("insert", 2, "b")]
    with pytest.raises(TunnelError, match="only one"):
        feed.leaving("orders")(rest)


def test_a_table_that_is_dropped_ends_nothing_and_one_made_again_is_read_again(
    logged: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    made(logged, "orders", "items", rows=10)
    feed = tables_of(logged)
    token = begin(feed)
    logged.sql(
        "INSERT INTO items VALUES (11, 'a'); DROP TABLE items; INSERT INTO orders VALUES (11, 'b')"
    )
    caplog.set_level(logging.WARNING)
    at, found = follow(feed, token)
    assert of(logged, found, "items") == [("insert", 11, "a")]
    assert played(of(logged, found, "orders")) == state_of(logged, "orders")
    assert "was dropped: its changes up to then are delivered" in caplog.text
    assert {each.name.partition(".")[2]: each.stage for each in feed.lag(at).tables} == {
        "items": "dropped",
        "orders": "changes",
    }
    made(logged, "items", rows=5)
    logged.sql("INSERT INTO orders VALUES (12, 'c')")
    feed = tables_of(logged)
    with pytest.raises(SourceError, match=r"items' was dropped, and made again.*tunnel resnapshot"):
        follow(feed, at)
    again = feed.joining("items", again=True)(at)
    logged.sql("INSERT INTO items VALUES (6, 'later')")
    _, found = follow(feed, again)
    assert played(of(logged, found, "items")) == state_of(logged, "items")
    assert of(logged, found, "orders") == [("insert", 12, "c")]


def test_a_chunk_of_a_table_that_is_replaced_has_none_of_its_rows(logged: Shop) -> None:
    made(logged, "items", "orders", rows=30)
    feed = tables_of(logged)
    token = begin(feed)
    end = feed.latest(token, FeedLimit(rows=20))
    assert len(of(logged, rows(feed, token, end), "items")) == 20
    made(logged, "other", rows=10)  # as tools do that change a schema while it is used
    logged.sql("RENAME TABLE items TO old, other TO items")
    assert rows(feed, token, end) == []
    with pytest.raises(SourceError, match=r"items' cannot be followed .*renames it"):
        follow(feed, end)


def test_a_table_joins_and_one_is_read_again_behind_what_cannot_be_followed(logged: Shop) -> None:
    made(logged, "orders", rows=10)
    feed = tables_of(logged, "orders")
    token, _ = follow(feed, begin(feed))
    made(logged, "items", rows=20)
    logged.sql("UPDATE items SET item = 'before'; UPDATE orders SET item = 'x' WHERE id = 1")
    joined = feed.joining("items", again=False)(token)
    with pytest.raises(TunnelError, match=r"has table .*items' already"):
        feed.joining("items", again=False)(joined)
    logged.sql("UPDATE items SET item = 'after' WHERE id <= 2; DELETE FROM items WHERE id = 3")
    at, found = follow(feed, joined, FeedLimit(rows=7))
    assert played(of(logged, found, "items")) == state_of(logged, "items")
    assert [row for row in of(logged, found, "items") if row[0] != "read"] == [
        ("update", 1, "after"),
        ("update", 2, "after"),
        ("delete", 3, "before"),
    ], "its changes from then on, once"
    assert of(logged, found, "orders") == [("update", 1, "x")]
    # It is followed again behind the statement; its existing rows include earlier changes.
    logged.sql(
        "UPDATE items SET item = '7'; ALTER TABLE items MODIFY item INT; UPDATE orders SET item = 'y' WHERE id = 1"
    )
    end = feed.latest(at, NO_LIMIT)
    assert len(of(logged, rows(feed, at, end), "items")) == 19
    with pytest.raises(SchemaError, match=r"items' has column 'item' of another type.*resnapshot"):
        feed.latest(end, NO_LIMIT)
    again = feed.joining("items", again=True)(end)
    logged.sql("UPDATE items SET item = 8 WHERE id = 1")
    _, found = follow(feed, again)
    items = of(logged, found, "items")
    assert items.count(("update", 1, 8)) == 1
    assert {key: str(item) for key, item in played(items).items()} == state_of(logged, "items")
    assert of(logged, found, "orders") == [("update", 1, "y")]


def test_a_table_that_joins_where_the_position_is_far_behind_the_log(logged: Shop) -> None:
    """Its changes of before are not delivered, so no chunk may leave their rows to them."""
    made(logged, "orders", "items", rows=30)
    feed = tables_of(logged, "orders")
    token, _ = follow(feed, begin(feed))
    for number in range(8):
        logged.sql(f"UPDATE orders SET item = 'v{number}' WHERE id <= 10")
    logged.sql("UPDATE items SET item = 'before' WHERE id < 5")
    joined = feed.joining("items", again=False)(token)
    logged.sql("UPDATE items SET item = 'after' WHERE id = 1")
    _, found = follow(feed, joined, FeedLimit(rows=10))
    assert [row for row in of(logged, found, "items") if row[0] != "read"] == [
        ("update", 1, "after")
    ]
    assert played(of(logged, found, "items")) == state_of(logged, "items")
    assert len(of(logged, found, "orders")) == 80


def test_each_batch_has_the_columns_of_its_rows(logged: Shop) -> None:
    made(logged, "orders", "items")
    (start,) = tables_of(logged).now()
    logged.sql(
        "INSERT INTO items VALUES (1, 'a'); ALTER TABLE items ADD n INT DEFAULT 5; "
        "INSERT INTO items VALUES (2, 'b', 6); INSERT INTO orders VALUES (1, 'a'); "
        "ALTER TABLE items DROP item, MODIFY n BIGINT; "
        "INSERT INTO items VALUES (3, 5000000000); ALTER TABLE orders ADD INDEX (item)"
    )
    failing = tables_of(logged)
    end = failing.latest(start, NO_LIMIT)
    assert [row["id"] for row in rows(failing, start, end)] == [1]
    with pytest.raises(SchemaError, match=r"items' has .*column.*onSchemaChange=evolve"):
        failing.latest(end, NO_LIMIT)
    evolved = tables_of(logged, evolves=True)
    at, found = follow(evolved, end)
    of_items = [row for row in found if row["_table"].endswith(".items")]
    assert [(row["id"], row.get("n")) for row in of_items] == [(2, 6), (3, 5_000_000_000)]
    assert "item" not in of_items[-1]
    assert tables_of(logged).latest(at, NO_LIMIT) == at, (
        "for good, or until it has read past the change"
    )
    ignoring = tables_of(logged, ignores=True)
    logged.sql("ALTER TABLE items MODIFY n VARCHAR(20)")
    with pytest.raises(SchemaError, match="'n'"):
        follow(ignoring, at)


def test_what_cannot_begin_is_refused_by_name(logged: Shop) -> None:
    made(logged, "orders")
    logged.sql(
        "CREATE TABLE plain (item VARCHAR(20)); CREATE TABLE own (id INT PRIMARY KEY, _op INT)"
    )
    with pytest.raises(SourceError, match=r"plain' cannot be read beside its changes.*primary key"):
        tables_of(logged, "orders, plain").now()
    with pytest.raises(SchemaError, match="column '_op', which is a name of the feed's own"):
        tables_of(logged, "own").now()
    with pytest.raises(OptionError, match="table 'nowhere' does not exist"):
        tables_of(logged, "nowhere").now()
    with pytest.raises(SourceError, match=r"'nowhere\.\*', which matches no table in"):
        tables_of(logged, "nowhere.*").now()
    with pytest.raises(OptionError, match="several tables of MySQL are followed by the binary log"):
        logged.reader("x").tables_feed(FeedOptions(tables="orders"))
    with pytest.raises(OptionError, match="'columns' goes with one table"):
        logged.reader("x", binlog="true", columns="id").tables_feed(FeedOptions(tables="orders"))
    (token,) = tables_of(logged, "orders").now()
    with pytest.raises(
        OptionError, match=r"names 'own', which the tunnel does not follow.*add-table"
    ):
        tables_of(logged, "orders, own").latest(token, NO_LIMIT)
    for damaged in (
        {},
        {**token, "tables": {}},
        {**token, "gtid": 5},
        {**token, "tables": {"a": 1}},
    ):
        with pytest.raises(SourceError, match="is not a position of several tables"):
            tables_of(logged, "orders").latest(damaged, NO_LIMIT)


@pytest.mark.parametrize("seed", range(3))
def test_any_history_of_tables_is_copied_whole(logged: Shop, seed: int) -> None:
    """Ranges are read again, tables join, are read again, are emptied and altered, logs rotate."""
    chance = random.Random(seed)
    names = ["a", "b", "c"]
    made(logged, *names, rows=60)
    feed = tables_of(logged, "a, b", evolves=True)
    at, out = begin(feed), []
    known, ends = {"a", "b"}, 0
    while ends < 25 or "base" in at:
        statements = []
        for _ in range(chance.randrange(6)):
            name, key = chance.choice(names), chance.randrange(90)
            what = chance.random()
            statements.append(
                f"DELETE FROM {name} WHERE id = {key}"
                if what < 0.3
                else f"REPLACE INTO {name} (id, item) VALUES ({key}, 'v{chance.randrange(999)}')"
                if what < 0.9
                else f"TRUNCATE {name}"
                if what < 0.92
                else f"ALTER TABLE {name} ADD IF NOT EXISTS n INT"
                if what < 0.95
                else "FLUSH BINARY LOGS"
            )
        if statements and ends < 25:
            logged.sql("; ".join(statements))
        if chance.random() < 0.1 and ends < 20:
            name = chance.choice(names)
            at = feed.joining(name, again=name in known)(at)
            known.add(name)
        if chance.random() < 0.2:
            feed = tables_of(logged, "a, b", evolves=True)
        end = feed.latest(at, FeedLimit(rows=chance.choice([5, 20, 1000])))
        if chance.random() < 0.3:
            rows(feed, at, end)  # it dies before its checkpoint
            if ends < 25:
                logged.sql(f"REPLACE INTO a (id, item) VALUES ({chance.randrange(90)}, 'again')")
        out += rows(feed, at, end)
        at, ends = end, ends + 1
    at, rest = follow(feed, at)
    for name in known:
        assert played(of(logged, out + rest, name)) == state_of(logged, name)


CONSUMER = """
import json, sys
import pymysql
from spark_channel.tunnel import Tunnel

source, server, schema, store, drained = json.loads(sys.argv[1])
sys.stdin.readline()

def process(delivery):
    rows = 0
    with pymysql.connect(**server) as session, session.cursor() as cursor:  # one transaction
        key = delivery.channel, delivery.sequence
        fresh = cursor.execute(f"INSERT IGNORE INTO {schema}_copy.done VALUES (%s, %s)", key)
        for batch in delivery.batches:
            for row in batch.to_pylist() if fresh else ():
                rows += 1
                values = row["_table"].split(".")[1], row["_op"], row["id"], row["item"]
                cursor.execute(f"INSERT INTO {schema}_copy.events (name, op, id, item) VALUES (%s, %s, %s, %s)", values)
        session.commit()
    sys.stdout.write(f"{rows}\\n")
    sys.stdout.flush()

Tunnel("shop", source, store=store).consume(process, threads=2, drained=drained)
"""


@pytest.mark.timeout(180)
def test_consumers_that_are_killed_and_overlap_lose_and_double_nothing(
    logged: Shop, tmp_path: Path
) -> None:
    """Two clients at a time share the tunnel; the log rotates; a table joins."""
    made(logged, "orders", "items", rows=3000)
    copy = f"{logged.database}_copy"
    logged.sql(
        f"CREATE DATABASE {copy}; CREATE TABLE {copy}.events (n INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(20), "
        f"op VARCHAR(9), id INT, item VARCHAR(20)); "
        f"CREATE TABLE {copy}.done (channel VARCHAR(99), sequence INT, PRIMARY KEY (channel, sequence))"
    )
    store, chance, number = str(tmp_path / "tunnels.db"), random.Random(7), 0
    source = {
        **logged.login,
        "tables": f"{logged.database}.items",
        "binlog": "true",
        "maxRowsPerTrigger": "300",
        "heartbeatInterval": "5",
    }
    tunnel = Tunnel("shop", source, store=store)
    tunnel.create()
    server = {
        "host": "127.0.0.1",
        "port": logged.server.port,
        "user": logged.server.user,
        "password": logged.server.password,
    }

    def change() -> None:
        nonlocal number
        statements = []
        for _ in range(20):
            number += 1
            table, key = chance.choice(["orders", "items"]), chance.randrange(4000)
            statements.append(
                f"DELETE FROM {table} WHERE id = {key}"
                if chance.random() < 0.3
                else f"INSERT INTO {table} VALUES ({key}, 'v{number}') ON DUPLICATE KEY UPDATE item = 'v{number}'"
            )
        logged.sql("; ".join(["BEGIN", *statements, "COMMIT", "FLUSH BINARY LOGS"]))

    def child(*, drained: bool) -> Child:
        arguments: list[Any] = [source, server, logged.database, store, drained]
        return Child(CONSUMER, [json.dumps(arguments)], tmp_path / "consumer.log")

    children = [child(drained=False)]
    children[0].go()
    try:
        for kills in range(3):
            change()
            children[-1].next()
            if kills == 1:
                tunnel.add_table("orders")
                change()
            children.append(child(drained=False))
            children[-1].go()  # it waits for the one before, or for its heartbeats to end
            change()
            children[-2].kill()
        children[-1].next()
        children[-1].kill()
        change()
        children.append(child(drained=True))
        children[-1].go()
        children[-1].finish()
    finally:
        for each in children:
            each.kill()
    assert tunnel.describe().channels[-1].channel.id == "stream-1"
    tunnel.delete()
    events = logged.rows(f"SELECT name, op, id, item FROM {copy}.events ORDER BY n")
    logged.sql(f"DROP DATABASE {copy}")
    for name in ("orders", "items"):
        found = [(what, int(key), item) for each, what, key, item in events if each == name]
        assert played(found) == state_of(logged, name), "0 lost"
        reads = [key for what, key, _ in found if what == "read"]
        assert len(reads) == len(set(reads)) > 1000, "0 doubled: each existing row was read once"
        once = [row for row in found if row[0] in ("insert", "update")]
        assert len(once) == len(set(once)), "0 doubled: each value was written once"


class Writer(threading.Thread):
    """Changes random rows of all tables, by transactions of several statements."""

    def __init__(self, shop: Shop, names: list[str], seed: int) -> None:
        super().__init__()
        self.shop, self.names = shop, names
        self.chance, self.number = random.Random(seed), seed * 1_000_000
        self.error: BaseException | None = None

    def run(self) -> None:
        server = self.shop.server
        login = {"user": server.user, "password": server.password, "database": self.shop.database}
        try:
            with pymysql.connect(host="127.0.0.1", port=server.port, **login) as connection:
                for _ in range(300):
                    self.transaction(connection)
        except BaseException as error:
            self.error = error

    def transaction(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            try:
                cursor.execute("BEGIN")
                for _ in range(self.chance.randrange(1, 5)):
                    self.number += 1
                    name, key = self.chance.choice(self.names), self.chance.randrange(1200)
                    cursor.execute(
                        f"DELETE FROM {name} WHERE id = {key}"
                        if self.chance.random() < 0.3
                        else f"INSERT INTO {name} VALUES ({key}, 'v{self.number}') "
                        f"ON DUPLICATE KEY UPDATE item = 'v{self.number}'"
                    )
                cursor.execute("COMMIT" if self.chance.random() < 0.9 else "ROLLBACK")
            except pymysql.err.OperationalError:  # a deadlock, or a lock wait
                connection.rollback()


def test_writers_beside_tables_that_join_and_are_read_again(logged: Shop) -> None:
    """The position is behind the log where they do, as the limit cuts it."""
    names = ["a", "b", "c"]
    made(logged, *names, rows=1000)
    logged.sql("FLUSH BINARY LOGS")  # a server looks for each position from the beginning of a file
    feed = tables_of(logged, "a, b")
    at, out = begin(feed), list[Row]()
    writers = [Writer(logged, names, seed) for seed in range(1, 4)]
    for each in writers:
        each.start()
    for number in range(1000):
        if number == 2:
            at = feed.joining("c", again=False)(at)
        if number == 8:
            at = feed.joining("a", again=True)(at)
        end = feed.latest(at, FeedLimit(rows=200))
        if number % 5 == 4:
            rows(feed, at, end)  # it dies before its checkpoint
        out += rows(feed, at, end)
        at = end
        if number > 8 and "base" not in at:
            break
    for each in writers:
        each.join()
    assert [each.error for each in writers] == [None] * 3
    assert "base" not in at
    out += follow(feed, at)[1]
    for name in names:
        found = of(logged, out, name)
        assert played(found) == state_of(logged, name), "0 lost"
        once = [row for row in found if row[0] in ("insert", "update")]
        assert len(once) == len(set(once)) > 10, "0 doubled: each value was written once"
