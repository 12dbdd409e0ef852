"""Reads of topics: which records, and what happens when some are not there."""

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from spark_channel.connectors import FetchSize
from spark_channel.connectors.kafka import client as kafka_client
from spark_channel.connectors.kafka.administrator import Edges
from spark_channel.connectors.kafka.client import BrokerStatus
from spark_channel.connectors.kafka.ranges import Range, offsets_at, ranges_of, splits_of
from spark_channel.connectors.kafka.reader import _prefetch
from spark_channel.errors import OptionError, SourceError
from spark_channel.planning import Split
from spark_channel.testing import reader_conformance
from tests.connectors.kafka.conftest import put, reader, rows, table, transact
from tests.servers.kafka import PASSWORD, KafkaServer

pytestmark = pytest.mark.real_server("Apache Kafka", "kafka")


def values(server: KafkaServer, advice: int = 1, **options: Any) -> list[bytes]:
    return [row["value"] for row in rows(reader(server, **options), advice)]


def test_the_columns_are_those_of_sparks_source(server: KafkaServer) -> None:
    server.create("orders", 2)
    put(server, b"v", None, b"", key=b"k", timestamp=1_700_000_000_123)
    put(server, b"h", partition=1, headers=[("a", b"1"), ("a", None)])
    found = reader(server, includeHeaders="true")
    assert found.schema().names == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]

    def place(row: dict[str, Any]) -> tuple[int, int]:
        return row["partition"], row["offset"]

    first, deleted, empty, other = sorted(rows(found), key=place)
    assert first == {
        "key": b"k",
        "value": b"v",
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestampType": 0,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "headers": None,
    }
    assert (deleted["value"], empty["value"]) == (None, b"")
    assert other["key"] is None
    assert other["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    picked = reader(server, columns="offset,value")
    assert {"offset": 0, "value": b"v"} in rows(picked)


def test_the_contract_of_readers(server: KafkaServer) -> None:
    server.create("orders", 2)
    for number in range(4):
        put(server, b'{"id": %d}' % number, partition=number % 2)
    expected = pa.table({"id": pa.array(range(4), pa.int64())})
    reader_conformance(lambda: reader(server, valueFormat="json"), expected=expected, advice=3)


def test_gaps_of_compaction_and_of_transactions(server: KafkaServer) -> None:
    """Neither lost rows nor a wait for records that do not exist."""
    topic = "compacted"
    server.create(topic, cleanup_policy="compact", min_cleanable_dirty_ratio="0.001")
    transact(server, "a0", "a1", topic=topic).close()  # 0, 1 and a marker
    transact(server, "b3", "b4", end="abort", topic=topic).close()  # 3, 4 and a marker
    for text, key in (("c6", "c6"), ("c7", "x"), ("c8", "c8"), ("c9", "x")):
        put(server, text.encode(), key=key, topic=topic)
    transact(server, "d10", key="x", topic=topic).close()  # 10 and a marker
    # A record of a later week begins another segment, and the broker compacts those before the last one.
    put(server, b"e12", key="e12", timestamp=int(time.time() * 1000) + 30 * 86_400_000, topic=topic)
    transact(server, "f13", topic=topic).close()  # 13, and a marker at the end
    assert server.end(topic) == 15
    wanted = [b"a0", b"a1", b"c6", b"c8", b"d10", b"e12", b"f13"]
    deadline = time.monotonic() + 60
    while server.stored(topic) != [*wanted[:2], b"c6", b"c8", *wanted[4:]]:
        assert time.monotonic() < deadline, "the broker does not compact"
        time.sleep(0.1)
    for advice in (1, 2, 5, 15):
        assert values(server, advice, topic=topic) == wanted, advice
    # Cut so that each edge is in a gap once.
    for edge in (1, 3, 4, 6, 8, 10, 12, 15):
        pieces = values(server, endOffsets=edge, topic=topic) + values(
            server, beginOffsets=edge, topic=topic
        )
        assert pieces == wanted, edge


def test_a_transaction_that_is_open_is_not_read(server: KafkaServer) -> None:
    server.create("orders")
    put(server, b"before")
    client = transact(server, b"open", end="")
    put(server, b"behind")
    found = reader(server)
    splits = found.split(1)
    assert [split.rows for split in splits] == [1]
    client.commit_transaction(10)
    client.close()
    put(server, b"later")
    # What the plan named, and no more.
    read = [batch.column("value").to_pylist() for split in splits for batch in found.read(split)]
    assert read == [[b"before"]]
    assert values(server) == [b"before", b"open", b"behind", b"later"]


def test_a_read_that_is_planned_right_after_a_commit_has_its_records(server: KafkaServer) -> None:
    """The broker answers a commit before it writes the marker that makes the records readable."""
    server.create("orders")
    for count in range(1, 11):
        transact(server, f"{count}").close()
        assert len(values(server)) == count


def test_a_topic_that_is_created_again_while_it_is_read(server: KafkaServer) -> None:
    server.create("orders")
    put(server, b"0", b"1", b"2", b"3")
    found = reader(server)
    (split,) = found.split(1)
    batches = found.read(split)
    assert next(batches).num_rows
    server.create("orders")
    with pytest.raises(SourceError, match="created again after the read was planned"):
        list(batches)


def test_records_that_are_deleted_after_the_plan_are_an_error(server: KafkaServer) -> None:
    server.create("orders")
    put(server, b"0", b"1", b"2", b"3")
    found = reader(server)
    (split,) = found.split(1)
    server.expire("orders", 0, 2)
    with pytest.raises(
        SourceError,
        match=r"partition 0 of topic 'orders' from offset 0 on.*were deleted after the read was planned",
    ):
        list(found.read(split))
    server.create("orders")  # again, and empty
    with pytest.raises(
        SourceError,
        match="'orders' was deleted and created again after the read was planned: its offsets 0 to 3",
    ):
        list(found.read(split))
    found = reader(server, timeout=1)
    (split,) = splits_of([Range("orders", 0, 0, 4)], 1)  # of brokers that give no id
    with pytest.raises(
        SourceError, match="up to offset 3 when the read was planned, and has them up to -1 now"
    ):
        list(found.read(split))
    (split,) = splits_of([Range("orders", 0, 2, 4)], 1)
    with pytest.raises(SourceError, match=r"from offset 2 on.*the topic was created again"):
        list(found.read(split))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"beginOffsets": 1},
            r"'beginOffsets' got 1 .* has the offsets 2 to 4: its records before that were deleted",
        ),
        (
            {"endOffsets": 5},
            r"'endOffsets' got 5 .* has the offsets 2 to 4: there are no committed records after that",
        ),
        (
            {"beginOffsets": '{"orders": {"1": 0}}'},
            "names no offset for partition 0 of topic 'orders'",
        ),
        (
            {"beginOffsets": '{"orders": {"0": 2}, "x": {"0": 2}}'},
            "names topic 'x', which 'topic' does not",
        ),
        ({"partitions": "0,3"}, "'partitions' names 3; topic 'orders' has the partitions 0 to 0"),
    ],
)
def test_offsets_that_a_topic_does_not_have(
    server: KafkaServer, options: dict[str, Any], message: str
) -> None:
    server.create("orders")
    put(server, b"0", b"1", b"2", b"3")
    server.expire("orders", 0, 2)
    with pytest.raises(OptionError, match=message):
        reader(server, **options).split(1)


