"""Any number of clients together run at the limit, evenly, from the first second on."""

import pytest

from spark_channel.limits import Set
from tests.limits.world import LIMIT, World


@pytest.mark.parametrize("clients", [1, 2, 8, 40])
def test_clients_that_could_go_faster_share_exactly_the_limit(clients: int) -> None:
    world = World(10_000)
    for index in range(clients):
        world.worker(start=index * 0.01)
    world.run(20)
    assert world.utilisation(2, 20) == pytest.approx(1.0, abs=0.005)
    assert world.worst(1.0) <= 10_500
    shares = [world.rows(10, 20, [worker]) for worker in world.workers]
    assert max(shares) <= 1.02 * min(shares)


@pytest.mark.parametrize(("before", "after"), [(90, 7), (1_000, 90), (50_000, 90)])
def test_a_lowered_limit_leaves_no_more_turns_than_it_can_feed(before: int, after: int) -> None:
    world = World(before)
    for index in range(8):
        world.worker(start=index * 0.01)
    world.run(5)
    world.coordinator.handle(Set(LIMIT, after))
    world.run(8)
    assert world.status().granted_rows_per_second <= after
    world.run(65)
    assert world.rows(25, 65) == pytest.approx(40 * after, rel=0.05)
