"""The lag of micro-batches, which their reads tell, for the reports of their writes."""

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_channel.progress import JobSpec, TransferReport

__all__ = ["BatchLags"]

_KEPT = 100


class BatchLags:
    """Knows a batch by its query and its number. A query that reads several sources has no lag in the reports of its
    writes: it would be that of one of them.
    """

    def __init__(self) -> None:
        self._reads: OrderedDict[tuple[str, int], dict[str, JobSpec]] = OrderedDict()

    def opened(self, job: str, spec: "JobSpec") -> None:
        """A job that begins."""
        if spec.kind == "read" and spec.query and spec.batch is not None:
            self._reads.setdefault((spec.query, spec.batch), {})[job] = spec
            while len(self._reads) > _KEPT:
                self._reads.popitem(last=False)

    def told(self, spec: "JobSpec", report: "TransferReport") -> "TransferReport":
        """`report` of a job with `spec`; with the lag of its batch, if it is its write."""
        if spec.kind != "write" or spec.batch is None:
            return report
        reads = self._reads.get((spec.query, spec.batch), {})
        if len(reads) != 1:
            return report
        (read,) = reads.values()
        return replace(report, behind=read.behind, lag=read.lag)
