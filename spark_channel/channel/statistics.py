"""What a channel counted, as one consistent snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ChannelStatistics"]


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """All counters of a channel at one instant, taken under its lock.

    Always true: `rows_pushed == rows_pulled + rows_dropped + rows_stored`, and the same in bytes.
    Bytes are Arrow bytes, `RecordBatch.nbytes`.
    """

    rows_pushed: int
    """Rows published: pushed, or put and committed."""
    bytes_pushed: int
    """Bytes of `rows_pushed`."""
    rows_pulled: int
    """Rows that left for good: pulled, or taken and committed."""
    bytes_pulled: int
    """Bytes of `rows_pulled`."""
    rows_failed: int
    """Rows that a push or commit did not publish because it raised (closed, failed, no room, limit lost);
    a commit that is tried again counts each time."""
    bytes_failed: int
    """Bytes of `rows_failed`."""
    rows_rejected: int
    """Rows that `overflow="reject"` turned away."""
    bytes_rejected: int
    """Bytes of `rows_rejected`."""
    rows_dropped: int
    """Published rows that `overflow="overwrite"` dropped to make room."""
    bytes_dropped: int
    """Bytes of `rows_dropped`."""
    put_attempts: int
    """Batches handed to `push`, `push_all` or `put`."""
    put_successes: int
    """Batches published whole; those of a transaction count at its commit."""
    take_attempts: int
    """Calls of `pull`, `pull_all`, `drain` and `take`."""
    take_successes: int
    """Calls of `pull`, `pull_all` and `drain` that returned a batch, and of `take` once committed."""
    transactions_abandoned: int
    """Transactions that a thread left open when it ended; they were rolled back."""
    rows_stored: int
    """Rows in the channel, those that open transactions have taken included."""
    bytes_stored: int
    """Bytes of `rows_stored`."""
    rows_held: int
    """The part of `rows_stored` that open transactions have taken; a rollback returns it."""
    bytes_held: int
    """Bytes of `rows_held`."""
    rows_reserved: int
    """Room promised to producers that still wait for the limit."""
    bytes_reserved: int
    """Bytes of `rows_reserved`."""
    capacity_rows: int
    """The most rows stored and reserved."""
    capacity_bytes: int
    """The most bytes stored and reserved, except for one larger row that passes alone."""
    wait_reader_seconds: float
    """Time consumers waited for a batch (DataX's waitReaderTime), waits under way included."""
    wait_writer_seconds: float
    """Time producers waited for room (DataX's waitWriterTime), waits under way included."""
    throttled_seconds: Mapping[str, float] = field(default_factory=dict)
    """Time producers waited for the limit, by the limiter's reason, waits under way included. A copy."""
