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


def test_each_ring_of_one_caller_wakes_one_of_many_sleepers() -> None:
    clock = VirtualClock()
    bell: Doorbell[str] = Doorbell(clock)
    sleepers = [start(bell.answer) for _ in range(3)]
    for awake in (1, 2, 3):
        clock.wait_until_blocked(sleepers)
        bell.ring("a")
        clock.wait_until_blocked(sleepers)
        assert sum(not sleeper.is_alive() for sleeper in sleepers) == awake
    assert [sleeper.get() for sleeper in sleepers] == ["a"] * 3


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
