"""The statistics of several channels as those of one."""

from collections.abc import Iterable
from dataclasses import fields

from spark_channel.channel import ChannelStatistics

__all__ = ["sum_statistics"]


def sum_statistics(parts: Iterable[ChannelStatistics]) -> ChannelStatistics:
    """Every field summed, waits by reason too. `parts` has one or more."""
    parts = list(parts)
    totals = {
        field.name: sum(getattr(part, field.name) for part in parts)
        for field in fields(ChannelStatistics)
        if field.name != "throttled_seconds"
    }
    throttled: dict[str, float] = {}
    for part in parts:
        for reason, seconds in part.throttled_seconds.items():
            throttled[reason] = throttled.get(reason, 0.0) + seconds
    return ChannelStatistics(**totals, throttled_seconds=throttled)
