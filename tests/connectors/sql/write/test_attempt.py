"""What is gathered goes to the database in good time, also under a slow limit."""

import pyarrow as pa

from spark_channel.connectors.sql.write.attempt import BatchBuffer
from spark_channel.testing import VirtualClock


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(rows), pa.int64())})


def test_so_many_rows_are_sent_at_once() -> None:
    gathered = BatchBuffer(1000, 60.0, 16 << 20, clock=VirtualClock())
    assert [gathered.add(batch(400)) for _ in range(3)] == [False, False, True]
    assert gathered.rows == 1200
    assert [each.num_rows for each in gathered.take()] == [400, 400, 400]
    assert (gathered.rows, gathered.take()) == (0, [])
    assert not gathered.add(batch(999))


def test_so_many_bytes_are_sent_at_once() -> None:
    gathered = BatchBuffer(100_000_000, 60.0, 16 << 20, clock=VirtualClock())
    assert [gathered.add(batch(1 << 20)) for _ in range(2)] == [False, True]


def test_the_first_of_them_waits_no_longer_than_it_may() -> None:
    clock = VirtualClock()
    gathered = BatchBuffer(65_536, 0.2, 16 << 20, clock=clock)
    sent = []
    for _ in range(500):  # 10 s of a job at 10 000 rows/s
        clock.advance(0.02)
        if gathered.add(batch(200)):
            sent.append(sum(each.num_rows for each in gathered.take()))
    assert sum(sent) + gathered.rows == 100_000
    assert 2_000 <= max(sent) <= 2_400


def test_what_a_limit_makes_slow_says_for_how_long_it_gathered() -> None:
    clock = VirtualClock()
    gathered = BatchBuffer(1_000, 1.0, 16 << 20, clock=clock)
    assert gathered.waited == 0.0
    gathered.add(batch(100))
    clock.advance(0.4)
    assert gathered.waited == 0.4
    clock.advance(2.0)
    assert gathered.waited == 1.0
    gathered.add(batch(900))
    assert gathered.waited == 0.0  # full: whoever brings so much is not slow
