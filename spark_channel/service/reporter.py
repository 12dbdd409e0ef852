"""Threads of a task that send its counters and health samples to the service."""

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import ChannelError, ServiceDeniedError, ServiceUnavailableError
from spark_channel.plain_text import log_of
from spark_channel.progress import Counters, JobSpec, Snapshot
from spark_channel.service.connection import Connection
from spark_channel.service.protocol import ServiceAddress, sample_to_json

if TYPE_CHECKING:
    from spark_channel.connectors.base.health import Health
    from spark_channel.limits import HealthSample

__all__ = [
    "CounterReporter",
    "LimitSubscription",
]


_log = log_of(__name__)

_FIRST_REPORT_AFTER = 0.2
_TIMEOUT = 2.0
_HEARTBEAT = 3.0
_FIRST_RETRY = 0.5
_SLOWEST_RETRY = 5.0
_SLOWEST_REPORT = 60.0
_EVERY = 0.25
_FIRST_SAMPLE_RETRY = 1.0
_SLOWEST_SAMPLE_RETRY = 10.0
_STOP_SECONDS = 1.0


class CounterReporter:
    """Reports what changed, as often as the service wishes, and is heard every 3 s at least.

    `stop_reason` is why the service wants the task to stop, empty while it does not; `failure` is the error of another
    task that this one would meet, too. `watch` looks at the
    limit that the job shares with others: the service chooses one task of a job to report it.
    Lost counters are sent again with the next report; the task does not notice, a warning is logged once.
    """

    def __init__(
        self,
        address: ServiceAddress,
        job: str,
        client: str,
        spec: JobSpec,
        watch: "LimitSubscription | None" = None,
    ) -> None:
        self.connection = Connection(address)
        self.watch = watch
        self.healths: Mapping[str, Callable[[], Health | None]] = {}
        """Health checks by side; the service chooses the one task of a job that samples them."""
        self._samplers: list[HealthSampler] = []
        self._watching = False
        self._job = job
        self._client = client
        self._spec = spec
        self._wake = threading.Condition()
        self._counters: list[Counters] = []
        self._until: float | None = None
        self._introduced = False
        self._warned = False
        self.stop_reason = ""
        self.failure = ""
        self._thread = threading.Thread(target=self._run, name="spark-channel-report", daemon=True)
        self._thread.start()

    def add(self, counters: Counters) -> None:
        """Report these counters, too."""
        with self._wake:
            self._counters.append(counters)

    def introduce(self, timeout: float) -> None:
        """Make sure that the service knows the job, from any thread.

        Raises:
            ServiceUnavailableError, ServiceDeniedError: as `Connection.call`.
        """
        if not self._introduced:
            self._send((), leaving=False, timeout=timeout)

    def begin_close(self, until: float) -> None:
        """Send what is left, until the clock shows `until`, and end."""
        with self._wake:
            self._until = until if self._until is None else self._until
            self._wake.notify_all()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self._report()
        except Exception:
            _log.exception("the reporting of counters failed; the task continues without it")
        finally:
            self._watch_health(False)
            self.connection.close()
            if self.watch is not None:
                self.watch.connection.close()

    def _report(self) -> None:
        pause, retry = _FIRST_REPORT_AFTER, _FIRST_RETRY
        last_sent = SYSTEM_CLOCK.now()
        while True:
            until = self._sleep(pause)
            now = SYSTEM_CLOCK.now()
            changed = [
                (task_counters, snapshot)
                for task_counters in self._all()
                if (snapshot := task_counters.changes())
            ]
            if until is None and not changed and now - last_sent < _HEARTBEAT:
                continue
            timeout = _TIMEOUT if until is None else until - now
            if timeout <= 0:
                return
            try:
                pause = self._send(
                    [snapshot for _, snapshot in changed],
                    leaving=until is not None,
                    timeout=timeout,
                )
                last_sent, retry = now, _FIRST_RETRY
            except ChannelError as error:
                for task_counters, _ in changed:
                    task_counters.unsent()
                self._introduced = False  # a service that heard nothing for long has closed the job
                self._warn(error)
                pause, retry = retry, min(2 * retry, _SLOWEST_RETRY)
            if until is not None:
                return

    def _sleep(self, seconds: float) -> float | None:
        """Sleep; returns the instant of `begin_close` once the end has begun."""
        with self._wake:
            if self._until is None:
                self._wake.wait(seconds)
            return self._until

    def _all(self) -> list[Counters]:
        with self._wake:
            return list(self._counters)

    def _send(self, snapshots: Sequence[Snapshot], *, leaving: bool, timeout: float) -> float:
        """Report; returns seconds until the next one is due."""
        body: dict[str, Any] = {
            "job": self._job,
            "client": self._client,
            "snapshots": [snapshot.to_json() for snapshot in snapshots],
            "leaving": leaving,
        }
        if self.watch is not None and self._watching and not leaving:
            body["shared_limit"] = self.watch.look(timeout)
        if not self._introduced:
            body["spec"] = self._spec.to_json()
        reply = self.connection.call("report", body, timeout=timeout)
        if reply.get("report_after") is None:
            body["spec"] = self._spec.to_json()
            reply = self.connection.call("report", body, timeout=timeout)
        self._introduced = True
        self._watching = reply.get("watch") is True
        self._watch_health(self._watching and not leaving)
        self.stop_reason = str(reply.get("stop") or self.stop_reason)
        self.failure = str(reply.get("failure") or self.failure)
        after = reply.get("report_after")
        return (
            min(max(0.1, float(after)), _SLOWEST_REPORT)
            if isinstance(after, (int, float))
            else _HEARTBEAT
        )

    def _watch_health(self, watching: bool) -> None:
        """Begin or end the sampling of source and target. Only the reporter's own thread begins it."""
        if not watching:
            ended, self._samplers = self._samplers, []
            for sampler in ended:
                sampler.stop(wait=False)
            for sampler in ended:
                sampler.stop()
        elif not self._samplers and self.healths and threading.current_thread() is self._thread:
            servers: dict[Hashable, dict[str, Health]] = {}
            for side, make in self.healths.items():
                if (health := make()) is not None:
                    server = side if health.server is None else health.server
                    servers.setdefault(server, {})[side] = health
            self._samplers = [
                HealthSampler(self.connection.address, self._job, sides)
                for sides in servers.values()
            ]

    def _warn(self, error: ChannelError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("the progress of this task is not shown: %s", error)


class LimitSubscription:
    """Asks the service that keeps limit `name`; of one thread. Connects at the first `look`."""

    def __init__(self, service: ServiceAddress, name: str) -> None:
        self.connection = Connection(service)
        self._name = name

    def look(self, timeout: float) -> dict[str, Any] | None:
        """`rows_per_second`, `bytes_per_second` (None = unlimited) and `note`, why it holds; None: no answer.

        A limit that does not answer stops the tasks that pay it; a process that only shows it continues.
        """
        from spark_channel.limits import LimitStatus, StatusRequest, decode_reply, encode

        try:
            reply = decode_reply(
                self.connection.send(
                    "coordinator", encode(StatusRequest(self._name)), timeout=timeout
                )
            )
        except (ServiceUnavailableError, ServiceDeniedError):
            return None
        if not isinstance(reply, LimitStatus):
            return None
        rows, nbytes, note = reply.shown
        return {"rows_per_second": rows, "bytes_per_second": nbytes, "note": note}


class HealthSampler:
    """Samples a server four times a second until `stop`, in its own thread: the job never waits for it.

    `sides`: the sides of the job that are this server, with equal `Health.server`. The first one is asked for all.

    A system that does not answer, or whose answer cannot be read, is reported, and asked again with growing pauses: a
    side that is silent holds the speed for good. A service that does not answer
    gets the next sample.
    """

    def __init__(
        self,
        address: ServiceAddress,
        job: str,
        sides: Mapping[str, "Health"],
        *,
        every: float = _EVERY,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.connection = Connection(address)
        self._job = job
        self._sides = sides
        self._health = next(iter(sides.values()))
        self._shown = " and ".join(sides)
        self._every = every
        self._clock = clock
        self._wake = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(
            target=self._run, name=f"spark-channel-health-{self._shown}", daemon=True
        )
        self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """End the thread; one that waits for a system that does not answer ends by itself, when that times out."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        if wait:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        retry = _FIRST_SAMPLE_RETRY
        try:
            while not self._stopped:
                sample = self._sample()
                for side, health in self._sides.items():
                    own_sample = sample if sample.error else self._health.sample_for(health, sample)
                    self._send(side, own_sample)
                pause, retry = (
                    (retry, min(2 * retry, _SLOWEST_SAMPLE_RETRY))
                    if sample.error
                    else (self._every, _FIRST_SAMPLE_RETRY)
                )
                with self._wake:
                    if not self._stopped:
                        self._clock.wait(self._wake, pause)
        except Exception:
            _log.exception("the %s's health is no longer watched; the job continues", self._shown)
        finally:
            self._close()

    def _sample(self) -> "HealthSample":
        from spark_channel.limits import HealthSample

        try:
            return self._health.sample()
        except ChannelError as error:
            _log.debug("the %s's health could not be measured", self._shown, exc_info=True)
            return HealthSample(error=str(error))
        except Exception as error:
            _log.exception("the %s's health could not be measured; the job continues", self._shown)
            return HealthSample(error=f"{type(error).__name__}: {error}")

    def _send(self, side: str, sample: "HealthSample") -> None:
        body = {"job": self._job, "side": side, **sample_to_json(sample)}
        try:
            self.connection.call("health", body, timeout=_TIMEOUT)
        except ChannelError:
            _log.debug("the %s's health could not be reported", self._shown, exc_info=True)

    def _close(self) -> None:
        for close in (self._health.close, self.connection.close):
            _quietly(close)


def _quietly(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception:
        _log.debug("a sampler's connection could not be closed", exc_info=True)
