"""Reads a tunnel's channels and hands what comes to a processor, range by range, without Spark."""

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.contracts import Token
from spark_channel.connectors.feed import FeedLimit
from spark_channel.errors import ChannelLostError, TunnelStoreError
from spark_channel.pipeline import GroupRead, ReadCancelledError
from spark_channel.planning import Split, Task, TaskGroup
from spark_channel.tunnel.backoff import Backoff, reconnect_delay
from spark_channel.tunnel.client import TunnelClient
from spark_channel.tunnel.pace import RangeSize
from spark_channel.tunnel.records import Channel, TunnelRecord
from spark_channel.tunnel.source import READ, StreamSource, base_split
from spark_channel.tunnel.states import ChannelState
from spark_channel.tunnel.store import TunnelStore
from spark_channel.tunnel.turns import Turns

__all__ = ["Consumer", "Delivery", "Processor"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """One range of one channel. (`channel`, `sequence`) names the same rows for ever: whoever keeps it with
    the rows, in one transaction, has them once, also when the range is delivered again.

    `batches` is read while it is iterated; what the processor leaves unread counts as processed.
    """

    tunnel: str
    channel: str
    sequence: int
    is_base: bool
    start: Token
    end: Token
    batches: Iterator[pa.RecordBatch]


@runtime_checkable
class Processor(Protocol):
    """What a consumer calls; a plain function serves as `process` alone."""

    def process(self, delivery: Delivery) -> None:
        """Take a range. It is checkpointed when this returns, and delivered again when it raises."""

    def shutdown(self, channel: str) -> None:
        """No more of `channel` comes here: it is drained, or another client has it, or all is over."""


@dataclass
class _Run:
    """One channel while this client has it."""

    channel: Channel
    source: StreamSource
    token: Token
    sequence: int
    pending: Token | None
    backoff: Backoff
    size: RangeSize
    stopping: bool = False
    idle: bool = False
    processed: tuple[Token, int, int] | None = None
    """The end, rows and bytes of a range that is processed, while its checkpoint is not taken."""
    took: float = 0.0
    lost: BaseException | None = None
    """What ended the reading of the range at hand."""
    failures: int = 0
    failing_since: float = 0.0


class Consumer:
    """One `consume` call: client, turns, and the runs of channels.

    Args:
        drained: end when everything that was there at the start is processed; else run until `stop`.
    """

    def __init__(
        self, store: TunnelStore, record: TunnelRecord, options: Mapping[str, Any],
        processor: Processor | Callable[[Delivery], object], *, threads: int, drained: bool,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._record = record
        self._options = dict(options)
        self._processor = processor
        self._drained = drained
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._stream = StreamSource(options)
        self._stream.check(record)
        settings = self._stream.options
        self._client = TunnelClient(
            store, record, self, tag=settings.client_tag, interval=settings.heartbeat_interval,
            timeout=settings.heartbeat_timeout, clock=self._clock,
        )  # fmt: skip
        self._patience = settings.heartbeat_timeout
        self._turns = Turns(threads, self._end, clock=self._clock)
        self._changed = threading.Condition()
        self._runs: dict[str, _Run] = {}
        self._cancelled: dict[str, GroupRead] = {}
        self._over = False
        self._error: BaseException | None = None

    @property
    def client(self) -> TunnelClient:
        return self._client

    def run(self) -> None:
        """Consume until `stop`, or until all is drained. Everything is released when it returns or raises.

        Raises:
            TunnelError: the tunnel is gone. Anything: what the processor or the source raised.
        """
        self._turns.start()
        try:
            self._client.start()
            with self._changed:
                while not self._over:
                    self._clock.wait(self._changed)
        finally:
            with self._changed:
                self._over = True
                for read in self._cancelled.values():
                    read.cancel()
            self._turns.close()
            for key in list(self._runs):
                self._shut(key)
            self._client.close()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End `run` after the ranges at hand, from any thread."""
        self._end(None)

    # --- ChannelHost ---

    def dial(self, channel: Channel) -> None:
        self._turns.add(channel.id, lambda: self._dial(channel))

    def run_channel(self, channel: Channel) -> None:
        run = self._runs[channel.id]
        self._turns.add(channel.id, lambda: self._turn(run))

    def failed(self, error: BaseException) -> None:
        self._end(error)

    def beaten(self) -> None:
        if self._drained:
            try:
                self._end_if_drained()
            except TunnelStoreError as error:
                _log.warning("%s; an idle channel's turn asks again", error)

    def stop_channel(self, channel: str) -> None:
        run = self._runs.get(channel)
        if run is not None:
            run.stopping = True
            self._turns.hurry(channel)

    # --- turns ---

    def _dial(self, channel: Channel, attempt: int = 0, since: float | None = None) -> None:
        settings = self._stream.options
        limit = RangeSize(
            FeedLimit(settings.max_rows_per_trigger, settings.max_bytes_per_trigger),
            settings.checkpoint_interval,
        )
        try:
            current = self._store.state(self._record.name).channels[channel.id]
            # A feed is used by one thread at a time: each run has its own.
            source = StreamSource(self._options)
            if not channel.is_base:
                source.feed.settle(current.token)  # who checkpointed it may have ended before it said so
        except Exception as error:
            now = self._clock.now()
            since = now if since is None else since
            if not self._is_passing(error) or now - since > self._patience:
                self._client.dial_failed(channel.id)
                raise
            wait = reconnect_delay(attempt)
            _log.warning("channel %s: %s; trying again in %.1f s", channel.id, error, wait)
            self._turns.add(channel.id, lambda: self._dial(channel, attempt + 1, since), wait)
            return
        self._runs[channel.id] = _Run(
            channel, source, current.token, current.sequence, current.pending, Backoff(), limit
        )
        self._client.dialled(channel.id)

    def _turn(self, run: _Run) -> float | None:
        """Read, process and checkpoint one range; seconds until the next one."""
        try:
            wait = self._advance(run)
        except ChannelLostError as error:
            _log.warning("%s", error)
            self._over_with(run, finished=False)
            return None
        except BaseException as error:
            if self._over and isinstance(run.lost, ReadCancelledError):
                return None  # this client ends: the range is read again by the next one
            return self._again(run, error)
        run.failures = 0
        return wait

    def _again(self, run: _Run, error: BaseException) -> float:
        """Seconds until the turn is taken again, after a connection to the store or the source was lost.

        Raises:
            BaseException: `error`, which is of another kind, or has lasted for longer than a client may be silent.
        """
        now = self._clock.now()
        if not run.failures:
            run.failing_since = now
        # What the processor made of the source's error does not count.
        cause = error if run.lost is None else run.lost
        if not self._is_passing(cause) or now - run.failing_since > self._patience:
            raise error
        wait = reconnect_delay(run.failures)
        run.failures += 1
        _log.warning("channel %s: %s; trying again in %.1f s", run.channel.id, cause, wait)
        return wait

    def _is_passing(self, error: BaseException) -> bool:
        return isinstance(error, TunnelStoreError) or self._stream.feed.is_passing(error)

    def _advance(self, run: _Run) -> float | None:
        run.lost = None
        if run.processed is not None:
            return self._checkpoint(run)
        if run.stopping:
            self._over_with(run, finished=False)
            return None
        if run.channel.is_base and run.token == READ:
            self._over_with(run, finished=True)
            return None
        feed = run.source.feed
        end: Token
        if run.pending is not None:
            end = run.pending
        elif run.channel.is_base:
            end = READ
        else:
            end = feed.latest(run.token, run.size.limit())
        if end == run.token:
            self._idle(run)
            return run.backoff.after(0, 0)
        run.idle = False
        end = run.pending = self._client.hand_out(run.channel.id, run.sequence, end)
        splits = [base_split(run.channel)] if run.channel.is_base else feed.changes(run.token, end)
        began = self._clock.now()
        rows, nbytes = self._process(run, end, splits)
        run.processed = end, rows, nbytes
        run.took = self._clock.now() - began
        return self._checkpoint(run)

    def _checkpoint(self, run: _Run) -> float:
        """Take the checkpoint of what is processed; seconds until the next turn."""
        assert run.processed is not None
        end, rows, nbytes = run.processed
        self._client.checkpoint(run.channel.id, run.sequence, end)
        full = run.size.is_full(rows, nbytes)
        run.size.took(run.took, rows)
        run.token, run.pending, run.processed, run.sequence = end, None, None, run.sequence + 1
        if run.channel.is_base:
            return 0.0
        run.source.feed.settle(end)
        return 0.0 if full else run.backoff.after(rows, nbytes)

    def _process(self, run: _Run, end: Token, splits: list[Split]) -> tuple[int, int]:
        settings = run.source.reader.options
        tasks = tuple(Task(number, split) for number, split in enumerate(splits))
        read = GroupRead(
            run.source.feed, TaskGroup(0, tasks, min(1, len(tasks))), run.source.feed.schema(),
            capacity_rows=settings.capacity_rows, capacity_bytes=settings.capacity_bytes,
        )  # fmt: skip
        counted = [0, 0]

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for batch in found:
                    counted[0] += batch.num_rows
                    counted[1] += batch.nbytes
                    yield batch
            except Exception as error:
                run.lost = error
                raise

        with contextlib.closing(cast("Generator[pa.RecordBatch]", read.batches())) as found:
            with self._changed:
                if self._over:
                    read.cancel()
                self._cancelled[run.channel.id] = read
            try:
                delivery = Delivery(
                    self._record.name, run.channel.id, run.sequence, run.channel.is_base, run.token, end,
                    batches(),
                )  # fmt: skip
                if isinstance(self._processor, Processor):
                    self._processor.process(delivery)
                else:
                    self._processor(delivery)
            finally:
                with self._changed:
                    self._cancelled.pop(run.channel.id, None)
        if run.lost is not None:
            raise run.lost  # the processor caught it, and has not had all
        return counted[0], counted[1]

    def _over_with(self, run: _Run, *, finished: bool) -> None:
        self._shut(run.channel.id)
        self._client.ended(run.channel.id, finished=finished)

    def _shut(self, channel: str) -> None:
        if self._runs.pop(channel, None) is not None and isinstance(self._processor, Processor):
            try:
                self._processor.shutdown(channel)
            except Exception:
                _log.exception("the processor's shutdown of channel %s failed", channel)

    def _idle(self, run: _Run) -> None:
        run.idle = True
        if self._drained:
            self._end_if_drained()

    def _end_if_drained(self) -> None:
        """All that this client can have is drained: what is left belongs to other clients."""
        state = self._store.state(self._record.name)
        for channel in state.channels.values():
            if channel.state is ChannelState.TERMINATED:
                continue
            if channel.client not in ("", self._client.id):
                continue
            run = self._runs.get(channel.id)
            if run is None or not run.idle:
                return
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._error = self._error or error
            self._over = True
            self._changed.notify_all()
