"""Batches of numbered rows, threads whose result can be asked for, and a limiter on a virtual clock."""

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import pyarrow as pa

from spark_channel.channel import MemoryChannel, Wait
from spark_channel.errors import LimitError
from spark_channel.testing import VirtualClock

T = TypeVar("T")

ROW = 8
"""Bytes of one row of `rows`."""


def rows(count: int, start: int = 0) -> pa.RecordBatch:
    """One int64 column, `start`, `start + 1`, ...: 8 bytes a row."""
    return pa.record_batch({"n": pa.array(range(start, start + count), pa.int64())})


def numbers(batches: pa.RecordBatch | Iterable[pa.RecordBatch]) -> list[int]:
    """The rows' numbers, in order."""
    if isinstance(batches, pa.RecordBatch):
        batches = [batches]
    return [n for batch in batches for n in batch.column(0).to_pylist()]


class Thread(threading.Thread, Generic[T]):
    """Runs `work` at once; `result` waits, and raises what it raised."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # handed to whoever asks for the result
            self._error = error

    def result(self, timeout: float = 20.0) -> Any:
        self.join(timeout)
        assert not self.is_alive(), f"{self.name} is stuck"
        if self._error is not None:
            raise self._error
        return self._value


class Actor:
    """A thread that runs one call after the other: transactions belong to threads."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, answers = task
            try:
                answers.put((work(), None))
            except BaseException as error:  # handed to whoever asks for the result
                answers.put((None, error))

    def begin(self, work: Callable[[], Any]) -> "Answer":
        answer = Answer()
        self._tasks.put((work, answer.answers))
        return answer

    def do(self, work: Callable[[], Any]) -> Any:
        return self.begin(work).result()

    def stop(self) -> None:
        self._tasks.put(None)
        self.thread.join(20)
        assert not self.thread.is_alive()


class Answer:
    """The future answer of an actor."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    @property
    def ready(self) -> bool:
        return not self.answers.empty()

    def result(self, timeout: float = 20.0) -> Any:
        value, error = self.answers.get(timeout=timeout)
        if error is not None:
            raise error
        return value


class FakePayment:
    def __init__(
        self, limiter: "FakeLimiter", amount: tuple[int, int], wake: Callable[[], None]
    ) -> None:
        self.limiter = limiter
        self.amount = amount
        self.wake = wake
        self.paid = False
        self.cancelled = False
        self.due: float | None = limiter.book(amount)

    def remaining(self) -> Wait:
        if self.limiter.error is not None:
            raise self.limiter.error
        if self.paid:
            return Wait(0.0)
        if self.limiter.paused:
            return Wait(None, "paused")
        assert self.due is not None
        left = self.due - self.limiter.clock.now()
        if left > 1e-12:
            return Wait(left, "rows")
        self.paid = True
        self.limiter.spent.append(self.amount)
        return Wait(0.0)

    def cancel(self) -> None:
        if not self.paid and not self.cancelled:
            self.cancelled = True
            self.limiter.cancelled.append(self.amount)


class FakeLimiter:
    """`rows_per_second` with debt: the first goes at once, the next pays for it."""

    def __init__(
        self,
        clock: VirtualClock,
        rows_per_second: float = float("inf"),
        slice_size: tuple[int | None, int | None] = (None, None),
    ) -> None:
        self.clock = clock
        self.rate = rows_per_second
        self.size = slice_size
        self.paused = False
        self.error: LimitError | None = None
        self.free_at = 0.0
        self.payments: list[FakePayment] = []
        self.spent: list[tuple[int, int]] = []
        self.cancelled: list[tuple[int, int]] = []

    def slice_size(self) -> tuple[int | None, int | None]:
        return self.size

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> FakePayment:
        payment = FakePayment(self, (rows, nbytes), wake)
        self.payments.append(payment)
        return payment

    def book(self, amount: tuple[int, int]) -> float:
        due = max(self.clock.now(), self.free_at)
        self.free_at = due + amount[0] / self.rate
        return due

    def wake_all(self) -> None:
        for payment in self.payments:
            payment.wake()


def conserved(channel: MemoryChannel) -> None:
    """What holds of any channel at any instant."""
    s = channel.statistics()
    assert s.rows_pushed == s.rows_pulled + s.rows_dropped + s.rows_stored
    assert s.bytes_pushed == s.bytes_pulled + s.bytes_dropped + s.bytes_stored
    assert 0 <= s.rows_held <= s.rows_stored
    assert 0 <= s.bytes_held <= s.bytes_stored
    assert s.rows_reserved >= 0
    assert s.bytes_reserved >= 0
    assert s.rows_stored + s.rows_reserved <= s.capacity_rows
    assert (
        s.bytes_stored + s.bytes_reserved <= s.capacity_bytes
        or s.rows_stored + s.rows_reserved == 1
    )
