"""Writes to topics: the content of a record, and that each record is delivered or reported as refused."""

import json
import threading
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from spark_channel.connectors import FetchSize, WriteContext, load_writer
from spark_channel.connectors.kafka import writer as deliver
from spark_channel.connectors.kafka.serialization import HEADERS
from spark_channel.errors import (
    OptionError,
    SchemaError,
    SourceError,
    TargetError,
    UnsupportedError,
)
from tests.connectors.kafka.conftest import put, reader, rows, transact, write, writer
from tests.servers.kafka import PASSWORD, KafkaServer

pytestmark = pytest.mark.real_server("Apache Kafka", "kafka")


@pytest.fixture
def job() -> str:
    """The id of a job that no other test has: brokers remember the transactions of its tasks."""
    return uuid4().hex


def values(server: KafkaServer | str, **options: Any) -> list[bytes]:
    return [row["value"] for row in rows(reader(server, **options))]


def test_rows_with_kafkas_own_columns(server: KafkaServer) -> None:
    server.create("orders", 3)
    server.create("others", 1)
    headers = pa.array(
        [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, []], HEADERS
    )
    table = pa.table(
        {
            "key": pa.array([b"k", None, b""]),
            "value": pa.array(["text", None, ""]),
            "topic": ["orders", "others", "orders"],
            "partition": pa.array([2, None, 0], pa.int32()),
            "headers": headers,
        }
    )
    assert write(server, table, topic=None).rows == 3
    first, second = rows(reader(server, includeHeaders="true"))
    assert (second["partition"], second["key"], second["value"]) == (2, b"k", b"text")
    assert second["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert (first["partition"], first["key"], first["value"]) == (0, b"", b"")
    (third,) = rows(reader(server, topic="others"))
    assert (third["key"], third["value"]) == (None, None)


@pytest.mark.lowest
def test_rows_as_json_and_back(server: KafkaServer) -> None:
    server.create("orders", 2)
    at = datetime(2024, 1, 31, 8, 30, tzinfo=UTC)
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "price": pa.array([Decimal("12345678901234567.89"), None], pa.decimal128(19, 2)),
            "name": ['line\nend "quoted"', "ä"],
            "at": pa.array([at, None], pa.timestamp("us", "UTC")),
            "tags": [["a", "b"], []],
        }
    )
    write(server, table, valueFormat="json", keyColumns="id,name", valueColumns="id,price,name,at")
    by_key = {
        row["key"].decode(): json.loads(row["value"], parse_float=Decimal)
        for row in rows(reader(server))
    }
    assert by_key == {
        '1:line\nend "quoted"': {
            "id": 1,
            "price": Decimal("12345678901234567.89"),
            "name": 'line\nend "quoted"',
            "at": "2024-01-31T08:30:00.000000Z",
        },
        "2:ä": {"id": 2, "name": "ä"},
    }
    schema = "id BIGINT, price DECIMAL(19,2), name STRING, at TIMESTAMP"
    back = rows(reader(server, valueFormat="json", schema=schema))
    assert sorted(back, key=lambda row: row["id"]) == table.drop_columns("tags").to_pylist()


