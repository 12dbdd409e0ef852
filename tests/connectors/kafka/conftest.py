"""A broker for the tests of this folder, and what reads and writes its topics."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import Producer

from spark_channel.connectors import Receipt, WriteContext, load_reader, load_writer
from spark_channel.connectors.base.contract import Reader, Writer
from tests.servers.kafka import KafkaServer, kafka_server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    with kafka_server() as running:
        yield running


@pytest.fixture
def server(kafka: KafkaServer) -> Iterator[KafkaServer]:
    """The session's broker, without topics."""
    if not kafka.is_alive():
        kafka.start()
    yield kafka
    kafka.relay.reset()
    if kafka.is_alive():
        kafka.delete(*kafka.topics())


def reader(server: KafkaServer | str, **options: Any) -> Reader:
    address = server if isinstance(server, str) else server.address
    given = {
        "reader": "kafka",
        "bootstrapServers": address,
        "topic": "orders",
        "timeout": 20,
        **options,
    }
    return load_reader(given)[0]


def table(found: Reader, advice: int = 1) -> pa.Table:
    schema = found.schema()
    batches = [batch for split in found.split(advice) for batch in found.read(split)]
    return pa.Table.from_batches(batches, schema)


def rows(found: Reader, advice: int = 1) -> list[dict[str, Any]]:
    return table(found, advice).to_pylist()  # type: ignore[no-any-return] # untyped


def writer(server: KafkaServer | str, **options: Any) -> Writer:
    address = server if isinstance(server, str) else server.address
    given = {
        "writer": "kafka",
        "bootstrapServers": address,
        "topic": "orders",
        "timeout": 20,
        **options,
    }
    return load_writer(given)[0]


def write(
    server: KafkaServer | str,
    table: pa.Table,
    *,
    refused: Any = None,
    task: int = 0,
    **options: Any,
) -> Receipt:
    found = writer(server, **options)
    plan = found.prepare(WriteContext(uuid4().hex), table.schema)
    attempt = found.open(plan, task, 0)
    attempt.tolerant, attempt.refused = refused is not None, refused
    try:
        for batch in table.to_batches():
            attempt.write(batch)
        receipt = attempt.close()
    except BaseException:
        attempt.rollback()
        raise
    found.commit(plan, [receipt])
    return receipt


def put(
    server: KafkaServer,
    *values: bytes | None,
    topic: str = "orders",
    partition: int = 0,
    **more: Any,
) -> None:
    """Another program's records, each in its own batch."""
    client = Producer({"bootstrap.servers": server.address})
    for value in values:
        client.produce(topic, value, partition=partition, **more)
        assert client.flush(10) == 0
    client.close()


def transact(
    server: KafkaServer,
    *values: str | bytes,
    end: str = "commit",
    key: str | None = None,
    topic: str = "orders",
) -> Producer:
    """Another program's transaction; `end` "": it stays open. Without `key`, each value is its own key."""
    client = Producer({"bootstrap.servers": server.address, "transactional.id": uuid4().hex})
    client.init_transactions(10)
    client.begin_transaction()
    for value in values:
        client.produce(topic, value, key or value, partition=0)
    assert client.flush(10) == 0
    if end == "commit":
        client.commit_transaction(10)
    elif end == "abort":
        client.abort_transaction(10)
    return client
