"""What reads splits, and the positions that a change feed hands out: shared by `Reader` and `ChangeFeed`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa

from spark_channel.planning import Split

__all__ = ["Read", "SplitReader", "Token"]

Token = Mapping[str, Any]
"""A position in a change feed: plain JSON data, understood by the reader that made it."""

Read = Callable[[Split], Iterator[pa.RecordBatch]]
"""`Reader.read`, or one that shares something with the splits before."""


class SplitReader(ABC):
    """Reads the splits that its kind makes."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Executor, in a separate thread, any number of times per split. Batches in `schema()`.

        A generator: what it opened is released in `finally`, since it is closed early when the host
        wants no more. It runs in several threads of one process at once, each with its own split.

        Raises:
            SourceError: gone, unreadable, or a row that does not fit, named with its place.
        """

    def reading(self) -> AbstractContextManager[Read]:
        """Executor: gives one thread a `read` for several splits, one after another.

        What they can share, such as a connection, is opened when first needed, and released at the end. The
        default shares nothing.
        """
        return nullcontext(self.read)