def test_ranges_by_offsets_and_times(server: KafkaServer) -> None:
    server.create("orders", 2)
    for hour in range(3):
        put(
            server, b"%d" % hour, partition=hour % 2, timestamp=1_700_000_000_000 + hour * 3_600_000
        )
    begin = datetime.fromtimestamp(1_700_000_000, UTC)
    times = [(begin + timedelta(hours=hour)).isoformat() for hour in range(4)]
    assert values(server, beginTimestamp=times[1], endTimestamp=times[2]) == [b"1"]
    assert values(server, beginTimestamp=str(1_700_000_000_000 + 3_600_001)) == [b"2"]
    assert values(server, beginTimestamp=times[3]) == []
    assert values(server, endOffsets='{"orders": {"0": 1, "1": -2}}') == [b"0"]
    assert values(server, partitions="1") == [b"1"]
    assert values(server, beginOffsets='{"orders": {"1": -1}}', partitions="1") == []
    assert values(server, endTimestamp=times[0]) == []


def test_a_time_before_1970_is_the_first_record() -> None:
    """Kafka takes -1 for the end of a partition, -2 for its beginning, and refuses others below 0."""
    asked: list[int] = []

    class Client:
        def offsets_for_times(
            self, wanted: list[TopicPartition], timeout: float
        ) -> list[TopicPartition]:
            asked.extend(each.offset for each in wanted)
            return wanted

    options: Any = reader("h:9092").options
    for moment in (
        "1969-12-31T23:59:59.999Z",
        "1970-01-01T00:00:00+08:00",
        "1970-01-01T00:00:00.0001Z",
    ):
        at = datetime.fromisoformat(moment)
        client: Any = Client()
        found = offsets_at(
            BrokerStatus(options, SourceError), client, {("orders", 0): Edges(0, 9)}, at
        )
        assert found == {("orders", 0): asked[-1]}
    assert asked == [0, 0, 1]


