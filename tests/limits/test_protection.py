"""A speed that follows what databases say of their health: on a virtual clock, by examples and by any history."""

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.limits import (
    AdaptiveLimit,
    Coordinator,
    HealthSample,
    LimitStatus,
    SetRates,
    StatusRequest,
)
from spark_channel.limits.health import Slowdown
from spark_channel.limits.protection import LEAST_PART, LEAST_ROWS, START_ROWS
from spark_channel.testing import VirtualClock

STEP = 0.25
LAG = "replication_lag"


class World:
    """A job that uses all that it may, and is asked four times a second how its ends are."""

    def __init__(
        self,
        most: float | None = 100_000,
        *,
        auto: bool = True,
        bounds: Mapping[str, float] | None = None,
        can_do: float = float("inf"),
    ) -> None:
        self.clock = VirtualClock()
        self.protection = AdaptiveLimit(most, auto=auto, bounds=bounds, clock=self.clock)
        self.can_do = can_do
        self.spent = 0.0

    @property
    def speed(self) -> float:
        return self.protection.rows_per_second

    def say(
        self,
        values: Mapping[str, tuple[float, float]] | None = None,
        delays: Mapping[str, Sequence[float]] | None = None,
        *,
        side: str = "target",
        error: str = "",
        seconds: float = STEP,
        row_seconds: float = 0.0,
    ) -> float:
        self.spent += min(self.speed, self.can_do) * seconds
        self.clock.advance(seconds)
        return self.protection.observe(
            side, HealthSample(values or {}, delays or {}, (), error, row_seconds), self.spent
        )

    def well(self, seconds: float) -> float:
        for _ in range(int(seconds / STEP)):
            self.say({LAG: (0.0, 1.0)})
        return self.speed


def test_the_speed_is_found_from_below() -> None:
    world = World(None)
    assert world.speed == START_ROWS
    assert world.well(4.0) > 40_000
    assert world.protection.text == ""


def test_a_limit_is_never_exceeded_and_reached_soon() -> None:
    world = World(100_000)
    assert world.well(6.0) == 100_000


def test_what_nobody_uses_says_nothing() -> None:
    """The source brings 8 000 rows/s at most: nothing is known of 100 000."""
    world = World(None, can_do=8_000)
    assert world.well(20.0) <= 4.1 * 8_000


def test_a_replica_that_falls_behind_slows_the_job_within_a_second_and_has_its_speed_back_within_five() -> (
    None
):
    world = World(100_000)
    world.well(8)
    for seconds in (1.25, 1.5, 1.75, 2.0, 2.25):
        world.say({LAG: (seconds, 1.0)})
    assert world.speed <= 50_000 / 2
    for seconds in range(18):
        world.say({LAG: (3.0 + seconds, 1.0)}, seconds=1.0)
    assert world.speed == pytest.approx(LEAST_PART * 100_000)
    assert world.protection.text == (
        "pressed: target's replication_lag 20 s, at most 1 s (5000 rows/s)"
    )
    world.say({LAG: (0.0, 1.0)})
    assert world.protection.text.startswith("recovering: target's replication_lag")
    assert world.well(5.0 - STEP) >= 95_000
    world.well(5.0)
    assert world.protection.text == ""
    (held,) = world.protection.held
    assert (held.side, held.signal) == ("target", LAG)
    assert 18 <= held.ended - held.began <= 20.5
    assert world.protection.held_seconds == {"target's replication_lag": held.ended - held.began}


def test_seconds_that_a_signal_held_the_speed_are_counted_however_often_it_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_channel.limits.protection._MOST_HELD", 2)
    world = World(100_000)
    counted = []
    for _ in range(5):
        world.well(20)
        for _ in range(8):
            world.say({LAG: (3.0, 1.0)})
        counted.append(world.protection.held_seconds["target's replication_lag"])
    assert len(world.protection.held) == 2
    assert counted == sorted(set(counted))


def test_the_same_without_a_limit() -> None:
    world = World(None, can_do=80_000)
    before = world.well(10)
    for seconds in range(1, 21):
        world.say({LAG: (seconds + 1.0, 1.0)}, seconds=1.0)
    assert world.speed < 0.1 * before
    assert min(world.well(5.0), 80_000) >= 0.95 * 80_000


