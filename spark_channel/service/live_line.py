"""What a display shows of a job while it runs."""

from dataclasses import dataclass

from spark_channel.progress import JobStatus, progress_line

__all__ = ["LiveLine", "live_line"]


@dataclass(frozen=True, slots=True)
class LiveLine:
    """A job's line, and how far it is in percent: None = not known."""

    text: str
    percent: float | None = None


def live_line(status: JobStatus, name: str = "") -> LiveLine:
    """The line of a job, which begins with `name`. A read that is all read is not done: who takes its rows may lag."""
    all_read = status.spec.kind == "read" and status.percent == 100.0
    return LiveLine(name + progress_line(status), None if all_read else status.percent)
