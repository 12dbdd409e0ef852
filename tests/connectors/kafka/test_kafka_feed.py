"""A topic as the source of streams: tokens are offsets."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.errors import OptionError, SourceError
from spark_channel.tunnel import Tunnel
from spark_channel.tunnel.positions import CheckpointPositions, Offset
from spark_channel.tunnel.source import StreamSource
from tests.connectors.kafka.conftest import put, reader, transact
from tests.servers.kafka import KafkaServer

ALL = FeedLimit()


def feed(server: KafkaServer, **options: Any) -> ChangeFeed:
    return reader(server, **options).feed(FeedOptions())


def read(found: ChangeFeed, after: Token, upto: Token) -> list[bytes]:
    splits = found.changes(after, upto)
    return [
        value
        for split in splits
        for batch in found.read(split)
        for value in batch.column("value").to_pylist()
    ]


def test_ranges_of_offsets(server: KafkaServer) -> None:
    server.create("orders", 2)
    put(server, b"0", b"1", b"2")
    put(server, b"x", partition=1)
    found = feed(server)
    start, other = found.earliest()
    assert start == {"topic": "orders", "partition": 0, "offset": 0, "of": 2, "id": start["id"]}
    some = found.latest(start, FeedLimit(rows=2))
    assert read(found, start, some) == [b"0", b"1"]
    end = found.latest(some, ALL)
    assert end == found.now()[0]
    put(server, b"3")
    assert read(found, some, end) == [b"2"], "the same records, whatever came since"
    assert found.latest(end, ALL, upto=end) == end
    assert (found.lag(end).rows, found.lag(start).rows) == (1, 4)
    assert found.reaches(end, some)
    assert not found.reaches(some, end)
    assert read(found, other, found.latest(other, ALL)) == [b"x"]
    with pytest.raises(OptionError, match="are of different partitions"):
        found.reaches(start, other)


def test_an_open_transaction_holds_the_stream_back(server: KafkaServer) -> None:
    server.create("orders")
    put(server, b"0")
    (start,) = feed(server).earliest()
    client = transact(server, b"1", end="")
    put(server, b"2")
    end = feed(server).latest(start, ALL)
    assert read(feed(server), start, end) == [b"0"]
    client.abort_transaction(10)
    client.close()
    assert read(feed(server), end, feed(server).latest(end, ALL)) == [b"2"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda server: server.expire("orders", 0, 2),
            "whose first record is 2: the topic's retention deleted",
        ),
        (
            lambda server: server.create("orders"),
            "'orders' was deleted and created again since the stream stood at offset 1 of partition 0",
        ),
        (lambda server: server.add_partitions("orders", 2), "has 2 partitions, and had 1"),
    ],
)
def test_records_that_a_stream_would_miss_are_an_error(
    server: KafkaServer, change: Any, message: str
) -> None:
    server.create("orders")
    put(server, b"0", b"1", b"2")
    found = feed(server)
    token = found.latest(found.earliest()[0], FeedLimit(rows=1))
    change(server)
    with pytest.raises(SourceError, match=message):
        found.latest(token, ALL)


def test_a_topic_of_the_same_name_with_more_records(server: KafkaServer) -> None:
    server.create("orders")
    put(server, b"0", b"1", b"2")
    found = feed(server)
    (start,), (end,) = found.earliest(), found.now()
    splits = found.changes(start, end)
    server.create("orders")
    put(server, b"a", b"b", b"c", b"d", b"e")
    for act in (
        lambda: found.latest(end, ALL),
        lambda: found.end_of(end),
        lambda: found.lag(end),
        lambda: found.base([end], 1),
    ):
        with pytest.raises(SourceError, match="was deleted and created again since the stream"):
            act()
    for split in [*splits, *found.changes(start, end)]:
        with pytest.raises(SourceError, match="created again after the read was planned"):
            list(found.read(split))
    # A token of an earlier version has no id.
    old = {name: value for name, value in end.items() if name != "id"}
    after = found.latest(old, ALL)
    assert read(found, old, after) == [b"d", b"e"]
    assert after["id"] != end["id"]


@pytest.mark.parametrize(
    "token",
    [
        {},
        {"offset": 1},
        {"topic": "x", "partition": 0, "offset": 1, "of": 1},
        {"topic": "orders", "partition": 0, "offset": "1", "of": 1},
        {"topic": "orders", "partition": 0, "offset": 1, "of": 1, "id": 7},
    ],
)
def test_a_damaged_token(server: KafkaServer, token: Token) -> None:
    with pytest.raises(SourceError, match="it is damaged, or of another source"):
        feed(server).latest(token, ALL)


def test_options_of_batch_reads(server: KafkaServer) -> None:
    with pytest.raises(
        OptionError, match="'beginOffsets' is for batch reads; a stream takes 'startingOffsets'"
    ):
        feed(server, beginOffsets="earliest")


def test_a_position_at_a_time_to_come(server: KafkaServer) -> None:
    server.create("orders")
    put(server, b"0")
    found, now = feed(server), datetime.now(UTC)
    with pytest.raises(OptionError, match="is in the future"):
        found.at(now + timedelta(hours=1))
    assert found.at(datetime(2020, 1, 1, tzinfo=UTC)) == found.earliest()


def test_a_tunnel_reads_what_is_there_and_then_what_is_new(
    server: KafkaServer, tmp_path: Path
) -> None:
    server.create("orders", 2)
    put(server, b"0", b"1")
    put(server, b"x", partition=1)
    options = {
        "reader": "kafka",
        "bootstrapServers": server.address,
        "topic": "orders",
        "heartbeatInterval": "5",
    }
    tunnel = Tunnel("in", options, store=str(tmp_path / "tunnels.db"))
    tunnel.create(channels=2)
    found: Counter[bytes] = Counter()

    def process(delivery: Any) -> None:
        found.update(
            value for batch in delivery.batches for value in batch.column("value").to_pylist()
        )

    tunnel.consume(process, threads=1, drained=True)
    assert found == Counter([b"0", b"1", b"x"])
    transact(server, b"2").close()
    transact(server, b"lost", end="abort").close()
    tunnel.consume(process, threads=1, drained=True)
    assert found == Counter([b"0", b"1", b"2", b"x"])


class _Requests:
    """Counts what clients of administrators ask."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def client(self, settings: dict[str, Any]) -> AdminClient:
        counts = self.asked

        class Counted(AdminClient):
            def describe_topics(self, *given: Any, **named: Any) -> Any:
                counts["describe"] += 1
                return super().describe_topics(*given, **named)

            def list_offsets(self, *given: Any, **named: Any) -> Any:
                counts["offsets"] += 1
                return super().list_offsets(*given, **named)

        return Counted(settings)

    def of(self, work: Callable[[], object]) -> dict[str, int]:
        self.asked.clear()
        work()
        return dict(self.asked)


