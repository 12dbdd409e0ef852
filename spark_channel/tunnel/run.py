"""One channel while a client has it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from spark_channel.connectors.contracts import Token
from spark_channel.tunnel.backoff import Backoff
from spark_channel.tunnel.delivery import Delivery
from spark_channel.tunnel.pace import RangeSize
from spark_channel.tunnel.range_read import RangeRead
from spark_channel.tunnel.records import Channel
from spark_channel.tunnel.source import StreamSource
from spark_channel.tunnel.trouble import Trouble

__all__ = ["Processed", "Run"]


@dataclass(frozen=True, slots=True)
class Processed:
    """A range that is processed, while its checkpoint is not taken."""

    end: Token
    rows: int
    nbytes: int
    took: float


@dataclass
class Run:
    """`token` and `sequence` are its checkpoint; `planned`: where the last range that was planned ends.

    `current` is processed or about to be, and its end is in the store; `ahead` is read meanwhile, and its end is
    not: nobody has seen a row of it. `source` and `planned` belong to the turn, which one thread has at a time.
    """

    channel: Channel
    source: StreamSource
    token: Token
    sequence: int
    pending: Token | None
    size: RangeSize
    trouble: Trouble
    planned: Token = field(default_factory=dict)
    current: RangeRead | None = None
    ahead: RangeRead | None = None
    busy: bool = False
    processed: Processed | None = None
    settle: Token | None = None
    process: Callable[[Delivery], object] | None = None
    closes: Callable[[str], object] | None = None
    backoff: Backoff = field(default_factory=Backoff)
    stopping: bool = False
    parking: bool = False
    closed: bool = False
    idle: bool = False
    not_before: float = 0.0
    scheduled: bool = False
    in_turn: bool = False
    again: bool = False

    def __post_init__(self) -> None:
        self.planned = self.token

    @property
    def id(self) -> str:
        return self.channel.id
