"""A task's start and end cost no budget: many short tasks use the limit as a few long ones do, and keep it."""

import pytest

from tests.limits.world import short_tasks, used_until_done


@pytest.mark.parametrize("count", [2, 8, 50, 200])
@pytest.mark.parametrize("pause", [0.01, 0.025])
def test_short_tasks_use_the_limit(count: int, pause: float) -> None:
    """At 200 tasks each moves 1 684 rows, which takes 28 ms of the whole limit."""
    world = short_tasks(count, pause=pause)
    assert used_until_done(world) >= 0.95
    assert world.worst(1.0) <= 1.04 * 60_000
    assert world.worst(10.0) <= 1.004 * 600_000


def test_long_pauses_cost_no_more_than_they_must() -> None:
    """With 50 ms between two tasks, a bucket of 20 ms that all share without any message is used to 94.7 %."""
    assert used_until_done(short_tasks(200, pause=0.05)) >= 0.9


@pytest.mark.parametrize("slots", [4, 8, 16, 40])
def test_more_slots_do_too(slots: int) -> None:
    world = short_tasks(200, slots=slots, pause=0.05)
    assert used_until_done(world) >= 0.96
    assert world.worst(1.0) <= 1.04 * 60_000


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_network_is_made_up_for(seed: int) -> None:
    """A message takes up to 6 ms each way."""
    assert used_until_done(short_tasks(200, latency=0.008, seed=seed)) >= 0.95


@pytest.mark.parametrize(
    ("slots", "pause", "latency", "seed"),
    [(4, 0.05, 0.006, 0), (4, 0.1, 0.006, 1), (4, 0.25, 0.006, 2), (8, 0.1, 0.003, 3)],
)
def test_many_small_tables_keep_a_low_limit_and_use_it(
    slots: int, pause: float, latency: float, seed: int
) -> None:
    """Tables of 120 rows, each a job, at 400 rows/s: one begins or ends every 0.15 s, and a row is 0.25 % of it."""
    world = short_tasks(
        150,
        slots=slots,
        pause=pause,
        rate=400,
        rows=18_000,
        jobs=True,
        latency=latency,
        seed=seed,
    )
    assert world.worst(1.0) <= 1.05 * 400
    assert world.worst(10.0) <= 1.01 * 4_000
    assert used_until_done(world) >= 0.98


def test_what_it_costs_to_share_is_bounded() -> None:
    """Requests for each task: join, leave, and what it takes to be called."""
    assert short_tasks(200).messages <= 6 * 200
