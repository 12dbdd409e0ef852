"""Reads splits, and the positions of a change feed: shared by `Reader` and `ChangeFeed`."""

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
    """Reads splits. `Reader` also makes them."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Executor, in a separate thread, any number of times per split. Batches in `schema()`.

        A generator. It must release its resources in `finally`, because the host closes it early when it needs
        no more rows. It runs in several threads of one process at the same time, each with its own split.

        Raises:
            SourceError: removed, unreadable, or a row that does not fit; the message names its position.
        """

    def reading(self) -> AbstractContextManager[Read]:
        """Executor: a context that gives one thread a `read` for several splits, one after another.

        It opens what they share, such as a connection, when first needed, and releases it at the end. The
        default shares nothing.
        """
        return nullcontext(self.read)
