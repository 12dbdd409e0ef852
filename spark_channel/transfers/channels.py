"""How many channels of a transfer run at the same time: each is threads here, and connections of servers."""

from collections.abc import Sequence
from dataclasses import dataclass

from spark_channel.connectors import Reader, Writer

__all__ = ["ChannelBound", "channel_bound"]

_PER_CORE = 8
"""More channels on a core wait for each other."""
_FEW = 4
"""So few channels are not worth a question to the servers."""
_LEFT = 4
"""A job leaves one of so many free connections of a server to others."""
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
