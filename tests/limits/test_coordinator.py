"""The coordinator, request by request."""

import itertools
import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from spark_channel.errors import OptionError, RejoinError, ServiceDeniedError
from spark_channel.limits import (
    Acknowledged,
    ClientStatus,
    Coordinator,
    Grant,
    GrantRequest,
    GrantReturn,
    Heartbeat,
    Join,
    Joined,
    Leave,
    LimitChanged,
    LimitStatus,
    Pause,
    Rejected,
    Request,
    Resume,
    RetryLater,
    SetRates,
    StatusRequest,
    Subscribe,
    decode_reply,
    decode_request,
    encode,
    grants,
)
from spark_channel.limits.grants import HORIZON
from tests.limits.conftest import HandClock
from tests.limits.world import World


def coordinator(clock: HandClock, rows: float | None = 1000, **more: Any) -> Coordinator:
    ids = itertools.count()
    return Coordinator("db", rows, clock=clock, new_id=lambda: f"id-{next(ids)}", **more)


def join(limit: Coordinator, job: str = "job") -> Joined:
    joined = limit.handle(Join("db", job, "task"))
    assert isinstance(joined, Joined)
    return joined


def ask(
    limit: Coordinator, who: Joined, number: int, grant: int = 0, rows: float = 0.0
) -> Grant | RetryLater:
    answer = limit.handle(GrantRequest("db", who.client, who.epoch, number, grant, spent_rows=rows))
    assert isinstance(answer, (Grant, RetryLater))
    return answer


def granted(answer: object) -> Grant:
    assert isinstance(answer, Grant)
    return answer


def status(limit: Coordinator) -> LimitStatus:
    answer = limit.handle(StatusRequest("db"))
    assert isinstance(answer, LimitStatus)
    return answer


def test_the_first_client_gets_the_whole_limit_as_an_amount_with_an_end(clock: HandClock) -> None:
    grant = granted(join(coordinator(clock)).answer)
    assert grant.rows_per_second == 1000
    assert grant.rows == grant.lasts * 1000
    assert (grant.nbytes, grant.bytes_per_second) == (None, None)
    assert grant.ask_in == grant.lasts / 2
    assert grant.use_by == clock.now() + grant.lasts


def test_a_second_client_waits_until_the_first_was_heard_to_have_less(clock: HandClock) -> None:
    limit = coordinator(clock)
    first = join(limit)
    held = granted(first.answer)
    second = join(limit)
    assert isinstance(second.answer, RetryLater)
    assert second.answer.reason == "share"
    clock.at += 0.05
    halved = granted(ask(limit, first, 1, held.grant, rows=20.0))
    assert halved.rows_per_second == 500
    assert isinstance(ask(limit, second, 1), RetryLater), (
        "the first may not have heard yet, and still spend 1000"
    )
    ask(limit, first, 2, halved.grant, rows=1.0)
    assert granted(ask(limit, second, 2)).rows_per_second == 500


def _waits(tasks: int, rate: int, **worker: float) -> dict[str, float]:
    """What payments of so many tasks wait for within 5 s, in seconds of all tasks together."""
    world = World(rate)
    workers = [world.worker(start=number / 100, **worker) for number in range(tasks)]
    world.run(5.0)
    reasons = {reason for worker in workers for reason in worker.waits}
    return {reason: sum(each.waits.get(reason, 0.0) for each in workers) for reason in reasons}


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_under_a_limit_that_is_never_reached_a_task_waits_for_its_first_share_alone(
    tasks: int,
) -> None:
    waits = _waits(tasks, 100_000_000, speed=500_000)
    assert waits.keys() == {"share"}
    assert waits["share"] < tasks * HORIZON / 4


@pytest.mark.parametrize(("tasks", "rate"), [(1, 20_000), (8, 20_000), (8, 100), (30, 100)])
def test_what_tasks_wait_for_a_limit_that_is_used_is_no_wait_for_a_share(
    tasks: int, rate: int
) -> None:
    waits = _waits(tasks, rate)
    share = waits.pop("share")
    assert share < tasks * HORIZON / 4
    assert sum(waits.values()) > 3 * tasks


