"""One range of one channel: read ahead by one thread into bounded memory, processed by others.

A range of a feed of several tables is one delivery for each table that has rows in it. They are handed out when the
range is read, since only then each of them is whole: so none waits for rows that come behind those of another. Where
the memory does not hold the range, the largest delivery is handed out while it is read, and the rows of others are
left out, as far as they do not fit; they are read once more, when what was handed out is over.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from enum import IntEnum
from typing import cast

import pyarrow as pa

from spark_channel.channel import Limiter
from spark_channel.channel.size import arrow_bytes
from spark_channel.connectors.contracts import Token
from spark_channel.connectors.feed import TABLE, ChangeFeed
from spark_channel.pipeline import ReadCancelledError
from spark_channel.pipeline.conform import conform
from spark_channel.planning import Split
from spark_channel.tunnel.budget import Budget
from spark_channel.tunnel.delivery_rows import DeliveryRows

__all__ = ["RangeRead", "Stage"]

_ANY_NUMBER = 1 << 62
"""The rows and bytes of one table's delivery, which only the memory of its client bounds."""


class Stage(IntEnum):
    """How far a range is."""

    READ = 1
    """It is read, or was; no processor has seen a row of it."""
    FIXED = 2
    """Its end is in the store."""
    GIVEN = 3
    """It is the pool's to process."""
    BUSY = 4
    """It is being processed."""
    DONE = 5
    """It is processed, and its checkpoint is not taken."""


