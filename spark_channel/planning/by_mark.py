"""Task groups that load one resource each."""

from collections.abc import Sequence
from dataclasses import replace

from spark_channel.planning.assign import assign_fairly
from spark_channel.planning.types import Task, TaskGroup

__all__ = ["assign_by_mark"]


def assign_by_mark(tasks: Sequence[Task], channels: int, channels_per_group: int) -> list[TaskGroup]:
    """Groups whose tasks load one resource each, so that a group pays one limit."""
    marks: dict[str | None, list[Task]] = {}
    for task in tasks:
        marks.setdefault(task.reader_mark, []).append(task)
    groups: list[TaskGroup] = []
    for number, alike in enumerate(marks.values()):
        share = max(1, channels // len(marks) + (number < channels % len(marks)))
        for group in assign_fairly(alike, share, channels_per_group):
            groups.append(replace(group, id=len(groups)))
    return groups
