"""`LeaseLimiter`: what it pays, what it asks, and what it does without an answer."""

import threading
from dataclasses import replace

import pytest

from spark_channel.channel.capacity import Limiter, Payment
from spark_channel.errors import (
    LimitError,
    OptionError,
    ServiceDeniedError,
    ServiceUnavailableError,
)
from spark_channel.limits import (
    Acknowledged,
    Coordinator,
    Grant,
    GrantRequest,
    GrantReturn,
    Heartbeat,
    Join,
    Joined,
    LeaseLimiter,
    Leave,
    LimitChanged,
    Pause,
    Rejected,
    Reply,
    Request,
    RetryLater,
    SetRates,
    Subscribe,
)
from spark_channel.testing import VirtualClock
from tests.limits.conftest import HandClock


def nothing() -> None:
    """Needs no waking: the test looks by itself."""


def limiter(clock: HandClock, timeout: float = 10.0) -> LeaseLimiter:
    return LeaseLimiter("db", "job", "task", clock=clock, timeout=timeout)


def next_request(lease: LeaseLimiter) -> Request:
    request, _ = lease.due()
    assert request is not None
    return request


def grant(number: int = 1, rows: float | None = 100.0, lasts: float = 1.0, **more: float) -> Grant:
    return Grant(
        grant=number,
        rows=None if rows is None else round(rows * lasts),
        nbytes=None,
        rows_per_second=rows,
        bytes_per_second=None,
        starts_in=more.get("starts_in", 0.0),
        lasts=lasts,
        ask_in=more.get("ask_in", lasts / 2),
        use_by=0.0,
        epoch="e",
    )


def joined(answer: Grant | RetryLater) -> Joined:
    return Joined("me", "e", 10.0, answer)


def start(lease: LeaseLimiter, answer: Grant | RetryLater, rows: int = 10) -> Payment:
    """A first payment, and the answer to the Join that it brings."""
    payment = lease.pay(rows, 0, nothing)
    lease.receive(next_request(lease), joined(answer))
    return payment


def test_it_is_a_limiter_and_says_nothing_before_the_first_payment(clock: HandClock) -> None:
    lease: Limiter = limiter(clock)
    assert lease.slice_size() == (1, None)
    assert limiter(clock).due() == (None, None)


