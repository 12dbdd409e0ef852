"""The whole of a channel's inside, shared by `MemoryChannel` and its transactions."""

from spark_channel.channel.claims import ResizeClaim
from spark_channel.channel.committing import Committing
from spark_channel.channel.consuming import Consuming
from spark_channel.channel.overflow import Overflow
from spark_channel.channel.state import Callback
from spark_channel.channel.statistics import ChannelStatistics
from spark_channel.errors import ChannelFullError

__all__ = ["Core"]


class Core(Consuming, Committing):
    """Producing, consuming and transactions, and what changes or looks at a live channel."""

    # ---- changes

    def close(self) -> None:
        self._atomic(self._close)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._wake_all()

    def fail(self, error: BaseException) -> None:
        self._atomic(self._set_error, error)

    def resize(
        self,
        capacity_rows: int | None,
        capacity_bytes: int | None,
        transaction_rows: int | None,
        keep_alive: float | None,
    ) -> None:
        self._atomic(self._resize, capacity_rows, capacity_bytes, transaction_rows, keep_alive)

    def _resize(
        self,
        capacity_rows: int | None,
        capacity_bytes: int | None,
        transaction_rows: int | None,
        keep_alive: float | None,
    ) -> None:
        self._raise_if_failed()

        def settle() -> None:
            if transaction_rows is not None:
                self._transaction_rows = transaction_rows
            if keep_alive is not None:
                self.keep_alive = keep_alive

        room = self._room
        least = self._transaction_rows if transaction_rows is None else transaction_rows
        rows = room.capacity_rows if capacity_rows is None else capacity_rows
        if least is not None and rows < least:
            raise ValueError(f"capacity_rows={rows} is below transaction_rows={least}")
        for other in self._claims:  # one that waits is granted later, whatever was changed meanwhile
            if isinstance(other, ResizeClaim):
                theirs = other.capacity_rows, other.transaction_rows
                if (least or 0) > (theirs[0] or rows) or (theirs[1] or 0) > rows:
                    raise ValueError(
                        f"capacity_rows={rows} and transaction_rows={least} contradict a resize that waits, "
                        f"to capacity_rows={theirs[0]} and transaction_rows={theirs[1]}"
                    )
        claim = ResizeClaim(capacity_rows, capacity_bytes, transaction_rows, settle)
        patience = self.keep_alive if keep_alive is None else keep_alive
        if not self._wait_for_room(claim, patience):
            rows, nbytes = claim.target(room)
            raise ChannelFullError(
                f"cannot shrink to {rows} rows, {nbytes} bytes: after {patience:g} s, "
                f"{room.used_rows} rows, {room.used_bytes} bytes are in use"
            )

    def set_overflow(self, overflow: Overflow) -> None:
        self._atomic(self._set_overflow, overflow)

    def _set_overflow(self, overflow: Overflow) -> None:
        self._overflow = overflow
        self._room.evicting = overflow is Overflow.OVERWRITE

    def add_listener(self, callback: Callback) -> None:
        with self._lock:
            self._listeners = (*self._listeners, callback)

    def remove_listener(self, callback: Callback) -> None:
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known != callback)

    def add_block_listener(self, callback: Callback) -> None:
        with self._lock:
            self._block_listeners = (*self._block_listeners, callback)

    def remove_block_listener(self, callback: Callback) -> None:
        with self._lock:
            self._block_listeners = tuple(known for known in self._block_listeners if known != callback)

    # ---- looking

    @property
    def overflow(self) -> Overflow:
        with self._lock:
            return self._overflow

    @property
    def capacity_rows(self) -> int:
        with self._lock:
            return self._room.capacity_rows

    @property
    def capacity_bytes(self) -> int:
        with self._lock:
            return self._room.capacity_bytes

    @property
    def transaction_rows(self) -> int:
        with self._lock:
            return self._most_transaction_rows()

    @property
    def backlog(self) -> int:
        with self._lock:
            return self._stock.rows

    @property
    def closed(self) -> bool:
        with self._lock:
            return self._closed

    @property
    def ended(self) -> bool:
        with self._lock:
            return self._error is not None or self._has_ended()

    def statistics(self) -> ChannelStatistics:
        with self._lock:
            now = self._clock.now()
            room, counters = self._room, self._counters
            throttled = dict(counters.throttled_seconds)
            for payer in self._payers:
                if payer.since is not None:
                    throttled[payer.reason] = throttled.get(payer.reason, 0.0) + now - payer.since
            writers = (c.since for c in self._claims if c.produces and c.since is not None)
            return ChannelStatistics(
                rows_pushed=counters.rows_pushed,
                bytes_pushed=counters.bytes_pushed,
                rows_pulled=counters.rows_pulled,
                bytes_pulled=counters.bytes_pulled,
                rows_failed=counters.rows_failed,
                bytes_failed=counters.bytes_failed,
                rows_rejected=counters.rows_rejected,
                bytes_rejected=counters.bytes_rejected,
                rows_dropped=counters.rows_dropped,
                bytes_dropped=counters.bytes_dropped,
                put_attempts=counters.put_attempts,
                put_successes=counters.put_successes,
                take_attempts=counters.take_attempts,
                take_successes=counters.take_successes,
                transactions_abandoned=counters.transactions_abandoned,
                rows_stored=room.stock.rows + room.held_rows,
                bytes_stored=room.stock.nbytes + room.held_bytes,
                rows_held=room.held_rows,
                bytes_held=room.held_bytes,
                rows_reserved=room.reserved_rows,
                bytes_reserved=room.reserved_bytes,
                capacity_rows=room.capacity_rows,
                capacity_bytes=room.capacity_bytes,
                wait_reader_seconds=counters.wait_reader_seconds
                + sum(now - reader.since for reader in self._readers),
                wait_writer_seconds=counters.wait_writer_seconds + sum(now - since for since in writers),
                throttled_seconds=throttled,
            )
