"""The whole plan of one transfer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_channel.planning.assign import assign_fairly
from spark_channel.planning.channels import channel_count, plan_channels, split_advice
from spark_channel.planning.spec import TransferSpec
from spark_channel.planning.tasks import merge_tasks
from spark_channel.planning.types import Split, Task, TaskGroup

__all__ = ["TransferPlan", "advise", "deal", "plan"]


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Channels and task groups. `channels` is how many run at the same time; 0 groups = an empty source."""

    channels: int
    groups: tuple[TaskGroup, ...]

    @property
    def tasks(self) -> list[Task]:
        """All tasks by id."""
        return sorted((task for group in self.groups for task in group.tasks), key=lambda task: task.id)

    @property
    def rows(self) -> int | None:
        """The readers' estimate of all rows; None when one split has none."""
        counts = [task.split.rows for group in self.groups for task in group.tasks]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def nbytes(self) -> int | None:
        """The readers' estimate of all bytes; None when one split has none."""
        sizes = [task.split.nbytes for group in self.groups for task in group.tasks]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def _wanted(spec: TransferSpec) -> int | None:
    return channel_count(
        rows_per_second=spec.rows_per_second,
        bytes_per_second=spec.bytes_per_second,
        channel_rows_per_second=spec.channel_rows_per_second,
        channel_bytes_per_second=spec.channel_bytes_per_second,
        channels=spec.channels,
    )


def advise(spec: TransferSpec, parallelism: int) -> int:
    """The number of splits to request from the reader, before `plan`."""
    return split_advice(plan_channels(_wanted(spec), parallelism), spec.splits_per_channel)


def plan(
    spec: TransferSpec,
    splits: Sequence[Split],
    *,
    parallelism: int,
    writer_parts: Sequence[Any] | None = None,
    reader_marks: Sequence[str | None] | None = None,
    writer_marks: Sequence[str | None] | None = None,
) -> TransferPlan:
    """Merge, limit the channels to the number of tasks, and assign. Opens nothing and moves nothing.

    `parallelism` is the session's: it is used if neither limits nor `channels` determine the number.

    Raises:
        OptionError: an invalid limit or number of channels, or parts that do not correspond 1:1.
    """
    tasks = merge_tasks(
        splits,
        writer_parts,
        spec.transformers,
        reader_marks=reader_marks,
        writer_marks=writer_marks,
    )
    return deal(spec, tasks, parallelism=parallelism)


def deal(spec: TransferSpec, tasks: Sequence[Task], *, parallelism: int) -> TransferPlan:
    """Limit the channels to the number of tasks, and assign: the last part of `plan`, for given tasks.

    Raises:
        OptionError: an invalid limit or number of channels.
    """
    channels = plan_channels(_wanted(spec), parallelism, len(tasks))
    groups = tuple(assign_fairly(tasks, channels, spec.channels_per_task))
    return TransferPlan(channels if groups else 0, groups)