def test_waits_above_the_aim_take_the_speed_and_it_stays_near_the_best() -> None:
    """A server whose sessions wait for a core above 30 000 rows/s: one in ten below, half of them above."""
    world = World(None)
    speeds = []
    for number in range(600):
        waiting = 1 if world.speed <= 30_000 else 5
        world.say(delays={"wakeup": [0.001] * waiting + [0.0] * (10 - waiting)})
        if number > 200:
            speeds.append(world.speed)
    assert sum(min(each, 30_000) for each in speeds) / len(speeds) >= 0.7 * 30_000
    assert max(speeds) <= 1.5 * 30_000
    assert "target's wakeup" in world.protection.held_seconds


def test_the_applications_own_latency_comes_first() -> None:
    """Sessions wait, and the application does not: a server of many cores, most of them idle."""
    world = World(100_000)
    for number in range(120):
        waiting = 1 if number < 20 else 4
        naps = [0.001] * waiting + [0.0] * (10 - waiting)
        world.say(delays={"application": [1.0], "wakeup": naps})
    assert world.speed == 100_000
    for _ in range(40):
        world.say(delays={"application": [1.6], "wakeup": naps})
    assert world.speed < 50_000
    assert world.protection.text.startswith("pressed: target's application 1.58 times")
    assert "aim 1.35 times" in world.protection.text


@pytest.mark.parametrize("others", [{"wakeup": [0.0] * 10}, {}], ids=["naps", "nothing else"])
@pytest.mark.parametrize(
    "latencies",
    [
        pytest.param([1.0] * 40 + [10.0], id="it was slow once, and then ended no statement"),
        pytest.param([1.0] * 40 + [1.8] * 20, id="it was slow for seconds"),
        pytest.param([1.0], id="it ended a few statements, and nothing is known of it"),
    ],
)
def test_an_application_that_falls_silent_holds_nothing_for_ever(
    latencies: list[float], others: dict[str, list[float]]
) -> None:
    world = World(100_000)
    for latency in latencies:
        world.say(delays={"application": [latency], **others})
    for _ in range(4 * 60):
        world.say(delays=others)
    assert world.speed == 100_000


@pytest.mark.parametrize("others", [{"wakeup": [0.0] * 10}, {}], ids=["naps", "nothing else"])
def test_an_application_that_begins_beside_a_fast_job_is_compared_with_its_own_mean(
    others: dict[str, list[float]],
) -> None:
    """What is heard first may be the job's effect, and is not what is usual."""
    world = World(100_000)
    for _ in range(4 * 20):
        world.say(delays=others)
    assert world.speed == 100_000
    slowest = min(world.say(delays={"application": [1.8], **others}) for _ in range(4 * 10))
    assert slowest < 50_000
    for _ in range(4 * 60):  # without an effect of the job it is usual
        world.say(delays={"application": [1.8], **others})
    assert world.speed > 90_000


def test_the_signal_that_is_named_is_the_one_that_holds_the_speed() -> None:
    """Sessions wait twice as often as usual, which is not far, and holds nothing beside the application's latency."""
    world = World(100_000)
    for number in range(60):
        waiting = 0 if number < 30 else 4
        naps = [0.001] * waiting + [0.0] * (10 - waiting)
        world.say(delays={"application": [1.0 if number < 30 else 1.5], "wakeup": naps})
    assert world.protection.text.startswith("pressed: target's application 1.")
    assert set(world.protection.held_seconds) == {"target's application"}


def test_a_signal_that_takes_nothing_of_the_limit_is_not_named() -> None:
    """The limit is below the lowest speed, or below what others' latency leaves a job."""
    for most, row_seconds in ((50.0, 0.0), (1_000.0, 1e-6)):
        world = World(most)
        for number in range(60):
            latency = 1.0 if number < 30 else 5.0
            world.say(delays={"application": [latency]}, row_seconds=row_seconds)
        assert world.speed == most
        assert world.protection.text == ""
        assert world.protection.held_seconds == {}


def test_the_report_says_which_signal_was_seen_and_how_long_a_side_was_not_asked() -> None:
    world = World(100_000)
    for number in range(80):
        application = {"application": [1.3]} if 20 <= number < 40 else {}
        world.say(delays={**application, "wakeup": [0.0] * 10})
    assert world.protection.summary == (
        "aimed at others' statements at most 1.35 times as slow as usual; "
        "seen: target's wakeup 1.00 times, 1.00 at most; target's application 1.30 times, 1.30 at most"
    )
    for _ in range(40):
        world.say(error="connection refused", side="source")
    assert world.protection.summary.endswith(
        "; the source could not be asked for 10 s, in which the speed did not grow"
    )


