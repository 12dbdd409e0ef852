"""Option `protect`: finds a job's speed from the health signals of its source and target. A clock, no I/O.

A signal above its bound halves the speed (`replication_lag`, `slot_wal`); a delay above what it usually is takes a
fifth of it (`wakeup`, `latency`). Without one the speed grows: it doubles until something was ever too much, goes back
fast to where that was, and slowly above it. It grows up to where the job's own statements use as much of a core as they
may (`work`): short statements delay an application long before any signal shows it.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.limits.adaptive import LatencyGradient

__all__ = [
    "WORK",
    "AdaptiveLimit",
    "HealthSample",
    "shown",
    "signal_bound",
]


@dataclass(frozen=True, slots=True)
class HealthSignal:
    """`at_most` is the default bound; None = it is compared with what it usually is. `unit` is for people."""

    at_most: float | None
    unit: str = ""


WORK = "work"
"""The one signal that no system reports: the job measures its own statements."""

SIGNALS: dict[str, HealthSignal] = {
    "replication_lag": HealthSignal(1.0, "s"),
    "xmin_age": HealthSignal(10_000_000, "transactions"),
    "slot_wal": HealthSignal(float(1 << 30), "bytes"),
    "active_sessions": HealthSignal(32),
    "waiting_sessions": HealthSignal(8),
    "forced_checkpoints": HealthSignal(2, "a minute"),
    "history_length": HealthSignal(1_000_000),
    "threads_running": HealthSignal(32),
    WORK: HealthSignal(0.05, "of a core"),
    "wakeup": HealthSignal(None, "s"),
    "latency": HealthSignal(None, "s"),
}
"""The signals of the shipped connectors. `work` is how much of a core the job's own statements use, `wakeup` how
long a session of the server waits for a core, `latency` how long a small statement takes from here and back."""


def signal_bound(name: str) -> float:
    """The default bound of a signal that has one."""
    found = SIGNALS[name].at_most
    assert found is not None
    return found


def shown(name: str, value: float) -> str:
    """A value of a signal, for people."""
    kind = SIGNALS.get(name)
    unit = "" if kind is None else kind.unit
    if unit == "bytes":
        return f"{value / (1 << 20):.0f} MiB"
    if unit == "s" and value < 1:
        return f"{value * 1000:.3g} ms"
    text = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return f"{text} {unit}".rstrip()


START_ROWS = 5_000.0
"""Rows per second at which a job begins that has no other start speed."""
LEAST_ROWS = 100.0
LEAST_PART = 0.05
"""Lowest speed, as a fraction of the best speed so far. Below it, the job's effect cannot be told from other load."""
_DOUBLED_IN = 0.5
_FIRST_DOUBLED_IN = 1.0
"""Where nothing was too much yet: delays are known a second or two late, and the speed must not run far ahead."""
_HARD, _HARD_EVERY = 0.5, 0.4
_SOFT, _SOFT_EVERY = 0.8, 1.0
_FIRST_GOAL = 0.7
_FAST_UP_TO = 0.7
_BACK_PER_SECOND = 0.3
_SOFT_BACK_PER_SECOND = 0.1
_ABOVE_PER_SECOND = 0.03
_SPEED_SECONDS = 2.0
_RELEARN_SECONDS = 2.0
_USED = 0.7
"""A job that uses this fraction of the speed that `work` allows counts as limited by it: the cost of rows varies."""
_AHEAD = 4.0
"""The allowed speed is at most this factor times the used one, a mean of two seconds in which it may double."""
_LONGEST_STEP = 1.0
"""Seconds for which the speed grows at a time: longer silence does not count as good news."""
_SILENT_SECONDS = 3.0
_UNUSUAL = 1.25
_MOST_HELD = 200
_MOST_SIGNALS = 200
"""Names that are remembered of a side: who makes them up must not fill the memory."""
_TOLERANCES: Mapping[str, tuple[float, float, float]] = {"wakeup": (1.5, 0.0001, 0.1)}
_TOLERANCE = (2.0, 0.002, 1.0)
"""(times the usual, seconds on top, part of the delays, the longest ones) for `latency`, which the client's own host
makes noisy, and for others.
"""


