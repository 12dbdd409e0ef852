"""Apache Kafka: ranges of offsets read as rows, and rows written as records with every delivery checked."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.connectors.kafka.reader import KafkaReader
    from spark_channel.connectors.kafka.writer import KafkaWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["KafkaReader"], "writer": ["KafkaWriter"]}
    )

__all__ = ["KafkaReader", "KafkaWriter"]
