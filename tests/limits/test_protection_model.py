"""`protect=auto` beside an application, on a simulated server: the application's p99, and the speed that is used."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

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


@dataclass(frozen=True)
class Case:
    """`best` is the highest fixed limit that keeps the application within one and a half times its p99 there, and
    `part` how much of it `protect=auto` uses at least. `rounds`: how many runs are judged by their mean, for p99
    differs by a twentieth between two runs.
    """

    cores: int
    load: Load
    best: float
    part: float
    noise: bool = False
    rounds: int = 1


ONE = Case(1, flat(0.33), 91_000, 0.3, rounds=4)
CROWDED = Case(1, flat(0.60), 57_000, 0.3)
FULL = Case(1, flat(0.90), 13_500, 0.3)
STEP = Case(1, step(0.2, 0.6), 53_000, 0.45)
NOISY = Case(1, flat(0.33), 101_000, 0.22, noise=True)
FOUR = Case(4, flat(0.33), FASTEST, 0.7)
FOUR_CROWDED = Case(4, flat(0.60), 268_000, 0.15)
FOUR_FULL = Case(4, flat(0.90), 59_000, 0.2)
FOUR_NOISY = Case(4, flat(0.50), FASTEST, 0.3, noise=True)
FOUR_RAMP = Case(4, ramp(0.2, 0.8), 162_000, 0.6)
MANY = Case(32, flat(0.60), FASTEST, 0.7)
"""`part` is 0.7 where cores are to spare. On one core the bound of `work` is a third of what this model could bear:
beside a real server, p99 at one and a half times the bound was 1.1 to 3.1 times idle from one round to the next. With
four busy cores the job's own sessions, and naps, wait for a core more often, but how much p99 grows with it depends on
how many cores there are, which no signal says. With noise, the machine pauses. Its pauses make most of p99, so a fixed
limit may be higher, and no signal separates them from what the job does.
"""

USUAL = [(ONE, True), (ONE, False), (CROWDED, True), (FULL, False), (STEP, False), (NOISY, True)]
USUAL += [(FOUR, True), (FOUR_RAMP, False)]
CASES = [ONE, CROWDED, FULL, STEP, NOISY, FOUR, FOUR_CROWDED, FOUR_FULL, FOUR_NOISY, FOUR_RAMP]
CASES += [MANY]


def _beside(
    case: Case,
    *,
    application: bool = True,
    cost: bool = True,
    sessions: bool = True,
    **more: object,
) -> tuple[float, float]:
    """How many times its p99 without the job the application's p99 is, and the job's mean speed."""
    ratios, speeds = [], []
    for seed in range(1, 1 + case.rounds):
        server = Server(
            case.cores,
            case.load,
            case.noise,
            seed=seed,
            reports_application=application,
            reports_cost=cost,
            reports_sessions=sessions,
        )
        server.run(Adaptive(server, **more), SECONDS)
        ratios.append(server.p99(SETTLING) / _p99(case, seed))
        speeds.append(server.mean_speed())
    return fmean(ratios), fmean(speeds)


@cache
def _p99(case: Case, seed: int, rows: float = 0.0) -> float:
    """Seconds, beside a job at a fixed limit."""
    server = Server(case.cores, case.load, case.noise, seed=seed)
    server.run(Fixed(rows), SECONDS)
    return server.p99(SETTLING)


def _at_limit(case: Case, rows: float) -> float:
    """How many times its p99 without the job the application's p99 is."""
    seeds = range(1, 1 + case.rounds)
    return fmean(_p99(case, seed, rows) / _p99(case, seed) for seed in seeds)


def _in_soak(value: object) -> object:
    return pytest.param(value, marks=pytest.mark.soak)


def _name(case: object) -> str:
    return next(name for name, each in globals().items() if each is case)


def _within_one_and_a_half(case: Case, **more: bool) -> None:
    p99, speed = _beside(case, **more)
    assert p99 <= 1.5
    assert speed >= case.part * case.best


@pytest.mark.parametrize(
    ("case", "application"),
    USUAL,
    ids=lambda each: _name(each) if isinstance(each, Case) else ("naps", "its latency")[each],
)
def test_the_application_stays_within_one_and_a_half_times_its_p99(
    case: Case, application: bool
) -> None:
    _within_one_and_a_half(case, application=application)


@pytest.mark.soak
@pytest.mark.parametrize("application", [True, False], ids=["its latency", "naps"])
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_any_application_stays_within_one_and_a_half_times_its_p99(
    case: Case, application: bool
) -> None:
    _within_one_and_a_half(case, application=application)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_the_best_fixed_limit_keeps_it_and_a_higher_one_does_not(case: Case) -> None:
    assert _at_limit(case, case.best) <= 1.5
    assert case.best == FASTEST or _at_limit(case, 1.4 * case.best) > 1.5


def test_on_one_core_that_is_nearly_idle_each_piece_shows() -> None:
    """Its p99 is that of the work alone, so a job shows in it at any speed."""
    p99, speed = _beside(Case(1, flat(0.10), 0, 0))
    assert 1.2 < p99 <= 1.5
    assert speed >= 30_000


@pytest.mark.parametrize("aim", [1.1, 1.25])
@pytest.mark.parametrize("case", [ONE, *(_in_soak(each) for each in (CROWDED, FOUR))], ids=_name)
def test_an_aim_of_the_user_is_kept(case: Case, aim: float) -> None:
    p99, speed = _beside(case, bounds={"p99": aim})
    assert p99 <= aim
    assert speed >= LEAST_ROWS


def test_an_aim_of_work_is_kept_and_used() -> None:
    _, speed = _beside(FOUR, bounds={"work": 0.2})
    assert 0.1 <= speed * ROW_SECONDS / SIDES <= 0.22


def test_a_lower_aim_leaves_more_to_the_application() -> None:
    strict = _beside(replace(ONE, rounds=1), bounds={"p99": 1.1})
    usual = _beside(replace(ONE, rounds=1))
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
    """The least speed is a twentieth of the best one that was allowed, of which a job may use a quarter."""
    server = Server(4, flat(0.4), seed=1, replays=lambda at: 0.0 if 40 <= at < 50 else 400_000.0)
    server.run(Adaptive(server), 90.0)
    before = server.mean_speed(30, 40)
    assert server.mean_speed(44, 50) < 0.2 * before
    assert server.mean_speed(60, 90) > 0.7 * before
    assert max(lag for at, lag in server.lags if at > 52) < 1.0


def test_a_replica_that_is_slower_than_the_job_is_kept_near_a_second_behind() -> None:
    server = Server(4, flat(0.4), seed=1, replays=lambda _at: 30_000.0)
    server.run(Adaptive(server), 120.0)
    assert max(lag for at, lag in server.lags if at > SETTLING) < 3.0
    assert server.mean_speed() > 0.7 * 30_000


@pytest.mark.parametrize("case", [ONE, FULL, STEP, _in_soak(FOUR)], ids=_name)
def test_rows_of_unknown_cost_are_bounded_by_the_sessions_at_work(case: Case) -> None:
    """Tables that are read without a key, and merges: no statement shows what one of their rows costs."""
    _within_one_and_a_half(case, cost=False)


@pytest.mark.parametrize("case", [ONE, FULL, STEP], ids=_name)
@pytest.mark.parametrize("application", [_in_soak(True), False], ids=["its latency", "naps"])
def test_where_sessions_are_not_seen_short_statements_bound_the_speed(
    case: Case, application: bool
) -> None:
    p99, speed = _beside(case, application=application, sessions=False)
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
