"""Engine without Spark: task groups as threads here."""

from spark_channel.local.engine import (
    LocalEngine,
)
from spark_channel.local.run import (
    LocalMove,
    carry_out_here,
    first_line,
    has_speed,
    local_engine,
    may_be_found,
)
from spark_channel.local.threads import (
    TaskGroupThreads,
)

__all__ = [
    "LocalEngine",
    "LocalMove",
    "TaskGroupThreads",
    "carry_out_here",
    "first_line",
    "has_speed",
    "local_engine",
    "may_be_found",
]
