"""One carrier under 1, 2, 4 and 8 producers: its throughput must not fall as they grow.

The peer is a `queue.Queue` between the same producers and one consumer, which reads `nbytes` once per
batch, as any bounded queue of Arrow batches must. Times are per run of the same batches in all; ratios are
medians over runs that alternate.
"""

import queue
import statistics
import threading
import time
from collections.abc import Callable

import pyarrow as pa

from spark_channel.carrier import BulkConsumePool, Consumer, DataCarrier
from spark_channel.carrier.carrier import PartitionerName
from tests.benchmarks.bench_channel import BATCH_ROWS, batch
from tests.benchmarks.harness import Row, alternate

BATCHES = 4_000
CHANNELS = 4
QUEUED_BATCHES = 128
PAIRS = 11
SAMPLE = [batch(number * BATCH_ROWS) for number in range(8)]


class Count(Consumer):
    """Looks at each batch, no more."""

    def __init__(self) -> None:
        self.rows = 0

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        self.rows += sum(batch.num_rows for batch in batches)


def run_producers(producers: int, put: Callable[[pa.RecordBatch], object]) -> None:
    """`BATCHES` in all, in equal parts, from so many threads."""

    def produce() -> None:
        for number in range(BATCHES // producers):
            put(SAMPLE[number % len(SAMPLE)])

    threads = [threading.Thread(target=produce) for _ in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def through_carrier(producers: int, partitioner: PartitionerName = "rolling") -> None:
    capacity = QUEUED_BATCHES * BATCH_ROWS // CHANNELS
    counter = Count()
    with DataCarrier(CHANNELS, capacity, 1 << 40, partitioner=partitioner) as carrier:
        carrier.consume(counter)
        run_producers(producers, carrier.produce)
    assert counter.rows == BATCHES * BATCH_ROWS


def through_queue(producers: int) -> None:
    waiting: queue.Queue[pa.RecordBatch | None] = queue.Queue(QUEUED_BATCHES)
    rows = [0]

    def consume() -> None:
        while (batch := waiting.get()) is not None:
            rows[0] += batch.num_rows

    def put(batch: pa.RecordBatch) -> None:
        assert batch.nbytes
        waiting.put(batch)

    consumer = threading.Thread(target=consume)
    consumer.start()
    run_producers(producers, put)
    waiting.put(None)
    consumer.join()
    assert rows[0] == BATCHES * BATCH_ROWS


class Slow(Consumer):
    """Takes 0.1 s for each call."""

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        time.sleep(0.1)


def busy_pair() -> Row:
    """Two carriers of 1.5 s of work each, which came to the same thread of two; the other thread's are idle."""

    def produce(carrier: DataCarrier) -> None:
        for number in range(15):
            carrier.produce(SAMPLE[number % len(SAMPLE)])

    with BulkConsumePool(2) as pool:
        carriers = [DataCarrier(capacity_rows=BATCH_ROWS) for _ in range(4)]
        for carrier in carriers:
            carrier.consume(Slow(), pool=pool)
        began = time.perf_counter()
        threads = [threading.Thread(target=produce, args=(carriers[number],)) for number in (0, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for carrier in carriers:
            carrier.shutdown()
        took = time.perf_counter() - began
    return Row("two busy carriers of 1.5 s each in a pool of two", took, "<= 2.0", "s")


def growth(partitioner: PartitionerName, fewer: int, more: int) -> Row:
    slow, fast = alternate(
        lambda: through_carrier(fewer, partitioner),
        lambda: through_carrier(more, partitioner),
        PAIRS,
    )
    ratio = statistics.median(a / b for a, b in zip(slow, fast, strict=True))
    each = statistics.median(fast) / BATCHES * 1e6
    return Row(
        f"carrier, {partitioner}: throughput of {more} producers / {fewer}",
        ratio,
        ">= 0.95",
        "x",
        f"{each:.0f} us per batch with {more}",
    )


def against_queue(producers: int) -> Row:
    ours, theirs = alternate(
        lambda: through_carrier(producers), lambda: through_queue(producers), PAIRS
    )
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    each = statistics.median(ours) / BATCHES * 1e6
    return Row(
        f"carrier / queue.Queue, time, {producers} producers",
        ratio,
        "",
        "x",
        f"{each:.0f} us per batch",
    )


def main() -> list[Row]:
    partitioners: list[PartitionerName] = ["rolling", "thread"]
    pairs = [(1, 2), (2, 4), (4, 8)]
    return [
        *(growth(partitioner, *pair) for partitioner in partitioners for pair in pairs),
        *(against_queue(producers) for producers in (1, 2, 4, 8)),
        busy_pair(),
    ]
