"""`protect=auto` beside an application, on a simulated server: the application's p99, and the speed that is used."""

from collections.abc import Callable
from functools import cache

import pytest

from spark_channel.limits.protection import LEAST_ROWS
from tests.limits.server_model import ROW_SECONDS, SETTLING, SIDES, Adaptive, Fixed, Server

SECONDS, FASTEST = 60.0, 300_000.0
Load = Callable[[float], float]


def flat(load: float) -> Load:
    return lambda _at: load


def step(before: float, after: float) -> Load:
    return lambda at: before if at < 35 else after


def ramp(before: float, after: float) -> Load:
    return lambda at: before + (after - before) * min(1.0, at / SECONDS)


def _beside(
    cores: int,
    load: Load,
    *,
    noise: bool = False,
    application: bool = True,
    cost: bool = True,
    sessions: bool = True,
    **more: object,
) -> tuple[float, float]:
    """How many times its p99 without the job the application's p99 is, and the job's mean speed."""
    server = Server(
        cores,
        load,
        noise,
        seed=1,
        reports_application=application,
        reports_cost=cost,
        reports_sessions=sessions,
    )
    server.run(Adaptive(server, **more), SECONDS)
    return server.p99(SETTLING) / _p99(cores, load, noise, 0.0), server.mean_speed()


@cache
def _p99(cores: int, load: Load, noise: bool, rows: float) -> float:
    """Seconds, beside a job at a fixed limit."""
    server = Server(cores, load, noise, seed=1)
    server.run(Fixed(rows), SECONDS)
    return server.p99(SETTLING)


def _is_best(cores: int, load: Load, rows: float, *, noise: bool = False) -> bool:
    """Whether no higher fixed limit keeps the application within one and a half times its p99."""
    most = 1.5 * _p99(cores, load, noise, 0.0)
    return rows >= FASTEST or _p99(cores, load, noise, round(rows, -3)) > most


ONE, CROWDED, FULL, FOUR, STEP = flat(0.33), flat(0.60), flat(0.90), flat(0.33), step(0.2, 0.6)


@pytest.mark.parametrize("application", [True, False], ids=["its latency", "naps"])
@pytest.mark.parametrize(
    ("cores", "load", "noise", "part"),
    [
        (1, ONE, False, 0.5),
        (1, CROWDED, False, 0.4),
        (1, FULL, False, 0.25),
        (4, FOUR, False, 0.35),
        (4, flat(0.60), False, 0.1),
        (4, flat(0.90), False, 0.1),
        (32, flat(0.60), False, 0.35),
        (1, ONE, True, 0.3),
        (4, flat(0.50), True, 0.15),
        (1, STEP, False, 0.4),
        (4, ramp(0.2, 0.8), False, 0.15),
    ],
)
def test_the_application_stays_within_one_and_a_half_times_its_p99(
    cores: int, load: Load, noise: bool, part: float, application: bool
) -> None:
    """At a speed that is this part of the best fixed limit that keeps it there."""
    p99, speed = _beside(cores, load, noise=noise, application=application)
    assert p99 <= 1.5
    assert _is_best(cores, load, speed / part, noise=noise)


def test_on_one_core_that_is_nearly_idle_each_piece_shows() -> None:
    """Its p99 is that of the work alone: 6 000 rows/s would keep one and a half times that."""
    p99, speed = _beside(1, flat(0.10))
    assert p99 <= 1.75
    assert speed >= 6_000


@pytest.mark.parametrize("aim", [1.1, 1.25])
@pytest.mark.parametrize(("cores", "load"), [(1, ONE), (1, CROWDED), (4, FOUR)])
def test_an_aim_of_the_user_is_kept(cores: int, load: Load, aim: float) -> None:
    p99, speed = _beside(cores, load, bounds={"p99": aim})
    assert p99 <= aim
    assert speed >= LEAST_ROWS


def test_an_aim_of_work_is_kept_and_used() -> None:
    _, speed = _beside(4, FOUR, bounds={"work": 0.2})
    assert 0.1 <= speed * ROW_SECONDS / SIDES <= 0.22


def test_a_lower_aim_leaves_more_to_the_application() -> None:
    strict = _beside(1, flat(0.33), bounds={"p99": 1.1})
    usual = _beside(1, flat(0.33))
    assert strict[0] <= usual[0]
    assert strict[1] < 0.8 * usual[1]


