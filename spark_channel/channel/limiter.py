"""What a channel asks of a limit. Implemented by `limits.Meter` and by the service's client.

A limiter never blocks: it says how long to wait, and the channel waits on its own condition, so that
`close()` and `fail()` wake a payer at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Limiter", "Payment", "Wait"]


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a payment still has to wait.

    `seconds`: 0.0 = paid, go; None = unknown, until the limiter calls `wake`. `reason` names the
    dimension that makes it wait: "rows", "bytes", "grant", "paused", ...
    """

    seconds: float | None
    reason: str = ""


class Payment(Protocol):
    """One amount on its way to being paid."""

    def remaining(self) -> Wait:
        """The wait from now. Once it has answered 0.0, the amount is spent and it stays 0.0.

        Called by the waiting thread whenever its wait ends or `wake` was called. Raises
        `LimitError` when the limit can no longer be kept.
        """
        ...

    def cancel(self) -> None:
        """Return what was not spent; has no effect after it was paid, or when called twice."""
        ...


class Limiter(Protocol):
    """A limit in rows and bytes per second."""

    def slice_size(self) -> tuple[int | None, int | None]:
        """The largest (rows, bytes) that one payment should carry, about 20 ms of the limit.

        None = unbounded in that dimension. At least 1. A hint: the channel slices larger batches
        so that the flow is even, and a payment above it is still honoured.
        """
        ...

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> Payment:
        """Begin to pay. First come, first served.

        `wake` may be called from any thread, with none of the limiter's locks held, when
        `remaining()` may have changed (a rate was set, a grant arrived, a pause ended). `remaining()`
        and `cancel()` may be called with the channel's lock held, so they must not call `wake`
        in the same call chain.
        """
        ...
