"""Threads that wait in a channel for a batch, or for the limit. Used under the channel's lock."""

import threading

from spark_channel.channel.capacity import Wait

__all__ = ["WaitingConsumer", "WaitingPayment", "is_paid"]


class WaitingConsumer:
    """One thread's wait for a batch."""

    __slots__ = ("condition", "since")

    def __init__(self, condition: threading.Condition, since: float) -> None:
        self.condition = condition
        self.since = since


class WaitingPayment:
    """One thread's wait for the limit. `wake` is what the limiter calls."""

    __slots__ = ("_lock", "condition", "reason", "since")

    def __init__(self, lock: threading.Lock, condition: threading.Condition) -> None:
        self._lock = lock
        self.condition = condition
        self.since: float | None = None
        self.reason = ""

    def wake(self) -> None:
        with self._lock:
            self.condition.notify()


def is_paid(wait: Wait) -> bool:
    """Whether nothing is left to wait for."""
    return wait.seconds is not None and wait.seconds <= 0
