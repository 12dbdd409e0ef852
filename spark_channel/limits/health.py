"""Health signals of a job's source and target: their samples, and what a job has learned of a side. A clock, no I/O."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "AIM",
    "AIMED",
    "AIM_P99",
    "WORK",
    "HealthSample",
    "HighSignal",
    "SideHealth",
    "Slowdown",
    "UnreachablePolicy",
    "shown",
    "signal_bound",
]

AIMED = "p99"
"""The name of the aim among a user's bounds."""
AIM = 1.35
"""How many times slower than usual others' statements may be in the mean, and their p99 where no aim is stated."""
AIM_P99 = 1.5
WORK = "work"
"""The one signal that no system reports: the job measures its own statements."""
_LEARN_SECONDS = 3.0
_SMOOTH_SECONDS = 3.0
_TOWARDS_LESS = 0.08
"""How far the usual value follows lower ones in a second: one quiet moment is not a new baseline."""
_WAITED_SECONDS = 0.0002
"""A session that wakes up later than so has waited for a core."""
_SHARE_SAMPLES, _LEAST_NAPS = 4, 8
_ROOM_SAMPLES, _ROOM_NAPS = 40, 20
_CROWDED, _SPARE, _MOST_ROOM, _LEAST_ROOM = 0.07, 0.015, 20.0, 0.35
"""The part of the naps that wait for a core on a single one that is well used; and the part below which cores are to
spare, which a single one never has beside a job. The default bound of `work` is higher below the second, and lower
above the first where the job's sessions are not seen at work, within these factors. Between them it is the same: a
quiet application on one core feels each piece more."""
_COST_SECONDS, _LOW_COST = 30.0, 8
_LOOK_SECONDS, _LEAST_LOOKS = 20.0, 50
_LOOKED_AT = 1.6
"""The sessions at work show more than the short statements do: also what is done with the rows after them."""
_LOOKED_WORK = 2.75
"""How many times the bound of `work` a job may use where its sessions at work are seen."""
_UNSEEN = 1.0
"""Sessions that count as seen at work where none was: after few looks little is known."""
_SLOW_ROWS, _DEARER, _CHEAPER_PART = 5_000.0, 4.0, 0.1
"""Rows per second below which a job is slow, and how a row's cost follows what is seen then. See `settle`."""
_QUIET_SECONDS = 10.0
"""A side's last signal of an application expires, once too few statements have ended for so long."""


@dataclass(frozen=True, slots=True)
class HealthSignal:
    """`at_most` is the default bound; None = it is compared with what it usually is. `unit` is for people."""

    at_most: float | None
    unit: str = ""


SIGNALS: dict[str, HealthSignal] = {
    "replication_lag": HealthSignal(1.0, "s"),
    "xmin_age": HealthSignal(10_000_000, "transactions"),
    "slot_wal": HealthSignal(float(1 << 30), "bytes"),
    "active_sessions": HealthSignal(32),
    "waiting_sessions": HealthSignal(8),
    "forced_checkpoints": HealthSignal(2, "a minute"),
    "history_length": HealthSignal(1_000_000),
    "threads_running": HealthSignal(32),
    WORK: HealthSignal(0.02, "of a core"),
    "application": HealthSignal(None, "times its mean"),
    "wakeup": HealthSignal(None, "s"),
    "latency": HealthSignal(None, "s"),
    "own_sessions": HealthSignal(None),
}
"""The signals of the shipped connectors. `work` is how much of a core the job's own statements use, `wakeup` how long a
session of the server waits for a core, `latency` how long a small statement takes from here and back. `application` is
the latency of others' statements, each as a multiple of its mean, `own_sessions` how many sessions of jobs are at work
at that instant."""


def signal_bound(name: str) -> float:
    """The default bound of a signal that has one."""
    bound = SIGNALS[name].at_most
    assert bound is not None
    return bound


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


