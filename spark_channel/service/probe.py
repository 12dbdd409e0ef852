"""`Probe`: asks the protected system how it feels, at an interval, and presses a limit accordingly."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import SourceError
from spark_channel.limits import Pressure

__all__ = ["Probe", "sql_value"]

_log = logging.getLogger(__name__)

_STOP_SECONDS = 5.0


class Probe:
    """Calls `measure` each `seconds`; above `threshold` the limit is lowered, else it recovers (AIMD).

    `measure` is any callable that returns a number (replication lag in seconds, active sessions); `sql_value`
    makes one of a query. One that raises makes the probe unreachable, a state of its own that
    `limits show` names: `pressure.policy` says what follows, by default `hold` (the speed stays).
    """

    def __init__(
        self,
        measure: Callable[[], float],
        threshold: float,
        *,
        seconds: float = 5.0,
        what: str = "probe",
        pressure: Pressure | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._measure = measure
        self._threshold = threshold
        self._seconds = seconds
        self._what = what
        self._pressure = pressure or Pressure()
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._wake = threading.Condition()
        self._stopped = True
        self._thread: threading.Thread | None = None

    def start(self, press: Callable[[float, str], None]) -> None:
        """Call `press(factor, text)` after each measurement, from a thread of the probe's own."""
        with self._wake:
            self._stopped = False
        self._thread = threading.Thread(
            target=self._run, args=(press,), name="spark-channel-probe", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that hangs in `measure` is left behind after 5 s."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self, press: Callable[[float, str], None]) -> None:
        while True:
            try:
                factor = self._pressure.observe(float(self._measure()), self._threshold, self._what)
            except Exception as error:  # whatever a user's probe raises means unreachable
                # the type alone: a driver's message may hold the url with its password
                factor = self._pressure.unreachable(f"{self._what} failed with {type(error).__name__}")
                _log.debug("the probe %s failed", self._what, exc_info=True)
            press(factor, self._pressure.text)
            with self._wake:
                if not self._stopped:
                    self._clock.wait(self._wake, self._seconds)
                if self._stopped:
                    return


def sql_value(options: Mapping[str, Any]) -> Callable[[], float]:
    """A probe's measure: the first value of the first row that a connector's `query` brings.

    `options` are those of `spark.read.format("channel")`, such as `url`, `query`, `user` and `password`. They are
    taken anew for each measurement: one is tried once, in a session of its own, whatever the ones before it met,
    with the password that `${file:PATH}` holds by then.

    Raises:
        OptionError: no connector reads that.
    """
    from spark_channel.connectors import find_connector

    given = {name.lower(): value for name, value in options.items()}
    connector = find_connector(given, "reader")
    if "retrytimeout" in connector.options_class("reader").names() and "retryseconds" not in given:
        given.setdefault("retrytimeout", 0)  # the next measurement is the next try
    connector.reader_with(given)

    def measure() -> float:
        reader, _ = connector.reader_with(given)
        for split in reader.split(1):
            for batch in reader.read(split):
                if batch.num_rows:
                    value = batch.column(0)[0].as_py()
                    if value is None:
                        raise SourceError("the probe's query brought NULL")
                    return float(value)
        raise SourceError("the probe's query brought no row")

    return measure
