"""AIMD, and what an unreachable probe means."""

import pytest

from spark_channel.errors import OptionError
from spark_channel.limits import AimdController, PressureState


def test_a_bad_probe_halves_and_good_ones_bring_it_back_step_by_step() -> None:
    pressure = AimdController()
    assert pressure.text == ""
    assert pressure.observe(40, 30, "lag") == 0.5
    assert pressure.text == "pressed: lag 40, threshold 30 (50% of the limit)"
    assert pressure.observe(35, 30, "lag") == 0.25
    assert pressure.observe(30, 30, "lag") == pytest.approx(0.3)
    assert pressure.state is PressureState.RECOVERING
    for _ in range(20):
        pressure.judge(True)
    assert (pressure.factor, pressure.state, pressure.text) == (1.0, PressureState.OK, "")


def test_it_never_falls_below_its_floor() -> None:
    pressure = AimdController(floor=0.1)
    assert [pressure.judge(False) for _ in range(5)][-1] == 0.1


@pytest.mark.parametrize(("policy", "factor"), [("hold", 0.5), ("lower", 0.25), ("pause", 0.0)])
def test_an_unreachable_probe_is_named_and_never_means_full_speed(
    policy: str, factor: float
) -> None:
    pressure = AimdController(policy=policy)
    pressure.judge(False)
    assert pressure.unreachable("connection refused") == factor
    assert pressure.state is PressureState.UNREACHABLE
    assert pressure.text == f"unreachable: connection refused ({factor:.0%} of the limit)"
    assert pressure.judge(True) == pytest.approx(max(factor, 0.05) + 0.05)


def test_an_answer_that_is_no_number_is_no_answer() -> None:
    pressure = AimdController()
    pressure.observe(float("nan"), 30, "lag")
    assert pressure.state is PressureState.UNREACHABLE


def test_policies_and_parts_are_checked() -> None:
    with pytest.raises(OptionError) as refused:
        AimdController(policy="full-speed")
    assert refused.value.option == "policy"
    for name in ("floor", "decrease", "increase"):
        for value in (0, 1, -0.5, float("nan")):
            with pytest.raises(OptionError) as refused:
                AimdController(**{name: value})  # type: ignore[arg-type] # one of its numbers
            assert refused.value.option == name
