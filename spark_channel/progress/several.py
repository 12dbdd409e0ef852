"""The report of a job that wrote to several targets: one for each, and one for all."""

from collections.abc import Sequence
from dataclasses import replace

from spark_channel.progress.report import TransferReport
from spark_channel.progress.trace import PHASES, TaskTrace, added

__all__ = ["one_report"]


def one_report(job: str, targets: Sequence[TransferReport]) -> TransferReport:
    """A report with `targets`; its own figures are of the target that got the fewest rows, of those that arrived.

    The source is read, and shared steps run, once: the first target's counters have them. So the phases of a task, and
    the rows that steps dropped, are the sums over all targets.
    """
    arrived = [each for each in targets if each.phase == "done"] or targets
    least = min(arrived, key=lambda each: each.rows)
    return replace(
        least,
        job=job,
        target=", ".join(each.target for each in targets),
        where=", ".join(each.where for each in arrived if each.where),
        rows_dirty=sum(each.rows_dirty for each in targets),
        seconds=max(each.seconds for each in targets),
        targets=tuple(targets),
        traces=tuple(_with_all(trace, targets) for trace in least.traces),
        rows_dropped=added(each.rows_dropped for each in targets),
    )


def _with_all(trace: TaskTrace, targets: Sequence[TransferReport]) -> TaskTrace:
    same = [each for target in targets for each in target.traces if each.task == trace.task]
    phases = {
        phase: round(sum(each.phases.get(phase, 0.0) for each in same), 3)
        for phase in PHASES
        if any(phase in each.phases for each in same)
    }
    return replace(trace, phases=phases, rows_dropped=added(each.rows_dropped for each in same))
