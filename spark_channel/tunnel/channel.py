"""One channel in a client: its deliveries, the size of its ranges, its end, and its retries after errors."""

import heapq
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol, runtime_checkable

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock, FixedSeconds
from spark_channel.connectors.base.contract import Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, has_base
from spark_channel.errors import ChannelError
from spark_channel.retry import Backoff
from spark_channel.tunnel.ranges import RangeRead, Stage
from spark_channel.tunnel.records import Channel
from spark_channel.tunnel.source import StreamSource

__all__ = [
    "BackfillStallMonitor",
    "ChannelProcessor",
    "ChannelRun",
    "CoalescedTask",
    "Delivery",
    "FailureAction",
    "FailurePolicy",
    "Processor",
    "RangeSize",
    "StopPosition",
    "TurnScheduler",
]

_ASKED_SECONDS = 15.0
"""Interval between two questions to the source until the first report."""
_REPORT_SECONDS = (600.0, 3600.0)
"""Pause before the second report, and before each later one."""
_FIRST_ROWS = 10_000
_LEAST_ROWS = 100
_MOST_ROWS = 10_000_000
_FIRST = 0.1
_FACTOR = 3.0
_JITTER = 0.25


@dataclass(frozen=True)
class Delivery:
    """One range of one channel. (`channel`, `sequence`) names the same rows forever: a program that keeps it
    with the rows, in one transaction, has them once, also when the range is delivered again.

    `batches` is read while it is iterated; what the processor leaves unread counts as processed.

    With option `tables`, a range is one delivery for each table that has rows in it. `table` names it, and is empty
    otherwise; `channel` has the tunnel channel and the table, such as `stream-0/shop.orders`; `start` and `end` are
    those of the range.
    """

    tunnel: str
    channel: str
    sequence: int
    is_base: bool
    start: Token
    end: Token
    batches: Iterator[pa.RecordBatch]
    table: str = ""


@runtime_checkable
class Processor(Protocol):
    """The callbacks of a consumer; a plain function counts as `process`."""

    def process(self, delivery: Delivery) -> None:
        """Take a range, or one table of it. It is delivered again when this raises, and has its checkpoint when this
        returned for all of its tables.
        """

    def shutdown(self, channel: str) -> None:
        """No more of `channel` comes here: it is drained or parked, another client has it, or `consume` ends."""


class StopPosition:
    """The end of a channel's source at the time when this client opened the channel; later changes do not move it.

    Existing rows that are read beside the changes end before they have a goal: a row that changes while its chunk is
    read arrives by that change alone. So the end is fixed again after the last chunk.
    """

    def __init__(self, feed: ChangeFeed, clock: Clock) -> None:
        self._feed, self._clock = feed, clock
        self._end: Token | None = None
        self._settled_at = 0.0
        self._had_base = False

    def fix(self, start: Token) -> float:
        """Fix the end, where it is not; the seconds until all rows up to there have come to light.

        `start`: the position that the channel is read from next.
        """
        has_base_left = has_base(start)
        if self._end is None or (self._had_base and not has_base_left):
            self._end = self._feed.end_of(start)
            self._settled_at = self._clock.now() + self._feed.waits_seconds
        self._had_base = has_base_left
        remaining = self._settled_at - self._clock.now()
        return remaining if remaining > 0 and self._feed.lag(start).rows != 0 else 0.0

    def upto(self, start: Token, *, is_paused: bool) -> Token | None:
        """The position that the next range does not pass; None = any. `is_paused`: no existing rows are read."""
        return None if has_base(start) and not is_paused else self._end

    def is_reached(self, start: Token) -> bool:
        """Whether all changes of the database's log up to the end are read."""
        return self._end is not None and self._feed.reaches(start, self._end)


