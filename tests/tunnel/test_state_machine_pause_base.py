"""Existing rows whose reading is paused, while the changes beside them are read on."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_channel.cli.app import complete
from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.errors import TunnelError
from spark_channel.tunnel import Delivery, Tunnel, state_machine
from spark_channel.tunnel.positions import CheckpointPositions
from spark_channel.tunnel.records import Channel, ChannelState, ChannelStatus, Client, TunnelState
from spark_channel.tunnel.shared_positions import SharedPositions
from spark_channel.tunnel.source import StreamSource
from spark_channel.tunnel.store import SqlStore, open_store
from spark_channel.tunnel.worker import TunnelWorker
from tests.servers.postgres import PostgresServer
from tests.tunnel.children import ADMISSION
from tests.tunnel.test_store import ORDERS
from tests.tunnel.world import channels

BESIDE = {"at": 5, "base": {"after": [1]}}
_numbers = itertools.count()


def beside() -> TunnelState:
    """One channel with existing rows beside its changes, one without, and one of existing rows alone."""
    return TunnelState(
        {
            "stream-0": Channel("stream-0", 1, token=BESIDE),
            "stream-1": Channel("stream-1", 2, token={"at": 5}),
            "base-0": Channel("base-0", 0, {"split": {}}, token=BESIDE),
        }
    )


def paused(state: TunnelState) -> list[str]:
    return [key for key, each in state.channels.items() if each.paused]


# --- reports to the store


def test_only_a_channel_with_existing_rows_beside_its_changes_is_paused() -> None:
    state = beside()
    for key in state.channels:
        state = state_machine.pause_base(state, key)
    assert paused(state) == ["stream-0"]
    assert state_machine.pause_base(state, "stream-0") == state
    assert paused(state_machine.resume_base(state, "stream-0")) == []
    assert state_machine.resume_base(beside(), "stream-0") == beside()
    over = replace(state.channels["stream-0"], state=ChannelState.TERMINATED, paused=False)
    assert paused(state_machine.pause_base(TunnelState({"stream-0": over}), "stream-0")) == []


def test_a_pause_outlives_ranges_checkpoints_and_clients() -> None:
    state = state_machine.pause_base(beside(), "stream-0")
    for client in ("a", "b"):
        state = state_machine.connect(state, Client(client), 0.0)
        state = state_machine.heartbeat(state, client, (), 0.0)
        (mine,) = [each for each in state_machine.assigned(state, client) if each.id == "stream-0"]
        assert mine.paused, "a heartbeat reports it"
        state = state_machine.hand_out(
            state, client, "stream-0", mine.sequence, {**BESIDE, "at": 9}
        )
        state = state_machine.checkpoint(
            state, client, "stream-0", mine.sequence, {**BESIDE, "at": 9}
        )
        assert paused(state) == ["stream-0"]
        state = state_machine.disconnect(state, client)
    assert paused(state) == ["stream-0"]


def test_a_store_keeps_a_pause_and_tells_what_it_changed(store: SqlStore) -> None:
    store.create(ORDERS, list(beside().channels.values()))
    assert store.pause_base("orders") == ("stream-0",)
    assert store.pause_base("orders") == ()
    assert paused(store.state("orders")) == ["stream-0"]
    with pytest.raises(TunnelError, match="no channel 'stream-9'"):
        store.pause_base("orders", ["stream-9"])
    assert store.pause_base("orders", ["stream-1"], paused=False) == ()
    assert store.pause_base("orders", ["stream-0"], paused=False) == ("stream-0",)
    assert store.state("orders").channels == {each.id: each for each in _ordered(beside())}


def _ordered(state: TunnelState) -> list[Channel]:
    return sorted(state.channels.values(), key=lambda each: each.place)


def test_existing_rows_before_the_changes_are_not_paused(store: SqlStore) -> None:
    """No change would be read, either, and the log would grow for as long."""
    store.create(ORDERS, list(channels(base=2, stream=1).values()))
    with pytest.raises(TunnelError, match="before its changes, in 2 channels"):
        Tunnel("orders", store=store).pause_base()
    store.connect("orders", Client("a"))
    mine = store.heartbeat("orders", "a", ())
    done = [ChannelStatus(each.id, each.version + 1, ChannelState.TERMINATED) for each in mine]
    store.heartbeat("orders", "a", done)
    assert Tunnel("orders", store=store).pause_base() == ()


# --- a table of PostgreSQL


class Followed:
    """A table of 400 rows, and a tunnel of it whose ranges have 40."""

    def __init__(self, server: PostgresServer, home: Path) -> None:
        self.server, self.name, self.store = (
            server,
            f"paused_{next(_numbers)}",
            str(home / "tunnels.db"),
        )
        server.psql(
            f"CREATE TABLE {self.name} (id int PRIMARY KEY, item text);"
            f"INSERT INTO {self.name} SELECT i, 'old' FROM generate_series(1, 400) i;"
            f"CREATE PUBLICATION {self.name} FOR TABLE {self.name}"
        )
        self.options = {
            **server.login,
            "dbtable": self.name,
            "slot": self.name,
            "publication": self.name,
            "maxRowsPerTrigger": "40",
            "tunnelStore": self.store,
        }
        self.tunnel = Tunnel(self.name, self.options)
        self.tunnel.create()
        self.seen: list[tuple[Any, ...]] = []

    def take(self, delivery: Delivery) -> None:
        self.seen += [
            (row["_op"], row["id"]) for batch in delivery.batches for row in batch.to_pylist()
        ]

    def insert(self, key: int) -> None:
        self.server.psql(f"INSERT INTO {self.name} VALUES ({key}, 'new')")

    def read(self) -> int:
        return sum(what == "read" for what, _ in self.seen)

    def changes(self) -> list[int]:
        return [key for what, key in self.seen if what == "insert"]

    def close(self) -> None:
        self.tunnel.delete()
        self.server.psql(f"DROP PUBLICATION {self.name}; DROP TABLE {self.name}")


@pytest.fixture
def followed(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Followed]:
    made = Followed(postgres_server, tmp_path)
    yield made
    made.close()


def call(*arguments: str) -> str:
    done = CliRunner().invoke(complete(()), ["tunnel", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_base_is_paused_while_it_is_read_and_the_changes_are_read_on(followed: Followed) -> None:
    name, tunnel = followed.name, followed.tunnel

    def process(delivery: Delivery) -> None:
        followed.take(delivery)
        if delivery.sequence == 1:
            assert tunnel.pause_base() == ("stream-0",)
            followed.insert(1001)
            consumer.client.heartbeat()  # as one that is due
        if followed.changes():
            consumer.stop()

    consumer = TunnelWorker(
        tunnel.store, tunnel.store.get(name), followed.options, process, threads=1, drained=False
    )
    consumer.run()
    with pytest.raises(
        TunnelError, match=rf"channel stream-0 of tunnel '{name}' are read.*pause-base"
    ):
        tunnel.consume(followed.take, threads=1, drained=True)
    assert followed.changes() == [1001]
    before = followed.read()
    assert 80 <= before <= 240, "the ranges that were planned, and no more"
    assert "existing rows are read, paused by pause-base" in call(
        "describe",
        name,
        "--store",
        followed.store,
        *(f"-o{key}={value}" for key, value in followed.options.items() if key != "tunnelStore"),
    )
    followed.insert(1002)
    with pytest.raises(TunnelError, match="paused"):
        tunnel.consume(followed.take, threads=1, drained=True)
    assert (followed.changes(), followed.read()) == ([1001, 1002], before)
    assert "paused already" in call("pause-base", name, "--store", followed.store)
    assert "existing rows of stream-0 are read again" in call(
        "resume-base", name, "--store", followed.store
    )
    assert "nothing changes" in call("resume-base", name, "--store", followed.store)
    tunnel.consume(followed.take, threads=1, drained=True)
    reads = [key for what, key in followed.seen if what == "read"]
    assert sorted(reads) == list(range(1, 401))
    assert followed.changes() == [1001, 1002]
    assert tunnel.pause_base() == (), "nothing is left to pause"


def test_a_slot_moves_on_while_the_base_is_paused(followed: Followed) -> None:
    """Also with what other tables write."""
    feed = StreamSource(followed.options).feed
    token = followed.tunnel.store.state(followed.name).channels["stream-0"].token
    feed.reads_base = False
    assert feed.latest(token, FeedLimit()) == token, "an idle channel has no new range"
    followed.insert(1001)
    end = feed.latest(token, FeedLimit())
    assert end != token
    assert len(feed.changes(token, end)) == 1
    followed.server.psql(
        "CREATE TABLE elsewhere AS SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 30000) i; "
        "DROP TABLE elsewhere"
    )
    after = feed.latest(end, FeedLimit())
    assert after != end
    assert feed.latest(after, FeedLimit()) == after
    feed.settle(after)
    lag = feed.lag(after)
    assert lag.nbytes is not None
    assert lag.nbytes < 1 << 20


def test_a_long_transaction_arrives_while_the_base_is_paused_and_keeps_nothing_when_it_has_ended(
    followed: Followed,
) -> None:
    """Its change is in the log before the position that the channel has when it is committed."""
    import psycopg

    server, feed = followed.server, StreamSource(followed.options).feed
    at = followed.tunnel.store.state(followed.name).channels["stream-0"].token
    feed.reads_base = False
    with psycopg.connect(
        host=str(server.directory), port=server.port, user=server.user, dbname="postgres"
    ) as session:
        session.execute(f"INSERT INTO {followed.name} VALUES (2001, 'long')")
        followed.insert(1001)
        at = feed.latest(at, FeedLimit())
        server.psql(
            "CREATE TABLE elsewhere AS SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 30000) i; "
            "DROP TABLE elsewhere"
        )
        at = feed.latest(at, FeedLimit())
        feed.settle(at)
        assert feed.latest(at, FeedLimit()) == at, "it keeps the log, and no range changes that"
    end = feed.latest(at, FeedLimit())
    found = [
        row["id"]
        for split in feed.changes(at, end)
        for each in feed.read(split)
        for row in each.to_pylist()
    ]
    assert found == [2001]
    for _ in range(100):  # the server's own transactions may run, too
        before, end = end, feed.latest(end, FeedLimit())
        if end == before:
            break
    else:
        pytest.fail("it does not become idle")
    feed.settle(end)
    behind = server.psql(
        "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots "
        f"WHERE slot_name = '{followed.name}'"
    )
    assert int(behind) < 1 << 20


def test_a_query_that_is_to_end_tells_that_the_base_is_paused(followed: Followed) -> None:
    """As Trigger.AvailableNow asks: it must not seem as if all were read."""
    followed.tunnel.pause_base()
    followed.insert(1001)
    given = {**followed.options, "tunnel": followed.name}
    positions = SharedPositions(StreamSource(given), open_store(followed.store))
    try:
        offset = positions.initial()
        positions.prepare()
        first = positions.latest(offset, FeedLimit())
        assert len(positions.ranges(offset, first)) == 1
        with pytest.raises(
            TunnelError, match=f"tunnel '{followed.name}' are read, and not all existing rows"
        ):
            positions.latest(first, FeedLimit())
        followed.tunnel.resume_base()
        positions._client.heartbeat()
        second = positions.latest(first, FeedLimit())
        assert second != first
        assert positions.latest(second, FeedLimit()) == second
    finally:
        positions.close()


def test_a_query_that_is_to_end_tells_that_its_slot_keeps_too_much(followed: Followed) -> None:
    positions = CheckpointPositions(StreamSource({**followed.options, "maxSlotLag": "1"}), 1)
    offset = positions.initial()
    followed.insert(1001)
    positions.prepare()
    first = positions.latest(offset, FeedLimit())
    with pytest.raises(TunnelError, match="'maxSlotLag'"):
        positions.latest(first, FeedLimit())


@pytest.mark.skipif(
    not ADMISSION, reason="before Spark 4.2 no query without a tunnel reads existing rows"
)
def test_under_a_speed_limit_changes_do_not_wait_a_minute_for_existing_rows(
    followed: Followed,
) -> None:
    """A micro-batch has both, and of the existing rows what the limit lets through in 2 s."""
    from pyspark.sql.streaming.datasource import ReadMaxRows
    from pyspark.sql.types import StructType

    from spark_channel.spark.stream_admission import AdmittingStreamReader
    from spark_channel.spark.worker import SessionFacts

    given = {key: value for key, value in followed.options.items() if key != "maxRowsPerTrigger"}
    schema = StructType().add("id", "integer").add("item", "string").add("_op", "string")
    schema = schema.add("_lsn", "string").add("_commit_ts", "timestamp")
    reader: Any = AdmittingStreamReader({**given, "rowsPerSecond": "20"}, schema, SessionFacts(1))
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(1200)
    end = reader.latestOffset(start, limit)
    (channel,) = end["channels"].values()
    assert channel["to"]["base"]["read"] == 40
    own: Any = AdmittingStreamReader(
        {**given, "rowsPerSecond": "20", "maxRowsPerTrigger": "90"}, schema, SessionFacts(1)
    )
    (channel,) = own.latestOffset(start, own.getDefaultReadLimit())["channels"].values()
    assert channel["to"]["base"]["read"] == 90, "the user's size counts"