def test_when_an_answer_is_lost_the_old_grant_counts_until_it_ends(clock: HandClock) -> None:
    limit = coordinator(clock)
    first = join(limit)
    held = granted(first.answer)
    second = join(limit)
    clock.at += 0.05
    offered = granted(ask(limit, first, 1, held.grant))
    assert offered.rows_per_second == 500
    assert status(limit).granted_rows_per_second == 1000
    assert isinstance(ask(limit, second, 1), RetryLater)
    clock.at = held.use_by - 1e-6
    assert isinstance(ask(limit, second, 2), RetryLater)
    clock.at = held.use_by
    assert status(limit).granted_rows_per_second == 500
    assert granted(ask(limit, second, 3)).rows_per_second == 500


def test_a_repeated_ask_gets_the_same_answer_and_issues_nothing(clock: HandClock) -> None:
    limit = coordinator(clock)
    client = join(limit)
    grant = granted(ask(limit, client, 1, granted(client.answer).grant))
    issued = status(limit).issued_rows
    assert ask(limit, client, 1, granted(client.answer).grant) == grant
    assert status(limit).issued_rows == issued


def test_an_ask_that_comes_late_is_refused(clock: HandClock) -> None:
    limit = coordinator(clock)
    client = join(limit)
    ask(limit, client, 2, granted(client.answer).grant)
    with pytest.raises(ServiceDeniedError, match="request 1 came after 2"):
        ask(limit, client, 1, granted(client.answer).grant)


def test_what_a_client_leaves_is_free_at_once(clock: HandClock) -> None:
    limit = coordinator(clock)
    first = join(limit)
    held = granted(first.answer)
    second = join(limit)
    limit.handle(Leave("db", first.client, first.epoch, held.grant, spent_rows=10.0))
    assert granted(ask(limit, second, 1)).rows_per_second == 1000
    now = status(limit)
    assert (now.spent_rows, now.returned_rows) == (10.0, held.rows - 10.0 if held.rows else 0)


def test_a_returned_grant_is_free_at_once_and_its_client_stays(clock: HandClock) -> None:
    limit = coordinator(clock)
    first = join(limit)
    second = join(limit)
    done = limit.handle(
        GrantReturn("db", first.client, first.epoch, 1, granted(first.answer).grant)
    )
    assert isinstance(done, Acknowledged)
    assert granted(ask(limit, second, 1)).rows_per_second == 1000
    assert status(limit).client_count == 2


def test_a_crashed_client_is_void_at_its_end_and_forgotten_later(clock: HandClock) -> None:
    limit = coordinator(clock)
    held = granted(join(limit).answer)
    clock.at += held.lasts
    now = status(limit)
    assert (now.granted_rows_per_second, now.void_rows, now.client_count) == (0, held.rows, 1)
    clock.at += 60
    assert status(limit).client_count == 0
    assert status(limit).jobs == 0


def test_a_forgotten_client_is_told_to_join_again(clock: HandClock) -> None:
    limit = coordinator(clock)
    client = join(limit)
    clock.at += 60
    with pytest.raises(RejoinError):
        ask(limit, client, 1)


def test_heartbeats_keep_a_silent_client_and_say_why_it_waits(clock: HandClock) -> None:
    limit = coordinator(clock)
    client = join(limit)
    for _ in range(20):
        clock.at += client.heartbeat_in
        limit.handle(Heartbeat("db", client.client, client.epoch, "source"))
    (shown,) = status(limit).clients
    assert (shown.name, shown.job, shown.waiting) == ("task", "job", "source")


def test_pause_holds_everybody_and_drops_what_they_have(clock: HandClock) -> None:
    limit = coordinator(clock)
    client = join(limit)
    paused = limit.handle(Pause("db"))
    assert isinstance(paused, LimitStatus)
    assert (paused.paused, paused.effective_rows_per_second) == (True, 0.0)
    answer = ask(limit, client, 1, granted(client.answer).grant)
    assert answer == RetryLater("paused", HORIZON / 2, drop=True)
    limit.handle(Resume("db"))
    assert granted(ask(limit, client, 2, granted(client.answer).grant)).rows_per_second == 1000


def test_a_lowered_limit_is_in_the_next_answer(clock: HandClock) -> None:
    limit = coordinator(clock)
    client = join(limit)
    limit.handle(SetRates("db", 100))
    lower = granted(ask(limit, client, 1, granted(client.answer).grant))
    assert lower.rows_per_second == 100
    limit.handle(SetRates("db", 400, 4000))
    higher = granted(ask(limit, client, 2, lower.grant))
    assert (higher.rows_per_second, higher.bytes_per_second) == (400, 4000)
    limit.handle(SetRates("db"))
    free = granted(ask(limit, client, 3, higher.grant))
    assert (free.rows, free.nbytes) == (None, None)


