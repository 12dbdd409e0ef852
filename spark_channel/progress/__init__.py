"""The counters of a job, and their display: progress, plain text, report. Pure, no I/O.

A task's threads count in `Counters`; frozen `Snapshot`s travel; `JobProgress` merges them by (scan, task,
attempt), so that a retried or speculative task counts once; `JobStatus` and `TransferReport` come out.
"""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.progress.counters import Counters, Phase, Snapshot
    from spark_channel.progress.job import JobProgress, JobStatus
    from spark_channel.progress.render import (
        StreamLog,
        before_lines,
        is_batch,
        lag_text,
        progress_line,
    )
    from spark_channel.progress.report import TransferReport, summary_lines
    from spark_channel.progress.spec import DirtyLimit, JobColumn, JobSpec, tighter
    from spark_channel.progress.speed import LimitChange, Sample
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "counters": ["Counters", "Phase", "Snapshot"],
            "job": ["JobProgress", "JobStatus"],
            "render": ["StreamLog", "before_lines", "is_batch", "lag_text", "progress_line"],
            "report": ["TransferReport", "summary_lines"],
            "spec": ["DirtyLimit", "JobColumn", "JobSpec", "tighter"],
            "speed": ["LimitChange", "Sample"],
        },
    )

__all__ = [
    "Counters",
    "DirtyLimit",
    "JobColumn",
    "JobProgress",
    "JobSpec",
    "JobStatus",
    "LimitChange",
    "Phase",
    "Sample",
    "Snapshot",
    "StreamLog",
    "TransferReport",
    "before_lines",
    "is_batch",
    "lag_text",
    "progress_line",
    "summary_lines",
    "tighter",
]
