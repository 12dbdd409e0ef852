"""The memory that ranges which are read ahead may take, over all channels of a client."""

import threading
from collections.abc import Callable

from spark_channel.channel import Wait

__all__ = ["Budget", "Share"]


class Budget:
    """Rows and bytes that are read and not processed yet, at most; one batch larger than it passes alone.

    Each range has a `Share`, which its carrier pays as it would pay a limiter. A range that is being processed and
    has nothing left gets its next batch beyond the budget, since the rows that fill it may have to wait for
    this very range: so there is one batch more for each thread that processes, at most.
    """

    def __init__(self, rows: int, nbytes: int) -> None:
        self._most = rows, nbytes
        self._lock = threading.Lock()
        self._rows = self._nbytes = 0
        self._waiting: set[_Payment] = set()

    def share(self, make_room: Callable[[], bool] | None = None) -> "Share":
        """The part of one range. `make_room` is called by a thread that pays, before it waits; true: something was
        given back.
        """
        return Share(self, make_room)

    def used(self) -> tuple[int, int]:
        """Rows and bytes."""
        with self._lock:
            return self._rows, self._nbytes

    def take(self, payment: "_Payment") -> bool:
        share = payment.share
        with self._lock:
            rows, nbytes = self._rows + payment.rows, self._nbytes + payment.nbytes
            fits = rows <= self._most[0] and nbytes <= self._most[1]
            if not (fits or share.wanted or share.closed or not self._rows):
                self._waiting.add(payment)
                return False
            self._waiting.discard(payment)
            share.wanted = False
            if not share.closed and payment.keep(payment.rows, payment.nbytes):
                self._rows, self._nbytes = rows, nbytes
                share.rows += payment.rows
                share.nbytes += payment.nbytes
            return True

    def forget(self, payment: "_Payment") -> None:
        with self._lock:
            self._waiting.discard(payment)

    def free(self, share: "Share", rows: int, nbytes: int, *, closed: bool = False) -> None:
        with self._lock:
            share.closed = share.closed or closed
            rows, nbytes = (share.rows, share.nbytes) if closed else (rows, nbytes)
            rows, nbytes = min(rows, share.rows), min(nbytes, share.nbytes)
            share.rows -= rows
            share.nbytes -= nbytes
            self._rows -= rows
            self._nbytes -= nbytes
            woken = list(self._waiting)
        for payment in woken:
            payment.wake()

    def want(self, share: "Share") -> None:
        with self._lock:
            share.wanted = True
            woken = [payment for payment in self._waiting if payment.share is share]
        for payment in woken:
            payment.wake()


class Share:
    """What one range has of the budget; the limiter of its carrier."""

    def __init__(self, budget: Budget, make_room: Callable[[], bool] | None = None) -> None:
        self._budget = budget
        self._make_room = make_room
        self.rows = self.nbytes = 0
        self.wanted = False
        self.closed = False

    def slice_size(self) -> tuple[int | None, int | None]:
        return None, None

    def pay(
        self, rows: int, nbytes: int, wake: Callable[[], None], keep: Callable[[int, int], bool] | None = None
    ) -> "_Payment":
        payment = _Payment(self._budget, self, rows, nbytes, wake, keep or _always)
        if self._make_room is not None:
            while payment.remaining().seconds is None and self._make_room():
                pass
        return payment

    def kept_by(self, keep: Callable[[int, int], bool]) -> "_Kept":
        """A limiter that pays to this share. `keep` is told what was paid; false: it is not wanted, and counts as
        nothing.
        """
        return _Kept(self, keep)

    def want(self) -> None:
        """A thread waits for the next batch of this range."""
        self._budget.want(self)

    def free(self, rows: int, nbytes: int) -> None:
        """So much was processed."""
        self._budget.free(self, rows, nbytes)

    def close(self) -> None:
        """The range is done with: give all back."""
        self._budget.free(self, 0, 0, closed=True)


class _Kept:
    def __init__(self, share: Share, keep: Callable[[int, int], bool]) -> None:
        self._share, self._keep = share, keep

    def slice_size(self) -> tuple[int | None, int | None]:
        return None, None

    def pay(self, rows: int, nbytes: int, wake: Callable[[], None]) -> "_Payment":
        return self._share.pay(rows, nbytes, wake, self._keep)


class _Payment:
    def __init__(
        self, budget: Budget, share: Share, rows: int, nbytes: int, wake: Callable[[], None],
        keep: Callable[[int, int], bool],
    ) -> None:  # fmt: skip
        self.keep = keep
        self._budget = budget
        self.share = share
        self.rows = rows
        self.nbytes = nbytes
        self.wake = wake
        self._paid = False

    def remaining(self) -> Wait:
        if not self._paid:
            self._paid = self._budget.take(self)
        return Wait(0.0) if self._paid else Wait(None, "memory")

    def cancel(self) -> None:
        """What was paid is given back with the share."""
        self._budget.forget(self)


def _always(_rows: int, _nbytes: int) -> bool:
    return True
