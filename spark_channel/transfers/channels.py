"""How many channels of a transfer run at the same time: each is threads here, and connections of servers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_channel.connectors import Reader, Writer
from spark_channel.connectors.base.overlap import FreeConnections
from spark_channel.errors import ChannelError
from spark_channel.plain_text import log_of

__all__ = ["ChannelBound", "channel_bound", "jobs_at_once", "task_bound"]

_log = log_of(__name__)

_PER_CORE = 8
"""More channels on a core wait for each other."""
_FEW = 4
"""So few channels are not worth a question to the servers."""
_LEFT = 4
"""A job leaves one of so many free connections of a server to others."""
_OF_A_JOB = 1
"""Connections of a job beside those of its channels, where it has so few that its driver's are used again for them."""
_BESIDE = 3
"""Connections of the driver: the snapshot that tasks read, the claim, and what is asked meanwhile."""


@dataclass(frozen=True, slots=True)
class ChannelBound:
    """The most channels that run at the same time, and why no more."""

    channels: int
    reason: str

    def remark(self, asked_for: int) -> str:
        """What a job logs where fewer channels run than it asked for; empty = all run."""
        if asked_for <= self.channels:
            return ""
        return (
            f"{asked_for} channels were asked for, and {self.channels} run at the same time ({self.reason}); the other "
            "splits wait for them. Option 'maxChannels' sets another number"
        )


def channel_bound(
    sides: Sequence[Reader | Writer], *, channels_wanted: int, cores: int, most: int | None
) -> ChannelBound:
    """The bound of a job that would open `channels_wanted` channels, each with a connection for each of `sides`.

    It is 8 for each of `cores`, and no more than what leaves each server a quarter of its free connections. `most` is
    the user's own bound, and replaces both.
    """
    if most is not None:
        return ChannelBound(most, "option 'maxChannels'")
    bound = ChannelBound(_PER_CORE * cores, f"{_PER_CORE} for each of {cores} cores")
    if min(channels_wanted, bound.channels) <= _FEW:
        return bound
    answers = [answer for side in sides if (answer := side.free_connections()) is not None]
    for answer in answers:
        counts = [other.count for other in answers if other.server == answer.server]
        free = min(counts)
        channels = max(1, (free - free // _LEFT - _BESIDE) // len(counts))
        if channels < bound.channels:
            bound = ChannelBound(channels, f"{answer.place} has {free} free connections")
    return bound


def task_bound(
    side: Reader | Writer, *, tasks: int | None, of_a_task: int = 1, shared: bool = True
) -> ChannelBound | None:
    """The most connections of a DataFrame's read or write, where Spark runs `tasks` at a time; None = any number.

    None for `tasks` = not known. A task opens `of_a_task` connections. `shared`: the same query may read one server
    several times, and write it, and these know nothing of each other. Each gets a half of what it leaves to no others
    where so few tasks run that all reads together use two thirds of that; else a third, and four leave some.
    """
    wanted = None if tasks is None else tasks * (of_a_task + shared)
    if wanted is not None and wanted <= _FEW:
        return None
    try:
        answer = side.free_connections()
    except (
        ChannelError
    ):  # a full server refuses this connection, too; what is wrong otherwise, the tasks report
        return ChannelBound(1, "its server refused to say how many connections are free")
    if answer is None:
        return None
    allowed = answer.count - answer.count // _LEFT - _BESIDE
    if wanted is not None and wanted <= allowed:
        return None
    parts = 1
    if shared:
        parts = 2 if tasks is not None and 3 * tasks * of_a_task <= 2 * allowed else 3
    channels = max(1, allowed // parts)
    return ChannelBound(channels, f"{answer.place} has {answer.count} free connections")


def jobs_at_once(
    noun: str,
    wanted: int,
    sources: Iterable[Reader],
    targets: Iterable[Writer],
    *,
    channels: int,
    cores: int,
) -> int:
    """How many of `wanted` jobs of so many `channels` run at the same time; logs why where they are fewer.

    They are 8 for each of `cores` at most, and together they leave each server a quarter of its free connections.
    `sources` and `targets`: one of each server.
    """
    if wanted <= _FEW:
        return wanted
    most, reason = wanted, ""
    if wanted > _PER_CORE * cores:
        most, reason = _PER_CORE * cores, f"{_PER_CORE} for each of {cores} cores"
    ends = [[_free(side) for side in sides] for sides in (sources, targets)]
    of_a_job = min(channels, _PER_CORE * cores) + _OF_A_JOB
    for answer in filter(None, (answer for end in ends for answer in end)):
        of_ends = sum(any(other and other.server == answer.server for other in end) for end in ends)
        jobs = max(1, (answer.count - answer.count // _LEFT) // (of_ends * of_a_job))
        if jobs < most:
            most, reason = jobs, f"{answer.place} has {answer.count} free connections"
    if reason:
        _log.warning(
            f"{wanted} {noun} at the same time were asked for, and {most} run ({reason}); the others wait for them"
        )
    return most


def _free(side: Reader | Writer) -> FreeConnections | None:
    try:
        return side.free_connections()
    except ChannelError:  # which the jobs themselves meet and report
        return None
