"""A slot that is read by a connection that stays open, held against looks at another slot of the same table."""

import logging
import pickle
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit
from spark_channel.connectors.postgresql.log import feed as postgresql_feed
from spark_channel.connectors.postgresql.log import slot_stream
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.errors import SourceError
from spark_channel.retry import RetryingCalls
from tests.connectors.postgresql.log.test_feed import NO_LIMIT, Table, brief, rows
from tests.servers.postgres import PostgresServer

STREAM = "application_name = 'spark-channel stream'"

CHANGES = [
    "INSERT INTO $t (id, item) VALUES ($key, 'a') ON CONFLICT (id) DO UPDATE SET item = 'é' || random()",
    "UPDATE $t SET id = id + 100 WHERE id = $key; INSERT INTO $t (id) VALUES ($key + $new) ON CONFLICT DO NOTHING",
    "DELETE FROM $t WHERE id = $key",
    "BEGIN; TRUNCATE $t; INSERT INTO $t (id, n) VALUES (1, 2.5); COMMIT",
    "BEGIN; INSERT INTO $t (id) SELECT generate_series(-9000, -1); ROLLBACK",
    "SELECT pg_logical_emit_message(false, 'x', 'y'), pg_logical_emit_message(true, 'x', 'y')",
]


@pytest.fixture
def table(postgres_server: PostgresServer) -> Iterator[Table]:
    made = Table(postgres_server)
    yield made
    made.drop()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed that is followed reads by a stream, however little a look decodes."""
    monkeypatch.setattr(postgresql_feed, "_MUCH_DECODED", -(1 << 62))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that decode a slot's log."""
    found: list[str] = []
    run, stream = PgReadSession._run, PgReadSession.stream

    def ran(self: PgReadSession, sql: str) -> Any:
        if "peek_binary" in sql:
            found.append(sql)
        return run(self, sql)

    def streamed(self: PgReadSession, sql: str, *given: Any) -> Any:
        if "peek_binary" in sql:
            found.append(sql)
        return stream(self, sql, *given)

    monkeypatch.setattr(PgReadSession, "_run", ran)
    monkeypatch.setattr(PgReadSession, "stream", streamed)
    return found


def followed(table: Table, **options: Any) -> ChangeFeed:
    feed = table.feed(**options)
    feed.is_followed = True
    return feed


def streams(table: Table) -> int:
    query = f"SELECT count(*) FROM pg_stat_replication WHERE {STREAM}"
    return int(table.server.psql(query))


def confirmed(table: Table) -> str:
    return table.server.psql(
        f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{table.name}'"
    )


def released(table: Table, *feeds: ChangeFeed) -> None:
    for feed in feeds:
        feed.release()
    until = time.monotonic() + 60.0
    while streams(table):
        assert time.monotonic() < until
        time.sleep(0.05)


def look_until_refused(feed: ChangeFeed, after: Any) -> None:
    while True:
        feed.latest(after, NO_LIMIT)


def next_range(feed: ChangeFeed, after: Any, limit: FeedLimit = NO_LIMIT) -> Any:
    """The end of the next range; a look may end before the server has decoded all."""
    for _ in range(30):
        end = feed.latest(after, limit)
        if end != after:
            return end
    raise AssertionError("no change was found")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("limit", [NO_LIMIT, FeedLimit(rows=7)], ids=["whole", "cut"])
