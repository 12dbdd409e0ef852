"""What a job counts, and how it is shown: counters, progress, plain text, report. Pure, no I/O.

A task's threads count in `Counters`; frozen `Snapshot`s travel; `JobProgress` merges them by (scan, task,
attempt), so that a retried or speculative task counts once; `JobStatus` and `TransferReport` come out.
"""

from spark_channel.progress.counters import Counters, Snapshot
from spark_channel.progress.job import JobProgress, JobStatus
from spark_channel.progress.phase import Phase
from spark_channel.progress.render import before_lines, progress_line, summary_lines
from spark_channel.progress.report import TransferReport
from spark_channel.progress.spec import JobKind, JobSpec
from spark_channel.progress.speed import Sample

__all__ = [
    "Counters",
    "JobKind",
    "JobProgress",
    "JobSpec",
    "JobStatus",
    "Phase",
    "Sample",
    "Snapshot",
    "TransferReport",
    "before_lines",
    "progress_line",
    "summary_lines",
]
