"""Pacing without a queue."""

import threading

import pyarrow as pa
import pytest

from spark_channel.limits import RateLimiter
from spark_channel.pipeline import ReadCancelledError
from spark_channel.pipeline.read import BatchRateLimiter
from spark_channel.progress import Counters
from tests.pipeline.fakes import batch


class JumpClock:
    """Time for one thread: every wait ends at once, its seconds later."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += max(0.0, seconds)

    def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
        assert timeout is not None, "no thread would wake it"
        self.time += timeout
        return False


def paced(
    pacer: BatchRateLimiter, clock: JumpClock, batches: list[pa.RecordBatch]
) -> list[tuple[float, int]]:
    """(time, rows) of each piece."""
    return [(clock.now(), piece.num_rows) for piece in pacer.pace(batches)]


def test_the_rate_holds_and_no_row_is_lost() -> None:
    clock = JumpClock()
    counters = Counters(0, 0, clock=clock)
    pacer = BatchRateLimiter(
        RateLimiter(rows_per_second=1_000, clock=clock), counters=counters, clock=clock
    )
    seen = paced(pacer, clock, [batch(n * 500, 500) for n in range(10)])
    assert sum(rows for _, rows in seen) == 5_000
    assert 4.9 <= seen[-1][0] <= 5.0
    assert max(rows for _, rows in seen) == 20
    assert sum(counters.snapshot().waits.values()) == pytest.approx(seen[-1][0], abs=0.01)


def test_bytes_are_paid_pro_rata_and_sum_exactly() -> None:
    clock = JumpClock()
    whole = batch(0, 1_000)
    counters = Counters(0, 0, clock=clock)
    pacer = BatchRateLimiter(
        RateLimiter(bytes_per_second=whole.nbytes, clock=clock), counters=counters, clock=clock
    )
    seen = paced(pacer, clock, [whole])
    assert sum(rows for _, rows in seen) == 1_000
    assert 0.95 <= seen[-1][0] <= 1.0
    assert counters.snapshot().bytes_pushed == whole.nbytes


def test_an_empty_batch_passes() -> None:
    clock = JumpClock()
    pacer = BatchRateLimiter(RateLimiter(rows_per_second=1, clock=clock), clock=clock)
    assert paced(pacer, clock, [batch(0, 0)]) == [(clock.now(), 0)]


def test_cancel_wakes_a_payer_which_does_not_end_as_if_it_had_all_rows() -> None:
    pacer = BatchRateLimiter(RateLimiter(rows_per_second=1))
    seen: list[int] = []
    started, cancelled = threading.Event(), threading.Event()

    def run() -> None:
        try:
            for piece in pacer.pace([batch(0, 100)]):
                seen.append(piece.num_rows)
                started.set()
        except ReadCancelledError:
            cancelled.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(30)
    pacer.cancel()
    thread.join(30)
    assert not thread.is_alive()
    assert cancelled.is_set()
    assert sum(seen) < 100
