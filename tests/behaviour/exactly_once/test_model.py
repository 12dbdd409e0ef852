"""Every order of two drivers' steps, and random ones of three: no row lost, none twice, on the model."""

import pytest

from spark_channel.options import CommitMode
from tests.behaviour.exactly_once.model import Model, ModelWriter
from tests.behaviour.exactly_once.schedules import Schedule, all_schedules, play, random_schedules


def _play(schedule: Schedule, mode: CommitMode, *, continues: bool) -> None:
    model = Model()
    play(lambda: ModelWriter(model), lambda: model.rows, schedule, mode, continues=continues)
    assert not any(model.staging.values()), "what the last run does not own it has removed"


@pytest.mark.parametrize("continues", [True, False], ids=["transfer", "DataFrame"])
@pytest.mark.parametrize("mode", ["job", "task"])
def test_every_order_of_two_drivers(mode: CommitMode, continues: bool) -> None:
    count = 0
    for schedule in all_schedules():
        _play(schedule, mode, continues=continues)
        count += 1
    assert count == 3_570


@pytest.mark.parametrize("mode", ["job", "task"])
def test_random_orders_of_three_drivers(mode: CommitMode) -> None:
    for schedule in random_schedules(5_000, 3, mode):
        _play(schedule, mode, continues=True)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["job", "task"])
def test_a_million_random_orders_of_three_drivers(mode: CommitMode) -> None:
    for schedule in random_schedules(500_000, 3, mode):
        _play(schedule, mode, continues=True)
