"""What operators watch: each queue of a carrier, and each thread of a pool."""

from dataclasses import dataclass

from spark_channel.channel import ChannelStatistics

__all__ = ["CarrierMetrics", "PoolThreadMetrics"]


@dataclass(frozen=True, slots=True)
class CarrierMetrics:
    """A carrier at one moment. `queues` are its channels by the partitioner's index, each at its own instant."""

    queues: tuple[ChannelStatistics, ...]
    backlog_rows: int
    """Rows that wait to be consumed."""
    consume_calls: int
    """Calls of the present consumer's `consume`."""
    consumed_rows: int
    """Their rows."""
    consume_seconds: float
    """The time that they took."""


@dataclass(frozen=True, slots=True)
class PoolThreadMetrics:
    """One thread of a pool at one moment."""

    name: str
    carriers: int
    """Carriers that it serves."""
    backlog_rows: int
    """Rows that wait for it, those it is busy with included."""
    busy_seconds: float
    """Time in consumers."""
    carriers_taken: int
    """Carriers that it took from threads that were busy."""
