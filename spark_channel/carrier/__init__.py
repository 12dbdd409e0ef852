"""Several channels with a partitioner and consumers: fan-in of readers, fan-out to writers.

It needs only pyarrow. For one producer and one consumer, a `spark_channel.channel.MemoryChannel` is enough.

Fan-out, several threads write:

```python
import pyarrow as pa
from spark_channel.carrier import Consumer, DataCarrier

class Writer(Consumer):
    def init(self):                       # in the thread that will consume: open the connection here
        self.rows = 0

    def consume(self, batches):           # a list, never empty, in the order of its channel
        self.rows += sum(batch.num_rows for batch in batches)

    def on_exit(self):                    # flush and close
        print(self.rows, "rows written")

with DataCarrier(channels=4, capacity_rows=100_000) as carrier:
    carrier.consume(Writer, threads=4)    # a class: each thread has its own; an object would be shared
    for start in range(0, 1_000_000, 10_000):
        carrier.produce(pa.record_batch({"id": range(start, start + 10_000)}))
# the block ends when every row is consumed and every thread has ended; it raises a writer's error
```

Fan-in, several threads read and one consumes:

```python
import contextlib, threading
from collections import deque
import pyarrow as pa
from spark_channel.carrier import DataCarrier

def read(split):                                        # stands for a source
    for start in range(0, split, 1_000):
        yield pa.record_batch({"id": range(start, start + 1_000)})

def read_all(splits, threads):
    work = deque(sorted(splits, reverse=True))          # largest first: no thread ends long after the others
    left = threading.Semaphore(threads - 1)

    def produce():
        try:
            while True:
                try:
                    split = work.popleft()
                except IndexError:
                    break
                with contextlib.closing(read(split)) as batches:
                    for batch in batches:
                        carrier.produce(batch)
        except BaseException as error:
            carrier.fail(error)                         # the taker raises it, the other readers stop
        else:
            if not left.acquire(blocking=False):        # the last one out
                carrier.close()

    with DataCarrier(channels=threads, partitioner="thread") as carrier:
        for _ in range(threads):
            threading.Thread(target=produce, daemon=True).start()
        yield from carrier                              # leaving the loop early ends the readers

rows = sum(batch.num_rows for batch in read_all([5_000, 90_000, 20_000], threads=2))
assert rows == 115_000
```

Many carriers, few threads:

```python
import pyarrow as pa
from spark_channel.carrier import Consumer, DataCarrier, consumer_pools

class Count(Consumer):
    rows = 0
    def consume(self, batches):
        self.rows += sum(batch.num_rows for batch in batches)

pool = consumer_pools.create("metrics", threads=2)      # made once; consumer_pools.get("metrics") finds it
carriers = [DataCarrier() for _ in range(10)]
counts = [Count() for _ in carriers]
for carrier, count in zip(carriers, counts):
    carrier.consume(count, pool=pool)                   # to the thread with the fewest rows waiting
    carrier.produce(pa.record_batch({"id": [1, 2, 3]}))
for carrier in carriers:
    carrier.shutdown()                                  # ends this carrier; the others continue
assert [count.rows for count in counts] == [3] * 10
consumer_pools.close("metrics")
```
"""

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
