"""How many channels a job has, and how many splits they want."""

from typing import Any

from spark_channel.errors import OptionError

__all__ = ["MAX_CHANNELS", "SPLITS_PER_CHANNEL", "channel_count", "plan_channels", "positive", "split_advice"]

MAX_CHANNELS = 100_000
"""No cluster runs more at once; it also bounds the splits that a tiny channel limit would ask for."""
SPLITS_PER_CHANNEL = 5
"""Several splits a channel, so that a slow one leaves the others work to take."""


def positive(name: str, value: Any) -> int:
    """`value` if it is a whole number of 1 or more.

    Raises:
        OptionError: names `name`, what it got and what it takes.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(
            f"{name!r} got {value!r}; it takes a whole number of 1 or more",
            option=name, got=str(value), takes="a whole number of 1 or more",
        )  # fmt: skip
    return value


def channel_count(
    *,
    rows_per_second: int | None = None,
    bytes_per_second: int | None = None,
    channel_rows_per_second: int | None = None,
    channel_bytes_per_second: int | None = None,
    channels: int | None = None,
) -> int | None:
    """Channels that the limits or the user ask for; None = not given: the session's parallelism.

    A job limit divided by the channel limit of the same dimension, at least 1; the smaller of rows
    and bytes wins, and either wins over `channels`. A job limit without a channel limit does not determine the
    number: the channels share it.

    Raises:
        OptionError: a value that is not a whole number of 1 or more.
    """
    given = {
        "rowsPerSecond": rows_per_second,
        "bytesPerSecond": bytes_per_second,
        "channelRowsPerSecond": channel_rows_per_second,
        "channelBytesPerSecond": channel_bytes_per_second,
        "channels": channels,
    }
    for name, value in given.items():
        if value is not None:
            positive(name, value)
    quotients = [
        max(1, job // channel)
        for job, channel in (
            (rows_per_second, channel_rows_per_second),
            (bytes_per_second, channel_bytes_per_second),
        )
        if job is not None and channel is not None
    ]
    return min(quotients) if quotients else channels


def plan_channels(wanted: int | None, parallelism: int, tasks: int | None = None) -> int:
    """Channels to open: `wanted`, else `parallelism`; at most `tasks`, once they are known.

    At least 1, so that a job without tasks still has a plan; at most `MAX_CHANNELS`.
    """
    channels = positive("parallelism", parallelism) if wanted is None else positive("channels", wanted)
    limits = [MAX_CHANNELS] if tasks is None else [MAX_CHANNELS, tasks]
    return max(1, min(channels, *limits))


def split_advice(channels: int, per_channel: int = SPLITS_PER_CHANNEL) -> int:
    """The number of splits to request from a reader; at most 5 for each of `MAX_CHANNELS`."""
    wanted = positive("channels", channels) * positive("splitsPerChannel", per_channel)
    return min(wanted, MAX_CHANNELS * SPLITS_PER_CHANNEL)
