"""Input from which no stream can start or continue: a tunnel and `readStream` report it alike."""

import itertools
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import ChannelError
from spark_channel.tunnel import Tunnel
from spark_channel.tunnel.source import StreamSource
from spark_channel.tunnel.store import open_store
from tests.servers.postgres import PostgresServer
from tests.tunnel.children import ADMISSION

pytestmark = pytest.mark.timeout(300)

_numbers = itertools.count()


class Door(ABC):
    """One way to follow a source: `read` takes what is new since the last time, all of it, and ends."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = str(home / "tunnels.db")

    @abstractmethod
    def read(self, options: dict[str, str]) -> None: ...

    def refused(self, options: dict[str, str]) -> str:
        """What is said when this cannot be read."""
        with pytest.raises(Exception, match=r".") as caught:
            self.read(options)
        return str(caught.value)


class ByTunnel(Door):
    def read(self, options: dict[str, str]) -> None:
        # What is bad stays bad: it is tried as often as by default, and not as far apart.
        tunnel = Tunnel("followed", {**options, "maxRetryInterval": "0.05"}, store=self.store)
        try:
            if not tunnel.exists():
                tunnel.create()
            tunnel.consume(lambda delivery: list(delivery.batches), drained=True)
        except ChannelError:
            raise
        except Exception as error:
            raise AssertionError("an error of another kind") from error


class ByStream(Door):
    def __init__(self, home: Path, spark: Any) -> None:
        super().__init__(home)
        self.spark = spark

    def read(self, options: dict[str, str]) -> None:
        query = (
            self.spark.readStream.format("channel")
            .options(**options)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self.home / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()


@pytest.fixture(
    params=["tunnel", pytest.param("stream", marks=[pytest.mark.spark, pytest.mark.newest])]
)
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Door:
    if request.param == "tunnel":
        return ByTunnel(tmp_path)
    return ByStream(tmp_path, request.getfixturevalue("spark"))


def run(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    run(
        path,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, price DOUBLE, done BOOLEAN)",
        "WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n WHERE v < 20) "
        "INSERT INTO orders SELECT v, 'item ' || v, v * 0.5, v % 2 FROM n",
    )
    return path


def orders(shop: Path, **options: str) -> dict[str, str]:
    start = {"tunnelType": "stream", "startingOffsets": "earliest"}
    return {"path": str(shop), "dbtable": "orders", "cursorColumn": "id", **start, **options}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("item", "names 'item' of type string: texts are compared by the database's collation"),
        ("done", "'done' of type bool, whose values have no order"),
    ],
)
def test_a_cursor_column_that_is_none(door: Door, shop: Path, column: str, message: str) -> None:
    run(shop, "UPDATE orders SET item = NULL WHERE id = 3")
    assert message in door.refused(orders(shop, cursorColumn=column))


def test_a_cursor_column_that_goes_back(door: Door, shop: Path) -> None:
    door.read(orders(shop))
    run(shop, "UPDATE orders SET id = id - 100")
    assert "the column does not only grow" in door.refused(orders(shop))


def test_a_start_in_the_future(door: Door, shop: Path) -> None:
    said = door.refused(orders(shop, startingOffsets='{"cursor": 10000}'))
    assert "is at id = 10000, and the highest value in the table is 20" in said


def test_a_start_that_is_damaged(door: Door, shop: Path) -> None:
    said = door.refused(orders(shop, startingOffsets='{"curs": 1}'))
    assert "is not a position in cursor column 'id'" in said


def test_a_checkpoint_that_was_damaged_in_the_store(door: Door, shop: Path) -> None:
    given = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id", "tunnelType": "stream"}
    Tunnel("followed", given, store=door.store).create()
    run(Path(door.store), "UPDATE spark_channel_tunnel_channels SET token = '{\"curs\": 1}'")
    said = door.refused({**given, "tunnel": "followed", "tunnelStore": door.store})
    assert "is not a position in cursor column 'id'" in said


def test_a_tunnel_that_is_missing(door: Door, shop: Path) -> None:
    given = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id"}
    Tunnel("other", given, store=door.store).create()
    if isinstance(door, ByTunnel):
        with pytest.raises(ChannelError) as caught:
            Tunnel("followed", given, store=door.store).consume(print)
        said = str(caught.value)
    else:
        said = door.refused({**given, "tunnel": "followed", "tunnelStore": door.store})
    assert "tunnel 'followed' does not exist in" in said
    assert "which has 'other'" in said


def test_a_tunnel_of_another_source(door: Door, shop: Path) -> None:
    given = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id"}
    Tunnel("followed", given, store=door.store).create()
    run(shop, "CREATE TABLE items (id INTEGER PRIMARY KEY)")
    other = {**given, "dbtable": "items", "tunnel": "followed", "tunnelStore": door.store}
    said = door.refused(other)
    assert "tunnel 'followed' is of sqlite" in said
    assert "#items" in said


def test_a_tunnel_of_another_schema(door: Door, shop: Path) -> None:
    given = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id"}
    Tunnel("followed", given, store=door.store).create()
    run(shop, "ALTER TABLE orders ADD COLUMN note TEXT")
    said = door.refused({**given, "tunnel": "followed", "tunnelStore": door.store})
    assert "with note string. Reset the tunnel to take the new columns" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cursorColumn": "nothing"}, "which table 'orders' does not have"),
        (
            {"tunnelType": "base", "startingOffsets": "earliest"},
            "'startingOffsets' goes with tunnelType stream",
        ),
        ({"tunnelType": "full"}, "'tunnelType' got 'full'"),
        ({"startingOffsets": "soon"}, "'startingOffsets' got 'soon'"),
        ({"heartbeatInterval": "1"}, "'heartbeatInterval' got '1'"),
        ({"heartbeatTimeout": "40"}, "must be at least twice"),
        (
            {"onSchemaChange": "evolve"},
            "'onSchemaChange' got 'evolve', and only a stream of a database's log",
        ),
        (
            {"onSchemaChange": "ignore"},
            "'onSchemaChange' got 'ignore', and only a stream of a database's log",
        ),
        ({"tunnel": " "}, "'tunnel' is empty"),
        ({"tunnelStore": "oracle://db"}, "'tunnelStore' has scheme 'oracle'"),
        ({"tunnelStore": "/nowhere/t.db"}, "tunnel store /nowhere/t.db does not exist"),
    ],
)
def test_an_option_that_is_not_taken(shop: Path, options: dict[str, str], message: str) -> None:
    """Both doors make their source and open their store so."""

    def begin() -> None:
        source = StreamSource(orders(shop, **options))
        source.channels(1)
        open_store(source.options.store).get("followed")

    with pytest.raises(ChannelError) as caught:
        begin()
    assert message in str(caught.value)


class Followed:
    """A table of a PostgreSQL server, with options that follow it by a slot."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = f"followed_by_{next(_numbers)}"
        self.options = {
            **server.login,
            "dbtable": self.name,
            "slot": self.name,
            "publication": self.name,
            "tunnelType": "stream",
        }
        server.psql(f"CREATE TABLE {self.name} (id int PRIMARY KEY)")

    def publish(self) -> None:
        self.server.psql(f"CREATE PUBLICATION {self.name} FOR TABLE {self.name}")

    def drop_slot(self) -> None:
        self.server.psql(
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{self.name}'"
        )

    def drop(self) -> None:
        self.drop_slot()
        self.server.psql(f"DROP PUBLICATION IF EXISTS {self.name}; DROP TABLE {self.name}")


