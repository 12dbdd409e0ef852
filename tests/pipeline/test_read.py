"""A task group being read: threads, errors, cancellation."""

import threading
import time
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.clock import connecting, seconds_connecting
from spark_channel.errors import SchemaError, SourceError
from spark_channel.limits import RateLimiter
from spark_channel.pipeline import GroupRead, ReadCancelledError
from spark_channel.planning import Split
from spark_channel.progress import Counters, Phase
from spark_channel.progress.counters import trace_of
from tests.pipeline.fakes import SCHEMA, MemoryReader, group

ROOM: dict[str, Any] = {"capacity_rows": 100, "capacity_bytes": 1 << 20}


def values(read: GroupRead) -> list[int]:
    return [n for batch in read.batches() for n in batch.column(0).to_pylist()]


def reader_threads() -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread.name.startswith("spark-channel-read")
    ]


@pytest.mark.parametrize("channels", [1, 3])
def test_all_tasks_are_read_once(channels: int) -> None:
    reader = MemoryReader(batches=5)
    read = GroupRead(reader, group(7, channels), SCHEMA, **ROOM)
    assert sorted(values(read)) == list(range(7 * 5 * 10))
    assert reader.open == 0
    assert reader.most_open <= channels
    assert read.statistics().rows_pulled == 350
    assert reader_threads() == []


def test_one_channel_keeps_the_order() -> None:
    assert values(GroupRead(MemoryReader(), group(4), SCHEMA, **ROOM)) == list(range(4 * 3 * 10))


def test_a_group_without_tasks_is_empty() -> None:
    assert values(GroupRead(MemoryReader(), group(0, 1), SCHEMA, **ROOM)) == []


def test_all_channels_of_a_group_work_at_once() -> None:
    together = threading.Barrier(3, timeout=5)

    def meet(_split: Split, number: int) -> None:
        if number == 0:
            together.wait()

    reader = MemoryReader(before=meet)
    assert len(values(GroupRead(reader, group(3, 3), SCHEMA, **ROOM))) == 90
    assert reader.most_open == 3


def test_an_error_in_the_source_reaches_the_caller_with_its_cause() -> None:
    def fail(split: Split, number: int) -> None:
        if (split.params["number"], number) == (1, 2):
            raise SourceError("row 17 is broken")

    reader = MemoryReader(before=fail)
    with pytest.raises(SourceError, match="row 17") as caught:
        values(GroupRead(reader, group(4, 2), SCHEMA, **ROOM))
    assert any(entry.name == "fail" for entry in caught.traceback)
    assert reader.open == 0
    assert reader_threads() == []


def test_a_batch_that_does_not_fit_the_schema_is_an_error() -> None:
    read = GroupRead(MemoryReader(), group(1), pa.schema([("m", pa.int64())]), **ROOM)
    with pytest.raises(SchemaError, match="promised were m"):
        values(read)


def test_leaving_early_ends_the_reader_threads_and_closes_the_source() -> None:
    reader = MemoryReader(batches=1_000)
    batches = GroupRead(reader, group(5, 2), SCHEMA, **ROOM).batches()
    assert len(list(islice(batches, 2))) == 2
    batches.close()
    assert reader.open == 0
    assert reader_threads() == []


def test_cancel_wakes_a_caller_that_waits_for_a_slow_source() -> None:
    reached = threading.Event()
    release = threading.Event()

    def hang(_split: Split, _number: int) -> None:
        reached.set()
        release.wait(30)

    read = GroupRead(MemoryReader(before=hang), group(1), SCHEMA, **ROOM)

    def cancel() -> None:
        reached.wait(30)
        read.cancel()
        release.set()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(ReadCancelledError):
        values(read)
    canceller.join()
    assert reader_threads() == []


@pytest.mark.parametrize("how", ["closed", "cancelled"])
def test_a_read_that_is_left_early_has_ended_not_failed(how: str) -> None:
    counters = Counters(0, 0)
    read = GroupRead(MemoryReader(batches=1_000), group(1), SCHEMA, counters=counters, **ROOM)
    batches = read.batches()
    next(batches)
    if how == "closed":
        batches.close()
    else:
        read.cancel()
        with pytest.raises(ReadCancelledError):
            list(batches)
    assert counters.snapshot().phase is Phase.ENDED


def test_cancel_wakes_a_reader_that_waits_for_the_limit() -> None:
    reader = MemoryReader()
    read = GroupRead(reader, group(1), SCHEMA, limiter=RateLimiter(rows_per_second=1), **ROOM)
    batches = read.batches()
    first = next(batches)
    assert first.num_rows == 1
    read.cancel()
    with pytest.raises(ReadCancelledError):
        list(batches)
    assert reader.open == 0
    assert reader_threads() == []


def test_the_phases_of_a_read_are_timed() -> None:
    def slow(_split: Split, number: int) -> None:
        if number == 0:
            with connecting():
                time.sleep(0.05)
        time.sleep(0.09 if number == 0 else 0.03)

    counters = Counters(0, 0)
    read = GroupRead(
        MemoryReader(batches=3, before=slow), group(2, 1), SCHEMA, counters=counters, **ROOM
    )
    for batch in read.batches():
        assert batch.num_rows
        time.sleep(0.01)
    trace = trace_of(counters.snapshot(), 1)
    assert list(trace.phases) == ["connect", "first_row", "read", "wait"]
    assert 0.1 <= trace.phases["connect"] < 0.17, "twice, since the two splits share no connection"
    assert 0.18 <= trace.phases["first_row"] < 0.28
    assert 0.12 <= trace.phases["read"] < 0.25
    assert (trace.rows_read, trace.rows_written) == (60, 0)


def test_connecting_within_connecting_counts_once() -> None:
    before, began = seconds_connecting(), time.perf_counter()
    with connecting():
        with connecting():
            time.sleep(0.1)
        time.sleep(0.02)
    assert 0.12 <= seconds_connecting() - before <= time.perf_counter() - began
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(seconds_connecting()))
    thread.start()
    thread.join()
    assert found == [0.0], "each thread has its own"