def test_the_report_names_both_aims_and_what_was_used() -> None:
    world = World(None, bounds={"p99": 1.25, "work": 0.2})
    for _ in range(80):
        world.say(delays={"application": [1.1]}, row_seconds=1e-6)
    assert world.protection.summary == (
        "aimed at others' statements at most 1.25 times as slow as usual and 0.2 of a core at most for this job's own "
        "statements on each side; seen: target's application 1.00 times, 1.00 at most; "
        "target's work 0.13 of a core, 0.2 at most"
    )


def test_the_report_names_the_bound_of_work_that_held() -> None:
    world = World(100_000, bounds={"p99": 1.07})
    world.say(row_seconds=1e-6)
    assert world.protection.summary == (
        "aimed at 0.00105 of a core at most for this job's own statements on each side"
    )


def test_a_user_says_how_much_slower_the_application_may_be() -> None:
    def held(**bounds: float) -> float:
        world = World(100_000, bounds=bounds)
        for number in range(160):
            world.say(delays={"application": [1.0 if number < 20 else 1.3]})
        return world.speed

    assert held(p99=1.5) == 100_000
    assert held() == 100_000  # 1.35
    assert held(p99=1.25) < 50_000


def test_waits_that_stay_without_us_are_usual_then() -> None:
    """The application itself became busier: at the least speed that is learned, and the speed comes back."""
    world = World(100_000)
    for _ in range(60):
        world.say(delays={"application": [1.0]})
    slowest = min(world.say(delays={"application": [4.0]}) for _ in range(400))
    assert slowest == pytest.approx(LEAST_PART * 100_000)
    assert world.speed > 90_000


def test_a_wait_of_the_clients_host_alone_holds_nothing() -> None:
    """`latency` is measured from the task, which may run on a busy host."""
    world = World(100_000)
    for number in range(120):
        world.say(delays={"latency": [0.001 if number < 20 else 0.05]})
    assert world.speed == 100_000


def test_what_was_too_much_before_the_job_began_is_no_fault_of_its() -> None:
    """A slot that no client reads keeps 3 GiB already."""
    world = World(100_000)
    for _ in range(40):
        world.say({"slot_wal": (3.0 * (1 << 30), float(1 << 30))})
    assert world.speed == 100_000
    world.say({"slot_wal": (6.0 * (1 << 30), float(1 << 30))})
    assert world.speed < 100_000


def test_bounds_of_the_users_win_and_work_alone() -> None:
    world = World(100_000, auto=False, bounds={LAG: 10})
    assert world.speed == 100_000
    for _ in range(10):
        world.say({LAG: (9.0, 1.0), "slot_wal": (9e12, 1.0)}, {"wakeup": [9.0] * 30})
    assert world.speed == 100_000
    world.say({LAG: (11.0, 1.0)})
    assert world.speed == 50_000


def test_silence_and_errors_are_no_good_news() -> None:
    world = World(100_000)
    before = world.well(0.5)
    for _ in range(20):
        world.say(error="connection refused", side="source")
    assert world.speed == before
    assert world.protection.text.startswith("unreachable: source: connection refused")
    world.say(side="source")
    world.say({LAG: (0.0, 1.0)}, seconds=60)
    assert world.speed <= before * 2 ** (1 / 0.5)


def test_a_pause_does_not_cost_the_speed() -> None:
    """Nothing was spent while the limit was paused; then a signal is too much: half of the speed goes, not all."""
    world = World(100_000)
    world.well(5)
    world.can_do = 0.0
    world.well(10)
    world.say({LAG: (2.0, 1.0)})
    assert world.speed >= 100_000 / 8


VALUES = st.one_of(st.just(0.0), st.floats(0, 5, allow_nan=False))
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["source", "target"]),
        st.sampled_from(["lag", "delay", "error", "limit", "silence"]),
        VALUES,
    ),
    max_size=120,
)