@dataclass(frozen=True, slots=True)
class HealthSample:
    """The health that one side reported at one instant.

    `values`: a signal's name to (value, what is too much). `delays`: a name to seconds, each a separate measurement.
    `missing`: signals that the role may not read, each with the reason. `error`: it could not be asked.
    `row_seconds`: how long the system works for one row of the job; 0.0 = not known.
    """

    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    delays: Mapping[str, Sequence[float]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    error: str = ""
    row_seconds: float = 0.0


@dataclass(slots=True)
class ThrottleInterval:
    """An interval in which a signal of a side limited the speed.

    `began` and `ended` are seconds after the start; `rows_per_second` is the lowest speed in it.
    """

    side: str
    signal: str
    began: float
    ended: float
    rows_per_second: float


@dataclass(frozen=True, slots=True)
class _Trouble:
    side: str
    signal: str
    text: str
    hard: bool


@dataclass(slots=True)
class _Side:
    """The known health of the source, or of the target."""

    heard: float
    gradients: dict[str, LatencyGradient] = field(default_factory=dict)
    usual: dict[str, float] = field(default_factory=dict)
    trouble: _Trouble | None = None
    missing: tuple[str, ...] = ()
    error: str = ""
    row_seconds: float = 0.0

    @property
    def is_blind(self) -> bool:
        return bool(self.error)


class AdaptiveLimit:
    """`rows_per_second` is what a job may use now: at most `most_rows`, where that is given.

    `bounds`: the user's bounds by the name of a signal, instead of the defaults; `auto` False: other signals are
    ignored. Pass each sample to `observe`. Not thread-safe.
    """

    def __init__(
        self,
        most_rows: float | None = None,
        *,
        bounds: Mapping[str, float] | None = None,
        auto: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._most_rows = most_rows
        self._bounds = dict(bounds or {})
        self._auto = auto
        self._sides: dict[str, _Side] = {}
        self._began = self._at = self._clock.now()
        begins_slow = auto or most_rows is None
        self._rows = self._capped(START_ROWS) if begins_slow else most_rows or START_ROWS
        self._best = self._rows
        self._goal: float | None = None
        """The speed at which a signal was last too high."""
        self._was_hard = False
        self._cut_at: float | None = None
        self._least_since: float | None = None
        self._above_since: float | None = None
        self._spent: deque[tuple[float, float]] = deque()
        self._trouble: _Trouble | None = None
        self._held: deque[ThrottleInterval] = deque(maxlen=_MOST_HELD)

    @property
    def rows_per_second(self) -> float:
        return self._rows

    @property
    def held(self) -> tuple[ThrottleInterval, ...]:
        """Return which signal limited the speed, and when; the last 200 times."""
        return tuple(self._held)

    @property
    def held_seconds(self) -> dict[str, float]:
        """Return the total seconds that each signal was too high, by its name: "target's replication_lag"."""
        found: dict[str, float] = {}
        for each in self._held:
            name = f"{each.side}'s {each.signal}"
            found[name] = found.get(name, 0.0) + each.ended - each.began
        return found

    @property
    def holder(self) -> str:
        """The signal that limits the speed, such as "target's replication_lag"; empty where none does."""
        trouble = self._trouble
        return "" if trouble is None else f"{trouble.side}'s {trouble.signal}"

    @property
    def text(self) -> str:
        """What limits the speed, and what cannot be watched, as text for `show`. Empty where nothing does."""
        found = [self._state(), *(self._said_of(name, side) for name, side in self._sides.items())]
        return "; ".join(each for each in found if each)

    def limit_to(self, most_rows: float | None) -> None:
        """Set the job's own limit."""
        self._most_rows = most_rows
        self._rows = self._capped(self._rows)

    def observe(self, side: str, sample: HealthSample, spent_rows: float) -> float:
        """Take a sample of one side; `spent_rows` is the number of rows moved so far. Returns `rows_per_second`."""
        now = self._clock.now()
        self._spend(spent_rows, now)
        known = self._sides.setdefault(side, _Side(now))
        if len(known.usual) + len(known.gradients) > _MOST_SIGNALS:
            known.usual, known.gradients = {}, {}
        known.heard, known.error, known.missing = now, sample.error, sample.missing
        known.row_seconds = sample.row_seconds or known.row_seconds
        known.trouble = None if sample.error else self._judge(side, known, sample, now)
        self._move(now)
        self._at = now
        return self._rows

    def forget(self, side: str) -> None:
        """Stop watching `side`."""
        self._sides.pop(side, None)

    # --- judging

    def _judge(self, side: str, known: _Side, sample: HealthSample, now: float) -> _Trouble | None:
        worst: tuple[float, _Trouble] | None = None
        for name, (value, bound) in sample.values.items():
            most = self._most_of(known, name, value, bound)
            if most is not None and value > most:
                text = f"{side}'s {name} {shown(name, value)}, at most {shown(name, most)}"
                trouble = (value / most if most else 2.0, _Trouble(side, name, text, hard=True))
                worst = trouble if worst is None or trouble[0] > worst[0] else worst
        soft = None
        for name, delays in sample.delays.items():
            if not self._auto and name not in self._bounds:
                continue
            gradient = known.gradients.setdefault(
                name, LatencyGradient(*_TOLERANCES.get(name, _TOLERANCE))
            )
            gradient.add(delays, now)
            mean, own = gradient.mean, self._bounds.get(name)
            if mean is None:
                continue
            if own is not None and mean > own:
                text = f"{side}'s {name} {shown(name, mean)}, at most {shown(name, own)}"
                soft = soft or _Trouble(side, name, text, hard=False)
            elif own is None and gradient.is_over():
                text = f"{side}'s {name} {shown(name, mean)}, usually {shown(name, gradient.usual or 0.0)}"
                soft = soft or _Trouble(side, name, text, hard=False)
        return worst[1] if worst is not None else soft

    def _most_of(self, known: _Side, name: str, value: float, bound: float) -> float | None:
        """Return a signal's bound. A value near or above it when the job began is usual, not the job's effect."""
        if name in self._bounds:
            return self._bounds[name]
        if not self._auto:
            return None
        usual = known.usual.setdefault(name, value)
        return bound if usual * _UNUSUAL <= bound else usual * _UNUSUAL + bound

    # --- moving

    def _move(self, now: float) -> None:
        troubles = [
            side.trouble
            for side in self._sides.values()
            if side.trouble is not None and now - side.heard <= _SILENT_SECONDS
        ]
        worst = next((each for each in troubles if each.hard), next(iter(troubles), None))
        self._note(worst or self._at_work(), now)
        if worst is not None:
            self._lower(worst, now)
        elif all(self._is_well(side, now) for side in self._sides.values()):
            self._raise(now)
        self._rows = self._capped(self._rows)
        self._best = max(self._best, self._rows)

    def _is_well(self, side: _Side, now: float) -> bool:
        """Whether the delays of `side` at this speed are known, so that the speed may grow."""
        if side.is_blind or now - side.heard > _SILENT_SECONDS:
            return False
        return all(each.mean is not None for each in side.gradients.values())

    def _lower(self, trouble: _Trouble, now: float) -> None:
        every = _HARD_EVERY if trouble.hard else _SOFT_EVERY
        self._above_since = None
        if self._cut_at is not None and now - self._cut_at < every:
            return
        if self._is_least:
            self._relearn(trouble, now)
            return
        used = min(self._rows, max(1.1 * self._speed(), self._rows / 4))
        part = _HARD if trouble.hard or self._goal is None else _SOFT
        if self._trouble_began(now):
            # The first time the speed has run ahead of what is known of it.
            self._goal = used if trouble.hard or self._goal is not None else _FIRST_GOAL * used
        self._was_hard = trouble.hard
        self._rows = self._capped(max(self._least, used * part))
        self._cut_at = now
        self._least_since = now if self._is_least else None
        for side in self._sides.values():
            for gradient in side.gradients.values():
                gradient.forget()

    def _relearn(self, trouble: _Trouble, now: float) -> None:
        """Take the delays at the lowest speed as usual: the job does not cause them."""
        if trouble.hard:
            self._least_since = None
            return
        if self._least_since is None:
            self._least_since = now
        if now - self._least_since >= _RELEARN_SECONDS:
            for side in self._sides.values():
                for gradient in side.gradients.values():
                    gradient.relearn()
            self._least_since = None

    def _raise(self, now: float) -> None:
        seconds = min(_LONGEST_STEP, now - self._at)
        rows, goal = self._rows, self._goal
        doubled: Callable[[float], float] = lambda most: min(  # noqa: E731 - one formula, used twice
            most, rows * 2 ** (seconds / _DOUBLED_IN)
        )
        if goal is None:
            rows *= 2 ** (seconds / _FIRST_DOUBLED_IN)
        elif rows < _FAST_UP_TO * goal:
            rows = doubled(max(rows, _FAST_UP_TO * goal))
        elif rows < goal:
            pace = _BACK_PER_SECOND if self._was_hard else _SOFT_BACK_PER_SECOND
            rows = min(goal, rows + goal * pace * seconds)
        else:
            self._above_since = self._above_since if self._above_since is not None else self._at
            rows += goal * _ABOVE_PER_SECOND * (1 + now - self._above_since) * seconds
        # An unused speed does not show what would be fine.
        enough = max(START_ROWS, _AHEAD * self._speed())
        self._rows = self._capped(max(self._rows, min(rows, max(enough, goal or 0.0))))

    # --- small parts

    @property
    def _least(self) -> float:
        return max(LEAST_ROWS, LEAST_PART * self._capped(self._best))

    @property
    def _is_least(self) -> bool:
        return self._rows <= self._capped(self._least)

    def _capped(self, rows: float) -> float:
        return min(rows, self._most, *(most for _, most in self._working()))

    @property
    def _most(self) -> float:
        return math.inf if self._most_rows is None else self._most_rows

    def _working(self) -> list[tuple[str, float]]:
        """Each side's name, and the rows per second at which it works for the job as much as it may."""
        bound = self._bounds.get(WORK, signal_bound(WORK) if self._auto else None)
        if bound is None:
            return []
        return [
            (name, max(LEAST_ROWS, bound / side.row_seconds))
            for name, side in self._sides.items()
            if side.row_seconds
        ]

    def _at_work(self) -> _Trouble | None:
        """Return the side whose `work` limits the speed, while the job uses all of it."""
        name, most = min(self._working(), key=lambda each: each[1], default=("", math.inf))
        if most > self._most or min(self._rows, self._speed()) < _USED * most:
            return None
        used = shown(WORK, most * self._sides[name].row_seconds)
        return _Trouble(name, WORK, f"{name}'s work {used}", hard=False)

    def _trouble_began(self, now: float) -> bool:
        """Whether this cut is the first one since the speed had recovered."""
        if self._goal is None or self._cut_at is None:
            return True
        return self._rows >= 0.95 * self._goal or now - self._cut_at > _SILENT_SECONDS

    def _spend(self, rows: float, now: float) -> None:
        spent = self._spent
        if spent and rows < spent[-1][1]:
            spent.clear()  # another account, after a restart
        spent.append((now, rows))
        while len(spent) > 2 and spent[1][0] <= now - _SPEED_SECONDS:
            spent.popleft()

    def _speed(self) -> float:
        """Rows per second of the last two seconds."""
        (begin, before), (end, after) = self._spent[0], self._spent[-1]
        return (after - before) / (end - begin) if end > begin else 0.0

    def _note(self, trouble: _Trouble | None, now: float) -> None:
        before, self._trouble = self._trouble, trouble or (self._trouble if self._is_held else None)
        if trouble is None:
            return
        at = now - self._began
        last = self._held[-1] if self._held else None
        same = before is not None and (before.side, before.signal) == (trouble.side, trouble.signal)
        if last is None or not same or at - last.ended > _SILENT_SECONDS:
            self._held.append(ThrottleInterval(trouble.side, trouble.signal, at, at, self._rows))
        else:
            last.ended, last.rows_per_second = at, min(last.rows_per_second, self._rows)

    @property
    def _is_held(self) -> bool:
        """Whether the speed is below where it was before it was too much."""
        goal = self._goal if self._goal is not None else self._rows
        return self._rows < self._capped(goal)

    def _state(self) -> str:
        trouble = self._trouble
        if trouble is None:
            return ""
        side = self._sides.get(trouble.side)
        now_pressed = side is not None and side.trouble is not None
        state = "held" if trouble.signal == WORK else "pressed" if now_pressed else "recovering"
        return f"{state}: {trouble.text} ({self._rows:.0f} rows/s)"

    def _said_of(self, name: str, side: _Side) -> str:
        if side.error:
            return f"unreachable: {name}: {side.error} ({self._rows:.0f} rows/s)"
        return f"{name}: not watched: {', '.join(side.missing)}" if side.missing else ""