class BackfillStallMonitor:
    """Asks a channel's feed what delays its existing rows; reports a reason that lasts for 15 s, then rarely."""

    def __init__(self, feed: ChangeFeed, clock: Clock) -> None:
        self._feed, self._clock = feed, clock
        self._is_held = False
        self._reported = 0
        self._next = clock.now() + _ASKED_SECONDS

    def look(self, start: Token) -> str:
        """Return the reason to report now for a channel whose next range begins at `start`; empty: none."""
        now = self._clock.now()
        if now < self._next or not has_base(start):
            return ""
        try:
            reason = self._feed.backfill_blocked_by(start)
        except ChannelError:  # the channel's own calls report it
            reason = ""
        was_held, self._is_held = self._is_held, bool(reason)
        if not reason:
            self._reported = 0
        if not reason or not was_held:
            self._next = now + _ASKED_SECONDS
            return ""
        self._next = now + _REPORT_SECONDS[min(self._reported, len(_REPORT_SECONDS) - 1)]
        self._reported += 1
        return reason


class RangeSize:
    """Grows or shrinks a range, at most twofold a time, towards `seconds`; never above `most`.

    What a range takes whatever it has, as the search of its first change or its plan, is left out. Where that alone is
    longer than `seconds`, the rows may take as long.
    """

    def __init__(self, most: FeedLimit, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._fixed = FixedSeconds()
        self._rows = min(_FIRST_ROWS, most.rows or _FIRST_ROWS)

    def limit(self) -> FeedLimit:
        """The next range's limit."""
        return FeedLimit(self._rows, self._most.nbytes)

    def is_full(self, rows: int, nbytes: int) -> bool:
        """Whether the limit cut a range of this size, so that there is more to read at once."""
        return rows >= self._rows or (self._most.nbytes is not None and nbytes >= self._most.nbytes)

    def took(self, seconds: float, rows: int, planning: float = 0.0) -> None:
        """A range of `rows` took `seconds` to be read and processed, and `planning` to be planned and stored."""
        of_rows = self._fixed.took(rows, seconds)
        aim = max(self._seconds, self._fixed.seconds, planning)
        if rows < self._rows / 2 and of_rows <= aim:
            return  # there was no more to read
        factor = 2.0 if of_rows <= 0 else min(2.0, max(0.5, aim / of_rows))
        self._rows = int(min(self._most.rows or _MOST_ROWS, max(_LEAST_ROWS, self._rows * factor)))


class FailureAction(Enum):
    """The next step for a channel that failed."""

    AGAIN = "again"
    PARK = "park"
    STOP = "stop"


class FailurePolicy:
    """One channel's failures since its last checkpoint.

    A range that fails is tried again after 0.1 s, then after three times as long each time, up to `longest`;
    when it fails after the longest wait too, the channel is parked. An outage (a connection is lost, a lock is
    held) is waited for, with the same waits, and parks nothing.

    Args:
        longest: the longest wait, `maxRetryInterval`.
        parks: whether a channel is parked, `onError`; else the first failure ends all.
        outage: how long an outage may last; None = any time.
    """

    def __init__(
        self,
        longest: float,
        *,
        parks: bool,
        outage: float | None,
        chance: random.Random | None = None,
    ) -> None:
        self._longest = longest
        self._parks = parks
        self._outage = outage
        self._random = chance or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._next = min(_FIRST, longest)
        self._worst = False
        self._outage_next = min(_FIRST, longest)
        self._since: float | None = None

    def over(self) -> None:
        """Note that a checkpoint was taken."""
        self._next = self._outage_next = min(_FIRST, self._longest)
        self._worst, self._since = False, None

    def failed(self) -> tuple[FailureAction, float]:
        """Note that a range failed; return the next step, and the seconds to wait before it."""
        self._since = None
        if not self._parks:
            return FailureAction.STOP, 0.0
        if self._worst:
            return FailureAction.PARK, 0.0
        wait, self._worst = self._next, self._next >= self._longest
        self._next = min(self._longest, wait * _FACTOR)
        return FailureAction.AGAIN, self._jittered(wait)

    def refused(self) -> FailureAction:
        """Note that a range failed as it would each time; return the next step."""
        return FailureAction.PARK if self._parks else FailureAction.STOP

    def no_answer(self, now: float) -> tuple[FailureAction, float]:
        """Note that store or source does not answer; return the next step, and the seconds to wait before it."""
        if self._since is None:
            self._since, self._outage_next = now, min(_FIRST, self._longest)
        if self._outage is not None and now - self._since > self._outage:
            return FailureAction.STOP, 0.0
        wait = self._outage_next
        self._outage_next = min(self._longest, wait * _FACTOR)
        return FailureAction.AGAIN, self._jittered(wait)

    def _jittered(self, wait: float) -> float:
        return wait * (1 - _JITTER * self._random.random())


@dataclass(slots=True, eq=False)
class _Waiting:
    """A turn that waits until it is due."""

    due: float
    number: int
    key: str
    turn: Callable[[], float | None]
    is_void: bool = False

    def __lt__(self, other: "_Waiting") -> bool:
        return (self.due, self.number) < (other.due, other.number)


class TurnScheduler:
    """`threads` workers. A turn is a call that returns the seconds until its next one, or None for the end.

    An exception in a turn ends all turns, and is passed to `failed`, once.
    """

    def __init__(
        self, threads: int, failed: Callable[[BaseException], None], *, clock: Clock | None = None
    ) -> None:
        self._failed = failed
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._by_key: dict[str, list[_Waiting]] = {}
        self._numbers = itertools.count()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"spark-channel-turn-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, key: str, turn: Callable[[], float | None], wait: float = 0.0) -> None:
        """Run `turn` for the first time in `wait` seconds."""
        with self._changed:
            self._push(_Waiting(self._clock.now() + wait, next(self._numbers), key, turn))
            self._changed.notify()

    def run_now(self, key: str) -> None:
        """Run the waiting turns of `key` now."""
        with self._changed:
            for waiting in self._by_key.pop(key, ()):
                self._push(replace(waiting, due=0.0))
                waiting.is_void = True  # it stays where it is until it is due
            self._changed.notify_all()

    def _push(self, waiting: "_Waiting") -> None:
        heapq.heappush(self._waiting, waiting)
        self._by_key.setdefault(waiting.key, []).append(waiting)

    def close(self, timeout: float | None = None) -> bool:
        """Begin no more turns, and wait for the running ones; False after `timeout` seconds. May be repeated."""
        until = None if timeout is None else self._clock.now() + timeout
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._by_key.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(None if until is None else max(0.0, until - self._clock.now()))
        return not any(
            thread.is_alive()
            for thread in self._threads
            if thread is not threading.current_thread()
        )

    def _work(self) -> None:
        while (task := self._next()) is not None:
            key, turn = task
            try:
                wait = turn()
            except BaseException as error:
                with self._changed:
                    first, self._closed = not self._closed, True
                    self._changed.notify_all()
                if first:
                    self._failed(error)
                return
            if wait is not None:
                self.add(key, turn, wait)

    def _next(self) -> tuple[str, Callable[[], float | None]] | None:
        with self._changed:
            while not self._closed:
                wait = None
                if self._waiting:
                    wait = self._waiting[0].due - self._clock.now()
                    if wait <= 0 or self._waiting[0].is_void:
                        first = heapq.heappop(self._waiting)
                        if first.is_void:
                            continue
                        of_key = self._by_key[first.key]
                        of_key.remove(first)
                        if not of_key:
                            del self._by_key[first.key]
                        return first.key, first.turn
                self._clock.wait(self._changed, wait)
            return None


class CoalescedTask:
    """Work that may be requested any number of times, and runs in one thread at a time.

    `work` returns the seconds until its next run, or None for "on request". A request during a run causes one more
    run, so that no request is lost.
    """

    def __init__(self, turns: TurnScheduler, key: str, work: Callable[[], float | None]) -> None:
        self._turns = turns
        self._key = key
        self._work = work
        self._lock = threading.Lock()
        self._waiting = self._running = self._again = False

    def ask(self) -> None:
        """Request a run."""
        with self._lock:
            if self._running:
                self._again = True
                return
            waits, self._waiting = self._waiting, True
        if waits:
            self._turns.run_now(self._key)
        else:
            self._turns.add(self._key, self._turn)

    def _turn(self) -> float | None:
        with self._lock:
            self._running, self._again = True, False
        wait: float | None = None
        try:
            wait = self._work()
        finally:
            with self._lock:
                self._running = False
                if self._again:
                    wait = 0.0
                self._waiting = wait is not None
        return wait


@dataclass(frozen=True)
class ChannelProcessor:
    """The callbacks for a channel's deliveries and for its end. `channel`: its name in deliveries."""

    channel: str
    process: Callable[[Delivery], object]
    closes: Callable[[str], object] | None = None


@dataclass(eq=False)
class ChannelRun:
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
    trouble: FailurePolicy
    backfill_monitor: BackfillStallMonitor
    planned: Token = field(default_factory=dict)
    planned_sequence: int = 0
    ranges: list[RangeRead] = field(default_factory=list)
    settle: Token | None = None
    processors: dict[str, ChannelProcessor] = field(default_factory=dict)
    done: dict[int, set[str]] = field(default_factory=dict)
    dropped: dict[int, Mapping[str, int]] = field(default_factory=dict)
    backoff: Backoff = field(default_factory=Backoff)
    stopping: bool = False
    lost: bool = False
    closed: bool = False
    until: Token | None = None
    paused: bool = False
    goal: StopPosition | None = None
    held_since: float | None = None
    parked_by: tuple[BaseException, str] | None = None
    read_after: float = 0.0
    store_after: float = 0.0
    reading: CoalescedTask = field(init=False)
    storing: CoalescedTask = field(init=False)
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
        """Whether its processors exist."""
        return len(self.processors) == len(self.tables)

    def name_of(self, table: str) -> str:
        """The channel of a table's deliveries."""
        return f"{self.id}/{table}" if table else self.id

    def in_flight(self, first: int = 0) -> dict[str, int]:
        """The rows by table that were read and have no checkpoint, from range number `first` on."""
        rows_by_range: dict[int, Mapping[str, int]] = {
            key: rows for key, rows in self.dropped.items() if key >= first
        }
        for one_range in self.ranges:
            if one_range.sequence >= first:
                rows_by_range[one_range.sequence] = _most(
                    one_range.rows_by_table(), rows_by_range.get(one_range.sequence, {})
                )
        total: Counter[str] = Counter()
        for rows in rows_by_range.values():
            total.update(rows)
        return dict(total)

    def is_at_hand(self) -> bool:
        """Whether a range is being processed, or its checkpoint is still to be taken."""
        return any(one_range.stage >= Stage.BUSY for one_range in self.ranges)

    def is_busy(self) -> bool:
        """Whether a range is being processed."""
        return any(
            one_range.stage is Stage.BUSY and not one_range.is_abandoned()
            for one_range in self.ranges
        )

    def may_read(self) -> bool:
        """One range is processed and two are ahead of it, while a checkpoint may be on its way: one that is whole, so
        that the processor never waits for the planning of the next, and one that is read."""
        return (
            len(self.ranges) < 4
            and sum(one_range.stage < Stage.DONE for one_range in self.ranges) < 3
        )

    def next_to_fix(self) -> RangeRead | None:
        """The range whose end the store should know next, and takes now."""
        unfixed = next(
            (one_range for one_range in self.ranges if one_range.stage is Stage.READ), None
        )
        return unfixed if unfixed is not None and unfixed.sequence <= self.sequence + 1 else None

    def next_to_give(self) -> RangeRead | None:
        """The range that may be processed now: all before it are. It may have begun, and have more to process."""
        ungiven = next(
            (one_range for one_range in self.ranges if one_range.stage is not Stage.DONE), None
        )
        return ungiven if ungiven is not None and ungiven.stage >= Stage.FIXED else None

    def drop_from(self, first: RangeRead) -> list[RangeRead]:
        """Forget this range and those after it: the next range begins at its start."""
        if first not in self.ranges:
            return []
        index = self.ranges.index(first)
        dropped = self.ranges[index:]
        del self.ranges[index:]
        for one_range in dropped:
            if one_range.sequence in self.ends:
                # Whose end is in the store, so that its rows stay the same.
                self.dropped[one_range.sequence] = _most(
                    one_range.rows_by_table(), self.dropped.get(one_range.sequence, {})
                )
        self.planned, self.planned_sequence = first.start, first.sequence
        return dropped


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the larger number for each table: a range that is read again has fewer rows at first."""
    return {table: max(one.get(table, 0), other.get(table, 0)) for table in {**one, **other}}
