"""What one transaction put and took, until its commit or rollback."""

import pyarrow as pa

from spark_channel.channel.counters import Counters
from spark_channel.channel.room import Room
from spark_channel.channel.sized_batch import Sized, SizedBatch

__all__ = ["Staged"]


class Staged:
    """The lists of a transaction with their sums.

    The transaction's thread alone uses it; while that thread waits for room, whoever makes the room
    commits it, under the channel's lock.
    """

    __slots__ = (
        "committed",
        "empty_puts",
        "paid_bytes",
        "paid_rows",
        "put_bytes",
        "put_rows",
        "puts",
        "taken_bytes",
        "taken_rows",
        "takes",
    )

    def __init__(self) -> None:
        self.puts: list[Sized] = []
        self.put_rows = self.put_bytes = self.empty_puts = 0
        self.takes: list[SizedBatch] = []
        self.taken_rows = self.taken_bytes = 0
        self.paid_rows = self.paid_bytes = 0
        self.committed = False

    def add_put(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        if not rows:
            self.empty_puts += 1  # it carries nothing, and succeeds with the others
            return
        self.puts.append((batch, rows, nbytes))
        self.put_rows += rows
        self.put_bytes += nbytes

    def add_take(self, entry: SizedBatch) -> None:
        self.takes.append(entry)
        self.taken_rows += entry.rows
        self.taken_bytes += entry.nbytes

    def owed(self) -> tuple[int, int]:
        """Rows and bytes of the puts that the limiter was not paid yet: a commit may be tried again."""
        return self.put_rows - self.paid_rows, self.put_bytes - self.paid_bytes

    def mark_paid(self) -> None:
        self.paid_rows, self.paid_bytes = self.put_rows, self.put_bytes

    def commit(self, room: Room, counters: Counters) -> list[Sized]:
        """The takes leave for good; returns the puts, which enter now. Under the lock."""
        puts = self.puts
        room.held_rows -= self.taken_rows
        room.held_bytes -= self.taken_bytes
        counters.rows_pulled += self.taken_rows
        counters.bytes_pulled += self.taken_bytes
        counters.take_successes += len(self.takes)
        counters.put_successes += len(puts) + self.empty_puts
        self._clear()
        self.committed = True
        return puts

    def roll_back(self, room: Room) -> None:
        """The takes return to the head; the puts were never in the channel. Under the lock."""
        room.held_rows -= self.taken_rows
        room.held_bytes -= self.taken_bytes
        room.queue.restore(self.takes)
        self._clear()

    def _clear(self) -> None:
        self.puts, self.takes = [], []
        self.put_rows = self.put_bytes = self.empty_puts = 0
        self.taken_rows = self.taken_bytes = 0
        self.paid_rows = self.paid_bytes = 0
