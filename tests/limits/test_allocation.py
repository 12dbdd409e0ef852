"""Clients that are cut off keep their share of the limit, and the coordinator sets it aside for them."""

from bisect import bisect_left

import pytest

from spark_channel.errors import LimitError, ServiceUnavailableError
from spark_channel.limits import (
    Coordinator,
    Join,
    Joined,
    LeaseLimiter,
    LimitStatus,
    Pause,
    Rejected,
    Reply,
    Request,
    SetRates,
    StaticShare,
    StatusRequest,
)
from tests.limits.conftest import HandClock

AWAY = ServiceUnavailableError("no answer")
STEP = 0.02


class Cut:
    """Clients of one coordinator on a clock that is moved by hand; each one's link may be cut."""

    def __init__(
        self, tasks: int, rate: int = 1_000, *, at_once: bool = False, static: bool = True
    ) -> None:
        self.clock = HandClock()
        self.said: list[str] = []
        self.coordinator = Coordinator(
            "l",
            rate,
            clock=self.clock,
            static_tasks=tasks if static else None,
            at_once=at_once,
            on_absent=self.said.append,
        )
        self.tasks, self.rate, self.static = tasks, rate, static
        self.limiters: list[LeaseLimiter] = []
        self.cut: set[int] = set()
        self.passed: list[list[float]] = []
        self._pays: list[object] = []

    def begin(self, name: str = "", *, begins_static: bool = False) -> int:
        share = StaticShare(self.rate, None, self.tasks) if self.static else None
        limiter = LeaseLimiter(
            "l",
            "job",
            name or f"group {len(self.limiters)}",
            clock=self.clock,
            static=share,
            begins_static=begins_static,
        )
        self.limiters.append(limiter)
        self.passed.append([])
        self._pays.append(limiter.pay(1, 0, lambda: None))
        return len(self.limiters) - 1

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            for number, limiter in enumerate(self.limiters):
                self._carry(number, limiter)
                self._spend(number, limiter)
            self.clock.sleep(STEP)

    def _carry(self, number: int, limiter: LeaseLimiter) -> None:
        for _ in range(3):
            request, _ = limiter.due()
            if request is None:
                return
            if number in self.cut:
                limiter.failed(request, AWAY)
            else:
                limiter.receive(request, self._answer(request))

    def _answer(self, request: Request) -> Reply:
        from spark_channel.errors import RejoinError

        try:
            return self.coordinator.handle(request)
        except RejoinError as error:
            return Rejected(str(error), rejoin=True)

    def _spend(self, number: int, limiter: LeaseLimiter) -> None:
        while not self._pays[number].remaining().seconds:  # type: ignore[attr-defined] # a part of this kind
            self.passed[number].append(self.clock.now())
            self._pays[number] = limiter.pay(1, 0, lambda: None)

    def rows(self, since: float, until: float) -> int:
        return sum(since <= at < until for times in self.passed for at in times)

    def worst(self, seconds: float, since: float = 0.0) -> int:
        """The most rows in any window of that length."""
        times = sorted(at for each in self.passed for at in each if at >= since)
        return max(
            (bisect_left(times, at + seconds) - number for number, at in enumerate(times)),
            default=0,
        )


def test_a_share_is_rounded_down_so_that_all_of_them_are_the_limit_at_most() -> None:
    assert StaticShare(1_000, None, 3).paces == (333.333333, None)
    assert StaticShare(7, 10, 16).paces == (0.4375, 0.625)
    assert sum([StaticShare(1_000, None, 7).paces[0] or 0] * 7) <= 1_000


def test_where_no_task_reaches_the_coordinator_they_keep_the_limit_within_5_s() -> None:
    world = Cut(4)
    for _ in range(4):
        world.cut.add(world.begin())
    start = world.clock.now()
    world.run(30.0)
    assert all(limiter.is_static for limiter in world.limiters)
    first = min(at for times in world.passed for at in times)
    assert first - start <= 4.5
    assert world.worst(1.0) <= 1_050
    assert world.rows(start + 5, start + 30) >= 0.98 * 25 * 1_000
    assert world.limiters[0].pay(1_000, 0, lambda: None).remaining().reason == "static"


def test_a_task_beside_one_that_found_out_begins_at_once() -> None:
    world = Cut(4)
    world.cut.add(world.begin(begins_static=True))
    world.run(1.0)
    assert 200 <= len(world.passed[0]) <= 255


def test_without_a_share_the_work_stops_as_it_did() -> None:
    world = Cut(1, static=False)
    world.cut.add(world.begin())
    with pytest.raises(LimitError, match="rather than run unlimited"):
        world.run(12.0)


