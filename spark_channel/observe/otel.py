"""Pushes the metrics of a service by OpenTelemetry's protocol, where its standard variables name an endpoint."""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.observe.metrics import Family

__all__ = ["MetricPush", "is_configured"]

_log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_END_SECONDS = 5.0
_FRESH_SECONDS = 0.5
"""One export asks for each metric by itself: all of them are computed once for it."""
_UNITS = {
    "rows_per_second": "{row}/s",
    "bytes_per_second": "By/s",
    "seconds": "s",
    "bytes": "By",
    "rows": "{row}",
    "ratio": "1",
    "retries": "{retry}",
    "tasks": "{task}",
    "jobs": "{job}",
    "clients": "{client}",
    "finished": "{job}",
    "notices": "{notice}",
}
"""By the last words of a name, which keep them: so a collector that serves Prometheus makes the names of `/metrics`."""


def is_configured(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether OpenTelemetry's own variables name an endpoint, and do not turn it off."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return any(environment.get(name) for name in _ENDPOINTS)


class MetricPush:
    """Pushes what `families` returns each minute (OTEL_METRIC_EXPORT_INTERVAL), and once more at `close`.

    OpenTelemetry's threads do so, and a thread of this class imports it: a job waits for neither.
    """

    def __init__(self, families: Callable[[], list[Family]]) -> None:
        self._families = families
        self._lock = threading.Lock()
        self._seen: dict[str, Family] = {}
        self._until = 0.0
        self._provider: Any = None
        self._thread = threading.Thread(target=self._start, name="spark-channel-otel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Push the last numbers, for 5 s at most."""
        until = SYSTEM_CLOCK.now() + _END_SECONDS
        self._thread.join(_END_SECONDS)
        self._until = 0.0
        if self._provider is not None:
            left = max(0.1, until - SYSTEM_CLOCK.now())
            try:
                self._provider.shutdown(timeout_millis=1000 * left)
            except Exception:
                _log.debug("the last metrics were not pushed", exc_info=True)

    def _start(self) -> None:
        try:
            import requests
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        except ImportError:
            _log.warning(
                "metrics are not pushed to OTEL_EXPORTER_OTLP_ENDPOINT: install spark-channel[otel], or unset it"
            )
            return
        try:
            session = requests.Session()
            session.hooks["response"].append(_warn_of_redirect)
            reader = PeriodicExportingMetricReader(OTLPMetricExporter(session=session))
            # Its own handler at the program's end would wait for longer, and come before that of the service.
            self._provider = MeterProvider([reader], _resource(), shutdown_on_exit=False)
            meter = self._provider.get_meter("spark_channel")
            for family in self._families():
                self._observe(meter, family)
        except Exception as error:
            _log.warning("metrics are not pushed by OpenTelemetry: %s", error)

    def _observe(self, meter: Any, family: Family) -> None:
        counts = family.kind == "counter"
        make = meter.create_observable_counter if counts else meter.create_observable_gauge
        base = family.name.removeprefix("spark_channel_").removesuffix("_total")
        unit = next((unit for words, unit in _UNITS.items() if base.endswith(words)), "1")
        make(
            f"spark_channel.{base}",
            callbacks=[lambda _options: self._values(family.name)],
            unit=unit,
            description=family.help,
        )

    def _values(self, name: str) -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        with self._lock:
            if SYSTEM_CLOCK.now() >= self._until:
                self._seen = {each.name: each for each in self._families()}
                self._until = SYSTEM_CLOCK.now() + _FRESH_SECONDS
            samples = self._seen[name].samples if name in self._seen else []
        for labels, value in samples:
            yield Observation(value, dict(labels))


def _warn_of_redirect(response: Any, **_: Any) -> None:
    """The exporter takes a redirect for a receipt."""
    if response.is_redirect:
        _log.warning(
            "metrics are not taken: OTEL_EXPORTER_OTLP_ENDPOINT answered %d, a redirect: name the url that it leads to",
            response.status_code,
        )


def _resource() -> Any:
    """Attributes that distinguish two programs' numbers, where OpenTelemetry's variables do not name this one."""
    from opentelemetry.sdk.resources import Resource

    own = {"service.name": "spark-channel", "service.instance.id": str(uuid.uuid4())}
    given = Resource.create().attributes
    named = not str(given.get("service.name", "")).startswith("unknown_service")
    return Resource.create(
        {
            key: value
            for key, value in own.items()
            if not (named if key == "service.name" else key in given)
        }
    )
