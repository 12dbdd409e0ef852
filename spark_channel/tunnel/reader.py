"""Separate calls to read and to checkpoint a tunnel, for programs that write their own loop."""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import ChannelLostError, FlowError
from spark_channel.pipeline import ReadCancelledError
from spark_channel.tunnel.channel import Delivery
from spark_channel.tunnel.worker import TunnelWorker

__all__ = ["TunnelReader"]


class _PendingDelivery:
    """A delivery without an outcome. `over` is set when it was processed or has failed."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.over = threading.Event()
        self.error: BaseException | None = None


class TunnelReader:
    """One client of a tunnel, as `Tunnel.open` makes it; safe to use from several threads.

        with orders.open(drained=True) as reader:
            while (delivery := reader.read()) is not None:
                for batch in delivery.batches:
                    ...
                reader.checkpoint(delivery)

    Each delivery is of another channel, or of another table of one: a channel's next range is read ahead, and
    delivered after the checkpoint of the one before. Leaving the block gives all channels back; a delivery without a
    checkpoint is delivered again, here or to another client.
    """

    def __init__(
        self, make: Callable[["TunnelReader"], TunnelWorker], *, clock: Clock | None = None
    ) -> None:
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._changed = threading.Condition()
        self._waiting: deque[_PendingDelivery] = deque()
        self._out: dict[tuple[str, int], _PendingDelivery] = {}
        self._closing = self._ended = False
        self._error: BaseException | None = None
        self._consumer = make(self)
        self._thread = threading.Thread(
            target=self._run, name="spark-channel-tunnel-reader", daemon=True
        )
        self._thread.start()

    def read(self, timeout: float | None = None) -> Delivery | None:
        """The next range of any channel; None when everything is drained, or nothing came within `timeout` seconds.

        Raises:
            TunnelError: the tunnel was deleted, or all that is left of it is parked. FlowError: this reader was closed.
            Anything: what ended the client, such as an error of the source.
        """
        until = None if timeout is None else self._clock.now() + timeout
        with self._changed:
            while not self._waiting:
                if self._closing:
                    raise FlowError("this reader of a tunnel was closed: open another one")
                if self._error is not None:
                    raise self._error
                remaining = None if until is None else until - self._clock.now()
                if self._ended or (remaining is not None and remaining <= 0):
                    return None
                self._clock.wait(self._changed, remaining)
            out = self._waiting.popleft()
            self._out[out.delivery.channel, out.delivery.sequence] = out
            return out.delivery

    def checkpoint(self, delivery: Delivery) -> None:
        """Note in the tunnel that `delivery` is processed, and wait until that is kept. Rows left unread count as
        processed. With option `tables`, only the last table of a range waits: the range is kept as a whole.

        Raises:
            ChannelLostError: its channel went to another client, or it could not be read to its end: it is
                delivered again.
            FlowError: it was checkpointed or failed before, or is not of this reader.
        """
        out = self._take(delivery, "checkpoint")
        note = self._consumer.keeping(delivery)
        out.over.set()
        if not note():
            raise ChannelLostError(
                f"range {delivery.sequence} of channel {delivery.channel} is not checkpointed: "
                "it was not read to its end, or its channel belongs to another client now. "
                "It is delivered again"
            )

    def fail(self, delivery: Delivery, error: Exception) -> None:
        """Have `delivery` delivered again, after a wait; a range that fails again and again parks its channel.

        Raises:
            FlowError: it was checkpointed or failed before, or is not of this reader.
        """
        out = self._take(delivery, "fail")
        out.error = error
        out.over.set()

    def close(self) -> None:
        """Give all channels back, and end. Safe twice."""
        with self._changed:
            self._closing = True
            out = [*self._out.values(), *self._waiting]
            self._out.clear()
            self._waiting.clear()
            self._changed.notify_all()
        self._consumer.stop()
        for pending in out:
            pending.error = pending.error or ReadCancelledError(
                "the reader was closed before a checkpoint"
            )
            pending.over.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def deliver(self, delivery: Delivery) -> None:
        """In a thread of the client: returns when the program has checkpointed it."""
        out = _PendingDelivery(delivery)
        with self._changed:
            if self._closing:
                raise ReadCancelledError("the reader was closed")
            self._waiting.append(out)
            self._changed.notify()
        out.over.wait()
        if out.error is not None:
            raise out.error

    def _take(self, delivery: Delivery, method: str) -> _PendingDelivery:
        with self._changed:
            out = self._out.get((delivery.channel, delivery.sequence))
            if out is None or out.delivery is not delivery:
                raise FlowError(
                    f"{method}() got range {delivery.sequence} of channel {delivery.channel}, "
                    "which this reader does not hold: call checkpoint() or fail() once for each delivery, "
                    "on the reader that returned it, before you close that"
                )
            del self._out[delivery.channel, delivery.sequence]
            return out

    def ending(self, error: BaseException | None) -> None:
        """The client begins to end: `read` no longer waits, and what was read can be checkpointed."""
        with self._changed:
            self._error = self._error or error
            self._ended = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._consumer.run()
        except BaseException as error:
            self.ending(error)
        else:
            self.ending(None)
