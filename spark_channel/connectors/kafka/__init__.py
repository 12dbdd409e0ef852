"""Apache Kafka: ranges of offsets read as rows, and rows written as records with every delivery checked."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import AT_LEAST_ONCE, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.kafka.reader import KafkaReader
    from spark_channel.connectors.kafka.writer import KafkaWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["KafkaReader"], "writer": ["KafkaWriter"]}
    )

__all__ = ["CONNECTOR", "KafkaReader", "KafkaWriter"]

CONNECTOR = Connector(
    "kafka",
    "spark_channel.connectors.kafka:KafkaReader",
    "spark_channel.connectors.kafka:KafkaWriter",
    about="topics of Apache Kafka",
    needs=("confluent_kafka",),
    secrets=("password", "sslpassword", "clientProperties"),
    feed=("new records",),
    maturity="stable",
    tested="Apache Kafka 4.1",
    delivery=AT_LEAST_ONCE,
)