def test_the_first_payment_joins_and_is_spent_at_the_pace_of_the_grant(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = lease.pay(10, 0, nothing)
    assert payment.remaining().reason == "share"
    request = next_request(lease)
    assert request == Join("db", "job", "task")
    lease.receive(request, joined(grant()))
    assert payment.remaining().seconds == pytest.approx(0.1)
    assert payment.remaining().reason == "rows"
    assert lease.waiting == "rows"
    clock.at += 0.1
    assert payment.remaining().seconds == 0.0
    assert lease.waiting == ""
    assert lease.slice_size() == (2, None)


def test_payers_are_woken_when_an_answer_comes(clock: HandClock) -> None:
    lease = limiter(clock)
    woken: list[tuple[int | None, int | None]] = []
    lease.pay(10, 0, lambda: woken.append(lease.slice_size()))
    lease.receive(next_request(lease), joined(grant()))
    assert woken == [(2, None)]


def test_it_asks_at_half_and_reports_what_it_spent_and_missed(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = start(lease, grant())
    clock.at += 0.3
    assert payment.remaining().seconds == 0.0
    assert lease.due()[1] == pytest.approx(0.4)
    lease.pay(50, 0, nothing)
    clock.at += 0.2
    ask = next_request(lease)
    assert isinstance(ask, GrantRequest)
    assert (ask.number, ask.grant, ask.waiting) == (1, 1, "rows")
    assert ask.spent_rows == pytest.approx(10 + 2 + 20), (
        "ten, 20 ms of surplus, and 0.2 s of the next"
    )
    assert ask.missed_rows == pytest.approx(0.2 * 100 - 2)


def test_what_flows_while_the_answer_travels_belongs_to_the_next_grant(clock: HandClock) -> None:
    lease = limiter(clock)
    start(lease, grant(), rows=1000)
    clock.at += 0.5
    ask = next_request(lease)
    clock.at += 0.1
    lease.receive(ask, grant(2, rows=50))
    clock.at += 0.5
    second = next_request(lease)
    assert isinstance(second, GrantRequest)
    assert second.grant == 2
    assert second.spent_rows == pytest.approx(0.1 * 100 + 0.5 * 50)


def test_the_time_of_a_grant_counts_from_the_ask(clock: HandClock) -> None:
    lease = limiter(clock)
    fits, too_late = lease.pay(5, 0, nothing), lease.pay(15, 0, nothing)
    request = next_request(lease)
    clock.at += 0.4
    lease.receive(request, joined(grant(lasts=0.5)))
    assert fits.remaining().seconds == pytest.approx(0.05)
    assert too_late.remaining().reason == "grant"
    clock.at += 0.05
    assert fits.remaining().seconds == 0.0
    clock.at += 0.2
    assert too_late.remaining().reason == "grant"


def test_after_an_ask_the_old_grant_is_spent_for_a_second_at_most(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = start(lease, grant(lasts=20), rows=1150)
    clock.at += 10
    next_request(lease)
    clock.at += 0.9
    assert payment.remaining().seconds, "1 150 rows need 11.5 s, and the grant was cut at 11 s"
    clock.at += 5
    assert payment.remaining().seconds


def test_when_a_grant_ends_what_was_saved_up_is_void(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = start(lease, grant(lasts=0.12, ask_in=0.2))
    clock.at += 0.1
    assert payment.remaining().seconds == 0.0
    clock.at += 0.05
    late = lease.pay(2, 0, nothing)
    assert late.remaining().reason == "grant", "two rows had been saved up when the grant ended"


def test_what_arrived_for_a_payment_in_line_stays_its_own(clock: HandClock) -> None:
    """A payment that was cut under a higher limit is paid from several small grants."""
    lease = limiter(clock)
    payment = start(lease, grant(lasts=0.5), rows=100)
    clock.at += 0.6
    lease.receive(next_request(lease), grant(2, lasts=2))
    assert payment.remaining().seconds == pytest.approx(0.5)


def test_a_row_larger_than_a_grant_is_paid_from_several(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = start(lease, grant(rows=0.4), rows=1)
    for number in range(2, 9):
        clock.at += 0.5
        if payment.remaining().seconds == 0.0:
            break
        lease.receive(next_request(lease), grant(number, rows=0.4))
    assert clock.at == pytest.approx(2.5)


def test_hold_keeps_the_old_grant_and_drop_ends_it(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = start(lease, grant(), rows=60)
    clock.at += 0.5
    lease.receive(next_request(lease), RetryLater("turn", 0.05))
    assert payment.remaining().seconds == pytest.approx(0.1)
    clock.at += 0.05
    lease.receive(next_request(lease), RetryLater("paused", 1.0, drop=True))
    clock.at += 0.1
    assert payment.remaining().reason == "paused"
    assert lease.due()[1] == pytest.approx(1.55)


def test_a_grant_with_nothing_to_spend_goes_back(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = start(lease, grant(lasts=10))
    clock.at += 0.1
    assert payment.remaining().seconds == 0.0
    clock.at += 0.05
    assert lease.due()[1] == pytest.approx(0.2)
    clock.at += 0.05
    back = next_request(lease)
    assert isinstance(back, GrantReturn)
    assert (back.grant, back.number) == (1, 1)
    assert back.spent_rows == pytest.approx(10)
    assert back.missed_rows == pytest.approx(10)
    late = lease.pay(1, 0, nothing)
    clock.at += 1
    assert late.remaining().reason == "share", "what was given back is not spent"
    lease.receive(back, Acknowledged(10.0))
    assert isinstance(next_request(lease), GrantRequest)


def test_an_idle_client_sends_heartbeats_alone(clock: HandClock) -> None:
    lease = limiter(clock)
    start(lease, RetryLater("turn", 0.1)).cancel()
    clock.at += 0.1
    assert lease.due()[1] == pytest.approx(10.0)
    clock.at = 10.0
    beat = next_request(lease)
    assert isinstance(beat, Heartbeat)
    lease.receive(beat, Acknowledged(30.0))
    assert lease.due()[1] == pytest.approx(40.0)


def test_a_forgotten_client_joins_again_by_itself(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = start(lease, grant(), rows=100)
    clock.at += 0.5
    lease.receive(next_request(lease), Rejected("restarted", rejoin=True))
    clock.at += 0.3
    assert payment.remaining().seconds == 10.0, "a grant of the old coordinator is void"
    again = next_request(lease)
    assert isinstance(again, Join)
    lease.receive(again, joined(grant(7)))
    assert payment.remaining().seconds == pytest.approx(0.5)


@pytest.mark.parametrize(
    "reply", [Rejected("wrong token"), Acknowledged(1.0), RetryLater("turn", 1.0)]
)
def test_a_refusal_fails_every_payment(clock: HandClock, reply: Reply) -> None:
    lease = limiter(clock)
    payment = lease.pay(10, 0, nothing)
    lease.receive(next_request(lease), reply)
    if isinstance(reply, Rejected):
        with pytest.raises(ServiceDeniedError, match="wrong token"):
            payment.remaining()
    else:
        assert payment.remaining().seconds
    assert lease.pay(1, 0, nothing).remaining is not None


def test_silence_is_retried_with_a_growing_pause_and_then_fails_the_work(clock: HandClock) -> None:
    lease = limiter(clock)
    woken: list[float] = []
    payment = lease.pay(10, 0, lambda: woken.append(clock.at))
    pauses = []
    while not woken:
        request, at = lease.due()
        if request is None:
            assert at is not None
            pauses.append(round(at - clock.at, 3))
            clock.at = at
            continue
        clock.at += 0.25
        lease.failed(request, ServiceUnavailableError("connection refused"))
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(pauses) <= 2.0
    assert woken[0] == pytest.approx(10, abs=2.5)
    with pytest.raises(
        ServiceUnavailableError, match=r"connection refused\. The work stops rather"
    ):
        payment.remaining()


def test_when_the_service_is_lost_the_grant_is_spent_first(clock: HandClock) -> None:
    lease = limiter(clock, timeout=0.2)
    first = start(lease, grant(), rows=90)
    clock.at += 0.5
    request = next_request(lease)
    clock.at += 0.3
    lease.failed(request, ServiceUnavailableError("gone"))
    clock.at += 0.1
    assert first.remaining().seconds == 0.0
    second = lease.pay(90, 0, nothing)
    clock.at += 1
    with pytest.raises(ServiceUnavailableError):
        second.remaining()


def test_a_messenger_that_hangs_or_is_dead_does_not_block_payers_for_ever(clock: HandClock) -> None:
    hangs, dead = limiter(clock), limiter(clock)
    waiting = [hangs.pay(1, 0, nothing), dead.pay(1, 0, nothing)]
    next_request(hangs)
    for payment in waiting:
        assert payment.remaining().seconds == 10.0
    clock.at += 10
    for payment in waiting:
        with pytest.raises(ServiceUnavailableError):
            payment.remaining()


def test_fail_reaches_every_payer(clock: HandClock) -> None:
    lease = limiter(clock)
    woken: list[int] = []
    payment = lease.pay(1, 0, lambda: woken.append(1))
    lease.fail(LimitError("the service's thread ended"))
    assert woken == [1]
    with pytest.raises(LimitError, match="thread ended"):
        payment.remaining()


def test_an_answer_that_nobody_waits_for_is_ignored(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = lease.pay(10, 0, nothing)
    request = next_request(lease)
    lease.failed(request, ServiceUnavailableError("timed out"))
    lease.receive(request, joined(grant()))
    clock.at += 0.02
    assert payment.remaining().seconds == 10.0
    lease.failed(request, ServiceUnavailableError("again"))


def test_closing_leaves_and_then_there_is_nothing_more_to_say(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = start(lease, grant())
    clock.at += 0.1
    assert payment.remaining().seconds == 0.0
    lease.close()
    leave = lease.next_request()
    assert isinstance(leave, Leave)
    assert leave.grant == 1
    assert leave.spent_rows == pytest.approx(10)
    lease.receive(leave, Acknowledged(10.0))
    assert lease.next_request() is None
    unused = limiter(clock)
    unused.close()
    assert unused.next_request() is None


def test_payments_go_in_order_and_cancel_moves_the_rest_up(clock: HandClock) -> None:
    lease = limiter(clock)
    first = start(lease, grant())
    gone, last = lease.pay(50, 0, nothing), lease.pay(10, 0, nothing)
    assert last.remaining().seconds == pytest.approx(0.7)
    gone.cancel()
    gone.cancel()
    assert last.remaining().seconds == pytest.approx(0.2)
    clock.at += 0.1
    assert first.remaining().seconds == 0.0
    first.cancel()
    assert last.remaining().seconds == pytest.approx(0.1)


def test_an_unlimited_dimension_never_waits(clock: HandClock) -> None:
    lease = limiter(clock)
    payment = start(lease, grant(rows=None))
    assert payment.remaining().seconds == 0.0
    assert lease.pay(10**9, 10**12, nothing).remaining().seconds == 0.0
    assert lease.slice_size() == (None, None)


@pytest.mark.parametrize(("rows", "nbytes"), [(-1, 0), (0, -1)])
def test_a_negative_payment_is_refused(clock: HandClock, rows: int, nbytes: int) -> None:
    with pytest.raises(OptionError):
        limiter(clock).pay(rows, nbytes, nothing)


def test_a_thread_carries_messages_and_another_pays() -> None:
    """As the service's client does it, with a real thread on a virtual clock."""
    clock = VirtualClock()
    coordinator = Coordinator("db", 1000, clock=clock)
    lease = LeaseLimiter("db", "job", clock=clock)
    said: list[str] = []

    def carry() -> None:
        while (request := lease.next_request()) is not None:
            said.append(type(request).__name__)
            lease.receive(request, coordinator.handle(request))

    thread = threading.Thread(target=carry)
    thread.start()
    clock.wait_until_blocked(thread)
    paid = 0
    while clock.now() < 3:
        payment = lease.pay(20, 0, nothing)
        clock.wait_until_blocked(thread)
        while payment.remaining().seconds:
            clock.advance(0.005)
            clock.wait_until_blocked(thread)
        paid += 20
    coordinator.handle(SetRates("db", 500))
    coordinator.handle(Pause("db"))
    lease.close()
    thread.join(10)
    assert not thread.is_alive()
    assert paid == pytest.approx(3000, rel=0.03)
    assert said[0] == "Join"
    assert said[-1] == "Leave"
    assert said.count("GrantRequest") == len(said) - 2


HEARD = Subscribe("db", "id", "epoch")


def seldom(clock: HandClock) -> LeaseLimiter:
    """A client that asks each 4 s."""
    lease = limiter(clock)
    lease.pay(1_000_000, 0, nothing)
    join = next_request(lease)
    lease.receive(join, Joined("id", "epoch", 10.0, grant(lasts=8.0)))
    return lease


def test_who_asks_often_does_not_listen() -> None:
    lease = limiter(HandClock())
    assert lease.listen() is None
    lease.pay(1_000_000, 0, nothing)
    lease.receive(next_request(lease), Joined("id", "epoch", 10.0, grant(lasts=1.0)))
    assert lease.listen() is None


@pytest.mark.parametrize(
    "answer",
    [RetryLater("turn", 0.06), replace(grant(rows=100.0, lasts=0.1), limit_rows_per_second=1000.0)],
    ids=["none", "a part"],
)
def test_who_could_use_more_of_the_limit_asks_when_it_is_called(answer: Grant | RetryLater) -> None:
    clock = HandClock()
    lease = limiter(clock)
    lease.pay(1_000_000, 0, nothing)
    lease.receive(next_request(lease), Joined("id", "epoch", 10.0, answer))
    assert lease.listen() == Subscribe("db", "id", "epoch", -1, 0)
    assert lease.due()[0] is None
    lease.limit_changed(HEARD, LimitChanged(-1, calls=1))
    assert isinstance(next_request(lease), GrantRequest)
    assert lease.listen() == Subscribe("db", "id", "epoch", -1, 1)


def test_a_call_during_an_ask_brings_another_one() -> None:
    """The answer on its way may have been made before."""
    lease = limiter(HandClock())
    lease.pay(1_000_000, 0, nothing)
    lease.receive(next_request(lease), Joined("id", "epoch", 10.0, RetryLater("turn", 0.0)))
    under_way = next_request(lease)
    lease.limit_changed(HEARD, LimitChanged(-1, calls=1))
    lease.receive(under_way, RetryLater("turn", 0.06))
    assert isinstance(lease.due()[0], GrantRequest)
    lease.limit_changed(HEARD, LimitChanged(-1, calls=1))
    assert lease.due()[0] is None, "heard already"


def test_what_was_saved_goes_through_at_once() -> None:
    clock = HandClock()
    lease = limiter(clock)
    payment = start(lease, replace(grant(rows=1000.0), saved_rows=20.0), rows=30)
    assert payment.remaining().seconds == pytest.approx(0.01)
    clock.at += 0.01
    assert payment.remaining().seconds == 0
    clock.at += 1.0
    lease.close()
    leave = next_request(lease)
    assert isinstance(leave, Leave)
    assert (leave.spent_rows, round(leave.missed_rows)) == (30, 970), (
        "what is kept for 20 ms is neither"
    )


def test_no_more_is_saved_than_a_grant_keeps() -> None:
    lease = limiter(HandClock())
    payment = start(lease, replace(grant(rows=1000.0), saved_rows=500.0), rows=30)
    assert payment.remaining().seconds == pytest.approx(0.0)
    assert lease.pay(30, 0, nothing).remaining().seconds == pytest.approx(0.01), "20 were kept"


def test_who_asks_seldom_hears_of_a_change_and_asks_at_once() -> None:
    clock = HandClock()
    lease = seldom(clock)
    assert lease.listen() == Subscribe("db", "id", "epoch", -1)
    lease.limit_changed(HEARD, LimitChanged(7))
    assert lease.listen() == Subscribe("db", "id", "epoch", 7)
    clock.at += 0.5
    request = next_request(lease)
    assert isinstance(request, GrantRequest)
    lease.receive(request, grant(2, lasts=8.0))
    lease.limit_changed(HEARD, LimitChanged(7))
    clock.at += 0.5
    assert lease.due()[0] is None, "nothing new was heard"


def test_who_waits_long_for_a_turn_hears_of_a_change_too() -> None:
    clock = HandClock()
    lease = limiter(clock)
    lease.pay(1, 0, nothing)
    lease.receive(next_request(lease), Joined("id", "epoch", 10.0, RetryLater("turn", 4.0)))
    assert lease.listen() == Subscribe("db", "id", "epoch", -1)
    lease.limit_changed(HEARD, LimitChanged(7))
    clock.at += 0.5
    lease.receive(next_request(lease), replace(grant(1, rows=1000.0), limit_rows_per_second=1000.0))
    assert lease.listen() is None, "it asks often now, and has all of the limit"


def test_news_during_an_ask_brings_another_one() -> None:
    clock = HandClock()
    lease = seldom(clock)
    clock.at += 4.0
    request = next_request(lease)
    lease.limit_changed(HEARD, LimitChanged(1))
    assert lease.due()[0] is None
    lease.receive(request, grant(2, lasts=8.0))
    clock.at += 0.5
    assert isinstance(next_request(lease), GrantRequest)


def part_of(limit: float, number: int = 1, version: int = 0) -> Grant:
    """100 rows/s, a part of `limit`, for 8 s."""
    return replace(grant(number, lasts=8.0), version=version, limit_rows_per_second=limit)


def holder(clock: HandClock, answer: Grant | RetryLater) -> tuple[LeaseLimiter, list[str]]:
    """A client with `answer` to its first payment, and how often payers were woken."""
    lease, woken = limiter(clock), []
    lease.pay(1_000_000, 0, lambda: woken.append("woken"))
    lease.receive(next_request(lease), Joined("id", "epoch", 10.0, answer, version=0))
    woken.clear()
    return lease, woken


def test_a_grant_is_the_same_part_of_a_changed_limit_at_once() -> None:
    clock = HandClock()
    lease, woken = holder(clock, part_of(1000))
    clock.at += 1.0
    lease.limit_changed(HEARD, LimitChanged(1, 500, ask_within=2.5))
    assert (lease.rows_per_second, woken) == (50, ["woken"])
    clock.at += 1.0
    lease.limit_changed(HEARD, LimitChanged(2, 3000, ask_within=2.5))
    assert (lease.rows_per_second, woken) == (300, ["woken", "woken"])
    assert lease.slice_size()[0] == 6
    clock.at += 1.0
    ask = sent_at(lease, clock, 5.5)
    assert isinstance(ask, GrantRequest)
    expected = 100 + 50 + 300 * (clock.at - 2.0)
    assert ask.spent_rows == pytest.approx(expected)


def sent_at(lease: LeaseLimiter, clock: HandClock, latest: float) -> Request:
    """The next request, when it is due."""
    request, at = lease.due()
    while request is None:
        assert at is not None
        assert at <= latest
        clock.at = at
        request, at = lease.due()
    return request


def test_no_more_than_the_grant_was_worth_is_reported() -> None:
    clock = HandClock()
    lease, _ = holder(clock, part_of(1000))
    lease.limit_changed(HEARD, LimitChanged(1, 1100.9))
    clock.at += 9.0
    ask = next_request(lease)
    assert isinstance(ask, GrantRequest)
    assert ask.spent_rows <= 880


def test_old_news_and_news_of_another_life_change_nothing() -> None:
    clock = HandClock()
    lease, woken = holder(clock, part_of(1000))
    lease.limit_changed(HEARD, LimitChanged(2, 500))
    lease.limit_changed(HEARD, LimitChanged(1, 5000))
    lease.limit_changed(Subscribe("db", "id", "another epoch"), LimitChanged(3, 5000))
    lease.limit_changed(Subscribe("db", "another id", "epoch"), LimitChanged(3, 5000))
    assert (lease.rows_per_second, woken) == (50, ["woken"])


def test_a_grant_made_after_the_news_is_as_it_is_and_one_made_before_follows_them() -> None:
    clock = HandClock()
    lease, _ = holder(clock, part_of(1000))
    clock.at += 4.0
    request = next_request(lease)
    lease.limit_changed(HEARD, LimitChanged(1, 500))
    lease.receive(request, part_of(1000, 2))
    assert lease.rows_per_second == 50
    request = sent_at(lease, clock, 8.0)
    lease.receive(request, part_of(500, 3, version=1))
    assert lease.rows_per_second == 100


def test_a_pause_stops_a_grant_and_its_end_lets_it_flow_again() -> None:
    clock = HandClock()
    lease, woken = holder(clock, part_of(1000))
    lease.limit_changed(HEARD, LimitChanged(1, 0.0, 0.0, "paused"))
    assert (lease.rows_per_second, lease.waiting) == (0, "paused")
    clock.at += 1.0
    assert lease.due()[0] is None, "it would hear nothing new"
    lease.limit_changed(HEARD, LimitChanged(2, 2000))
    assert (lease.rows_per_second, lease.waiting) == (200, "grant")
    assert woken == ["woken", "woken"]
    clock.at += 1.0
    ask = next_request(lease)
    assert isinstance(ask, GrantRequest)
    assert ask.spent_rows == pytest.approx(200)


def test_who_has_no_part_of_a_changed_limit_asks_in_a_moment() -> None:
    clock = HandClock()
    for answer, news in (
        (RetryLater("turn", 4.0), LimitChanged(1, 500, ask_within=9.0)),
        (part_of(1000), LimitChanged(1, None, ask_within=9.0)),
        (grant(rows=None, lasts=8.0), LimitChanged(1, 500, ask_within=9.0)),
    ):
        lease, woken = holder(clock, answer)
        pace = lease.rows_per_second
        lease.limit_changed(HEARD, news)
        assert (lease.rows_per_second, woken) == (pace, [])
        assert isinstance(sent_at(lease, clock, clock.at + 0.4), GrantRequest)


def test_who_is_refused_as_a_listener_asks_in_a_moment_what_it_means() -> None:
    clock = HandClock()
    lease, _ = holder(clock, part_of(1000))
    lease.limit_changed(Subscribe("db", "another id", "epoch"), Rejected("it left"))
    clock.at += 1.0
    assert lease.due()[0] is None
    lease.limit_changed(HEARD, Rejected("no limit is called db"))
    assert isinstance(sent_at(lease, clock, clock.at + 0.4), GrantRequest)


def test_nobody_listens_after_the_end() -> None:
    lease = seldom(HandClock())
    lease.close()
    assert lease.listen() is None


def test_a_failure_leaves_no_request_in_flight() -> None:
    clock = HandClock()
    lease = seldom(clock)
    clock.at += 4.0
    request = next_request(lease)
    lease.fail(LimitError("messages are not carried"))
    lease.receive(request, grant(2))
    assert lease.due() == (None, None)
    assert lease.next_request() is None
