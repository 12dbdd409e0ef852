"""A carrier that waits for a busy thread of a pool is taken by an idle one, however their calls fall together."""

import threading
from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from spark_channel.carrier import BulkConsumePool, DataCarrier
from tests.carrier.helpers import JOIN_SECONDS, Collector, Gate, batch


class Held:
    """Holds a pool's thread between a ring and what it does about it, once, when it is armed."""

    def __init__(self, worker: Any) -> None:
        self.ready = worker._ready
        self.get = worker._ready.get
        self.armed, self.reached, self.released = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        worker._ready.get = self.held

    def held(self) -> Hashable | None:
        key: Hashable | None = self.get()
        if self.armed.is_set():
            self.armed.clear()
            self.reached.set()
            assert self.released.wait(JOIN_SECONDS)
        return key

    def hold(self) -> None:
        self.armed.set()

    def wait(self) -> None:
        assert self.reached.wait(JOIN_SECONDS)

    def release(self) -> None:
        self.released.set()


def carriers_of(pool: BulkConsumePool, consumers: "list[Any]") -> list[DataCarrier]:
    """One for each consumer, dealt to the threads in turn; all are set up, and wait."""
    carriers = [DataCarrier() for _ in consumers]
    for number, (carrier, consumer) in enumerate(zip(carriers, consumers, strict=True)):
        carrier.consume(consumer, pool=pool)
        assert consumer.made.wait(JOIN_SECONDS)
        assert pool.carriers()[number % pool.threads] == number // pool.threads + 1
    return carriers


class Made(Collector):
    """Records that it was set up."""

    def __init__(self) -> None:
        super().__init__()
        self.made = threading.Event()

    def init(self) -> None:
        super().init()
        self.made.set()


class MadeGate(Gate, Made):
    """The same, which is busy until it is opened."""


def end(carriers: list[DataCarrier], *gates: MadeGate) -> None:
    for gate in gates:
        assert not gate.errors, "it was busy all the time"
        gate.opened.set()
    for carrier in carriers:
        assert carrier.shutdown(JOIN_SECONDS) is True


def test_a_ring_between_two_carriers_of_a_thread_is_heard_by_another_thread() -> None:
    with BulkConsumePool(2) as pool:
        held = Held(pool._members[0])
        gate, waiting = MadeGate(), Made()
        carriers = carriers_of(pool, [gate, Made(), waiting, Made()])
        held.hold()
        carriers[0].produce(batch(1))
        held.wait()  # the thread has heard it, and does not look busy yet
        carriers[2].produce(batch(2))
        held.release()
        waiting.wait_for(1)
        end(carriers, gate)


def test_a_thread_that_was_to_help_and_gets_busy_itself_sends_another() -> None:
    with BulkConsumePool(3) as pool:
        held = Held(pool._members[1])
        gates, waiting = [MadeGate(), MadeGate()], Made()
        carriers = carriers_of(pool, [*gates, Made(), waiting, Made(), Made()])
        carriers[0].produce(batch(1))
        assert gates[0].entered.wait(JOIN_SECONDS)
        held.hold()
        carriers[1].produce(batch(2))
        held.wait()  # its thread looks idle still, and is the first that is asked
        carriers[3].produce(batch(3))
        held.release()
        waiting.wait_for(1)
        end(carriers, *gates)


def test_a_thread_that_is_rung_for_a_carrier_that_has_moved_away_looks_for_others() -> None:
    with BulkConsumePool(2) as pool:
        held = Held(pool._members[1])
        gate, waiting = MadeGate(), Made()
        carriers = carriers_of(pool, [gate, Made(), waiting, Made()])
        held.hold()
        held.ready.put("moved away")
        held.wait()
        held.ready.put("moved away, too")
        carriers[0].produce(batch(1))
        assert gate.entered.wait(JOIN_SECONDS)
        # The other thread has a ring to answer: it does not look idle.
        carriers[2].produce(batch(2))
        held.release()
        waiting.wait_for(1)
        end(carriers, gate)


def test_a_carrier_that_has_ended_is_not_counted_any_more() -> None:
    with BulkConsumePool(1) as pool:
        carrier = DataCarrier()
        worker: Any = carrier.consume(Collector(), pool=pool)._workers[0]
        report_end, seen = worker._over, list[int]()

        def over() -> None:
            seen.extend(pool.carriers())
            report_end()

        worker._over = over
        assert carrier.shutdown(JOIN_SECONDS) is True
        assert seen == [0], "before anyone hears that it is over"


def test_a_carrier_that_moves_is_counted_once() -> None:
    with BulkConsumePool(2) as pool, ThreadPoolExecutor(1) as key:
        gate, waiting = MadeGate(), Made()
        carriers = carriers_of(pool, [gate, Made(), waiting, Made()])
        worker: Any = pool._members[1]
        take, counted = worker.take, list[Future[list[int]]]()

        def taking(worker: Any) -> None:
            counted.append(key.submit(pool.carriers))
            wait(counted, 0.2)  # it belongs to neither thread now
            take(worker)

        worker.take = taking
        carriers[0].produce(batch(1))
        assert gate.entered.wait(JOIN_SECONDS)
        carriers[2].produce(batch(2))
        waiting.wait_for(1)
        assert counted[0].result(JOIN_SECONDS) == [1, 3]
        end(carriers, gate)