def test_a_burst_of_the_application_takes_the_speed_within_seconds_and_it_comes_back() -> None:
    server = Server(4, lambda at: 0.97 if 40 <= at < 50 else 0.4, seed=1)
    server.run(Adaptive(server), 90.0)
    before, burst = server.mean_speed(30, 40), server.mean_speed(43, 50)
    assert burst < 0.3 * before
    assert server.mean_speed(75, 90) > 0.7 * before


def test_a_pause_of_half_a_minute_costs_nothing_before_or_after() -> None:
    server = Server(4, flat(0.4), seed=1, pause=(35.0, 65.0))
    server.run(Adaptive(server), 90.0)
    idle = Server(4, flat(0.4), seed=1)
    idle.run(Fixed(0), 90.0)
    assert server.mean_speed(75, 90) > 0.7 * server.mean_speed(25, 35)
    assert server.p99(65, 70) <= 1.5 * idle.p99(65, 70)


def test_a_replica_that_stops_for_ten_seconds_takes_the_speed_and_gives_it_back() -> None:
    server = Server(4, flat(0.4), seed=1, replays=lambda at: 0.0 if 40 <= at < 50 else 400_000.0)
    server.run(Adaptive(server), 90.0)
    before = server.mean_speed(30, 40)
    assert server.mean_speed(44, 50) < 0.1 * before
    assert server.mean_speed(60, 90) > 0.7 * before
    assert max(lag for at, lag in server.lags if at > 52) < 1.0


def test_a_replica_that_is_slower_than_the_job_is_kept_near_a_second_behind() -> None:
    server = Server(4, flat(0.4), seed=1, replays=lambda _at: 30_000.0)
    server.run(Adaptive(server), 120.0)
    assert max(lag for at, lag in server.lags if at > SETTLING) < 3.0
    assert server.mean_speed() > 0.7 * 30_000


@pytest.mark.parametrize(
    ("cores", "load", "part"),
    [(1, ONE, 0.5), (1, CROWDED, 0.4), (1, FULL, 0.25), (4, FOUR, 0.35), (1, STEP, 0.4)],
)
def test_rows_of_unknown_cost_are_bounded_by_the_sessions_at_work(
    cores: int, load: Load, part: float
) -> None:
    """Tables that are read without a key, and merges: no statement shows what one of their rows costs."""
    p99, speed = _beside(cores, load, cost=False)
    assert p99 <= 1.5
    assert _is_best(cores, load, speed / part)


@pytest.mark.parametrize(("cores", "load"), [(1, ONE), (1, FULL), (4, flat(0.60)), (1, STEP)])
@pytest.mark.parametrize("application", [True, False], ids=["its latency", "naps"])
def test_where_sessions_are_not_seen_short_statements_bound_the_speed(
    cores: int, load: Load, application: bool
) -> None:
    p99, speed = _beside(cores, load, application=application, sessions=False)
    assert p99 <= 1.5
    assert speed >= 1_000


def test_a_merge_that_costs_more_than_its_rows_show_is_found_by_the_sessions_at_work() -> None:
    """The statements that are measured show a tenth of the work."""
    server = Server(1, flat(0.33), seed=1, row_seconds_seen=0.1 * ROW_SECONDS)
    server.run(Adaptive(server), SECONDS)
    assert server.mean_speed() * ROW_SECONDS < 0.15


def test_a_second_job_shares_what_there_is() -> None:
    """Each sees the other as load, and neither starves."""
    server = Server(1, flat(0.33), seed=1)
    both = [Adaptive(server), Adaptive(server)]
    spent = [0.0, 0.0]

    class Two:
        def speed(self, sample: object, spent_rows: float) -> float:
            speeds = [
                each.speed(sample, mine)  # type: ignore[arg-type] # the server's own sample
                for each, mine in zip(both, spent, strict=True)
            ]
            for place, each in enumerate(speeds):
                spent[place] += each * 0.25
            return sum(speeds)

    server.run(Two(), SECONDS)
    idle = Server(1, flat(0.33), seed=1)
    idle.run(Fixed(0), SECONDS)
    assert server.p99(SETTLING) <= 1.6 * idle.p99(SETTLING)
    assert min(spent) > 0.2 * max(spent)
