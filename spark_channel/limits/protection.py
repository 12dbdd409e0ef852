"""Option `protect`: finds a job's speed from the health signals of its source and target. A clock, no I/O.

The aim is that the application's statements are at most so many times slower than without the job (`aim`, 1.35). No
signal shows a slowdown that small: a server counts a statement's latency from when it has a core, and a kernel lets a
session that slept go first. So first of all the job's own statements may use so much of a core (`work`), more where
sessions hardly ever wait for one, and less for a stricter aim. Below that bound the latency of the application's own
statements (`application`) is held at the aim, or where a system does not report it how often a session waits for a core
(`wakeup`): the speed grows while there is room below, less the nearer it is, and shrinks above it. A signal above its
bound halves the speed (`replication_lag`, `slot_wal`). A user's probe is such a signal of a shared limit, without the
others.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError
from spark_channel.limits.health import (
    AIM,
    AIM_P99,
    AIMED,
    WORK,
    HealthSample,
    HighSignal,
    SideHealth,
    UnreachablePolicy,
    shown,
    signal_bound,
)

__all__ = ["AdaptiveLimit", "ThrottleInterval"]


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
_UNKNOWN_COST = 2.0
"""The assumed cost of a row for a side without rows, relative to the other side's: a write adds rows in the end."""
_USED = 0.7
"""A job that uses this fraction of the speed that `work` allows counts as limited by it: the cost of rows varies."""
_AHEAD = 4.0
"""The allowed speed is at most this factor times the used one, a mean of two seconds in which it may double."""
_LONGEST_STEP = 1.0
"""Seconds for which the speed grows at a time: longer silence does not count as good news."""
_SILENT_SECONDS = 3.0
_UNUSUAL = 1.25
_AIM_POWER = 1.5
"""A tenth of the slowdown takes less than a tenth of the work: the first pieces that transactions meet show most."""
_LEAST_WORK = 0.25
"""The part of the bound of `work` that others' latency leaves a job. Below it, latency is not the reason."""
_MOST_HELD = 200
_MOST_SIGNALS = 200
"""Names that are remembered of a side: who makes them up must not fill the memory."""


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


