"""A consumer of a tunnel as one job, which the page, the metrics and the lineage of this process's service show."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import FeedLag
from spark_channel.errors import ChannelError
from spark_channel.limits import LimitStatus, RateLimiter, StatusRequest
from spark_channel.observers import is_wanted
from spark_channel.plain_text import log_of
from spark_channel.progress import Counters, JobColumn, JobSpec, Phase
from spark_channel.service.launch import serve_here
from spark_channel.service.running import RunningService, running_service
from spark_channel.transfers.job_spec import read_spec
from spark_channel.tunnel.positions import LagWatch, added_up
from spark_channel.tunnel.records import Channel
from spark_channel.tunnel.source import READ, StreamSource, base_split

if TYPE_CHECKING:
    from spark_channel.service.protocol import SharedLimitAddress
    from spark_channel.service.reporter import LimitSubscription

__all__ = ["ConsumerJob", "lag_of"]

_log = log_of(__name__)

_FIRST_LAG_SECONDS = 10.0
"""A consumer that ends sooner does not measure its lag."""
_REPORT_SECONDS = 0.5
_HEARTBEAT_SECONDS = 60.0
"""A service closes a job of which it hears nothing for an hour."""
_LOOK_SECONDS = 5.0
_SERVE_SECONDS = 1.0
"""A consumer that ends sooner starts no service."""
_SHARED_SECONDS = 0.5
"""How long a look at the shared limit takes at most: the end of a consumer waits for it."""
_END_SECONDS = 2.0
"""How long the end of a consumer waits for its last report."""
_SLOWEST = 1e-6
"""Rows per second while the limit is paused."""
_LATE_SECONDS = 5.0
"""A job that begins later does not show what the consumer did before."""
_serving = threading.Lock()
"""One service for all consumers of the process."""


class ConsumerJob:
    """Counts what a consumer reads and processes, and reports it as a job of the tunnel's name.

    The consumer only counts: two threads do the rest, and no failure of theirs reaches the consumer. A process without
    a service gets one when the consumer has run for a second, or immediately if its environment names a receiver of
    jobs. A job that begins later, with another service, counts from then on. The service's limit of the job sets the
    speed of `limit`.

    Args:
        options: those of the source, for a second connection.
        lag: returns how far the consumer is behind a source, which no other thread uses.
        shown: further facts of the job, `target` and `part_of` of `JobSpec`.
        shared: a limit that others spend, too, which is shown with the job.
    """

    def __init__(
        self,
        name: str,
        source: StreamSource,
        options: Mapping[str, Any],
        limit: RateLimiter | None,
        lag: Callable[[StreamSource], FeedLag],
        shown: Mapping[str, str],
        shared: "SharedLimitAddress | None" = None,
    ) -> None:
        self._options = options
        self._limit = limit
        self._rates = None if limit is None else (limit.rows_per_second, limit.bytes_per_second)
        self._own_rates = self._rates
        self._lag = lag
        self._spec = _described(name, source, shown, shared)
        self._shared = _subscription(shared)
        self._waits_seconds = source.feed.waits_seconds
        self._counters = Counters(0, 0)
        self._wake = threading.Condition()
        self._ended = False
        self._error = ""
        self._server: RunningService | None = None
        self._job = ""
        self._reported = False
        self._beats_at = 0.0
        self._threads: list[threading.Thread] = []
        self._serves_at = SYSTEM_CLOCK.now() + _SERVE_SECONDS

    # --- the consumer's threads

    def start(self) -> None:
        """Begin to report."""
        for work in (self._report, self._watch_lag):
            thread = threading.Thread(target=work, name="spark-channel-consumer-job", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending, or there are too many threads
                return
            self._threads.append(thread)

    def read(self, rows: int, nbytes: int) -> None:
        """Count a batch that the source gave, and that the limit let through."""
        self._counters.pushed(rows, nbytes)

    def has_read(self, seconds: float, throttled: Mapping[str, float]) -> None:
        """Count for how long the source gave the rows of a range, and the limit held them, by what was limited."""
        self._counters.waited("source", seconds)
        for reason, spent in throttled.items():
            self._counters.waited(f"limit:{reason}", spent)

    def processed(self, rows: int, nbytes: int, seconds: float, *, failed: bool) -> None:
        """Count what a processor took, and for how long it worked."""
        self._counters.waited("target", seconds)
        if not failed:
            self._counters.wrote(rows, nbytes)

    def end(self, error: BaseException | None, seconds: float = _END_SECONDS) -> None:
        """Report the end, within 2 s, or `seconds` where that is less.

        The text of another program's error may have values of rows, and is left out.
        """
        with self._wake:
            if isinstance(error, ChannelError):
                self._error = str(error)
            elif isinstance(error, Exception):
                self._error = f"{type(error).__name__}; the program's log has the rest"
            self._ended = True
            self._wake.notify_all()
        until = SYSTEM_CLOCK.now() + min(_END_SECONDS, seconds)
        for thread in self._threads:
            thread.join(max(0.0, until - SYSTEM_CLOCK.now()))

    # --- the threads that report

    def _sleep(self, seconds: float) -> bool:
        """Sleep; return False once the consumer has ended."""
        with self._wake:
            if not self._ended:
                self._wake.wait(seconds)
            return not self._ended

    def _report(self) -> None:
        try:
            while True:
                pause = self._step()
                if not self._sleep(pause):
                    break
            self._finish()
        except Exception:
            _log.warning(
                "the consumer of tunnel %r is no longer shown; it continues",
                self._spec.name,
                exc_info=True,
            )
        finally:
            self._keep_to(self._own_rates)
            if self._shared is not None:
                self._shared.connection.close()

    def _step(self) -> float:
        """Report once; return the seconds until the next report."""
        server = running_service()
        if server is not self._server:
            self._server, self._job = server, ""
            self._keep_to(self._own_rates)
        if server is None:
            if SYSTEM_CLOCK.now() < self._serves_at and not is_wanted():
                return _REPORT_SECONDS
            with _serving:
                if running_service() is None:
                    serve_here()
            server = self._server = running_service()
            if server is None:
                return _REPORT_SECONDS
        if not self._job:
            if self._reported or SYSTEM_CLOCK.now() > self._serves_at + _LATE_SECONDS:
                self._counters = Counters(0, 0)
            self._reported = True
            self._job = server.jobs.open(self._spec)
        after: float | None = None
        changed, now = self._counters.changes(), SYSTEM_CLOCK.now()
        if changed is not None or now >= self._beats_at:
            self._beats_at = now + _HEARTBEAT_SECONDS
            snapshots = [] if changed is None else [changed]
            after = server.jobs.report(self._job, "consumer", snapshots)
        if self._limit is not None:
            from spark_channel.service.limits import job_limit

            with contextlib.suppress(ChannelError):  # the service is ending
                status = server.limits.handle(StatusRequest(job_limit(self._job)))
                if isinstance(status, LimitStatus):
                    self._keep_to(
                        (status.effective_rows_per_second, status.effective_bytes_per_second)
                    )
        if self._shared is not None:
            shares = self._shared.look(_SHARED_SECONDS)
            if shares is not None:
                server.jobs.find(self._job).set_shared_limits(**shares)
        return max(_REPORT_SECONDS, after or 0.0)

    def _finish(self) -> None:
        if self._server is None or not self._job or running_service() is not self._server:
            return
        self._server.jobs.find(self._job).set_lag("", {})  # it was measured some time ago
        self._counters.enter(Phase.FAILED if self._error else Phase.DONE)
        self._counters.explain(self._error)
        report = [self._counters.snapshot()]
        self._server.jobs.report(self._job, "consumer", report, leaving=True)
        self._server.jobs.enter(
            self._job, Phase.FAILED if self._error else Phase.DONE, error=self._error
        )

    def _keep_to(self, rates: tuple[float | None, float | None] | None) -> None:
        if self._limit is None or rates is None or rates == self._rates:
            return
        self._rates = rates
        rows, nbytes = (None if rate is None else max(rate, _SLOWEST) for rate in rates)
        self._limit.set_rates(rows, nbytes)

    def _watch_lag(self) -> None:
        """Measure the lag while a service shows it. In a separate thread, since a source may not answer."""
        watch = LagWatch(self._waits_seconds, first_after=_FIRST_LAG_SECONDS)
        source: list[StreamSource] = []

        def ask() -> FeedLag:
            if not source:
                source.append(StreamSource(self._options))
            return self._lag(source[0])

        while self._sleep(_LOOK_SECONDS):
            server, job = self._server, self._job
            if server is None or not job:
                continue
            behind, lag = watch.look(ask)
            with contextlib.suppress(KeyError), self._wake:
                if not self._ended:
                    server.jobs.find(job).set_lag(behind, lag)


def _subscription(shared: "SharedLimitAddress | None") -> "LimitSubscription | None":
    if shared is None:
        return None
    from spark_channel.service.reporter import LimitSubscription

    return LimitSubscription(shared.service, shared.name)


def _described(
    name: str,
    source: StreamSource,
    shown: Mapping[str, str],
    shared: "SharedLimitAddress | None",
) -> JobSpec:
    columns: tuple[JobColumn, ...] = ()
    if not source.feed.has_tables:
        with contextlib.suppress(ChannelError):  # a table that was dropped has changes in the log
            columns = JobColumn.from_schema(source.feed.schema())
    reading = source.reader.options
    return read_spec(
        "stream",
        None,
        name=name,
        source=source.about,
        target=shown.get("target", ""),
        part_of=shown.get("part_of", ""),
        rows_per_second=reading.rows_per_second,
        bytes_per_second=reading.bytes_per_second,
        limit_scope="this client" if shared is None else f"shared limit {shared.name}",
        source_columns=columns,
    )


def lag_of(source: StreamSource, positions: Iterable[tuple[Channel, Token]]) -> FeedLag:
    """Return how far channels at these positions are behind; without channels it is unknown."""
    lags = []
    with source.feed.shared_look():
        for channel, token in positions:
            if not channel.is_base:
                lags.append(source.feed.lag(token))
            elif token != READ:
                split = base_split(channel)
                lags.append(FeedLag(split.rows, split.nbytes))
    return added_up(lags) if lags else FeedLag()
