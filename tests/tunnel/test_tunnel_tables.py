"""A tunnel of several tables: its consumer, a table that is added, one that is read again, and kills."""

import json
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.base.contract import Token
from spark_channel.errors import (
    OptionError,
    SchemaError,
    SourceError,
    TunnelError,
    UnsupportedError,
)
from spark_channel.tunnel import Delivery, Tunnel, state_machine
from spark_channel.tunnel.records import Channel, ChannelState, TunnelState
from spark_channel.tunnel.source import StreamSource
from tests.cli.test_tunnel import call
from tests.connectors.postgresql.log.test_tables import Shop
from tests.servers.postgres import PostgresServer
from tests.tunnel.children import Child


@pytest.fixture
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    made = Shop(postgres_server, "orders", "items")
    yield made
    made.drop()


def options(shop: Shop, tables: str = "$s.*", **more: str) -> dict[str, str]:
    named = {"tables": tables.replace("$s", shop.name), "slot": shop.name, "publication": shop.name}
    return {**shop.server.login, **named, "heartbeatInterval": "5", **more}


class Copy:
    """A consumer's state: the rows of each table, and each row that it was given."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, str]] = {}
        self.given: list[tuple[str, str, int, str]] = []
        self.changed = threading.Condition()

    def process(self, delivery: Delivery) -> None:
        assert delivery.channel.partition("/")[2] == delivery.table
        for batch in delivery.batches:
            for row in batch.to_pylist():
                assert row["_table"] == delivery.table
                name = row["_table"].rpartition(".")[2]
                state = self.tables.setdefault(name, {})
                if row["_op"] == "delete":
                    state.pop(row["id"], None)
                else:
                    state[row["id"]] = row["item"]
                self.given.append((name, row["_op"], row["id"], row["item"]))
        with self.changed:
            self.changed.notify_all()

    def reaches(self, name: str, state: dict[int, str], seconds: float = 60) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.tables.get(name, {}) == state, seconds), (
                f"{name}: {len(self.tables.get(name, {}))} rows of {len(state)}"
            )


def test_a_table_is_added_and_one_read_again_while_the_tunnel_runs(
    shop: Shop, tmp_path: Path
) -> None:
    shop.run("INSERT INTO $s.orders SELECT i, 'old' FROM generate_series(1, 3000) i")
    store = str(tmp_path / "tunnels.db")
    tunnel = Tunnel("shop", options(shop, "$s.orders"), store=store)
    tunnel.create()
    copy = Copy()
    consumer = threading.Thread(target=lambda: tunnel.consume(copy.process, threads=2))
    consumer.start()
    try:
        copy.reaches("orders", shop.state("orders"))
        shop.run("INSERT INTO $s.items SELECT i, 'old' FROM generate_series(1, 2000) i")
        other = Tunnel("shop", options(shop, "$s.orders"), store=store)
        other.add_table(f"{shop.name}.items")
        with pytest.raises(TunnelError, match=r"has table .*items' already"):
            other.add_table(f"{shop.name}.items")
        shop.run(
            "INSERT INTO $s.orders VALUES (0, 'wakes'); UPDATE $s.items SET item = 'new' WHERE id = 7"
        )
        copy.reaches("items", shop.state("items"))
        copy.reaches("orders", shop.state("orders"))
        before = len(copy.given)
        other.resnapshot(f"{shop.name}.items")
        shop.run("INSERT INTO $s.items VALUES (0, 'wakes')")
        with copy.changed:
            assert copy.changed.wait_for(lambda: len(copy.given) >= before + 2000, 60)
    finally:
        tunnel.stop()
        consumer.join()
    again = copy.given[before:]
    assert {(name, what) for name, what, _, _ in again} == {("items", "insert"), ("items", "read")}
    reads = [key for _, what, key, _ in again if what == "read"]
    assert len(reads) == len(set(reads)) >= 2000
    copy.reaches("items", shop.state("items"))
    view = tunnel.describe()
    assert [(each.channel.id, str(each.channel.state)) for each in view.channels][:2] == [
        ("stream-0", "terminated"),
        ("stream-1", "terminated"),
    ]
    # A restart continues with the tables that the store names.
    shop.run("INSERT INTO $s.items VALUES (-1, 'after')")
    Tunnel("shop", options(shop, "$s.orders"), store=store).consume(copy.process, drained=True)
    copy.reaches("items", shop.state("items"))
    tunnel.delete()
    assert shop.run("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '$s'") == "0"


def test_a_reset_tells_which_tables_it_leaves_and_an_added_table_that_it_is_paused(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The options need not name a table that was added."""
    store = str(tmp_path / "tunnels.db")
    shop.run("INSERT INTO $s.orders VALUES (1, 'old')")
    tunnel = Tunnel("shop", options(shop, "$s.orders"), store=store)
    tunnel.create()
    assert tunnel.pause_base() == ("stream-0",)
    tunnel.add_table(f"{shop.name}.items")
    assert f"are paused, also those of {shop.name}.items" in caplog.text
    Tunnel("shop", options(shop), store=store).reset()
    assert "no longer" not in caplog.text, "the pattern names both"
    tunnel.reset()
    assert f"no longer follows {shop.name}.items" in caplog.text
    tunnel.delete()


