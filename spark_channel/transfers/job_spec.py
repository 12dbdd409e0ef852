"""The facts of a job, which the service counts it by and shows: of one that writes, and of one that reads alone."""

from typing import Any, Literal

from spark_channel.options import WriteOptions
from spark_channel.progress import JobSpec
from spark_channel.transfers.limits import JobLimits

__all__ = ["read_spec", "write_spec"]


def write_spec(
    kind: Literal["write", "transfer"],
    options: WriteOptions | None,
    limits: JobLimits | None,
    *,
    per_mark: bool = False,
    counts_dirty: bool = True,
    **facts: Any,
) -> JobSpec:
    """The facts of a job that writes: those that its options and limits say, and `facts`, which win.

    `counts_dirty`: its tasks may refuse rows.
    """
    common: dict[str, Any] = {}
    if options is not None:
        common = {"name": options.job_id or "", "stall_timeout": options.stall_timeout}
        if counts_dirty:
            common["max_dirty_rows"] = options.most_dirty_rows
            common["max_dirty_fraction"] = options.max_dirty_fraction
    if limits is not None:
        common |= limits.of_spec(per_mark=per_mark)
    return JobSpec(kind, **{**common, **facts})


def read_spec(
    kind: Literal["read", "stream", "throttle", "verify"],
    limits: JobLimits | None,
    *,
    per_mark: bool = False,
    **facts: Any,
) -> JobSpec:
    """The facts of a job that writes to no target: those of its limits, and `facts`."""
    common = {} if limits is None else limits.of_spec(per_mark=per_mark)
    return JobSpec(kind, **common, **facts)
