"""Adaptive limits: AIMD driven by a user's probe, and latency compared with its usual level (`Slowdown`)."""

from dataclasses import dataclass
from enum import StrEnum

from spark_channel.errors import OptionError

__all__ = [
    "AimdController",
    "PressureState",
    "Slowdown",
    "UnreachablePolicy",
]


class PressureState(StrEnum):
    """The result of the last probe."""

    OK = "ok"
    PRESSED = "pressed"
    RECOVERING = "recovering"
    UNREACHABLE = "unreachable"


class UnreachablePolicy(StrEnum):
    """The reaction to an unreachable probe: keep the speed, slow down as under pressure, or stop; never speed up."""

    HOLD = "hold"
    LOWER = "lower"
    PAUSE = "pause"


@dataclass(slots=True)
class AimdController:
    """Finds the usable fraction of a limit from the results of a probe on the protected system.

    Pass each probe's outcome to `observe`, `judge` or `unreachable`, once per interval, and hand
    `factor` and `text` to `Coordinator.press`. A bad probe halves the factor (`decrease`), down to
    `floor`; a good one adds `increase` of the whole limit, up to 1.

    ```python
    from spark_channel.limits import AimdController

    pressure = AimdController(policy="hold")
    pressure.observe(value=45.0, threshold=30.0, what="replication lag")
    assert pressure.factor == 0.5
    assert pressure.text == "pressed: replication lag 45, threshold 30 (50% of the limit)"
    pressure.unreachable("connection refused")
    assert pressure.text == "unreachable: connection refused (50% of the limit)"
    ```
    """

    policy: str = UnreachablePolicy.HOLD
    floor: float = 0.05
    decrease: float = 0.5
    increase: float = 0.05
    factor: float = 1.0
    state: PressureState = PressureState.OK
    reason: str = ""

    def __post_init__(self) -> None:
        if self.policy not in list(UnreachablePolicy):
            raise OptionError(
                f"an unreachable probe can {', '.join(UnreachablePolicy)}, not {self.policy!r}",
                option="policy",
                got=str(self.policy),
                takes=", ".join(UnreachablePolicy),
            )
        for name, low, value in (
            ("floor", 0, self.floor),
            ("decrease", 0, self.decrease),
            ("increase", 0, self.increase),
        ):
            if not low < value < 1:
                raise OptionError(
                    f"{name} must be between 0 and 1, not {value!r}",
                    option=name,
                    got=repr(value),
                    takes="0 to 1",
                )

    @property
    def text(self) -> str:
        """The state, its reason, and the usable fraction of the limit, for `show`. Empty at full speed."""
        if self.state is PressureState.OK:
            return ""
        return f"{self.state}: {self.reason} ({self.factor:.0%} of the limit)"

    def observe(self, value: float, threshold: float, what: str = "probe") -> float:
        """Take a probe's number: above `threshold` the system is overloaded. Returns `factor`. NaN: unreachable."""
        if value != value:
            return self.unreachable(f"{what} answered NaN")
        return self.judge(value <= threshold, f"{what} {value:g}, threshold {threshold:g}")

    def judge(self, healthy: bool, reason: str = "probe") -> float:
        """Take a probe's verdict: good or bad. Returns `factor`."""
        self.reason = reason
        if healthy:
            self.factor = min(1.0, max(self.factor, self.floor) + self.increase)
            self.state = PressureState.OK if self.factor == 1.0 else PressureState.RECOVERING
        else:
            self._lower()
            self.state = PressureState.PRESSED
        return self.factor

    def unreachable(self, reason: str) -> float:
        """Note that the probe failed for `reason` (without secrets: people read it). Returns `factor`."""
        self.state = PressureState.UNREACHABLE
        self.reason = reason
        if self.policy == UnreachablePolicy.LOWER:
            self._lower()
        elif self.policy == UnreachablePolicy.PAUSE:
            self.factor = 0.0
        return self.factor

    def _lower(self) -> None:
        self.factor = max(self.floor, self.factor * self.decrease)


_LEARN_SECONDS = 3.0
_SMOOTH_SECONDS = 3.0
_TOWARDS_LESS = 0.08
"""How far the usual value follows lower ones in a second: one quiet moment is not a new baseline."""


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
