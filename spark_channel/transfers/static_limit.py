"""The limit of a job whose Spark tasks do not reach the service: each has its fixed share with it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_channel.planning import TaskGroup
from spark_channel.transfers.job_limits import JobLimits

if TYPE_CHECKING:
    from spark_channel.limits import StaticShare

__all__ = ["permit_option", "static_of_spec", "static_shares", "told_static"]

_PERMITS = {"numpartitions": "numPartitions", "maxconnections": "maxConnections"}


def static_shares(
    limits: JobLimits, groups: Sequence[TaskGroup], slots: int | None, *, per_mark: bool = False
) -> "list[StaticShare | None]":
    """What each of `groups` keeps of the limit: as many parts as can be spent at a time.

    `slots`: how many Spark tasks run at a time, None = not known; then all groups may.
    """
    marks = [group.tasks[0].reader_mark if per_mark else None for group in groups]
    alike = {mark: marks.count(mark) for mark in set(marks)}
    most = len(groups) if slots is None else slots
    return [limits.static(min(alike[mark], most)) for mark in marks]


def static_of_spec(
    share: "StaticShare | None",
    tasks: int | None = None,
    slots: int | None = None,
    *,
    one_host: Callable[[], bool],
) -> dict[str, Any]:
    """The fields of a `JobSpec` that tell of it; `tasks` are all that ever run, None = not known.

    None on `one_host`: a task that falls silent there was killed, and nothing has
    to be set aside for it.
    """
    if share is None or one_host():
        return {}
    at_once = tasks is not None and slots is not None and tasks <= slots
    return {"static_tasks": share.tasks, "at_once": at_once}


def told_static(static: int, tasks: int, share: "StaticShare | None") -> str:
    """For the log and the report: `static` of `tasks` did not reach the service; empty when all did."""
    if not static or share is None:
        return ""
    return (
        f"static limit: {static} of {tasks} tasks did not reach the service "
        f"and kept 1/{share.tasks} of the limit each"
    )


def permit_option(options: Mapping[str, str]) -> str:
    """`maxConnections` as the user spelled it."""
    return next((_PERMITS[key.lower()] for key in options if key.lower() in _PERMITS), "maxConnections")
