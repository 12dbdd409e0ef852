"""Option `protect`: finds a job's speed from the health signals of its source and target. A clock, no I/O.

The aim is that the application's statements are at most so many times slower than without the job (`aim`, 1.35). No
signal shows a slowdown that small: a server counts a statement's latency from when it has a core, and a kernel lets a
session that slept go first. So first of all the job's own statements may use so much of a core (`work`), more where
sessions hardly ever wait for one, and in proportion to the aim. Below that bound the latency of the application's own
statements (`application`) is held at the aim, or where a system does not report it how often a session waits for a core
(`wakeup`): the speed grows while there is room below, less the nearer it is, and shrinks above it. A signal above its
bound halves the speed (`replication_lag`, `slot_wal`).
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.limits.adaptive import Slowdown

__all__ = [
    "AIM",
    "AIMED",
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


AIMED = "p99"
"""The name of the aim among a user's bounds."""
AIM = 1.35
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
    "application": HealthSignal(None, "times its mean"),
    "wakeup": HealthSignal(None, "s"),
    "latency": HealthSignal(None, "s"),
}
"""The signals of the shipped connectors. `work` is how much of a core the job's own statements use, `wakeup` how long a
session of the server waits for a core, `latency` how long a small statement takes from here and back. `application` is
the latency of others' statements, each as a multiple of its mean."""


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
"""Lowest speed, as a fraction of the best speed so far. Below it, the job's effect and other load look the same."""
_DOUBLED_IN = 0.5
_FIRST_DOUBLED_IN = 1.0
"""Where nothing was too much yet: a signal is known a second or two late, and the speed must not run far ahead."""
_HARD, _HARD_EVERY = 0.5, 0.4
_SOFT, _SOFT_EVERY = 0.8, 1.0
_FAST_UP_TO = 0.7
_BACK_PER_SECOND = 0.3
_SOFT_BACK_PER_SECOND = 0.1
_ABOVE_PER_SECOND = 0.03
_FAR, _FAR_PART, _FAR_EVERY = 5.0, 0.6, 1.0
"""So many times as far above usual as the aim, the speed is cut at once, without waiting for the mean."""
_FAR_GOAL = 0.9
_EASED_PER_SECOND, _MOST_EASED = 0.5, 0.4
_GROWTH = (0.5, 0.5, 0.15, 0.06)
"""Per second, where there is all the room below the aim: at first; far below the speed that was too much; near it;
above it, the more the longer it has been."""
_GROWTH_BELOW_WORK = 1.0
"""At first, where it is known at which speed the job works as much as it may."""
_MOST_GROWTH = 2.0
_SPEED_SECONDS = 2.0
_RELEARN_SECONDS = 6.0
_WAITED_SECONDS = 0.0002
"""A session that wakes up later than so has waited for a core."""
_SHARE_SAMPLES, _LEAST_NAPS = 4, 8
_ROOM_SAMPLES, _ROOM_NAPS = 40, 20
_CROWDED, _MOST_ROOM, _LEAST_ROOM = 0.07, 10.0, 0.25
"""The part of the naps that wait for a core where none is to spare: on one core, a third of it in use. Where fewer do,
or more, the default bound of `work` is so much higher or lower, within these factors."""
_DEARER, _CHEAPER = 0.3, 0.05
"""How far a sample moves what a row is taken to cost."""
_UNKNOWN_COST = 2.0
"""The assumed cost of a row for a side without rows, relative to the other side's: a write adds rows in the end."""
_USED = 0.7
"""A job that uses this fraction of the speed that `work` allows counts as limited by it: the cost of rows varies."""
_AHEAD = 4.0
"""The allowed speed is at most this factor times the used one, a mean of two seconds in which it may double."""
_LONGEST_STEP = 1.0
"""Seconds for which the speed grows at a time: longer silence does not count as good news."""
_SILENT_SECONDS = 3.0
_QUIET_SECONDS = 10.0
"""A side's last signal of an application expires, once too few statements have ended for so long."""
_UNUSUAL = 1.25
_LEAST_WORK = 0.25
"""The part of the bound of `work` that others' latency leaves a job. Below it, latency is not the reason."""
_MOST_HELD = 200
_MOST_SIGNALS = 200
"""Names that are remembered of a side: who makes them up must not fill the memory."""


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
    slowdowns: dict[str, Slowdown] = field(default_factory=dict)
    naps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_ROOM_SAMPLES))
    usual: dict[str, float] = field(default_factory=dict)
    trouble: _Trouble | None = None
    missing: tuple[str, ...] = ()
    error: str = ""
    row_seconds: float = 0.0
    unasked: float = 0.0
    """Seconds in which the system could not be asked."""

    @property
    def is_blind(self) -> bool:
        return bool(self.error)

    @property
    def present(self) -> dict[str, Slowdown]:
        """Those that were heard of lately."""
        return {
            name: each
            for name, each in self.slowdowns.items()
            if self.heard - each.heard <= _QUIET_SECONDS
        }

    @property
    def first(self) -> tuple[str, Slowdown] | None:
        """The signal that the aim is held by; None = the system reports none."""
        present = self.present
        for name in ("application", "wakeup"):
            if name in present:
                return name, present[name]
        return None

    @property
    def last(self) -> float:
        """The highest of the last values, in terms of the usual one."""
        return max((each.last for each in self.present.values()), default=1.0)

    def listen(
        self, delays: Mapping[str, Sequence[float]], now: float, *, is_slow: bool = True
    ) -> None:
        """Take what is known of others' latency; `is_slow`: the job, which cannot be the reason of it."""
        application = [each for each in delays.get("application", ()) if each > 0]
        if application:
            # It is in terms of the mean of all that its system has counted.
            known = self.slowdowns.setdefault(
                "application", Slowdown(now, least_usual=1.0, learns=is_slow)
            )
            known.add(sum(application) / len(application), now)
        naps = delays.get("wakeup")
        if naps:
            self.naps.append((sum(each > _WAITED_SECONDS for each in naps), len(naps)))
            waited, count = self._waited(_SHARE_SAMPLES)
            if count >= _LEAST_NAPS:
                # Statements wait for a core as naps do: the fewer find one free, the longer others wait.
                known = self.slowdowns.setdefault("wakeup", Slowdown(now))
                known.add((count + 2) / (count - waited + 1), now)

    def learn_cost(self, row_seconds: float) -> None:
        """Follow what a row costs, slowly where it seems to cost less: a quiet moment would double the speed."""
        if row_seconds and self.row_seconds:
            part = _DEARER if row_seconds > self.row_seconds else _CHEAPER
            self.row_seconds += part * (row_seconds - self.row_seconds)
        else:
            self.row_seconds = row_seconds or self.row_seconds

    @property
    def room(self) -> float:
        """How many times as much as on a crowded server the job may work."""
        waited, count = self._waited(_ROOM_SAMPLES)
        share = (waited + _CROWDED * _ROOM_NAPS) / (count + _ROOM_NAPS)
        return min(_MOST_ROOM, max(_LEAST_ROOM, _CROWDED / share))

    def _waited(self, samples: int) -> tuple[int, int]:
        """The naps of the last samples: how many waited, and how many there were."""
        last = list(self.naps)[-samples:]
        return sum(waited for waited, _ in last), sum(count for _, count in last)