def test_pressure_scales_the_limit_and_is_shown(clock: HandClock) -> None:
    limit = coordinator(clock)
    client = join(limit)
    limit.press(0.25, "pressed: lag 40, threshold 30")
    lower = granted(ask(limit, client, 1, granted(client.answer).grant))
    assert lower.rows_per_second == 250
    assert status(limit).pressure == "pressed: lag 40, threshold 30"
    limit.press(0.0, "unreachable: no route")
    held = ask(limit, client, 2, lower.grant)
    assert isinstance(held, RetryLater)
    assert (held.reason, held.drop) == ("pressure", True)
    for factor in (-0.1, 1.1, float("nan")):
        with pytest.raises(OptionError):
            limit.press(factor, "")


def test_a_restarted_coordinator_grants_nothing_while_old_grants_may_live(clock: HandClock) -> None:
    limit = coordinator(clock, predecessor_seconds=HORIZON)
    client = join(limit)
    assert client.answer == RetryLater("restart", HORIZON)
    clock.at += HORIZON
    assert granted(ask(limit, client, 1)).rows_per_second == 1000


def test_two_coordinators_have_two_epochs(clock: HandClock) -> None:
    old, new = Coordinator("db", 1, clock=clock), Coordinator("db", 1, clock=clock)
    client = join(old)
    with pytest.raises(RejoinError, match="restarted"):
        ask(new, client, 1)


def test_jobs_share_evenly_whatever_their_number_of_clients(clock: HandClock) -> None:
    limit = coordinator(clock)
    clients = [join(limit, "small"), *(join(limit, "large") for _ in range(4))]
    held: dict[str, int] = {
        each.client: each.answer.grant for each in clients if isinstance(each.answer, Grant)
    }
    pace = {}
    for number in range(1, 40):
        for each in clients:
            clock.at += 0.02
            answer = ask(limit, each, number, held.get(each.client, 0))
            if isinstance(answer, Grant):
                held[each.client] = answer.grant
                pace[each.client] = answer.rows_per_second
    assert list(pace.values()) == [500, 125, 125, 125, 125]


def test_asking_for_nonsense_is_refused_and_changes_nothing(clock: HandClock) -> None:
    limit = coordinator(clock)
    mine, other = join(limit), join(limit)
    grant = granted(mine.answer).grant
    before = status(limit)
    bad: list[Request] = [
        GrantRequest("db", mine.client, mine.epoch, 1, grant, spent_rows=float(2**63)),
        GrantRequest("db", mine.client, mine.epoch, 1, grant, spent_rows=-1.0),
        GrantRequest("db", mine.client, mine.epoch, 1, grant, spent_rows=float("nan")),
        GrantRequest("db", mine.client, mine.epoch, 1, grant, missed_rows=float("inf")),
        GrantRequest("db", mine.client, mine.epoch, 1, grant, spent_bytes=1.0),
        GrantRequest("db", mine.client, mine.epoch, 1, 0, spent_rows=1.0),
        GrantRequest("db", mine.client, mine.epoch, 0, grant),
        GrantRequest("db", mine.client, mine.epoch, -(2**63), grant),
        GrantRequest("db", mine.client, mine.epoch, 1, 2**63),
        GrantRequest("db", other.client, other.epoch, 1, grant),
        GrantRequest("db", mine.client, mine.epoch, 1, grant, waiting="x" * 10_000),
        GrantReturn("db", other.client, other.epoch, 1, grant),
        GrantReturn("db", mine.client, mine.epoch, 1, grant, spent_rows=float(2**63)),
        Leave("db", other.client, other.epoch, grant),
        Leave("db", mine.client, mine.epoch, grant, spent_rows=float("nan")),
        Heartbeat("db", mine.client, mine.epoch, "x" * 10_000),
        Join("db", "x" * 10_000),
    ]
    for request in bad:
        with pytest.raises(ServiceDeniedError):
            limit.handle(request)
    for request in (
        GrantRequest("db", "unknown", mine.epoch, 1),
        GrantRequest("db", mine.client, "another", 1),
        Heartbeat("db", "unknown", mine.epoch),
        Leave("db", "unknown", mine.epoch),
    ):
        with pytest.raises(RejoinError):
            limit.handle(request)
    with pytest.raises(OptionError):
        limit.handle(SetRates("db", -5))
    after = status(limit)
    assert replace(after, clients=before.clients) == before
    assert set(after.clients) == set(before.clients)
    assert granted(ask(limit, mine, 1, grant)).rows_per_second == 500


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\x00",
        b"[]",
        b"[" * 100_000,
        b"{}",
        b'{"type":"Grant"}',
        b'{"type":["GrantRequest"]}',
        b'{"type":"Join","limit":"db"}',
        b'{"type":"Join","limit":"db","job":7}',
        b'{"type":"Join","limit":"db","job":"j","rows":9223372036854775808}',
        b'{"type":"SetRates","limit":"db","rows_per_second":NaN}',
        b'{"type":"SetRates","limit":"db","rows_per_second":1e999}',
        b'{"type":"SetRates","limit":"db","rows_per_second":"fast"}',
        b'{"type":"SetRates","limit":"db","rows_per_second":true}',
        b'{"type":"SetRates","limit":"db","rows_per_second":{"type":"Grant"}}',
        b'{"type":"SetRates","limit":"db","rows_per_second":-1}',
        b'{"type":"SetRates","limit":"db","rows_per_second":9223372036854775808}',
        b'{"type":"Join","limit":"db","job":"' + b"j" * 5_000_000 + b'"}',
    ],
)
def test_garbage_is_denied_and_the_coordinator_goes_on(clock: HandClock, data: bytes) -> None:
    limit = coordinator(clock)
    reply = decode_reply(limit.answer(data))
    assert isinstance(reply, Rejected)
    assert not reply.rejoin
    assert isinstance(decode_reply(limit.answer(encode(Join("db", "job")))), Joined)


