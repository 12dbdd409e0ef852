"""The channel's room in rows and bytes, and who occupies it. Used under the channel's lock."""

from spark_channel.channel.batch_queue import BatchQueue

__all__ = ["Room"]


class Room:
    """Rows and bytes: in queue, held by open transactions, reserved by those who still pay.

    `evicting`: the oldest queue may be dropped to make room.
    """

    __slots__ = (
        "capacity_bytes",
        "capacity_rows",
        "evicting",
        "held_bytes",
        "held_rows",
        "queue",
        "reserved_bytes",
        "reserved_rows",
    )

    def __init__(self, capacity_rows: int, capacity_bytes: int, *, evicting: bool) -> None:
        self.capacity_rows = capacity_rows
        self.capacity_bytes = capacity_bytes
        self.evicting = evicting
        self.queue = BatchQueue()
        self.held_rows = self.held_bytes = 0
        self.reserved_rows = self.reserved_bytes = 0

    @property
    def used_rows(self) -> int:
        return self.queue.rows + self.held_rows + self.reserved_rows

    @property
    def used_bytes(self) -> int:
        return self.queue.nbytes + self.held_bytes + self.reserved_bytes

    def fits(self, rows: int, nbytes: int, freed_rows: int = 0, freed_bytes: int = 0) -> bool:
        """Is there room, once `freed_*` is given back? One row larger than the channel needs it empty."""
        queue = self.queue  # sums spelled out: this is on the path of every push
        used_rows = queue.rows + self.held_rows + self.reserved_rows - freed_rows
        used_bytes = queue.nbytes + self.held_bytes + self.reserved_bytes - freed_bytes
        if used_rows + rows <= self.capacity_rows and used_bytes + nbytes <= self.capacity_bytes:
            return True
        return rows == 1 and used_rows == 0

    def make(
        self, rows: int, nbytes: int, freed_rows: int = 0, freed_bytes: int = 0
    ) -> tuple[int, int] | None:
        """Like `fits`, dropping the oldest queue if need be and `evicting`.

        Rows and bytes that were dropped; None = the channel is full, and nothing was dropped.
        """
        if self.fits(rows, nbytes, freed_rows, freed_bytes):
            return 0, 0
        queue = self.queue
        if not (
            self.evicting and self.fits(rows, nbytes, freed_rows + queue.rows, freed_bytes + queue.nbytes)
        ):
            return None
        if nbytes > self.capacity_bytes:
            return queue.evict(queue.rows, queue.nbytes)
        return queue.evict(
            self.used_rows - freed_rows + rows - self.capacity_rows,
            self.used_bytes - freed_bytes + nbytes - self.capacity_bytes,
        )
