"""Reads a tunnel's channels ahead, and hands range after range to a processor, without Spark.

Three kinds of threads: a *turn* plans the next range of a channel and reads it into the range's own carrier; a
*call* tells the store where it ends, and takes the checkpoint of the range before; a thread of the *pool* processes
one range of a channel at a time, or one table of it. What is read ahead is bounded by one budget over all channels.
Nothing of a range is processed before its end is in the store, and its checkpoint is taken after `process` of all its
tables, in order.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_channel.carrier import BulkConsumePool
from spark_channel.carrier import Consumer as CarrierConsumer
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.errors import (
    ChannelLostError,
    FlowError,
    SchemaError,
    TunnelError,
    TunnelStoreError,
)
from spark_channel.limits import RateLimiter
from spark_channel.pipeline import ReadCancelledError
from spark_channel.signals import TERMINATED, SigtermHandler
from spark_channel.tunnel import state_machine
from spark_channel.tunnel.channel import (
    BackfillStallMonitor,
    ChannelProcessor,
    ChannelRun,
    CoalescedTask,
    Delivery,
    FailureAction,
    FailurePolicy,
    Processor,
    RangeSize,
    StopPosition,
    TurnScheduler,
)
from spark_channel.tunnel.client import TunnelClient
from spark_channel.tunnel.ranges import DeliveryRows, RangeRead, ReadAheadBudget, Stage
from spark_channel.tunnel.records import Channel, ChannelState, TunnelRecord
from spark_channel.tunnel.source import READ, StreamSource, base_split, held_base, paused_base
from spark_channel.tunnel.store import TunnelStore

__all__ = ["Delivery", "Processor", "TunnelWorker"]

_log = logging.getLogger(__name__)

_HELD_SECONDS = 30.0
"""How long a reader that is to end waits for the source to keep less of its log, so that existing rows can be read.
PostgreSQL moves what a slot keeps about every 15 s."""
_TOLD_SECONDS = 1.0
"""A wait for late rows that is told."""
_LEAVE_SECONDS = 5.0
"""How long the end waits for reads that hang in the source: they are daemons, and left behind."""


class TunnelWorker:
    """One `consume` call: client, turns, pool, and the runs of channels.

    Args:
        processor: one for all channels; or `factory`, which makes one for each.
        drained: end when all that was there at the start is processed (see `StopPosition`); else run until `stop`.
        ending: called when the end begins, with the error that ends it, if any. Must return at once.
    """

    def __init__(
        self,
        store: TunnelStore,
        record: TunnelRecord,
        options: Mapping[str, Any],
        processor: Processor | Callable[[Delivery], object] | None,
        *,
        threads: int,
        drained: bool,
        factory: Callable[[str], Processor | Callable[[Delivery], object]] | None = None,
        ending: Callable[[BaseException | None], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._record = record
        self._options = dict(options)
        self._processor = processor
        self._factory = factory
        self._ending = ending
        self._drained = drained
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._stream = StreamSource(options)
        self._stream.check(record)
        if self._stream.experiment:
            _log.warning(self._stream.experiment)
        settings = self._stream.options
        self._client = TunnelClient(
            store,
            record,
            self,
            tag=settings.client_tag,
            interval=settings.heartbeat_interval,
            timeout=settings.heartbeat_timeout,
            clock=self._clock,
            in_flight=self._in_flight,
        )
        reading = self._stream.reader.options
        self._capacity = {
            "capacity_rows": reading.capacity_rows,
            "capacity_bytes": reading.capacity_bytes,
        }
        self._budget = ReadAheadBudget(reading.capacity_rows, reading.capacity_bytes)
        rates = reading.rows_per_second, reading.bytes_per_second
        self._limit = None if rates == (None, None) else RateLimiter(*rates)
        for name, is_given in (
            ("sharedLimit", reading.shared_limit),
            ("protect", reading.protect == "auto"),
        ):
            if is_given:
                _log.warning(
                    "option %r has no effect on a tunnel that is read without Spark: "
                    "limit this client with 'rowsPerSecond', or read the tunnel by a streaming query",
                    name,
                )
        self._turns = TurnScheduler(threads, self._end, clock=self._clock)
        # Calls of the store, which must wait neither for a read nor for a processor.
        self._calls = TurnScheduler(min(threads, 4), self._end, clock=self._clock)
        self._pool = BulkConsumePool(threads, name=f"tunnel-{record.name}", clock=self._clock)
        self._changed = threading.Condition()
        self._runs: dict[str, ChannelRun] = {}
        self._over = False
        self._hurried = False
        self._error: BaseException | None = None
        self._parked_by: BaseException | None = None

    @property
    def client(self) -> TunnelClient:
        return self._client

    def run(self) -> None:
        """Consume until `stop`, or until all is drained. Everything is released when it returns or raises.

        Raises:
            TunnelError: the tunnel is gone, or all that is left of it is parked. SystemExit: SIGTERM was received.
            Anything: what the processor or the source raised.
        """
        with SigtermHandler(self._terminate) as sigterm:
            self._turns.start()
            self._calls.start()
            try:
                if not self._over:
                    self._client.start()
                with self._changed:
                    while not self._over:
                        self._clock.wait(self._changed)
            except BaseException as error:
                self._end(error)
                raise
            finally:
                self._leave()
        if self._error is not None:
            raise self._error
        if sigterm.came:
            raise SystemExit(TERMINATED)

    def stop(self) -> None:
        """End `run` after the ranges at hand, from any thread."""
        self._end(None)

    def keeping(self, delivery: Delivery) -> Callable[[], bool]:
        """For a delivery that is processed now: what waits until its checkpoint is kept; False: it never will be.

        One table's does not wait for other tables of its range: True then tells that it is not delivered again by this
        client, while the checkpoint is not kept.
        """
        table, sequence = delivery.table, delivery.sequence
        channel = delivery.channel.removesuffix(f"/{table}") if table else delivery.channel
        with self._changed:
            run = self._runs.get(channel)
            found = (
                None
                if run is None
                else next((r for r in run.ranges if r.sequence == sequence), None)
            )

        def kept() -> bool:
            if run is None or found is None:
                return False
            with self._changed:
                while run.sequence <= sequence:
                    if run.lost or run.closed:
                        return False
                    if table and found.stage is not Stage.DONE and found.outcome(table) is not None:
                        return bool(found.outcome(table))
                    if found not in run.ranges:
                        return False
                    self._clock.wait(self._changed)
                return True

        return kept

    # --- ChannelHost ---

    def dial(self, channel: Channel) -> None:
        self._calls.add(channel.id, lambda: self._dial(channel))

    def run_channel(self, channel: Channel) -> None:
        self._runs[channel.id].reading.ask()

    def failed(self, error: BaseException) -> None:
        self._end(error)

    def beaten(self) -> None:
        for channel in self._client.running():
            run = self._runs.get(channel.id)
            if run is not None and channel.until not in (None, run.until):  # it was split
                run.until = channel.until
                run.reading.ask()
            if run is not None and channel.paused != run.paused:
                run.paused = channel.paused
                run.reading.ask()
        with self._changed:
            asks = self._drained or not self._runs
        if asks:
            try:
                self._end_if_nothing_is_left()
            except TunnelStoreError as error:
                _log.warning("%s; an idle channel's turn asks again", error)

    def _in_flight(self, channel: str) -> Mapping[str, int] | None:
        with self._changed:
            run = self._runs.get(channel)
            return None if run is None or run.lost else run.in_flight()

    def stop_channel(self, channel: str) -> None:
        run = self._runs.get(channel)
        if run is not None:
            run.stopping = True
            # Its turn may wait for memory that only its next range gives back.
            self._drop(run, unprocessed=True)
            run.reading.ask()

    # --- turns: what is read ---

    def _dial(self, channel: Channel, trouble: FailurePolicy | None = None) -> float | None:
        trouble = trouble or self._new_trouble()
        settings = self._stream.options
        try:
            current = self._store.state(self._record.name).channels[channel.id]
            # A feed is used by one thread at a time: each run has its own.
            source = StreamSource(self._options)
            if not channel.is_base:
                source.feed.settle(
                    current.token
                )  # who checkpointed it may have ended before it said so
        except Exception as error:
            verdict, wait = (
                trouble.no_answer(self._clock.now())
                if self._is_passing(error)
                else (FailureAction.STOP, 0.0)
            )
            if verdict is FailureAction.STOP:
                self._client.dial_failed(channel.id)
                raise
            _log.warning("channel %s: %s; trying again in %.1f s", channel.id, error, wait)
            self._calls.add(channel.id, lambda: self._dial(channel, trouble), wait)
            return None
        limit = FeedLimit(settings.max_rows_per_trigger, settings.max_bytes_per_trigger)
        seconds = min(
            settings.checkpoint_interval, source.feed.range_seconds or settings.checkpoint_interval
        )
        known = {current.sequence: current.pending, current.sequence + 1: current.after}
        run = ChannelRun(
            current,
            source,
            current.token,
            current.sequence,
            {sequence: end for sequence, end in known.items() if end is not None},
            RangeSize(limit, seconds),
            self._new_trouble(),
            BackfillStallMonitor(source.feed, self._clock),
            goal=StopPosition(source.feed, self._clock)
            if self._drained and not channel.is_base
            else None,
        )
        run.reading = CoalescedTask(self._turns, channel.id, lambda: self._read_turn(run))
        run.storing = CoalescedTask(
            self._calls, f"store {channel.id}", lambda: self._store_turn(run)
        )
        with self._changed:
            if self._over:
                return None
            self._runs[channel.id] = run
        self._client.dialled(channel.id)
        return None

    def _read_turn(self, run: ChannelRun) -> float | None:
        try:
            return self._advance(run)
        except Exception as error:
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
            left = run.read_after - self._clock.now()
        if ends:
            self._drop(run, unprocessed=True)
            if not (run.is_busy() if run.lost else run.is_at_hand()):  # else its range ends first
                self._over_with(run, finished=False)
            return None
        if full:
            return None
        if left > 0:
            return left
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
            return None  # what was handed out is processed before its end is told
        held_up = "" if run.paused else run.hold_up.look(start)
        if held_up:
            until = ", and `consume(drained=True)` ends when they are read" if self._drained else ""
            _log.warning("channel %s: %s%s", run.id, held_up, until)
        end = None if _is_drained(run, start) else self._end_of_range(run, start, sequence)
        if end is None:
            if run.token == start:  # else its last checkpoint is on its way
                self._over_with(run, finished=True)
            return None
        if end == start:
            self._idle(run, sequence)
            return run.backoff.after(0, 0)
        feed = run.source.feed
        splits = [base_split(run.channel)] if run.channel.is_base else feed.changes(start, end)
        found = RangeRead(
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
        )
        with self._changed:
            ends = self._over or run.closed or run.stopping or run.lost or run.parked_by is not None
            if ends or run.planned_sequence != sequence:
                return 0.0
            run.idle = False
            run.ranges.append(found)
            run.planned, run.planned_sequence = end, sequence + 1
        run.storing.ask()
        began = self._clock.now()
        found.fill()
        if run.is_by_table:  # it was not processed meanwhile
            found.read_took = self._clock.now() - began
            self._give_next(run)
        full = run.channel.is_base or run.size.is_full(found.rows, found.nbytes)
        return 0.0 if full else run.backoff.after(found.rows, found.nbytes)

    def _end_of_range(self, run: ChannelRun, start: Token, sequence: int) -> Token | None:
        """Where the next range ends; None when nothing is left of the channel, for good."""
        known = run.ends.get(sequence)
        if known is not None:
            return known
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
        """Rows of the channel are read in `wait` seconds."""
        if wait >= _TOLD_SECONDS:
            _log.warning(
                "channel %s: waiting %.0f s for rows that other sessions commit after ones with a higher cursor "
                "value; if one session at a time writes, set lateSeconds=0",
                run.id,
                wait,
            )
        with self._changed:
            run.idle = False
            run.read_after = self._clock.now() + wait
        return wait

    def _is_held(self, run: ChannelRun) -> bool:
        """Whether for so long all changes were processed, and the source kept too much to read existing rows."""
        since = run.held_since
        return since is not None and self._clock.now() - since >= _HELD_SECONDS

    # --- calls: what the store is told ---

    def _store_turn(self, run: ChannelRun) -> float | None:
        """Take the checkpoint of what is processed, fix the end of what is read, or park the channel."""
        left = run.store_after - self._clock.now()
        if left > 0:
            return left
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

    def _checkpoint(self, run: ChannelRun, done: RangeRead) -> None:
        with self._changed:
            behind = run.in_flight(done.sequence + 1)
        self._client.checkpoint(run.id, done.sequence, done.end, behind)
        run.trouble.over()
        run.size.took(done.took, done.given_rows)
        with self._changed:
            run.ranges.remove(done)
            run.ends.pop(done.sequence, None)
            run.done.pop(done.sequence, None)
            run.dropped.pop(done.sequence, None)
            run.token, run.sequence = done.end, done.sequence + 1
            run.settle = None if run.channel.is_base else done.end
            self._changed.notify_all()
        run.reading.ask()

    def _fix(self, run: ChannelRun, found: RangeRead) -> None:
        end = self._client.hand_out(run.id, found.sequence, found.end)
        if end == found.start:  # the channel was split here
            run.until = end
            self._drop(run, found)
            run.reading.ask()
            return
        run.ends[found.sequence] = end
        if end == found.end:
            with self._changed:
                if found.stage is Stage.READ:
                    found.stage = Stage.FIXED
            self._give_next(run)
            return
        # It was handed out before, with another end, and that one counts.
        self._drop(run, found)
        run.reading.ask()

    def _park(self, run: ChannelRun, error: BaseException, table: str) -> None:
        why = (
            f"{table}: {type(error).__name__}: {error}"
            if table
            else f"{type(error).__name__}: {error}"
        )
        why = why[:2000]
        self._client.park(run.id, run.sequence, why)
        _log.error(
            "channel %s of tunnel %s is parked, the others continue: range %d failed repeatedly (%s). "
            "Fix the cause, then `spark-channel tunnel resume %s --channel %s`",
            run.id,
            self._record.name,
            run.sequence,
            why,
            self._record.name,
            run.id,
        )
        self._over_with(run, finished=False)
        try:
            self._end_if_nothing_is_left()
        except TunnelStoreError as away:
            _log.warning("%s; the next heartbeat asks again", away)

    # --- the pool: what is processed ---

    def _give_next(self, run: ChannelRun) -> None:
        """Have the next range processed, if those before it are, and its end is in the store."""
        with self._changed:
            found = run.next_to_give()
            if found is None:
                return
            if self._stops(run, found):
                if found.stage is not Stage.BUSY:
                    return
                found.withdraw()
            given = found.to_give()
            if given and found.stage is Stage.FIXED:
                found.stage = Stage.GIVEN
        for rows in given:
            try:
                rows.carrier.consume(_Deliver(self, run, found, rows), pool=self._pool)
            except (
                FlowError
            ):  # the pool is closed, or the reading was cancelled: this client ends, or the channel
                found.over(rows, is_processed=False)
            except Exception as error:  # it could not be read, which its reader knew first
                rows.lost = rows.lost or error
                found.over(rows, is_processed=False, error=error)
        self._end_of(run, found)

    def _stops(self, run: ChannelRun, found: RangeRead) -> bool:
        """Whether nothing more of a range is to be processed. One that has begun is processed in whole, if it can be,
        so that its checkpoint can be taken."""
        if run.lost or run.closed or found not in run.ranges:
            return True
        return self._error is not None if found.stage is Stage.BUSY else self._over or run.stopping

    def deliver(
        self, run: ChannelRun, found: RangeRead, rows: DeliveryRows, given: Sequence[pa.RecordBatch]
    ) -> None:
        """Process one range, or one table of it. In a thread of the pool; raises nothing."""
        with self._changed:
            stops = self._stops(run, found) or found.stage not in (Stage.GIVEN, Stage.BUSY)
            if stops and found.stage is not Stage.BUSY:
                return
            if not stops and found.stage is Stage.GIVEN:
                found.stage, found.began = Stage.BUSY, self._clock.now()
        error: BaseException | None = None
        if not stops:
            try:
                opened = run.processors[rows.table]
                opened.process(
                    Delivery(
                        self._record.name,
                        opened.channel,
                        found.sequence,
                        run.channel.is_base,
                        found.start,
                        found.end,
                        rows.batches(given),
                        rows.table,
                    )
                )
            except BaseException as raised:
                error = raised
            error = rows.lost or error  # a processor may have caught it, and has not had all
        try:
            if rows.table and error is not None and self._ends_all(error):
                self._end(error)
            self._end_of(run, found, rows, is_processed=not stops and error is None, error=error)
        except BaseException as fatal:
            self._end(fatal)
        finally:
            with self._changed:
                self._changed.notify_all()
            run.storing.ask()
            run.reading.ask()

    def _end_of(
        self,
        run: ChannelRun,
        found: RangeRead,
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
                found.over(rows, is_processed=is_processed, error=error)
            is_last = found.ends()
            if is_last:
                processing = self._clock.now() - found.began if found.stage is Stage.BUSY else 0.0
                found.took = found.read_took + processing
                found.stage = Stage.DONE if found.is_processed else Stage.FIXED
                run.done.setdefault(found.sequence, set()).update(found.processed_tables())
        if rows is not None:
            rows.close()  # what it left unread counts as processed
        if not is_last:
            if rows is not None:  # what is read may wait for the memory of another table
                self._give_next(run)
            return
        failed = found.failed()
        met = failed[0].error if failed else found.lost
        if found.is_processed:
            found.cancel()
            self._give_next(run)
        elif met is not None:
            self._range_failed(run, found, met, failed)
        else:
            self._drop(run, found)
        with self._changed:  # for a stop that waits for its end
            self._changed.notify_all()
        run.storing.ask()
        run.reading.ask()

    def _range_failed(
        self,
        run: ChannelRun,
        found: RangeRead,
        error: BaseException,
        failed: Sequence[DeliveryRows],
    ) -> None:
        """`failed`: its deliveries that failed; none if none was handed out."""
        for other in failed[1:]:
            _log.warning("channel %s: %s", run.name_of(other.table), other.error)
        table, lost = (failed[0].table, failed[0].lost) if failed else ("", found.lost)
        with self._changed:
            known = found in run.ranges
        self._drop(run, found)
        if known and not (
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
                first = next((each for each in run.ranges if each.stage < Stage.BUSY), None)
            dropped = [] if first is None else run.drop_from(first)
        for each in dropped:
            each.cancel()

    # --- what goes wrong ---

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
        is_final = (
            has_other_columns or is_missing or (isinstance(error, TunnelError) and not of_range)
        )
        if self._is_passing(error):
            verdict, wait = run.trouble.no_answer(self._clock.now())
        elif is_final or not isinstance(error, Exception):
            verdict, wait = FailureAction.STOP, 0.0
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

    def _new_trouble(self) -> FailurePolicy:
        settings = self._stream.options
        return FailurePolicy(
            settings.max_retry_interval,
            parks=settings.on_error == "park",
            outage=settings.outage_timeout,
        )

    # --- the life of a run ---

    def _open(self, run: ChannelRun) -> None:
        """The processor of the channel, or of each of its tables, from its first turn on."""
        for table in run.tables:
            if table in run.processors:
                continue
            channel = run.name_of(table)
            made = self._processor if self._factory is None else self._factory(channel)
            assert made is not None
            opens = getattr(made, "opened", None)
            if callable(opens):
                opens(channel)
            run.processors[table] = (
                ChannelProcessor(channel, made.process, made.shutdown)
                if isinstance(made, Processor)
                else ChannelProcessor(channel, made)
            )

    def _over_with(self, run: ChannelRun, *, finished: bool) -> None:
        if self._shut(run):
            self._client.ended(run.id, finished=finished)

    def _shut(self, run: ChannelRun) -> bool:
        """Tell the processor that no more comes; False when that was done before."""
        with self._changed:
            if run.closed:
                return False
            run.closed = True
            self._runs.pop(run.id, None)
            ranges = list(run.ranges)
            self._changed.notify_all()
        for each in ranges:
            each.cancel()
        for opened in run.processors.values():
            if opened.closes is None:
                continue
            try:
                opened.closes(opened.channel)
            except Exception:
                _log.exception("the processor's shutdown of channel %s failed", opened.channel)
        return True

    def _idle(self, run: ChannelRun, sequence: int) -> None:
        """Nothing follows the range before `sequence`, which may have failed meanwhile."""
        with self._changed:
            run.idle = not run.ranges and run.planned_sequence == sequence
        if run.idle and self._drained:
            self._end_if_nothing_is_left()

    def _end_if_nothing_is_left(self) -> None:
        """All that this client can have is drained or parked: what is left belongs to other clients.

        Without `drained` it ends only where no client can have anything, ever: all is drained for good, or all that is
        left is parked.
        """
        state = self._store.state(self._record.name)
        parked, paused, is_over = None, None, True
        is_held = False
        for channel in state.channels.values():
            if channel.state is ChannelState.TERMINATED:
                continue
            is_over = False
            if state_machine.is_blocked(channel, state.channels):
                parked = channel if channel.state is ChannelState.PARKED else parked
                continue
            if not self._drained:
                return
            if channel.client not in ("", self._client.id):
                continue
            run = self._runs.get(channel.id)
            if run is None or not run.idle:
                return
            if channel.has_base:
                is_held = not channel.paused and self._is_held(run)
                if not channel.paused and not is_held:
                    return  # it was resumed, which its client hears of at its next heartbeat
                paused = channel.id
        if parked is None and paused is not None:
            what = f"channel {paused} of tunnel {self._record.name!r}"
            self._end(held_base(what, _HELD_SECONDS) if is_held else paused_base(what))
            return
        if parked is None:
            if self._drained or is_over:
                self._end(None)
            return
        text = (
            f"channel {parked.id} of tunnel {self._record.name!r} is parked ({parked.parked}); mend the cause, then "
            f"`spark-channel tunnel resume {self._record.name}`"
        )
        error = self._parked_by
        if error is None:
            error = TunnelError(text)
        else:
            error.add_note(text)
        self._end(error)

    # --- the end ---

    def _terminate(self) -> None:
        with self._changed:
            self._hurried = True
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._error = self._error or error
            self._over = True
            self._changed.notify_all()
        if self._ending is not None:
            self._ending(error)

    def _leave(self) -> None:
        """Give back at once what is not processed at this moment, and the rest when it is."""
        with self._changed:
            self._over = True
            runs = list(self._runs.values())
            broken = self._error is not None
        for run in runs:
            self._drop(run, unprocessed=True)
            if broken:
                for each in list(run.ranges):
                    each.cancel()
        busy = [run for run in runs if run.is_at_hand()]
        idle = [run for run in runs if run not in busy]
        for run in idle:
            self._shut(run)
        if busy:
            self._release([run.id for run in idle])
            self._await(busy)
        stuck = [run for run in busy if run.is_busy()]
        self._turns.close(_LEAVE_SECONDS)
        self._calls.close(_LEAVE_SECONDS)
        self._pool.close(0.0 if stuck else _LEAVE_SECONDS)
        if stuck:
            _log.warning(
                "still busy after shutdownGrace (%g s) and left behind, to be delivered again: channel %s",
                self._stream.options.shutdown_grace,
                ", ".join(run.id for run in stuck),
            )
        for run in list(self._runs.values()):
            self._shut(run)
        self._client.close()

    def _release(self, channels: Collection[str]) -> None:
        try:
            self._client.release(channels)
        except TunnelError as error:
            _log.warning("%s; the channels come free at the end", error)

    def _await(self, busy: Collection[ChannelRun]) -> None:
        """Until these ranges are processed and checkpointed; after SIGTERM for as long as the grace lasts."""
        began = self._clock.now()
        with self._changed:
            while any(not run.closed and run.is_at_hand() for run in busy):
                processing = any(run.is_busy() for run in busy)
                if self._error is not None and not processing:
                    return  # a checkpoint that is not answered: the range is delivered again
                left = None
                if self._hurried or not processing:
                    left = began + self._stream.options.shutdown_grace - self._clock.now()
                    if left <= 0:
                        break
                self._clock.wait(self._changed, left)
        for run in busy:
            for each in list(run.ranges):
                each.cancel()


def _is_drained(run: ChannelRun, start: Token) -> bool:
    return start == (READ if run.channel.is_base else run.until)


class _Deliver(CarrierConsumer):
    """Starts the processing of one delivery with its first batches, or at its end where it has none."""

    def __init__(
        self, host: TunnelWorker, run: ChannelRun, found: RangeRead, rows: DeliveryRows
    ) -> None:
        self._host = host
        self._run = run
        self._found = found
        self._rows = rows
        self._begun = False

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        if not self._begun:
            self._begun = True
            self._host.deliver(self._run, self._found, self._rows, batches)

    def on_exit(self) -> None:
        self.consume([])
