"""`register`: what a session needs once."""

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_channel.spark.source import ChannelDataSource

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("channel")` known to `spark`. Harmless when called again."""
    try:
        spark.dataSource.register(ChannelDataSource)
    except PySparkException as error:
        # Spark 4.0 registers a class once; it is the same class, found through pyspark_channel.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
