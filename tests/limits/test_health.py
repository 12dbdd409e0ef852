"""A user's probe as a signal: how the limit falls and returns, and what a probe that does not answer means."""

import math
from typing import Any

import pytest

from spark_channel.errors import OptionError
from spark_channel.limits import AdaptiveLimit, HealthSample
from spark_channel.testing import VirtualClock

EVERY = 5.0


class Probed:
    """A limit whose rows are all used, and a probe that is asked every five seconds."""

    def __init__(self, most: float = 100_000, **more: Any) -> None:
        self.clock = VirtualClock()
        self.limit = AdaptiveLimit(most, bounds={"lag": 30}, auto=False, clock=self.clock, **more)
        self.spent = 0.0

    def answer(self, value: float | None) -> float:
        """The next answer; None = the probe fails."""
        sample = HealthSample(error="lag failed with SourceError")
        if value is not None:
            sample = HealthSample({"lag": (value, 30)})
        self.spent += self.limit.rows_per_second * EVERY
        self.clock.advance(EVERY)
        return self.limit.observe("probe", sample, self.spent)


def test_a_bad_answer_halves_and_good_ones_bring_it_back() -> None:
    probed = Probed()
    assert probed.answer(30) == 100_000
    assert probed.limit.text == ""
    assert probed.answer(40) == 50_000
    assert probed.limit.text == "pressed: probe's lag 40, at most 30 (50000 rows/s)"
    assert 50_000 < probed.answer(2) < 100_000
    assert probed.limit.text.startswith("recovering: probe's lag 40, at most 30")
    assert [probed.answer(2) for _ in range(4)][-1] == 100_000
    assert probed.limit.text == ""
    assert probed.limit.held_seconds == {"probe's lag": 0.0}


def test_answers_that_stay_bad_leave_a_twentieth_of_any_limit_and_it_comes_back_in_two_minutes() -> (
    None
):
    for most in (3.0, 1_000.0, 1e9):
        probed = Probed(most)
        assert [probed.answer(40) for _ in range(10)][-1] == pytest.approx(0.05 * most)
        speeds = [probed.answer(2) for _ in range(24)]
        assert speeds == sorted(speeds)
        assert speeds[-1] == most


@pytest.mark.parametrize(
    ("policy", "first", "last"),
    [("hold", 50_000, 50_000), ("lower", 25_000, 5_000), ("pause", 0, 0)],
)
def test_a_probe_that_fails_is_named_and_never_raises_the_speed(
    policy: str, first: float, last: float
) -> None:
    probed = Probed(policy=policy)
    probed.answer(40)
    assert probed.answer(None) == first
    assert (
        f"unreachable: probe: lag failed with SourceError ({first:.0f} rows/s)" in probed.limit.text
    )
    assert [probed.answer(None) for _ in range(10)][-1] == last
    begun = probed.answer(2)
    assert 0 < begun <= 70_000, "it does not begin again at full speed"
    assert [probed.answer(2) for _ in range(30)][-1] == 100_000


def test_another_limit_keeps_its_part() -> None:
    probed = Probed()
    probed.answer(40)
    probed.limit.limit_to(10_000)
    assert probed.limit.rows_per_second == 5_000
    probed.limit.limit_to(1)  # a window that is closed
    probed.limit.limit_to(100_000)
    assert probed.limit.rows_per_second == 50_000


def test_a_replica_that_falls_behind_settles_near_what_it_can_do() -> None:
    """It replays 60 000 rows/s. The lag grows with what is written beyond that."""
    probed, behind, lags, speeds = Probed(), 0.0, [], []
    for _ in range(360):
        speed = probed.answer(behind / 60_000)
        behind = max(0.0, behind + (speed - 60_000) * EVERY)
        lags.append(behind / 60_000)
        speeds.append(speed)
    assert max(lags) < 30 + 3 * EVERY
    assert sum(speeds[60:]) / len(speeds[60:]) > 0.7 * 60_000


def test_a_name_that_is_an_aim_elsewhere_is_a_signal_like_others() -> None:
    limit = AdaptiveLimit(100, bounds={"p99": 30}, auto=False, clock=VirtualClock())
    assert limit.observe("probe", HealthSample({"p99": (math.inf, 30)}), 0.0) < 100


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="hold, lower, pause, not 'full-speed'") as refused:
        AdaptiveLimit(100, policy="full-speed")
    assert refused.value.option == "policy"
