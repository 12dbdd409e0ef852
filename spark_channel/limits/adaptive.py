"""Adaptive limits: AIMD driven by a user's probe, and latency compared with its usual level (`LatencyGradient`)."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from spark_channel.errors import OptionError

__all__ = [
    "AimdController",
    "LatencyGradient",
    "PressureState",
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


_WINDOW_SECONDS = 2.0
_LEAST_SAMPLES, _LEAST_TAIL = 8, 4
_TOWARDS_LESS = 0.2
"""How far the usual mean follows a lower one at a time: one quiet moment is not a new baseline."""
_SURE = 2.0
"""Standard errors by which a mean must be above its bound: delays are noisy."""


class LatencyGradient:
    """Compares the delays of the last two seconds with the usual ones, which were measured under little load.

    `tolerance` is how many times the usual mean is fine; `slack` seconds are fine in any case. `part`: the fraction of
    the longest delays whose mean counts, such as a tenth. Applications notice the longest delays: a burst that holds
    a core for milliseconds a few times a second hardly moves the mean of all.
    """

    def __init__(self, tolerance: float, slack: float, part: float = 1.0) -> None:
        self._tolerance = tolerance
        self._slack = slack
        self._part = part
        self._recent: deque[tuple[float, float]] = deque()
        self.usual: float | None = None

    def add(self, delays: Sequence[float], now: float) -> None:
        self._recent.extend((now, delay) for delay in delays)
        while self._recent and self._recent[0][0] < now - _WINDOW_SECONDS:
            self._recent.popleft()
        mean = self.mean
        if mean is None:
            return
        if self.usual is None:
            self.usual = mean
        elif mean < self.usual:
            self.usual += _TOWARDS_LESS * (mean - self.usual)

    @property
    def mean(self) -> float | None:
        """The mean of the window's longest delays; None = there are too few."""
        longest = self._longest()
        return sum(longest) / len(longest) if longest else None

    def _longest(self) -> list[float]:
        if len(self._recent) < max(_LEAST_SAMPLES, _LEAST_TAIL / self._part):
            return []
        delays = sorted(delay for _, delay in self._recent)
        return delays[-math.ceil(self._part * len(delays)) :]

    @property
    def bound(self) -> float:
        """The highest mean that is fine."""
        return (self.usual or 0.0) * self._tolerance + self._slack

    def is_over(self) -> bool:
        """Whether the mean is above its bound, and not by chance."""
        mean = self.mean
        if mean is None or self.usual is None:
            return False
        longest = self._longest()
        count = len(longest)
        spread = sum((delay - mean) ** 2 for delay in longest) / (count - 1)
        return mean > self.bound + _SURE * math.sqrt(spread / count)

    def forget(self) -> None:
        """Drop the recent delays, since the speed was changed."""
        self._recent.clear()

    def relearn(self) -> None:
        """Take the present mean as the usual one: other load causes it."""
        mean = self.mean
        if mean is not None:
            self.usual = mean
