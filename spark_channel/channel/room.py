"""The channel's room in rows and bytes, and who occupies it. Used under the channel's lock."""

from spark_channel.channel.stock import Stock

__all__ = ["Room"]


class Room:
    """Rows and bytes: in stock, held by open transactions, reserved by those who still pay.

    `evicting`: the oldest stock may be dropped to make room.
    """

    __slots__ = (
        "capacity_bytes",
        "capacity_rows",
        "evicting",
        "held_bytes",
        "held_rows",
        "reserved_bytes",
        "reserved_rows",
        "stock",
    )

    def __init__(self, capacity_rows: int, capacity_bytes: int, *, evicting: bool) -> None:
        self.capacity_rows = capacity_rows
        self.capacity_bytes = capacity_bytes
        self.evicting = evicting
        self.stock = Stock()
        self.held_rows = self.held_bytes = 0
        self.reserved_rows = self.reserved_bytes = 0

    @property
    def used_rows(self) -> int:
        return self.stock.rows + self.held_rows + self.reserved_rows

    @property
    def used_bytes(self) -> int:
        return self.stock.nbytes + self.held_bytes + self.reserved_bytes

    def fits(self, rows: int, nbytes: int, freed_rows: int = 0, freed_bytes: int = 0) -> bool:
        """Is there room, once `freed_*` is given back? One row larger than the channel needs it empty."""
        stock = self.stock  # sums spelled out: this is on the path of every push
        used_rows = stock.rows + self.held_rows + self.reserved_rows - freed_rows
        used_bytes = stock.nbytes + self.held_bytes + self.reserved_bytes - freed_bytes
        if used_rows + rows <= self.capacity_rows and used_bytes + nbytes <= self.capacity_bytes:
            return True
        return rows == 1 and used_rows == 0

    def make(
        self, rows: int, nbytes: int, freed_rows: int = 0, freed_bytes: int = 0
    ) -> tuple[int, int] | None:
        """Like `fits`, dropping the oldest stock if need be and `evicting`.

        Rows and bytes that were dropped; None = there is no room, and nothing was dropped.
        """
        if self.fits(rows, nbytes, freed_rows, freed_bytes):
            return 0, 0
        stock = self.stock
        if not (
            self.evicting and self.fits(rows, nbytes, freed_rows + stock.rows, freed_bytes + stock.nbytes)
        ):
            return None
        if nbytes > self.capacity_bytes:
            return stock.evict(stock.rows, stock.nbytes)
        return stock.evict(
            self.used_rows - freed_rows + rows - self.capacity_rows,
            self.used_bytes - freed_bytes + nbytes - self.capacity_bytes,
        )
