"""Reserve, pay, publish: what a push does."""

from collections.abc import Sequence

import pyarrow as pa

from spark_channel.channel.claims import PushClaim, Reservation, WholeClaim
from spark_channel.channel.limiter import Limiter, Payment
from spark_channel.channel.overflow import Overflow
from spark_channel.channel.parcel import Sized
from spark_channel.channel.state import Payer, State, is_paid

__all__ = ["Producing"]


class Producing(State):
    """The producers' side of a channel."""

    def push(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> bool:
        """False when it was rejected."""
        overflow = self._atomic(self._push_at_once, batch, rows, nbytes)
        if overflow is None:
            return True
        if overflow is Overflow.REJECT:
            return self._push_or_reject([(batch, rows, nbytes)], rows, nbytes)
        self._push_and_wait(batch, rows, nbytes)
        return True

    def push_waiting(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        """Never rejected, whatever `overflow` is: for one of several that began under another."""
        if self._atomic(self._push_at_once, batch, rows, nbytes) is not None:
            self._push_and_wait(batch, rows, nbytes)

    def push_together(self, batches: Sequence[Sized]) -> bool:
        """All of them at once and without waiting, or none of them and False."""
        rows = sum(sized[1] for sized in batches)
        nbytes = sum(sized[2] for sized in batches)
        with self._lock:
            self._begin_push(len(batches), rows, nbytes)
            if not rows:
                self._counters.put_successes += len(batches)
                return True
        return self._push_or_reject(batches, rows, nbytes)

    def _begin_push(self, batches: int, rows: int, nbytes: int) -> None:
        self._counters.put_attempts += batches
        if self._closed or self._error is not None:
            self._counters.failed(rows, nbytes)
            self._raise_if_ended()

    def _push_at_once(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> Overflow | None:
        """None = published; else what to do without."""
        self._begin_push(1, rows, nbytes)
        if rows:
            if self.limiter is not None or self._claims or not self._room.fits(rows, nbytes):
                return self._overflow
            self._publish(batch, rows, nbytes)
        self._counters.put_successes += 1
        return None

    # ---- without waiting

    def _push_or_reject(self, batches: Sequence[Sized], rows: int, nbytes: int) -> bool:
        claim = WholeClaim(batches, rows, nbytes, free=self.limiter is None)
        payment: Payment | None = None
        try:
            admitted = self._atomic(self._claim_now, claim)
            if admitted and self.limiter is not None:
                payment = self.limiter.pay(rows, nbytes, _nobody_waits)
                self._atomic(self._publish_if_paid, claim, payment)
        except BaseException:
            self._count_failed(*((0, 0) if claim.published else (rows, nbytes)))
            raise
        finally:
            if not claim.published:
                self._give_back(claim, payment)
        if not claim.published:
            with self._lock:
                self._counters.rejected(rows, nbytes)
        return claim.published

    def _claim_now(self, claim: WholeClaim) -> bool:
        self._raise_if_ended()
        return not self._claims and self._admit(claim)

    def _publish_if_paid(self, claim: WholeClaim, payment: Payment) -> None:
        self._raise_if_ended()
        if is_paid(payment.remaining()):
            self._publish_claim(claim)

    # ---- waiting

    def _push_and_wait(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        limiter = self.limiter
        claim = PushClaim(batch, rows, nbytes, free=limiter is None)
        try:
            while claim.start < rows:
                if limiter is None:
                    self._atomic(self._wait_for_room, claim)
                else:
                    self._push_slice(claim, limiter)
        except BaseException:
            self._count_failed(*claim.left())
            raise

    def _push_slice(self, claim: PushClaim, limiter: Limiter) -> None:
        """What room and limiter take at once.

        A channel that overwrites pays before it makes room: while the limit is waited for, a consumer
        may still take the rows that would be dropped.
        """
        claim.max_rows, claim.max_bytes = limiter.slice_size()
        payer = Payer(self._lock, self._own_condition())
        payment: Payment | None = None
        try:
            pay_first, owed = self._atomic(self._reserve_slice, claim)
            if owed[0]:
                payment = limiter.pay(*owed, payer.wake)
            if owed[0] or pay_first:
                self._atomic(self._publish_slice, claim, payment, payer)
        except BaseException:
            self._give_back(claim, payment)
            raise

    def _reserve_slice(self, claim: PushClaim) -> tuple[bool, tuple[int, int]]:
        """Whether the room comes after the payment, and the rows and bytes to pay."""
        self._raise_if_ended()
        if self._room.evicting:
            claim.max_rows, _ = claim.slice_size(self._room)
            return True, claim.owe(claim.max_rows)
        self._wait_for_room(claim)
        return False, claim.owe(claim.rows)

    def _publish_slice(self, claim: PushClaim, payment: Payment | None, payer: Payer) -> None:
        if payment is not None:
            self._wait_for_limit(payment, payer)
        if claim.rows:
            self._publish_claim(claim)
        else:
            self._wait_for_room(claim)

    # ---- what did not get through

    def _give_back(self, claim: Reservation, payment: Payment | None) -> None:
        """Payment and room of a push or commit. Outside the lock."""
        if payment is not None:
            payment.cancel()
        if claim.rows or claim.nbytes:
            self._atomic(claim.release, self._room)

    def _count_failed(self, rows: int, nbytes: int) -> None:
        with self._lock:
            self._counters.failed(rows, nbytes)


def _nobody_waits() -> None:
    """What is rejected need not be woken."""