class AdaptiveLimit:
    """`rows_per_second` is what a job may use now: at most `most_rows`, where that is given.

    `bounds`: the user's bounds by the name of a signal, instead of the defaults, and the aim as `p99`; `auto` False:
    other signals are ignored. Pass each sample to `observe`. Not thread-safe.
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
        self.aim = self._bounds.pop(AIMED, AIM)
        """How many times slower than usual others may be."""
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
        self._is_above = False
        self._held: deque[ThrottleInterval] = deque(maxlen=_MOST_HELD)
        self._held_seconds: dict[str, float] = {}

    @property
    def rows_per_second(self) -> float:
        return self._rows

    @property
    def held(self) -> tuple[ThrottleInterval, ...]:
        """Return which signal limited the speed, and when; the last 200 times."""
        return tuple(self._held)

    @property
    def held_seconds(self) -> dict[str, float]:
        """Return the total seconds that each signal kept the speed down, by its name: "target's replication_lag"."""
        return dict(self._held_seconds)

    @property
    def holder(self) -> str:
        """The signal that limits the speed, such as "target's replication_lag"; empty where none does."""
        trouble = self._trouble
        return "" if trouble is None else f"{trouble.side}'s {trouble.signal}"

    @property
    def summary(self) -> str:
        """What was aimed at, and what was seen of it, for a report. Empty where nothing was aimed at."""
        if not self._auto:
            return ""
        seen = [
            f"{name}'s {signal} {each.mean:.2f} times, {each.most:.2f} at most"
            for name, side in self._sides.items()
            for signal, each in side.slowdowns.items()
            if each.most
        ]
        work = [most for side in self._sides.values() if (most := self._most_work(side))]
        parts = []
        if seen:
            aim = f"aimed at others' statements at most {self.aim:g} times as slow as usual"
            parts = [aim, f"seen: {'; '.join(seen)}"]
        elif work:
            bound = shown(WORK, min(work))
            parts = [f"aimed at {bound} at most for this job's own statements on each side"]
        parts += [
            f"the {name} could not be asked for {side.unasked:.0f} s, in which the speed did not grow"
            for name, side in self._sides.items()
            if side.unasked >= 1
        ]
        return "; ".join(parts)

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
        if len(known.usual) > _MOST_SIGNALS:
            known.usual = {}
        if known.error:
            known.unasked += now - known.heard
        known.heard, known.error, known.missing = now, sample.error, sample.missing
        known.learn_cost(sample.row_seconds)
        known.trouble = None if sample.error else self._judge(side, known, sample, now)
        self._move(now)
        self._at = now
        return self._rows

    # --- judging

    def _judge(self, side: str, known: _Side, sample: HealthSample, now: float) -> _Trouble | None:
        worst: tuple[float, _Trouble] | None = None
        for name, (value, bound) in sample.values.items():
            most = self._most_of(known, name, value, bound)
            if most is not None and value > most:
                text = f"{side}'s {name} {shown(name, value)}, at most {shown(name, most)}"
                trouble = (value / most if most else 2.0, _Trouble(side, name, text, hard=True))
                worst = trouble if worst is None or trouble[0] > worst[0] else worst
        if self._auto:
            known.listen(sample.delays, now, is_slow=self._rows <= START_ROWS)
            if known.first is not None:
                known.first[1].note()
        soft = None
        for name, delays in sample.delays.items():
            most = self._bounds.get(name)
            mean = sum(delays) / len(delays) if delays else 0.0
            if most is not None and mean > most:
                text = f"{side}'s {name} {shown(name, mean)}, at most {shown(name, most)}"
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
        heard = {
            name: side
            for name, side in self._sides.items()
            if now - side.heard <= _SILENT_SECONDS and not side.is_blind
        }
        troubles = [side.trouble for side in heard.values() if side.trouble is not None]
        worst = next((each for each in troubles if each.hard), next(iter(troubles), None))
        slow = max(
            (side.first[1].ratio for side in heard.values() if side.first is not None), default=1.0
        )
        far = max((side.last for side in heard.values()), default=1.0)
        is_far = far > 1 + _FAR * (self.aim - 1)
        above = self._above_aim(heard, is_far) if slow > self.aim or is_far else None
        self._is_above = above is not None
        may_fall = self._rows > self._capped(self._least_eased)
        holds = above if may_fall or self._rows < self._most else None
        self._note(worst or holds or self._at_work(), now)
        if worst is not None:
            self._lower(worst, now)
        elif is_far:
            self._cut(_FAR_PART, _FAR_EVERY, now, least=self._least_eased)
        elif slow > self.aim:
            self._ease(slow, now)
        elif all(self._is_well(side, now) for side in self._sides.values()):
            self._raise(slow, now)
        if above is not None and worst is None:
            self._relearn(now)
        elif worst is None:
            self._least_since = None
        self._rows = self._capped(self._rows)
        self._best = max(self._best, self._rows)

    def _is_well(self, side: _Side, now: float) -> bool:
        """Whether the health of `side` at this speed is known, so that the speed may grow."""
        if side.is_blind or now - side.heard > _SILENT_SECONDS:
            return False
        return side.first is None or side.first[1].is_known

    def _above_aim(self, heard: Mapping[str, _Side], is_far: bool) -> _Trouble:
        """The side and the signal that are furthest above the aim, by what the speed follows now."""
        found = [
            (each.last if is_far else each.ratio, name, signal)
            for name, side in heard.items()
            for signal, each in (side.present.items() if is_far else filter(None, [side.first]))
        ]
        ratio, name, signal = max(found)
        text = f"{name}'s {signal} {ratio:.2f} times the usual, aim {self.aim:g} times"
        return _Trouble(name, signal, text, hard=False)

    def _lower(self, trouble: _Trouble, now: float) -> None:
        if trouble.hard:
            self._cut(_HARD, _HARD_EVERY, now, least=self._least, hard=True)
        else:
            self._cut(_SOFT, _SOFT_EVERY, now, least=self._least)

    def _cut(
        self, part: float, every: float, now: float, *, least: float, hard: bool = False
    ) -> None:
        """Take all but `part` of the speed, down to `least`, at most once in `every` seconds."""
        self._above_since = None
        if self._rows <= self._capped(least) or (
            self._cut_at is not None and now - self._cut_at < every
        ):
            return
        used = self._used_speed
        if hard and self._trouble_began(now):
            self._goal = used
        elif not hard and (self._goal is None or self._rows >= 0.95 * self._goal):
            self._goal = _FAR_GOAL * used
        self._was_hard = hard
        self._rows = self._capped(max(least, used * part))
        self._cut_at = now

    def _ease(self, slow: float, now: float) -> None:
        """Take less of the speed the nearer it is to the aim."""
        self._above_since = None
        used = self._used_speed
        if self._goal is None or self._rows >= 0.95 * self._goal:
            self._goal = used
        self._was_hard = False
        over = min(_MOST_EASED, _EASED_PER_SECOND * (slow - self.aim) / (self.aim - 1))
        seconds = min(_LONGEST_STEP, now - self._at)
        least = min(self._rows, self._least_eased)
        self._rows = self._capped(max(least, min(self._rows, used) * (1 - over * seconds)))

    def _relearn(self, now: float) -> None:
        """Take the delays at the lowest speed as usual: the job does not cause them."""
        if self._rows > self._capped(self._least_eased):
            self._least_since = None
            return
        if self._least_since is None:
            self._least_since = now
        if now - self._least_since >= _RELEARN_SECONDS:
            for side in self._sides.values():
                for each in side.slowdowns.values():
                    each.relearn((1 + self.aim) / 2)
            self._least_since = None

    def _raise(self, slow: float, now: float) -> None:
        seconds = min(_LONGEST_STEP, now - self._at)
        rows, goal = self._rows, self._goal
        if any(side.first is not None for side in self._sides.values()):
            if self._cut_at is not None and now - self._cut_at < _FAR_EVERY:
                return
            rows *= (
                1
                + min(self._growth(), _MOST_GROWTH)
                * min(1.0, (self.aim - slow) / (self.aim - 1))
                * seconds
            )
        elif goal is None:
            rows *= 2 ** (seconds / _FIRST_DOUBLED_IN)
        elif rows < _FAST_UP_TO * goal:
            most = max(rows, _FAST_UP_TO * goal)
            rows = min(most, rows * 2 ** (seconds / _DOUBLED_IN))
        elif rows < goal:
            pace = _BACK_PER_SECOND if self._was_hard else _SOFT_BACK_PER_SECOND
            rows = min(goal, rows + goal * pace * seconds)
        else:
            self._above_since = self._above_since if self._above_since is not None else self._at
            rows += goal * _ABOVE_PER_SECOND * (1 + now - self._above_since) * seconds
        # An unused speed does not show what would be fine.
        enough = max(START_ROWS, _AHEAD * self._speed())
        self._rows = self._capped(max(self._rows, min(rows, max(enough, goal or 0.0))))

    def _growth(self) -> float:
        """Per second, by where the speed is beside the one that was too much."""
        if self._goal is None:
            is_known = all(side.row_seconds for side in self._sides.values())
            return _GROWTH_BELOW_WORK if is_known and self._auto else _GROWTH[0]
        if self._rows < _FAST_UP_TO * self._goal:
            return _MOST_GROWTH if self._was_hard else _GROWTH[1]
        if self._was_hard and self._rows < self._goal:
            return _BACK_PER_SECOND
        if self._rows < self._goal:
            return _GROWTH[2]
        self._above_since = self._above_since if self._above_since is not None else self._at
        return _GROWTH[3] * (1 + self._at - self._above_since)

    # --- small parts

    @property
    def _used_speed(self) -> float:
        return min(self._rows, max(1.1 * self._speed(), self._rows / 4))

    @property
    def _least(self) -> float:
        return max(LEAST_ROWS, LEAST_PART * self._capped(self._best))

    @property
    def _least_eased(self) -> float:
        """The lowest speed that others' latency leaves."""
        working = min((most for _, most in self._working()), default=0.0)
        return max(self._least, _LEAST_WORK * working)

    def _capped(self, rows: float) -> float:
        return min(rows, self._most, *(most for _, most in self._working()))

    @property
    def _most(self) -> float:
        return math.inf if self._most_rows is None else self._most_rows

    def _working(self) -> list[tuple[str, float]]:
        """Each side's name, and the rows per second at which it works for the job as much as it may."""
        found = []
        costs = {name: side.row_seconds for name, side in self._sides.items()}
        unknown = _UNKNOWN_COST * max(costs.values(), default=0.0)
        for name, side in self._sides.items():
            bound, cost = self._most_work(side), costs[name] or unknown
            if bound is not None and cost:
                found.append((name, max(LEAST_ROWS, bound / cost)))
        return found

    def _most_work(self, side: _Side) -> float | None:
        """How much of a core the job's statements may use on `side`; None = as much as they like."""
        if WORK in self._bounds or not self._auto:
            return self._bounds.get(WORK)
        return signal_bound(WORK) * side.room * (self.aim - 1) / (AIM - 1)

    def _at_work(self) -> _Trouble | None:
        """Return the side whose `work` limits the speed, while the job uses all of it."""
        name, most = min(self._working(), key=lambda each: each[1], default=("", math.inf))
        if most > self._most or min(self._rows, self._speed()) < _USED * most:
            return None
        cost = self._sides[name].row_seconds
        used = shown(WORK, most * cost) if cost else "not known yet"
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
        name = f"{trouble.side}'s {trouble.signal}"
        self._held_seconds.setdefault(name, 0.0)
        if last is None or not same or at - last.ended > _SILENT_SECONDS:
            self._held.append(ThrottleInterval(trouble.side, trouble.signal, at, at, self._rows))
        else:
            self._held_seconds[name] += at - last.ended
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
        now_pressed = side is not None and (side.trouble is not None or self._is_above)
        state = "held" if trouble.signal == WORK else "pressed" if now_pressed else "recovering"
        return f"{state}: {trouble.text} ({self._rows:.0f} rows/s)"

    def _said_of(self, name: str, side: _Side) -> str:
        if side.error:
            return f"unreachable: {name}: {side.error} ({self._rows:.0f} rows/s)"
        return f"{name}: not watched: {', '.join(side.missing)}" if side.missing else ""
