"""The records and states of tunnels, channels and clients, and the interface of a store."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import has_base

__all__ = [
    "PARTITION",
    "UNTIL",
    "Channel",
    "ChannelState",
    "ChannelStatus",
    "Client",
    "ClientState",
    "ConnectState",
    "TokenTest",
    "TunnelRecord",
    "TunnelState",
    "TunnelStore",
    "TunnelType",
]

TokenTest = Callable[[Token], bool]

UNTIL = "$until"
PARTITION = "$partition"
"""Names in the `params` of stream channels."""


class ChannelState(StrEnum):
    """The state of a channel in the store.

    To move a channel from one client to another: OPEN -> CLOSING -> CLOSED -> OPEN elsewhere. A channel that is drained
    for good (a full split, or a split partition of the feed) is TERMINATED, and its children open.
    """

    WAIT = "wait"
    """Its parents are not TERMINATED, or no client has had it yet."""
    OPEN = "open"
    """A client has it."""
    CLOSING = "closing"
    """The store has requested it back from its client."""
    CLOSED = "closed"
    """Its client gave it back, and it waits for another client."""
    TERMINATED = "terminated"
    """All its rows are processed."""
    PARKED = "parked"
    """One of its ranges failed repeatedly: no client gets it until it is resumed."""


class ConnectState(StrEnum):
    """The state of a client's connect to a channel that it was given."""

    WAIT = "wait"
    """The client is dialling it."""
    RUNNING = "running"
    """Its pipeline reads."""
    CLOSING = "closing"
    """Its pipeline is ending."""
    CLOSED = "closed"
    """Its pipeline has ended."""


class ClientState(StrEnum):
    """The life of a client: READY -> STARTED -> ENDED."""

    READY = "ready"
    STARTED = "started"
    ENDED = "ended"


class TunnelType(StrEnum):
    """The rows that a tunnel delivers: existing rows, later changes, or the existing rows and then the changes."""

    BASE = "base"
    STREAM = "stream"
    BASE_AND_STREAM = "base_and_stream"


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """A channel's state as client and store exchange it; the higher version is the newer one.

    `in_flight`: rows that the client has read without a checkpoint, by table; None = the client does not report them.
    """

    id: str
    version: int
    state: ChannelState
    in_flight: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel of a tunnel: a full split, or a partition of the change feed.

    `token` is the checkpoint, taken at `sequence`. `pending` is the end of the range assigned after it, if any: the
    next client of the channel reads exactly this range, so that (channel, sequence) always names the same rows.
    `after` is the end of the range after that one, once it is assigned too. `closing_beats` counts its client's
    heartbeats since the store requested the channel back. `parked`: the reason why it is parked, if it is.
    `checkpointed_at`: the time of its last checkpoint, by the store's clock. `paused`: reading of existing rows beside
    the changes is paused. `in_flight`: the rows that its client last reported, with a heartbeat or a checkpoint; None =
    no report, or no client.
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
        """Whether it is a split of the rows that existed when the tunnel was made."""
        return "split" in self.params

    @property
    def has_base(self) -> bool:
        """Whether existing rows are left to read beside its changes."""
        return (
            not self.is_base and self.state is not ChannelState.TERMINATED and has_base(self.token)
        )

    @property
    def until(self) -> Token | None:
        """The position where a stream channel ends for good: an end that the user set, or a split."""
        return self.params.get(UNTIL)

    @property
    def partition(self) -> int:
        """The partition of the feed that a stream channel is of, or that it was split from."""
        return int(self.params.get(PARTITION, self.id.rpartition("-")[2]))

    @property
    def last_end(self) -> Token:
        """The end of the last assigned range."""
        return next((end for end in (self.after, self.pending) if end is not None), self.token)