def test_a_stream_has_the_rows_of_looks(table: Table, looks: list[str], limit: FeedLimit) -> None:
    table.run("ALTER TABLE $t REPLICA IDENTITY FULL")
    feed = followed(table, ignores=True)
    witness = table.feed(slot=f"{table.name}_witness", ignores=True)
    (first,), (token,) = witness.now(), feed.now()
    chance, given = random.Random(5), []
    for turn in range(12):
        for _ in range(chance.randint(1, 4)):
            key = chance.randint(1, 9)
            change = chance.choice(CHANGES)
            table.run(change.replace("$key", str(key)).replace("$new", str(1000 * turn + 1000)))
        if turn == 5:
            table.run("ALTER TABLE $t ADD more text DEFAULT 'x'")
        end = feed.latest(token, limit)
        if end != token:
            found = rows(feed, token, end)
            assert rows(feed, token, end) == found, "a range can be read again"
            given += found
            if turn % 2:
                feed.settle(end)
            token = end
    while (end := feed.latest(token, limit)) != token:
        given += rows(feed, token, end)
        token = end
    assert streams(table) == 1
    assert looks == []
    released(table, feed)
    assert given == rows(witness, first, witness.latest(first, NO_LIMIT))
    assert len(given) > 20


@pytest.mark.usefixtures("always")
def test_what_was_not_settled_comes_again(table: Table) -> None:
    feed = followed(table)
    (begin,) = feed.now()
    table.run("INSERT INTO $t VALUES (1, 'a', 0)")
    first = next_range(feed, begin)
    table.run("INSERT INTO $t VALUES (2, 'b', 0)")
    second = next_range(feed, first)
    before = confirmed(table)
    assert brief(rows(feed, first, second)) == [("insert", 2, "b")]
    assert confirmed(table) == before
    feed.settle(first)
    assert streams(table) == 1
    table.server.psql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE {STREAM}")
    other = followed(table)
    assert confirmed(table) > before
    end = next_range(other, first)
    assert brief(rows(other, first, end)) == [("insert", 2, "b")]
    with pytest.raises(SourceError, match="another reader has advanced it"):
        other.latest(begin, NO_LIMIT)
    table.run("INSERT INTO $t VALUES (3, 'c', 0)")
    third = next_range(feed, second)
    assert brief(rows(feed, second, third)) == [("insert", 3, "c")], "the first is not ended"
    released(table, feed, other)


@pytest.mark.usefixtures("always")
def test_another_use_of_the_slot_ends_the_stream_and_loses_nothing(table: Table) -> None:
    feed = followed(table)
    (token,) = feed.now()
    for number in range(6):
        assert feed.latest(token, NO_LIMIT) == token, (
            "a lost stream is opened by the look that follows"
        )
        table.run(f"INSERT INTO $t VALUES ({number}, 'a', 0)")
        end = next_range(feed, token)
        if number % 3 == 0:
            assert table.feed().lag(token).nbytes
        elif number % 3 == 1:
            other = followed(table)
            assert brief(rows(other, token, next_range(other, token))) == [("insert", number, "a")]
            released(table, other)
            assert pickle.loads(pickle.dumps(table.feed())).lag(token).nbytes
        else:
            assert streams(table) == 1
        assert brief(rows(feed, token, end)) == [("insert", number, "a")]
        if number % 3 == 2:
            feed.settle(end)
        token = end
    feed.settle(token)
    other = table.feed()  # the server may give back the slot after it was asked to drop it
    RetryingCalls(30.0).call(other.close, other.is_passing)
    with pytest.raises(SourceError, match="does not exist"):
        feed.latest(token, NO_LIMIT)
    feed.release()


@pytest.mark.usefixtures("always")
def test_a_transaction_that_is_not_held_is_read_by_a_look(
    table: Table, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_stream, "_HELD_BYTES", 100_000)
    feed = followed(table)
    (token,) = feed.now()
    table.run("INSERT INTO $t VALUES (-1, 'a', 0)")
    table.run("INSERT INTO $t SELECT i, 'a', 0 FROM generate_series(1, 20000) i")
    table.run("INSERT INTO $t VALUES (0, 'a', 0)")
    first = next_range(feed, token)
    assert brief(rows(feed, token, first)) == [("insert", -1, "a")]
    assert looks == []
    end = next_range(feed, first)
    assert [row["id"] for row in rows(feed, first, end)] == [*range(1, 20001), 0]
    assert looks
    assert feed.latest(end, NO_LIMIT) == end
    table.run("INSERT INTO $t VALUES (-2, 'a', 0)")
    looks.clear()
    last = next_range(feed, end)
    assert brief(rows(feed, end, last)) == [("insert", -2, "a")]
    assert streams(table) == 1
    assert looks == []
    released(table, feed)


