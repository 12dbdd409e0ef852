"""10 000 tasks on 400 hosts, as `python -m tests.benchmarks.simulate` runs them; 1 000 for a tenth of the time."""

import pytest

from tests.benchmarks import simulate
from tests.benchmarks.simulate import datax_factor, run_datax, run_grants


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_thousand_tasks_stay_inside_the_figures_that_are_promised() -> None:
    run = run_grants(10_000, 1)
    assert run.messages <= 2_500
    assert run.worst_messages <= 2_500
    assert run.worst_1 <= 1.05
    assert run.worst_10 <= 1.05
    assert run.utilisation_95 >= 0.98


def test_a_thousand_tasks_keep_the_limit_through_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use of the limit is not measured here: in a minute, the last few large tasks are most of the time."""
    monkeypatch.setattr(simulate, "SECONDS_OF_WORK", 60)
    monkeypatch.setattr(simulate, "CRASH_AT", 20.0)
    run = run_grants(1_000, 1)
    assert run.messages <= 300
    assert run.worst_messages <= 600
    assert run.worst_1 <= 1.05
    assert run.worst_10 <= 1.05
    assert run.after_crash is not None
    assert run.after_crash <= 1.0


def test_the_rule_beside_ours_is_the_one_that_is_described() -> None:
    """DataX's long-run rate is 1.6 to 1.95 times its limit, and static channels leave most of it unused."""
    assert 1.0 < datax_factor(500) < 1.95
    run = run_datax(2_000, 1)
    assert run.utilisation < 0.6