class RangeRead:
    """From `start` to `end`. `rows` and `nbytes`: what was read so far.

    Args:
        done: of a feed of several tables, those whose rows of this range are processed already; None: of one table.
        room_wanted: called by the thread that reads, when it waits for memory and nothing of the range is processed.
    """

    def __init__(
        self, feed: ChangeFeed, sequence: int, start: Token, end: Token, splits: Sequence[Split], budget: Budget, *,
        capacity_rows: int, capacity_bytes: int, limit: Limiter | None = None, done: Collection[str] | None = None,
        room_wanted: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.sequence = sequence
        self.start = start
        self.stage = Stage.READ
        self.began = self.read_took = self.took = 0.0
        self.end = end
        self.rows = self.nbytes = 0
        self.lost: Exception | None = None
        """What ended the reading of several tables before its end; of one, its delivery has it."""
        self._feed = feed
        self._splits = splits
        self._by_table = done is not None
        self._done = frozenset(done or ())
        self._room_wanted = room_wanted
        self._lock = threading.Lock()
        self._deliveries: dict[str, DeliveryRows] = {}
        self._left_out: set[str] = set()
        self._rows_of: dict[str, int] = {}
        self._put_table = ""
        self._is_read = self._is_full = self._is_withdrawn = self._has_ended = False
        self._share = budget.share(self._make_room if self._by_table else None)
        self._limit = limit
        self._capacity = capacity_rows, capacity_bytes
        if not self._by_table:
            self._begin("")

    # --- what is read

    def fill(self) -> None:
        """Read it to its end; an error is the processor's to meet."""
        schema = self._feed.schema()
        try:
            with self._feed.reading() as read:
                for split in self._splits:
                    batches = read(split)
                    with contextlib.closing(cast("Generator[pa.RecordBatch]", batches)):
                        for batch in batches:
                            fitting = batch if self._feed.has_tables else conform(batch, schema)
                            nbytes = arrow_bytes(fitting)
                            self._count(fitting)
                            self._put(fitting, nbytes)
                            self.rows += fitting.num_rows
                            self.nbytes += nbytes
        except BaseException as error:
            if self._by_table and isinstance(error, Exception):
                self.lost = error
            for each in self._all():
                each.carrier.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            with self._lock:
                self._is_read = True
            for each in self._all():
                each.carrier.close()

    def _count(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            table = str(batch.column(TABLE)[0].as_py()) if self._by_table else ""
            with self._lock:
                self._rows_of[table] = self._rows_of.get(table, 0) + batch.num_rows

    def rows_by_table(self) -> Mapping[str, int]:
        """What was read so far, whoever has it now; under "" of a feed of one table."""
        with self._lock:
            return dict(self._rows_of)

    def _put(self, batch: pa.RecordBatch, nbytes: int) -> None:
        if not self._by_table:
            self._deliveries[""].put(batch, nbytes)
            return
        if self._is_withdrawn:
            raise ReadCancelledError("the read was cancelled: its rows are not wanted any more")
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
        made = DeliveryRows(self._share, self._limit, table, capacity_rows=rows, capacity_bytes=nbytes)
        with self._lock:
            self._deliveries[table] = made
        return made

    def _make_room(self) -> bool:
        """Memory is full: have the largest delivery processed, or leave out what waits while its processor does."""
        with self._lock:
            taken = next((each for each in self._deliveries.values() if _is_out(each)), None)
            self._is_full = True
            largest = None if taken is None or taken.kept_rows > 0 else self._largest()
            if largest is not None:
                del self._deliveries[largest.table]
                self._left_out.add(largest.table)
        if taken is None and self._room_wanted is not None:
            self._room_wanted()
        if largest is not None:
            largest.close()
        # What is put at this moment may have been left out: it must not be paid any more.
        return largest is not None and largest.table != self._put_table

    def _largest(self) -> DeliveryRows | None:
        found = [each for each in self._deliveries.values() if not each.is_given and each.kept_rows]
        return max(found, key=lambda each: each.kept_rows, default=None)

    # --- what is handed out

    def to_give(self) -> list[DeliveryRows]:
        """What is to be processed from now on; each delivery once."""
        with self._lock:
            if self._is_withdrawn or self.lost is not None:
                return []
            found = [each for each in self._deliveries.values() if not each.is_given]
            if self._by_table and not self._is_read:
                largest = self._largest()
                waits = self._is_full and not any(map(_is_out, self._deliveries.values()))
                found = [largest] if waits and largest is not None else []
            for each in found:
                each.is_given = True
            return found

    def over(self, delivery: DeliveryRows, *, is_processed: bool, error: BaseException | None = None) -> None:
        """No processor has it any more."""
        with self._lock:
            delivery.is_processed, delivery.error, delivery.is_over = is_processed, error, True

    def ends(self) -> bool:
        """Whether all that was handed out is over, and nothing else will be: true once."""
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
        if any(map(_is_out, self._deliveries.values())):
            return False
        if self._is_withdrawn or self.lost is not None:
            return True
        return (self._is_read or not self._by_table) and all(
            each.is_over for each in self._deliveries.values()
        )

    @property
    def is_processed(self) -> bool:
        """Whether processors took all that is in it."""
        with self._lock:
            if self._by_table and (not self._is_read or self._left_out):
                return False
            return all(each.is_processed for each in self._deliveries.values())

    def processed_tables(self) -> set[str]:
        """Those whose rows processors took, in whole."""
        with self._lock:
            return {each.table for each in self._deliveries.values() if each.is_processed}

    def outcome(self, table: str) -> bool | None:
        """Whether a table's rows were processed; None: that is not known yet."""
        with self._lock:
            found = self._deliveries.get(table)
            return found.is_processed if found is not None and found.is_over else None

    def failed(self) -> list[DeliveryRows]:
        """Those that ended with an error."""
        with self._lock:
            return [each for each in self._deliveries.values() if each.error is not None]

    @property
    def given_rows(self) -> int:
        """What processors took."""
        return sum(each.rows for each in self._all())

    def withdraw(self) -> None:
        """Hand out no more of it."""
        with self._lock:
            self._is_withdrawn = True

    def cancel(self) -> None:
        """Wake and end whoever reads or takes it. Safe after its end, and twice."""
        self.withdraw()
        for each in self._all():
            each.close()
        self._share.close()

    def _all(self) -> list[DeliveryRows]:
        with self._lock:
            return list(self._deliveries.values())


def _is_out(delivery: DeliveryRows) -> bool:
    return delivery.is_given and not delivery.is_over
