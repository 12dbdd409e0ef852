"""The Spark session of a command: made here, or the one that `spark-submit` has begun."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_channel.cli.signals import ending_on_signals, raise_if_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session"]

_log = logging.getLogger(__name__)


@contextmanager
def session(master: str | None, conf: dict[str, str], name: str) -> "Iterator[SparkSession]":
    """A session for a `with` block; `master` None is `spark-submit`'s own, else this machine."""
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    local = master is None and not submitted and "spark.master" not in conf and "spark.remote" not in conf
    here = local or (master or "").startswith("local")
    if here:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # one machine: no look-up of the host's name
    builder = SparkSession.builder.appName(name)
    if master is not None or local:
        builder = builder.master(master or "local[*]")
    # nonstrict: the partitions of a table of Hive are those that the rows name, as hivewriter writes.
    own = {"spark.ui.showConsoleProgress": "false", "hive.exec.dynamic.partition.mode": "nonstrict"}
    if not submitted:
        # FATAL: the reason of a failed task is told once, in our own words, and not after a page of the JVM's.
        own |= {"spark.ui.enabled": "false", "spark.log.level": "FATAL"}
    for key, value in (own | conf).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        ending_on_signals()
    try:
        try:
            yield spark
        except Exception as error:
            raise_if_ended(error)
            raise
    except (KeyboardInterrupt, SystemExit):
        try:
            spark.stop()
        except Exception as error:  # the signal came amid a call of the JVM, which ends with this process
            _log.debug("Spark could not be stopped: %s", error)
        raise
    except BaseException:
        spark.stop()
        raise
    spark.stop()