def test_every_message_survives_the_wire(clock: HandClock) -> None:
    limit = coordinator(clock)
    joined = join(limit)
    for reply in (
        joined,
        joined.answer,
        status(limit),
        RetryLater("turn", 0.5),
        Acknowledged(10.0),
        Rejected("no", True),
    ):
        assert decode_reply(encode(reply)) == reply
    assert json.loads(encode(Pause("db"))) == {"limit": "db", "type": "Pause"}


def test_clients_are_bounded(clock: HandClock) -> None:
    limit = coordinator(clock, max_clients=3)
    clients = [join(limit) for _ in range(3)]
    with pytest.raises(ServiceDeniedError, match="takes no more"):
        join(limit)
    limit.handle(Leave("db", clients[0].client, clients[0].epoch))
    join(limit)


def test_memory_of_a_client_that_asks_forever_is_bounded(clock: HandClock) -> None:
    limit = coordinator(clock)
    client = join(limit)
    grant = granted(client.answer).grant
    for number in range(1, 5000):
        clock.at += 0.00001
        grant = granted(ask(limit, client, number, grant)).grant
    assert len(limit._pool.grants._ends) + len(limit._pool.grants._without_successor) < 250


def test_threads_may_ask_at_once() -> None:
    limit = Coordinator("db", 1000)
    errors: list[Exception] = []

    def work() -> None:
        try:
            client = join(limit)
            for number in range(1, 200):
                ask(limit, client, number)
            limit.handle(Leave("db", client.client, client.epoch))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    now = status(limit)
    assert (now.client_count, now.granted_rows_per_second, now.outstanding_rows) == (0, 0, 0)


def listen(limit: Coordinator, who: Joined, version: int = -1) -> LimitChanged:
    news = limit.handle(Subscribe("db", who.client, who.epoch, version))
    assert isinstance(news, LimitChanged)
    return news


def two(limit: Coordinator, clock: HandClock) -> tuple[Joined, Joined, Grant, Grant]:
    """Two clients that have half of the limit each, and their grants."""
    first = join(limit)
    second = join(limit)
    halved = granted(ask(limit, first, 1))
    clock.at += 0.05
    other = granted(ask(limit, second, 1))
    halved = granted(ask(limit, first, 2, halved.grant))
    assert (halved.rows_per_second, other.rows_per_second) == (500, 500)
    return first, second, halved, other