@dataclass(frozen=True, slots=True)
class HealthSample:
    """The health that one side reported at one instant.

    `values`: a signal's name to (value, what is too much). `delays`: a name to seconds (`own_sessions`: to how
    many), each a separate measurement.
    `missing`: signals that the role may not read, each with the reason. `error`: it could not be asked.
    `row_seconds`: how long the system works for one row of the job; 0.0 = not known.
    """

    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    delays: Mapping[str, Sequence[float]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    error: str = ""
    row_seconds: float = 0.0


class UnreachablePolicy(StrEnum):
    """The reaction to an unreachable probe: keep the speed, slow down as under pressure, or stop; never speed up."""

    HOLD = "hold"
    LOWER = "lower"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class HighSignal:
    """A signal of a side that is too high, as text for people; `hard`: it halves the speed at once."""

    side: str
    signal: str
    text: str
    hard: bool


class Slowdown:
    """How many times slower than usual a system serves others, from a value that grows with their latency.

    What is usual is learned in the first three seconds, while the job is slow, and follows lower values, down to
    `least_usual`: seconds are too short to learn it, where a system knows the mean of days. With `learns` False
    `least_usual` is usual: the job is fast already, and what is heard first may be its effect.
    """

    def __init__(self, now: float, *, least_usual: float = 0.0, learns: bool = True) -> None:
        self._began = self._at = now
        self._least_usual = least_usual
        self._learns = learns or not least_usual
        self._usual = self._smooth = self._last = 0.0
        self._noted = 0
        self.mean = self.most = 0.0
        """The mean and the largest of the ratios that were noted."""

    def add(self, value: float, now: float) -> None:
        """Take a value above 0."""
        seconds, self._at = min(1.0, now - self._at), now
        self._last = value
        if not self._smooth:
            self._smooth = value
            self._usual = max(value, self._least_usual) if self._learns else self._least_usual
            return
        part = min(1.0, seconds / min(_SMOOTH_SECONDS, max(seconds, now - self._began)))
        self._smooth += part * (value - self._smooth)
        if not self.is_known:
            if self._learns:
                self._usual = max(self._smooth, self._least_usual)
        elif self._smooth < self._usual:
            lower = max(self._smooth, self._least_usual)
            self._usual += _TOWARDS_LESS * seconds * (lower - self._usual)

    @property
    def heard(self) -> float:
        """When it took the last value."""
        return self._at

    @property
    def is_known(self) -> bool:
        """Whether it has learned what is usual."""
        return self._usual > 0.0 and self._at - self._began >= _LEARN_SECONDS

    @property
    def ratio(self) -> float:
        """The mean of the last three seconds, in terms of the usual value."""
        return self._smooth / self._usual if self._usual else 1.0

    @property
    def last(self) -> float:
        """The last value, in terms of the usual one."""
        return self._last / self._usual if self._usual else 1.0

    def note(self) -> None:
        """Count the present ratio, once it is known."""
        if self.is_known:
            self._noted += 1
            self.mean += (self.ratio - self.mean) / self._noted
            self.most = max(self.most, self.ratio)

    def relearn(self, ratio: float) -> None:
        """Take as usual what makes the present `ratio` at most the one given: other load causes the rest."""
        self._usual = max(self._usual, self._smooth / ratio)


@dataclass(slots=True)
class SideHealth:
    """The known health of the source, or of the target."""

    heard: float
    slowdowns: dict[str, Slowdown] = field(default_factory=dict)
    naps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_ROOM_SAMPLES))
    usual: dict[str, float] = field(default_factory=dict)
    trouble: HighSignal | None = None
    missing: tuple[str, ...] = ()
    error: str = ""
    row_seconds: float = 0.0
    _costs: deque[tuple[float, float]] = field(default_factory=deque)
    _looks: deque[tuple[float, int, float, float]] = field(default_factory=deque)
    cost: float = 0.0
    """How long the system works for a row, in seconds; 0.0 = not known."""
    _was_looked_at: bool = False
    unasked: float = 0.0
    """Seconds in which the system could not be asked."""
    work: float = 0.0
    most_work: float = 0.0
    """How much of a core the job's statements used: the mean, and the most."""
    _works: int = 0

    @property
    def is_blind(self) -> bool:
        return bool(self.error)

    @property
    def present(self) -> dict[str, Slowdown]:
        """Those that were heard of lately."""
        return {
            name: slowdown
            for name, slowdown in self.slowdowns.items()
            if self.heard - slowdown.heard <= _QUIET_SECONDS
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
        return max((slowdown.last for slowdown in self.present.values()), default=1.0)

    def listen(
        self, delays: Mapping[str, Sequence[float]], now: float, *, is_slow: bool = True
    ) -> None:
        """Take what is known of others' latency; `is_slow`: the job, which cannot be the reason of it."""
        application = [delay for delay in delays.get("application", ()) if delay > 0]
        if application:
            # It is in terms of the mean of all that its system has counted.
            slowdown = self.slowdowns.setdefault(
                "application", Slowdown(now, least_usual=1.0, learns=is_slow)
            )
            slowdown.add(sum(application) / len(application), now)
        naps = delays.get("wakeup")
        if naps:
            self.naps.append((sum(nap > _WAITED_SECONDS for nap in naps), len(naps)))
            waited, count = self._waited(_SHARE_SAMPLES)
            if count >= _LEAST_NAPS:
                # Statements wait for a core as naps do: the fewer find one free, the longer others wait.
                slowdown = self.slowdowns.setdefault("wakeup", Slowdown(now))
                slowdown.add((count + 2) / (count - waited + 1), now)

    def learn_cost(self, row_seconds: float, now: float) -> None:
        """Take what a row seems to cost: of half a minute the low ones count.

        A statement lasts longer than it works. The slower the job, the smaller its statements, and the more such a wait
        adds to a row: by the mean, a slow job would become slower and slower.
        """
        if not row_seconds:
            return
        self._costs.append((now, row_seconds))
        while self._costs[0][0] < now - _COST_SECONDS:
            self._costs.popleft()
        costs = sorted(cost for _, cost in self._costs)
        self.row_seconds = costs[len(costs) // _LOW_COST]

    def look(self, working: Sequence[float], spent_rows: float, now: float) -> None:
        """Take how many of the job's sessions were at work, at several instants, after so many rows."""
        looks = self._looks
        if looks and spent_rows < looks[-1][3]:
            looks.clear()  # another account, after a restart
        if working:
            looks.append((now, len(working), sum(working), spent_rows))
        while looks and looks[0][0] < now - _LOOK_SECONDS:
            looks.popleft()
        # Looks at a job that moved no rows say nothing of the few rows that follow.
        while len(looks) > 1 and looks[0][3] == looks[1][3] and not looks[0][2]:
            looks.popleft()

    def settle(self, rows_per_second: float) -> None:
        """Take what is known now as `cost`; the job is so fast.

        What a slow job's statements and sessions wait for the network and for a core adds more to a row the slower it
        is: it would become slower and slower. So then a row costs less as soon as less is seen, and more only where
        much more is. When looks begin to show it, what they show is a row's cost, since they show more and the bound
        is higher.
        """
        if self._is_looked_at != self._was_looked_at:
            self._was_looked_at = not self._was_looked_at
            self.cost = 0.0 if self._was_looked_at else self.cost / _LOOKED_AT
        seen_cost = self._seen_cost
        if (
            not seen_cost
            or not self.cost
            or rows_per_second >= _SLOW_ROWS
            or seen_cost > _DEARER * self.cost
        ):
            self.cost = seen_cost or self.cost
        elif seen_cost < self.cost:
            self.cost += _CHEAPER_PART * (seen_cost - self.cost)

    @property
    def _seen_cost(self) -> float:
        """How long the system seems to work for a row; 0.0 = not known.

        The share of time in which the job's sessions are at work shows all that is done for the rows: also for those of
        a table without a key, and by merges. Short statements show some of it. They count where they show more: a
        server of one core looks when the job does not run.
        """
        looks = self._looks
        if not self._is_looked_at:
            return self.row_seconds
        working = max(_UNSEEN, sum(look[2] for look in looks))
        seconds, rows = looks[-1][0] - looks[0][0], looks[-1][3] - looks[0][3]
        looked = working / sum(look[1] for look in looks) * seconds / rows
        return max(looked, _LOOKED_AT * self.row_seconds)

    @property
    def _is_looked_at(self) -> bool:
        """Whether looks have shown how much of a core the rows of the last seconds used."""
        looks = self._looks
        return sum(look[1] for look in looks) >= _LEAST_LOOKS and looks[-1][3] > looks[0][3]

    def most_of(self, work: float) -> float:
        """How much of a core the job may use, where it is `work` on a server of one core by the statements alone.

        A session that waits for a core is seen at work: where looks show that, a crowded server needs no lower bound.
        """
        return _LOOKED_WORK * work * max(1.0, self.room) if self._is_looked_at else work * self.room

    def note_work(self, work: float) -> None:
        """Count how much of a core the job's statements use now; 0.0 = not known."""
        if work:
            self._works += 1
            self.work += (work - self.work) / self._works
            self.most_work = max(self.most_work, work)

    @property
    def room(self) -> float:
        """How many times as much as on a crowded server the job may work."""
        waited, count = self._waited(_ROOM_SAMPLES)
        share = (waited + _CROWDED * _ROOM_NAPS) / (count + _ROOM_NAPS)
        least = max(_LEAST_ROOM, min(1.0, _CROWDED / share))
        return min(_MOST_ROOM, max(least, (_SPARE / share) ** 2))

    def _waited(self, samples: int) -> tuple[int, int]:
        """The naps of the last samples: how many waited, and how many there were."""
        last = list(self.naps)[-samples:]
        return sum(waited for waited, _ in last), sum(count for _, count in last)
