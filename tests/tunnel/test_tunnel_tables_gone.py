"""A table of a tunnel of several is dropped, renamed, or leaves the publication, while a range of it is handed out."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import SourceError, TunnelError, UnsupportedError
from spark_channel.tunnel import Delivery, Tunnel
from tests.cli.test_tunnel import call
from tests.connectors.postgresql.log.test_tables import Shop
from tests.servers.postgres import PostgresServer
from tests.tunnel.test_tunnel_tables import Copy, options

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    made = Shop(postgres_server, "orders", "items")
    yield made
    made.drop()


class DiesError(Exception):
    """The client ends with a range at hand, and without its checkpoint."""


def die_at(tunnel: Tunnel, table: str, *operations: str) -> list[tuple[Any, ...]]:
    """Consume until a range has one of these operations of a table; returns what it has of it."""
    found: list[tuple[Any, ...]] = []

    def process(delivery: Delivery) -> None:
        rows = [
            (row["_op"], row["id"], row["item"])
            for batch in delivery.batches
            for row in batch.to_pylist()
        ]
        if delivery.table.endswith(f".{table}") and {what for what, _, _ in rows} & {*operations}:
            found.extend(rows)
            raise DiesError

    with pytest.raises(DiesError):
        Tunnel(tunnel.name, {**tunnel._options, "onError": "stop"}, store=tunnel.store).consume(
            process, drained=True, threads=1
        )
    return found


def of(copy: Copy, name: str) -> list[tuple[str, int, str]]:
    return [(what, key, item) for table, what, key, item in copy.given if table == name]


GONE = {
    "dropped": "DROP TABLE $s.items",
    "renamed": "ALTER TABLE $s.items RENAME TO others",
    "left": "ALTER PUBLICATION $s DROP TABLE $s.items",
    "made again": "DROP TABLE $s.items; CREATE TABLE $s.items (id int PRIMARY KEY, item text)",
}
MESSAGES = {
    "renamed": r"items' of the tunnel is '\S+others' now.*tunnel remove-table.*add-table --table \S+others",
    "left": r"no longer holds \S+items.*tunnel resnapshot.*tunnel remove-table",
    "made again": r"items' of the tunnel was dropped, and made again.*tunnel resnapshot.*tunnel remove-table",
}


def ends(tunnel: Tunnel, shop: Shop, how: str, copy: Copy) -> None:
    """Consume all; the tunnel's error names the table, and the test removes it as the message says."""
    if how != "dropped":
        with pytest.raises(SourceError, match=MESSAGES[how]) as raised:
            tunnel.consume(copy.process, drained=True)
        assert "eset" not in str(raised.value)
        tunnel.remove_table(f"{shop.name}.items")
        tunnel.resume()
    tunnel.consume(copy.process, drained=True)