def test_news_say_what_the_limit_is_and_a_grant_of_what_it_is_a_part(clock: HandClock) -> None:
    limit = coordinator(clock)
    client = join(limit)
    answer = granted(client.answer)
    assert (answer.version, answer.limit_rows_per_second, answer.limit_bytes_per_second) == (
        0,
        1000,
        None,
    )
    assert listen(limit, client) == LimitChanged(0, 1000, None, ask_within=1 / 400)
    limit.handle(SetRates("db", 10, 2000))
    assert listen(limit, client) == LimitChanged(1, 10, 2000, ask_within=1 / 400)
    limit.press(0.5, "replication lag")
    assert listen(limit, client) == LimitChanged(2, 5, 1000, ask_within=1 / 400)
    limit.press(0.5, "replication lag, still")
    assert listen(limit, client).version == 2, "nothing changed"
    limit.press(0.0, "replication lag")
    assert listen(limit, client) == LimitChanged(3, 0, 0, "pressure", ask_within=1 / 400)
    limit.handle(Pause("db"))
    assert listen(limit, client) == LimitChanged(4, 0, 0, "paused", ask_within=1 / 400)


def test_a_part_that_nobody_holds_saves_20_ms_for_the_next_one(clock: HandClock) -> None:
    limit = coordinator(clock, 60_000)
    clock.at += 0.01
    first = join(limit)
    assert granted(first.answer).saved_rows == pytest.approx(600)
    assert granted(first.answer).rows == 600 + 60_000 * granted(first.answer).lasts
    limit.handle(
        Leave("db", first.client, first.epoch, granted(first.answer).grant, spent_rows=600)
    )
    clock.at += 5.0
    assert granted(join(limit).answer).saved_rows == pytest.approx(1_200), "no more"


def test_a_part_that_was_halved_has_saved_half(clock: HandClock) -> None:
    limit = coordinator(clock, 60_000)
    clock.at += 1.0
    limit.handle(SetRates("db", 30_000))
    assert granted(join(limit).answer).saved_rows == pytest.approx(600)


def test_before_the_grants_of_a_predecessor_are_void_nothing_is_saved(clock: HandClock) -> None:
    limit = coordinator(clock, 60_000, predecessor_seconds=1.0)
    assert join(limit).answer == RetryLater("restart", 1.0)
    clock.at += 1.0
    assert granted(join(limit).answer).saved_rows == 0


def test_what_came_on_the_way_to_a_client_is_saved_when_it_leaves(clock: HandClock) -> None:
    """It got its grant 3 ms after it was made, spent all that came for 10 ms, and was heard of 2 ms later."""
    limit = coordinator(clock, 60_000)
    first = join(limit)
    clock.at += 0.015
    limit.handle(
        Leave("db", first.client, first.epoch, granted(first.answer).grant, spent_rows=600)
    )
    assert granted(join(limit).answer).saved_rows == pytest.approx(300)


def test_where_a_client_had_more_than_it_could_spend_nothing_is_given_back(
    clock: HandClock,
) -> None:
    limit = coordinator(clock, 60_000)
    first = join(limit)
    clock.at += 0.1
    leave = Leave(
        "db",
        first.client,
        first.epoch,
        granted(first.answer).grant,
        spent_rows=600,
        missed_rows=5_000,
    )
    limit.handle(leave)
    assert granted(join(limit).answer).saved_rows == 0


def test_who_is_in_line_is_called_when_another_leaves(clock: HandClock) -> None:
    calls: list[tuple[str, str]] = []
    limit = coordinator(clock, on_call=lambda *called: calls.append(called))
    first, second = join(limit), join(limit)
    assert isinstance(second.answer, RetryLater)
    assert listen(limit, second).calls == 0
    limit.handle(Leave("db", first.client, first.epoch, granted(first.answer).grant))
    assert calls == [("db", second.client)]
    assert listen(limit, second).calls == 1
    assert granted(ask(limit, second, 1)).rows_per_second == 1000
    assert len(calls) == 1


def test_who_has_a_part_is_called_when_another_leaves(clock: HandClock) -> None:
    calls: list[tuple[str, str]] = []
    limit = coordinator(clock, on_call=lambda *called: calls.append(called))
    first, second, _, other = two(limit, clock)
    calls.clear()
    limit.handle(Leave("db", first.client, first.epoch))
    assert calls == [("db", second.client)]
    assert granted(ask(limit, second, 2, other.grant)).rows_per_second == 1000


