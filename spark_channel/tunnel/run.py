"""One channel while a client has it."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from spark_channel.connectors.contracts import Token
from spark_channel.tunnel.backoff import Backoff
from spark_channel.tunnel.delivery import Delivery
from spark_channel.tunnel.goal import Goal
from spark_channel.tunnel.hold_up import HoldUp
from spark_channel.tunnel.pace import RangeSize
from spark_channel.tunnel.range_read import RangeRead, Stage
from spark_channel.tunnel.records import Channel
from spark_channel.tunnel.source import StreamSource
from spark_channel.tunnel.trouble import Trouble
from spark_channel.tunnel.turns import Repeated

__all__ = ["Opened", "Run"]


@dataclass(frozen=True)
class Opened:
    """What takes the deliveries of a channel, and what is told of its end. `channel`: as deliveries name it."""

    channel: str
    process: Callable[[Delivery], object]
    closes: Callable[[str], object] | None = None


@dataclass(eq=False)
class Run:
    """`token` and `sequence` are its checkpoint; `planned` and `planned_sequence`: where the last planned range ends.

    `ranges`: those without a checkpoint, in order. `ends`: what the store says of where ranges end, by sequence.
    `until`: where it is drained for good, if anywhere. `paused`: no chunks of existing rows are planned.
    `goal`: where a client that is to end stops reading it; None = it is not to end, or the channel is a base split.
    `held_since`: since when its source delays existing rows, while all changes that count are processed.
    `tables`: those that it has, of a feed of several; else one without a name. `processors`: by table, from the first
    turn on. `done`: tables whose rows are processed, of ranges that are not processed in whole, by sequence.
    `dropped`: rows by table of ranges that are to be read once more, by sequence.
    `parked_by`: why it is parked, and in which table.
    `source` and `planned` belong to the turn that reads, which one thread has at a time.
    """

    channel: Channel
    source: StreamSource
    token: Token
    sequence: int
    ends: dict[int, Token]
    size: RangeSize
    trouble: Trouble
    hold_up: HoldUp
    planned: Token = field(default_factory=dict)
    planned_sequence: int = 0
    ranges: list[RangeRead] = field(default_factory=list)
    settle: Token | None = None
    processors: dict[str, Opened] = field(default_factory=dict)
    done: dict[int, set[str]] = field(default_factory=dict)
    dropped: dict[int, Mapping[str, int]] = field(default_factory=dict)
    backoff: Backoff = field(default_factory=Backoff)
    stopping: bool = False
    lost: bool = False
    closed: bool = False
    until: Token | None = None
    paused: bool = False
    idle: bool = False
    goal: Goal | None = None
    held_since: float | None = None
    parked_by: tuple[BaseException, str] | None = None
    read_after: float = 0.0
    store_after: float = 0.0
    reading: Repeated = field(init=False)
    storing: Repeated = field(init=False)
    tables: Collection[str] = field(init=False)

    def __post_init__(self) -> None:
        self.planned, self.planned_sequence = self.token, self.sequence
        self.until, self.paused = self.channel.until, self.channel.paused
        self.tables = self.source.feed.tables(self.token) if self.is_by_table else ("",)

    @property
    def id(self) -> str:
        return self.channel.id

    @property
    def is_by_table(self) -> bool:
        """Whether its ranges are a delivery for each table."""
        return not self.channel.is_base and self.source.feed.has_tables

    @property
    def is_open(self) -> bool:
        """Whether its processors are there."""
        return len(self.processors) == len(self.tables)

    def name_of(self, table: str) -> str:
        """The channel of a table's deliveries."""
        return f"{self.id}/{table}" if table else self.id

    def in_flight(self, first: int = 0) -> dict[str, int]:
        """The rows by table that were read and have no checkpoint, from range number `first` on."""
        found: dict[int, Mapping[str, int]] = {
            key: rows for key, rows in self.dropped.items() if key >= first
        }
        for each in self.ranges:
            if each.sequence >= first:
                found[each.sequence] = _most(each.rows_by_table(), found.get(each.sequence, {}))
        total: Counter[str] = Counter()
        for rows in found.values():
            total.update(rows)
        return dict(total)

    def is_at_hand(self) -> bool:
        """Whether a range is processed, or its checkpoint is left to take."""
        return any(each.stage >= Stage.BUSY for each in self.ranges)

    def is_busy(self) -> bool:
        """Whether a range is processed."""
        return any(each.stage is Stage.BUSY and not each.is_abandoned() for each in self.ranges)

    def may_read(self) -> bool:
        """One range is processed and two are ahead of it, while a checkpoint may be on its way: one that is whole, so
        that the processor never waits for the planning of the next, and one that is read."""
        return len(self.ranges) < 4 and sum(each.stage < Stage.DONE for each in self.ranges) < 3

    def next_to_fix(self) -> RangeRead | None:
        """The range whose end the store should know next, and takes now."""
        found = next((each for each in self.ranges if each.stage is Stage.READ), None)
        return found if found is not None and found.sequence <= self.sequence + 1 else None

    def next_to_give(self) -> RangeRead | None:
        """The range that may be processed now: all before it are. It may have begun, and have more to process."""
        found = next((each for each in self.ranges if each.stage is not Stage.DONE), None)
        return found if found is not None and found.stage >= Stage.FIXED else None

    def drop_from(self, first: RangeRead) -> list[RangeRead]:
        """Forget this range and those after it: the next one begins where it began."""
        if first not in self.ranges:
            return []
        place = self.ranges.index(first)
        dropped = self.ranges[place:]
        del self.ranges[place:]
        for each in dropped:
            if each.sequence in self.ends:  # whose end is in the store, so that its rows stay the same
                self.dropped[each.sequence] = _most(each.rows_by_table(), self.dropped.get(each.sequence, {}))
        self.planned, self.planned_sequence = first.start, first.sequence
        return dropped


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Of each table the larger number: a range that is read once more has not come as far, at first."""
    return {table: max(one.get(table, 0), other.get(table, 0)) for table in {**one, **other}}
