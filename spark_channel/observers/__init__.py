"""Watch jobs from outside of the program: metrics, a page for a browser, lineage events, and a call at a job's end."""

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from spark_channel.progress import JobProgress

if TYPE_CHECKING:
    from spark_channel.observers.metrics import JobMetrics, MetricPush
    from spark_channel.observers.notices import Outbox

__all__ = ["Observer", "close_together", "has_lineage", "is_wanted", "observers", "pushed"]


_FILES_OF_OPENLINEAGE = ("openlineage.yml", "~/.openlineage/openlineage.yml")


class Observer(Protocol):
    """A `JobListener` that reports jobs to another system, through `outbox`."""

    outbox: "Outbox"

    def job_opened(self, progress: JobProgress) -> None: ...

    def job_closed(self, progress: JobProgress) -> None: ...


def is_wanted() -> bool:
    """Whether the environment of this process names a receiver of jobs."""
    from spark_channel.observers import metrics

    has_receiver = bool(os.environ.get("SPARK_CHANNEL_ON_FINISH"))
    return has_receiver or has_lineage() or metrics.is_push_configured()


def has_lineage(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether OpenLineage's own configuration names a receiver, and does not turn it off."""
    if environment.get("OPENLINEAGE_DISABLED", "").lower() in ("true", "1"):
        return False
    names = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT__TYPE")
    if any(environment.get(name) for name in names):
        return True
    # Not pathlib's: a user without a home, or without access to it, would fail each job.
    return any(os.path.isfile(os.path.expanduser(name)) for name in _FILES_OF_OPENLINEAGE)  # noqa: PTH111, PTH113 - without importing pathlib


def observers() -> list[Observer]:
    """What the environment of this process asks for.

    Raises:
        OptionError: a variable makes no sense.
    """
    listeners: list[Observer] = []
    if target := os.environ.get("SPARK_CHANNEL_ON_FINISH"):
        from spark_channel.observers.notices import FinishNotice

        listeners.append(FinishNotice(target))
    if has_lineage():
        from spark_channel.observers.lineage import LineageEvents

        listeners.append(LineageEvents())
    return listeners


def pushed(metrics: "JobMetrics") -> "MetricPush | None":
    """What pushes `metrics` to OpenTelemetry's collector, if the environment names one."""
    from spark_channel.observers.metrics import MetricPush, is_push_configured

    return MetricPush(metrics.families) if is_push_configured() else None


def close_together(ends: list[Callable[[], None]]) -> None:
    """Call all of `ends` at the same time, since each may take its 5 s, and wait for them."""
    threads, others = [], ends[:1]
    for end in ends[1:]:
        thread = threading.Thread(target=end, name="spark-channel-end", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, and since Python 3.12 starts no thread
            others.append(end)
            continue
        threads.append(thread)
    for end in others:
        end()
    for thread in threads:
        thread.join()