def test_nobody_is_called_while_the_limit_is_paused(clock: HandClock) -> None:
    calls: list[tuple[str, str]] = []
    limit = coordinator(clock, on_call=lambda *called: calls.append(called))
    first, _ = join(limit), join(limit)
    limit.handle(Pause("db"))
    limit.handle(Leave("db", first.client, first.epoch, granted(first.answer).grant))
    assert calls == []


def test_a_higher_limit_is_given_to_those_who_have_a_part_of_it(clock: HandClock) -> None:
    limit = coordinator(clock)
    first, _, mine, _ = two(limit, clock)
    limit.handle(SetRates("db", 3000))
    assert status(limit).granted_rows_per_second == 3000
    assert isinstance(join(limit).answer, RetryLater), (
        "nothing is left for others until these were heard"
    )
    assert mine.rows is not None
    spent = ask(limit, first, 3, mine.grant, rows=3.0 * mine.rows)
    assert granted(spent).rows_per_second == pytest.approx(1000), "a third of it"


def test_amounts_of_a_higher_limit_are_conserved(clock: HandClock) -> None:
    limit = coordinator(clock)
    first, _, mine, _ = two(limit, clock)
    limit.handle(SetRates("db", 1500))
    limit.handle(SetRates("db", 700))
    limit.handle(SetRates("db", 3000.5))
    assert mine.rows is not None
    limit.handle(
        GrantReturn("db", first.client, first.epoch, 3, mine.grant, spent_rows=1.2 * mine.rows)
    )
    clock.at += 10.0
    after = status(limit)
    assert after.outstanding_rows == 0
    assert after.spent_rows == pytest.approx(1.2 * mine.rows)
    assert after.issued_rows == after.spent_rows + after.returned_rows + after.void_rows


def test_a_lower_limit_counts_as_the_old_one_until_a_client_is_heard(clock: HandClock) -> None:
    limit = coordinator(clock)
    first, _, mine, _ = two(limit, clock)
    limit.handle(SetRates("db", 500))
    assert status(limit).granted_rows_per_second == 1000
    lowered = granted(ask(limit, first, 3, mine.grant))
    assert lowered.rows_per_second == 250
    assert status(limit).granted_rows_per_second == 1000, "the answer may be lost"
    ask(limit, first, 4, lowered.grant)
    assert status(limit).granted_rows_per_second == 750


def test_nobodys_part_grows_while_another_was_not_heard(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the two would be more than the whole when the limit goes up again."""
    limit = coordinator(clock)
    first, _, mine, _ = two(limit, clock)
    monkeypatch.setattr(grants, "ASKS_PER_SECOND", 1)
    monkeypatch.setattr(grants, "SPARED", 0)
    limit.handle(SetRates("db", 500))
    assert granted(ask(limit, first, 3, mine.grant)).rows_per_second == 250
    limit.handle(SetRates("db", 1000))
    assert status(limit).granted_rows_per_second == 1000


def test_what_was_over_before_the_limit_rose_may_be_reported_in_full(clock: HandClock) -> None:
    limit = coordinator(clock)
    client = join(limit)
    mine = granted(client.answer)
    clock.at += mine.lasts + 0.001
    limit.handle(SetRates("db", 2000))
    assert mine.rows is not None
    assert granted(ask(limit, client, 1, mine.grant, rows=1.5 * mine.rows)).rows_per_second == 2000
    after = status(limit)
    assert after.spent_rows == 1.5 * mine.rows
    parts = after.spent_rows + after.returned_rows + after.void_rows + after.outstanding_rows
    assert after.issued_rows == parts


def test_a_request_is_read_as_it_was_sent_and_a_reply_is_none() -> None:
    request = Join("orders-db", "nightly", "task 0")
    assert decode_request(encode(request)) == request
    with pytest.raises(ServiceDeniedError):
        decode_request(encode(Acknowledged(3.0)))


def test_a_status_names_its_clients(clock: HandClock) -> None:
    limit = coordinator(clock)
    limit.handle(Join("orders-db", "nightly", "task 0"))
    status = limit.handle(StatusRequest("orders-db"))
    assert isinstance(status, LimitStatus)
    (client,) = status.clients
    assert client == ClientStatus(
        "task 0", "nightly", *[getattr(client, name) for name in _MEASURED]
    )


_MEASURED = ("rows_per_second", "bytes_per_second", "waiting", "silent_seconds")