def test_a_tunnel_whose_table_left_the_publication_continues_when_it_is_read_again(
    shop: Shop, tmp_path: Path
) -> None:
    shop.run("INSERT INTO $s.items VALUES (1, 'old'); INSERT INTO $s.orders VALUES (1, 'old')")
    tunnel = Tunnel(
        "shop", options(shop, maxRetryInterval="0.02"), store=str(tmp_path / "tunnels.db")
    )
    tunnel.create()
    copy = Copy()
    tunnel.consume(copy.process, drained=True)
    shop.run(
        "ALTER PUBLICATION $s SET TABLE $s.orders; UPDATE $s.items SET item = 'lost'; UPDATE $s.orders SET item = 'new'"
    )
    with pytest.raises(SourceError, match="no longer holds"):
        tunnel.consume(copy.process, drained=True)
    shop.run("ALTER PUBLICATION $s ADD TABLE $s.items")
    assert tunnel.resume() == ("stream-0",)
    with pytest.raises(SourceError, match="the entry of"):
        tunnel.consume(copy.process, drained=True)
    tunnel.resnapshot(f"{shop.name}.items")
    assert tunnel.resume() == ("stream-0",)
    tunnel.consume(copy.process, drained=True)
    assert copy.tables == {"orders": {1: "new"}, "items": {1: "lost"}}
    tunnel.delete()


