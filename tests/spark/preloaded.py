"""Spark's daemon, whose workers are forked with what they need imported: 0.7 s of CPU less for each, pandas among it.

`spark.python.daemon.module` of the tests' sessions. A program that a test starts has Spark's own daemon.
"""

import gc
import importlib

from pyspark.daemon import manager

if __name__ == "__main__":
    for name in (
        "pandas",  # pyarrow imports it where it is installed
        "pyarrow.parquet",
        "spark_channel.connectors.files.writer",
        "spark_channel.connectors.sqlite.database",
        "spark_channel.spark.read",
        "spark_channel.spark.source",
        "spark_channel.spark.transfer",
        "spark_channel.spark.worker",
        "spark_channel.spark.write",
    ):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # each worker collects garbage after each task
    manager()
