"""`AllOf`: several limits at once, such as a job's own and one that it shares."""

from collections.abc import Callable, Iterable, Sequence

from spark_channel.channel.limiter import Limiter, Payment, Wait
from spark_channel.errors import OptionError

__all__ = ["AllOf"]


class AllOf:
    """A `Limiter` that pays every one of `limiters`; the longest wait counts, and its reason is told.

    What one of them has already set aside for a payment is not lost while another makes it wait.
    """

    def __init__(self, limiters: Sequence[Limiter]) -> None:
        if not limiters:
            raise OptionError("AllOf takes at least one limiter", option="limiters", takes="one or more")
        self._limiters = tuple(limiters)

    def slice_size(self) -> tuple[int | None, int | None]:
        """The smallest of all."""
        sizes = [limiter.slice_size() for limiter in self._limiters]
        return _smallest(rows for rows, _ in sizes), _smallest(nbytes for _, nbytes in sizes)

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> Payment:
        """Queue everywhere; see `channel.Limiter`."""
        payments: list[Payment] = []
        try:
            for limiter in self._limiters:
                payments.append(limiter.pay(rows, nbytes, wake))  # noqa: PERF401 - kept when one raises
        except BaseException:
            for payment in payments:
                payment.cancel()
            raise
        return _AllPaid(payments)


class _AllPaid:
    __slots__ = ("_payments",)

    def __init__(self, payments: Sequence[Payment]) -> None:
        self._payments = payments

    def remaining(self) -> Wait:
        longest = Wait(0.0)
        for payment in self._payments:
            wait = payment.remaining()
            if wait.seconds is None:
                return wait
            if longest.seconds is not None and wait.seconds > longest.seconds:
                longest = wait
        return longest

    def cancel(self) -> None:
        for payment in self._payments:
            payment.cancel()


def _smallest(sizes: Iterable[int | None]) -> int | None:
    return min((size for size in sizes if size is not None), default=None)
