"""Small tables that one run copies between the same two databases: looked at together, and published together."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.claims import Follows, StreamProgress
from spark_channel.connectors.base.contract import Reader, Writer

__all__ = ["MOST_BYTES", "ReadTable", "SmallTable", "Together"]

MOST_BYTES = 256 << 10
"""The Arrow bytes of a table that is copied together with others: its rows are in memory until they are published."""


@dataclass(eq=False)
class SmallTable:
    """One of the tables, whose rows replace those of its target.

    `job` names the run, as claims keep it, and `label` is its name for people.

    `look` fills the fields from `known` on; `key` is the primary key that the target has, or is made with. `position`
    is then set by the caller: the batch of `stream` to publish. It may also set `condition`, which the rows that are
    read meet, and `follows`: see `Follows`.
    """

    reader: Reader
    writer: Writer
    stream: str
    label: str
    job: str
    known: StreamProgress | None = None
    is_there: bool = False
    key: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    schema: pa.Schema | None = None
    plan: Any = None
    position: int = 0
    condition: str | None = None
    follows: Follows | None = None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    published_at: str | None = None
    """When the batch was published; None = it was not. With `is_new`, by this call."""
    is_new: bool = False
    why: Exception | None = None
    """Why it has to be copied alone, where that is known; the copy meets the same error, or finds another way."""

    @property
    def is_left(self) -> bool:
        """Whether it is still to be copied with the others."""
        return self.why is None and self.published_at is None


ReadTable = Callable[[SmallTable], Iterator[pa.RecordBatch]]


class Together(ABC):
    """Copies small tables whose options are the same, but for the table's name.

    Any method may raise: then each table is copied alone.
    """

    @abstractmethod
    def look(self, tables: Sequence[SmallTable]) -> None:
        """Look both ends up, and change nothing. Tables that must be copied alone get a `why`."""

    @abstractmethod
    def reading(self, *, at_once: bool) -> AbstractContextManager[ReadTable]:
        """A session, as what reads the rows of one table by it.

        `at_once`: nothing is waited for between two tables, so a transaction may hold all.
        """

    @abstractmethod
    def publish(self, tables: Sequence[SmallTable]) -> None:
        """Publish all of `tables` that are left, each with its position, in one transaction.

        One that is refused gets a `why`, and the others are published without it. Nothing of a table with a `why` is
        in the target.
        """