@pytest.mark.parametrize("away", [1, 2, 3])
def test_tasks_that_are_cut_off_and_those_that_are_not_keep_the_limit_together(away: int) -> None:
    world = Cut(4)
    for _ in range(4):
        world.begin()
    world.run(5.0)
    world.cut |= set(range(away))
    cut = world.clock.now()
    world.run(60.0)
    assert [limiter.is_static for limiter in world.limiters] == [n < away for n in range(4)]
    assert world.worst(1.0) <= 1_050
    assert world.rows(cut + 15, cut + 60) >= 0.9 * 45 * 1_000
    assert world.said[-1].startswith(f"static limit: {away} task")
    world.cut.clear()
    back = world.clock.now()
    world.run(30.0)
    assert not any(limiter.is_static for limiter in world.limiters)
    assert world.worst(1.0, back) <= 1_050
    assert world.rows(back + 10, back + 30) >= 0.97 * 20 * 1_000
    assert world.said[-1] == ""


def test_a_cut_of_5_s_needs_no_share() -> None:
    world = Cut(2)
    world.begin()
    world.begin()
    world.run(5.0)
    world.cut = {0}
    world.run(5.0)
    assert not world.limiters[0].is_static
    world.cut.clear()
    world.run(5.0)
    assert world.said == []
    assert world.worst(1.0) <= 1_050


@pytest.mark.parametrize("away", [1, 3])
def test_where_all_run_at_once_those_that_never_joined_are_counted_too(away: int) -> None:
    world = Cut(4, at_once=True)
    for number in range(4):
        world.begin()
        if number < away:
            world.cut.add(number)
    world.run(40.0)
    assert world.worst(1.0) <= 1_050
    assert world.rows(10, 40) >= 0.97 * 30 * 1_000


def test_all_that_run_at_once_and_join_have_the_whole_limit() -> None:
    world = Cut(4, at_once=True)
    for _ in range(4):
        world.begin()
    world.run(20.0)
    assert world.said == []
    assert world.rows(1, 20) >= 0.97 * 19 * 1_000


def test_the_next_attempt_of_a_killed_task_has_its_share_back() -> None:
    world = Cut(2)
    world.begin("group 0")
    world.begin("group 1")
    world.run(3.0)
    killed = world.limiters.pop(0), world.passed.pop(0), world._pays.pop(0)
    world.run(15.0)
    assert world.said[-1] != ""
    del killed
    world.begin("group 0")
    world.run(1.0)
    assert world.said[-1] == ""
    since = world.clock.now()
    world.run(10.0)
    assert world.rows(since, since + 10) >= 0.97 * 10_000


def test_nothing_is_set_aside_for_a_killed_task_that_began_again_before_it_was_missed() -> None:
    world = Cut(2)
    world.begin("group 0")
    world.begin("group 1")
    world.run(3.0)
    del world.limiters[0], world.passed[0], world._pays[0]
    world.run(2.0)
    world.begin("group 0")
    since = world.clock.now()
    world.run(20.0)
    assert world.said == []
    assert world.rows(since + 1, since + 20) >= 0.97 * 19_000


def test_a_paused_limit_is_not_spent_by_one_that_is_cut_off() -> None:
    world = Cut(2)
    world.begin()
    world.run(2.0)
    world.coordinator.handle(Pause("l"))
    world.run(2.0)
    world.cut = {0}
    before = len(world.passed[0])
    with pytest.raises(ServiceUnavailableError):
        world.run(15.0)
    assert len(world.passed[0]) == before


def test_a_limit_that_was_lowered_is_lower_for_those_that_are_cut_off() -> None:
    world = Cut(2)
    world.begin()
    world.begin()
    world.run(2.0)
    world.coordinator.handle(SetRates("l", 100))
    world.run(3.0)
    world.cut = {0, 1}
    world.run(12.0)
    since = world.clock.now()
    world.run(20.0)
    assert all(limiter.is_static for limiter in world.limiters)
    assert 0.9 * 2_000 <= world.rows(since, since + 20) <= 2_010


def test_status_says_who_is_out_of_reach() -> None:
    world = Cut(2)
    world.begin()
    world.begin()
    world.run(2.0)
    world.cut = {0}
    world.run(15.0)
    status = world.coordinator.handle(StatusRequest("l"))
    assert isinstance(status, LimitStatus)
    assert "1 task out of reach" in str(status)


def test_an_answer_that_comes_after_the_client_gave_up_changes_nothing() -> None:
    clock = HandClock()
    coordinator = Coordinator("l", 100, clock=clock, static_tasks=2)
    limiter = LeaseLimiter("l", "job", clock=clock, static=StaticShare(100, None, 2))
    payment = limiter.pay(1, 0, lambda: None)
    request, _ = limiter.due()
    assert isinstance(request, Join)
    clock.sleep(5.0)
    payment.remaining()
    assert limiter.is_static
    late = coordinator.handle(request)
    assert isinstance(late, Joined)
    limiter.receive(request, late)
    assert limiter.is_static
    again, _ = limiter.due()
    assert isinstance(again, Join)
    joined = coordinator.handle(again)
    limiter.receive(again, joined)
    assert isinstance(joined, Joined)
    assert not LeaseLimiter.is_static.fget(limiter)  # type: ignore[attr-defined] # mypy remembers it as true
