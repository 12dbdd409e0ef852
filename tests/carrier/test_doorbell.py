"""The bell: each caller answered once per ring, when due, by one sleeper."""

from spark_channel.carrier.doorbell import Doorbell
from spark_channel.testing import VirtualClock
from tests.carrier.helpers import CountingClock, start


def test_rings_are_answered_in_order_and_once_each() -> None:
    bell: Doorbell[str] = Doorbell(VirtualClock())
    for caller in ("a", "b", "a"):
        bell.ring(caller)
    assert [bell.answer(), bell.answer()] == ["a", "b"]
    bell.stop()
    assert bell.answer() is None


def test_a_ring_while_nobody_sleeps_is_not_lost() -> None:
    bell: Doorbell[str] = Doorbell(VirtualClock())
    bell.ring("a")
    assert bell.answer() == "a"
    bell.ring("a")
    assert bell.answer() == "a"


def test_a_lingering_caller_is_answered_when_due() -> None:
    clock = VirtualClock()
    bell: Doorbell[str] = Doorbell(clock)
    bell.ring("patient", 5.0)
    bell.ring("eager", 2.0)
    sleeper = start(lambda: (bell.answer(), clock.now(), bell.answer(), clock.now()))
    clock.wait_until_blocked(sleeper)
    clock.advance(1.999)
    assert sleeper.is_alive()
    clock.advance(0.001)
    clock.wait_until_blocked(sleeper)
    clock.advance(3.0)
    assert sleeper.get() == ("eager", 2.0, "patient", 5.0)


def test_the_earlier_of_two_rings_counts() -> None:
    clock = VirtualClock()
    bell: Doorbell[str] = Doorbell(clock)
    bell.ring("a", 5.0)
    sleeper = start(bell.answer)
    clock.wait_until_blocked(sleeper)
    bell.ring("a", 0.0)
    assert sleeper.get() == "a"
    assert clock.now() == 0.0
    bell.ring("a", 1.0)
    bell.ring("a", 9.0)
    sleeper = start(lambda: (bell.answer(), clock.now()))
    clock.wait_until_blocked(sleeper)
    clock.advance(1.0)
    assert sleeper.get() == ("a", 1.0)


def test_a_forgotten_caller_is_not_answered() -> None:
    bell: Doorbell[str] = Doorbell(VirtualClock())
    bell.ring("a")
    bell.ring("b")
    bell.forget("a")
    bell.forget("never rang")
    assert bell.answer() == "b"


def test_two_sleepers_answer_two_callers() -> None:
    clock = VirtualClock()
    bell: Doorbell[str] = Doorbell(clock)
    sleepers = [start(bell.answer), start(bell.answer)]
    clock.wait_until_blocked(sleepers)
    bell.ring("a")
    bell.ring("b")
    assert {sleeper.get() for sleeper in sleepers} == {"a", "b"}


def test_who_takes_another_caller_hands_the_lingering_one_on() -> None:
    clock = VirtualClock()
    bell: Doorbell[str] = Doorbell(clock)
    bell.ring("patient", 5.0)
    first = start(bell.answer)
    clock.wait_until_blocked(first)
    second = start(bell.answer)
    clock.wait_until_blocked(second)
    bell.ring("eager")
    while first.is_alive() and second.is_alive():
        first.join(0.001)
    waiting, answered = (second, first) if second.is_alive() else (first, second)
    assert answered.get() == "eager"
    clock.wait_until_blocked(waiting)
    clock.advance(5.0)
    assert waiting.get() == "patient"


def test_a_sleeper_without_a_time_takes_over_the_lingering_caller() -> None:
    clock = VirtualClock()
    bell: Doorbell[str] = Doorbell(clock)
    sleepers = [start(bell.answer), start(bell.answer)]
    clock.wait_until_blocked(sleepers)
    bell.ring("patient", 5.0)
    clock.wait_until_blocked(sleepers)
    # one sleeper lingers, the other knows of nothing: whoever wakes for the next ring, both are answered
    bell.ring("eager")
    while all(sleeper.is_alive() for sleeper in sleepers):
        sleepers[0].join(0.001)
    left = [sleeper for sleeper in sleepers if sleeper.is_alive()]
    clock.wait_until_blocked(left)
    clock.advance(5.0)
    assert {sleeper.get() for sleeper in sleepers} == {"patient", "eager"}


def test_stop_wakes_every_sleeper() -> None:
    clock = VirtualClock()
    bell: Doorbell[str] = Doorbell(clock)
    sleepers = [start(bell.answer) for _ in range(3)]
    clock.wait_until_blocked(sleepers)
    bell.stop()
    assert [sleeper.get() for sleeper in sleepers] == [None, None, None]


def test_sleeping_is_counted_and_lingering_is_not() -> None:
    clock = VirtualClock()
    bell: Doorbell[str] = Doorbell(clock)
    sleeper = start(bell.answer)
    clock.wait_until_blocked(sleeper)
    clock.advance(3.0)
    assert bell.waited_seconds() == 3.0, "a sleep under way counts"
    bell.ring("a", 2.0)
    clock.wait_until_blocked(sleeper)
    clock.advance(2.0)
    assert sleeper.get() == "a"
    assert bell.waited_seconds() == 3.0


def test_who_sleeps_without_a_caller_sleeps_without_a_timeout() -> None:
    clock = CountingClock()
    bell: Doorbell[str] = Doorbell(clock)
    sleeper = start(bell.answer)
    assert clock.sleeping.acquire(timeout=10)
    bell.ring("a")
    assert sleeper.get() == "a"
    assert clock.timeouts == [None]
