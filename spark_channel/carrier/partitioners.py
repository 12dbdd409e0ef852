"""Which channel a batch goes to."""

import threading
from typing import Literal, Protocol

import pyarrow as pa

__all__ = ["Partitioner", "PartitionerName", "RollingPartitioner", "ThreadPartitioner", "named_partitioner"]

PartitionerName = Literal["rolling", "thread"]


class Partitioner(Protocol):
    """Any callable that gives the index of a batch's channel.

    It is called by producer threads, several at once, without a lock. What it raises reaches that
    producer, and nothing was published. A partitioner whose choice is a preference and not a promise
    has a true attribute `may_try_others`: under `overflow="reject"` the carrier then offers a refused
    batch once to each other channel.
    """

    def __call__(self, batch: pa.RecordBatch, channels: int, /) -> int:
        """An index from 0 to `channels - 1`."""
        ...


class RollingPartitioner:
    """Each channel in turn, over all producers."""

    may_try_others = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = -1

    def __call__(self, batch: pa.RecordBatch, channels: int) -> int:
        with self._lock:
            self._turn = (self._turn + 1) % channels
            return self._turn


class ThreadPartitioner:
    """One channel for all batches of one producer thread, so that their order is kept.

    Threads get the channels in turn as they first produce: identities modulo the number of channels
    would not do, since they are addresses with a common factor.
    """

    may_try_others = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._mine = threading.local()

    def __call__(self, batch: pa.RecordBatch, channels: int) -> int:
        place: int | None = getattr(self._mine, "place", None)
        if place is None:
            with self._lock:
                place = self._threads
                self._threads += 1
            self._mine.place = place
        return place % channels


def named_partitioner(partitioner: PartitionerName | Partitioner) -> Partitioner:
    """The partitioner of that name, or the callable itself.

    Raises:
        ValueError: neither a known name nor a callable.
    """
    if partitioner == "rolling":
        return RollingPartitioner()
    if partitioner == "thread":
        return ThreadPartitioner()
    if callable(partitioner):
        return partitioner
    raise ValueError(
        f'partitioner={partitioner!r} is not "rolling", "thread", or a callable of (batch, channels)'
    )