@given(events=EVENTS, most=st.one_of(st.none(), st.floats(10, 1e6)), can_do=st.floats(0, 1e6))
def test_whatever_happens(
    events: list[tuple[str, str, float]], most: float | None, can_do: float
) -> None:
    """It stays between the least and the limit, never grows while something is too much, says what holds it, and
    comes back when all is well.
    """
    world = World(most, can_do=can_do)
    least = min(LEAST_ROWS, world.speed)
    for side, kind, value in events:
        before = world.speed
        if kind == "lag":
            world.say({LAG: (value, 1.0)}, side=side)
        elif kind == "delay":
            world.say(delays={"wakeup": [value / 100] * 10}, side=side)
        elif kind == "error":
            world.say(error="gone", side=side)
            assert world.speed <= before
        elif kind == "limit":
            most = 10 + value * 100_000
            world.protection.limit_to(most)
            least = min(least, most)
        else:
            world.clock.advance(value * 10)
        if most is not None:
            assert world.speed <= most
        assert world.speed >= least
        assert len(world.protection.text) < 600
    world.can_do = float("inf")
    for side in ("source", "target"):  # until a side says that it is well, its last trouble counts
        world.say({LAG: (0.0, 1.0)}, side=side)
    speeds = []
    for _ in range(400):
        before = world.speed
        for side in ("source", "target"):
            world.say({LAG: (0.0, 1.0)}, {"wakeup": [0.0] * 20}, side=side)
        assert world.speed >= before * 0.59
        speeds.append(world.speed)
    assert speeds[-1] >= 0.95 * (most if most is not None else START_ROWS)


def test_a_slowdown_knows_noise_from_news() -> None:
    slowdown = Slowdown(0.0)
    for number in range(60):
        slowdown.add(0.009 if number % 2 else 0.011, number * STEP)
    assert slowdown.is_known
    assert slowdown.ratio == pytest.approx(1.0, abs=0.1)
    for number in range(60, 80):
        slowdown.add(0.02, number * STEP)
    assert slowdown.ratio == pytest.approx(2.0, abs=0.3)
    slowdown.relearn(1.2)
    assert slowdown.ratio == pytest.approx(1.2)


def _status(coordinator: Coordinator, request: StatusRequest | SetRates) -> LimitStatus:
    found = coordinator.handle(request)
    assert isinstance(found, LimitStatus)
    return found


def test_a_cap_holds_below_what_is_set_and_is_told() -> None:
    clock = VirtualClock()
    coordinator = Coordinator("job", clock=clock)
    coordinator.cap(5_000, "finding")
    status = _status(coordinator, StatusRequest("job"))
    assert (status.rows_per_second, status.effective_rows_per_second, status.pressure) == (
        None,
        5_000,
        "finding",
    )
    _status(coordinator, SetRates("job", rows_per_second=2_000))
    status = _status(coordinator, StatusRequest("job"))
    assert (status.rows_per_second, status.effective_rows_per_second) == (2_000, 2_000)
    assert coordinator.limits[0] == 2_000
    coordinator.cap(500, "pressed")
    assert _status(coordinator, StatusRequest("job")).effective_rows_per_second == 500
    assert (
        _status(coordinator.for_mark("job@a"), StatusRequest("job@a")).effective_rows_per_second
        == 500
    )


def test_the_job_works_no_more_on_a_side_than_it_may() -> None:
    """A row costs the target 1 us, and the source a tenth of that: 0.02 of a core are 20 000 rows/s."""
    world = World(None)
    for _ in range(80):
        world.say(row_seconds=1e-7, side="source")
        world.say(row_seconds=1e-6)
    assert world.speed == pytest.approx(20_000)
    assert world.protection.text == "held: target's work 0.02 of a core (20000 rows/s)"
    assert world.protection.held_seconds["target's work"] > 10


@pytest.mark.parametrize(
    ("waiting", "speed"), [(0, 400_000), (1, 20_000), (12, 7_000)], ids=["idle", "used", "full"]
)
def test_a_server_with_cores_to_spare_may_work_more(waiting: int, speed: float) -> None:
    """Of so many of 20 naps that wait for a core."""
    world = World(None)
    for _ in range(240):
        naps = [0.001] * waiting + [0.0] * (20 - waiting)
        world.say(delays={"application": [1.0], "wakeup": naps}, row_seconds=1e-6)
    assert world.speed == pytest.approx(speed, rel=0.05)


def test_a_quiet_start_makes_no_usual_latency_too_much() -> None:
    """In its first seconds the application was quicker than its server has seen it in days."""
    world = World(100_000)
    for number in range(240):
        world.say(delays={"application": [0.7 if number < 20 else 1.1]})
    assert world.speed == 100_000