def test_statistics_of_a_reader_that_is_held_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client keeps each of them until it is asked for records again."""
    made: dict[str, Any] = {}

    class Client:
        def __init__(self, settings: dict[str, Any]) -> None:
            made.update(settings)

    monkeypatch.setattr(kafka_client, "Consumer", Client)
    options: Any = reader("h:9092", timeout=60).options
    kafka_client.consumer(options, BrokerStatus(options, SourceError), lambda _: None)
    assert made["statistics.interval.ms"] == 15_000


def test_splits_are_about_equal_and_an_empty_topic_has_none(server: KafkaServer) -> None:
    server.create("orders", 3)
    assert reader(server).split(4) == []
    put(server, *[b"x"] * 9)
    put(server, b"y", partition=2)
    splits = reader(server).split(5)
    assert [split.rows for split in splits] == [2, 2, 2, 2, 2]
    assert [len(ranges_of(split)) for split in splits] == [1, 1, 1, 1, 2]
    assert sorted(values(server, advice=5)) == [b"x"] * 9 + [b"y"]


def test_splits_follow_the_channels_and_not_the_partitions() -> None:
    ranges = [Range("orders", number, 5, 6, "id") for number in range(10_000)]
    splits = splits_of(ranges, 4)
    assert [split.rows for split in splits] == [2_500] * 4
    assert [each for split in splits for each in ranges_of(split)] == ranges
    before = Split({"topic": "orders", "partition": 3, "begin": 5, "end": 6, "id": "id"}, 1)
    assert ranges_of(before) == [ranges[3]], "that an earlier version stored"


def test_a_split_of_many_partitions(server: KafkaServer) -> None:
    """More than are read together, with markers of transactions, empty ones, and records behind what was planned."""
    parts = 120
    server.create("orders", parts)
    put_each = [(str(number).encode(), number) for number in range(0, parts, 2)]
    client = Producer({"bootstrap.servers": server.address})
    for value, number in put_each:
        client.produce("orders", value + b"a", partition=number)
        client.produce("orders", value + b"b", partition=number)
    assert client.flush(60) == 0  # leaders of so many partitions take a while
    client.close()
    transact(server, b"in", b"transaction").close()
    transact(server, b"lost", end="abort").close()
    found = reader(server)
    (split,) = found.split(1)
    for number in (0, 1, 2, 110):
        put(server, *[b"later"] * 50, partition=number)
    rows: dict[int, list[tuple[int, bytes]]] = {}
    for batch in found.read(split):
        for row in batch.to_pylist():
            rows.setdefault(row["partition"], []).append((row["offset"], row["value"]))
    wanted = {number: [(0, v + b"a"), (1, v + b"b")] for v, number in put_each}
    wanted[0] += [(2, b"in"), (3, b"transaction")]
    assert rows == wanted


def test_records_of_one_of_many_partitions_are_gone(server: KafkaServer) -> None:
    server.create("orders", 20)
    for number in range(20):
        put(server, b"0", b"1", partition=number)
    found = reader(server)
    (split,) = found.split(1)
    server.expire("orders", 7, 1)
    with pytest.raises(
        SourceError, match=r"partition 7 of topic 'orders' from offset 0 on.*were deleted"
    ):
        list(found.read(split))


def test_sampled_columns_of_many_partitions_are_the_same_each_time(server: KafkaServer) -> None:
    server.create("orders", 30)
    for number in range(30):
        put(server, f'{{"c{number}": 1}}'.encode(), partition=number)
    for _ in range(3):
        found = reader(server, valueFormat="json", sampleRows=12)
        assert found.schema().names == [f"c{number}" for number in range(12)]


def test_brokers_that_fall_silent_are_an_error(server: KafkaServer) -> None:
    server.create("orders")
    put(server, b"0")
    found = reader(server.relayed, timeout=1)
    (split,) = found.split(1)
    server.relay.mute = True
    begun = time.monotonic()
    with pytest.raises(
        SourceError, match=r"nothing after -1 came for 1 s \('timeout'\).*advertised"
    ):
        list(found.read(split))
    assert time.monotonic() - begun < 10


def test_no_right_to_a_consumer_group_is_needed(server: KafkaServer) -> None:
    server.create("orders")
    server.create("others")
    put(server, b"0")
    guest = {"user": "guest", "password": PASSWORD, "securityProtocol": "SASL_PLAINTEXT"}
    assert [row["value"] for row in rows(reader(server.login, **guest))] == [b"0"]
    with pytest.raises(SourceError, match="topic 'others'"):
        rows(reader(server.login, topic="others", **guest))


def test_no_broker_and_no_topic(server: KafkaServer) -> None:
    with pytest.raises(SourceError, match=r"no broker answered for 1 s .*check 'bootstrapServers'"):
        reader("127.0.0.1:1", timeout=1).split(1)
    with pytest.raises(SourceError, match="topic 'orders' does not exist"):
        reader(server).split(1)
    assert server.topics() == {}, "a read creates no topic"


def test_the_fields_of_json_values(server: KafkaServer) -> None:
    server.create("orders")
    put(
        server,
        b'{"id": 9007199254740993, "price": 12345678901234567.89, "name": "\xc3\xa4", "at": '
        b'{"city": "B", "n": [1.50]}}',
        b'{"id": 2, "extra": true}',
        None,
    )
    assert {
        field.name: str(field.type) for field in reader(server, valueFormat="json").schema()
    } == {
        "id": "int64",
        "price": "double",
        "name": "string",
        "at": "string",
        "extra": "bool",
    }
    schema = (
        "id BIGINT, price DECIMAL(19,2), name STRING, `at.city` STRING, at STRING, _offset BIGINT, "
        "_timestamp TIMESTAMP"
    )
    first, second, third = rows(reader(server, valueFormat="json", schema=schema))
    assert (first["id"], first["price"], first["name"]) == (
        9007199254740993,
        Decimal("12345678901234567.89"),
        "ä",
    )
    assert (first["at.city"], first["at"]) == ("B", '{"city":"B","n":[1.50]}')
    assert first["_timestamp"].tzinfo is not None
    assert (second["id"], second["price"], second["_offset"]) == (2, None, 1)
    assert (third["id"], third["_offset"]) == (None, 2)
    assert rows(reader(server, valueFormat="json", schema="price STRING"))[0] == {
        "price": "12345678901234567.89"
    }


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (
            b"no json",
            {"valueFormat": "json", "schema": "id INT"},
            "offset 0 of partition 0 .*the value is not JSON",
        ),
        (
            b"[1]",
            {"valueFormat": "json", "schema": "id INT"},
            "the value is JSON but not an object",
        ),
        (
            b'{"id": "x"}',
            {"valueFormat": "json", "schema": "id INT"},
            "column 'id' of the record with _offset '0'",
        ),
        (
            b"1",
            {"valueFormat": "text", "schema": "a INT, b STRING"},
            "has 1 parts at ',', and 'schema' names 2",
        ),
        (
            b"\xff,2",
            {"valueFormat": "text", "schema": "a STRING, b STRING"},
            "the value is not UTF-8",
        ),
    ],
)
def test_values_that_do_not_fit_are_named(
    server: KafkaServer, value: bytes, options: dict[str, Any], message: str
) -> None:
    server.create("orders")
    put(server, value)
    with pytest.raises(SourceError, match=message):
        rows(reader(server, **options))


def test_times_in_other_units_are_told(server: KafkaServer) -> None:
    server.create("orders")
    put(server, b"{}", timestamp=1_700_000_000_000_000)  # microseconds
    found = table(reader(server, columns="timestamp"))["timestamp"].cast(pa.int64())
    assert found.to_pylist() == [1_700_000_000_000_000_000], (
        "in the year 55840, which Python cannot show"
    )
    with pytest.raises(
        SourceError, match=r"offset 0 of .*1700000000000000 ms since 1970, is too large"
    ):
        rows(reader(server, valueFormat="json", schema="_timestamp TIMESTAMP"))
    server.create("orders")
    put(server, b"{}", timestamp=1_700_000_000_000_000_000)
    with pytest.raises(SourceError, match=r"offset 0 of .*is too large.*'columns'"):
        rows(reader(server, columns="timestamp"))
    assert len(rows(reader(server, columns="value"))) == 1


def test_texts_are_cut_into_columns(server: KafkaServer) -> None:
    server.create("orders")
    put(server, b"1|ann|", b"2|-|x", key=b"k")
    given = {
        "valueFormat": "text",
        "delimiter": "|",
        "schema": "id INT, _key STRING, name STRING, c STRING",
    }
    assert rows(reader(server, **given, nullValue="-")) == [
        {"id": 1, "_key": "k", "name": "ann", "c": ""},
        {"id": 2, "_key": "k", "name": None, "c": "x"},
    ]
    assert rows(reader(server, **given, columns="name"))[1] == {"name": "-"}


def test_under_a_limit_little_is_fetched_ahead(server: KafkaServer) -> None:
    server.create("orders")
    put(server, *[b"x" * 100] * 30)
    found = reader(server)
    found.fetch_size = FetchSize(rows=7)
    (split,) = found.split(1)
    sizes = [batch.num_rows for batch in found.read(split)]
    assert sum(sizes) == 30
    assert max(sizes) <= 7
    slow, fast = _prefetch(FetchSize(rows=100), 1), _prefetch(FetchSize(), 1)
    assert slow["queued.min.messages"] == 100
    assert slow["max.partition.fetch.bytes"] == 100 << 10
    assert fast["queued.max.messages.kbytes"] == 16 << 10
    many = _prefetch(FetchSize(), 100)
    assert 100 * many["max.partition.fetch.bytes"] <= 8 << 20
    assert many["queued.max.messages.kbytes"] == 16 << 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrapServers": "kafka"}, "option 'bootstrapServers' .*it takes host:port"),
        ({"topic": "a b"}, "option 'topic' .*the name of a topic"),
        ({"beginOffsets": "soon"}, "option 'beginOffsets' .*earliest, latest, an offset"),
        ({"beginOffsets": 1, "beginTimestamp": "2024-01-01"}, "name one position"),
        ({"schema": "a INT"}, "option 'schema' is for valueFormat json and text"),
        ({"valueFormat": "text"}, "option 'schema' is missing"),
        ({"where": "a = 1"}, "Kafka has no conditions"),
        (
            {"failOnDataLoss": "false"},
            "records that the topic does not have any more are always an error",
        ),
        ({"subscribePattern": "a.*"}, "name the topics in 'topic'"),
        ({"password": "x"}, "'password' needs 'user'"),
        (
            {"user": "u", "securityProtocol": "SSL"},
            "with 'user' it takes SASL_SSL or SASL_PLAINTEXT",
        ),
        ({"sslrootcert": "ca.pem", "securityProtocol": "PLAINTEXT"}, "'sslrootcert' is for TLS"),
        (
            {"clientProperties": '{"isolation.level": "read_uncommitted"}'},
            "'isolation.level' is the connector's own",
        ),
        ({"clientProperties": '{"sasl.jaas.config": "x"}'}, "use 'user' and 'password'"),
        (
            {"clientProperties": '{"ssl.engine.location": "/tmp/x.so"}'},
            "'ssl.engine.location' is the connector's own",
        ),
        (
            {"clientProperties": '{"sasl.kerberos.kinit.cmd": "x"}'},
            "'sasl.kerberos.kinit.cmd' is the connector's",
        ),
        (
            {"clientProperties": '{"compression.type": "zstd"}'},
            "'compression.type' is the connector's own",
        ),
        (
            {"clientProperties": '{"fetch.message.max.bytes": 1}'},
            "'fetch.message.max.bytes' is the connector's",
        ),
    ],
)
def test_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        reader("h:9092", **options)


def test_columns_that_are_not_there(server: KafkaServer) -> None:
    with pytest.raises(OptionError, match="'columns' names 'x', which is not a column"):
        reader(server, columns="x").schema()
    server.create("orders")
    put(server, b"{}")
    with pytest.raises(SourceError, match="name them with option 'schema'"):
        reader(server, valueFormat="json").schema()


def test_a_group_of_the_same_name_that_is_rebalanced_takes_nothing_from_a_read(
    server: KafkaServer,
) -> None:
    """The reader assigns its partitions: consumers who share them by a group come and go beside it."""
    server.create("orders", 4)
    sent = [f"{at}-{number}".encode() for at in range(4) for number in range(50)]
    for at in range(4):
        put(server, *(value for value in sent if value.startswith(b"%d-" % at)), partition=at)
    settings = {
        "bootstrap.servers": server.address,
        "group.id": "spark-channel",
        "auto.offset.reset": "earliest",
    }
    assigned: list[int] = []

    def joined() -> Consumer:
        member = Consumer(settings)
        member.subscribe(["orders"], on_assign=lambda _, parts: assigned.append(len(parts)))
        deadline = time.monotonic() + 60
        known = len(assigned)
        while len(assigned) == known and time.monotonic() < deadline:
            member.poll(0.2)
        assert len(assigned) > known
        return member

    first = joined()
    found = reader(server)
    seen = Counter[bytes]()
    splits = found.split(4)
    assert len(splits) == 4
    for number, split in enumerate(splits):
        for batch in found.read(split):
            seen.update(batch.column("value").to_pylist())
        if number == 1:
            first.close()  # the group loses its member while the read continues
            joined().close()
    assert seen == Counter(sent)
