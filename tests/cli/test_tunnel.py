"""`spark-channel tunnel`, run as a command."""

import json
import re
import sqlite3
import time
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spark_channel.cli.app import complete
from spark_channel.tunnel import Delivery, Tunnel
from spark_channel.tunnel.store import SqlStore
from tests.servers.postgres import PostgresServer
from tests.tunnel.test_store import ORDERS

COMMAND = "tunnel"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?, 'x')", [(n,) for n in range(1, 101)])
    monkeypatch.setenv("SPARK_CHANNEL_TUNNEL_STORE", str(tmp_path / "tunnels.db"))
    monkeypatch.setenv("COLUMNS", "200")
    return path


def call(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(complete(()), [COMMAND, *arguments], input=answer)


def source(shop: Path) -> list[str]:
    given = ("reader=sqlite", f"path={shop}", "dbtable=orders", "cursorColumn=id")
    return [word for each in given for word in ("-o", each)]


def test_a_tunnel_from_its_making_to_its_end(shop: Path) -> None:
    made = call("create", "orders", *source(shop), "--channels", "3")
    assert made.exit_code == 0, made.output
    assert "base_and_stream, 4 channels" in made.output
    assert "orders" in call("list").output
    (listed,) = json.loads(call("list", "--output", "json").output)
    counts = [listed[name] for name in ("channels", "done", "clients")]
    assert (listed["tunnel"], listed["type"], counts) == ("orders", "base_and_stream", [4, 0, 0])
    shown = call("describe", "orders", *source(shop)).output
    assert shown.count("base-000") == 3
    assert "stream-0" in shown
    store = str(shop.parent / "tunnels.db")
    options = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id"}
    Tunnel("orders", options, store=store).consume(
        lambda delivery: list(delivery.batches), drained=True
    )
    with closing(sqlite3.connect(shop)) as connection, connection:
        connection.executemany(
            "INSERT INTO orders VALUES (?, 'y')", [(n,) for n in range(101, 108)]
        )
    behind = next(
        line
        for line in call("describe", "orders", *source(shop)).output.splitlines()
        if "stream-0" in line
    )
    assert " 7 " in behind
    assert call("reset", "orders", *source(shop), answer="n\n").exit_code == 1
    assert call("reset", "orders", *source(shop), "--yes").exit_code == 0
    assert call("delete", "orders", answer="y\n").exit_code == 0
    assert "orders" not in call("list").output


def test_a_parked_channel_is_listed_and_resumed(shop: Path) -> None:
    assert (
        call(
            "create", "orders", *source(shop), "-o", "tunnelType=base", "--channels", "2"
        ).exit_code
        == 0
    )
    options = {
        "path": str(shop),
        "dbtable": "orders",
        "cursorColumn": "id",
        "tunnelType": "base",
        "maxRetryInterval": "0.05",
    }
    orders = Tunnel("orders", options, store=str(shop.parent / "tunnels.db"))

    def fails(delivery: Delivery) -> None:
        if delivery.channel == "base-0001":
            raise ValueError("[no] such item")

    with pytest.raises(ValueError, match="such item"):
        orders.consume(fails, drained=True)
    shown = call("describe", "orders", *source(shop), "-o", "tunnelType=base").output
    assert cells(shown, "base-0000")[1] == "terminated"
    assert cells(shown, "base-0001")[1] == "parked"
    assert "parked base-0001: ValueError: [no] such item" in shown
    unknown = call("resume", "orders", "--channel", "base-7")
    assert unknown.exit_code != 0
    assert f"tunnel describe orders --store {shop.parent / 'tunnels.db'}`" in str(unknown.exception)
    assert "base-0000 is not parked" in call("resume", "orders", "--channel", "base-0000").output
    assert "resumed base-0001; a client has it" in call("resume", "orders").output
    assert "no channel is parked" in call("resume", "orders").output
    orders.consume(lambda delivery: list(delivery.batches), drained=True)
    assert {str(view.channel.state) for view in orders.describe().channels} == {"terminated"}


def test_seconds_behind_of_an_integer_cursor_are_those_since_its_checkpoint(shop: Path) -> None:
    options = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id"}
    orders = Tunnel("orders", options, store=str(shop.parent / "tunnels.db"))
    orders.create(channels=1)
    orders.consume(lambda delivery: list(delivery.batches), drained=True)
    (lag,) = [view.lag for view in orders.describe().channels if view.stage == "stream"]
    assert lag is not None
    assert (lag.rows, lag.seconds) == (0, 0.0)
    with closing(sqlite3.connect(shop)) as connection, connection:
        connection.execute("INSERT INTO orders VALUES (101, 'y')")
    time.sleep(0.2)
    (view,) = [view for view in orders.describe().channels if view.stage == "stream"]
    assert view.lag is not None
    assert view.lag.seconds is not None
    assert 0.2 <= view.lag.seconds < 60
    shown = call("describe", "orders", *source(shop)).output
    assert "stream-0 (stream) reads on from cursor=100" in shown


def test_options_may_stand_in_a_file(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "orders.options"
    file.write_text(f"# the shop\npath={shop}\ndbtable=orders\n\ncursorColumn=id\n")
    assert call("create", "orders", "--options-file", str(file)).exit_code == 0
    missing = call("create", "orders", "--options-file", str(tmp_path / "none"))
    assert "No such file" in missing.output


def test_an_option_without_a_value_is_refused_without_being_shown(shop: Path) -> None:
    refused = call("create", "orders", "-o", "password s3cret")
    assert refused.exit_code == 2
    assert "s3cret" not in refused.output


def cells(text: str, name: str) -> list[str]:
    """The cells of the table's line that begins with `name`."""
    return next(
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in text.splitlines()
        if f" {name} " in line
    )


def test_a_log_is_behind_in_bytes_and_seconds_and_the_store_may_be_a_server(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("SHOP_PASSWORD", postgres_server.password)
    name = f"shown_{uuid.uuid4().hex[:10]}"
    login = f"{postgres_server.user}:{postgres_server.password}@127.0.0.1:{postgres_server.port}"
    store = ["--store", f"postgresql://{login}/postgres?options=-csearch_path%3D{name}"]
    postgres_server.psql(
        f"CREATE SCHEMA {name}; CREATE TABLE {name}.orders (id int PRIMARY KEY, item text);"
        f"INSERT INTO {name}.orders SELECT i, 'tea' FROM generate_series(1, 100) i;"
        f"CREATE PUBLICATION {name} FOR TABLE {name}.orders"
    )
    options = tmp_path / "shop.options"
    options.write_text(
        f"url={postgres_server.url}\nuser={postgres_server.user}\npassword=${{env:SHOP_PASSWORD}}\n"
        f"dbtable={name}.orders\nslot={name}\npublication={name}\nbaseMode=initial\n"
    )
    slots = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{name}'"
    given = ["--options-file", str(options), *store]
    try:
        made = call("create", "log", *given, "--channels", "2")
        assert made.exit_code == 0, made.output
        assert "base_and_stream, 3 channels, in postgresql://127.0.0.1" in made.output
        assert postgres_server.password not in made.output
        postgres_server.psql(
            f"INSERT INTO {name}.orders SELECT i, 'tea' FROM generate_series(101, 400) i"
        )
        time.sleep(0.2)
        shown = call("describe", "log", *given).output
        assert postgres_server.password not in shown
        channel, state, _, client, checkpoint, rows, nbytes, seconds = cells(shown, "stream-0")
        assert (channel, state, client, checkpoint, rows) == ("stream-0", "wait", "-", "0", "300")
        assert int(nbytes.replace(" ", "")) >= 300 * 20
        assert 0.2 <= float(seconds) < 3_600
        assert cells(shown, "base-0000")[5] == "50"
        without = cells(call("describe", "log", *store).output, "stream-0")
        assert without[5:] == ["-", "-", "-"], "the source was not named"
        assert cells(call("list", *store).output, "log")[1] == "base_and_stream"
        again = call("create", "log", *given)
        assert again.exit_code != 0
        assert "there is a tunnel 'log'" in str(again.exception or again.output)
        assert call("reset", "log", *given, "--yes").exit_code == 0
        begun = cells(call("describe", "log", *given).output, "stream-0")
        assert int(begun[6].replace(" ", "")) < int(nbytes.replace(" ", "")), (
            "it begins at the log's end"
        )
        assert postgres_server.psql(slots) == "1"
        assert call("delete", "log", *given, "--yes").exit_code == 0
        assert postgres_server.psql(slots) == "0"
        assert "log" not in call("list", *store).output
    finally:
        postgres_server.psql(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            f"WHERE slot_name = '{name}'; DROP PUBLICATION {name};"
            f"SET client_min_messages = error; DROP SCHEMA {name} CASCADE"
        )


def test_a_base_beside_its_changes_and_a_slot_without_a_tunnel(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    name = "beside"
    postgres_server.psql(
        f"CREATE TABLE {name} (id int PRIMARY KEY, item text);"
        f"INSERT INTO {name} SELECT i, 'tea' FROM generate_series(1, 100) i; ANALYZE {name};"
        f"CREATE PUBLICATION {name} FOR TABLE {name}"
    )
    server = [f"-o{key}={value}" for key, value in postgres_server.login.items()]
    given = [*server, f"-odbtable={name}", f"-oslot={name}", f"-opublication={name}"]
    store = ["--store", str(tmp_path / "tunnels.db")]
    try:
        made = call("create", name, *given, *store)
        assert "base_and_stream, 1 channels" in made.output, made.output
        shown = call("describe", name, *given, *store).output
        assert "stream-0 (base) 0 of about 100 existing rows are read" in shown
        assert re.search(
            r"stream-0 \(slot\) its slot makes the server keep [\d ]+ bytes of WAL", shown
        )
        assert f" {name} " not in call("list", "--orphans", *server, *store).output
        assert call("delete", name, "--leave-slot", "--yes", *store).exit_code == 0
        plain = call("list", "--orphans", *server, *store, "--output", "json").output
        (slot,) = [slot for slot in json.loads(plain) if slot["slot"] == name]
        assert not slot["active"]
        found = call("list", "--orphans", *server, *store).output
        assert cells(found, name)[1] == "no"
        assert "pg_drop_replication_slot" in found
        elsewhere = Tunnel("elsewhere", store=store[1])
        elsewhere.store.create(
            replace(
                ORDERS,
                name="elsewhere",
                source=f"postgresql postgresql://other/db#{name}; slot={name}",
            ),
            [],
        )
        found = call("list", "--orphans", *server, *store).output
        assert cells(found, name)[1] == "no", "a tunnel of another server has its own slot"
        assert (
            f"{name}: a slot of this name belongs to tunnel elsewhere of postgresql postgresql://other/db"
            in found
        )
    finally:
        postgres_server.psql(
            f"SELECT pg_drop_replication_slot('{name}'); DROP PUBLICATION {name}; DROP TABLE {name}"
        )


def test_a_tunnel_whose_making_was_killed_leaves_a_slot_that_is_found(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the slot and the store's row."""
    name = "halfway"
    postgres_server.psql(
        f"CREATE TABLE {name} (id int PRIMARY KEY); CREATE PUBLICATION {name} FOR TABLE {name}"
    )
    options = {**postgres_server.login, "dbtable": name, "slot": name, "publication": name}
    tunnel = Tunnel(name, options, store=str(tmp_path / "tunnels.db"))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch:
            patch.setattr(SqlStore, "create", killed)
            with pytest.raises(KeyboardInterrupt):
                tunnel.create()
        (found,) = [each for each in tunnel.orphans() if each.slot == name]
        assert (found.is_active, found.named_by) == (False, "")
        tunnel.create()  # again, with the slot that is there
        assert name not in [each.slot for each in tunnel.orphans()]
        tunnel.delete()
        assert (
            postgres_server.psql(
                f"SELECT slot_name FROM pg_replication_slots WHERE slot_name = '{name}'"
            )
            == ""
        )
    finally:
        postgres_server.psql(f"DROP PUBLICATION {name}; DROP TABLE {name}")


def test_a_named_channel_of_a_named_store_is_split(shop: Path, tmp_path: Path) -> None:
    """The options of the source come from a file, or one by one."""
    store = ("--store", str(tmp_path / "elsewhere.db"))
    file = tmp_path / "orders.options"
    file.write_text(f"path={shop}\ndbtable=orders\ncursorColumn=id\n")
    stream = ("--option", "tunnelType=stream")
    assert call("create", "orders", "--options-file", str(file), *stream, *store).exit_code == 0
    assert "orders" not in call("list").output, "it is in the store that was named"
    given = ("--options-file", str(file), *store)
    unknown = call("split", "orders", "--channel", "stream-7", *stream, *given)
    assert "stream-7" in str(unknown.exception)
    made = call("split", "orders", "--channel", "stream-0", *stream, *given)
    assert "stream-0 ends at its present range, and stream-1 and stream-2 follow" in made.output
    again = call("reset", "orders", "--yes", "--option", f"path={shop}", *stream, *given)
    assert again.exit_code == 0, again.exception
    assert "stream-1" not in call("describe", "orders", *store).output


def test_tables_and_channels_of_a_named_store_are_changed_while_a_tunnel_is(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    name = "changed"
    postgres_server.psql(
        f"CREATE SCHEMA {name}; CREATE TABLE {name}.orders (id int PRIMARY KEY);"
        f"CREATE TABLE {name}.items (id int PRIMARY KEY);"
        f"INSERT INTO {name}.orders VALUES (1);"
        f"CREATE PUBLICATION {name} FOR TABLE {name}.orders, {name}.items"
    )
    login = "".join(f"{key}={value}\n" for key, value in postgres_server.login.items())
    file, store = tmp_path / "shop.options", str(tmp_path / "elsewhere.db")
    file.write_text(f"{login}tables={name}.orders\nslot={name}\npublication={name}\n")
    items = ("--table", f"{name}.items")

    def last() -> tuple[str, set[str]]:
        """The channel that is read last, and its tables."""
        said = call("describe", name, "--options-file", str(file), "--store", store, *as_json)
        channel = json.loads(said.output)["channels"][-1]
        return channel["channel"], {table["table"] for table in channel["tables"]}

    as_json = ("--output", "json")
    try:
        made = call("create", name, "--options-file", str(file), "--store", store)
        assert made.exit_code == 0, made.exception
        assert last() == ("stream-0", {f"{name}.orders"})
        paused = call("pause-base", name, "--channel", "stream-0", "--store", store)
        assert "existing rows of stream-0 are paused" in paused.output
        other = call("resume-base", name, "--channel", "stream-77", "--store", store)
        assert "stream-77" in str(other.exception)
        on = call("resume-base", name, "--channel", "stream-0", "--store", store)
        assert "existing rows of stream-0 are read again" in on.output
        call("add-table", name, *items, "--options-file", str(file), "--store", store)
        assert last() == ("stream-1", {f"{name}.orders", f"{name}.items"})
        again = call("resnapshot", name, *items, "--options-file", str(file), "--store", store)
        assert f"the existing rows of {name}.items are read again" in again.output
        call("remove-table", name, *items, "--options-file", str(file), "--store", store)
        assert last()[1] == {f"{name}.orders"}
        left = call("resume", name, "--channel", "stream-0", "--store", store)
        assert "stream-0 is not parked" in left.output
    finally:
        postgres_server.psql(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            f"WHERE slot_name = '{name}'; DROP PUBLICATION {name};"
            f"SET client_min_messages = error; DROP SCHEMA {name} CASCADE"
        )
