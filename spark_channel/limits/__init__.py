"""Speed limits: buckets and meters for one process, a coordinator with grants for many. Pure, no I/O."""

from spark_channel.limits.bucket import TokenBucket
from spark_channel.limits.meter import Meter

__all__ = ["Meter", "TokenBucket"]
