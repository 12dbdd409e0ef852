"""A cluster on one page: a coordinator and its clients, messages that take time, all on a virtual clock.

What is real: `Coordinator`, `LeaseLimiter` and their messages. What is simulated: the producers that pay, the
time between them, the network, and crashes. Everything happens in one thread, in order of its time.
"""

import heapq
import itertools
import random
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spark_channel.channel.capacity import Payment
from spark_channel.errors import ServiceDeniedError, ServiceUnavailableError
from spark_channel.limits import Coordinator, LeaseLimiter, decode_reply, encode
from spark_channel.limits.messages import (
    LimitChanged,
    LimitStatus,
    Rejected,
    Reply,
    Request,
    StatusRequest,
)
from tests.limits.conftest import HandClock

LIMIT = "orders-db"


class World:
    """The clock, the events to come, the coordinator, and what was paid.

    `paid` has (when, rows, bytes, who, since when it had waited) of each payment, by time.
    """

    def __init__(
        self,
        rows_per_second: float | None = None,
        bytes_per_second: float | None = None,
        *,
        latency: float = 0.004,
        seed: int = 0,
    ) -> None:
        self.clock = HandClock()
        self.random = random.Random(seed)
        self.latency = latency
        self.rates = (rows_per_second, bytes_per_second)
        self.messages = 0
        self.paid: list[tuple[float, int, int, Worker, float]] = []
        self.workers: list[Worker] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.up = True
        self.coordinator = self._coordinator()

    def _coordinator(self, predecessor_seconds: float = 0.0) -> Coordinator:
        ids = itertools.count(next(self._count))
        return Coordinator(
            LIMIT,
            *self.rates,
            clock=self.clock,
            predecessor_seconds=predecessor_seconds,
            new_id=lambda: f"id-{next(ids)}-{next(self._count)}",
            on_call=self._call_soon,
        )

    def _call_soon(self, _limit: str, client: str) -> None:
        """The coordinator calls a client: it hears of it a moment later, if it listens."""
        for worker in self.workers:
            if (request := worker.limiter.listen()) is not None and request.client == client:
                worker.listen(self.latency / 2)

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(seconds, self.clock.at), next(self._count), event))

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self.at(self.clock.at + seconds, event)

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            when, _, event = heapq.heappop(self._events)
            self.clock.at = max(self.clock.at, when)
            event()
        self.clock.at = max(self.clock.at, until)

    def worker(self, **kind: object) -> "Worker":
        worker = Worker(self, **kind)  # type: ignore[arg-type] # the names are Worker's own
        self.workers.append(worker)
        return worker

    def call(self, request: Request) -> Reply:
        """The coordinator's answer, over the wire's own bytes."""
        self.messages += 1
        return decode_reply(self.coordinator.answer(encode(request)))

    def notify(self) -> None:
        """The limit changed: who listens hears of it, later and in any order, or never when it is cut off."""
        for worker in self.workers:
            worker.listen()

    def status(self) -> LimitStatus:
        status = self.coordinator.handle(StatusRequest(LIMIT))
        assert isinstance(status, LimitStatus)
        return status

    def restart(self, predecessor_seconds: float) -> None:
        """Kill -9 the coordinator and start it again, with the rates that it had been given."""
        self.coordinator = self._coordinator(predecessor_seconds)

    def rows(self, begin: float, end: float, workers: "Iterable[Worker] | None" = None) -> int:
        chosen = None if workers is None else set(workers)
        return sum(
            rows
            for at, rows, _, worker, _ in self.paid
            if begin <= at < end and (chosen is None or worker in chosen)
        )

    def utilisation(self, begin: float, end: float) -> float:
        """Share of the row limit that was used."""
        assert self.rates[0] is not None
        return self.rows(begin, end) / (self.rates[0] * (end - begin))

    def worst(
        self, window: float, begin: float = 0.0, end: float = float("inf"), dimension: int = 0
    ) -> float:
        """Rows (or bytes) of the fullest window of `window` seconds, of what was paid in [begin, end)."""
        return fullest(
            [
                (at, nbytes if dimension else rows)
                for at, rows, nbytes, *_ in self.paid
                if begin <= at < end
            ],
            window,
        )


