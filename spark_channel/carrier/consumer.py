"""What a user writes to consume a carrier."""

from abc import ABC, abstractmethod

import pyarrow as pa

__all__ = ["Consumer"]


class Consumer(ABC):
    """Takes batches from a carrier, in a thread that the carrier or a pool provides.

    Handed to `DataCarrier.consume` as an object, it is shared by the threads: `init` and `on_exit` run
    once, `consume` in all of them at once. Handed over as a class (or any callable that makes one),
    each thread has its own, made and used in that thread alone - as a database connection wants it.

    An exception that is not an `Exception` (`SystemExit`) fails the carrier, from whichever method.
    """

    def init(self) -> None:  # noqa: B027 - optional: most consumers have nothing to set up
        """Called once, before the first `consume`, in a consumer thread.

        If it raises, the carrier fails with that error: producers raise it, nothing is consumed, and
        `on_exit` is not called.
        """

    @abstractmethod
    def consume(self, batches: list[pa.RecordBatch]) -> None:
        """Process `batches`, never empty, in the order of their channel. You may keep the list."""

    def on_idle(self) -> None:  # noqa: B027 - optional: for one that buffers
        """Nothing is left to consume: flush what is buffered. Called once after a `consume`, in its thread.

        Not at each short gap: a lull of twice the usual time between two calls is waited for, from 10 ms up to
        1 s. Where several threads share a channel, it is called as soon as the channel is empty. If it raises,
        the carrier fails.
        """

    def on_error(self, batches: list[pa.RecordBatch], error: Exception) -> None:
        """`consume` raised `error` over these very `batches`, which no one else will see.

        Return, and the thread continues with the next batches. Raise, and the carrier fails with what
        was raised. The default raises `error`, since rows must not be lost in silence.
        """
        raise error

    def on_exit(self) -> None:  # noqa: B027 - optional, as `init`
        """Called once, after the last `consume`, if `init` had returned; also when the carrier failed.

        If it raises, the carrier fails with that error, so that `shutdown` tells of a lost last flush.
        """
