"""Watch jobs from outside of the program: metrics, a page for a browser, lineage events, and a call at a job's end."""

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from spark_channel.progress import JobProgress

if TYPE_CHECKING:
    from spark_channel.observers.metrics import JobMetrics, MetricPush
    from spark_channel.observers.notices import Outbox

__all__ = ["Observer", "close_together", "is_wanted", "observers", "pushed"]


class Observer(Protocol):
    """A `JobListener` that reports jobs to another system, through `outbox`."""

    outbox: "Outbox"

    def job_opened(self, progress: JobProgress) -> None: ...

    def job_closed(self, progress: JobProgress) -> None: ...


def is_wanted() -> bool:
    """Whether the environment of this process names a receiver of jobs."""
    from spark_channel.observers import lineage, metrics

    has_receiver = bool(os.environ.get("SPARK_CHANNEL_ON_FINISH"))
    return has_receiver or lineage.is_configured() or metrics.is_push_configured()


def observers() -> list[Observer]:
    """What the environment of this process asks for.

    Raises:
        OptionError: a variable makes no sense.
    """
    listeners: list[Observer] = []
    if target := os.environ.get("SPARK_CHANNEL_ON_FINISH"):
        from spark_channel.observers.notices import FinishNotice

        listeners.append(FinishNotice(target))
    from spark_channel.observers.lineage import LineageEvents, is_configured

    if is_configured():
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
