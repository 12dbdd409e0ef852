"""Limits and permits by name, and limits that hold per resource mark."""

import pytest

from spark_channel.errors import OptionError, RejoinError, ServiceDeniedError
from spark_channel.limits import (
    Grant,
    GrantRequest,
    Join,
    Joined,
    Leave,
    LimitRegistry,
    LimitStatus,
    Pause,
    Permit,
    PermitRequest,
    Rejected,
    Resume,
    RetryLater,
    SetRates,
    StatusRequest,
    decode_reply,
    encode,
    marked,
)
from spark_channel.limits.registry import MOST_MARKS
from tests.limits.conftest import HandClock


def join(book: LimitRegistry, limit: str) -> Joined:
    joined = book.handle(Join(limit, "job"))
    assert isinstance(joined, Joined)
    return joined


def pace(joined: Joined) -> float | None:
    return joined.answer.rows_per_second if isinstance(joined.answer, Grant) else None


def status(book: LimitRegistry, limit: str) -> LimitStatus:
    answer = book.handle(StatusRequest(limit))
    assert isinstance(answer, LimitStatus)
    return answer


def test_requests_go_to_the_limit_that_they_name(clock: HandClock) -> None:
    book = LimitRegistry(clock=clock)
    book.add_limit("a", 100)
    book.add_limit("b", 200)
    assert (pace(join(book, "a")), pace(join(book, "b"))) == (100, 200)
    assert book.names() == ("a", "b")


def test_unknown_and_taken_names_are_refused(clock: HandClock) -> None:
    book = LimitRegistry(clock=clock)
    book.add_limit("a", 100)
    for request in (
        Join("c", "job"),
        StatusRequest("c"),
        Join("a@db1", "job"),
        PermitRequest("a", "holder-1"),
    ):
        with pytest.raises(ServiceDeniedError):
            book.handle(request)
    for name in ("a", "", "x@y"):
        with pytest.raises(OptionError):
            book.add_limit(name, 1)
    book.remove("a")
    with pytest.raises(ServiceDeniedError):
        join(book, "a")


def test_each_mark_has_the_whole_limit_and_none_takes_from_another(clock: HandClock) -> None:
    book = LimitRegistry(clock=clock)
    book.add_limit("hosts", 100, per_mark=True)
    db1, db2 = join(book, marked("hosts", "db1")), join(book, marked("hosts", "db2"))
    assert (pace(db1), pace(db2)) == (100, 100)
    assert isinstance(join(book, "hosts@db1").answer, RetryLater)
    assert book.names() == ("hosts", "hosts@db1", "hosts@db2")
    with pytest.raises(RejoinError):
        book.handle(GrantRequest("hosts@db2", db1.client, db1.epoch, 1))
    with pytest.raises(RejoinError):
        book.handle(GrantRequest("hosts@db3", db1.client, db1.epoch, 1))
    assert marked("hosts", None) == "hosts"


def test_what_is_set_holds_for_marks_in_use_and_for_those_to_come(clock: HandClock) -> None:
    book = LimitRegistry(clock=clock)
    book.add_limit("hosts", 100, per_mark=True)
    join(book, "hosts@db1")
    book.handle(SetRates("hosts", 50))
    book.handle(Pause("hosts"))
    book.press("hosts", 0.5, "pressed")
    join(book, "hosts@db2")
    for name in ("hosts@db1", "hosts@db2"):
        shown = status(book, name)
        assert (shown.rows_per_second, shown.paused, shown.pressure) == (50, True, "pressed")
    book.handle(Resume("hosts"))
    assert status(book, "hosts@db2").effective_rows_per_second == 25


def test_marks_are_bounded_and_idle_ones_make_room(clock: HandClock) -> None:
    book = LimitRegistry(clock=clock)
    book.add_limit("hosts", 100, per_mark=True)
    clients = [join(book, f"hosts@{index}") for index in range(MOST_MARKS)]
    with pytest.raises(ServiceDeniedError, match="in use"):
        join(book, "hosts@more")
    book.handle(Leave("hosts@0", clients[0].client, clients[0].epoch))
    assert pace(join(book, "hosts@more")) == 100


def test_permits_and_refusals_travel_as_bytes(clock: HandClock) -> None:
    book = LimitRegistry(clock=clock)
    book.add_permits("db", 1)
    assert decode_reply(book.answer(encode(PermitRequest("db", "holder-1")))) == Permit(10.0)
    assert isinstance(
        decode_reply(book.answer(encode(PermitRequest("db", "holder-2")))), RetryLater
    )
    assert isinstance(decode_reply(book.answer(b"\x00")), Rejected)
    assert isinstance(decode_reply(book.answer(encode(Join("x", "job")))), Rejected)
    book.add_limit("a", 1)
    rejoin = decode_reply(book.answer(encode(GrantRequest("a", "unknown", "e", 1))))
    assert isinstance(rejoin, Rejected)
    assert rejoin.rejoin
