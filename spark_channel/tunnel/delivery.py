"""The interface between a tunnel and the program that processes its rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from spark_channel.connectors.contracts import Token

__all__ = ["Delivery", "Processor"]


@dataclass(frozen=True)
class Delivery:
    """One range of one channel. (`channel`, `sequence`) names the same rows forever: a program that keeps it
    with the rows, in one transaction, has them once, also when the range is delivered again.

    `batches` is read while it is iterated; what the processor leaves unread counts as processed.

    With option `tables`, a range is one delivery for each table that has rows in it. `table` names it, and is empty
    otherwise; `channel` has the tunnel channel and the table, such as `stream-0/shop.orders`; `start` and `end` are
    those of the range.
    """

    tunnel: str
    channel: str
    sequence: int
    is_base: bool
    start: Token
    end: Token
    batches: Iterator[pa.RecordBatch]
    table: str = ""


@runtime_checkable
class Processor(Protocol):
    """What a consumer calls; a plain function serves as `process` alone."""

    def process(self, delivery: Delivery) -> None:
        """Take a range, or one table of it. It is delivered again when this raises, and has its checkpoint when this
        returned for all of its tables.
        """

    def shutdown(self, channel: str) -> None:
        """No more of `channel` comes here: it is drained or parked, another client has it, or `consume` ends."""