def test_rows_as_text(server: KafkaServer) -> None:
    server.create("orders")
    at = pa.array([datetime(2024, 1, 31, 8, 30, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    table = pa.table({"id": [1], "n": pa.array([None], pa.string()), "x": [2.0], "at": at})
    write(
        server,
        table,
        valueFormat="text",
        delimiter="-,-",
        nullValue="NULL",
        timeZone="Asia/Shanghai",
    )
    assert values(server) == [b"1-,-NULL-,-2.0-,-2024-01-31 16:30:00.000000"]


def test_equal_keys_are_in_the_partition_that_java_would_choose(server: KafkaServer) -> None:
    """murmur2, as Java's producers and Spark's sink do."""
    server.create("orders", 4)
    write(
        server,
        pa.table({"k": ["21", "foobar", "a-little-bit-long-string"], "v": [1, 2, 3]}),
        valueFormat="json",
        keyColumns="k",
    )
    found = {row["key"]: row["partition"] for row in rows(reader(server))}
    # Of org.apache.kafka.common.utils.UtilsTest: murmur2 of "21" is -973932308, of "foobar" -790332482.
    assert found[b"21"] == (-973932308 & 0x7FFFFFFF) % 4
    assert found[b"foobar"] == (-790332482 & 0x7FFFFFFF) % 4
    assert found[b"a-little-bit-long-string"] == (-985981536 & 0x7FFFFFFF) % 4


def test_a_lost_answer_writes_nothing_twice(server: KafkaServer) -> None:
    server.create("orders")
    server.relay.lose = 2
    table = pa.table({"value": [f"v{number}" for number in range(50)]})
    assert write(server.relayed, table, batchSize=10).rows == 50
    assert server.relay.lose == 0
    assert server.relay.writes >= 7, "the client has sent again"
    assert values(server) == [f"v{number}".encode() for number in range(50)]


def test_a_record_without_a_confirmed_delivery_fails_the_task(server: KafkaServer) -> None:
    server.create("orders")
    server.relay.lose = 1_000_000
    begun = time.monotonic()
    with pytest.raises(
        TargetError, match=r"2 records have no confirmed delivery \('deliveryTimeout' 1 s\)"
    ):
        write(server.relayed, pa.table({"value": ["a", "b"]}), deliveryTimeout=1)
    assert time.monotonic() - begun < 15


def test_records_that_do_not_fit_into_memory_wait_for_deliveries(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create("orders")
    waits: list[int] = []
    wait = deliver.Deliveries._wait

    def counted(self: deliver.Deliveries, *given: Any) -> None:
        waits.append(len(self._client))
        wait(self, *given)

    monkeypatch.setattr(deliver.Deliveries, "_wait", counted)
    table = pa.table({"value": [f"{number:01000d}" for number in range(4_000)]})
    assert write(server, table, capacityBytes="1MiB").rows == 4_000
    assert 0 < max(waits) <= 1_100, "about a MiB of records of 1 000 bytes"
    assert values(server) == [f"{number:01000d}".encode() for number in range(4_000)]


def test_a_record_larger_than_the_memory_is_refused(server: KafkaServer) -> None:
    """It would wait for room forever."""
    server.create("orders")
    given: dict[str, Any] = {
        "capacityBytes": "1MiB",
        "clientProperties": '{"message.max.bytes": 5000000}',
    }
    refused: list[str] = []
    table = pa.table({"value": ["a", "x" * 2_000_000, "b"]})
    receipt = write(server, table, refused=lambda _, why: refused.append(why), **given)
    assert receipt.rows == 2
    assert [why[:18] for why in refused] == ["MSG_SIZE_TOO_LARGE"]
    assert "'capacityBytes'" in refused[0]
    assert values(server) == [b"a", b"b"]


def test_a_record_that_is_refused_is_one_row(server: KafkaServer) -> None:
    server.create("orders", max_message_bytes="5000")
    table = pa.table({"value": ["a", "x" * 6_000, "b", "c"]})
    with pytest.raises(
        TargetError, match=r"refused 1 of 4 rows, the first of them: MSG_SIZE_TOO_LARGE"
    ):
        write(server, table)
    assert sorted(values(server)) == [b"a", b"b", b"c"], "the others of its batch are written, once"
    server.create("orders", max_message_bytes="5000")
    refused: list[tuple[int, str]] = []
    receipt = write(server, table, refused=lambda row, why: refused.append((row.num_rows, why)))
    assert receipt.rows == 3
    assert [(count, why[:18]) for count, why in refused] == [(1, "MSG_SIZE_TOO_LARGE")]


def test_rows_that_are_no_records(server: KafkaServer) -> None:
    server.create("orders")
    for table, options, why in (
        (
            pa.table({"value": ["a"], "topic": pa.array([None], pa.string())}),
            {"topic": None},
            "'topic' is NULL",
        ),
        (pa.table({"value": ["a"], "partition": [-1]}), {}, "no partition has the number -1"),
        (pa.table({"value": ["a"], "partition": [7]}), {}, "_UNKNOWN_PARTITION"),
        (
            pa.table({"a": pa.array([None], pa.string()), "b": ["x"]}),
            {"valueFormat": "json", "keyColumns": "a,b"},
            "one of the key columns a, b is NULL",
        ),
    ):
        with pytest.raises(TargetError, match=why):
            write(server, table, **options)
    assert values(server) == []


@pytest.mark.lowest
def test_a_task_is_one_transaction(server: KafkaServer, job: str) -> None:
    server.create("orders")
    found = writer(server, transactional="true", batchSize=1)
    table = pa.table({"value": ["a", "b"]})
    plan = found.prepare(WriteContext(job), table.schema)
    failed = found.open(plan, 0, 0)
    failed.write(table.to_batches()[0])
    hanging = found.open(plan, 1, 1)
    hanging.write(table.to_batches()[0])
    assert server.end("orders") == 4
    failed.rollback()
    # Another attempt of task 1 takes over from one that hangs.
    attempt = found.open(plan, 1, 2)
    attempt.write(table.to_batches()[0])
    assert values(server) == []
    with pytest.raises(
        TargetError, match="none of its records are visible: another attempt took over"
    ):
        hanging.close()
    hanging.rollback()
    assert attempt.close().rows == 2
    assert values(server) == [b"a", b"b"]
    empty = found.open(plan, 2, 3)
    assert empty.close().rows == 0


def test_a_task_that_has_committed_is_not_written_again(server: KafkaServer, job: str) -> None:
    """Its success was lost: another attempt finds the record, which is in the same transaction as the rows."""
    server.create("orders")
    found = writer(server, transactional="true")
    (batch,) = pa.table({"value": ["a", "b"]}).to_batches()
    plan = found.prepare(WriteContext(job), batch.schema)
    assert not plan.at_least_once
    assert found.committed(plan, 0) is None
    failed = found.open(plan, 0, 0)
    failed.write(batch)
    failed.rollback()
    assert found.committed(plan, 0) is None
    first = found.open(plan, 0, 1)
    first.write(batch)
    receipt = first.close()
    again = found.open(plan, 0, 2)
    again.write(batch)
    kept = again.close()
    assert (kept.rows, kept.nbytes) == (receipt.rows, receipt.nbytes) == (2, batch.nbytes)
    known = found.committed(plan, 0)
    assert known is not None
    assert (known.task, known.rows, known.nbytes) == (0, 2, batch.nbytes)
    assert values(server) == [b"a", b"b"]
    other = found.prepare(WriteContext(f"{job}-2"), batch.schema)
    assert found.committed(other, 0) is None
    assert writer(server).committed(plan, 0) is None


def test_refused_rows_of_an_attempt_whose_success_was_lost_are_counted(
    server: KafkaServer, job: str
) -> None:
    server.create("orders")
    found = writer(server, transactional="true")
    (batch,) = pa.table({"value": ["a", "b"], "partition": [0, -1]}).to_batches()
    plan = found.prepare(WriteContext(job), batch.schema)
    dirty = []
    for number in range(2):
        refused: list[str] = []
        attempt = found.open(plan, 0, number)
        attempt.tolerant, attempt.refused = (
            True,
            lambda _, why, refused=refused: refused.append(why),
        )
        attempt.write(batch)
        receipt = attempt.close()
        assert receipt.rows == 1
        dirty.append(receipt.dirty_rows + len(refused))
    assert dirty == [1, 1]
    assert values(server) == [b"a"]


def test_a_transaction_with_a_refused_record_is_not_committed(server: KafkaServer) -> None:
    server.create("orders", max_message_bytes="5000")
    with pytest.raises(
        TargetError, match=r"None of the task's records will be visible.*MSG_SIZE_TOO_LARGE"
    ):
        write(
            server,
            pa.table({"value": ["a", "x" * 6_000]}),
            transactional="true",
            refused=lambda *_: None,
        )
    assert values(server) == []


def test_topics_are_made_when_asked_for_only(server: KafkaServer, job: str) -> None:
    table = pa.table({"value": ["a"]})
    found = writer(server)
    assert found.exists() is False
    with pytest.raises(
        TargetError,
        match="topic 'orders' does not exist; check 'topic', create it, or set 'createTopic'",
    ):
        found.prepare(WriteContext(job), table.schema)
    create: dict[str, Any] = {"createTopic": "true", "topicPartitions": 2, "replicationFactor": 1}
    made = writer(server, **create)
    made.rehearse(WriteContext(job), table.schema)
    assert server.topics() == {}
    write(server, table, **create)
    assert server.topics() == {"orders": 2}
    write(server, table, **create, partition=1)
    assert found.exists() is True
    assert sum(server.end("orders", part) for part in range(2)) == 2


@pytest.mark.parametrize(
    ("options", "context", "error", "message"),
    [
        ({}, {"overwrite": True}, UnsupportedError, "a topic cannot be overwritten"),
        (
            {"transactional": "true"},
            {"stream": ("q", 1)},
            OptionError,
            "'transactional' does not go with streams",
        ),
        ({"commit": "job"}, {}, OptionError, "option 'commit' got 'job'; it takes task"),
        (
            {"txnAppId": "a", "txnVersion": 1},
            {},
            OptionError,
            "'txn' is not supported",
        ),
        (
            {"acks": "1"},
            {},
            OptionError,
            "option 'acks' is not supported: a record counts as written",
        ),
        ({"keyColumns": "value"}, {}, OptionError, "'keyColumns' is for valueFormat json and text"),
        ({"valueFormat": "json", "keyColumns": "x"}, {}, OptionError, "'keyColumns' names 'x'"),
        ({"valueFormat": "json", "topic": None}, {}, OptionError, "option 'topic' is missing"),
        (
            {"transactional": "true", "topic": None},
            {},
            OptionError,
            "'transactional' needs 'topic'",
        ),
        (
            {"topicPartitions": 1},
            {},
            OptionError,
            "'topicPartitions' has no effect without createTopic=true",
        ),
        (
            {"partition": 9},
            {},
            OptionError,
            "'partition' got 9; topic 'orders' has the partitions 0 to 0",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    server: KafkaServer,
    options: dict[str, Any],
    context: dict[str, Any],
    error: type[Exception],
    message: str,
    job: str,
) -> None:
    server.create("orders")
    with pytest.raises(error, match=message):
        writer(server, **options).prepare(
            WriteContext(job, **context), pa.schema([("value", pa.string())])
        )


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (
            {"value": pa.string(), "id": pa.int64()},
            {},
            "column 'id' has no place in a record.*valueFormat=json",
        ),
        ({"value": pa.int64()}, {}, "column 'value' has type int64; it takes STRING or BINARY"),
        ({"id": pa.int64()}, {}, "column 'id' has no place"),
        ({"key": pa.string()}, {}, "the rows have no column 'value'"),
        (
            {"headers": pa.string(), "value": pa.string()},
            {},
            "'headers' has type string; it takes ARRAY<STRUCT",
        ),
        ({"b": pa.binary()}, {"valueFormat": "text"}, "column 'b' of type binary has no text"),
        (
            {"d": pa.duration("s")},
            {"valueFormat": "json"},
            r"column 'd' of type duration\[s\] has no text",
        ),
    ],
)
def test_columns_without_a_place_in_a_record(
    schema: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    found = load_writer({"writer": "kafka", "bootstrapServers": "h:1", "topic": "t", **options})[0]
    with pytest.raises(SchemaError, match=message):
        found.check(pa.schema(schema))  # type: ignore[attr-defined] # a part of this kind


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_login_is_used_and_never_shown(server: KafkaServer, mechanism: str) -> None:
    server.create("orders")
    login: dict[str, Any] = {
        "user": "tester",
        "password": PASSWORD,
        "securityProtocol": "SASL_PLAINTEXT",
        "saslMechanism": mechanism,
    }
    write(server.login, pa.table({"value": ["a"]}), **login)
    assert values(server.login, **login) == [b"a"]
    begun = time.monotonic()
    for work, error in (
        (lambda given: values(server.login, **given), SourceError),
        (lambda given: write(server.login, pa.table({"value": ["a"]}), **given), TargetError),
    ):
        with pytest.raises(error, match="check 'user', 'password', 'saslMechanism'") as met:
            work({**login, "password": "wr0ng of tester"})
        assert "wr0ng" not in str(met.value)
    assert time.monotonic() - begun < 15, (
        "a login that is refused is not tried again until 'timeout'"
    )
    given = {"writer": "kafka", "bootstrapServers": server.login, "topic": "t", **login}
    given["clientProperties"] = '{"ssl.key.password": "hidden-too"}'
    found = load_writer(given)[0]
    texts = f"{found.options!r} {found.options} {type(found.options).shown(given)}"
    assert PASSWORD not in texts
    assert "hidden-too" not in texts


def test_tls_verifies_the_broker(server: KafkaServer) -> None:
    server.create("orders")
    user = {"user": "tester", "password": PASSWORD}
    login: dict[str, Any] = {**user, "sslrootcert": str(server.certificate)}
    write(server.tls, pa.table({"value": ["a"]}), **login)
    assert values(server.tls, **login) == [b"a"]
    for options in (user, {"securityProtocol": "SSL"}):
        with pytest.raises(SourceError, match="certificate verify failed"):
            values(server.tls, **options, timeout=1)
    with pytest.raises(
        OptionError, match=r"'sslrootcert' got '/no-such\.pem', which is not a file"
    ):
        values(server.tls, sslrootcert="/no-such.pem")


def test_a_user_without_the_right_to_write(server: KafkaServer) -> None:
    server.create("orders")
    guest: dict[str, Any] = {
        "user": "guest",
        "password": PASSWORD,
        "securityProtocol": "SASL_PLAINTEXT",
    }
    with pytest.raises(TargetError, match="check 'user', 'password', 'saslMechanism', and the"):
        write(server.login, pa.table({"value": ["a"]}), **guest)
    assert values(server) == []


def test_a_broker_that_vanishes_during_a_read(server: KafkaServer) -> None:
    server.create("orders")
    put(server, *[b"x" * 1_000] * 300)
    found = reader(server, timeout=1)
    found.fetch_size = FetchSize(rows=10)
    (split,) = found.split(1)
    batches = found.read(split)
    read = [next(batches).num_rows]
    server.kill()
    with pytest.raises(SourceError, match=r"nothing after \d+ came for 1 s \('timeout'\)"):
        read.extend(batch.num_rows for batch in batches)
    assert 0 < sum(read) < 300


def test_a_transaction_ends_when_the_broker_has_vanished(server: KafkaServer, job: str) -> None:
    """The client's own `close` waits for the end of a transaction that is open, forever."""
    server.create("orders")
    (batch,) = pa.table({"value": ["a"]}).to_batches()
    found = writer(server, transactional="true", timeout=1)
    attempt = found.open(found.prepare(WriteContext(job), batch.schema), 0, 0)
    attempt.write(batch)
    server.kill()
    ends = threading.Thread(target=attempt.rollback, daemon=True)
    ends.start()
    ends.join(20)
    assert not ends.is_alive()


@pytest.mark.parametrize("transactional", [pytest.param("false", marks=pytest.mark.soak), "true"])
def test_a_broker_that_is_killed_during_a_write(
    server: KafkaServer, job: str, transactional: str
) -> None:
    """It comes back within `deliveryTimeout`: each record is there once, in order."""
    server.create("orders", 2)
    found = writer(
        server, batchSize=50, deliveryTimeout=60, timeout=60, transactional=transactional
    )
    schema = pa.schema([("value", pa.string()), ("partition", pa.int32())])
    plan = found.prepare(WriteContext(job), schema)
    attempt = found.open(plan, 0, 0)
    back: threading.Thread | None = None
    for number in range(100):
        if number == 40:
            server.kill()
            back = threading.Thread(target=server.start)
            back.start()
        texts = [f"{number:03d}-{row:02d}" for row in range(20)]
        attempt.write(pa.record_batch([texts, [0, 1] * 10], schema=schema))
    assert attempt.close().rows == 2_000
    assert back is not None
    back.join(60)
    wanted = [f"{number:03d}-{row:02d}".encode() for number in range(100) for row in range(20)]
    for part in range(2):
        assert values(server, partitions=part) == wanted[part::2]


def test_other_programs_see_what_is_written(server: KafkaServer) -> None:
    """The records of a task and those of others lie in one log, in the order of their arrival."""
    server.create("orders")
    put(server, b"before")
    write(server, pa.table({"value": ["mine"]}), compression="gzip")
    transact(server, b"theirs").close()
    assert values(server) == [b"before", b"mine", b"theirs"]
