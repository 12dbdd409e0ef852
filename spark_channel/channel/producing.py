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
        with self:
            self._begin_push(1, rows, nbytes)
            if rows == 0:
                self._counters.put_successes += 1
                return True
            if self.limiter is None and not self._claims and self._room.fits(rows, nbytes):
                self._publish(batch, rows, nbytes)
                self._counters.put_successes += 1
                return True
            rejects = self._overflow is Overflow.REJECT
        if rejects:
            return self._push_or_reject([(batch, rows, nbytes)], rows, nbytes)
        self._push_and_wait(batch, rows, nbytes)
        return True

    def push_together(self, batches: Sequence[Sized]) -> bool:
        """All of them at once and without waiting, or none of them and False."""
        batches = [sized for sized in batches if sized[1]]
        rows = sum(sized[1] for sized in batches)
        nbytes = sum(sized[2] for sized in batches)
        with self:
            self._begin_push(len(batches), rows, nbytes)
        return self._push_or_reject(batches, rows, nbytes) if batches else True

    def _begin_push(self, batches: int, rows: int, nbytes: int) -> None:
        self._counters.put_attempts += batches
        if self._closed or self._error is not None:
            self._counters.failed(rows, nbytes)
            self._raise_if_ended()

    def _push_or_reject(self, batches: Sequence[Sized], rows: int, nbytes: int) -> bool:
        limiter = self.limiter
        claim = WholeClaim(batches, rows, nbytes, free=limiter is None)
        payment: Payment | None = None
        try:
            with self:
                self._raise_if_ended()
                if self._claims or not self._admit(claim):
                    self._counters.rejected(rows, nbytes)
                    return False
            if limiter is None:
                return True
            payment = limiter.pay(rows, nbytes, _nobody_waits)
            with self:
                self._raise_if_ended()
                if not is_paid(payment.remaining()):
                    self._counters.rejected(rows, nbytes)
                    return False
                payment = None
                self._publish_claim(claim)
                return True
        except BaseException:
            if not claim.published:
                with self:
                    self._counters.failed(rows, nbytes)
            raise
        finally:
            self._give_back(claim, payment)

    def _push_and_wait(self, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        limiter = self.limiter
        claim = PushClaim(batch, rows, nbytes, free=limiter is None)
        try:
            while claim.start < rows:
                if limiter is None:
                    with self:
                        self._wait_for_room(claim)
                else:
                    self._push_slice(claim, limiter)
        except BaseException:
            with self:
                self._counters.failed(*claim.left())
            raise

    def _push_slice(self, claim: PushClaim, limiter: Limiter) -> None:
        """What room and limiter take at once.

        A channel that overwrites pays before it makes room: while the limit is waited for, a consumer
        may still take the rows that would be dropped.
        """
        claim.max_rows, claim.max_bytes = limiter.slice_size()
        payer = Payer(self._lock)
        payment: Payment | None = None
        try:
            with self:
                self._raise_if_ended()
                pay_first = self._room.evicting
                if pay_first:
                    claim.max_rows, _ = claim.slice_size(self._room)
                    owed = claim.owe(claim.max_rows)
                else:
                    self._wait_for_room(claim)
                    owed = claim.owe(claim.rows)
            if owed[0]:
                payment = limiter.pay(*owed, payer.wake)
            with self:
                if payment is not None:
                    self._wait_for_limit(payment, payer)
                    payment = None
                if pay_first:
                    self._wait_for_room(claim)
                elif claim.rows:
                    self._publish_claim(claim)
        finally:
            self._give_back(claim, payment)

    def _give_back(self, claim: Reservation, payment: Payment | None) -> None:
        """What a push or commit that did not get through still has. Outside a section."""
        if payment is not None:
            payment.cancel()
        if claim.rows or claim.nbytes:
            with self:
                claim.release(self._room)


def _nobody_waits() -> None:
    """What is rejected need not be woken."""
