"""Spark imports every top-level module named `pyspark_*` and registers its `DefaultSource`."""

from spark_channel.spark.source import ChannelDataSource as DefaultSource  # noqa: F401
