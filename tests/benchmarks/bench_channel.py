"""What a channel costs: against `queue.Queue` with the same batches, and against reading parquet."""

import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_channel.channel import MemoryChannel
from spark_channel.errors import EndOfChannel
from tests.benchmarks.harness import Row, alternate, print_table, ratio

BATCH_ROWS = 8_192
BATCHES = 3_000
QUEUED = 16
ROUNDS = 11
PARQUET_ROWS = 10_000_000


def batch(start: int = 0, rows: int = BATCH_ROWS) -> pa.RecordBatch:
    """Five columns, two of them text, as an order might have."""
    ids = np.arange(start, start + rows, dtype=np.int64)
    return pa.record_batch(
        {
            "id": ids,
            "customer": pa.array((ids * 7919 % 1_000_003).astype(str)),
            "amount": ids * 0.25,
            "created": pa.array(ids * 1_000_000).cast(pa.timestamp("us")),
            "status": pa.array(np.array(["open", "paid", "sent", "returned"])[ids % 4]),
        }
    )


@contextmanager
def thread(work: Callable[[], object]) -> Iterator[None]:
    worker = threading.Thread(target=work)
    worker.start()
    yield
    worker.join()


def through_queue(sample: list[pa.RecordBatch]) -> None:
    waiting: queue.Queue[pa.RecordBatch | None] = queue.Queue(QUEUED)
    rows = [0]

    def consume() -> None:
        while (got := waiting.get()) is not None:
            rows[0] += got.num_rows

    with thread(consume):
        for number in range(BATCHES):
            one = sample[number % len(sample)]
            assert one.nbytes
            waiting.put(one)
        waiting.put(None)
    assert rows[0] == BATCHES * BATCH_ROWS


def through_channel(sample: list[pa.RecordBatch], *, put: bool, take: bool) -> None:
    """`put`, `take`: one transaction per batch on that side, else push and pull."""
    channel = MemoryChannel(QUEUED * BATCH_ROWS)
    rows = [0]

    def pull() -> None:
        for got in channel:
            rows[0] += got.num_rows

    def take_all() -> None:
        while True:
            try:
                with channel.transaction() as transaction:
                    got = transaction.take()
            except EndOfChannel:
                return
            if got is not None:
                rows[0] += got.num_rows

    with thread(take_all if take else pull):
        for number in range(BATCHES):
            one = sample[number % len(sample)]
            if put:
                with channel.transaction() as transaction:
                    transaction.put(one)
            else:
                channel.push(one)
        channel.close()
    assert rows[0] == BATCHES * BATCH_ROWS


def hand_over() -> list[Row]:
    sample = [batch(n * BATCH_ROWS) for n in range(8)]
    rows = []
    for name, put, take, target in (
        ("push, pull", False, False, "<= 1.5"),
        ("push, take in a transaction", False, True, "<= 1.5"),
        ("put and take, each in a transaction", True, True, "<= 1.5"),
    ):
        ours, theirs = alternate(
            lambda put=put, take=take: through_channel(sample, put=put, take=take),  # type: ignore[misc] # mypy infers no lambda with a default
            lambda: through_queue(sample),
            ROUNDS,
        )
        micros, peer = (statistics.median(times) / BATCHES * 1e6 for times in (ours, theirs))
        note = f"{micros:.0f} us per batch, queue.Queue with nbytes {peer:.0f} us"
        rows.append(Row(f"hand-over / queue.Queue: {name}", ratio(ours, theirs), target, "x", note))
    return rows


def wake_latency() -> Row:
    """From the pull that makes room to the producer being back from its push."""
    one = batch()
    channel = MemoryChannel(BATCH_ROWS)
    back = threading.Semaphore(0)
    times: list[float] = []
    count = 300

    def produce() -> None:
        for _ in range(count + 1):
            channel.push(one, nbytes=one.nbytes)
            times.append(time.perf_counter())
            back.release()

    freed: list[float] = []
    with thread(produce):
        back.acquire()
        for _ in range(count):
            while channel.statistics().wait_writer_seconds == 0.0:
                time.sleep(0.0005)  # until it is blocked
            time.sleep(0.0005)
            freed.append(time.perf_counter())
            channel.pull()
            back.acquire()
    waits = [returned - start for start, returned in zip(freed, times[1:], strict=True)]
    worst = sorted(waits)[int(count * 0.99)] * 1000
    return Row(
        "blocked producer wakes, median",
        statistics.median(waits) * 1000,
        "<= 1",
        "ms",
        f"p99 {worst:.2f} ms",
    )


def against_parquet() -> list[Row]:
    """CPU of a channel against the CPU of reading the same rows, one thread, in one run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orders.parquet"
        with pq.ParquetWriter(path, batch(rows=1).schema) as writer:
            for start in range(0, PARQUET_ROWS, 1_000_000):
                writer.write_batch(batch(start, 1_000_000))

        def read() -> list[pa.RecordBatch]:
            return list(pq.ParquetFile(path).iter_batches(BATCH_ROWS, use_threads=False))

        kept = read()
        assert sum(one.num_rows for one in kept) == PARQUET_ROWS
        sizes = [one.nbytes for one in kept]

        def carry() -> None:
            channel = MemoryChannel()
            for one in kept:
                channel.push(one)
                channel.pull()

        def carry_measured() -> None:
            channel = MemoryChannel()
            for one, nbytes in zip(kept, sizes, strict=True):
                channel.push(one, nbytes=nbytes)
                channel.pull()

        rows = []
        for name, work in (("", carry), (", nbytes known", carry_measured)):
            carried, reads = alternate(work, lambda: len(read()), 5, time.process_time)
            each = statistics.median(carried) / len(kept) * 1e6
            note = f"{each:.0f} us per batch of 5 columns; reading takes {statistics.median(reads):.1f} s"
            name = f"CPU of a channel / of reading parquet{name}"
            rows.append(Row(name, ratio(carried, reads) * 100, "< 1", "%", note))
    return rows


def main() -> list[Row]:
    return [*hand_over(), wake_latency(), *against_parquet()]


if __name__ == "__main__":
    print_table(main())
