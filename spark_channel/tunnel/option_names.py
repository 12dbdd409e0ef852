"""The names of the options of streams: each read asks whether it has one, and few import what they mean."""

from collections.abc import Mapping
from typing import Any

__all__ = ["STREAM_OPTIONS", "is_stream"]

STREAM_OPTIONS = frozenset({
    "basemode", "checkpointinterval", "clienttag", "cursorcolumn", "cursororder", "endingoffsets",
    "endingtimestamp", "heartbeatinterval", "heartbeattimeout", "lateseconds", "maxbytespertrigger",
    "maxretryinterval", "maxrowspertrigger", "maxslotlag", "onerror", "onschemachange", "outagetimeout",
    "publication", "shutdowngrace", "slot", "startingoffsets", "startingtimestamp", "tables", "tunnel",
    "tunnelchannels", "tunnelstore", "tunneltype",
})  # fmt: skip
"""Lower-cased names of the fields of `TunnelOptions`."""


def is_stream(options: Mapping[str, Any]) -> bool:
    """Whether an option is given that only a stream accepts."""
    return any(key.lower() in STREAM_OPTIONS for key in options)
