"""One range of one channel: read ahead by one thread into bounded memory, processed by others.

A range of a feed of several tables has one delivery for each table with rows in it. Processors get the deliveries
when the range is read, since only then each of them is complete: so none waits for rows behind those of another
table. If the range does not fit into memory, a processor gets the largest delivery during the reading, and rows of
the others that do not fit are left out. They are read again when that delivery is over.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import cast

import pyarrow as pa

from spark_channel.arrow_schema import conform
from spark_channel.carrier import DataCarrier
from spark_channel.channel import Limiter, Wait
from spark_channel.channel.batches import arrow_bytes
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import TABLE, ChangeFeed
from spark_channel.errors import EndOfChannel
from spark_channel.limits import CombinedLimiter
from spark_channel.pipeline import ReadCancelledError
from spark_channel.planning import Split

__all__ = [
    "DeliveryRows",
    "RangeRead",
    "ReadAheadBudget",
    "Stage",
]


_MEMORY = "memory"
"""The reason of a wait for the budget."""

_MOST_GIVEN = 64
"""Deliveries of a range that the pool has at a time."""
_ANY_NUMBER = 1 << 62
"""The rows and bytes of one table's delivery, which only the memory of its client bounds."""


class ReadAheadBudget:
    """Rows and bytes that are read and not processed yet, at most; one batch larger than it passes alone.

    Each range has a `BudgetShare`, which its carrier pays as it would pay a limiter. A range that is being processed
    and has nothing left gets its next batch beyond the budget, since the rows that fill it may have to wait for
    this very range: so there is one batch more for each thread that processes, at most.
    """

    def __init__(self, rows: int, nbytes: int) -> None:
        self._most = rows, nbytes
        self._lock = threading.Lock()
        self._rows = self._nbytes = 0
        self._waiting: set[_Payment] = set()

    def share(self, make_room: Callable[[], bool] | None = None) -> "BudgetShare":
        """The part of one range. `make_room` is called by a thread that pays, before it waits; true: something was
        given back.
        """
        return BudgetShare(self, make_room)

    def used(self) -> tuple[int, int]:
        """Rows and bytes."""
        with self._lock:
            return self._rows, self._nbytes

    def take(self, payment: "_Payment") -> bool:
        share = payment.share
        with self._lock:
            rows, nbytes = self._rows + payment.rows, self._nbytes + payment.nbytes
            fits = rows <= self._most[0] and nbytes <= self._most[1]
            if not (fits or share.wanted or share.closed or not self._rows):
                self._waiting.add(payment)
                return False
            self._waiting.discard(payment)
            share.wanted = False
            if not share.closed and payment.keep(payment.rows, payment.nbytes):
                self._rows, self._nbytes = rows, nbytes
                share.rows += payment.rows
                share.nbytes += payment.nbytes
            return True

    def forget(self, payment: "_Payment") -> None:
        with self._lock:
            self._waiting.discard(payment)

    def free(self, share: "BudgetShare", rows: int, nbytes: int, *, closed: bool = False) -> None:
        with self._lock:
            share.closed = share.closed or closed
            rows, nbytes = (share.rows, share.nbytes) if closed else (rows, nbytes)
            rows, nbytes = min(rows, share.rows), min(nbytes, share.nbytes)
            share.rows -= rows
            share.nbytes -= nbytes
            self._rows -= rows
            self._nbytes -= nbytes
            woken = list(self._waiting)
        for payment in woken:
            payment.wake()

    def want(self, share: "BudgetShare") -> None:
        with self._lock:
            share.wanted = True
            woken = [payment for payment in self._waiting if payment.share is share]
        for payment in woken:
            payment.wake()


class BudgetShare:
    """One range's share of the budget; it is the limiter of the range's carrier."""

    def __init__(
        self, budget: ReadAheadBudget, make_room: Callable[[], bool] | None = None
    ) -> None:
        self._budget = budget
        self._make_room = make_room
        self.rows = self.nbytes = 0
        self.wanted = False
        self.closed = False

    def slice_size(self) -> tuple[int | None, int | None]:
        return None, None

    def pay(
        self,
        rows: int,
        nbytes: int,
        wake: Callable[[], None],
        keep: Callable[[int, int], bool] | None = None,
    ) -> "_Payment":
        payment = _Payment(self._budget, self, rows, nbytes, wake, keep or _always)
        if self._make_room is not None:
            while payment.remaining().seconds is None and self._make_room():
                pass
        return payment

    def filtered(self, keep: Callable[[int, int], bool]) -> "_FilteredShare":
        """Return a limiter that charges this share.

        `keep` is called with each payment; if it returns False, the payment does not count.
        """
        return _FilteredShare(self, keep)

    def want(self) -> None:
        """Note that a thread waits for the next batch of this range."""
        self._budget.want(self)

    def free(self, rows: int, nbytes: int) -> None:
        """Give back the memory of processed rows."""
        self._budget.free(self, rows, nbytes)

    def close(self) -> None:
        """End the range, and give all its memory back."""
        self._budget.free(self, 0, 0, closed=True)


