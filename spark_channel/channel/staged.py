"""What one transaction put and took, until its commit or rollback."""

import pyarrow as pa

from spark_channel.channel.parcel import Parcel

__all__ = ["Sized", "Staged"]

Sized = tuple[pa.RecordBatch, int, int]
"""A batch, its rows, its bytes."""


class Staged:
    """The lists of a transaction with their sums. Used by its own thread only."""

    __slots__ = (
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
        self.clear()

    def clear(self) -> None:
        self.puts: list[Sized] = []
        self.put_rows = self.put_bytes = 0
        self.takes: list[Parcel] = []
        self.taken_rows = self.taken_bytes = 0
        self.paid_rows = self.paid_bytes = 0

    def add_put(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        self.puts.append((batch, rows, nbytes))
        self.put_rows += rows
        self.put_bytes += nbytes

    def add_take(self, parcel: Parcel) -> None:
        self.takes.append(parcel)
        self.taken_rows += parcel.rows
        self.taken_bytes += parcel.nbytes
