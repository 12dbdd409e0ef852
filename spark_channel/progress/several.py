"""The report of a job that wrote to several targets: one for each, and one for all."""

from collections.abc import Sequence
from dataclasses import replace

from spark_channel.progress.report import TransferReport

__all__ = ["one_report"]


def one_report(job: str, targets: Sequence[TransferReport]) -> TransferReport:
    """A report with `targets`; its own figures are of the target that got the fewest rows, of those that arrived."""
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
    )
