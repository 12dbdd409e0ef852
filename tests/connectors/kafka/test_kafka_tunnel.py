"""What the channels of one tunnel client share: clients of the brokers, and descriptions of the topic."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from spark_channel.connectors.base.contract import FetchSize
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.kafka import administrator as administrator_module
from spark_channel.connectors.kafka import client as client_module
from spark_channel.connectors.kafka import reader as reader_module
from spark_channel.connectors.kafka.administrator import Administrator
from spark_channel.connectors.kafka.consumers import ConsumerPool
from spark_channel.connectors.kafka.ranges import Range
from spark_channel.errors import SourceError
from spark_channel.testing import VirtualClock
from spark_channel.tunnel import Tunnel
from tests.connectors.kafka.conftest import put, reader
from tests.servers.kafka import KafkaServer

THREADS = 2


def tunnel(server: KafkaServer, folder: Path, **more: Any) -> Tunnel:
    options = {
        "reader": "kafka",
        "bootstrapServers": server.address,
        "topic": "orders",
        "timeout": 20,
        "tunnelType": "stream",
        "startingOffsets": "earliest",
        "heartbeatInterval": "5",
        **more,
    }
    return Tunnel("in", options, store=str(folder / "tunnels.db"))


def values(delivery: Any) -> list[bytes]:
    return [value for batch in delivery.batches for value in batch.column("value").to_pylist()]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many clients were made."""
    counts: Counter[str] = Counter()

    def counted(kind: type[Any]) -> Callable[[dict[str, Any]], Any]:
        def make(settings: dict[str, Any]) -> Any:
            counts[kind.__name__] += 1
            return kind(settings)

        return make

    monkeypatch.setattr(client_module, "Consumer", counted(Consumer))
    monkeypatch.setattr(administrator_module, "AdminClient", counted(AdminClient))
    return counts


@pytest.mark.parametrize("parts", [3, 30])
def test_the_clients_of_a_tunnel_do_not_grow_with_its_partitions(
    server: KafkaServer, tmp_path: Path, made: Counter[str], parts: int
) -> None:
    server.create("orders", parts)
    for number in range(parts):
        put(server, str(number).encode(), partition=number)
    found = tunnel(server, tmp_path)
    found.create()
    made.clear()
    rows: Counter[bytes] = Counter()
    found.consume(lambda delivery: rows.update(values(delivery)), threads=THREADS, drained=True)
    assert rows == Counter(str(number).encode() for number in range(parts))
    # One that has failed is made again, as when a loaded machine answers late.
    assert 1 <= made["AdminClient"] <= 3
    assert 1 <= made["Consumer"] <= THREADS + 2


