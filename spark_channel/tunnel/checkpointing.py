"""The turns of a channel: a range is read, its end is stored, it is processed, and its checkpoint is taken.

Three kinds of threads: a *turn* plans the next range of a channel and reads it into the range's own carrier; a
*call* stores the end of the range, and takes the checkpoint of the range before; a thread of the *pool* processes
one range of a channel at a time, or one table of it. One budget over all channels bounds the rows that are read ahead.
Nothing of a range is processed before its end is in the store, and its checkpoint is taken after `process` of all its
tables, in order.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import pyarrow as pa

from spark_channel.carrier import BulkConsumePool
from spark_channel.carrier import Consumer as CarrierConsumer
from spark_channel.channel.capacity import Limiter
from spark_channel.clock import Clock
from spark_channel.connectors.base.contract import Token
from spark_channel.errors import (
    ChannelError,
    ChannelLostError,
    FlowError,
    LimitError,
    SchemaError,
    TunnelError,
    TunnelStoreError,
)
from spark_channel.pipeline import ReadCancelledError
from spark_channel.plain_text import log_of
from spark_channel.tunnel.channel import (
    ChannelRun,
    Delivery,
    FailureAction,
)
from spark_channel.tunnel.client import TunnelClient
from spark_channel.tunnel.job import ConsumerJob
from spark_channel.tunnel.ranges import DeliveryRows, RangeRead, ReadAheadBudget, Stage
from spark_channel.tunnel.records import TunnelRecord
from spark_channel.tunnel.source import READ, StreamSource, base_split

__all__ = ["ChannelTurns"]

_log = log_of(__name__)

_TOLD_SECONDS = 1.0
"""The shortest wait for late rows that is logged."""


class ChannelTurns(ABC):
    """Plans, reads and checkpoints the ranges of channels. A subclass has the channels' runs, and ends them."""

    held_seconds: ClassVar[float] = 30.0
    """How long a reader that is to end waits for the source to keep less of its log, so that existing rows can be read.
    PostgreSQL moves what a slot keeps about every 15 s."""

    _stream: StreamSource
    _record: TunnelRecord
    _client: TunnelClient
    _clock: Clock
    _pool: BulkConsumePool
    _budget: ReadAheadBudget
    _capacity: Mapping[str, int]
    _limit: Limiter | None
    _job: ConsumerJob
    _drained: bool
    _changed: threading.Condition
    """Guards the runs, and what follows."""
    _idle_runs: set[str]
    """The channels whose last look found no rows."""
    _over: bool
    _error: BaseException | None
    _parked_by: BaseException | None

    @abstractmethod
    def _open(self, run: ChannelRun) -> None:
        """Make the processors of a channel, at its first turn."""

    @abstractmethod
    def _over_with(self, run: ChannelRun, *, finished: bool) -> None:
        """Called when this client has finished the channel."""

    @abstractmethod
    def _idle(self, run: ChannelRun, sequence: int) -> None:
        """Called when no rows follow the range before `sequence`, which may have failed meanwhile."""

    @abstractmethod
    def _end_if_nothing_is_left(self) -> None:
        """End where all that this client can have is drained or parked."""

    @abstractmethod
    def _end(self, error: BaseException | None) -> None:
        """Begin the end of this client, with the error that ends it, if any."""

    def _read_turn(self, run: ChannelRun) -> float | None:
        try:
            return self._advance(run)
        except Exception as error:
            run.source.feed.release()
            wait = self._wait_after(run, error, is_read=run.is_open)
            if wait is not None:
                run.read_after = self._clock.now() + wait
            return wait

    def _advance(self, run: ChannelRun) -> float | None:
        """Plan the next range and read it; seconds until the next one, None until something changes."""
        with self._changed:
            if self._over or run.closed or run.parked_by is not None:
                return None
            ends = run.stopping or run.lost
            full = not run.may_read()
            seconds_left = run.read_after - self._clock.now()
        if ends:
            self._drop(run, unprocessed=True)
            if not (run.is_busy() if run.lost else run.is_at_hand()):  # else its range ends first
                self._over_with(run, finished=False)
            return None
        if full:
            return None
        if seconds_left > 0:
            return seconds_left
        if not run.is_open:
            self._open(run)
        if run.settle is not None:
            run.source.feed.settle(run.settle)
            run.settle = None
        start, sequence = run.planned, run.planned_sequence
        if run.goal is not None and sequence not in run.ends and not _is_drained(run, start):
            wait = run.goal.fix(start)
            if wait > 0:
                return self._await_late(run, wait)
        if run.source.feed.missing is not None and sequence not in run.ends and run.ranges:
            return None  # process the assigned ranges first, then report the missing table
        backfill_blocked_by = "" if run.paused else run.backfill_monitor.look(start)
        if backfill_blocked_by:
            until = ", and `consume(drained=True)` ends when they are read" if self._drained else ""
            _log.warning("channel %s: %s%s", run.id, backfill_blocked_by, until)
        began = self._clock.now()
        end = None if _is_drained(run, start) else self._end_of_range(run, start, sequence)
        planning = self._clock.now() - began
        if end is None:
            if run.token == start:  # else its last checkpoint is on its way
                self._over_with(run, finished=True)
            return None
        if end == start:
            self._idle(run, sequence)
            return run.backoff.after(0, 0, planning)
        feed = run.source.feed
        splits = [base_split(run.channel)] if run.channel.is_base else feed.changes(start, end)
        range_read = RangeRead(
            feed,
            sequence,
            start,
            end,
            splits,
            self._budget,
            limit=self._limit,
            **self._capacity,
            done=run.done.get(sequence, ()) if run.is_by_table else None,
            room_wanted=lambda: self._give_next(run),
            counted=self._job.read,
        )
        range_read.planning = planning
        with self._changed:
            ends = self._over or run.closed or run.stopping or run.lost or run.parked_by is not None
            if ends or run.planned_sequence != sequence:
                return 0.0
            self._idle_runs.discard(run.id)
            run.ranges.append(range_read)
            run.planned, run.planned_sequence = end, sequence + 1
        run.storing.ask()
        began = self._clock.now()
        range_read.fill()
        self._job.has_read(range_read.reading_seconds, range_read.throttled_seconds())
        if run.is_by_table:  # it was not processed meanwhile
            range_read.read_took = self._clock.now() - began
            self._give_next(run)
        full = run.channel.is_base or run.size.is_full(range_read.rows, range_read.nbytes)
        return 0.0 if full else run.backoff.after(range_read.rows, range_read.nbytes, planning)

    def _end_of_range(self, run: ChannelRun, start: Token, sequence: int) -> Token | None:
        """Return the end of the next range; None when the channel is drained."""
        fixed_end = run.ends.get(sequence)
        if fixed_end is not None:
            return fixed_end
        if run.channel.is_base:
            return READ
        feed, limit = run.source.feed, run.size.limit()
        feed.reads_base = not run.paused
        goal = None if run.goal is None else run.goal.upto(start, is_paused=run.paused)
        if run.until is None:
            end: Token | None = feed.latest(start, limit, goal)
        else:
            end = feed.before(start, limit, run.until, goal)
        if run.goal is None or not feed.base_held or not run.goal.is_reached(run.token):
            run.held_since = None
        elif run.held_since is None:
            run.held_since = self._clock.now()
        return start if end is not None and self._is_held(run) else end

    def _await_late(self, run: ChannelRun, wait: float) -> float:
        """Read rows of the channel in `wait` seconds."""
        if wait >= _TOLD_SECONDS:
            _log.warning(
                "channel %s: waiting %.0f s for rows that other sessions commit after ones with a higher cursor "
                "value; if one session at a time writes, set lateSeconds=0",
                run.id,
                wait,
            )
        with self._changed:
            self._idle_runs.discard(run.id)
            run.read_after = self._clock.now() + wait
        return wait

    def _is_held(self, run: ChannelRun) -> bool:
        """Whether for so long all changes were processed, and the source kept too much to read existing rows."""
        since = run.held_since
        return since is not None and self._clock.now() - since >= self.held_seconds

    def _give_next(self, run: ChannelRun) -> None:
        """Have the next range processed, if those before it are, and its end is in the store."""
        with self._changed:
            range_read = run.next_to_give()
            if range_read is None:
                return
            if self._stops(run, range_read):
                if range_read.stage is not Stage.BUSY:
                    return
                range_read.withdraw()
            rows_to_give = range_read.to_give()
            if rows_to_give and range_read.stage is Stage.FIXED:
                range_read.stage = Stage.GIVEN
        for rows in rows_to_give:
            try:
                rows.carrier.consume(_Deliver(self, run, range_read, rows), pool=self._pool)
            except FlowError:
                # The pool is closed, or the reading was cancelled: this client ends, or the channel.
                range_read.over(rows, is_processed=False)
            except Exception as error:  # it could not be read, which its reader knew first
                rows.lost = rows.lost or error
                range_read.over(rows, is_processed=False, error=error)
        self._end_of(run, range_read)

    def _stops(self, run: ChannelRun, range_read: RangeRead) -> bool:
        """Whether nothing more of a range is to be processed. One that has begun is processed in whole, if it can be,
        so that its checkpoint can be taken."""
        if run.lost or run.closed or range_read not in run.ranges:
            return True
        return (
            self._error is not None
            if range_read.stage is Stage.BUSY
            else self._over or run.stopping
        )

    def deliver(
        self,
        run: ChannelRun,
        range_read: RangeRead,
        rows: DeliveryRows,
        batches: Sequence[pa.RecordBatch],
    ) -> None:
        """Process one range, or one table of it. In a thread of the pool; raises nothing."""
        with self._changed:
            stops = self._stops(run, range_read) or range_read.stage not in (
                Stage.GIVEN,
                Stage.BUSY,
            )
            if stops and range_read.stage is not Stage.BUSY:
                return
            if not stops and range_read.stage is Stage.GIVEN:
                range_read.stage, range_read.began = Stage.BUSY, self._clock.now()
        error: BaseException | None = None
        if not stops:
            began = self._clock.now()
            try:
                processor = run.processors[rows.table]
                processor.process(
                    Delivery(
                        self._record.name,
                        processor.channel,
                        range_read.sequence,
                        run.channel.is_base,
                        range_read.start,
                        range_read.end,
                        rows.batches(batches),
                        rows.table,
                    )
                )
            except BaseException as raised:
                error = raised
            error = rows.lost or error  # a processor may have caught it, and has not had all
            processing = max(0.0, self._clock.now() - began - rows.waited)
            self._job.processed(rows.rows, rows.nbytes, processing, failed=error is not None)
        try:
            if rows.table and error is not None and self._ends_all(error):
                self._end(error)
            self._end_of(
                run, range_read, rows, is_processed=not stops and error is None, error=error
            )
        except BaseException as fatal:
            self._end(fatal)
        finally:
            with self._changed:
                self._changed.notify_all()

    def _end_of(
        self,
        run: ChannelRun,
        range_read: RangeRead,
        rows: DeliveryRows | None = None,
        *,
        is_processed: bool = False,
        error: BaseException | None = None,
    ) -> None:
        """`rows` are processed, or failed. With the last of its range, that is done, or what is left of it is read once
        more.
        """
        with self._changed:  # in one step, for `keeping`
            if rows is not None:
                range_read.over(rows, is_processed=is_processed, error=error)
            is_last = range_read.ends()
            if is_last:
                processing = (
                    self._clock.now() - range_read.began if range_read.stage is Stage.BUSY else 0.0
                )
                range_read.took = range_read.read_took + processing
                range_read.stage = Stage.DONE if range_read.is_processed else Stage.FIXED
                run.done.setdefault(range_read.sequence, set()).update(
                    range_read.processed_tables()
                )
        if rows is not None:
            rows.close()  # what it left unread counts as processed
        if not is_last:
            if rows is not None:  # what is read may wait for the memory of another table
                self._give_next(run)
            return
        failed = range_read.failed()
        met = failed[0].error if failed else range_read.lost
        if range_read.is_processed:
            range_read.cancel()
            self._give_next(run)
        elif met is not None:
            self._range_failed(run, range_read, met, failed)
        else:
            self._drop(run, range_read)
        with self._changed:  # for a stop that waits for its end
            self._changed.notify_all()
        run.storing.ask()
        run.reading.ask()

    def _range_failed(
        self,
        run: ChannelRun,
        range_read: RangeRead,
        error: BaseException,
        failed: Sequence[DeliveryRows],
    ) -> None:
        """`failed`: its deliveries that failed; none if none was assigned."""
        for other in failed[1:]:
            _log.warning("channel %s: %s", run.name_of(other.table), other.error)
        table, lost = (failed[0].table, failed[0].lost) if failed else ("", range_read.lost)
        with self._changed:
            is_current = range_read in run.ranges
        self._drop(run, range_read)
        if is_current and not (
            (self._over or run.lost or run.closed) and isinstance(error, ReadCancelledError)
        ):
            wait = self._wait_after(run, error, of_range=True, is_read=error is lost, table=table)
            if wait is not None:
                run.read_after = self._clock.now() + wait

    def _drop(
        self, run: ChannelRun, first: RangeRead | None = None, *, unprocessed: bool = False
    ) -> None:
        """Forget a range and those after it; or all that are neither processed nor being processed."""
        with self._changed:
            if unprocessed:
                first = next(
                    (range_read for range_read in run.ranges if range_read.stage < Stage.BUSY), None
                )
            dropped = [] if first is None else run.drop_from(first)
        for dropped_range in dropped:
            dropped_range.cancel()

    def _store_turn(self, run: ChannelRun) -> float | None:
        """Take the checkpoint of what is processed, fix the end of what is read, or park the channel."""
        seconds_left = run.store_after - self._clock.now()
        if seconds_left > 0:
            return seconds_left
        try:
            while not run.closed and not run.lost and self._store_next(run):
                pass
        except ChannelLostError as error:
            _log.warning("%s", error)
            with self._changed:
                run.lost = True
                self._changed.notify_all()
            self._drop(run, unprocessed=True)
            run.reading.ask()
        except Exception as error:
            wait = self._wait_after(run, error)
            if wait is not None:
                run.store_after = self._clock.now() + wait
            return wait
        return None

    def _store_next(self, run: ChannelRun) -> bool:
        """One call; False when there is none to make."""
        with self._changed:
            first = run.ranges[0] if run.ranges else None
            fixed = None if self._over or run.stopping else run.next_to_fix()
        if first is not None and first.stage is Stage.DONE:
            self._checkpoint(run, first)
        elif fixed is not None:
            self._fix(run, fixed)
        elif first is None and run.parked_by is not None and not self._over:
            self._park(run, *run.parked_by)
        else:
            return False
        return True

    def _checkpoint(self, run: ChannelRun, range_read: RangeRead) -> None:
        with self._changed:
            behind = run.in_flight(range_read.sequence + 1)
        began = self._clock.now()
        self._client.checkpoint(run.id, range_read.sequence, range_read.end, behind)
        run.trouble.over()
        run.size.took(
            range_read.took, range_read.given_rows, range_read.planning + self._clock.now() - began
        )
        with self._changed:
            run.ranges.remove(range_read)
            run.ends.pop(range_read.sequence, None)
            run.done.pop(range_read.sequence, None)
            run.dropped.pop(range_read.sequence, None)
            run.token, run.sequence = range_read.end, range_read.sequence + 1
            run.settle = None if run.channel.is_base else range_read.end
            self._changed.notify_all()
        run.reading.ask()

    def _fix(self, run: ChannelRun, range_read: RangeRead) -> None:
        began = self._clock.now()
        end = self._client.hand_out(run.id, range_read.sequence, range_read.end)
        range_read.planning += self._clock.now() - began
        if end == range_read.start:  # the channel was split here
            run.until = end
            self._drop(run, range_read)
            run.reading.ask()
            return
        run.ends[range_read.sequence] = end
        if end == range_read.end:
            with self._changed:
                if range_read.stage is Stage.READ:
                    range_read.stage = Stage.FIXED
            self._give_next(run)
            return
        # It was assigned before, with another end, and that one counts.
        self._drop(run, range_read)
        run.reading.ask()

    def _park(self, run: ChannelRun, error: BaseException, table: str) -> None:
        reason = (
            f"{table}: {type(error).__name__}: {error}"
            if table
            else f"{type(error).__name__}: {error}"
        )
        reason = reason[:2000]
        self._client.park(run.id, run.sequence, reason)
        _log.error(
            "channel %s of tunnel %s is parked, the others continue: range %d failed repeatedly (%s). "
            "Fix the cause, then `spark-channel tunnel resume %s --channel %s`",
            run.id,
            self._record.name,
            run.sequence,
            reason,
            self._client.named,
            run.id,
        )
        self._over_with(run, finished=False)
        try:
            self._end_if_nothing_is_left()
        except TunnelStoreError as away:
            _log.warning("%s; the next heartbeat asks again", away)

    def _wait_after(
        self,
        run: ChannelRun,
        error: BaseException,
        *,
        of_range: bool = False,
        is_read: bool = True,
        table: str = "",
    ) -> float | None:
        """Seconds until it is tried again; None: not by this client. `is_read`: it is not the processor's."""
        # A client that starts again may continue with other columns; one that runs meets the same error each time.
        has_other_columns = (
            isinstance(error, SchemaError)
            and is_read
            and not run.channel.is_base
            and run.source.feed.has_one_schema
        )
        is_missing = error is run.source.feed.missing
        is_limit_lost = isinstance(error, LimitError) and is_read  # of no channel, so it parks none
        is_final = (
            has_other_columns
            or is_missing
            or is_limit_lost
            or (isinstance(error, TunnelError) and not of_range)
        )
        if self._is_passing(error):
            verdict, wait = run.trouble.no_answer(self._clock.now())
        elif is_final or not isinstance(error, Exception):
            verdict, wait = FailureAction.STOP, 0.0
        elif of_range and is_read and isinstance(error, ChannelError) and error.is_final:
            verdict, wait = run.trouble.refused(), 0.0
        else:
            verdict, wait = run.trouble.failed()
        match verdict:
            case FailureAction.AGAIN:
                _log.warning(
                    "channel %s: %s; trying again in %.1f s", run.name_of(table), error, wait
                )
                return wait
            case FailureAction.PARK:
                self._parked_by = self._parked_by or error
                with self._changed:
                    run.parked_by = error, table
                self._drop(run, unprocessed=True)
                run.storing.ask()
            case FailureAction.STOP:
                self._end(error)
        return None

    def _ends_all(self, error: BaseException) -> bool:
        """Whether an error of one table ends this client before the others of its range are processed."""
        parks = self._stream.options.on_error == "park"
        is_passing = isinstance(error, ReadCancelledError) or self._is_passing(error)
        return not isinstance(error, Exception) or not (parks or is_passing)

    def _is_passing(self, error: BaseException) -> bool:
        return isinstance(error, TunnelStoreError) or self._stream.feed.is_passing(error)


def _is_drained(run: ChannelRun, start: Token) -> bool:
    return start == (READ if run.channel.is_base else run.until)


class _Deliver(CarrierConsumer):
    """Starts the processing of one delivery with its first batches, or at its end where it has none."""

    def __init__(
        self, host: ChannelTurns, run: ChannelRun, range_read: RangeRead, rows: DeliveryRows
    ) -> None:
        self._host = host
        self._run = run
        self._range = range_read
        self._rows = rows
        self._begun = False

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        if not self._begun:
            self._begun = True
            self._host.deliver(self._run, self._range, self._rows, batches)

    def on_exit(self) -> None:
        self.consume([])