def test_what_an_open_transaction_keeps_is_decoded_once(table: Table, looks: list[str]) -> None:
    """Its changes are spilled by each decoding: the server counts their bytes."""
    if int(table.server.psql("SHOW server_version_num")) < 150000:
        pytest.skip("the server does not show the bytes at once")

    def spilled() -> int:
        table.server.psql("SELECT pg_stat_force_next_flush()")
        return int(
            table.server.psql(
                f"SELECT spill_bytes FROM pg_stat_replication_slots WHERE slot_name = '{table.name}'"
            )
        )

    feed = followed(table)
    (token,) = feed.now()
    other = f"{table.name}_other"
    table.server.psql(f"CREATE TABLE {other} (n int, filler text)")
    with psycopg.connect(
        host=str(table.server.directory), port=table.server.port, user="tester", dbname="postgres"
    ) as session:
        session.execute(
            f"INSERT INTO {other} SELECT i, repeat('x', 1000) FROM generate_series(1, 110000) i"
        )
        table.run("INSERT INTO $t VALUES (0, 'a', 0)")
        end = next_range(feed, token)
        feed.settle(end)
        token = end
        assert looks, "it is not far behind its position yet"
        assert spilled() > 60 << 20, "a look decodes it, and has 64 MB spilled"
        looks.clear()
        begun = spilled()
        for number in range(1, 11):
            table.run(f"INSERT INTO $t VALUES ({number}, 'a', 0)")
            end = next_range(feed, token)
            assert brief(rows(feed, token, end)) == [("insert", number, "a")]
            feed.settle(end)
            token = end
        assert looks == []
        assert spilled() - begun < 150 << 20, "ten ranges decode it once"
    released(table, feed)
    table.server.psql(f"DROP TABLE {other}")


def test_a_server_that_refuses_is_looked_at_as_before(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_feed, "_MUCH_DECODED", -(1 << 62))
    server = PostgresServer.create(max_wal_senders="0", wal_level="logical")
    try:
        for left, why in (
            (3, "the last ones are left free"),
            (-1, "requested standby connections exceeds"),
        ):
            monkeypatch.setattr(postgresql_feed, "_LEFT_SENDERS", left)
            table = Table(server)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                feed = followed(table)
                (token,) = feed.now()
                for number in range(3):
                    table.run(f"INSERT INTO $t VALUES ({number}, 'a', 0)")
                    end = next_range(feed, token)
                    assert brief(rows(feed, token, end)) == [("insert", number, "a")]
                    feed.settle(end)
                    token = end
            told = [each for each in caplog.messages if "is decoded again at each look" in each]
            assert len(told) == 1
            assert why in told[0]
            assert "s3cret" not in told[0]
    finally:
        server.close()


@pytest.mark.usefixtures("always")
def test_a_server_stops_while_a_stream_is_open_and_its_process_works_elsewhere() -> None:
    server = PostgresServer.create()
    try:
        table = Table(server)
        feed = followed(table)
        (token,) = feed.now()
        table.run("INSERT INTO $t VALUES (1, 'a', 0)")
        first = next_range(feed, token)
        feed.settle(first)
        table.run("INSERT INTO $t VALUES (2, 'b', 0)")
        end = next_range(feed, first)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        with pytest.raises(SourceError):
            look_until_refused(feed, end)
        feed.release()
        stopping.join(30.0)
        assert not stopping.is_alive()
        server.start()
        feed.is_followed = True
        assert brief(rows(feed, first, next_range(feed, first))) == [("insert", 2, "b")]
        feed.release()
    finally:
        server.close()
