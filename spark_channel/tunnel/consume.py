"""Reads a tunnel's channels ahead, and hands range after range to a processor, without Spark.

Two kinds of threads: a *turn* plans the next range of a channel and reads it into the range's own carrier, and a
thread of the pool processes the range before it. What is read ahead is bounded by one budget over all channels.
Nothing of a range is handed out before its end is in the store, and its checkpoint is taken after `process`.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_channel.carrier import BulkConsumePool
from spark_channel.carrier import Consumer as CarrierConsumer
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.contracts import Token
from spark_channel.connectors.feed import FeedLimit
from spark_channel.errors import ChannelLostError, FlowError, TunnelError, TunnelStoreError
from spark_channel.pipeline import ReadCancelledError
from spark_channel.tunnel import desk
from spark_channel.tunnel.budget import Budget
from spark_channel.tunnel.client import TunnelClient
from spark_channel.tunnel.delivery import Delivery, Processor
from spark_channel.tunnel.pace import RangeSize
from spark_channel.tunnel.range_read import RangeRead
from spark_channel.tunnel.records import Channel, TunnelRecord
from spark_channel.tunnel.run import Processed, Run
from spark_channel.tunnel.sigterm import TERMINATED, Sigterm
from spark_channel.tunnel.source import READ, StreamSource, base_split
from spark_channel.tunnel.states import ChannelState
from spark_channel.tunnel.store import TunnelStore
from spark_channel.tunnel.trouble import Trouble, Verdict
from spark_channel.tunnel.turns import Turns

__all__ = ["Consumer", "Delivery", "Processor"]

_log = logging.getLogger(__name__)

_LEAVE_SECONDS = 5.0
"""How long the end waits for reads that hang in the source: they are daemons, and left behind."""


class Consumer:
    """One `consume` call: client, turns, pool, and the runs of channels.

    Args:
        processor: one for all channels; or `factory`, which makes one for each.
        drained: end when everything that was there at the start is processed; else run until `stop`.
    """

    def __init__(
        self, store: TunnelStore, record: TunnelRecord, options: Mapping[str, Any],
        processor: Processor | Callable[[Delivery], object] | None, *, threads: int, drained: bool,
        factory: Callable[[str], Processor | Callable[[Delivery], object]] | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._record = record
        self._options = dict(options)
        self._processor = processor
        self._factory = factory
        self._drained = drained
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._stream = StreamSource(options)
        self._stream.check(record)
        settings = self._stream.options
        self._client = TunnelClient(
            store, record, self, tag=settings.client_tag, interval=settings.heartbeat_interval,
            timeout=settings.heartbeat_timeout, clock=self._clock,
        )  # fmt: skip
        reading = self._stream.reader.options
        self._capacity = {
            "capacity_rows": reading.capacity_rows, "capacity_bytes": reading.capacity_bytes,
        }  # fmt: skip
        self._budget = Budget(reading.capacity_rows, reading.capacity_bytes)
        self._turns = Turns(threads, self._end, clock=self._clock)
        # What must not wait for a read: dials, and checkpoints that are tried again.
        self._calls = Turns(1, self._end, clock=self._clock)
        self._pool = BulkConsumePool(threads, name=f"tunnel-{record.name}", clock=self._clock)
        self._changed = threading.Condition()
        self._runs: dict[str, Run] = {}
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
            TunnelError: the tunnel is gone, or all that is left of it is parked. SystemExit: SIGTERM came.
            Anything: what the processor or the source raised.
        """
        with Sigterm(self._terminate) as sigterm:
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

    # --- ChannelHost ---

    def dial(self, channel: Channel) -> None:
        self._calls.add(channel.id, lambda: self._dial(channel))

    def run_channel(self, channel: Channel) -> None:
        self._schedule(self._runs[channel.id])

    def failed(self, error: BaseException) -> None:
        self._end(error)

    def beaten(self) -> None:
        with self._changed:
            asks = self._drained or not self._runs
        if asks:
            try:
                self._end_if_nothing_is_left()
            except TunnelStoreError as error:
                _log.warning("%s; an idle channel's turn asks again", error)

    def stop_channel(self, channel: str) -> None:
        run = self._runs.get(channel)
        if run is not None:
            run.stopping = True
            self._schedule(run)

    # --- turns: what is read ---

    def _dial(self, channel: Channel, trouble: Trouble | None = None) -> float | None:
        trouble = trouble or self._new_trouble()
        settings = self._stream.options
        try:
            current = self._store.state(self._record.name).channels[channel.id]
            # A feed is used by one thread at a time: each run has its own.
            source = StreamSource(self._options)
            if not channel.is_base:
                source.feed.settle(current.token)  # who checkpointed it may have ended before it said so
        except Exception as error:
            verdict, wait = (
                trouble.no_answer(self._clock.now()) if self._is_passing(error) else (Verdict.STOP, 0.0)
            )
            if verdict is Verdict.STOP:
                self._client.dial_failed(channel.id)
                raise
            _log.warning("channel %s: %s; trying again in %.1f s", channel.id, error, wait)
            self._calls.add(channel.id, lambda: self._dial(channel, trouble), wait)
            return None
        limit = FeedLimit(settings.max_rows_per_trigger, settings.max_bytes_per_trigger)
        run = Run(
            channel, source, current.token, current.sequence, current.pending,
            RangeSize(limit, settings.checkpoint_interval), self._new_trouble(),
        )  # fmt: skip
        with self._changed:
            if self._over:
                return None
            self._runs[channel.id] = run
        self._client.dialled(channel.id)
        return None

    def _schedule(self, run: Run, wait: float = 0.0) -> None:
        """Have the channel's turn taken; one thread at a time takes it."""
        with self._changed:
            if run.in_turn:
                run.again = True
                return
            known, run.scheduled = run.scheduled, True
        if known:
            self._turns.hurry(run.id)
        else:
            self._turns.add(run.id, lambda: self._turn(run), wait)

    def _turn(self, run: Run) -> float | None:
        with self._changed:
            run.in_turn, run.again = True, False
        wait: float | None = None
        try:
            wait = self._advance(run)
        except ChannelLostError as error:
            _log.warning("%s", error)
            self._over_with(run, finished=False)
        except Exception as error:
            wait = self._wait_after(run, error)
        finally:
            with self._changed:
                run.in_turn = False
                if run.again:
                    wait = 0.0
                run.scheduled = wait is not None
        return wait

    def _advance(self, run: Run) -> float | None:
        """Plan the next range and read it; seconds until the next one, None until something changes."""
        with self._changed:
            if self._over or run.closed or run.parking:
                return None
            left = run.not_before - self._clock.now()
            if run.stopping:
                busy = run.current is not None and (run.busy or run.processed is not None)
                dropped = None if busy else run.current
            elif run.ahead is not None or run.processed is not None:
                return None
        if run.stopping:
            self._drop_ahead(run)
            if busy:
                return None  # its range ends first
            if dropped is not None:
                dropped.cancel()
            self._over_with(run, finished=False)
            return None
        if left > 0:
            return left
        if run.process is None:
            self._open(run)
        if run.settle is not None:
            run.source.feed.settle(run.settle)
            run.settle = None
        start = run.planned
        if run.channel.is_base and start == READ:
            if run.current is None and run.token == READ:
                self._over_with(run, finished=True)
            return None
        end = self._end_of_range(run, start)
        if end == start:
            self._idle(run)
            return run.backoff.after(0, 0)
        feed = run.source.feed
        splits = [base_split(run.channel)] if run.channel.is_base else feed.changes(start, end)
        found = RangeRead(feed, start, end, splits, self._budget, **self._capacity)
        with self._changed:
            if self._over or run.stopping or run.planned != start:
                found.cancel()
                return 0.0
            run.idle = False
            run.ahead, run.planned = found, end
        self._begin_next(run)
        found.fill()
        full = run.channel.is_base or run.size.is_full(found.rows, found.nbytes)
        return 0.0 if full else run.backoff.after(found.rows, found.nbytes)

    def _end_of_range(self, run: Run, start: Token) -> Token:
        with self._changed:
            pending = run.pending if run.current is None and start == run.token else None
        if pending is not None:
            return pending
        if run.channel.is_base:
            return READ
        return run.source.feed.latest(start, run.size.limit())

    def _begin_next(self, run: Run) -> None:
        """Have what is read ahead processed, once nothing else of the channel is: its end goes to the store first.

        Raises:
            ChannelLostError: another client has the channel. TunnelStoreError: the store does not answer.
        """
        with self._changed:
            if run.current is not None or run.ahead is None or self._over or run.stopping or run.closed:
                return
            found = run.current = run.ahead
            run.ahead = None
        end: Token | None = None
        try:
            end = self._client.hand_out(run.id, run.sequence, found.end)
        finally:
            if (
                end != found.end
            ):  # no answer; or it was handed out before with another end, and that one counts
                with self._changed:
                    run.current, run.planned = None, run.token
                    run.pending = end if end is not None else run.pending
                found.cancel()
        if end != found.end:
            self._schedule(run)
            return
        run.pending = end
        try:
            found.carrier.consume(_Deliver(self, run, found), pool=self._pool)
        except FlowError:  # the pool is closed, or the reading was cancelled: this client ends
            if not self._over and not isinstance(found.carrier.error, ReadCancelledError):
                raise
        except Exception as error:  # it could not be read, which its reader knew first
            self._deliver_failed(run, found, error)

    # --- the pool: what is processed ---

    def deliver(self, run: Run, found: RangeRead, given: Sequence[pa.RecordBatch]) -> None:
        """Process one range, then take its checkpoint. In a thread of the pool; raises nothing."""
        with self._changed:
            if self._over or run.current is not found:
                return
            run.busy = True
            process, sequence = run.process, run.sequence
        assert process is not None
        began = self._clock.now()
        error: BaseException | None = None
        try:
            process(
                Delivery(
                    self._record.name, run.id, sequence, run.channel.is_base, found.start, found.end,
                    found.batches(given),
                )
            )  # fmt: skip
        except BaseException as raised:
            error = raised
        error = found.lost or error  # a processor may have caught it, and has not had all
        found.cancel()  # what it left unread counts as processed
        try:
            if error is not None:
                self._deliver_failed(run, found, error)
            else:
                took = self._clock.now() - began
                run.processed = Processed(found.end, found.given_rows, found.given_bytes, took)
                self._checkpoint(run)
        except BaseException as fatal:
            self._end(fatal)
        finally:
            with self._changed:
                run.busy = False
                self._changed.notify_all()
            self._schedule(run)

    def _deliver_failed(self, run: Run, found: RangeRead, error: BaseException) -> None:
        self._drop_ahead(run)
        with self._changed:
            run.current, run.planned = None, run.token
        found.cancel()
        if (self._over or run.closed) and isinstance(error, ReadCancelledError):
            return
        self._wait_after(run, error, of_range=True)
        self._schedule(run)

    def _checkpoint(self, run: Run) -> None:
        """Take the checkpoint of what is processed, then begin with what is read ahead."""
        done = run.processed
        assert done is not None
        try:
            self._client.checkpoint(run.id, run.sequence, done.end)
            run.trouble.over()
            run.size.took(done.took, done.rows)
            with self._changed:
                run.token, run.pending, run.sequence = done.end, None, run.sequence + 1
                run.settle = None if run.channel.is_base else done.end
                run.processed = run.current = None
                self._changed.notify_all()
            self._begin_next(run)
        except ChannelLostError as error:
            _log.warning("%s", error)
            self._drop_ahead(run)
            self._over_with(run, finished=False)
        except Exception as error:
            wait = self._wait_after(run, error)
            if wait is not None and run.processed is not None:
                self._calls.add(run.id, lambda: self._checkpoint_again(run), wait)
        self._schedule(run)

    def _checkpoint_again(self, run: Run) -> None:
        if not run.closed and run.processed is not None:
            self._checkpoint(run)

    # --- what goes wrong ---

    def _wait_after(self, run: Run, error: BaseException, *, of_range: bool = False) -> float | None:
        """Seconds until it is tried again, before which no turn is taken; None: not by this client."""
        if self._is_passing(error):
            verdict, wait = run.trouble.no_answer(self._clock.now())
        elif not isinstance(error, Exception) or (isinstance(error, TunnelError) and not of_range):
            verdict, wait = Verdict.STOP, 0.0
        else:
            verdict, wait = run.trouble.failed()
        match verdict:
            case Verdict.AGAIN:
                _log.warning("channel %s: %s; trying again in %.1f s", run.id, error, wait)
                run.not_before = self._clock.now() + wait
                return wait
            case Verdict.PARK:
                run.parking = True
                self._parked_by = self._parked_by or error
                self._calls.add(run.id, lambda: self._park(run, error))
            case Verdict.STOP:
                self._end(error)
        return None

    def _park(self, run: Run, error: BaseException) -> float | None:
        why = f"{type(error).__name__}: {error}"[:2000]
        try:
            self._client.park(run.id, run.sequence, why)
        except ChannelLostError as lost:
            _log.warning("%s", lost)
        except TunnelStoreError as away:
            verdict, wait = run.trouble.no_answer(self._clock.now())
            if verdict is Verdict.STOP:
                raise
            _log.warning("channel %s: %s; trying again in %.1f s", run.id, away, wait)
            return wait
        else:
            _log.error(
                "channel %s of tunnel %s is parked, the others run on: range %d failed again and again (%s). "
                "Mend the cause, then `spark-channel tunnel resume %s --channel %s`",
                run.id, self._record.name, run.sequence, why, self._record.name, run.id,
            )  # fmt: skip
        self._over_with(run, finished=False)
        try:
            self._end_if_nothing_is_left()
        except TunnelStoreError as away:
            _log.warning("%s; the next heartbeat asks again", away)
        return None

    def _is_passing(self, error: BaseException) -> bool:
        return isinstance(error, TunnelStoreError) or self._stream.feed.is_passing(error)

    def _new_trouble(self) -> Trouble:
        settings = self._stream.options
        return Trouble(
            settings.max_retry_interval, parks=settings.on_error == "park", outage=settings.outage_timeout
        )

    # --- the life of a run ---

    def _open(self, run: Run) -> None:
        """The channel's processor, from its first turn on."""
        made = self._processor if self._factory is None else self._factory(run.id)
        if isinstance(made, Processor):
            run.process, run.closes = made.process, made.shutdown
        else:
            assert made is not None
            run.process = made
        opened = getattr(made, "opened", None)
        if callable(opened):
            opened(run.id)

    def _drop_ahead(self, run: Run) -> None:
        with self._changed:
            found, run.ahead = run.ahead, None
            if found is not None:
                run.planned = found.start
        if found is not None:
            found.cancel()

    def _over_with(self, run: Run, *, finished: bool) -> None:
        if self._shut(run):
            self._client.ended(run.id, finished=finished)

    def _shut(self, run: Run) -> bool:
        """Tell the processor that no more comes; False when that was done before."""
        with self._changed:
            if run.closed:
                return False
            run.closed = True
            self._runs.pop(run.id, None)
            ranges = [each for each in (run.current, run.ahead) if each is not None]
        for each in ranges:
            each.cancel()
        if run.closes is not None:
            try:
                run.closes(run.id)
            except Exception:
                _log.exception("the processor's shutdown of channel %s failed", run.id)
        return True

    def _idle(self, run: Run) -> None:
        with self._changed:
            run.idle = run.current is None and run.ahead is None
        if run.idle and self._drained:
            self._end_if_nothing_is_left()

    def _end_if_nothing_is_left(self) -> None:
        """All that this client can have is drained or parked: what is left belongs to other clients.

        Without `drained` it ends only where no client can have anything: all that is left is parked.
        """
        state = self._store.state(self._record.name)
        parked = None
        for channel in state.channels.values():
            if channel.state is ChannelState.TERMINATED:
                continue
            if desk.is_blocked(channel, state.channels):
                parked = channel if channel.state is ChannelState.PARKED else parked
                continue
            if not self._drained:
                return
            if channel.client not in ("", self._client.id):
                continue
            run = self._runs.get(channel.id)
            if run is None or not run.idle:
                return
        if parked is None:
            if self._drained:
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

    def _leave(self) -> None:
        """Give back at once what is not processed at this moment, and the rest when it is."""
        with self._changed:
            self._over = True
            runs = list(self._runs.values())
            busy = [run for run in runs if run.busy or run.processed is not None]
            broken = self._error is not None
        for run in runs:
            self._drop_ahead(run)
            if broken and run.current is not None:
                run.current.cancel()
        idle = [run for run in runs if run not in busy]
        for run in idle:
            self._shut(run)
        if busy:
            self._release([run.id for run in idle])
            self._await(busy)
        stuck = [run.id for run in busy if run.busy]
        self._turns.close(_LEAVE_SECONDS)
        self._calls.close(_LEAVE_SECONDS)
        self._pool.close(0.0 if stuck else _LEAVE_SECONDS)
        if stuck:
            _log.warning(
                "still busy after shutdownGrace (%g s) and left behind, to be delivered again: channel %s",
                self._stream.options.shutdown_grace, ", ".join(stuck),
            )  # fmt: skip
        for run in list(self._runs.values()):
            self._shut(run)
        self._client.close()

    def _release(self, channels: Collection[str]) -> None:
        try:
            self._client.release(channels)
        except TunnelError as error:
            _log.warning("%s; the channels come free at the end", error)

    def _await(self, busy: Collection[Run]) -> None:
        """Until these ranges are processed and checkpointed; after SIGTERM for as long as the grace lasts."""
        began = self._clock.now()
        with self._changed:
            while any(not run.closed and (run.busy or run.processed is not None) for run in busy):
                broken = self._error is not None
                if broken and not any(run.busy for run in busy):
                    return  # a checkpoint that is not answered: the range is delivered again
                left = None
                if self._hurried or not any(run.busy for run in busy):
                    left = began + self._stream.options.shutdown_grace - self._clock.now()
                    if left <= 0:
                        for run in busy:
                            if run.current is not None:
                                run.current.cancel()
                        return
                self._clock.wait(self._changed, left)


class _Deliver(CarrierConsumer):
    """Starts the processing of one range with its first batches, or at its end where it has none."""

    def __init__(self, host: Consumer, run: Run, found: RangeRead) -> None:
        self._host = host
        self._run = run
        self._found = found
        self._begun = False

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        if not self._begun:
            self._begun = True
            self._host.deliver(self._run, self._found, batches)

    def on_exit(self) -> None:
        self.consume([])
