"""The life of a consuming process: its client, its threads, and the runs of its channels, without Spark."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spark_channel.carrier import BulkConsumePool
from spark_channel.channel.capacity import Limiter
from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.feed import FeedLag, FeedLimit
from spark_channel.errors import (
    TunnelError,
    TunnelStoreError,
)
from spark_channel.limits import CombinedLimiter, LeaseLimiter, RateLimiter
from spark_channel.plain_text import log_of
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
from spark_channel.tunnel.checkpointing import ChannelTurns
from spark_channel.tunnel.client import TunnelClient
from spark_channel.tunnel.job import ConsumerJob, lag_of
from spark_channel.tunnel.ranges import ReadAheadBudget, Stage
from spark_channel.tunnel.records import (
    Channel,
    ChannelState,
    Client,
    TunnelRecord,
    TunnelStore,
)
from spark_channel.tunnel.source import StreamSource, held_base, paused_base

if TYPE_CHECKING:
    from spark_channel.service.protocol import SharedLimitAddress

__all__ = ["Delivery", "Processor", "TunnelWorker"]

_log = log_of(__name__)

_LOOK_SECONDS = 0.5
"""How often the end looks whether a shared limit still answers."""
_UNANSWERED_SECONDS = 1.5
"""A client that SIGTERM ends counts it as lost when it has not answered for so long."""
_SILENT_SECONDS = 2.0
"""How often the end asks whether another client that has channels lives."""
_LOST_LIMIT_SECONDS = 60.0
"""How long a client that is to end waits for a shared limit that does not answer, unless `outageTimeout` says it."""
_FOREVER = 1e8
"""The same for one that has no end: three years."""
_LEAVE_SECONDS = 3.0
"""How long the end waits for all reads that hang in the source: they are daemons, and left behind."""
_CHECKPOINT_SECONDS = 2.0
_HURRIED_READS_SECONDS = 1.5
_HURRIED_SECONDS = 3.5
_REPORT_SECONDS = 0.5
"""After SIGTERM: how long the checkpoints of processed ranges may take, then the reads, all that hangs together, and at
least the report. A store that took all of the first has none of the last, so that 4 s end a client that processes
nothing."""


class TunnelWorker(ChannelTurns):
    """One `consume` call: client, turns, pool, and the runs of channels.

    Args:
        processor: one for all channels; or `factory`, which makes one for each.
        drained: end when all that was there at the start is processed (see `StopPosition`); else run until `stop`.
        ending: called when the end begins, with the error that ends it, if any. Must return immediately.
        shown: further facts of the job that it reports, `target` and `part_of` of `JobSpec`.
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
        shown: Mapping[str, str] | None = None,
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
        rate_limiter = None if rates == (None, None) else RateLimiter(*rates)
        self._limit: Limiter | None = rate_limiter
        self._lease: LeaseLimiter | None = None
        self._shared = None if reading.shared_limit is None else self._find_shared()
        if reading.is_protected:
            _log.warning(
                "option 'protect' has no effect on a tunnel that is read without Spark: "
                "limit this client with 'rowsPerSecond', or read the tunnel by a streaming query"
            )
        self._job = ConsumerJob(
            record.name,
            self._stream,
            self._options,
            rate_limiter,
            self._lag,
            shown or {},
            self._shared,
        )
        self._turns = TurnScheduler(threads, self._end, clock=self._clock)
        # Calls of the store, which must wait neither for a read nor for a processor.
        self._calls = TurnScheduler(min(threads, 4), self._end, clock=self._clock)
        self._pool = BulkConsumePool(threads, name=f"tunnel-{record.name}", clock=self._clock)
        self._changed = threading.Condition()
        self._runs: dict[str, ChannelRun] = {}
        self._first_heard: Mapping[str, float] | None = None
        """When the store had last heard of each client, at this client's first look."""
        self._is_asking = self._is_store_silent = False
        self._warned_of = ""
        self._idle_runs: set[str] = set()
        self._over = False
        self._hurried = False
        self._leave_by = 0.0
        """When a client that SIGTERM ends leaves behind what hangs."""
        self._error: BaseException | None = None
        self._parked_by: BaseException | None = None

    @property
    def client(self) -> TunnelClient:
        return self._client

    def run(self) -> None:
        """Consume until `stop`, or until all is drained. Everything is released when it returns or raises.

        Raises:
            TunnelError: the tunnel was deleted, or all that is left of it is parked. SystemExit: SIGTERM was received.
            LimitError: the shared limit did not answer for too long, or refused this client.
            Anything: what the processor or the source raised.
        """
        with SigtermHandler(self._terminate) as sigterm, self._sharing():
            self._turns.start()
            self._calls.start()
            self._job.start()
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
                try:
                    self._leave()
                finally:
                    if self._hurried:
                        left = max(_REPORT_SECONDS, self._leave_by - self._clock.now())
                        self._job.end(self._error, left)
                    else:
                        self._job.end(self._error)
        if self._error is not None:
            raise self._error
        if sigterm.came:
            raise SystemExit(TERMINATED)

    def _find_shared(self) -> "SharedLimitAddress":
        """
        Raises:
            OptionError: the limit that option `sharedLimit` names is not served, or its token is missing.
        """
        from spark_channel.service.shared_limit import find_shared_limit

        options = self._stream.reader.options
        token = options.shared_limit_token
        secret = None if token is None else token.get_secret_value()
        return find_shared_limit(str(options.shared_limit), secret)

    @contextmanager
    def _sharing(self) -> Iterator[None]:
        """Also spend the shared limit in a `with` block, if there is one."""
        if self._shared is None:
            yield
            return
        from spark_channel.service.leases import leased

        rate_limiter, timeout = self._limit, self._stream.options.outage_timeout
        if timeout is None:
            timeout = _LOST_LIMIT_SECONDS if self._drained else _FOREVER
        with leased(self._find_shared, self._record.name, self._client.id, timeout) as shared:
            self._lease = shared
            self._limit = (
                shared if rate_limiter is None else CombinedLimiter([rate_limiter, shared])
            )
            yield

    def stop(self) -> None:
        """End `run` after the ranges at hand, from any thread."""
        self._end(None)

    def keeping(self, delivery: Delivery) -> Callable[[], bool]:
        """Return a call that waits until the checkpoint of `delivery` is stored; it returns False if it never will be.

        A delivery of one table does not wait for other tables of its range: True then means that this client does not
        deliver it again, although the checkpoint is not stored yet.
        """
        table, sequence = delivery.table, delivery.sequence
        channel = delivery.channel.removesuffix(f"/{table}") if table else delivery.channel
        with self._changed:
            run = self._runs.get(channel)
            range_read = (
                None
                if run is None
                else next((r for r in run.ranges if r.sequence == sequence), None)
            )

        def kept() -> bool:
            if run is None or range_read is None:
                return False
            with self._changed:
                while run.sequence <= sequence:
                    if run.lost or run.closed:
                        return False
                    if (
                        table
                        and range_read.stage is not Stage.DONE
                        and range_read.outcome(table) is not None
                    ):
                        return bool(range_read.outcome(table))
                    if range_read not in run.ranges:
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

    def heartbeat_done(self) -> None:
        self._stream.feed.rest()
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

    def _lag(self, source: StreamSource) -> FeedLag:
        """Return how far the channels of this client are behind `source`, which no other thread uses."""
        with self._changed:
            positions = [(run.channel, run.token) for run in self._runs.values()]
        return lag_of(source, positions)

    def stop_channel(self, channel: str) -> None:
        run = self._runs.get(channel)
        if run is not None:
            run.stopping = True
            # Its turn may wait for memory that only its next range gives back.
            self._drop(run, unprocessed=True)
            run.reading.ask()

    def _dial(self, channel: Channel, trouble: FailurePolicy | None = None) -> float | None:
        trouble = trouble or self._new_trouble()
        settings = self._stream.options
        try:
            current = self._store.channel(self._record.name, channel.id)
            # A feed is used by one thread at a time: each run has its own.
            source = StreamSource(self._options)
            source.feed.share(self._stream.feed)
            if not channel.is_base:
                # The client that took the checkpoint may have ended before it settled.
                source.feed.settle(current.token)
                source.feed.is_followed = not self._drained
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
        # Ranges that an earlier client has planned keep their ends: what it delivered of them comes again as it was.
        ends = {current.sequence: current.pending, current.sequence + 1: current.after}
        run = ChannelRun(
            current,
            source,
            current.token,
            current.sequence,
            {sequence: end for sequence, end in ends.items() if end is not None},
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
            processor = self._processor if self._factory is None else self._factory(channel)
            assert processor is not None
            opens = getattr(processor, "opened", None)
            if callable(opens):
                opens(channel)
            run.processors[table] = (
                ChannelProcessor(channel, processor.process, processor.shutdown)
                if isinstance(processor, Processor)
                else ChannelProcessor(channel, processor)
            )

    def _over_with(self, run: ChannelRun, *, finished: bool) -> None:
        if self._shut(run):
            self._client.ended(run.id, finished=finished)

    def _shut(self, run: ChannelRun) -> bool:
        """Notify the processor of the channel's end; return False when that was done before."""
        with self._changed:
            if run.closed:
                return False
            run.closed = True
            self._runs.pop(run.id, None)
            self._idle_runs.discard(run.id)
            ranges = list(run.ranges)
            self._changed.notify_all()
        for range_read in ranges:
            range_read.cancel()
        run.source.feed.is_followed = False
        run.source.feed.release()
        for processor in run.processors.values():
            if processor.closes is None:
                continue
            try:
                processor.closes(processor.channel)
            except Exception:
                _log.exception("the processor's shutdown of channel %s failed", processor.channel)
        return True

    def _idle(self, run: ChannelRun, sequence: int) -> None:
        """Called when no rows follow the range before `sequence`, which may have failed meanwhile."""
        with self._changed:
            if not run.closed and not run.ranges and run.planned_sequence == sequence:
                self._idle_runs.add(run.id)
            else:
                self._idle_runs.discard(run.id)
            asks = self._drained and len(self._idle_runs) == len(self._runs)
        if asks:
            self._end_if_nothing_is_left()

    def _end_if_nothing_is_left(self) -> None:
        """All that this client can have is drained or parked: what is left belongs to other clients that live.

        A client that the store has not heard of since this one began may be dead, and leave rows that were there at the
        start: its heartbeat or the end of its lease is waited for. Without `drained` it ends only where no client can
        have anything, ever: all is drained for good, or all that is left is parked.
        """
        state = self._store.state(self._record.name)
        if self._first_heard is None:
            self._first_heard = {key: client.last_seen for key, client in state.clients.items()}
        parked, paused, is_over = None, None, True
        is_held, silent = False, ""
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
                other = state.clients.get(channel.client)
                if other is None or other.last_seen == self._first_heard.get(other.id):
                    silent = channel.client
                continue
            run = self._runs.get(channel.id)
            if run is None or run.id not in self._idle_runs:
                return
            if channel.until not in (None, run.until):  # it was split: another one follows
                run.until = channel.until
                run.reading.ask()
                return
            if channel.has_base:
                is_held = not channel.paused and self._is_held(run)
                if not channel.paused and not is_held:
                    return  # it was resumed, which its client hears of at its next heartbeat
                paused = channel.id
        if silent:
            self._await_client(silent, state.clients.get(silent))
            return
        if parked is None and paused is not None:
            source = f"channel {paused} of tunnel {self._record.name!r}"
            self._end(held_base(source, self.held_seconds) if is_held else paused_base(source))
            return
        if parked is None:
            if self._drained or is_over:
                self._end(None)
            return
        text = (
            f"channel {parked.id} of tunnel {self._record.name!r} is parked ({parked.parked}); mend the cause, then "
            f"`spark-channel tunnel resume {self._store.named(self._record.name)}`"
        )
        error = self._parked_by
        if error is None:
            error = TunnelError(text)
        else:
            error.add_note(text)
        self._end(error)

    def _await_client(self, name: str, client: Client | None) -> None:
        """Send heartbeats until the client is heard of, or its channels come to this one."""
        with self._changed:
            if self._is_asking:
                return
            self._is_asking = True
        age = 0.0 if client is None else self._store.now() - client.last_seen
        is_old = age > self._stream.options.heartbeat_interval
        if client is not None and is_old and name != self._warned_of:
            self._warned_of = name
            _log.warning(
                "tunnel %s: waiting for channels of client %s, which was last heard of %.0f s ago: they come free "
                "%g s after that (its heartbeatTimeout)",
                self._record.name,
                name,
                age,
                client.timeout,
            )
        self._calls.add("a silent client", self._ask_again, _SILENT_SECONDS)

    def _ask_again(self) -> None:
        with self._changed:
            self._is_asking = False
        self._client.wake()

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
        """Give back the channels that are not being processed immediately, and the others after their range."""
        with self._changed:
            self._over = True
            runs = list(self._runs.values())
            broken = self._error is not None
        for run in runs:
            self._drop(run, unprocessed=True)
            if broken:
                for range_read in list(run.ranges):
                    range_read.cancel()
        busy = [run for run in runs if run.is_at_hand()]
        idle = [run for run in runs if run not in busy]
        for run in idle:
            self._shut(run)
        if busy:
            wait = self._begin_at_end(lambda: self._release([run.id for run in idle]))
            self._await(busy)
            wait(_CHECKPOINT_SECONDS)
        stuck = [run for run in busy if run.is_busy()]
        began = self._clock.now()
        self._leave_by = began + _HURRIED_SECONDS
        until = began + (_HURRIED_READS_SECONDS if self._hurried else _LEAVE_SECONDS)
        self._turns.close(until - began)
        self._calls.close(max(0.0, until - self._clock.now()))
        self._pool.close(0.0 if stuck else max(0.0, until - self._clock.now()))
        if stuck:
            _log.warning(
                "still busy after shutdownGrace (%g s) and left behind, to be delivered again: channel %s",
                self._stream.options.shutdown_grace,
                ", ".join(run.id for run in stuck),
            )
        for run in list(self._runs.values()):
            self._shut(run)
        self._stream.feed.rest(ends=True)
        began = self._clock.now()
        self._begin_at_end(self._client.close)(self._leave_by - _REPORT_SECONDS - began)

    def _begin_at_end(self, call: Callable[[], object]) -> Callable[[float], None]:
        """Call the store. A client that SIGTERM ends calls it in a thread, and leaves that behind when the store does
        not answer: what is returned waits for so many seconds since now."""
        if not self._hurried:
            call()
            return lambda _: None
        thread = threading.Thread(target=call, name="spark-channel-tunnel-end", daemon=True)
        began = self._clock.now()
        thread.start()

        def wait(seconds: float) -> None:
            left = max(0.0, began + seconds - self._clock.now())
            thread.join(0.0 if self._is_store_silent else left)
            if thread.is_alive() and not self._is_store_silent:
                self._is_store_silent = True
                _log.warning(
                    "the store of tunnel %s does not answer: the channels come free after heartbeatTimeout",
                    self._record.name,
                )

        return wait

    def _release(self, channels: Collection[str]) -> None:
        try:
            self._client.release(channels)
        except TunnelError as error:
            _log.warning("%s; the channels come free at the end", error)

    def _await(self, busy: Collection[ChannelRun]) -> None:
        """Until these ranges are processed and checkpointed; after SIGTERM for as long as the grace lasts, of which
        checkpoints alone have 2 s.

        A shared limit that does not answer gives no more rows: what waits for it then is delivered again.
        """
        began = self._clock.now()
        silent_since: float | None = None
        processed_at: float | None = None
        with self._changed:
            while any(not run.closed and run.is_at_hand() for run in busy):
                processing = any(run.is_busy() for run in busy)
                if self._error is not None and not processing:
                    return  # a checkpoint that is not answered: the range is delivered again
                seconds_left = None
                if self._hurried or not processing:
                    now = self._clock.now()
                    seconds_left = began + self._stream.options.shutdown_grace - now
                    processed_at = None if processing else processed_at or now
                    if self._hurried and processed_at is not None:
                        seconds_left = min(seconds_left, processed_at + _CHECKPOINT_SECONDS - now)
                    if seconds_left <= 0:
                        break
                    if self._hurried and self._lease is not None:
                        if not self._lease.is_silent:
                            silent_since = None
                        elif silent_since is None:
                            silent_since = now
                        elif now - silent_since >= _UNANSWERED_SECONDS:
                            _cancel(busy)
                        seconds_left = min(seconds_left, _LOOK_SECONDS)
                self._clock.wait(self._changed, seconds_left)
        _cancel(busy)


def _cancel(runs: Collection[ChannelRun]) -> None:
    for run in runs:
        for range_read in list(run.ranges):
            range_read.cancel()
