"""What Spark's UI calls the jobs of a transfer."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from spark_channel.spark.session import context_of

__all__ = ["described"]

_DESCRIPTION = "spark.job.description"


@contextmanager
def described(spark: SparkSession, source: str, target: str) -> Iterator[None]:
    """Jobs of this thread are named `channel: source -> target`, unless the user named them.

    Spark Connect has no such setting on this side.
    """
    context = context_of(spark)
    if context is None or context.getLocalProperty(_DESCRIPTION) is not None:
        yield
        return
    context.setLocalProperty(_DESCRIPTION, f"channel: {source or 'Spark'} -> {target or 'Spark'}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, None)
