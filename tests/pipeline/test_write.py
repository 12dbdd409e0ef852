"""A task being written: threads, errors, rollback."""

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.errors import SchemaError, TargetError
from spark_channel.pipeline import TaskWrite
from spark_channel.progress import Counters, Phase
from tests.pipeline.fakes import MemoryWriter, batch, plan


def write(writer: MemoryWriter, **more: Any) -> TaskWrite:
    room = {"capacity_rows": 100, "capacity_bytes": 1 << 20}
    return TaskWrite(writer, plan(), 3, 8, **(room | more))


def writer_threads() -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread.name.startswith("spark-channel-write")
    ]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert writer_threads() == []


def test_everything_is_written_in_order_and_receipted() -> None:
    writer = MemoryWriter()
    receipt = write(writer).run(batch(n * 10, 10) for n in range(50))
    assert (receipt.task, receipt.attempt, receipt.rows) == (3, 8, 500)
    assert [n for b in writer.batches for n in b.column(0).to_pylist()] == list(range(500))
    assert writer.events == ["open", "close"]


def test_what_left_the_channel_counts_as_written() -> None:
    counters = Counters(3, 8)
    receipt = write(MemoryWriter(), counters=counters).run([batch(0, 10), batch(10, 10)])
    seen = counters.snapshot()
    assert (seen.rows_read, seen.rows_written, seen.bytes_written) == (20, 20, receipt.nbytes)
    assert seen.phase is Phase.DONE


def test_a_failed_attempt_counts_as_failed() -> None:
    counters = Counters(3, 8)
    with pytest.raises(SchemaError):
        write(MemoryWriter(), counters=counters).run([pa.record_batch({"m": [1]})])
    assert counters.snapshot().phase is Phase.FAILED


def test_a_task_without_rows_still_has_a_receipt() -> None:
    assert write(MemoryWriter()).run([]).rows == 0


def test_batches_are_cut_to_the_size_of_a_transaction() -> None:
    writer = MemoryWriter()
    write(writer, transaction_rows=4).run([batch(0, 10)])
    assert max(b.num_rows for b in writer.batches) == 4
    assert sum(b.num_rows for b in writer.batches) == 10


def test_an_error_of_the_target_reaches_spark_and_rolls_back() -> None:
    def refuse(number: int) -> None:
        if number == 2:
            raise TargetError("disk full")

    writer = MemoryWriter(on_write=refuse)
    endless = (batch(n, 10) for n in iter(int, 1))
    with pytest.raises(TargetError, match="disk full") as caught:
        write(writer).run(endless)
    assert any(entry.name == "refuse" for entry in caught.traceback)
    assert writer.events == ["open", "rollback"]


def test_an_error_at_the_close_rolls_back() -> None:
    def refuse() -> None:
        raise TargetError("cannot sync")

    writer = MemoryWriter(on_close=refuse)
    with pytest.raises(TargetError, match="cannot sync"):
        write(writer).run([batch(0, 10)])
    assert writer.events == ["open", "rollback"]


def test_an_error_of_the_input_rolls_back_and_is_raised_as_it_is() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(0, 10)
        raise ZeroDivisionError

    writer = MemoryWriter()
    with pytest.raises(ZeroDivisionError):
        write(writer).run(broken())
    assert writer.events == ["open", "rollback"]


def test_a_failing_rollback_does_not_hide_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_number: int) -> None:
        raise TargetError("disk full")

    def broken() -> None:
        raise OSError("cannot remove")

    with pytest.raises(TargetError, match="disk full"):
        write(MemoryWriter(on_write=refuse, on_rollback=broken)).run([batch(0, 10)])
    assert "rolling back task 3, attempt 8 failed" in caplog.text


def test_a_batch_with_other_columns_is_refused() -> None:
    with pytest.raises(SchemaError, match="promised were n"):
        write(MemoryWriter()).run([pa.record_batch({"m": [1]})])