class AdaptiveLimit:
    """`rows_per_second` is what a job may use now: at most `most_rows`, where that is given.

    `bounds`: the user's bounds by the name of a signal, instead of the defaults, and the aim as `p99`; `auto` False:
    other signals are ignored. `policy`: what the speed does while a side cannot be asked; it never grows. `unit` is for
    people. Pass each sample to `observe`. Not thread-safe.

    ```python
    from spark_channel.limits import AdaptiveLimit, HealthSample

    limit = AdaptiveLimit(10_000, bounds={"replication_lag": 30}, auto=False)
    limit.observe("target", HealthSample({"replication_lag": (45, 30)}), spent_rows=0)
    assert limit.rows_per_second < 10_000
    assert limit.text.startswith("pressed: target's replication_lag 45 s, at most 30 s")
    ```

    Raises:
        OptionError: a policy that is not known.
    """

    def __init__(
        self,
        most_rows: float | None = None,
        *,
        bounds: Mapping[str, float] | None = None,
        auto: bool = True,
        policy: str = UnreachablePolicy.HOLD,
        unit: str = "rows/s",
        clock: Clock | None = None,
    ) -> None:
        if policy not in list(UnreachablePolicy):
            raise OptionError(
                f"while a system cannot be asked, a limit can {', '.join(UnreachablePolicy)}, not {policy!r}",
                option="policy",
                got=str(policy),
                takes=", ".join(UnreachablePolicy),
            )
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._policy = policy
        self._unit = unit
        self._most_rows = most_rows
        self._bounds = dict(bounds or {})
        p99 = self._bounds.pop(AIMED, None) if auto else None
        self.aim = AIM if p99 is None else p99
        """How many times slower than usual others may be."""
        self._work_part = 1.0 if p99 is None else ((p99 - 1) / (AIM_P99 - 1)) ** _AIM_POWER
        """The part of the default bound of `work` that a user's aim leaves."""
        self._auto = auto
        self._sides: dict[str, SideHealth] = {}
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
        self._trouble: HighSignal | None = None
        self._is_above = False
        self._held: deque[ThrottleInterval] = deque(maxlen=_MOST_HELD)
        self._held_seconds: dict[str, float] = {}

    @property
    def rows_per_second(self) -> float:
        return 0.0 if self._is_paused else self._rows

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
        phrases = [
            f"{name}'s {signal} {slowdown.mean:.2f} times, {slowdown.most:.2f} at most"
            for name, side in self._sides.items()
            for signal, slowdown in side.slowdowns.items()
            if slowdown.most
        ]
        aims = []
        if phrases:
            aims.append(f"others' statements at most {self.aim:g} times as slow as usual")
        work = [most for side in self._sides.values() if (most := self._most_work(side))]
        if work and (not phrases or WORK in self._bounds):
            bound = shown(WORK, min(work))
            aims.append(f"{bound} at most for this job's own statements on each side")
        phrases += [
            f"{name}'s work {side.work:.2g} of a core, {side.most_work:.2g} at most"
            for name, side in self._sides.items()
            if side.most_work
        ]
        parts = [f"aimed at {' and '.join(aims)}"] if aims else []
        if phrases:
            parts.append(f"seen: {'; '.join(phrases)}")
        parts += [
            f"the {name} could not be asked for {side.unasked:.0f} s, in which the speed did not grow"
            for name, side in self._sides.items()
            if side.unasked >= 1
        ]
        return "; ".join(parts)

    @property
    def text(self) -> str:
        """What limits the speed, and what cannot be watched, as text for `show`. Empty where nothing does."""
        phrases = [
            self._state(),
            *(self._said_of(name, side) for name, side in self._sides.items()),
        ]
        return "; ".join(phrase for phrase in phrases if phrase)

    def limit_to(self, most_rows: float | None) -> None:
        """Set the job's own limit. Without `auto` the present part of it stays."""
        before, self._most_rows = self._most_rows, most_rows
        if not self._auto and before and most_rows:
            part = most_rows / before
            self._rows, self._best = self._rows * part, self._best * part
            self._goal = None if self._goal is None else self._goal * part
        self._rows = self._capped(self._rows)

    def observe(self, side: str, sample: HealthSample, spent_rows: float) -> float:
        """Take a sample of one side; `spent_rows` is the number of rows moved so far. Returns `rows_per_second`."""
        now = self._clock.now()
        self._spend(spent_rows, now)
        health = self._sides.setdefault(side, SideHealth(now))
        if len(health.usual) > _MOST_SIGNALS:
            health.usual = {}
        if health.error:
            health.unasked += now - health.heard
        health.heard, health.error, health.missing = now, sample.error, sample.missing
        health.learn_cost(sample.row_seconds, now)
        health.look(sample.delays.get("own_sessions", ()), spent_rows, now)
        health.settle(self._speed())
        health.note_work(health.cost * self._speed())
        health.trouble = None if sample.error else self._judge(side, health, sample, now)
        self._move(now)
        if sample.error and self._policy != UnreachablePolicy.HOLD:
            part = _HARD if self._policy == UnreachablePolicy.LOWER else 0.0
            self._cut(part, _HARD_EVERY, now, least=self._least, hard=True)
        self._at = now
        return self.rows_per_second

    # --- judging

    def _judge(
        self, side: str, health: SideHealth, sample: HealthSample, now: float
    ) -> HighSignal | None:
        worst: tuple[float, HighSignal] | None = None
        for name, (value, bound) in sample.values.items():
            most = self._most_of(health, name, value, bound)
            if most is not None and value > most:
                text = f"{side}'s {name} {shown(name, value)}, at most {shown(name, most)}"
                trouble = (value / most if most else 2.0, HighSignal(side, name, text, hard=True))
                worst = trouble if worst is None or trouble[0] > worst[0] else worst
        if self._auto:
            health.listen(sample.delays, now, is_slow=self._rows <= START_ROWS)
            if health.first is not None:
                health.first[1].note()
        soft = None
        for name, delays in sample.delays.items():
            most = self._bounds.get(name)
            mean = sum(delays) / len(delays) if delays else 0.0
            if most is not None and mean > most:
                text = f"{side}'s {name} {shown(name, mean)}, at most {shown(name, most)}"
                soft = soft or HighSignal(side, name, text, hard=False)
        return worst[1] if worst is not None else soft

    def _most_of(self, health: SideHealth, name: str, value: float, bound: float) -> float | None:
        """Return a signal's bound. A value near or above it when the job began is usual, not the job's effect."""
        if name in self._bounds:
            return self._bounds[name]
        if not self._auto:
            return None
        usual = health.usual.setdefault(name, value)
        return bound if usual * _UNUSUAL <= bound else usual * _UNUSUAL + bound

    # --- moving

    def _move(self, now: float) -> None:
        heard = {
            name: side
            for name, side in self._sides.items()
            if now - side.heard <= _SILENT_SECONDS and not side.is_blind
        }
        troubles = [side.trouble for side in heard.values() if side.trouble is not None]
        worst = next((trouble for trouble in troubles if trouble.hard), next(iter(troubles), None))
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

    def _is_well(self, side: SideHealth, now: float) -> bool:
        """Whether the health of `side` at this speed is known, so that the speed may grow."""
        if side.is_blind or now - side.heard > _SILENT_SECONDS:
            return False
        return side.first is None or side.first[1].is_known

    def _above_aim(self, heard: Mapping[str, SideHealth], is_far: bool) -> HighSignal:
        """The side and the signal that are furthest above the aim, by what the speed follows now."""
        candidates = [
            (slowdown.last if is_far else slowdown.ratio, name, signal)
            for name, side in heard.items()
            for signal, slowdown in (side.present.items() if is_far else filter(None, [side.first]))
        ]
        ratio, name, signal = max(candidates)
        text = f"{name}'s {signal} {ratio:.2f} times the usual, aim {self.aim:g} times"
        return HighSignal(name, signal, text, hard=False)

    def _lower(self, trouble: HighSignal, now: float) -> None:
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
                for slowdown in side.slowdowns.values():
                    slowdown.relearn((1 + self.aim) / 2)
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
            is_known = all(side.cost for side in self._sides.values())
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
        if len(self._spent) < 2:  # nothing is known of it
            return self._rows
        return min(self._rows, max(1.1 * self._speed(), self._rows / 4))

    @property
    def _is_paused(self) -> bool:
        return self._policy == UnreachablePolicy.PAUSE and any(
            side.is_blind for side in self._sides.values()
        )

    @property
    def _least(self) -> float:
        least = LEAST_ROWS if self._auto else 0.0
        return max(least, LEAST_PART * self._capped(self._best))

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
        rates = []
        costs = {name: side.cost for name, side in self._sides.items()}
        unknown = _UNKNOWN_COST * max(
            (side.row_seconds for side in self._sides.values()), default=0.0
        )
        for name, side in self._sides.items():
            bound, cost = self._most_work(side), costs[name]
            if not side.row_seconds:
                cost = max(cost, unknown)
            if bound is not None and cost:
                rates.append((name, max(LEAST_ROWS, bound / cost)))
        return rates

    def _most_work(self, side: SideHealth) -> float | None:
        """How much of a core the job's statements may use on `side`; None = as much as they like."""
        if WORK in self._bounds or not self._auto:
            return self._bounds.get(WORK)
        return side.most_of(signal_bound(WORK)) * self._work_part

    def _at_work(self) -> HighSignal | None:
        """Return the side whose `work` limits the speed, while the job uses all of it."""
        name, most = min(
            self._working(), key=lambda rate_of_side: rate_of_side[1], default=("", math.inf)
        )
        if most > self._most or min(self._rows, self._speed()) < _USED * most:
            return None
        cost = self._sides[name].cost
        used = shown(WORK, most * cost) if cost else "not known yet"
        return HighSignal(name, WORK, f"{name}'s work {used}", hard=False)

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

    def _note(self, trouble: HighSignal | None, now: float) -> None:
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
        if not self._auto and self._most_rows is not None:
            goal = self._most_rows
        return self._rows < self._capped(goal)

    @property
    def _speed_text(self) -> str:
        return f"{self.rows_per_second:.0f} {self._unit}"

    def _state(self) -> str:
        trouble = self._trouble
        if trouble is None:
            return ""
        side = self._sides.get(trouble.side)
        now_pressed = side is not None and (side.trouble is not None or self._is_above)
        state = "held" if trouble.signal == WORK else "pressed" if now_pressed else "recovering"
        return f"{state}: {trouble.text} ({self._speed_text})"

    def _said_of(self, name: str, side: SideHealth) -> str:
        if side.error:
            return f"unreachable: {name}: {side.error} ({self._speed_text})"
        return f"{name}: not watched: {', '.join(side.missing)}" if side.missing else ""