@dataclass(frozen=True, slots=True)
class Client:
    """A client, and when the store last heard of it (seconds of the store's clock).

    With `host` and `process`, other clients on that host see whether its process still runs.
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


class TunnelStore(Protocol):
    """Every call is one transaction, on its own connection; safe to call from several threads.

    All raise `TunnelError` for a store that cannot be reached and for a tunnel that does not exist.
    """

    def show(self) -> str:
        """Return the store's location for people, without secrets."""
        ...

    def named(self, name: str) -> str:
        """The tunnel `name` as an argument of `spark-channel tunnel`, with this store, whose login is left out."""
        ...

    def create(self, record: TunnelRecord, channels: Sequence[Channel]) -> TunnelRecord:
        """Add a tunnel; `created_at` is filled in. Raises `TunnelError` when the name is taken."""
        ...

    def get(self, name: str) -> TunnelRecord:
        """The tunnel of this name."""
        ...

    def all(self, *, make: bool = False) -> list[TunnelRecord]:
        """Every tunnel, by name; with `make`, where the store has no tables, they are made."""
        ...

    def delete(self, name: str) -> None:
        """Remove a tunnel with its checkpoints; its clients are notified at their next call."""
        ...

    def reset(self, name: str, record: TunnelRecord, channels: Sequence[Channel]) -> TunnelRecord:
        """Put a new tunnel in the place of an old one."""
        ...

    def state(self, name: str) -> TunnelState:
        """The present channels and clients."""
        ...

    def channel(self, name: str, channel: str) -> Channel:
        """One channel of `state`, without the others."""
        ...

    def connect(self, name: str, client: Client) -> None:
        """Add a client."""
        ...

    def disconnect(self, name: str, client: str) -> None:
        """Remove a client, and free its channels. Has no effect for an unknown client."""
        ...

    def heartbeat(
        self, name: str, client: str, report: Sequence[ChannelStatus], wanted: Collection[str] = ()
    ) -> tuple[Channel, ...]:
        """`state_machine.heartbeat`; returns the channels that the client should have."""
        ...

    def hand_out(self, name: str, client: str, channel: str, sequence: int, end: Token) -> Token:
        """`state_machine.hand_out`; returns the end that counts, which may be an older one."""
        ...

    def checkpoint(
        self,
        name: str,
        client: str,
        channel: str,
        sequence: int,
        token: Token,
        in_flight: Mapping[str, int] | None = None,
    ) -> None:
        """`state_machine.checkpoint`."""
        ...

    def park(self, name: str, client: str, channel: str, sequence: int, reason: str) -> None:
        """`state_machine.park`."""
        ...

    def resume(self, name: str, channels: Collection[str] | None = None) -> tuple[str, ...]:
        """`state_machine.resume` of these channels, or of all; returns those that were parked.

        Raises:
            TunnelError: the tunnel has no channel of that name.
        """
        ...

    def pause_base(
        self, name: str, channels: Collection[str] | None = None, *, paused: bool = True
    ) -> tuple[str, ...]:
        """`state_machine.pause_base` or `resume_base` of these channels, or of all; returns those that it changed.

        Raises:
            TunnelError: the tunnel has no channel of that name.
        """
        ...

    def split(
        self, name: str, channel: str, divide: Callable[[Token], Sequence[Token]]
    ) -> tuple[str, ...]:
        """`state_machine.split`; returns the new channels. `divide` is called inside the transaction."""
        ...

    def continued(
        self, name: str, change: Callable[[Token], Token], *, at_once: TokenTest | None = None
    ) -> str:
        """`state_machine.continued`; returns the new channel. `change` is called inside the transaction."""
        ...

    def release(self, name: str, client: str, channels: Collection[str]) -> None:
        """`state_machine.release`."""
        ...

    def note(self, name: str, key: str, text: str | None) -> None:
        """Keep a text of the program that reads the tunnel, until the tunnel is deleted; None removes it.

        Raises:
            TunnelError: the tunnel does not exist.
        """
        ...

    def notes(self, name: str) -> dict[str, str]:
        """The texts that `note` keeps."""
        ...

    def note_of(self, name: str, key: str) -> str | None:
        """One of them; None: there is none."""
        ...

    def now(self) -> float:
        """Seconds of the store's clock."""
        ...
