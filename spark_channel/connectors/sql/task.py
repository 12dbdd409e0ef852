"""One attempt of one task, for every database. Each database has its own way to load the rows."""

from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.contracts import Receipt, Tally, TaskWriter
from spark_channel.connectors.sql.claims import Claims
from spark_channel.connectors.sql.encode import BadValueError
from spark_channel.connectors.sql.gather import Gathered
from spark_channel.connectors.sql.life import SignOfLife
from spark_channel.connectors.sql.writer import SqlWriter
from spark_channel.errors import BatchRefusedError, TargetError

__all__ = ["SqlTask"]

_SPREAD = 1 / 3
"""Of the time in which rows have gathered: the next ones gather meanwhile."""
_LIMITED_SPREAD, _LONGEST_SPREAD = 0.85, 0.75
"""Of the time since the last ones were sent, under a limit; and in seconds."""
_LIMITED_SECONDS = 0.25


class SqlTask(TaskWriter):
    """Gathers batches until they are worth a call of the database.

    A database implements `store`, `finish`, and `judge` where it takes refused rows back one by one; it sets
    `_session`, which ends with the attempt, and `_done` when another attempt has committed: this one's rows are then
    dropped.
    """

    seconds: ClassVar[float] = 0.5
    """How long rows may be gathered. See `Gathered`."""

    def __init__(self, writer: SqlWriter, plan: Any, task: int, attempt: int) -> None:
        self._writer, self._plan, self._task, self._attempt = writer, plan, task, attempt
        self._options: Any = writer.options
        self._tally = Tally(task, attempt)
        self._clock: Clock = SYSTEM_CLOCK
        seconds = min(self.seconds, _LIMITED_SECONDS) if self._is_limited else self.seconds
        self._gathered = Gathered(writer.options.batch_size, seconds)
        self._sent_at = self._clock.now()
        self._done: Receipt | None = None
        self._session: Any = None
        self._sign: SignOfLife | None = None

    spread: float = 0.0
    """Seconds over which what is stored may be sent: slow rows need not keep a core of the server busy."""

    # --- what a database implements ---

    def store(self, rows: pa.Table, before: int) -> None:
        """Put `rows` into staging, or into the open transaction; the attempt took `before` rows before them."""
        raise NotImplementedError

    def judge(self, batch: pa.RecordBatch) -> None:
        """Dirty rows are allowed: put the batch into the open transaction, all of it or nothing.

        Raises:
            BatchRefusedError: the database refuses a row of it, and holds none.
        """
        raise BatchRefusedError("rows are judged one by one with commit=task alone")

    def finish(self) -> dict[str, Any]:
        """All rows are stored: make them durable, or commit them. Returns the receipt's details."""
        raise NotImplementedError

    # --- what they share ---

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        if batch.num_rows == 0:
            return
        if self.tolerant:
            self.judge(batch)
            self._tally.add(batch)
            return
        self._tally.add(batch)
        if self._gathered.add(batch):
            self._send()

    def flush(self) -> None:
        self._tally.hold_open()
        self._send()

    def close(self) -> Receipt:
        self.flush()
        details = self.finish()
        receipt, done = self._tally.receipt(**details), self._done
        self._end()
        if done is None or done.attempt == receipt.attempt:
            return receipt
        # An attempt before this one has committed, and its answer was lost: what it left out was refused.
        dirty = max(0, receipt.rows - done.rows) if self.tolerant else 0
        return Receipt(receipt.task, done.attempt, done.rows, done.nbytes, {}, dirty)

    def rollback(self) -> None:
        self._tally.ended = True
        self._gathered.take()
        self._end()

    @property
    def _is_limited(self) -> bool:
        return bool(getattr(self._options, "is_limited", False))

    def _send(self) -> None:
        before = self._tally.rows - self._gathered.rows
        self.spread = self._spread()
        self._sent_at = self._clock.now()
        if batches := self._gathered.take():
            self.store(pa.Table.from_batches(batches), before)

    def _spread(self) -> float:
        """Under a limit nearly all of the time until the next rows are sent; as long as the channel's rows wait.

        Rows that come faster than they are sent are not kept waiting.
        """
        waited = self._gathered.waited
        if not self._is_limited or not waited:
            return waited * _SPREAD
        since = self._clock.now() - self._sent_at
        room: float = self._options.batch_size / 2 * since / self._gathered.rows
        return min(_LIMITED_SPREAD * since, _LONGEST_SPREAD, room)

    def _end(self) -> None:
        if self._sign is not None:
            self._sign.end()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _show_life(self) -> None:
        self._sign = SignOfLife(partial(self._writer.beat, self._plan))

    def _claims(self, session: Any) -> Claims:
        return self._writer.claims(session, self._plan.place)

    def _add_task(self, session: Any) -> bool:
        """Fence, and note the task beside the claim, before COMMIT. False: another attempt has committed, see `_done`.

        Raises:
            SupersededError: the claim is another run's.
        """
        claims, held, tally = self._claims(session), self._plan.claim, self._tally
        try:
            claims.fence(held)
            claims.add_task(held, Receipt(tally.task, tally.attempt, tally.rows, tally.nbytes))
        except TargetError as error:
            if not self._writer.is_conflict(error):
                raise
            self._writer.undo(session)
            self._done = claims.task(held, self._task)
            if self._done is None:
                raise
            return False
        return True

    def _settle(self, error: BaseException) -> None:
        """After a COMMIT without an answer: the receipt with which the task committed, or `error`."""
        self._session.close()
        self._done = self._writer.settle(self._plan, self._task)
        if self._done is None:
            raise error

    def _refused(self, error: BadValueError, before: int | None = None) -> BatchRefusedError:
        """The error for a value that cannot be stored; `before` rows were accepted before its batch."""
        row = "" if before is None else f", row {before + error.index + 1} of task {self._task}"
        return BatchRefusedError(
            f"column {error.column.name!r}{row}: {error.value!r} cannot be stored in table "
            f"{self._plan.target.label!r}: {error.why}"
        )
