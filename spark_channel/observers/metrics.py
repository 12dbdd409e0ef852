"""The numbers of a service's jobs and shared limits as metrics, for Prometheus and OpenTelemetry.

Prometheus scrapes them as text. OpenTelemetry's protocol pushes them where its standard variables name an endpoint.
"""

import os
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.plain_text import log_of
from spark_channel.progress import JobProgress, JobStatus, Phase

if TYPE_CHECKING:
    from spark_channel.limits import LimitStatus

__all__ = [
    "CONTENT_TYPE",
    "Family",
    "JobMetrics",
    "MetricPush",
    "is_push_configured",
    "prometheus_text",
]

_log = log_of(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_MOST_NAMES = 200
"""Jobs of further names are added up under the name `other`: each name is some 30 time series."""
_REOPENED = 100
"""As many closed jobs may go on: `JobRegistry` keeps them."""
_LONGEST_LABEL = 200
_MOST_SIGNALS = 50
"""Signals under one job name: tasks report them by the signals' names."""
_LOGIN = re.compile(r"(?<=://)[^/\s@]*@")
_REASONS = {
    "limit": (
        *("rows", "bytes", "turn", "grant", "share", "paused", "pressure", "restart", "service"),
        *("static", "connections"),
    ),
    "start": ("",),
    "source": ("",),
    "target": ("",),
}
_LAG = {
    "rows": ("spark_channel_lag_rows", "Rows by which a stream is behind its source."),
    "bytes": ("spark_channel_lag_bytes", "Bytes by which a stream is behind its source."),
    "seconds": ("spark_channel_lag_seconds", "Seconds by which a stream is behind its source."),
    "wal_kept_bytes": (
        "spark_channel_wal_kept_bytes",
        "Bytes of its log that the source keeps for a stream.",
    ),
}

Labels = tuple[tuple[str, str], ...]
_LIMIT_FAMILIES: tuple[tuple[str, Literal["counter", "gauge"], str], ...] = (
    ("rows_per_second", "gauge", "What the shared limit is set to; none: unlimited."),
    ("bytes_per_second", "gauge", "What the shared limit is set to in bytes; none: unlimited."),
    ("effective_rows_per_second", "gauge", "What is left of it under pressure or a pause."),
    ("effective_bytes_per_second", "gauge", "What is left of it under pressure or a pause."),
    ("paused", "gauge", "1 while the shared limit is paused."),
    ("jobs", "gauge", "Jobs that share the limit now."),
    ("clients", "gauge", "Tasks that share the limit now."),
    ("waiting_clients", "gauge", "Tasks that wait for the limit now."),
    ("spent_rows_total", "counter", "Rows that passed the limit."),
    ("spent_bytes_total", "counter", "Arrow bytes that passed the limit."),
)
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


@dataclass(slots=True)
class Family:
    """One metric: its name with unit, and a value for each set of labels."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)


@dataclass(slots=True)
class _Sums:
    """What only grows, of all jobs of one name."""

    rows: dict[str, float] = field(default_factory=lambda: {"source": 0, "target": 0})
    bytes: dict[str, float] = field(default_factory=lambda: {"source": 0, "target": 0})
    refused: float = 0
    retries: float = 0
    commit_seconds: float = 0
    waits: dict[tuple[str, str], float] = field(default_factory=dict)
    held: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, status: JobStatus) -> None:
        self.rows["source"] += status.rows_moved
        self.rows["target"] += status.rows_written
        self.bytes["source"] += status.bytes_moved
        self.bytes["target"] += status.bytes_written
        self.refused += status.dirty_rows
        self.retries += max(0, status.attempts - status.tasks)
        self.commit_seconds += status.publish_seconds
        for reason, spent in status.waits.items():
            if reason == "start" and not status.phase.final:
                continue  # a part may prove to be the limit's, and what is exported only grows
            key = _wait_of(reason)
            self.waits[key] = self.waits.get(key, 0.0) + spent
        for name, spent in status.held.items():
            side, _, signal = name.partition("'s ")
            signal_key = (side, signal[:_LONGEST_LABEL])
            if signal_key not in self.held and len(self.held) >= _MOST_SIGNALS:
                signal_key = ("other", "other")
            self.held[signal_key] = self.held.get(signal_key, 0.0) + spent


class JobMetrics:
    """Adds up the jobs of a service. A `JobListener`.

    Series are of a job's name, not of its id: a job that runs each hour continues its series, and their number is
    bounded. `signals` returns what `protect` reads of a job's source and target, `limits` the shared limits.
    """

    def __init__(
        self,
        signals: Callable[[str], Mapping[str, tuple[float, float]]] = lambda _job: {},
        limits: "Callable[[], Iterable[LimitStatus]]" = tuple,
    ) -> None:
        self._signals, self._limits = signals, limits
        self.more: list[Callable[[], Family]] = []
        """Metrics of others that are shown beside those of the jobs."""
        self._lock = threading.Lock()
        self._live: dict[str, JobProgress] = {}
        self._closed: OrderedDict[str, JobStatus] = OrderedDict()
        self._sums: dict[tuple[str, str], _Sums] = {}
        self._outcomes = {phase: 0 for phase in Phase if phase.final}

    def job_opened(self, progress: JobProgress) -> None:
        with self._lock:
            closed = self._closed.pop(progress.job, None)
            if closed is not None:
                self._outcomes[closed.phase] -= 1
            self._live[progress.job] = progress

    def job_closed(self, progress: JobProgress) -> None:
        status = progress.status()
        with self._lock:
            self._live.pop(progress.job, None)
            self._closed[progress.job] = status
            self._outcomes[status.phase] += 1
            while len(self._closed) > _REOPENED:
                _, oldest = self._closed.popitem(last=False)
                self._sums_of(self._sums, oldest).add(oldest)

    def statuses(self) -> list[JobStatus]:
        """The last jobs that were closed, and those that run, oldest first."""
        with self._lock:
            closed, live = list(self._closed.values()), list(self._live.values())
        return [*closed, *(progress.status() for progress in live)]

    def families(self) -> list[Family]:
        """All metrics as they are now."""
        with self._lock:
            live = list(self._live.values())
            closed = list(self._closed.values())
            outcomes = dict(self._outcomes)
            sums = {key: _copied(one_sum) for key, one_sum in self._sums.items()}
        running = [progress.status() for progress in live]
        for status in (*closed, *running):
            self._sums_of(sums, status).add(status)
        return [
            *_of_jobs(sums),
            *_of_running(running, closed, outcomes),
            _of_signals({status.job: status for status in running}, self._signals),
            *_of_limits(self._limits()),
            *(_joined([further() for further in self.more])),
        ]

    @staticmethod
    def _sums_of(sums: dict[tuple[str, str], _Sums], status: JobStatus) -> _Sums:
        key: tuple[str, str] = (_name(status), status.spec.kind)
        if key not in sums and len(sums) >= _MOST_NAMES:
            key = ("other", "other")
        return sums.setdefault(key, _Sums())


def prometheus_text(families: Iterable[Family]) -> bytes:
    """The families in Prometheus' text format; those without a value are left out."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples:
            named = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
            number = repr(float(value)) if value % 1 else str(int(value))
            lines.append(
                f"{family.name}{{{named}}} {number}" if named else f"{family.name} {number}"
            )
    return "\n".join((*lines, "")).encode("utf-8", "replace")


def _of_jobs(sums: Mapping[tuple[str, str], _Sums]) -> list[Family]:
    rows = Family(
        "spark_channel_rows_total",
        "counter",
        "Rows that left a source or reached a target, retries included.",
    )
    nbytes = Family(
        "spark_channel_bytes_total", "counter", "Arrow bytes of these rows, retries included."
    )
    refused = Family(
        "spark_channel_refused_rows_total", "counter", "Rows that a target refused, each task once."
    )
    retries = Family(
        "spark_channel_task_retries_total", "counter", "Attempts of tasks beyond one for each task."
    )
    waits = Family(
        "spark_channel_wait_seconds_total",
        "counter",
        "Seconds that threads of tasks waited, by side and reason.",
    )
    commits = Family(
        "spark_channel_commit_seconds_total", "counter", "Seconds in which rows were published."
    )
    slowdowns = Family(
        "spark_channel_held_seconds_total",
        "counter",
        "Seconds for which a signal of a source or target held the speed.",
    )
    for (name, kind), totals in sums.items():
        labels = _labels(name, kind)
        for side in ("source", "target"):
            rows.samples.append(((*labels, ("side", side)), totals.rows[side]))
            nbytes.samples.append(((*labels, ("side", side)), totals.bytes[side]))
        refused.samples.append((labels, totals.refused))
        retries.samples.append((labels, totals.retries))
        commits.samples.append((labels, totals.commit_seconds))
        for (side, reason), spent in totals.waits.items():
            waits.samples.append(((*labels, ("side", side), ("reason", reason)), spent))
        for (side, signal), spent in totals.held.items():
            slowdowns.samples.append(((*labels, ("side", side), ("signal", signal)), spent))
    return [rows, nbytes, refused, retries, waits, commits, slowdowns]


def _of_running(
    running: list[JobStatus], closed: list[JobStatus], outcomes: Mapping[Phase, int]
) -> list[Family]:
    jobs = Family("spark_channel_jobs", "gauge", "Jobs that run, by phase.")
    for phase in (phase for phase in Phase if not phase.final):
        count = sum(status.phase is phase for status in running)
        jobs.samples.append(((("phase", str(phase)),), count))
    finished = Family("spark_channel_jobs_finished_total", "counter", "Jobs that have finished.")
    finished.samples = [((("outcome", str(phase)),), count) for phase, count in outcomes.items()]
    rows = Family(
        "spark_channel_limit_rows_per_second",
        "gauge",
        "Limit in force of running jobs; none: unlimited.",
    )
    nbytes = Family(
        "spark_channel_limit_bytes_per_second",
        "gauge",
        "Limit in force in Arrow bytes; none: unlimited.",
    )
    tasks = Family("spark_channel_tasks", "gauge", "Tasks of running jobs, by state.")
    lags = {key: Family(name, "gauge", about) for key, (name, about) in _LAG.items()}
    for labels, statuses in _by_name(running).items():
        for family, values in (
            (rows, [status.spec.rows_per_second for status in statuses]),
            (nbytes, [status.spec.bytes_per_second for status in statuses]),
        ):
            numbers = [value for value in values if value is not None]
            if numbers:
                family.samples.append((labels, sum(numbers)))
        tasks_done = sum(status.tasks_done for status in statuses)
        every = sum(status.tasks for status in statuses)
        tasks.samples.append(((*labels, ("state", "done")), tasks_done))
        tasks.samples.append(((*labels, ("state", "open")), max(0, every - tasks_done)))
    for labels, statuses in _by_name([*closed, *running]).items():
        lag = next((status.spec.lag for status in reversed(statuses) if status.spec.lag), {})
        for key, family in lags.items():
            if key in lag:
                family.samples.append((labels, lag[key]))
    return [jobs, finished, rows, nbytes, tasks, *lags.values()]


def _of_signals(
    running: Mapping[str, JobStatus],
    signals: Callable[[str], Mapping[str, tuple[float, float]]],
) -> Family:
    family = Family(
        "spark_channel_signal_ratio",
        "gauge",
        "A signal of a source or target, divided by what is too much.",
    )
    ratios: dict[Labels, float] = {}
    for labels, statuses in _by_name(list(running.values())).items():
        for status in statuses:
            for name, (value, bound) in list(signals(status.job).items())[:_MOST_SIGNALS]:
                side, _, signal = name.partition(":")
                key = (*labels, ("side", side), ("signal", signal[:_LONGEST_LABEL]))
                if bound > 0:
                    ratios[key] = max(ratios.get(key, 0.0), value / bound)
    family.samples = list(ratios.items())
    return family


def _of_limits(statuses: "Iterable[LimitStatus]") -> list[Family]:
    families = {
        name: Family(f"spark_channel_shared_limit_{name}", kind, about)
        for name, kind, about in _LIMIT_FAMILIES
    }
    for status in statuses:
        labels = (("limit", status.limit),)
        values = {
            "rows_per_second": status.rows_per_second,
            "bytes_per_second": status.bytes_per_second,
            "effective_rows_per_second": status.effective_rows_per_second,
            "effective_bytes_per_second": status.effective_bytes_per_second,
            "paused": float(status.paused),
            "jobs": status.jobs,
            "clients": status.client_count,
            "waiting_clients": status.waiting_count,
            "spent_rows_total": status.spent_rows,
            "spent_bytes_total": status.spent_bytes,
        }
        for name, value in values.items():
            if value is not None:
                families[name].samples.append((labels, value))
    return list(families.values())


def _joined(families: list[Family]) -> list[Family]:
    """The families with all samples of one name together, as the text format asks."""
    families_by_name: dict[str, Family] = {}
    for family in families:
        first = families_by_name.setdefault(
            family.name, Family(family.name, family.kind, family.help)
        )
        first.samples += family.samples
    return list(families_by_name.values())


def _by_name(statuses: list[JobStatus]) -> dict[Labels, list[JobStatus]]:
    statuses_by_labels: dict[Labels, list[JobStatus]] = {}
    for status in statuses:
        labels = _labels(_name(status), status.spec.kind)
        if labels not in statuses_by_labels and len(statuses_by_labels) >= _MOST_NAMES:
            labels = _labels("other", "other")
        statuses_by_labels.setdefault(labels, []).append(status)
    return statuses_by_labels


def _name(status: JobStatus) -> str:
    """The name of the job; without one, what it moves: the same in each run."""
    spec = status.spec
    ends = " -> ".join(end for end in (spec.source, spec.target) if end)
    return (spec.name or _LOGIN.sub("", ends) or spec.kind)[:_LONGEST_LABEL]


def _labels(name: str, kind: str) -> Labels:
    return (("name", name), ("kind", kind))


def _wait_of(reason: str) -> tuple[str, str]:
    """(side, reason) of "limit:rows"; tasks report them, and unknown ones are one."""
    side, _, wait_reason = reason.partition(":")
    if side not in _REASONS:
        return "other", ""
    return side, wait_reason if wait_reason in _REASONS[side] else "other"


def _copied(sums: _Sums) -> _Sums:
    return _Sums(
        dict(sums.rows),
        dict(sums.bytes),
        sums.refused,
        sums.retries,
        sums.commit_seconds,
        dict(sums.waits),
        dict(sums.held),
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def is_push_configured(environment: Mapping[str, str] = os.environ) -> bool:
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
            remaining = max(0.1, until - SYSTEM_CLOCK.now())
            try:
                self._provider.shutdown(timeout_millis=1000 * remaining)
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
            # The headers of OTEL_EXPORTER_OTLP_HEADERS are often a login, which requests takes along to any server.
            session.max_redirects = 0
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
                self._seen = {family.name: family for family in self._families()}
                self._until = SYSTEM_CLOCK.now() + _FRESH_SECONDS
            samples = self._seen[name].samples if name in self._seen else []
        for labels, value in samples:
            yield Observation(value, dict(labels))


def _warn_of_redirect(response: Any, **_: Any) -> None:
    """The exporter takes a redirect for a receipt."""
    if response.is_redirect:
        _log.warning(
            "metrics are not accepted: OTEL_EXPORTER_OTLP_ENDPOINT answered %d, a redirect: "
            "set it to the url that this leads to",
            response.status_code,
        )


def _resource() -> Any:
    """Attributes that distinguish two programs' numbers, where OpenTelemetry's variables do not name this one."""
    from opentelemetry.sdk.resources import Resource

    attributes = {"service.name": "spark-channel", "service.instance.id": str(uuid.uuid4())}
    existing = Resource.create().attributes
    named = not str(existing.get("service.name", "")).startswith("unknown_service")
    return Resource.create(
        {
            key: value
            for key, value in attributes.items()
            if not (named if key == "service.name" else key in existing)
        }
    )
