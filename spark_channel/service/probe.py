"""`Probe`: measures the protected system at an interval, and lowers or raises a limit accordingly."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError, SourceError
from spark_channel.limits import Pressure
from spark_channel.limits.signals import WORK

if TYPE_CHECKING:
    from spark_channel.connectors import Health

__all__ = ["Probe", "signal_value", "sql_value"]

_log = logging.getLogger(__name__)

_STOP_SECONDS = 5.0


class Probe:
    """Calls `measure` each `seconds`; above `threshold` the limit is lowered, else it recovers (AIMD).

    `measure` is any callable that returns a number (replication lag in seconds, active sessions); `sql_value`
    makes one of a query. One that raises makes the probe unreachable, a separate state that
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
        try:
            self._watch(press)
        finally:
            if isinstance(self._measure, _Signal):
                self._measure.close()

    def _watch(self, press: Callable[[float, str], None]) -> None:
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


class _Signal:
    """One signal of a database, through a session that stays open: how far a replica is behind is seen over time."""

    def __init__(self, health: "Health", name: str) -> None:
        self._health = health
        self._name = name

    def __call__(self) -> float:
        sample, name = self._health.sample(), self._name
        if name in sample.values:
            return sample.values[name][0]
        if delays := sample.delays.get(name):
            return sum(delays) / len(delays)
        told = sorted([*sample.values, *sample.delays])
        missing = f"; not: {', '.join(sample.missing)}" if sample.missing else ""
        raise SourceError(f"there is no signal {name!r}; the database reports {', '.join(told)}{missing}")

    def close(self) -> None:
        self._health.close()


def signal_value(options: Mapping[str, Any], name: str) -> _Signal:
    """A probe's measure: signal `name` of the database that `options` name (`url`, `user`, `password`).

    The signals are those of option `pressure`, such as `replication_lag`; no query is needed. `wakeup` and `latency`
    are means of some measurements. Its session stays open until `close`, which a `Probe` calls when it stops.

    Raises:
        OptionError: no connector reads that, or it reports no health signals; `work`, which only a job knows.
    """
    from spark_channel.connectors import find_connector

    if name == WORK:
        raise OptionError(
            f"{WORK!r} is what a job's own statements do: it is a bound of a job's option 'pressure', "
            "and nothing that a probe can ask a database",
            option="pressure",
            got=name,
        )
    given = {"dbtable": "nothing", **{key.lower(): value for key, value in options.items()}}
    reader, _ = find_connector(given, "reader").reader_with(given)
    health = reader.health()
    if health is None:
        raise OptionError(f"{given.get('url')!r} reports no health signals: give a query", option="pressure")
    return _Signal(health, name)


def sql_value(options: Mapping[str, Any]) -> Callable[[], float]:
    """A probe's measure: the first value of the first row that a connector's `query` returns.

    `options` are those of `spark.read.format("channel")`, such as `url`, `query`, `user` and `password`. They are
    resolved for each measurement: one is tried once, in its own session, whatever the ones before it met,
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
                        raise SourceError("the probe's query returned NULL")
                    return float(value)
        raise SourceError("the probe's query returned no row")

    return measure
