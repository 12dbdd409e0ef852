"""`Sampler`: a thread that samples the health of one side of a job, and sends it to the service."""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import ChannelError
from spark_channel.limits import Sample
from spark_channel.service.address import ServiceAddress
from spark_channel.service.connection import Connection
from spark_channel.service.wire_sample import sample_to_json

if TYPE_CHECKING:
    from spark_channel.connectors.health import Health

__all__ = ["Sampler"]

_log = logging.getLogger(__name__)

_EVERY = 0.25
_TIMEOUT = 2.0
_FIRST_RETRY = 1.0
_SLOWEST_RETRY = 10.0
_STOP_SECONDS = 1.0


class Sampler:
    """Samples `health` four times a second until `stop`, in its own thread: the job never waits for it.

    A system that cannot be asked is told of, and asked again with growing pauses. A service that does not answer hears
    the next sample.
    """

    def __init__(
        self,
        address: ServiceAddress,
        job: str,
        side: str,
        health: "Health",
        *,
        every: float = _EVERY,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.connection = Connection(address)
        self._job = job
        self._side = side
        self._health = health
        self._every = every
        self._clock = clock
        self._wake = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"spark-channel-health-{side}", daemon=True)
        self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """End the thread; one that waits for a system that does not answer ends by itself, when that times out."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        if wait:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        retry = _FIRST_RETRY
        try:
            while not self._stopped:
                sample = self._sample()
                self._tell(sample)
                pause, retry = (
                    (retry, min(2 * retry, _SLOWEST_RETRY)) if sample.error else (self._every, _FIRST_RETRY)
                )
                with self._wake:
                    if not self._stopped:
                        self._clock.wait(self._wake, pause)
        except Exception:
            _log.exception("the %s's health is no longer watched; the job continues", self._side)
        finally:
            self._close()

    def _sample(self) -> Sample:
        try:
            return self._health.sample()
        except ChannelError as error:
            _log.debug("the %s's health could not be measured", self._side, exc_info=True)
            return Sample(error=str(error))

    def _tell(self, sample: Sample) -> None:
        body = {"job": self._job, "side": self._side, **sample_to_json(sample)}
        try:
            self.connection.call("health", body, timeout=_TIMEOUT)
        except ChannelError:
            _log.debug("the %s's health could not be reported", self._side, exc_info=True)

    def _close(self) -> None:
        for close in (self._health.close, self.connection.close):
            _quietly(close)


def _quietly(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception:
        _log.debug("a sampler's connection could not be closed", exc_info=True)
