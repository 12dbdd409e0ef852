"""One attempt of one task: its rows are gathered, loaded, and noted beside the claim.

A database says by its `Loading` how rows get there, and the attempt takes one of three policies. By `_Staged` rows of
`commit=job` are committed into staging, and the driver publishes them. By the other two, those of `commit=task` and of
one pass, rows and note are one transaction: `_Direct` has it open from the first row on, `_Held` opens it when all rows
have come, and lets them wait in memory or in staging until then. A few rows of `commit=job` are held, too, and go to
the driver in the receipt.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, final

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.contract import Receipt, TaskWriter
from spark_channel.connectors.sql.pacing import Spread, adding_seconds, spread_of
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.database import WriteDatabase
from spark_channel.connectors.sql.write.heartbeat import HeartbeatThread
from spark_channel.connectors.sql.write.in_session import retry, show_life
from spark_channel.connectors.sql.write.loading import (
    DirectLoader,
    HeldLoader,
    Loading,
    NoStagingError,
    RefuseRow,
    Rows,
    Staging,
)
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.sessions import Verdict
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import BatchRefusedError, TargetError
from spark_channel.plain_text import log_of

__all__ = ["BatchBuffer", "NothingWriter", "TaskAttempt", "open_attempt"]

_log = log_of(__name__)
_LIMITED_SECONDS = 0.25
_MOVE_SECONDS = 2.0
"""Over so many seconds held rows are staged, when they are too many."""


def open_attempt(database: WriteDatabase[S], plan: SqlPlan, task: int, attempt: int) -> TaskWriter:
    """The writer of an attempt, whatever has become of the write."""
    if plan.published_at is not None:
        return NothingWriter(Receipt(task, attempt, rows=0, nbytes=0))
    claim = TaskClaim(database, plan, task, attempt)
    writer = TaskAttempt(database, claim, database.loading(claim, stages=True))
    writer.open()
    return writer


@final
class TaskAttempt(TaskWriter, Generic[S]):
    """See the head of this file. An attempt after one that has committed takes the rows and drops them."""

    def __init__(
        self, database: WriteDatabase[S], claim: TaskClaim[S], loading: Loading[S]
    ) -> None:
        self._database, self._claim, self._loading = database, claim, loading
        self._tally = claim.tally
        self._clock: Clock = SYSTEM_CLOCK
        self.spreads = loading.is_paced
        self._connection = _Connection(database, claim, loading)
        self._policy = _policy(database, claim, loading, self._connection)
        self._is_limited = database.options.is_limited
        seconds = loading.seconds
        self._gathered = BatchBuffer(
            database.options.batch_size if seconds else 1,
            min(seconds, _LIMITED_SECONDS) if self._is_limited else seconds,
            loading.sent_bytes,
        )
        self._sent_at = self._came_at = self._clock.now()
        self._closes = False
        self._heartbeat: HeartbeatThread | None = None
        self.spread = 0.0
        """Seconds over which rows may be sent: slow ones need not keep a core of the server busy."""

    def open(self) -> None:
        """Make ready what the policy needs before the first row; once, before all else."""
        try:
            self._open()
        except BaseException as error:
            self._connection.close()
            if self._is_lost(error):
                raise TargetError(_text(error)) from error
            raise
        if self._loading.shows_life:
            # By what it needs alone: the thread must not put the end of this object off.
            self._heartbeat = HeartbeatThread(partial(show_life, self._database, self._claim.plan))

    def _open(self) -> None:
        try:
            self._policy.open()
        except NoStagingError as error:
            self._go_straight(error)

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.check_open()
        if batch.num_rows == 0:
            return
        if not self._tally.rows:
            self._came_at = self._clock.now()  # the first task of a job is opened long before
        if self.tolerant and not self._loading.judges_last:
            self._in_transaction(lambda: self._judge(batch))
            self._tally.add(batch)
            return
        self._tally.add(batch)
        if self._gathered.add(batch):
            self._send()

    def flush(self) -> None:
        self._tally.check_open()
        self._send()
        self._loading.flush()

    def close(self) -> Receipt:
        self._closes = True
        self.flush()
        details = self._finished()
        receipt, committed = self._tally.receipt(**details), self._claim.done
        self._end()
        if committed is None or committed.attempt == receipt.attempt:
            return receipt
        # An attempt before this one has committed, and its answer was lost. The rows that it left out were refused.
        dirty = max(0, receipt.rows - committed.rows) if self.tolerant else 0
        return Receipt(receipt.task, committed.attempt, committed.rows, committed.nbytes, {}, dirty)

    def rollback(self) -> None:
        ended, self._tally.ended = self._tally.ended, True
        self._gathered.take()
        if not ended:
            try:
                self._policy.forget()
            except TargetError as error:  # the job's end removes it
                _log.debug("rows of task %d stay in staging: %s", self._claim.task, error)
        self._end()

    def _send(self) -> None:
        before = self._tally.rows - self._gathered.rows
        now, rows = self._clock.now(), self._gathered.rows
        since, self._sent_at = now - self._sent_at, now
        room = self._database.options.batch_size / 2 * since / rows if rows else 0.0
        # The end of a task is not spread: the limit would not be used, since what waits for it reads nothing meanwhile.
        self.spread = (
            0.0
            if self._closes and not self.overlapped
            else spread_of(self._gathered.waited, since, room, is_limited=self._is_limited)
        )
        if batches := self._gathered.take():
            self.store(pa.Table.from_batches(batches), before)

    def store(self, rows: pa.Table, before: int) -> None:
        """Pass rows on; the attempt accepted `before` rows before them."""
        self._in_transaction(lambda: self._store(rows, before))

    def _store(self, rows: pa.Table, before: int) -> None:
        try:
            self._policy.store(rows, before, self.spread)
        except NoStagingError as error:
            tables = self._policy.take()
            self._go_straight(error)
            before += rows.num_rows - sum(table.num_rows for table in tables)
            for table in tables:
                self._policy.store(table, before, self.spread)
                before += table.num_rows

    def _go_straight(self, reason: NoStagingError) -> None:
        _log.warning("%s", reason)
        loading = self._database.loading(self._claim, stages=False)
        self._connection.close()  # another loader makes its session ready
        self._loading = self._connection.loading = loading
        self.spreads = loading.is_paced
        self._policy = _policy(self._database, self._claim, loading, self._connection)
        self._policy.open()

    def _judge(self, batch: pa.RecordBatch) -> None:
        if not isinstance(self._policy, _Direct):  # rows that wait are not judged now
            raise BatchRefusedError("rows are judged one by one with commit=task alone")
        self._policy.judge(batch, self._tally.rows)

    def _in_transaction(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if not self._is_lost(error):
                raise
            raise TargetError(
                f"{_text(error)}. The attempt's rows were lost with the connection"
            ) from error

    def _finished(self) -> dict[str, Any]:
        took = max(self.arrived_seconds, self._clock.now() - self._came_at)
        spread = Spread(0.0)
        if self._loading.is_paced:
            options, tally = self._database.options, self._tally
            room = min(
                options.capacity_rows / max(1, tally.rows),
                options.capacity_bytes / max(1, tally.nbytes),
            )
            seconds = adding_seconds(took, room, overlapped=self.overlapped)
            # Rows that are added much faster than they came are added evenly.
            spread = Spread(seconds, self.arrived_parts if seconds > took / 2 else ())
        try:
            return self._policy.finish(_Ending(self.tolerant, self.refused, spread))
        except Exception as error:
            if not self._is_lost(error):
                raise
            self._connection.lose()
            if self._claim.settle_lost_rows():
                return {}
            raise TargetError(
                f"{_text(error)}. The attempt's rows were not committed: the claims do not have them"
            ) from error

    def _is_lost(self, error: BaseException) -> bool:
        """Whether it is what a lost connection raises and no policy expects: that need not be a TargetError."""
        is_other = isinstance(error, Exception) and not isinstance(error, TargetError)
        return is_other and Verdict.LOST in self._database.verdict(error)

    def _end(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.end()
        self._connection.release()


@dataclass(frozen=True, slots=True)
class _Ending:
    """What the host has said when the attempt ends."""

    judged: bool
    refuse: RefuseRow | None
    spread: Spread
    """Of held rows that are brought into the table."""


class _Policy(Protocol):
    """When rows of an attempt are sent, and what makes them last."""

    def open(self) -> None: ...
    def store(self, rows: pa.Table, before: int, spread: float) -> None: ...
    def take(self) -> list[pa.Table]: ...
    def finish(self, ending: _Ending) -> dict[str, Any]: ...
    def forget(self) -> None: ...


def _policy(
    database: WriteDatabase[S],
    claim: TaskClaim[S],
    loading: Loading[S],
    connection: "_Connection[S]",
) -> _Policy:
    staged = None
    if loading.staging is not None:
        staged = _Staged(database, claim, connection, loading.staging)
    if loading.direct is not None:
        return _Direct(claim, connection, loading.direct)
    if staged is not None and loading.held is None and not loading.held_bytes:
        return staged
    return _Held(claim, connection, loading, staged)


class _Connection(Generic[S]):
    """The session of an attempt: at most one at a time."""

    def __init__(
        self, database: WriteDatabase[S], claim: TaskClaim[S], loading: Loading[S]
    ) -> None:
        self._database, self._claim = database, claim
        self.loading = loading
        self.session: S | None = None
        self.is_lost = False
        """The session has failed, and another one is to be made."""

    @property
    def open(self) -> S:
        """The session, which is there."""
        assert self.session is not None
        return self.session

    def ensure(self, ready: Callable[[S], None]) -> S:
        """The session; after a failure another one. `ready` is called with each new one."""
        if self.session is None or self.is_lost:
            self.close()
            self.session = self.loading.connect()
            self.is_lost = True
            ready(self.session)
            self.is_lost = False
        return self.session

    def close(self) -> None:
        """End the connection, if one is there, with what is open in it."""
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def lose(self) -> None:
        """End the connection, whose session takes no more."""
        if self.session is not None:
            self.session.close()

    def release(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            self.loading.release(session)

    def undone(self, session: S, error: TargetError) -> None:
        """The transaction has failed: where another attempt has committed these rows, this one is done with them.

        Raises:
            TargetError: none has, and `error` is why.
        """
        try:
            session.undo()
        except Exception as failure:  # a session that is lost, or was closed, has nothing to undo
            _log.debug("task %d undid nothing: %s", self._claim.task, failure)
        verdict = self._database.verdict(error)
        if Verdict.LOST not in verdict:
            if Verdict.CONFLICT in verdict:
                if self._claim.is_done(session):
                    return
                self._claim.check(session)
            self._check_columns(session)
        explained = self.loading.explain(error)
        if explained is error:
            raise error
        raise explained from error

    def _check_columns(self, session: S) -> None:
        """The database itself says less of a table that is not as planned.

        Raises:
            TargetError: it is not.
        """
        try:
            columns = self._claim.columns(session)
        except Exception as failure:  # the session may be lost, too
            _log.debug("task %d did not look at its table: %s", self._claim.task, failure)
        else:
            self._claim.check_columns(columns)


@final
class _Staged(Generic[S]):
    """Rows go into staging in chunks, a transaction each: none stays open while rows come."""

    def __init__(
        self,
        database: WriteDatabase[S],
        claim: TaskClaim[S],
        connection: _Connection[S],
        staging: Staging[S],
    ) -> None:
        self._database, self._claim = database, claim
        self._connection, self.staging = connection, staging

    def open(self) -> None:
        survives = self._connection.loading.holds is not None
        if self.staging.opens_first and survives:
            self.lasting(lambda _session, _again: None)
        elif self.staging.opens_first:
            self._connection.ensure(self.staging.ready)

    def store(self, rows: pa.Table, before: int, spread: float) -> None:
        for chunk in self._connection.loading.chunks(rows):
            if self._connection.loading.holds is not None:
                self.lasting(partial(self._add, chunk, before, spread))
            else:  # what is staged goes with the session: the attempt ends with it
                session = self._connection.open if self.staging.has_session else None
                self.staging.add(session, chunk, before, spread)
            before += chunk.num_rows

    def _add(self, rows: Rows, before: int, spread: float, session: S, again: bool) -> None:
        # First: the COMMIT of a chunk whose answer was lost may have arrived, and the rows are then there.
        holds = self._connection.loading.holds
        if again and holds is not None and holds(session, before, before + rows.num_rows):
            return
        if not self.staging.add(session, rows, before, spread):
            self._connection.close()

    def lasting(self, work: Callable[[S, bool], None]) -> None:
        """`work(session, False)`; when the connection is lost, `work(session, True)` on a new one, for `retryTimeout`.

        A connection that ends in a limit's pause is not a failure: the task makes another, also with `retryTimeout` 0.
        """
        begun = False

        def attempt() -> None:
            nonlocal begun
            session = self._connection.ensure(self.staging.ready)
            again, begun = begun, True
            try:
                work(session, again)
            except BaseException:
                self._connection.is_lost = True
                raise

        def is_lost(error: BaseException) -> bool:
            return Verdict.LOST in self._database.verdict(error)

        try:
            try:
                attempt()
            except Exception as error:  # what a lost connection raises need not be a TargetError
                if not is_lost(error):
                    raise
                retry(self._database, f"staging task {self._claim.task}").call(attempt, is_lost)
        except Exception as error:
            if isinstance(error, TargetError) or not is_lost(error):
                raise
            raise TargetError(_text(error)) from error

    def take(self) -> list[pa.Table]:
        return []

    def finish(self, ending: _Ending) -> dict[str, Any]:
        if self.staging.fences_last:
            self.lasting(lambda session, _again: self._claim.fence(session))
        return self.staging.finish()

    def forget(self) -> None:
        self.staging.forget(self._connection.session)


@final
class _Direct(Generic[S]):
    """One transaction from the first row on: rows, the note of the task beside the claim, COMMIT."""

    def __init__(
        self, claim: TaskClaim[S], connection: _Connection[S], loader: DirectLoader[S]
    ) -> None:
        self._claim, self._connection, self._loader = claim, connection, loader
        self._is_begun = False

    def open(self) -> None:
        if self._loader.opens == "transaction":
            self._begun()
        elif self._loader.opens == "session":
            self._connection.ensure(self._loader.ready)

    def _begun(self) -> S:
        """The session with the transaction, unless the task is done."""
        session = self._connection.ensure(self._loader.ready)
        if not self._is_begun:
            # Before the first row: the rows of a task that is done, or of a run that was overtaken, are not sent.
            try:
                self._loader.begin(session)
            except TargetError as error:
                self._connection.undone(session, error)
            self._is_begun = True
        return session

    def store(self, rows: pa.Table, before: int, spread: float) -> None:
        for chunk in self._connection.loading.chunks(rows):
            session = self._begun()
            if self._claim.done is not None:
                return
            try:
                self._loader.insert(session, chunk, before, spread)
            except TargetError as error:
                self._connection.undone(session, error)
            before += chunk.num_rows

    def judge(self, batch: pa.RecordBatch, before: int) -> None:
        session = self._begun()
        if self._claim.done is not None:
            return
        try:
            self._loader.judge(session, batch, before)
        except BatchRefusedError:
            raise  # of a row: the transaction goes on
        except TargetError as error:
            self._connection.undone(session, error)

    def take(self) -> list[pa.Table]:
        return []

    def finish(self, ending: _Ending) -> dict[str, Any]:
        session = self._begun()
        if self._claim.done is not None:
            return {}

        def conclude() -> None:
            self._loader.complete(session, judged=ending.judged)
            # Behind all rows: the fence keeps a run that takes over waiting until COMMIT, so it is held briefly.
            if self._claim.note(session, asks_again=self._loader.asks_again):
                # Last: the rows are there with their note, or neither is.
                self._claim.commit(session)

        try:
            self._loader.repeated(conclude)
        except TargetError as error:
            self._connection.undone(session, error)
        return {}

    def forget(self) -> None:
        pass  # the transaction ends with its session


@final
class _Held(Generic[S]):
    """Rows wait in memory up to a bound, and from there on in staging; at the end, one short transaction.

    Where the loading has no loader, the rows of a small attempt travel in its receipt, and the publish stages them.
    """

    def __init__(
        self,
        claim: TaskClaim[S],
        connection: _Connection[S],
        loading: Loading[S],
        staged: _Staged[S] | None,
    ) -> None:
        self._claim, self._connection, self._loading = claim, connection, loading
        self._staged, self._loader = staged, loading.held
        self._rows: list[pa.Table] = []
        self._nbytes = 0
        self._stages = staged is not None and not loading.held_bytes
        """Rows are staged, and no more held."""

    def open(self) -> None:
        if self._loader is not None and self._loader.opens != "nothing":
            self._connection.ensure(self._ready)

    def _ready(self, session: S) -> None:
        if self._stages and self._staged is not None and self._staged.staging.has_session:
            self._staged.staging.ready(session)
        elif self._loader is not None:
            self._loader.ready(session)

    def store(self, rows: pa.Table, before: int, spread: float) -> None:
        if self._claim.done is not None:
            return
        if self._stages and self._staged is not None:
            self._staged.store(rows, before, spread)
            return
        self._rows.append(rows)
        self._nbytes += rows.nbytes
        if self._nbytes > self._loading.held_bytes:
            self._stage(before + rows.num_rows, spread)

    def _stage(self, after: int, spread: float) -> None:
        """Stage the rows that are held, the last of the `after` rows that the attempt accepted."""
        assert self._staged is not None
        if self._staged.staging.has_session and self._loading.holds is None:
            # With the session that will add them; one that ended in a pause held nothing of the task.
            self._staged.staging.ready(self._answering())
        self._stages = True
        rows = self.take()
        before = after - sum(table.num_rows for table in rows)
        for table in rows:
            # Not at once: they came over a longer time.
            self._staged.store(
                table, before, _MOVE_SECONDS / len(rows) if self._loading.is_paced else spread
            )
            before += table.num_rows

    def _answering(self) -> S:
        """The session, which is another one if the server does not answer it: a pause may have ended it."""
        session = self._connection.session
        if session is not None and not self._loading.answers(session):
            self._connection.is_lost = True
        return self._connection.ensure(self._ready)

    def take(self) -> list[pa.Table]:
        rows, self._rows = self._rows, []
        return rows

    def finish(self, ending: _Ending) -> dict[str, Any]:
        if self._loader is None:
            return self._carried(ending)
        if self._claim.done is None:
            try:
                self._loader.repeated(partial(self._conclude, self._loader, ending))
            except TargetError as error:
                if self._connection.session is None:
                    raise
                self._connection.undone(self._connection.session, error)
        if self._staged is not None and self._stages:
            self._clear(self._staged.staging)
        return {}

    def _clear(self, staging: Staging[S]) -> None:
        """Not before COMMIT, which can still fail; a table goes with the transaction that brought its rows in."""
        if self._claim.done is not None or not staging.has_session:
            staging.forget(None)

    def _carried(self, ending: _Ending) -> dict[str, Any]:
        assert self._staged is not None
        if not self._stages:
            details = None if self._loading.carried is None else self._loading.carried(self._rows)
            if details is not None:
                return details
            self._stage(self._claim.tally.rows, 0.0)
        return self._staged.finish(ending)

    def _conclude(self, loader: HeldLoader[S], ending: _Ending) -> None:
        """All of the task in one transaction, or nothing of it."""
        goes_with_session = (
            self._stages
            and self._staged is not None
            and self._staged.staging.has_session
            and self._loading.holds is None
        )
        session = self._connection.open if goes_with_session else self._answering()
        # Before the rows: those of a task that is done are not brought in again.
        loader.begin(session)
        if self._claim.done is not None:
            return
        loader.bring(session, self._rows, ending.spread, ending.refuse)
        # Behind the rows, which may take long: the fence keeps a run that takes over waiting until COMMIT.
        if self._claim.note(session, asks_again=loader.asks_again):
            # Behind the fence, from where the server ends a silent session: a drop holds a lock.
            loader.clear(session)
            # Last: the rows are there with their note, or neither is.
            self._claim.commit(session)

    def forget(self) -> None:
        self.take()
        if self._staged is None or not self._stages:
            return
        # Where the server is away, the end of the job removes what is staged: no other session is waited for here.
        if self._connection.session is not None or not self._staged.staging.has_session:
            self._staged.forget()


class BatchBuffer:
    """Batches that wait to be sent together. Used by one thread.

    `add` says when it is time: at `rows` rows, at `nbytes` bytes, or when the first of them has waited for `seconds`.
    The time matters under a limit: without it a slow job would hit the target with a burst of `rows` rows every few
    seconds, at whatever speed the target takes them.
    """

    def __init__(
        self, rows: int, seconds: float, nbytes: int, *, clock: Clock | None = None
    ) -> None:
        self._most_rows, self._most_bytes = rows, nbytes
        self._most_seconds = seconds
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._since = 0.0
        self._batches: list[pa.RecordBatch] = []
        self._nbytes = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """True when all of it should be sent now."""
        if not self._batches:
            self._since = self._clock.now()
        self._batches.append(batch)
        self.rows += batch.num_rows
        self._nbytes += batch.nbytes
        return (
            self.rows >= self._most_rows
            or self._nbytes >= self._most_bytes
            or self._clock.now() - self._since >= self._most_seconds
        )

    @property
    def waited(self) -> float:
        """Seconds for which rows have gathered that are not enough yet, since they come slowly; 0.0 = enough."""
        is_full = self.rows >= self._most_rows or self._nbytes >= self._most_bytes
        if not self._batches or is_full:
            return 0.0
        return min(self._most_seconds, self._clock.now() - self._since)

    def take(self) -> list[pa.RecordBatch]:
        """Returns and removes the gathered batches, in their order."""
        batches, self._batches = self._batches, []
        self.rows = self._nbytes = 0
        return batches


class NothingWriter(TaskWriter):
    """For a task, or a job, that was committed before: takes rows, keeps none, and gives `receipt`."""

    def __init__(self, receipt: Receipt) -> None:
        self._receipt = receipt

    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def close(self) -> Receipt:
        return self._receipt

    def rollback(self) -> None:
        pass


def _text(error: BaseException) -> str:
    return str(getattr(error, "text", error))