@pytest.mark.parametrize("mode", ["fail", "evolve"])
@pytest.mark.parametrize("how", GONE)
def test_a_range_of_existing_rows_is_read_again_when_its_table_is_gone(
    shop: Shop, tmp_path: Path, how: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("orders", "items"):
        shop.run(f"INSERT INTO $s.{name} SELECT i, 'old' FROM generate_series(1, 250) i")
    source = options(shop, maxRowsPerTrigger="100", maxRetryInterval="0.05", onSchemaChange=mode)
    tunnel = Tunnel("shop", source, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    shop.run(
        "UPDATE $s.items SET item = 'new' WHERE id = 250; UPDATE $s.orders SET item = 'new' WHERE id = 1"
    )
    before = die_at(tunnel, "items", "read")
    shop.run(GONE[how])
    shop.run("UPDATE $s.orders SET item = 'last' WHERE id = 2")
    copy = Copy()
    ends(tunnel, shop, how, copy)
    again = of(copy, "items")
    assert [each for each in again if each[0] != "read"] == [("update", 250, "new")], (
        "it is in the log"
    )
    reads = Counter(each for each in again if each[0] == "read")
    if how in ("renamed", "left"):
        assert reads == Counter(each for each in before if each[0] == "read")
    else:
        assert not reads, "these are gone"
        assert "was dropped before existing rows of it were read" in caplog.text
    assert copy.tables["orders"] == shop.state("orders")
    assert (
        Counter(key for what, key, _ in of(copy, "orders") if what == "read").most_common(1)[0][1]
        == 1
    )
    tunnel.delete()


@pytest.mark.parametrize("how", GONE)
def test_a_range_of_changes_is_read_again_when_its_table_is_gone(
    shop: Shop, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop.run("INSERT INTO $s.orders VALUES (1, 'old')")
    tunnel = Tunnel(
        "shop", options(shop, maxRetryInterval="0.05"), store=str(tmp_path / "tunnels.db")
    )
    tunnel.create()
    copy = Copy()
    tunnel.consume(copy.process, drained=True)
    shop.run(
        "INSERT INTO $s.items VALUES (1, 'a'), (2, 'b'); INSERT INTO $s.orders VALUES (2, 'new'); "
        "ALTER TABLE $s.items ADD n int"
    )
    shop.run("ALTER TABLE $s.items DROP n")
    die_at(tunnel, "items", "insert")
    shop.run(GONE[how])
    shop.run("INSERT INTO $s.orders VALUES (3, 'last')")
    ends(tunnel, shop, how, copy)
    assert of(copy, "items") == [("insert", 1, "a"), ("insert", 2, "b")]
    assert of(copy, "orders") == [("read", 1, "old"), ("insert", 2, "new"), ("insert", 3, "last")]
    if how == "dropped":
        warnings = [
            each for each in caplog.messages if "its changes up to then are delivered" in each
        ]
        assert len(warnings) >= 1
        assert f"remove-table --table {shop.name}.items" in warnings[0]
        assert [each.stage for each in lags(tunnel)] == ["dropped", "changes"]
    tunnel.delete()


def lags(tunnel: Tunnel) -> Any:
    lag = tunnel.describe().channels[-1].lag
    assert lag is not None
    return lag.tables


def test_changes_that_were_not_handed_out_arrive_when_their_table_was_dropped(
    shop: Shop, tmp_path: Path
) -> None:
    """With its existing rows left, which are gone; and those of the next table follow."""
    for name in ("orders", "items"):
        shop.run(f"INSERT INTO $s.{name} SELECT i, 'old' FROM generate_series(1, 50) i")
    tunnel = Tunnel(
        "shop", options(shop, maxRowsPerTrigger="20"), store=str(tmp_path / "tunnels.db")
    )
    tunnel.create()
    shop.run(
        "INSERT INTO $s.items VALUES (51, 'new'); DELETE FROM $s.items WHERE id = 1; DROP TABLE $s.items"
    )
    copy = Copy()
    tunnel.consume(copy.process, drained=True)
    assert of(copy, "items") == [("insert", 51, "new"), ("delete", 1, None)]
    assert copy.tables["orders"] == shop.state("orders")
    shop.add("items")
    with pytest.raises(SourceError, match=MESSAGES["made again"]):
        tunnel.consume(copy.process, drained=True)
    tunnel.resnapshot(f"{shop.name}.items")
    tunnel.resume()
    shop.run("INSERT INTO $s.items VALUES (1, 'again')")
    tunnel.consume(copy.process, drained=True)
    assert copy.tables["items"][1] == "again"
    tunnel.delete()


def test_a_table_is_removed_while_the_tunnel_runs(shop: Shop, tmp_path: Path) -> None:
    """Also one that option `tables` names; and it may be added again."""
    store = str(tmp_path / "tunnels.db")
    tunnel = Tunnel("shop", options(shop, "$s.orders, $s.items"), store=store)
    tunnel.create()
    copy, errors = Copy(), list[BaseException]()

    def consume() -> None:
        try:
            tunnel.consume(copy.process)
        except BaseException as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        shop.run("INSERT INTO $s.items VALUES (1, 'a'); INSERT INTO $s.orders VALUES (1, 'a')")
        copy.reaches("items", {1: "a"})
        tunnel.remove_table(f"{shop.name}.items")
        shop.run("INSERT INTO $s.items VALUES (2, 'b'); INSERT INTO $s.orders VALUES (2, 'b')")
        copy.reaches("orders", {1: "a", 2: "b"})
        shop.run("DROP TABLE $s.items; INSERT INTO $s.orders VALUES (3, 'c')")
        copy.reaches("orders", shop.state("orders"))
        shop.add("items")
        shop.run("INSERT INTO $s.items VALUES (7, 'new')")
        tunnel.add_table(f"{shop.name}.items")
        shop.run("INSERT INTO $s.orders VALUES (4, 'd')")
        copy.reaches("items", {1: "a", 7: "new"})
    finally:
        tunnel.stop()
        consumer.join()
    assert not errors
    tunnel.remove_table("ITEMS")
    with pytest.raises(TunnelError, match=r"has no table .*items': it has \S+\.orders"):
        tunnel.remove_table(f"{shop.name}.items")
    with pytest.raises(TunnelError, match=r"orders' is the tunnel's only one.*tunnel delete"):
        tunnel.remove_table(f"{shop.name}.orders")
    tunnel.delete()


def test_the_command(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CHANNEL_TUNNEL_STORE", str(tmp_path / "tunnels.db"))
    monkeypatch.setenv("COLUMNS", "200")
    source = [word for each in options(shop).items() for word in ("-o", "=".join(each))]
    assert call("create", "shop", *source).exit_code == 0
    shop.run("DROP TABLE $s.items")
    message = f"stream-0 (dropped) `spark-channel tunnel remove-table` removes {shop.name}.items"
    assert message in call("describe", "shop", *source).output
    removed = call("remove-table", "shop", "--table", f"{shop.name}.items", *source)
    assert removed.exit_code == 0, removed.output
    assert "the other tables continue" in removed.output
    lines = call("describe", "shop", *source).output.splitlines()
    assert not any("(dropped)" in line for line in lines)
    assert not any(f"{shop.name}.items" in line for line in lines if "stream-1" in line)
    assert call("delete", "shop", "--yes", *source).exit_code == 0


def test_one_table_is_not_removed(shop: Shop, tmp_path: Path) -> None:
    single = options(shop)
    single["dbtable"] = single.pop("tables").replace("*", "orders")
    tunnel = Tunnel("one", single, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    with pytest.raises(UnsupportedError, match=r"is of one table.*tunnel delete"):
        tunnel.remove_table(f"{shop.name}.orders")
    tunnel.delete()