class _FilteredShare:
    def __init__(self, share: BudgetShare, keep: Callable[[int, int], bool]) -> None:
        self._share, self._keep = share, keep

    def slice_size(self) -> tuple[int | None, int | None]:
        return None, None

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> "_Payment":
        return self._share.pay(rows, nbytes, wake, self._keep)


class _Payment:
    def __init__(
        self,
        budget: ReadAheadBudget,
        share: BudgetShare,
        rows: int,
        nbytes: int,
        wake: Callable[[], None],
        keep: Callable[[int, int], bool],
    ) -> None:
        self.keep = keep
        self._budget = budget
        self.share = share
        self.rows = rows
        self.nbytes = nbytes
        self.wake = wake
        self._paid = False

    def remaining(self) -> Wait:
        if not self._paid:
            self._paid = self._budget.take(self)
        return Wait(0.0) if self._paid else Wait(None, _MEMORY)

    def cancel(self) -> None:
        """Stop waiting. The end of the share gives back what was paid."""
        self._budget.forget(self)


def _always(_rows: int, _nbytes: int) -> bool:
    return True


def _nothing() -> None:
    pass


class DeliveryRows:
    """All rows of a range, or those of one `table` of it.

    `is_given`: the pool may process them. `is_over`: the processor has ended; `is_processed`: it took all of them,
    else `error` has the reason, if known. `lost`: the error that ended the reading early. `rows` and `nbytes`: what the
    processor took; `waited`: the seconds for which it waited for them.
    """

    def __init__(
        self,
        share: BudgetShare,
        limit: Limiter | None,
        table: str,
        *,
        capacity_rows: int,
        capacity_bytes: int,
    ) -> None:
        self.table = table
        self.is_given = self.is_over = self.is_processed = False
        self.error: BaseException | None = None
        self.lost: Exception | None = None
        self.rows = self.nbytes = 0
        self.waited = 0.0
        self.check: Callable[[], None] = _nothing
        """See `ChangeFeed.reading_ahead`; called at the end of the rows."""
        paid = share.filtered(self._keep)
        limiter: Limiter = paid if limit is None else CombinedLimiter([paid, limit])
        self.carrier = DataCarrier(1, capacity_rows, capacity_bytes, limiter=limiter)
        self._share = share
        self._lock = threading.Lock()
        self._kept_rows = self._kept_bytes = 0
        self._is_closed = False

    @property
    def kept_rows(self) -> int:
        """The rows in memory that are not processed. If a limit cuts a batch, its pieces so far count."""
        return self._kept_rows

    def put(self, batch: pa.RecordBatch, nbytes: int) -> None:
        """Wait for memory and limit. Raises what the carrier failed with."""
        self.carrier.produce(batch, nbytes=nbytes)

    def batches(self, first_batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """`first_batches`, which the carrier has handed over, and all that come after them."""
        handed_over = list(reversed(first_batches))
        try:
            while (batch := handed_over.pop() if handed_over else self._next()) is not None:
                rows, nbytes = batch.num_rows, arrow_bytes(batch)
                self.rows += rows
                self.nbytes += nbytes
                yield batch
                del batch
                if self._keep(-rows, -nbytes):
                    self._share.free(rows, nbytes)
        except Exception as error:
            self.lost = error
            raise

    def close(self) -> None:
        """Wake and end whoever puts or takes, and give the memory back. Safe after its end, and twice."""
        self.carrier.fail(
            ReadCancelledError("the read was cancelled: its rows are no longer wanted")
        )
        with self._lock:
            rows_and_bytes, self._is_closed = (self._kept_rows, self._kept_bytes), True
            self._kept_rows = self._kept_bytes = 0
        self._share.free(max(0, rows_and_bytes[0]), max(0, rows_and_bytes[1]))

    def _keep(self, rows: int, nbytes: int) -> bool:
        """Whether they count: not after `close`."""
        with self._lock:
            if self._is_closed:
                return False
            self._kept_rows += rows
            self._kept_bytes += nbytes
            return True

    def _next(self) -> pa.RecordBatch | None:
        self._share.want()
        began = time.perf_counter()
        try:
            return self.carrier.channels[0].pull()
        except EndOfChannel:
            self.check()
            return None
        finally:
            self.waited += time.perf_counter() - began


class Stage(IntEnum):
    """The state of a range."""

    READ = 1
    """The range is being read, or is read; no processor has seen a row of it."""
    FIXED = 2
    """Its end is in the store."""
    GIVEN = 3
    """The pool may process it."""
    BUSY = 4
    """A processor has it."""
    DONE = 5
    """The processor has finished; the checkpoint is not taken yet."""


class RangeRead:
    """From `start` to `end`. `rows` and `nbytes`: what was read so far.

    Args:
        done: of a feed of several tables, those whose rows of this range are processed already; None: of one table.
        room_wanted: called by the thread that reads, when it waits for memory and nothing of the range is processed.
        counted: called with the rows and bytes of each batch that is read and paid for.
    """

    def __init__(
        self,
        feed: ChangeFeed,
        sequence: int,
        start: Token,
        end: Token,
        splits: Sequence[Split],
        budget: ReadAheadBudget,
        *,
        capacity_rows: int,
        capacity_bytes: int,
        limit: Limiter | None = None,
        done: Collection[str] | None = None,
        room_wanted: Callable[[], None] | None = None,
        counted: Callable[[int, int], None] | None = None,
    ) -> None:
        self.sequence = sequence
        self.start = start
        self.stage = Stage.READ
        self.began = self.read_took = self.took = self.planning = 0.0
        self.end = end
        self.rows = self.nbytes = 0
        self.reading_seconds = 0.0
        """The time in which the source gave the rows."""
        self.lost: Exception | None = None
        """The error that ended the reading of several tables early; for a single table, its delivery has the error."""
        self._feed = feed
        self._splits = splits
        self._by_table = done is not None
        self._done = frozenset(done or ())
        self._room_wanted = room_wanted
        self._counted = counted
        self._lock = threading.Lock()
        self._deliveries: dict[str, DeliveryRows] = {}
        self._left_out: set[str] = set()
        self._rows_of: dict[str, int] = {}
        self._queue: deque[DeliveryRows] | None = None
        self._out = 0
        """How many deliveries the pool has."""
        self._put_table = ""
        self._is_read = self._is_full = self._is_withdrawn = self._has_ended = False
        self._share = budget.share(self._make_room if self._by_table else None)
        self._limit = limit
        self._capacity = capacity_rows, capacity_bytes
        if not self._by_table:
            self._begin("")

    # --- what is read

    def fill(self) -> None:
        """Read the range to its end; the processor gets an error of the reading."""
        schema = self._feed.schema()
        try:
            with self._feed.reading_ahead() as (read, check):
                for split in self._splits:
                    batches = read(split)
                    with contextlib.closing(cast("Generator[pa.RecordBatch]", batches)):
                        for batch in self._timed(batches):
                            fitting = batch if self._feed.has_tables else conform(batch, schema)
                            nbytes = arrow_bytes(fitting)
                            self._count(fitting)
                            self._put(fitting, nbytes)
                            self.rows += fitting.num_rows
                            self.nbytes += nbytes
                            if self._counted is not None:
                                self._counted(fitting.num_rows, nbytes)
        except BaseException as error:
            if self._by_table and isinstance(error, Exception):
                self.lost = error
            for delivery in self._all():
                delivery.carrier.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            with self._lock:
                self._is_read = True
            for delivery in self._all():
                delivery.check = check
                delivery.carrier.close()

    def _timed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        iterator = iter(batches)
        while True:
            began = time.perf_counter()
            try:
                batch = next(iterator, None)
            finally:
                self.reading_seconds += time.perf_counter() - began
            if batch is None:
                return
            yield batch
            del batch

    def throttled_seconds(self) -> dict[str, float]:
        """The time for which the limit held the reading, by what was limited."""
        total: dict[str, float] = {}
        for delivery in self._all():
            for reason, spent in delivery.carrier.statistics().throttled_seconds.items():
                total[reason] = total.get(reason, 0.0) + spent
        total.pop(_MEMORY, None)
        return total

    def _count(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            table = str(batch.column(TABLE)[0].as_py()) if self._by_table else ""
            with self._lock:
                self._rows_of[table] = self._rows_of.get(table, 0) + batch.num_rows

    def rows_by_table(self) -> Mapping[str, int]:
        """The rows read so far, also processed ones, by table; a feed of one table uses ""."""
        with self._lock:
            return dict(self._rows_of)

    def _put(self, batch: pa.RecordBatch, nbytes: int) -> None:
        if not self._by_table:
            self._deliveries[""].put(batch, nbytes)
            return
        if self._is_withdrawn:
            raise ReadCancelledError("the read was cancelled: its rows are no longer wanted")
        if not batch.num_rows:
            return
        table = str(batch.column(TABLE)[0].as_py())
        if table in self._done or table in self._left_out:
            return
        delivery, self._put_table = self._deliveries.get(table) or self._begin(table), table
        try:
            delivery.put(batch, nbytes)
        except ReadCancelledError:  # it is left out, or its processor wants no more
            pass
        self._is_full = False

    def _begin(self, table: str) -> DeliveryRows:
        rows, nbytes = (_ANY_NUMBER, _ANY_NUMBER) if self._by_table else self._capacity
        delivery = DeliveryRows(
            self._share, self._limit, table, capacity_rows=rows, capacity_bytes=nbytes
        )
        with self._lock:
            self._deliveries[table] = delivery
        return delivery

    def _make_room(self) -> bool:
        """Free memory: have the largest delivery processed, or leave out a waiting one if its processor waits."""
        with self._lock:
            taken_delivery = next(
                (delivery for delivery in self._deliveries.values() if _is_out(delivery)), None
            )
            self._is_full = True
            largest = (
                None if taken_delivery is None or taken_delivery.kept_rows > 0 else self._largest()
            )
            if largest is not None:
                del self._deliveries[largest.table]
                self._left_out.add(largest.table)
        if taken_delivery is None and self._room_wanted is not None:
            self._room_wanted()
        if largest is not None:
            largest.close()
        # The delivery that is being filled may be the one left out: its payment must not continue.
        return largest is not None and largest.table != self._put_table

    def _largest(self) -> DeliveryRows | None:
        waiting = [
            delivery
            for delivery in self._deliveries.values()
            if not delivery.is_given and delivery.kept_rows
        ]
        return max(waiting, key=lambda delivery: delivery.kept_rows, default=None)

    # --- deliveries for processors

    def to_give(self) -> list[DeliveryRows]:
        """Return the deliveries that the pool may process from now on; each delivery once."""
        with self._lock:
            if self._is_withdrawn or self.lost is not None:
                return []
            if self._by_table and not self._is_read:
                largest = self._largest()
                ready = [largest] if self._is_full and not self._out and largest is not None else []
            else:
                if self._queue is None:  # no delivery is added any more
                    not_given = [
                        delivery for delivery in self._deliveries.values() if not delivery.is_given
                    ]
                    self._queue = deque(not_given)
                room = min(len(self._queue), _MOST_GIVEN - self._out)
                ready = [self._queue.popleft() for _ in range(room)]
            for delivery in ready:
                delivery.is_given = True
            self._out += len(ready)
            return ready

    def over(
        self, delivery: DeliveryRows, *, is_processed: bool, error: BaseException | None = None
    ) -> None:
        """Note that the processor of `delivery` has ended."""
        with self._lock:
            self._out -= _is_out(delivery)
            delivery.is_processed, delivery.error, delivery.is_over = is_processed, error, True

    def ends(self) -> bool:
        """Whether all assigned deliveries are over and no more will follow; returns True once."""
        with self._lock:
            if self._has_ended or not self._is_over():
                return False
            self._has_ended = True
            return True

    def is_abandoned(self) -> bool:
        """Whether it was withdrawn, and no processor has rows of it."""
        with self._lock:
            return self._is_withdrawn and self._is_over()

    def _is_over(self) -> bool:
        if self._out:
            return False
        if self._is_withdrawn or self.lost is not None:
            return True
        return (self._is_read or not self._by_table) and all(
            delivery.is_over for delivery in self._deliveries.values()
        )

    @property
    def is_processed(self) -> bool:
        """Whether processors took all that is in it."""
        with self._lock:
            if self._by_table and (not self._is_read or self._left_out):
                return False
            return all(delivery.is_processed for delivery in self._deliveries.values())

    def processed_tables(self) -> set[str]:
        """The tables whose rows processors took completely."""
        with self._lock:
            return {
                delivery.table for delivery in self._deliveries.values() if delivery.is_processed
            }

    def outcome(self, table: str) -> bool | None:
        """Whether a table's rows were processed; None: that is not known yet."""
        with self._lock:
            delivery = self._deliveries.get(table)
            return delivery.is_processed if delivery is not None and delivery.is_over else None

    def failed(self) -> list[DeliveryRows]:
        """The deliveries that ended with an error."""
        with self._lock:
            return [
                delivery for delivery in self._deliveries.values() if delivery.error is not None
            ]

    @property
    def given_rows(self) -> int:
        """The rows that processors took."""
        return sum(delivery.rows for delivery in self._all())

    def withdraw(self) -> None:
        """Assign no more deliveries of this range."""
        with self._lock:
            self._is_withdrawn = True

    def cancel(self) -> None:
        """Wake and end whoever reads or takes it. Safe after its end, and twice."""
        self.withdraw()
        for delivery in self._all():
            delivery.close()
        self._share.close()

    def _all(self) -> list[DeliveryRows]:
        with self._lock:
            return list(self._deliveries.values())


def _is_out(delivery: DeliveryRows) -> bool:
    return delivery.is_given and not delivery.is_over
