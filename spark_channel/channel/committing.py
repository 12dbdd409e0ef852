"""What transactions do to the channel: take and hold, commit, roll back."""

import pyarrow as pa

from spark_channel.channel.claims import CommitClaim
from spark_channel.channel.limiter import Payment
from spark_channel.channel.producing import Producing
from spark_channel.channel.staged import Staged
from spark_channel.channel.state import Payer
from spark_channel.errors import ChannelFullError, EndOfChannel, TransactionFullError

__all__ = ["Committing"]


class Committing(Producing):
    """The transactional side of a channel. `Staged` is what one transaction put and took."""

    def put(self, staged: Staged, batch: pa.RecordBatch, rows: int, nbytes: int) -> None:
        put_rows, put_bytes = staged.put_rows + rows, staged.put_bytes + nbytes
        with self._lock:  # nobody else is concerned yet
            self._begin_push(1, rows, nbytes)
            most_rows, most_bytes = self._most_transaction_rows(), self._room.capacity_bytes
        if put_rows > most_rows:
            raise TransactionFullError(
                f"{put_rows} rows put, transaction_rows is {most_rows}: commit smaller transactions"
            )
        if put_bytes > most_bytes and put_rows > 1:
            raise TransactionFullError(
                f"{put_bytes} bytes put, the channel holds {most_bytes}: commit smaller transactions"
            )
        staged.add_put(batch, rows, nbytes)

    def take(self, staged: Staged) -> pa.RecordBatch | None:
        return self._atomic(self._take, staged)

    def _take(self, staged: Staged) -> pa.RecordBatch | None:
        self._counters.take_attempts += 1
        most_rows = self._most_transaction_rows()
        if staged.taken_rows >= most_rows:
            raise TransactionFullError(
                f"{staged.taken_rows} rows taken, transaction_rows is {most_rows}: "
                "commit smaller transactions"
            )
        try:
            if not self._wait_for_data(self.keep_alive, lambda: staged.taken_rows):
                return None
        except EndOfChannel:
            if staged.takes:
                return None  # to be committed: raising would roll back the last rows, again and again
            raise
        parcel = self._stock.pop(most_rows - staged.taken_rows)
        self._room.held_rows += parcel.rows
        self._room.held_bytes += parcel.nbytes
        staged.add_take(parcel)
        return parcel.batch

    def commit(self, staged: Staged) -> None:
        """Publish the puts and free the takes, together or not at all."""
        if self._atomic(self._commit_at_once, staged):
            return
        claim = CommitClaim(staged)
        payment: Payment | None = None
        try:
            self._atomic(self._reserve_commit, claim)
            if not staged.committed:
                assert self.limiter is not None
                payer = Payer(self._lock, self._own_condition())
                payment = self.limiter.pay(*staged.owed(), payer.wake)
                self._atomic(self._pay_and_publish, claim, payment, payer)
        except BaseException:
            if not staged.committed:
                self._give_back(claim, payment)
                self._count_failed(staged.put_rows, staged.put_bytes)
            raise

    def _commit_at_once(self, staged: Staged) -> bool:
        if not staged.puts:
            if self._error is not None:
                self._raise_if_failed()
            staged.commit(self._room, self._counters)
            if self._closed and self._has_ended():
                self._news = True
            return True
        if self.limiter is not None or self._claims or self._closed or self._error is not None:
            return False
        room = self._room
        if not room.fits(staged.put_rows, staged.put_bytes, staged.taken_rows, staged.taken_bytes):
            return False
        self._publish_staged(staged)
        return True

    def _publish_staged(self, staged: Staged) -> None:
        for batch, rows, nbytes in staged.commit(self._room, self._counters):
            self._publish(batch, rows, nbytes)

    def _reserve_commit(self, claim: CommitClaim) -> None:
        """Room for it, and all of it where nothing is to be paid. A channel that overwrites pays first."""
        self._raise_if_ended()
        if self.limiter is None:
            claim.staged.mark_paid()
        if claim.is_paid() or not self._room.evicting:
            self._wait_for_commit_room(claim)

    def _pay_and_publish(self, claim: CommitClaim, payment: Payment, payer: Payer) -> None:
        self._wait_for_limit(payment, payer)
        claim.staged.mark_paid()
        if claim.granted:
            self._publish_claim(claim)
        else:
            self._wait_for_commit_room(claim)

    def _wait_for_commit_room(self, claim: CommitClaim) -> None:
        if not self._wait_for_room(claim, self.keep_alive):
            room, staged = self._room, claim.staged
            raise ChannelFullError(
                f"no room for {staged.put_rows} rows, {staged.put_bytes} bytes within {self.keep_alive:g} s: "
                f"{room.used_rows} of {room.capacity_rows} rows and {room.used_bytes} of "
                f"{room.capacity_bytes} bytes are in use. The transaction is open: commit again, or roll back"
            )

    def rollback(self, staged: Staged) -> None:
        """Return the takes to the head; the puts were never in the channel."""
        self._atomic(self._roll_back, staged)

    def abandon(self, staged: Staged) -> None:
        """Roll back for a thread that has ended; it is counted, for logging here would bring the thread
        back as a dummy that never ends.
        """
        with self._lock:
            self._counters.transactions_abandoned += 1
        self._atomic(self._roll_back, staged)

    def _roll_back(self, staged: Staged) -> None:
        if staged.takes:
            self._news = True
        staged.roll_back(self._room)

    def _most_transaction_rows(self) -> int:
        return self._room.capacity_rows if self._transaction_rows is None else self._transaction_rows
