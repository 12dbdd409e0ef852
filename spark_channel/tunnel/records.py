"""What the store holds, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_channel.connectors.contracts import Token
from spark_channel.connectors.feed import has_base
from spark_channel.tunnel.states import ChannelState, TunnelType

__all__ = ["PARTITION", "UNTIL", "Channel", "ChannelStatus", "Client", "TunnelRecord", "TunnelState"]


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """What client and store tell each other of a channel; the higher version is the newer one.

    `in_flight`: rows that the client has read and that have no checkpoint, by table; None = it does not tell.
    """

    id: str
    version: int
    state: ChannelState
    in_flight: Mapping[str, int] | None = None


UNTIL = "$until"
PARTITION = "$partition"
"""Names in the `params` of stream channels."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel of a tunnel: a full split, or a partition of the change feed.

    `token` is the checkpoint, taken at `sequence`; `pending` is the end of the range handed out after it, if
    any: whoever has the channel reads this very range next, so that (channel, sequence) names the same
    rows forever. `after` is the end of the range after that one, once
    it is handed out too. `closing_beats` counts its client's heartbeats since it was asked to give the channel back.
    `parked`: why it is parked, if it is. `checkpointed_at`: when its last checkpoint was taken, by the store's clock.
    `paused`: of existing rows that are read beside the changes, no more chunks are read.
    `in_flight`: what its client last told of it, with a heartbeat or a checkpoint; None = nothing, or it has no client.
    """

    id: str
    place: int
    params: Mapping[str, Any] = field(default_factory=dict)
    parents: tuple[str, ...] = ()
    state: ChannelState = ChannelState.WAIT
    version: int = 0
    client: str = ""
    closing_beats: int = 0
    sequence: int = 0
    token: Token = field(default_factory=dict)
    pending: Token | None = None
    after: Token | None = None
    parked: str = ""
    checkpointed_at: float = 0.0
    paused: bool = False
    in_flight: Mapping[str, int] | None = None

    @property
    def is_base(self) -> bool:
        """Whether it is a split of what was there when the tunnel was made."""
        return "split" in self.params

    @property
    def has_base(self) -> bool:
        """Whether existing rows are left to read beside its changes."""
        return not self.is_base and self.state is not ChannelState.TERMINATED and has_base(self.token)

    @property
    def until(self) -> Token | None:
        """Where a stream channel ends for good, and is drained: an end that was asked for, or a split."""
        return self.params.get(UNTIL)

    @property
    def partition(self) -> int:
        """The partition of the feed that a stream channel is of, or that it was split from."""
        return int(self.params.get(PARTITION, self.id.rpartition("-")[2]))

    @property
    def last_end(self) -> Token:
        """Where the last range ends that is handed out."""
        return next((end for end in (self.after, self.pending) if end is not None), self.token)


@dataclass(frozen=True, slots=True)
class Client:
    """A client, and when the store last heard of it (seconds of the store's clock).

    `host` and `process` tell others on that host whether its process still runs.
    """

    id: str
    tag: str = ""
    timeout: float = 300.0
    last_seen: float = 0.0
    host: str = ""
    process: str = ""


@dataclass(frozen=True, slots=True)
class TunnelRecord:
    """A tunnel's definition. `id` is new after each `create` and `reset`; `schema` is text to compare."""

    name: str
    id: str
    type: TunnelType
    source: str
    schema: str
    created_at: float


@dataclass(frozen=True, slots=True)
class TunnelState:
    """The channels, in their order, and clients of one tunnel at one moment."""

    channels: Mapping[str, Channel] = field(default_factory=dict)
    clients: Mapping[str, Client] = field(default_factory=dict)
