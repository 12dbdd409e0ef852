"""A consumer's life: made and set up once before its first batch, left once after its last."""

import threading
from collections.abc import Callable

from spark_channel.carrier.consumer import Consumer

__all__ = ["Lifecycle"]


class Lifecycle:
    """`init` before any thread consumes, `on_exit` after the last of `threads` has left.

    Each of the threads calls `enter` once and, whatever came of it, `leave` once. A consumer that is not
    `shared` belongs to the thread that made it: another thread may go on with another one, after `hand_over`.
    """

    def __init__(self, make: Callable[[], Consumer], threads: int, *, shared: bool = False) -> None:
        self._make = make
        self.shared = shared
        self._lock = threading.Lock()
        self._threads = threads
        self._consumer: Consumer | None = None
        self._error: BaseException | None = None

    def enter(self) -> Consumer:
        """The consumer, set up. Raises what making it or its `init` raised, in every thread."""
        with self._lock:  # held during init: the other threads have nothing to do before it is through
            if self._error is not None:
                raise self._error
            if self._consumer is None:
                try:
                    consumer = self._make()
                    if not isinstance(consumer, Consumer):
                        raise TypeError(f"the callable that makes consumers gave {consumer!r}")
                    consumer.init()
                except BaseException as error:
                    self._error = error
                    raise
                self._consumer = consumer
            return self._consumer

    def leave(self) -> None:
        """Raises what `on_exit` raised, in the last thread."""
        with self._lock:
            self._threads -= 1
            last = self._threads == 0
            consumer = self._consumer
        if last and consumer is not None:
            consumer.on_exit()

    def hand_over(self) -> None:
        """The end of this thread's own consumer: `enter` makes another. Raises what `on_exit` raised."""
        with self._lock:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.on_exit()
