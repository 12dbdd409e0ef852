"""The states of a tunnel channel, and of a client's connect to it.

To move a channel from one client to another: OPEN -> CLOSING -> CLOSED -> OPEN elsewhere. A channel that is
drained for good (a full split, or a split partition of the feed) is TERMINATED, and lets its children open.
"""

from enum import StrEnum

__all__ = ["ChannelState", "ClientState", "ConnectState", "TunnelType"]


class ChannelState(StrEnum):
    """The state of a channel in the store."""

    WAIT = "wait"
    """Its parents are not TERMINATED, or no client has had it yet."""
    OPEN = "open"
    """It belongs to a client."""
    CLOSING = "closing"
    """Its client is asked to give it back."""
    CLOSED = "closed"
    """It was given back, and waits for another client."""
    TERMINATED = "terminated"
    """It is drained for good."""
    PARKED = "parked"
    """One of its ranges failed repeatedly: no client gets it until it is resumed."""


class ConnectState(StrEnum):
    """The state of a client's connect to a channel that it was given."""

    WAIT = "wait"
    """It is being dialled."""
    RUNNING = "running"
    """Its pipeline reads."""
    CLOSING = "closing"
    """Its pipeline was asked to end."""
    CLOSED = "closed"
    """Its pipeline has ended."""


class ClientState(StrEnum):
    """The life of a client: READY -> STARTED -> ENDED."""

    READY = "ready"
    STARTED = "started"
    ENDED = "ended"


class TunnelType(StrEnum):
    """What a tunnel delivers: existing rows, later changes, or first the one and then the other."""

    BASE = "base"
    STREAM = "stream"
    BASE_AND_STREAM = "base_and_stream"
