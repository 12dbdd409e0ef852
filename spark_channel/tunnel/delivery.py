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

    `batches` is read while it is iterated; what the processor leaves unread counts as processed. With option `tables`,
    each batch is of one table, which its column `_table` names.
    """

    tunnel: str
    channel: str
    sequence: int
    is_base: bool
    start: Token
    end: Token
    batches: Iterator[pa.RecordBatch]


@runtime_checkable
class Processor(Protocol):
    """What a consumer calls; a plain function serves as `process` alone."""

    def process(self, delivery: Delivery) -> None:
        """Take a range. It is checkpointed when this returns, and delivered again when it raises."""

    def shutdown(self, channel: str) -> None:
        """No more of `channel` comes here: it is drained or parked, another client has it, or `consume` ends."""
