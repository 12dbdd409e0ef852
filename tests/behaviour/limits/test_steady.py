"""Any number of clients together run at the limit, evenly, from the first second on."""

import pytest

from spark_channel.limits import SetRates
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
    world.coordinator.handle(SetRates(LIMIT, after))
    world.run(8)
    assert world.status().granted_rows_per_second <= after
    world.run(65)
    assert world.rows(25, 65) == pytest.approx(40 * after, rel=0.05)


@pytest.mark.parametrize("before", [1_000, 90])
@pytest.mark.parametrize(
    ("rate", "row_bytes"), [(50_000, 30), (50_000, 110), (50_000, 150), (1_000, 30)]
)
def test_with_two_limits_the_one_that_binds_is_used(rate: int, row_bytes: int, before: int) -> None:
    """A row has 100 bytes; the limit has room for `row_bytes` of each of its rows. Two jobs, unlike in size."""
    world = World(before, before * row_bytes)
    jobs = {"a": 13, "b": 6}
    for job, count in jobs.items():
        for index in range(count):
            world.worker(job=job, start=index * 0.003, offset=1000.0 * index)
    world.run(0.1)
    world.coordinator.handle(SetRates(LIMIT, rate, rate * row_bytes))
    world.run(25)
    flows = rate * min(1.0, row_bytes / 100)
    assert world.rows(5, 25) >= 0.94 * 20 * flows
    for worker in world.workers:
        job = worker.limiter._job
        fair = flows / 2 / jobs[job]
        assert world.rows(5, 25, [worker]) >= 0.8 * 20 * fair
