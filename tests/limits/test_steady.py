"""Any number of clients together run at the limit, evenly, from the first second on."""

import pytest

from tests.limits.world import World


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
