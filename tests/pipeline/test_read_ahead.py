"""One batch is paid while the next is fetched."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.errors import SourceError
from spark_channel.limits import RateLimiter
from spark_channel.pipeline.read import GroupRead, ReadCancelledError
from spark_channel.pipeline.threads import PrefetchingPayer
from spark_channel.planning import Split
from tests.pipeline.fakes import SCHEMA, MemoryReader, batch, group

TIMEOUT = 5.0


def no_failure(error: BaseException) -> None:
    raise AssertionError(f"nothing failed, and yet: {error!r}")


def paying(
    fail: Callable[[BaseException], None], rows_per_second: float = 1.0, **more: Any
) -> PrefetchingPayer:
    return PrefetchingPayer(fail, limiter=RateLimiter(rows_per_second), name="pay", **more)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [thread.name for thread in set(threading.enumerate()) - before] == []


def test_batches_are_paid_in_order_and_the_end_waits_for_the_last() -> None:
    paid: list[tuple[int, int]] = []
    with paying(no_failure) as ahead:
        for start in range(50):
            ahead.put(lambda b, n: paid.append((b.column(0)[0].as_py(), n)), batch(start, 1), start)
    assert paid == [(start, start) for start in range(50)]


def test_the_next_fetch_begins_while_a_batch_is_paid_and_no_further_one_does() -> None:
    fetching = [threading.Event() for _ in range(4)]

    def pay(b: pa.RecordBatch, _nbytes: int) -> None:
        number = b.column(0)[0].as_py()
        assert fetching[number + 1].wait(TIMEOUT), "the source stood still while a batch was paid"
        assert not any(later.is_set() for later in fetching[number + 2 :])

    with paying(no_failure) as ahead:
        for number in range(3):
            fetching[number].set()
            ahead.put(pay, batch(number, 1), 8)
        fetching[3].set()


def test_batches_of_less_than_half_a_second_of_the_limit_wait_while_one_is_paid() -> None:
    begun, gate = threading.Event(), threading.Event()
    done: list[int] = []

    def pay(b: pa.RecordBatch, _nbytes: int) -> None:
        begun.set()
        assert gate.wait(TIMEOUT)

    with paying(no_failure, rows_per_second=1_000) as ahead:
        ahead.put(pay, batch(0, 400), 8)
        assert begun.wait(TIMEOUT)
        ahead.put(pay, batch(0, 300), 8)  # these two would block, if none were kept
        ahead.put(pay, batch(0, 100), 8)
        ahead.then(lambda: done.append(len(done)))  # does not wait either
        assert not done
        full = threading.Thread(target=ahead.put, args=(pay, batch(0, 100), 8), daemon=True)
        full.start()
        full.join(0.05)
        assert full.is_alive(), "500 rows wait, which is more than 0.4 s"
        gate.set()
        full.join(TIMEOUT)
        assert not full.is_alive()
    assert done == [0]


@pytest.mark.parametrize(
    ("more", "rows", "nbytes"),
    [
        pytest.param({"lanes": 4}, 60, 8, id="four lanes share 0.4 s of the limit"),
        pytest.param({"capacity_bytes": 1000}, 1, 600, id="rows are few and wide"),
    ],
)
def test_the_second_batch_waits_where_less_than_the_whole_limit_may_wait(
    more: dict[str, int], rows: int, nbytes: int
) -> None:
    begun, gate = threading.Event(), threading.Event()

    def pay(_batch: pa.RecordBatch, _nbytes: int) -> None:
        begun.set()
        assert gate.wait(TIMEOUT)

    with paying(no_failure, rows_per_second=1_000, **more) as ahead:
        ahead.put(pay, batch(0, rows), nbytes)
        assert begun.wait(TIMEOUT)
        ahead.put(pay, batch(0, rows), nbytes)
        full = threading.Thread(target=ahead.put, args=(pay, batch(0, rows), nbytes), daemon=True)
        full.start()
        full.join(0.05)
        waited = full.is_alive()
        gate.set()
        full.join(TIMEOUT)
        assert not full.is_alive()
    assert waited


def test_rows_that_wait_for_a_slow_target_stay_within_the_capacity() -> None:
    """A limit that is never reached: what is fetched waits for the target, and the limit would let it all wait."""
    asked: list[int] = []
    asks = threading.Condition()

    def count(_split: Split, number: int) -> None:
        with asks:
            asked.append(number)
            asks.notify_all()

    read = GroupRead(
        MemoryReader(batches=2_000, before=count),
        group(1),
        SCHEMA,
        limiter=RateLimiter(rows_per_second=1_000_000),
        capacity_rows=1 << 20,
        capacity_bytes=800,
    )
    batches = read.batches()
    assert next(batches).num_rows
    with asks:
        asks.wait_for(lambda: len(asked) > 30, timeout=0.3)
    read.cancel()
    with pytest.raises(ReadCancelledError):
        list(batches)
    assert len(asked) <= 30


def test_what_paying_raises_ends_the_fetch_and_is_told_once() -> None:
    errors: list[BaseException] = []

    def pay(b: pa.RecordBatch, _nbytes: int) -> None:
        raise SourceError("no more")

    def fetch() -> None:
        with paying(errors.append) as ahead:
            while True:
                ahead.put(pay, batch(0, 1), 8)

    with pytest.raises(SourceError, match="no more"):
        fetch()
    assert [str(error) for error in errors] == ["no more"]


def test_what_paying_for_the_last_batch_raises_is_raised_at_the_end() -> None:
    fetched = threading.Event()

    def pay(b: pa.RecordBatch, _nbytes: int) -> None:
        assert fetched.wait(TIMEOUT)
        raise SourceError("too late")

    def fetch() -> None:
        with paying(lambda _: None) as ahead:
            ahead.put(pay, batch(0, 1), 8)
            fetched.set()

    with pytest.raises(SourceError, match="too late"):
        fetch()


def test_an_error_in_the_fetch_ends_a_payment_at_once() -> None:
    begun, failed = threading.Event(), threading.Event()

    def hold(_batch: pa.RecordBatch, _nbytes: int) -> None:
        begun.set()
        assert failed.wait(TIMEOUT)

    def fail(_error: BaseException) -> None:
        failed.set()

    def fetch() -> None:
        with paying(fail) as ahead:
            ahead.put(hold, batch(0, 1), 8)
            assert begun.wait(TIMEOUT)
            raise SourceError("row 3")

    with pytest.raises(SourceError, match="row 3"):
        fetch()
    assert failed.is_set()


def test_a_limited_read_fetches_while_it_waits_for_the_limit() -> None:
    """One row a second: only what is fetched ahead can be seen after the first row."""
    asked = [threading.Event() for _ in range(3)]
    reader = MemoryReader(before=lambda _split, number: asked[number].set())
    read = GroupRead(
        reader,
        group(1),
        SCHEMA,
        limiter=RateLimiter(rows_per_second=1),
        capacity_rows=100,
        capacity_bytes=1 << 20,
    )
    batches = read.batches()
    assert next(batches).num_rows == 1
    assert asked[1].wait(TIMEOUT)
    assert not asked[2].is_set(), "one batch ahead, no more"
    read.cancel()
    with pytest.raises(ReadCancelledError):
        list(batches)
    assert reader.open == 0


def test_an_error_in_the_source_does_not_wait_for_the_limit() -> None:
    def fail(_split: Split, number: int) -> None:
        if number == 1:
            raise SourceError("row 10 is broken")

    read = GroupRead(
        MemoryReader(before=fail),
        group(1),
        SCHEMA,
        limiter=RateLimiter(rows_per_second=1),  # the first batch alone takes ten seconds
        capacity_rows=100,
        capacity_bytes=1 << 20,
    )
    with pytest.raises(SourceError, match="row 10"):
        list(read.batches())
