"""One thread's part of a carrier: its channels, its consumer, and the bell they ring."""

import threading
from collections.abc import Callable, Hashable, Sequence

import pyarrow as pa

from spark_channel.carrier.consumer import Consumer
from spark_channel.carrier.doorbell import Doorbell
from spark_channel.carrier.lifecycle import Lifecycle
from spark_channel.channel import MemoryChannel
from spark_channel.errors import EndOfChannel

__all__ = ["Station"]


class Station:
    """Takes what its channels have and hands it to the consumer.

    One thread at a time runs `enter`, `serve` and `leave`. `peers` is how many stations, itself
    included, share one channel and its bell; alone it takes all that is there.

    Args:
        fail: told of an error that ends the carrier.
        over: called once, when this station is through.
    """

    def __init__(
        self,
        channels: Sequence[MemoryChannel],
        lifecycle: Lifecycle,
        *,
        peers: int = 1,
        linger: float = 0.0,
        fail: Callable[[BaseException], None],
        over: Callable[[], None],
    ) -> None:
        self.channels = tuple(channels)
        self._lifecycle = lifecycle
        self._peers = peers
        self._linger = linger
        self._fail = fail
        self._over = over
        self._consumer: Consumer | None = None
        self._bell: Doorbell[Hashable] | None = None
        self._lock = threading.Lock()
        self._stopping = False
        self._rows_in_hand = 0

    @property
    def key(self) -> Hashable:
        """What rings the bell: peers answer the same ring, whichever of them is free."""
        return self if self._peers == 1 else self.channels[0]

    @property
    def rows_in_hand(self) -> int:
        """Rows that the consumer is busy with."""
        with self._lock:
            return self._rows_in_hand

    @property
    def backlog(self) -> int:
        """Rows that wait for this station, and those it is busy with."""
        return self.rows_in_hand + sum(channel.backlog for channel in self.channels)

    @property
    def is_free(self) -> bool:
        """Whether another thread may serve it next: its consumer is shared, or not made yet."""
        return self._lifecycle.shared or self._consumer is None

    def release(self) -> bool:
        """Have a consumer that belongs to this thread end, so that another thread may go on with its own.

        False: it raised, and the carrier has failed.
        """
        self._consumer = None
        try:
            self._lifecycle.hand_over()
        except BaseException as error:  # a lost last flush ends the carrier
            self._fail(error)
            return False
        return True

    def move(self, bell: Doorbell[Hashable]) -> None:
        """From now on another thread's bell is rung. What was published before is looked at there."""
        self._bell = bell
        self.hurry()

    def open(self, bell: Doorbell[Hashable]) -> None:
        """Listen to the channels, and look at once for what they have."""
        self._bell = bell
        for channel in self.channels:
            channel.add_listener(self._ring)
            if self._linger:
                channel.add_block_listener(self.hurry)
        self.hurry()

    def hurry(self) -> None:
        """Have the channels looked at now, lingering or not."""
        assert self._bell is not None
        self._bell.ring(self.key)

    def stop(self) -> None:
        """Take once more what is there, then be over."""
        with self._lock:
            self._stopping = True
        self.hurry()

    def enter(self) -> bool:
        """Set the consumer up. False: it cannot be, the carrier has failed."""
        if self._consumer is None:
            try:
                self._consumer = self._lifecycle.enter()
            except BaseException as error:  # it ends the carrier, not the thread
                self._fail(error)
                return False
        return True

    def serve(self) -> bool:
        """Consume what is there now. False: the station is through."""
        with self._lock:
            stopping = self._stopping
        try:
            ended = stopping or all(channel.ended for channel in self.channels)
            batches = self._take(everything=ended)
        except BaseException as error:  # one failed channel ends the carrier
            self._fail(error)
            return False
        if batches and not self._consume(batches):
            return False
        return not ended

    def leave(self) -> None:
        """Part from channels and consumer; a peer that still sleeps is woken to see the end too."""
        assert self._bell is not None
        for channel in self.channels:
            channel.remove_listener(self._ring)
            channel.remove_block_listener(self.hurry)
        if self._peers == 1:
            self._bell.forget(self)
        else:
            self.hurry()
        try:
            self._lifecycle.leave()
        except BaseException as error:  # a lost last flush ends the carrier
            self._fail(error)
        finally:
            self._over()

    def _ring(self) -> None:
        assert self._bell is not None
        lingers = self._linger and not all(channel.ended for channel in self.channels)
        self._bell.ring(self.key, self._linger if lingers else 0.0)

    def _take(self, *, everything: bool) -> list[pa.RecordBatch]:
        if self._peers == 1 or everything:
            return [batch for channel in self.channels for batch in channel.drain()]
        batches = _take_share(self.channels[0], self._peers)
        if self.channels[0].backlog:
            self.hurry()
        return batches

    def _consume(self, batches: list[pa.RecordBatch]) -> bool:
        assert self._consumer is not None
        with self._lock:
            self._rows_in_hand = sum(batch.num_rows for batch in batches)
        try:
            self._consumer.consume(batches)
        except Exception as error:
            return self._tell(self._consumer, batches, error)
        except BaseException as error:  # SystemExit in a thread is lost otherwise
            self._fail(error)
            return False
        finally:
            with self._lock:
                self._rows_in_hand = 0
        return True

    def _tell(self, consumer: Consumer, batches: list[pa.RecordBatch], error: Exception) -> bool:
        try:
            consumer.on_error(batches, error)
        except BaseException as fatal:  # what on_error raises ends the carrier
            self._fail(fatal)
            return False
        return True


def _take_share(channel: MemoryChannel, peers: int) -> list[pa.RecordBatch]:
    """About one part in `peers` of the rows that are there, in whole batches, at least one batch."""
    share = -(-channel.backlog // peers)
    batches: list[pa.RecordBatch] = []
    rows = 0
    try:
        while rows < share and (batch := channel.pull(0)) is not None:
            batches.append(batch)
            rows += batch.num_rows
    except EndOfChannel:
        pass
    return batches
