"""Several channels with a partitioner and consumers: fan-in of readers, fan-out to writers."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.carrier.carrier import (
        DataCarrier,
        Partitioner,
        RollingPartitioner,
        ThreadPartitioner,
    )
    from spark_channel.carrier.consumer import CarrierMetrics, Consumer, PoolThreadMetrics
    from spark_channel.carrier.driver import ConsumerDriver
    from spark_channel.carrier.pool import BulkConsumePool, ConsumerPools, consumer_pools
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "carrier": ["DataCarrier", "Partitioner", "RollingPartitioner", "ThreadPartitioner"],
            "consumer": ["CarrierMetrics", "Consumer", "PoolThreadMetrics"],
            "driver": ["ConsumerDriver"],
            "pool": ["BulkConsumePool", "ConsumerPools", "consumer_pools"],
        },
    )

__all__ = [
    "BulkConsumePool",
    "CarrierMetrics",
    "Consumer",
    "ConsumerDriver",
    "ConsumerPools",
    "DataCarrier",
    "Partitioner",
    "PoolThreadMetrics",
    "RollingPartitioner",
    "ThreadPartitioner",
    "consumer_pools",
]
