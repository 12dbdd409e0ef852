"""Work that is done once in a Python worker of Spark, which runs many tasks."""

import functools
import gc
import os

__all__ = ["keep_loaded"]


@functools.cache
def keep_loaded() -> None:
    """Leave what is loaded by now out of the collection of garbage that pyspark makes after each task.

    80 000 objects of libraries take it 45 ms, on the cores that other tasks want. Once per process; garbage that
    waits to be collected at that moment stays.
    """
    if os.environ.get("SPARK_REUSE_WORKER"):
        gc.freeze()