def test_a_side_that_has_not_seen_a_row_is_taken_for_the_dearer_one() -> None:
    world = World(None)
    for _ in range(80):
        world.say({LAG: (0.0, 1.0)})
        world.say(side="source", row_seconds=1e-6)
    assert world.speed == pytest.approx(10_000)


def test_others_latency_leaves_a_job_what_cannot_be_the_reason() -> None:
    world = World(None)
    for _ in range(80):
        world.say(delays={"application": [1.0]}, row_seconds=1e-6)
    speeds = [world.say(delays={"application": [9.0]}, row_seconds=1e-6) for _ in range(200)]
    assert min(speeds) == pytest.approx(20_000 / 4)
    assert speeds[-1] > 16_000  # this is usual now


@pytest.mark.parametrize("row_seconds", [0.0, 1e-7], ids=["unknown", "a twentieth of it"])
def test_sessions_at_work_show_what_statements_do_not(row_seconds: float) -> None:
    """A row costs 2 us, by a merge: of forty looks at the sessions, at 12 500 rows/s one finds one at work."""
    world, due = World(None), 0.0
    for _ in range(4 * 90):
        looks = []
        for _ in range(5):
            due += world.speed * 2e-6
            looks.append(float(due >= 1))
            due -= due >= 1
        naps = [0.001] + [0.0] * 19
        world.say(delays={"own_sessions": looks, "wakeup": naps}, row_seconds=row_seconds)
    assert world.speed == pytest.approx(0.055 / 2e-6, rel=0.25)
    assert world.protection.text.startswith("held: target's work 0.055 of a core")


def test_a_source_that_sends_nothing_for_half_a_minute_makes_no_row_dearer() -> None:
    """A row costs 2 us. While the job waits for rows, none of its sessions is at work. Until they are seen there again,
    the lower bound of statements holds.
    """
    world, speeds = World(None), []
    for number in range(4 * 100):
        world.can_do = 0.0 if 4 * 60 <= number < 4 * 90 else math.inf
        working = min(world.speed, world.can_do) * 2e-6
        seen = {"own_sessions": [working] * 5, "wakeup": [0.001] + [0.0] * 19}
        speeds.append(world.say(delays=seen, row_seconds=1e-6 if working else 0.0))
    assert min(speeds[4 * 90 :]) > 0.4 * speeds[4 * 60 - 1]
    assert speeds[-1] > 0.9 * speeds[4 * 60 - 1]


def test_statements_show_what_a_server_of_one_core_does_not_see() -> None:
    """It looks when the job does not run, so no session is at work: a row counts 1.6 times what statements show."""
    world = World(None)
    for _ in range(4 * 60):
        naps = [0.001] + [0.0] * 19
        world.say(delays={"own_sessions": [0.0] * 5, "wakeup": naps}, row_seconds=2e-6)
    assert world.speed == pytest.approx(0.055 / (1.6 * 2e-6), rel=0.1)


def test_what_a_row_costs_may_change() -> None:
    world = World(None)
    for _ in range(80):
        world.say(row_seconds=1e-6)
    for _ in range(4 * 30):
        world.say(row_seconds=5e-6)
    assert world.speed == pytest.approx(4_000, rel=0.05)
    before = world.speed
    assert world.say() == before  # a process that has not written yet knows nothing
    assert world.say(row_seconds=1e-6) < 1.1 * before  # a quiet moment
    for _ in range(4 * 30):
        world.say(row_seconds=1e-6)
    assert world.speed == pytest.approx(20_000, rel=0.05)


def test_statements_that_wait_do_not_make_a_slow_job_slower() -> None:
    """A row takes 1 us, and all statements of a second wait 10 ms longer than that, however few rows they bring."""
    world = World(None)
    for _ in range(4 * 60):
        world.say({LAG: (0.0, 1.0)}, row_seconds=1e-6 + 0.01 / world.speed)
    assert world.speed >= 5_000
    for _ in range(4 * 10):
        world.say({LAG: (2.0, 1.0)}, row_seconds=1e-6 + 0.01 / world.speed)
    for _ in range(4 * 30):
        world.say({LAG: (0.0, 1.0)}, row_seconds=1e-6 + 0.01 / world.speed)
    assert world.speed >= 5_000