def test_a_table_evolves_while_its_tunnel_runs(shop: Shop, tmp_path: Path) -> None:
    """No restart, no reset: each batch has the columns of its rows."""
    shop.run("INSERT INTO $s.orders SELECT i, 'old' FROM generate_series(1, 300) i")
    source = options(shop, onSchemaChange="evolve", maxRowsPerTrigger="100")
    tunnel = Tunnel("shop", source, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    copy: dict[int, dict[str, Any]] = {}
    schemas = set()
    changed = threading.Condition()

    def process(delivery: Delivery) -> None:
        with changed:
            for batch in delivery.batches:
                schemas.add(tuple(batch.schema.names[:-4]))
                for row in batch.to_pylist():
                    copy.setdefault(row["id"], {}).update(row)
            changed.notify_all()

    def await_row(key: int, column: str, value: object) -> None:
        with changed:
            assert changed.wait_for(lambda: copy.get(key, {}).get(column) == value, 60)

    consumer = threading.Thread(target=lambda: tunnel.consume(process))
    consumer.start()
    try:
        await_row(1, "item", "old")
        shop.run("ALTER TABLE $s.orders ADD n int; UPDATE $s.orders SET n = 1 WHERE id = 300")
        await_row(300, "n", 1)
        shop.run(
            "ALTER TABLE $s.orders RENAME item TO label; UPDATE $s.orders SET label = 'new' WHERE id = 2"
        )
        await_row(2, "label", "new")
        shop.run(
            "ALTER TABLE $s.orders ALTER n TYPE bigint; UPDATE $s.orders SET n = 5000000000 WHERE id = 3"
        )
        await_row(3, "n", 5_000_000_000)
    finally:
        tunnel.stop()
        consumer.join()
    assert schemas == {("id", "item"), ("id", "item", "n"), ("id", "label", "n")}
    assert len(copy) == 300
    tunnel.delete()


def test_a_tunnel_whose_table_got_other_columns_continues_when_it_is_read_again(
    shop: Shop, tmp_path: Path
) -> None:
    """Nothing is parked; a range of existing rows may have been handed out before its table changed."""
    shop.run("INSERT INTO $s.items SELECT i, 'old' FROM generate_series(1, 200) i")
    source = options(shop, maxRowsPerTrigger="50")
    tunnel = Tunnel("shop", source, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    copy = Copy()

    def alter(delivery: Delivery) -> None:
        copy.process(delivery)
        if "items" in copy.tables:
            shop.run(
                "ALTER TABLE $s.items ADD IF NOT EXISTS n int; "
                "INSERT INTO $s.orders VALUES (1, 'x') ON CONFLICT DO NOTHING"
            )

    with pytest.raises(SchemaError, match=r"items' has a new column 'n' .*tunnel resnapshot"):
        tunnel.consume(alter, drained=True)
    assert not [each for each in tunnel.describe().channels if each.channel.parked]
    tunnel.resnapshot(f"{shop.name}.items")
    shop.run("UPDATE $s.items SET item = 'new' WHERE id = 7")
    tunnel.consume(copy.process, drained=True)
    assert copy.tables == {"orders": {1: "x"}, "items": shop.state("items")}
    tunnel.delete()


CONSUMER = """
import json, sys
import psycopg
from spark_channel.tunnel import Tunnel

source, server, schema, store, drained = json.loads(sys.argv[1])
sys.stdin.readline()

def process(delivery):
    rows = 0
    with psycopg.connect(**server) as session:  # one transaction
        key = delivery.channel, delivery.sequence
        fresh = session.execute(f"INSERT INTO {schema}_copy.done VALUES (%s, %s) ON CONFLICT DO NOTHING", key).rowcount
        with session.cursor().copy(f"COPY {schema}_copy.events (name, op, id, item) FROM STDIN") as copy:
            for batch in delivery.batches:
                for row in batch.to_pylist() if fresh else ():
                    rows += 1
                    copy.write_row((row["_table"].split(".")[1], row["_op"], row["id"], row["item"]))
    sys.stdout.write(f"{rows}\\n")
    sys.stdout.flush()

Tunnel("shop", source, store=store).consume(process, threads=2, drained=drained)
"""


@pytest.mark.timeout(300)
def test_a_consumer_that_is_killed_in_the_base_of_a_table_that_was_added(
    shop: Shop, tmp_path: Path
) -> None:
    shop.run(
        "INSERT INTO $s.items SELECT i, 'old' FROM generate_series(1, 1000) i;"
        "INSERT INTO $s.orders SELECT i, 'old' FROM generate_series(1, 20000) i;"
        "CREATE SCHEMA $s_copy;"
        "CREATE TABLE $s_copy.done (channel text, sequence int, PRIMARY KEY (channel, sequence));"
        "CREATE TABLE $s_copy.events (n serial, name text, op text, id int, item text)"
    )
    store = str(tmp_path / "tunnels.db")
    source = options(shop, "$s.items", maxRowsPerTrigger="300")
    tunnel = Tunnel("shop", source, store=store)
    tunnel.create()
    server = {
        "host": str(shop.server.directory),
        "port": shop.server.port,
        "user": shop.server.user,
        "dbname": "postgres",
    }
    reads = "SELECT count(*) FROM $s_copy.events WHERE name = 'orders' AND op = 'read'"
    chance, number = random.Random(5), 0

    def change() -> None:
        nonlocal number
        statements = []
        for _ in range(40):
            number += 1
            table, key = chance.choice(["orders", "items"]), chance.randrange(25000)
            statements.append(
                f"DELETE FROM $s.{table} WHERE id = {key}"
                if chance.random() < 0.3
                else f"INSERT INTO $s.{table} VALUES ({key}, 'v{number}') "
                f"ON CONFLICT (id) DO UPDATE SET item = 'v{number}'"
            )
        shop.run(";".join(["BEGIN", *statements, "COMMIT"]))

    def begin(drained: bool) -> Child:
        arguments: list[Any] = [source, server, shop.name, store, drained]
        return Child(CONSUMER, [json.dumps(arguments)], tmp_path / "consumer.log")

    children = [begin(False)]
    try:
        for kills in range(3):
            children[-1].go()
            children.append(begin(kills == 2))  # it starts meanwhile, as far as it can
            if not kills:
                children[0].next()
                tunnel.add_table(f"{shop.name}.orders")
            least = int(shop.run(reads))
            while int(shop.run(reads)) <= least:
                change()
                children[-2].next()
            time.sleep(0.1 * chance.random())  # anywhere: within a range, or between two
            children[-2].kill()
            assert 0 < int(shop.run(reads)) < 19000, "it is in the base of the table that was added"
            change()
        children[-1].go()
        children[-1].finish()
    finally:
        for each in children:
            each.kill()
        tunnel.delete()
    found = shop.run("SELECT name, op, id, item FROM $s_copy.events ORDER BY n").splitlines()
    events = [line.split("|") for line in found]
    shop.run("SET client_min_messages = error; DROP SCHEMA $s_copy CASCADE")
    state: dict[str, dict[int, str]] = {"orders": {}, "items": {}}
    for name, what, key, item in events:
        if what == "delete":
            state[name].pop(int(key), None)
        else:
            state[name][int(key)] = item
    assert state == {"orders": shop.state("orders"), "items": shop.state("items")}, "0 lost"
    reads_once = [(name, key) for name, what, key, _ in events if what == "read"]
    assert len(reads_once) == len(set(reads_once)), "0 doubled: each existing row was read once"
    once = [(name, key, item) for name, what, key, item in events if what in ("insert", "update")]
    assert len(once) == len(set(once)) > 100, "0 doubled: each value was written once"


def test_a_table_that_fails_is_tried_again_alone_and_the_slot_waits_for_it(
    shop: Shop, tmp_path: Path
) -> None:
    tunnel = Tunnel(
        "shop",
        options(shop, tunnelType="stream", maxRetryInterval="0.5"),
        store=str(tmp_path / "tunnels.db"),
    )
    tunnel.create()
    shop.run("INSERT INTO $s.orders VALUES (1, 'new'); INSERT INTO $s.items VALUES (1, 'new')")
    copy, calls = Copy(), Counter[str]()

    def confirmed() -> str:
        return shop.run(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '$s'"
        )

    before = confirmed()

    def process(delivery: Delivery) -> None:
        name = delivery.table.rpartition(".")[2]
        calls[name] += 1
        (view,) = tunnel.store.state("shop").channels.values()
        assert (view.sequence, confirmed()) == (0, before), (
            "nothing is confirmed before both are processed"
        )
        if name == "items" and calls[name] < 2:
            list(delivery.batches)
            raise OSError("a moment")
        copy.process(delivery)

    tunnel.consume(process, drained=True)
    assert calls == {"orders": 1, "items": 2}
    assert copy.tables == {"orders": {1: "new"}, "items": {1: "new"}}
    (channel,) = tunnel.store.state("shop").channels.values()
    assert channel.sequence == 1
    tunnel.delete()


BETWEEN = """
import json, os, signal, sys
import psycopg
from spark_channel.tunnel import Tunnel

source, server, schema, store, dies = json.loads(sys.argv[1])
sys.stdin.readline()

def process(delivery):
    with psycopg.connect(**server) as session:  # one transaction
        key = delivery.channel, delivery.sequence
        fresh = session.execute(f"INSERT INTO {schema}_copy.done VALUES (%s, %s) ON CONFLICT DO NOTHING", key).rowcount
        with session.cursor().copy(f"COPY {schema}_copy.events (name, op, id, item) FROM STDIN") as copy:
            for batch in delivery.batches:
                for row in batch.to_pylist() if fresh else ():
                    copy.write_row((row["_table"].split(".")[1], row["_op"], row["id"], row["item"]))
    with psycopg.connect(**server) as session:
        of_range = f"SELECT count(*) FROM {schema}_copy.done WHERE sequence = %s"
        (tables,) = session.execute(of_range, key[1:]).fetchone()
    if dies and fresh and tables < 2:
        os.kill(os.getpid(), signal.SIGKILL)  # one table of two is in the target
    print(delivery.sequence, flush=True)

Tunnel("shop", source, store=store).consume(process, threads=1, drained=True)
"""


@pytest.mark.timeout(180)
def test_a_consumer_that_is_killed_between_two_tables_of_a_range(
    shop: Shop, tmp_path: Path
) -> None:
    shop.run(
        "CREATE SCHEMA $s_copy;"
        "CREATE TABLE $s_copy.done (channel text, sequence int, PRIMARY KEY (channel, sequence));"
        "CREATE TABLE $s_copy.events (n serial, name text, op text, id int, item text)"
    )
    store = str(tmp_path / "tunnels.db")
    source = options(shop, tunnelType="stream", maxRowsPerTrigger="20")
    tunnel = Tunnel("shop", source, store=store)
    tunnel.create()
    server = {
        "host": str(shop.server.directory),
        "port": shop.server.port,
        "user": shop.server.user,
        "dbname": "postgres",
    }
    for number in range(60):  # each transaction, and so each range, has both tables
        shop.run(
            f"BEGIN; INSERT INTO $s.orders VALUES ({number}, 'a'); INSERT INTO $s.items VALUES ({number}, 'b');"
            f"UPDATE $s.orders SET item = 'c{number}' WHERE id = {number // 2}; COMMIT"
        )

    def run(dies: bool) -> Child:
        arguments: list[Any] = [source, server, shop.name, store, dies]
        child = Child(BETWEEN, [json.dumps(arguments)], tmp_path / "consumer.log")
        child.go()
        return child

    for kills in range(4):
        child = run(True)
        assert child.wait() == -signal.SIGKILL
        half = shop.run(
            "SELECT sequence, min(channel) FROM $s_copy.done GROUP BY 1 HAVING count(*) = 1"
        )
        sequence, channel = half.split("|")
        assert channel.startswith(f"stream-0/{shop.name}.")
        kept = tunnel.store.state("shop").channels["stream-0"].sequence
        assert int(sequence) == kills
        # The checkpoint of the range before is taken while this one is processed.
        assert kept in (kills, kills - 1), "the range of which one table is there has no checkpoint"
    run(False).finish()
    found = shop.run("SELECT name, op, id, item FROM $s_copy.events ORDER BY n").splitlines()
    events = [tuple(line.split("|")) for line in found]
    shop.run("SET client_min_messages = error; DROP SCHEMA $s_copy CASCADE")
    assert len(events) == len(set(events)) == 180, "each change once"
    for name in ("orders", "items"):
        copied = {int(key): item for table, _, key, item in events if table == name}
        assert copied == shop.state(name)
    tunnel.delete()


DOCS = Path(__file__).resolve().parents[2] / "docs" / "tunnel.md"


def test_the_example_of_the_page_runs(
    postgres_server: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It reads from a server whose log has a slot, so the page's own test does not run it."""
    text = DOCS.read_text("utf-8")
    begins = text.index('shop = Tunnel("shop", {')
    example = text[begins : text.index("```", begins)]
    publication = re.search(r"`(CREATE PUBLICATION shop FOR TABLE [^`]+)`", text)
    assert publication is not None
    postgres_server.psql("CREATE DATABASE tables_example")

    def run(statement: str) -> str:
        return postgres_server.psql(statement, database="tables_example")

    run(
        "CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY);"
        "CREATE TABLE shop.items (id int PRIMARY KEY);"
        f"INSERT INTO shop.orders SELECT generate_series(1, 1000); {publication[1]}"
    )
    monkeypatch.chdir(tmp_path)
    login = postgres_server.login
    consume = Tunnel.consume
    monkeypatch.setattr(
        Tunnel, "consume", lambda self, process: consume(self, process, drained=True)
    )
    real = Tunnel.__init__

    def begin(self: Tunnel, name: str, given: dict[str, Any], *, store: str) -> None:
        assert given.keys() >= {"url", "user", "password"}
        url = f"{login['url'].rpartition('/')[0]}/tables_example"
        real(self, name, {**given, **login, "url": url}, store=store)

    monkeypatch.setattr(Tunnel, "__init__", begin)
    space: dict[str, Any] = {"Tunnel": Tunnel}
    try:
        exec(example.replace("${env:PASSWORD}", ""), space)
        shown = capsys.readouterr().out.splitlines()
        assert {line.split()[0] for line in shown} == {"shop.orders"}
        assert {line.split()[1] for line in shown} == {"stream-0/shop.orders"}
        assert sum(int(line.split()[3]) for line in shown) == 1000
    finally:
        space["shop"].delete()
        postgres_server.psql("DROP DATABASE tables_example")


def rows_of(shown: str, channel: str) -> dict[str, str]:
    """What `describe` shows of the existing rows of a channel's tables."""
    lines = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in shown.splitlines()
        if "│" in line
    ]
    return {each[1]: each[2] for each in lines if each[0] == channel and "." in each[1]}


def test_the_commands(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CHANNEL_TUNNEL_STORE", str(tmp_path / "tunnels.db"))
    monkeypatch.setenv("COLUMNS", "200")
    shop.run("INSERT INTO $s.orders SELECT i, 'old' FROM generate_series(1, 30) i")
    source = [
        word for each in options(shop, "$s.orders").items() for word in ("-o", "=".join(each))
    ]
    made = call("create", "shop", *source)
    assert made.exit_code == 0, made.output
    assert f"#(tables); slot={shop.name}: base_and_stream, 1 channels" in made.output
    added = call("add-table", "shop", "--table", f"{shop.name}.items", *source)
    assert added.exit_code == 0, added.output
    assert "is followed from here on" in added.output
    shown = call("describe", "shop", *source).output
    assert rows_of(shown, "stream-1")[f"{shop.name}.orders"] == "0"
    assert rows_of(shown, "stream-1")[f"{shop.name}.items"].startswith("wait for transactions")
    again = call("resnapshot", "shop", "--table", f"{shop.name}.orders", *source)
    assert again.exit_code == 0, again.output
    shown = call("describe", "shop", *source).output
    assert rows_of(shown, "stream-2")[f"{shop.name}.orders"].startswith("wait for transactions")
    unknown = call("resnapshot", "shop", "--table", "nowhere", *source)
    assert isinstance(unknown.exception, OptionError)
    assert "table 'nowhere' does not exist" in str(unknown.exception)
    assert call("delete", "shop", "--yes", *source).exit_code == 0


def test_what_does_not_go_with_several_tables(shop: Shop, tmp_path: Path) -> None:
    for more, option in (
        ({"tunnelType": "base"}, "tunnelType"),
        ({"baseMode": "initial"}, "baseMode"),
        ({"dbtable": "x"}, "dbtable"),
        ({"cursorColumn": "id"}, "cursorColumn"),
    ):
        with pytest.raises(OptionError) as refused:
            StreamSource(options(shop, **more))
        assert refused.value.option == option
    with pytest.raises(UnsupportedError, match="a streaming DataFrame has one schema"):
        StreamSource(options(shop)).schema()
    without = options(shop)
    del without["slot"]
    with pytest.raises(OptionError, match=r"'tables' got .*give 'slot'"):
        StreamSource(without)
    with pytest.raises(UnsupportedError, match="sqlite follows one table"):
        StreamSource(
            {"reader": "sqlite", "path": str(tmp_path / "x.db"), "tables": "a, b", "slot": "s"}
        )
    single = options(shop)
    single["dbtable"] = single.pop("tables").replace("*", "orders")
    tunnel = Tunnel("one", single, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    with pytest.raises(UnsupportedError, match="this tunnel is of one table"):
        tunnel.add_table(f"{shop.name}.items")
    tunnel.delete()


def test_a_channel_is_continued_behind_what_was_handed_out() -> None:
    def change(token: Token) -> Token:
        return {**token, "tables": [*token["tables"], "more"]}

    handed_out = {"n": 2, "tables": ["a"]}
    begun = Channel("stream-0", 0, token={"n": 1, "tables": ["a"]}, pending=handed_out, paused=True)
    state = TunnelState({"stream-0": begun})
    state, made = state_machine.continued(state, change)
    assert made == "stream-1"
    assert state.channels["stream-0"].until == handed_out
    assert state.channels["stream-1"].token == {"n": 2, "tables": ["a", "more"]}
    assert state.channels["stream-1"].parents == ("stream-0",)
    assert state.channels["stream-1"].paused, "a pause of existing rows holds"
    state, made = state_machine.continued(state, change)
    assert (made, state.channels["stream-2"].token["tables"]) == ("stream-2", ["a", "more", "more"])
    assert state.channels["stream-2"].parents == ("stream-1",)
    with pytest.raises(TunnelError, match="has no stream channel"):
        state_machine.continued(
            TunnelState({"base-0": Channel("base-0", 0, {"split": {}})}), change
        )


def test_a_channel_that_no_client_has_changes_with_what_was_handed_out() -> None:
    def change(token: Token) -> Token:
        return {**token, "tables": [each for each in token["tables"] if each != "b"]}

    def token(number: int, *tables: str) -> Token:
        return {"n": number, "tables": [*tables]}

    begun = Channel(
        "stream-0",
        0,
        token=token(1, "a", "b"),
        pending=token(2, "a", "b"),
        state=ChannelState.PARKED,
    )
    state, _ = state_machine.continued(TunnelState({"stream-0": begun}), lambda token: token)
    for held in (False, True):
        if held:
            other = replace(state.channels["stream-0"], client="other", state=ChannelState.OPEN)
            state = TunnelState({**state.channels, "stream-0": other})
        made, key = state_machine.continued(state, change, at_once=lambda _: False)
        first, second = made.channels["stream-0"], made.channels["stream-1"]
        wanted = ("a", "b") if held else ("a",)
        assert (first.token, first.pending, first.until) == (
            token(1, *wanted),
            token(2, *wanted),
            token(2, *wanted),
        )
        assert second.token == token(2, *wanted)
        assert key == ("stream-2" if held else "stream-1")
        assert made.channels[key].token == token(2, "a")


def test_an_assigned_range_that_was_of_the_table_that_leaves_alone_is_not_assigned_any_more() -> (
    None
):
    """It would end where it begins, as where nothing is new: its channel would wait forever."""

    def token(a: int, b: int) -> Token:
        return {"a": a, "b": b}

    def left(token: Token) -> Token:
        return {"b": token["b"]}

    for pending, after, kept in (
        (token(1, 0), token(2, 0), (None, None)),
        (token(1, 0), token(2, 1), ({"b": 1}, None)),
        (token(0, 1), token(1, 1), ({"b": 1}, None)),
        (token(0, 1), token(0, 2), ({"b": 1}, {"b": 2})),
        (token(1, 0), None, (None, None)),
    ):
        begun = Channel("stream-0", 0, token=token(0, 0), pending=pending, after=after)
        made, _ = state_machine.continued(
            TunnelState({"stream-0": begun}), left, at_once=lambda _: False
        )
        found = made.channels["stream-0"]
        assert (found.token, found.pending, found.after) == ({"b": 0}, *kept)


def test_a_channel_that_ends_and_has_only_the_table_that_leaves_is_over() -> None:
    begun = Channel(
        "stream-0",
        0,
        token={"tables": ["b"]},
        pending={"n": 1, "tables": ["b"]},
        state=ChannelState.PARKED,
    )
    state, _ = state_machine.continued(
        TunnelState({"stream-0": begun}), lambda token: {**token, "tables": ["a", "b"]}
    )
    state, key = state_machine.continued(
        state,
        lambda token: {**token, "tables": ["a"]},
        at_once=lambda token: token["tables"] == ["b"],
    )
    first, second = state.channels["stream-0"], state.channels[key]
    assert (first.state, first.pending) == (ChannelState.TERMINATED, None)
    assert second.token == {"n": 1, "tables": ["a"]}
    assert state_machine.is_ready(second, state.channels)


def test_tables_of_a_tunnel_that_has_an_end_cannot_be_changed(shop: Shop, tmp_path: Path) -> None:
    ends = options(shop, "$s.orders", tunnelType="stream", endingOffsets="latest")
    tunnel = Tunnel("shop", ends, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    with pytest.raises(TunnelError, match=r"ends at .*: its tables cannot be changed"):
        tunnel.add_table(f"{shop.name}.items")
    tunnel.delete()
