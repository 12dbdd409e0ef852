"""`maxConnections` over the whole job."""

import pytest

from spark_channel.errors import OptionError, ServiceDeniedError
from spark_channel.limits import (
    Acknowledged,
    Permit,
    PermitRequest,
    PermitReturn,
    RetryLater,
    Semaphore,
)
from tests.limits.conftest import HandClock


def ask(permits: Semaphore, who: int) -> bool:
    answer = permits.handle(PermitRequest("db", f"holder-{who}"))
    assert isinstance(answer, (Permit, RetryLater))
    return isinstance(answer, Permit)


def test_no_more_than_count_hold_one_and_the_first_in_line_is_next(clock: HandClock) -> None:
    permits = Semaphore("db", 2, clock=clock)
    assert [ask(permits, who) for who in range(4)] == [True, True, False, False]
    assert permits.usage() == (2, 2)
    assert isinstance(permits.handle(PermitReturn("db", "holder-0")), Acknowledged)
    assert not ask(permits, 3), "2 came first"
    assert ask(permits, 2)
    assert not ask(permits, 3)
    assert permits.usage() == (2, 1)


def test_asking_again_renews_and_one_that_vanished_loses_it(clock: HandClock) -> None:
    permits = Semaphore("db", 2, clock=clock)
    assert ask(permits, 0)
    assert ask(permits, 1)
    for _ in range(4):
        clock.at += 10
        assert ask(permits, 0)
    assert permits.usage() == (1, 0)
    assert ask(permits, 2)
    assert not ask(permits, 1), "its place was given away"


def test_one_that_left_the_line_without_a_word_does_not_block_it(clock: HandClock) -> None:
    permits = Semaphore("db", 1, clock=clock)
    assert ask(permits, 0)
    assert not ask(permits, 1)
    for _ in range(3):
        clock.at += 2
        assert not ask(permits, 2)
    permits.handle(PermitReturn("db", "holder-0"))
    assert ask(permits, 2)


def test_many_in_line_ask_less_often(clock: HandClock) -> None:
    permits = Semaphore("db", 1, clock=clock)
    answers = [permits.handle(PermitRequest("db", f"holder-{who}")) for who in range(500)]
    pauses = [answer.retry_in for answer in answers if isinstance(answer, RetryLater)]
    assert pauses[0] == pytest.approx(0.1)
    assert pauses[-1] == 2.0


@pytest.mark.parametrize("holder", ["", "short", "x" * 300])
def test_a_holder_that_could_be_guessed_or_is_too_long_is_refused(
    clock: HandClock, holder: str
) -> None:
    with pytest.raises(ServiceDeniedError):
        Semaphore("db", 1, clock=clock).handle(PermitRequest("db", holder))


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_a_count_that_makes_no_sense_is_refused(clock: HandClock, count: int) -> None:
    with pytest.raises(OptionError) as refused:
        Semaphore("db", count, clock=clock)
    assert refused.value.option == "maxConnections"
