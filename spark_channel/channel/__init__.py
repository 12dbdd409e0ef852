"""The in-memory channel: a bounded, rate-limited, transactional queue of Arrow batches.

A full channel makes its producer wait, and with it the source: backpressure. It needs only pyarrow, without
Spark or the service. Nothing polls: an idle channel uses no CPU.

```python
import threading
import pyarrow as pa
from spark_channel.channel import MemoryChannel

channel = MemoryChannel(capacity_rows=1_000, capacity_bytes=1 << 20)

def produce():
    for start in range(0, 5_000, 500):
        channel.push(pa.record_batch({"id": range(start, start + 500)}))
    channel.close()

producer = threading.Thread(target=produce)
producer.start()
rows = sum(batch.num_rows for batch in channel)
producer.join()
assert rows == 5_000
```
"""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.channel.batches import ChannelStatistics
    from spark_channel.channel.capacity import Limiter, Overflow, Payment, Wait
    from spark_channel.channel.memory import MemoryChannel, Transaction, TransactionState
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "batches": ["ChannelStatistics"],
            "capacity": ["Limiter", "Overflow", "Payment", "Wait"],
            "memory": ["MemoryChannel", "Transaction", "TransactionState"],
        },
    )

__all__ = [
    "ChannelStatistics",
    "Limiter",
    "MemoryChannel",
    "Overflow",
    "Payment",
    "Transaction",
    "TransactionState",
    "Wait",
]