def fullest(paid: Sequence[tuple[float, int]], window: float) -> int:
    """The amount of the fullest window of `window` seconds; `paid` has times, in order, and amounts."""
    times = [at for at, _ in paid]
    sums = [0, *itertools.accumulate(amount for _, amount in paid)]
    return max(
        (
            sums[bisect_left(times, times[first] + window, first)] - sums[first]
            for first in range(len(times))
        ),
        default=0,
    )


def short_tasks(
    count: int,
    *,
    slots: int = 2,
    pause: float = 0.025,
    rate: int = 60_000,
    rows: int = 336_776,
    jobs: bool = False,
    **world: Any,
) -> World:
    """`count` tasks share `rows`; so many slots run one after the other, with about `pause` seconds between them.

    `jobs`: each of them is a job of its own.
    """
    run = World(rate, **world)
    left = [rows * (number + 1) // count - rows * number // count for number in range(count)]

    def next_task() -> None:
        if left:
            seconds = pause * (0.9 + 0.2 * run.random.random())
            job = f"job {len(left)}" if jobs else "job"
            run.worker(rows=left.pop(), start=run.clock.at + seconds, on_done=next_task, job=job)

    for _ in range(slots):
        next_task()
    run.run(10 * rows / rate)
    return run


def used_until_done(world: World) -> float:
    """Share of the row limit that was used from the first row to the last."""
    assert world.rates[0] is not None
    assert all(worker.done_at is not None for worker in world.workers)
    begin, end = world.paid[0][0], world.paid[-1][0]
    return sum(rows for _, rows, *_ in world.paid) / (world.rates[0] * (end - begin))


class SkewedClock:
    """Another host's clock: it started at another time, and runs a little faster or slower."""

    def __init__(self, clock: HandClock, offset: float, drift: float) -> None:
        self._clock, self._offset, self._drift = clock, offset, drift

    def now(self) -> float:
        return self._offset + self._clock.at * (1 + self._drift)

    def at(self, here: float) -> float:
        """The world's time when this clock says `here`."""
        return (here - self._offset) / (1 + self._drift)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a single thread does not sleep")

    def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
        raise AssertionError("a single thread does not wait")


class Worker:
    """One Spark task with one channel: it pays slice after slice, `think` seconds apart.

    `rows`: what it has to move (None = without end). `speed`: rows per second that its source gives.
    `waits`: for how many seconds its payments waited, by reason.
    `stalls`: (seconds on, seconds off) of its source. `offset`, `drift`: of its host's clock. `on_done`: called when
    all is moved.
    """

    def __init__(
        self,
        world: World,
        *,
        job: str = "job",
        rows: int | None = None,
        row_bytes: int = 100,
        speed: float = 1e9,
        stalls: tuple[float, float] | None = None,
        start: float = 0.0,
        timeout: float = 10.0,
        offset: float = 0.0,
        drift: float = 0.0,
        on_done: Callable[[], None] = lambda: None,
    ) -> None:
        self.on_done = on_done
        self.world = world
        self.clock = SkewedClock(world.clock, offset, drift)
        self.limiter = LeaseLimiter(LIMIT, job, clock=self.clock, timeout=timeout)
        self.rows_left = rows
        self.row_bytes = row_bytes
        self.speed = speed
        self.stalls = stalls
        self.start = start
        self._amount = 0
        self.alive = True
        self.reachable = True
        self.done_at: float | None = None
        self.error: Exception | None = None
        self.waits: dict[str, float] = {}
        self._waits_for = ""
        self._looked_at = 0.0
        self._turn = 0
        self._pump_turn = 0
        self._listens_as = ""
        world.at(start, self._produce)

    def crash(self) -> None:
        self.alive = False

    def _produce(self) -> None:
        if not self.alive:
            return
        if self.rows_left == 0:
            self.done_at = self.world.clock.at
            self.limiter.close()
            self._pump()
            self.on_done()
            return
        pause = self._pause()
        if pause:
            self.world.after(pause, self._produce)
            return
        most_rows, most_bytes = self.limiter.slice_size()
        rows = min(most_rows or 1 << 40, max(1, (most_bytes or 1 << 60) // self.row_bytes), 1 << 40)
        rows = min(rows, 10_000, rows if self.rows_left is None else self.rows_left)
        payment = self.limiter.pay(rows, rows * self.row_bytes, self._woken)
        self._payment = payment
        self._amount = rows
        self._begun = self.world.clock.at
        self._waits_for = ""
        self._pump()
        self._check(payment)

    def _pause(self) -> float:
        if self.stalls is None:
            return 0.0
        on, off = self.stalls
        phase = (self.world.clock.at - self.start) % (on + off)
        return on + off - phase + 1e-9 if phase >= on else 0.0

    def _woken(self) -> None:
        self._turn += 1
        payment = self._payment
        self.world.after(0.0, lambda: self._check(payment))

    def _check(self, payment: Payment) -> None:
        if not self.alive or payment is not self._payment:
            return
        self._turn += 1
        turn = self._turn
        now = self.world.clock.at
        if self._waits_for:
            before = self.waits.get(self._waits_for, 0.0)
            self.waits[self._waits_for] = before + now - self._looked_at
        try:
            wait = payment.remaining()
        except (ServiceUnavailableError, ServiceDeniedError) as error:
            self.error = error
            self.alive = False
            return
        seconds, self._waits_for, self._looked_at = wait.seconds, wait.reason, now
        assert seconds is not None
        if seconds:
            self.world.after(
                seconds + 1e-7, lambda: self._check(payment) if turn == self._turn else None
            )
            return
        self._payment = None  # type: ignore[assignment] # it is not looked at between two payments
        rows = self._amount
        self.world.paid.append(
            (self.world.clock.at, rows, rows * self.row_bytes, self, self._begun)
        )
        if self.rows_left is not None:
            self.rows_left -= rows
        self.world.after(rows / self.speed, self._produce)

    def listen(self, within: float = 0.4) -> None:
        request, world = self.limiter.listen(), self.world
        if request is None or not self.alive:
            return

        def arrive() -> None:
            if self.reachable and world.up:
                reply = world.call(request)
                world.after(0.75 * within * world.random.random(), lambda: land(reply))

        def land(reply: Reply) -> None:
            if (
                self.alive
                and self.reachable
                and world.up
                and isinstance(reply, (LimitChanged, Rejected))
            ):
                self.limiter.limit_changed(request, reply)
                self._pump()

        world.after(0.25 * within * world.random.random(), arrive)

    def _pump(self) -> None:
        if not self.alive and self.error is None:
            return
        self._pump_turn += 1
        turn = self._pump_turn
        request, at = self.limiter.due()
        if request is not None:
            self._send(request)
        elif at is not None:
            self.world.at(
                self.clock.at(at) + 1e-7, lambda: self._pump() if turn == self._pump_turn else None
            )

    def _send(self, request: Request) -> None:
        world = self.world
        there, back = (world.latency * (0.5 + world.random.random()) / 2 for _ in range(2))

        def lost() -> None:
            self.limiter.failed(request, ServiceUnavailableError("no answer"))
            self._pump()

        def arrive() -> None:
            if not (self.reachable and world.up):
                world.after(0.5, lost)
                return
            reply = world.call(request)
            world.after(back, lambda: land(reply))

        def land(reply: Reply) -> None:
            if not self.alive:
                return
            if not (self.reachable and world.up):
                world.after(0.5, lost)
                return
            self.limiter.receive(request, reply)
            self._pump()
            heard = self.limiter.listen()
            if heard is not None and heard.client != self._listens_as:
                self._listens_as = heard.client
                # Reports immediately what happened before it listened.
                self.listen(world.latency / 2)

        world.after(there, arrive)
