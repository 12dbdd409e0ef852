"""What a channel has counted so far. Used under the channel's lock."""

__all__ = ["Counters"]


class Counters:
    """Sums since the channel was made; `ChannelStatistics` says what each means."""

    __slots__ = (
        "bytes_dropped",
        "bytes_failed",
        "bytes_pulled",
        "bytes_pushed",
        "bytes_rejected",
        "put_attempts",
        "put_successes",
        "rows_dropped",
        "rows_failed",
        "rows_pulled",
        "rows_pushed",
        "rows_rejected",
        "take_attempts",
        "take_successes",
        "throttled_seconds",
        "transactions_abandoned",
        "wait_reader_seconds",
        "wait_writer_seconds",
    )

    def __init__(self) -> None:
        self.rows_pushed = self.bytes_pushed = 0
        self.rows_pulled = self.bytes_pulled = 0
        self.rows_failed = self.bytes_failed = 0
        self.rows_rejected = self.bytes_rejected = 0
        self.rows_dropped = self.bytes_dropped = 0
        self.put_attempts = self.put_successes = 0
        self.take_attempts = self.take_successes = 0
        self.transactions_abandoned = 0
        self.wait_reader_seconds = 0.0
        self.wait_writer_seconds = 0.0
        self.throttled_seconds: dict[str, float] = {}

    def failed(self, rows: int, nbytes: int) -> None:
        self.rows_failed += rows
        self.bytes_failed += nbytes

    def rejected(self, rows: int, nbytes: int) -> None:
        self.rows_rejected += rows
        self.bytes_rejected += nbytes

    def dropped(self, rows: int, nbytes: int) -> None:
        self.rows_dropped += rows
        self.bytes_dropped += nbytes

    def throttled(self, reason: str, seconds: float) -> None:
        self.throttled_seconds[reason] = self.throttled_seconds.get(reason, 0.0) + seconds