def test_a_server_where_statements_wait_long_does_not_stop_the_job() -> None:
    """They wait for 40 ms of each second, which is more than the job may work."""
    world = World(None)
    for _ in range(4 * 120):
        world.say(row_seconds=1e-6 + 0.04 / world.speed)
    assert world.speed >= 2_000
    for _ in range(4 * 30):
        world.say(row_seconds=1e-6)
    assert world.speed == pytest.approx(20_000, rel=0.05)
    for _ in range(4 * 30):
        world.say(row_seconds=2e-5)
    assert world.speed == pytest.approx(1_000, rel=0.05)
    for _ in range(4 * 40):
        world.say(row_seconds=2e-4)
    assert world.speed == LEAST_ROWS


def test_a_slow_job_follows_the_higher_bound_once_its_sessions_were_seen_at_work() -> None:
    """They show 1.6 times what short statements do, and the bound is 2.75 times as high then."""
    world = World(None)
    for _ in range(4 * 60):
        seen = {"own_sessions": [1.6 * 2e-5 * world.speed] * 5, "wakeup": [0.001] + [0.0] * 19}
        world.say(delays=seen, row_seconds=2e-5)
    assert world.speed == pytest.approx(2.75 / 1.6 * 1_000, rel=0.05)


def test_rows_that_cost_much_still_flow() -> None:
    world = World(None)
    assert world.say(row_seconds=0.5) == LEAST_ROWS


def test_a_user_says_how_much_work_is_fine() -> None:
    world = World(None, bounds={"work": 0.2})
    for _ in range(80):
        world.say(row_seconds=1e-6)
    assert world.speed == pytest.approx(200_000)
    alone = World(100_000, auto=False, bounds={"work": 0.01})
    alone.say(row_seconds=1e-6)
    assert alone.speed == pytest.approx(10_000)
    other = World(100_000, auto=False, bounds={LAG: 2.0})
    other.say(row_seconds=1e-3)
    assert other.speed == 100_000


def test_work_is_not_named_where_something_else_holds_the_speed() -> None:
    slow = World(None, can_do=8_000)
    for _ in range(80):
        slow.say(row_seconds=1e-6)
    limited = World(10_000)
    for _ in range(80):
        limited.say(row_seconds=1e-6)
    assert slow.protection.held_seconds == limited.protection.held_seconds == {}
    assert limited.speed == 10_000
    lagging = World(None)
    for _ in range(80):
        lagging.say({LAG: (0.0, 1.0)}, row_seconds=1e-6)
    lagging.say({LAG: (5.0, 1.0)}, row_seconds=1e-6)
    assert lagging.speed <= 30_000
    assert lagging.protection.holder == "target's replication_lag"


def test_a_cost_that_varies_holds_all_the_time_and_is_told_once() -> None:
    world, holders = World(None), []
    for number in range(400):
        world.say(row_seconds=1e-6 * (1 + 0.03 * (number % 7)))
        holders.append(world.protection.holder)
    begun = holders.index("target's work")
    assert set(holders[begun:]) == {"target's work"}
    assert world.protection.held_seconds["target's work"] > 80


def test_a_side_that_may_do_little_obeys_the_other_signals() -> None:
    """The best speed was twenty times what the job may use now."""
    world = World(None, bounds={"work": 1.0})
    for _ in range(60):
        world.say({LAG: (0.0, 1.0)}, row_seconds=1e-6)
    assert world.speed == pytest.approx(1_000_000)
    for _ in range(4 * 30):
        world.say({LAG: (0.0, 1.0)}, row_seconds=25e-6)
    for seconds in range(1, 21):
        world.say({LAG: (seconds + 1.0, 1.0)}, row_seconds=25e-6, seconds=1.0)
    assert world.speed == pytest.approx(LEAST_PART * 40_000, rel=0.01)


def test_a_job_that_became_slow_is_not_held_by_its_work() -> None:
    world = World(None)
    for _ in range(80):
        world.say({LAG: (0.0, 1.0)}, row_seconds=1e-6)
    for _ in range(4):
        world.say({LAG: (5.0, 1.0)}, row_seconds=1e-6)
    for _ in range(80):
        world.say({LAG: (0.0, 1.0)}, row_seconds=1e-6)
    assert world.protection.holder == "target's work"
    world.can_do = 40
    for _ in range(40):
        world.say({LAG: (0.0, 1.0)}, row_seconds=1e-6)
    assert world.protection.holder == ""