def test_a_look_asks_once_for_all_partitions(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = _Requests()
    monkeypatch.setattr("spark_channel.connectors.kafka.administrator.AdminClient", requests.client)
    asked: dict[int, list[dict[str, int]]] = {}
    for parts in (3, 30):
        server.create("orders", parts)
        for number in range(parts):
            put(server, b"x", partition=number)
        options = {
            "reader": "kafka",
            "bootstrapServers": server.address,
            "topic": "orders",
            "tunnelType": "stream",
            "startingOffsets": "earliest",
            "timeout": 20,
        }
        positions = CheckpointPositions(StreamSource(options), 1)
        start = positions.initial()
        offsets = [start]

        def look(
            positions: CheckpointPositions = positions, offsets: list[Offset] = offsets
        ) -> None:
            offsets.append(positions.latest(offsets[-1], ALL))

        found = reader(server)
        splits = found.split(2)

        def read(found: Any = found, splits: Any = splits, rows: int = parts) -> None:
            with found.reading() as read:
                assert sum(batch.num_rows for each in splits for batch in read(each)) == rows

        asked[parts] = [requests.of(look), requests.of(look)]
        assert offsets[1]["channels"] != start["channels"]
        assert offsets[2] == offsets[1]
        asked[parts] += [requests.of(lambda: positions.behind(offsets[-1]))]  # noqa: B023 - called here
        assert requests.of(read) == {"describe": 3}, "one before the first, one behind each split"
    assert asked[3] == asked[30]
    assert asked[3][1] == {"describe": 1, "offsets": 3}
