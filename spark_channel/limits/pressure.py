"""AIMD: a limit that backs off while the protected system is overloaded."""

from dataclasses import dataclass
from enum import StrEnum

from spark_channel.errors import OptionError

__all__ = ["Pressure", "PressureState", "UnreachablePolicy"]


class PressureState(StrEnum):
    """The result of the last probe."""

    OK = "ok"
    PRESSED = "pressed"
    RECOVERING = "recovering"
    UNREACHABLE = "unreachable"


class UnreachablePolicy(StrEnum):
    """What an unreachable probe means: keep the speed, slow down as if pressed, or stop. Never speed up."""

    HOLD = "hold"
    LOWER = "lower"
    PAUSE = "pause"


@dataclass(slots=True)
class Pressure:
    """The part of a limit that may be used, from what a probe on the protected system answers.

    Tell it each probe's outcome with `observe`, `judge` or `unreachable`, once per interval, and hand
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
        """For `show`: the state, why, and how much of the limit is left. Empty at full speed."""
        if self.state is PressureState.OK:
            return ""
        return f"{self.state}: {self.reason} ({self.factor:.0%} of the limit)"

    def observe(self, value: float, threshold: float, what: str = "probe") -> float:
        """A probe's number: above `threshold` the system hurts. NaN does not count as an answer. Returns `factor`."""
        if value != value:
            return self.unreachable(f"{what} answered NaN")
        return self.judge(value <= threshold, f"{what} {value:g}, threshold {threshold:g}")

    def judge(self, healthy: bool, reason: str = "probe") -> float:
        """A probe's yes or no. Returns `factor`."""
        self.reason = reason
        if healthy:
            self.factor = min(1.0, max(self.factor, self.floor) + self.increase)
            self.state = PressureState.OK if self.factor == 1.0 else PressureState.RECOVERING
        else:
            self._lower()
            self.state = PressureState.PRESSED
        return self.factor

    def unreachable(self, reason: str) -> float:
        """The probe failed, for `reason` (no secrets: people read it). Returns `factor`."""
        self.state = PressureState.UNREACHABLE
        self.reason = reason
        if self.policy == UnreachablePolicy.LOWER:
            self._lower()
        elif self.policy == UnreachablePolicy.PAUSE:
            self.factor = 0.0
        return self.factor

    def _lower(self) -> None:
        self.factor = max(self.floor, self.factor * self.decrease)
