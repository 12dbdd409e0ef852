"""The ready: each key answered once per ring, when due, by one sleeper."""

from spark_channel.carrier.consumer import ReadyQueue
from spark_channel.testing import VirtualClock
from tests.carrier.helpers import CountingClock, start


def test_rings_are_answered_in_order_and_once_each() -> None:
    ready: ReadyQueue[str] = ReadyQueue(VirtualClock())
    for key in ("a", "b", "a"):
        ready.put(key)
    assert [ready.get(), ready.get()] == ["a", "b"]
    ready.stop()
    assert ready.get() is None


def test_a_ring_while_nobody_sleeps_is_not_lost() -> None:
    ready: ReadyQueue[str] = ReadyQueue(VirtualClock())
    ready.put("a")
    assert ready.get() == "a"
    ready.put("a")
    assert ready.get() == "a"


def test_a_lingering_caller_is_answered_when_due() -> None:
    clock = VirtualClock()
    ready: ReadyQueue[str] = ReadyQueue(clock)
    ready.put("patient", 5.0)
    ready.put("eager", 2.0)
    sleeper = start(lambda: (ready.get(), clock.now(), ready.get(), clock.now()))
    clock.wait_until_blocked(sleeper)
    clock.advance(1.999)
    assert sleeper.is_alive()
    clock.advance(0.001)
    clock.wait_until_blocked(sleeper)
    clock.advance(3.0)
    assert sleeper.get() == ("eager", 2.0, "patient", 5.0)


def test_the_earlier_of_two_rings_counts() -> None:
    clock = VirtualClock()
    ready: ReadyQueue[str] = ReadyQueue(clock)
    ready.put("a", 5.0)
    sleeper = start(ready.get)
    clock.wait_until_blocked(sleeper)
    ready.put("a", 0.0)
    assert sleeper.get() == "a"
    assert clock.now() == 0.0
    ready.put("a", 1.0)
    ready.put("a", 9.0)
    sleeper = start(lambda: (ready.get(), clock.now()))
    clock.wait_until_blocked(sleeper)
    clock.advance(1.0)
    assert sleeper.get() == ("a", 1.0)


def test_a_forgotten_caller_is_not_answered() -> None:
    ready: ReadyQueue[str] = ReadyQueue(VirtualClock())
    ready.put("a")
    ready.put("b")
    ready.forget("a")
    ready.forget("never rang")
    assert ready.get() == "b"


def test_each_ring_of_one_caller_wakes_one_of_many_waiting() -> None:
    clock = VirtualClock()
    ready: ReadyQueue[str] = ReadyQueue(clock)
    sleepers = [start(ready.get) for _ in range(3)]
    for awake in (1, 2, 3):
        clock.wait_until_blocked(sleepers)
        ready.put("a")
        clock.wait_until_blocked(sleepers)
        assert sum(not sleeper.is_alive() for sleeper in sleepers) == awake
    assert [sleeper.get() for sleeper in sleepers] == ["a"] * 3


def test_stop_wakes_every_sleeper() -> None:
    clock = VirtualClock()
    ready: ReadyQueue[str] = ReadyQueue(clock)
    sleepers = [start(ready.get) for _ in range(3)]
    clock.wait_until_blocked(sleepers)
    ready.stop()
    assert [sleeper.get() for sleeper in sleepers] == [None, None, None]


def test_sleeping_is_counted_and_lingering_is_not() -> None:
    clock = VirtualClock()
    ready: ReadyQueue[str] = ReadyQueue(clock)
    sleeper = start(ready.get)
    clock.wait_until_blocked(sleeper)
    clock.advance(3.0)
    assert ready.waited_seconds() == 3.0, "a sleep under way counts"
    ready.put("a", 2.0)
    clock.wait_until_blocked(sleeper)
    clock.advance(2.0)
    assert sleeper.get() == "a"
    assert ready.waited_seconds() == 3.0


def test_who_sleeps_without_a_caller_sleeps_without_a_timeout() -> None:
    clock = CountingClock()
    ready: ReadyQueue[str] = ReadyQueue(clock)
    sleeper = start(ready.get)
    assert clock.sleeping.acquire(timeout=10)
    ready.put("a")
    assert sleeper.get() == "a"
    assert clock.timeouts == [None]
