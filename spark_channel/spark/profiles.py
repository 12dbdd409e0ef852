"""Spark's planner workers send their profiles, empty ones where nothing is profiled.

`spark-pipelines run` of Spark 4.3 takes such an answer for an error, after "Run is COMPLETED", and exits with 1.
"""

import sys

__all__ = ["send_no_empty_profile"]


def send_no_empty_profile() -> None:
    """In a planner worker: leave out of its answer what holds nothing."""
    registry = getattr(sys.modules.get("pyspark.accumulators"), "_accumulatorRegistry", {})
    # `value` may not be asked for in a worker
    for key in [key for key, found in registry.items() if key < 0 and getattr(found, "_value", None) == {}]:
        del registry[key]
