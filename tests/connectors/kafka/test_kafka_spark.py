"""Kafka from Spark: one job each way, and a stream from topic to topic."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from tests.connectors.kafka.conftest import reader as kafka_reader
from tests.connectors.kafka.conftest import rows
from tests.servers.kafka import KafkaServer


@pytest.mark.spark
@pytest.mark.newest
def test_spark_writes_reads_and_follows_topics(
    server: KafkaServer, spark: SparkSession, tmp_path: Path
) -> None:
    server.create("orders", 2)
    server.create("copy")
    at = {"bootstrapServers": server.address, "timeout": "20"}
    frame = spark.range(100).select("id", F.concat(F.lit("n"), "id").alias("name"))
    writing = frame.write.format("channel").options(
        writer="kafka", topic="orders", valueFormat="json", **at
    )
    writing.options(keyColumns="id", transactional="true").mode("append").save()
    reading = {"reader": "kafka", "subscribe": "orders", "channels": "2", **at}
    texts = (
        spark.read.format("channel").options(**reading).schema("key STRING, value STRING").load()
    )
    found = {int(row.key): row.value for row in texts.collect()}
    assert found == {number: f'{{"id":{number},"name":"n{number}"}}' for number in range(100)}
    stream = spark.readStream.format("channel").options(reader="kafka", topic="orders", **at).load()
    query = (
        stream.select("key", "value")
        .writeStream.format("channel")
        .options(
            writer="kafka", topic="copy", checkpointLocation=str(tmp_path / "checkpoint"), **at
        )
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert len(rows(kafka_reader(server, topic="copy"))) == 100