def test_a_topic_that_is_created_again_while_a_range_is_read(
    server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The description that the range was planned by is still good then."""
    server.create("orders")
    put(server, b"0", b"1")
    read = reader_module.pages

    def pages(*given: Any) -> Any:
        server.create("orders")
        put(server, b"other", b"records", b"now")
        return read(*given)

    monkeypatch.setattr(reader_module, "pages", pages)
    processed: list[bytes] = []
    found = tunnel(server, tmp_path, onError="stop")
    found.create()
    with pytest.raises(SourceError, match="created again after the read was planned"):
        found.consume(lambda delivery: processed.extend(values(delivery)), drained=True)
    assert not processed
    (channel,) = found.store.state("in").channels.values()
    assert channel.sequence == 0, "no checkpoint of it"


def test_feeds_that_share_check_what_they_read_later(server: KafkaServer) -> None:
    server.create("orders")
    put(server, b"0", b"1")
    one, other = (reader(server).feed(FeedOptions()) for _ in range(2))
    one.share(other)
    (start,) = one.earliest()
    splits = one.changes(start, one.latest(start, FeedLimit()))
    with one.reading_ahead() as (read, check):
        assert sum(batch.num_rows for split in splits for batch in read(split)) == 2
        check()
        server.create("orders")
        put(server, b"a", b"b")
        assert sum(batch.num_rows for split in splits for batch in read(split)) == 2
        with pytest.raises(SourceError, match="created again after the read was planned"):
            check()
    other.rest(ends=True)


def test_ranges_that_were_read_share_a_description(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create("orders")
    asked: list[float] = []

    class Counted(AdminClient):
        def describe_topics(self, *given: Any, **named: Any) -> Any:
            asked.append(clock.now())
            clock.advance(0.1)  # so long it takes
            return super().describe_topics(*given, **named)

    clock = VirtualClock()
    monkeypatch.setattr(administrator_module, "AdminClient", Counted)
    brokers = Administrator(reader(server).options, clock=clock)  # type: ignore[arg-type] # Kafka's
    brokers.topics(["orders"])
    read = clock.now()
    waits = threading.Thread(target=brokers.topics_after, args=(["orders"], read))
    waits.start()
    clock.wait_until_blocked(waits)
    clock.advance(0.4)
    waits.join()
    for _ in range(100):
        brokers.topics_after(["orders"], read)
    assert len(asked) == 2
    assert asked[1] == pytest.approx(asked[0] + 0.1 + 4 * 0.1), "a fifth of the time at most"
    for _ in range(3):
        brokers.topics(["orders"], since=clock.now() - 1.0)
    assert len(asked) == 2
    clock.advance(2.0)
    brokers.topics(["orders"], since=clock.now() - 1.0)
    assert len(asked) == 3


def test_offsets_of_many_partitions_are_asked_for_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client searches all partitions of a request for each of them."""
    asked: list[int] = []

    class Client:
        def __init__(self, settings: dict[str, Any]) -> None:
            pass

        def list_offsets(self, wanted: Any, **_: Any) -> Any:
            asked.append(len(wanted))
            offsets = {part: Future[Any]() for part in wanted}
            for part, offset in offsets.items():
                offset.set_result(SimpleNamespace(offset=part.partition))
            return offsets

    monkeypatch.setattr(administrator_module, "AdminClient", Client)
    parts = [(topic, number) for topic in ("one", "other") for number in range(1200)]
    ends = Administrator(reader("h:9092").options).last_offsets(parts)  # type: ignore[arg-type] # Kafka's
    assert ends == {part: part[1] for part in parts}
    assert sum(asked) == len(parts)
    assert max(asked) <= 500


def test_a_consumer_is_one_threads_at_a_time_and_is_closed_when_it_rests() -> None:
    clock, options = VirtualClock(), reader("h:9092").options
    pool = ConsumerPool(options, clock=clock)  # type: ignore[arg-type] # Kafka's
    with pool.taken() as first, pool.taken() as second:
        assert first.client is not second.client
    with pool.taken() as again:
        assert again.client is first.client, "the one that was used last"
    with pool.taken(**{"queued.min.messages": 7}) as other:
        assert other.client not in (first.client, second.client)
    with pytest.raises(ZeroDivisionError), pool.taken() as failed:
        raise ZeroDivisionError
    assert is_closed(failed.client)
    clock.advance(29.0)
    with pool.taken() as used:
        pass
    clock.advance(2.0)
    pool.rest(30.0)
    assert is_closed(other.client)
    assert not is_closed(used.client)
    with pool.taken() as held:
        pool.close()
        assert not is_closed(held.client)
    assert is_closed(held.client)


def test_a_partition_that_ended_before_others_is_read_again(server: KafkaServer) -> None:
    """It was paused then, which its client keeps to."""
    server.create("orders", 2)
    for number in range(2):
        put(server, *[b"x"] * 20, partition=number)
    options = reader(server).options
    pool = ConsumerPool(options)  # type: ignore[arg-type] # Kafka's
    fetch = FetchSize(rows=5, nbytes=None)
    for begin, end in ((0, 10), (10, 20), (0, 20)):
        ranges = [Range("orders", number, begin, end) for number in range(2)]
        found = [
            (message.partition(), message.offset())
            for page in reader_module.pages(options, ranges, fetch, pool)  # type: ignore[arg-type] # Kafka's
            for message in page
        ]
        assert sorted(found) == [(n, offset) for n in range(2) for offset in range(begin, end)]
    pool.close()


def is_closed(client: Consumer) -> bool:
    try:
        client.assignment()
    except RuntimeError:
        return True
    return False


def test_a_tunnel_outlives_a_broker_that_goes_away(server: KafkaServer, tmp_path: Path) -> None:
    parts = 6
    server.create("orders", parts)
    for number in range(parts):
        put(server, str(number).encode(), partition=number)
    found = tunnel(server, tmp_path, timeout=5)
    found.create()
    rows: Counter[bytes] = Counter()
    first, away = threading.Lock(), threading.Thread(target=server.start)

    def process(delivery: Any) -> None:
        if first.acquire(blocking=False):
            server.kill()
            away.start()
        rows.update(values(delivery))

    found.consume(process, threads=THREADS, drained=True)
    away.join()
    assert rows.keys() == {str(number).encode() for number in range(parts)}
    assert all(channel.sequence == 1 for channel in found.store.state("in").channels.values())
