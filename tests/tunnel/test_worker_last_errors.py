"""What ends `consume` instead of parking a channel or waiting without an end, and how it continues."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors.postgresql.log import feed
from spark_channel.errors import SchemaError, SourceError, TunnelError
from spark_channel.tunnel import Delivery, Tunnel, worker
from spark_channel.tunnel.records import ChannelState
from tests.servers.postgres import PostgresServer
from tests.tunnel.test_state_machine_pause_base import Followed, followed
from tests.tunnel.test_worker_consume import run, tunnel_of

__all__ = ["followed"]


def states(tunnel: Tunnel) -> list[ChannelState]:
    return [each.state for each in tunnel.store.state(tunnel.name).channels.values()]


# --- columns that cannot be carried

RETYPED = (
    "BEGIN; ALTER TABLE $t ALTER item TYPE int USING 5; INSERT INTO $t VALUES (2, 5); "
    "ALTER TABLE $t ALTER item TYPE text; COMMIT"
)
"""Columns as before, and another type in the log."""


@pytest.fixture
def stream(
    postgres_server: PostgresServer, tmp_path: Path
) -> Iterator[tuple[Tunnel, Callable[[str], None]]]:
    """A tunnel of the changes of a table `columns_that_change`, and what runs a statement."""
    name = "columns_that_change"
    postgres_server.psql(
        f"CREATE TABLE {name} (id int PRIMARY KEY, item text); CREATE PUBLICATION {name} FOR TABLE {name}"
    )
    options = {
        **postgres_server.login,
        "dbtable": name,
        "slot": name,
        "publication": name,
        "tunnelType": "stream",
        "onSchemaChange": "evolve",
        "maxRetryInterval": "0.02",
    }
    tunnel = Tunnel(name, options, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    yield tunnel, lambda sql: (postgres_server.psql(sql.replace("$t", name)), None)[1]
    tunnel.delete()
    postgres_server.psql(f"DROP PUBLICATION {name}; DROP TABLE {name}")


@pytest.mark.parametrize(
    ("change", "message", "continues"),
    [
        (
            "ALTER TABLE $t ADD note text; INSERT INTO $t VALUES (2, 'b', 'x')",
            "new column 'note'",
            True,
        ),
        (
            RETYPED,
            "column 'item' of another type|column 'item' of .* another type",
            False,
        ),
    ],
    ids=["planned", "read"],
)
def test_columns_that_change_end_consume_and_park_nothing(
    stream: tuple[Tunnel, Callable[[str], None]], change: str, message: str, continues: bool
) -> None:
    tunnel, execute = stream
    execute("INSERT INTO $t VALUES (1, 'a')")
    seen: list[dict[str, Any]] = []

    def process(delivery: Delivery) -> None:
        before = len(seen)
        seen.extend(row for batch in delivery.batches for row in batch.to_pylist())
        if not before:
            execute(change)

    for _ in range(2 - continues):
        with pytest.raises(SchemaError, match=message):
            # A client that is to end when all is read may end before the change.
            tunnel.consume(process)
        assert ChannelState.PARKED not in states(tunnel)
    assert {row["id"] for row in seen} == {1}, (
        "once, or again if its checkpoint was not taken before the end"
    )
    if continues:
        tunnel.consume(process, drained=True)
        assert [row["note"] for row in seen if row["id"] == 2] == ["x"]


def test_a_stream_continues_by_its_position_where_nothing_changed_while_its_table_was_not_published(
    stream: tuple[Tunnel, Callable[[str], None]],
) -> None:
    """As docs/tunnel.md says it: the slot stays, and a new tunnel begins at the old position."""
    tunnel, execute = stream
    execute("ALTER PUBLICATION $t SET TABLE $t WHERE (id > 0); INSERT INTO $t VALUES (1, 'a')")
    with pytest.raises(SourceError, match="the entry of"):
        tunnel.consume(print, drained=True)
    lsn = tunnel.store.state(tunnel.name).channels["stream-0"].token["lsn"]
    tunnel.delete(leave_slot=True)
    options = {**tunnel._options, "startingOffsets": json.dumps({"lsn": lsn})}
    again = Tunnel(tunnel.name, options, store=tunnel.store)
    again.create()
    seen: list[int] = []
    again.consume(
        lambda d: seen.extend(n for b in d.batches for n in b["id"].to_pylist()), drained=True
    )
    assert seen == [1]


def test_a_processor_that_refuses_columns_parks_the_channel(tmp_path: Path) -> None:
    """What it says of its target's columns may be mended while the client runs."""
    run(tmp_path / "shop.db", "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    tunnel = tunnel_of(tmp_path / "shop.db", tunnelType="stream", maxRetryInterval="0.02")
    tunnel.create()
    run(tmp_path / "shop.db", "INSERT INTO orders VALUES (1, 'a')")
    calls = []

    def process(delivery: Delivery) -> None:
        calls.append(delivery.sequence)
        raise SchemaError("the target has no column 'item'")

    with pytest.raises(SchemaError, match="the target has no column"):
        tunnel.consume(process, drained=True)
    assert states(tunnel) == [ChannelState.PARKED]
    assert len(calls) > 1


def test_a_file_with_other_columns_parks_its_channel_alone(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    options = {
        "path": str(files),
        "reader": "parquet",
        "tunnelType": "stream",
        "tunnelChannels": "2",
    }
    pq.write_table(pa.table({"id": [0]}), files / "first.parquet")
    tunnel = Tunnel(
        "files", {**options, "maxRetryInterval": "0.02"}, store=str(tmp_path / "tunnels.db")
    )
    tunnel.create()
    for number in range(1, 13):
        pq.write_table(pa.table({"id": [number]}), files / f"{number}.parquet")
    seen: list[int] = []

    def process(delivery: Delivery) -> None:
        odd = pa.table({"id": [99], "more": [1]})
        if not seen:
            pq.write_table(odd, files / ".odd.parquet")
            (files / ".odd.parquet").rename(files / "odd.parquet")
        seen.extend(n for batch in delivery.batches for n in batch["id"].to_pylist())

    class Stops(logging.Handler):
        """Ends `consume` when a channel is parked: the other one goes on."""

        def emit(self, record: logging.LogRecord) -> None:
            tunnel.stop()

    stops = Stops(logging.ERROR)
    log = logging.getLogger("spark_channel.tunnel.checkpointing")
    log.addHandler(stops)
    try:
        tunnel.consume(process)
    finally:
        log.removeHandler(stops)
    assert sorted(states(tunnel)) != [ChannelState.PARKED] * 2
    assert ChannelState.PARKED in states(tunnel)
    assert "new column 'more'" in str(
        [channel.parked for channel in tunnel.store.state(tunnel.name).channels.values()]
    )
    assert seen, "the files of the other channel"
    assert 99 not in seen
    with pytest.raises(TunnelError, match=r"with more int64\. Reset the tunnel"):
        tunnel.consume(process, drained=True)
    (files / "odd.parquet").unlink()
    tunnel.resume()
    tunnel.consume(process, drained=True)
    assert sorted(seen) == [*range(1, 13)]


# --- maxSlotLag


@contextmanager
def one_or_several(followed: Followed, several: bool, **more: str) -> Iterator[Tunnel]:
    """The tunnel of `followed`, with other options; or one of option `tables` with that table."""
    if not several:
        yield Tunnel(followed.name, {**followed.options, **more})
        return
    given = {**followed.options, "slot": f"{followed.name}_all", "tables": followed.name, **more}
    del given["dbtable"]
    made = Tunnel(f"{followed.name}_all", given)
    made.create()
    try:
        yield made
    finally:
        made.delete()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("several", [False, True], ids=["dbtable", "tables"])
def test_a_slot_that_keeps_too_much_ends_a_reader_that_is_to_end(
    followed: Followed, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.TunnelWorker, "held_seconds", 0.3)
    with one_or_several(followed, several, maxSlotLag="1") as tunnel:
        followed.insert(1001)
        with pytest.raises(
            TunnelError, match=r"for 0\.3 s, .* 'maxSlotLag' allows.*pg_stat_activity"
        ):
            tunnel.consume(followed.take, drained=True)
        assert (followed.changes(), followed.read()) == ([1001], 0)
        assert ChannelState.PARKED not in states(tunnel)
        free = Tunnel(tunnel.name, {**tunnel._options, "maxSlotLag": "100g"})
        free.consume(followed.take, drained=True)
        assert followed.read() in (400, 401), "the new row may arrive again with the existing ones"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("several", [False, True], ids=["dbtable", "tables"])
def test_a_slot_that_keeps_less_after_a_while_lets_a_reader_that_is_to_end_read_all(
    followed: Followed, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def kept(*_: object) -> int:
        asked.append(1)
        return 10 if len(asked) < 6 else 0

    monkeypatch.setattr(feed, "kept_bytes", kept)
    with one_or_several(followed, several, maxSlotLag="1") as tunnel:
        tunnel.consume(followed.take, drained=True)
    assert len(asked) >= 6
    assert followed.read() == 400