@pytest.fixture
def followed(postgres_server: PostgresServer) -> Iterator[Followed]:
    made = Followed(postgres_server)
    yield made
    made.drop()


def test_a_slot_that_was_dropped(door: Door, followed: Followed) -> None:
    followed.publish()
    door.read(followed.options)
    followed.server.psql(f"INSERT INTO {followed.name} VALUES (1)")
    door.read(followed.options)
    followed.drop_slot()
    followed.server.psql(f"INSERT INTO {followed.name} VALUES (2)")
    said = door.refused(followed.options)
    named = f"replication slot '{followed.name}' does not exist in" in said
    # Before Spark 4.2 a source that does not know its query's position may begin to follow before it hears it.
    assert named or (
        not ADMISSION and "it was created again, or another reader has advanced it" in said
    )


def test_a_publication_that_has_not_the_table(door: Door, followed: Followed) -> None:
    followed.server.psql(f"CREATE PUBLICATION {followed.name}")
    said = door.refused(followed.options)
    assert f"publication '{followed.name}' does not hold table" in said
    assert f"ALTER PUBLICATION {followed.name} ADD TABLE" in said


@pytest.fixture(scope="module")
def replica() -> Iterator[PostgresServer]:
    """A server as it comes: with `wal_level = replica`."""
    server = PostgresServer.create(wal_level="replica")
    yield server
    server.close()


def test_a_server_whose_log_is_not_logical(door: Door, replica: PostgresServer) -> None:
    assert "has wal_level = replica" in door.refused(Followed(replica).options)
