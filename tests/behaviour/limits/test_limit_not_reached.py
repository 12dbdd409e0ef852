"""A limit that is far above the speed of its job: nobody waits for it, and the counters say so."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from spark_channel.limits import Coordinator, LeaseLimiter, RateLimiter
from spark_channel.pipeline import DirtyBudget, GroupTransfer, TransferSource, TransferWork
from spark_channel.pipeline.threads import HeldBack, PrefetchingPayer
from spark_channel.planning import Split, Task, TaskGroup
from spark_channel.progress import Counters, DirtyLimit
from spark_channel.testing import VirtualClock
from spark_channel.transform import prepare
from tests.pipeline.fakes import SCHEMA, MemoryReader, MemoryWriter, plan

FETCH_ROWS, FETCH_SECONDS = 10, 0.02
FETCHES, TASKS = 20, 4
SPEED = FETCH_ROWS / FETCH_SECONDS
"""Of one channel."""


@pytest.mark.parametrize(("times", "held"), [(10.0, 0.0), (0.5, 8.0)])
def test_a_source_is_held_back_only_by_a_limit_below_its_speed(times: float, held: float) -> None:
    """On a virtual clock: rows come at 500 a second, in fetches that are larger than what a limit saves up."""
    clock, errors = VirtualClock(), list[BaseException]()
    limiter = RateLimiter(times * SPEED, clock=clock)
    waited = HeldBack(clock)

    def pay(batch: pa.RecordBatch, _nbytes: int) -> None:
        for _ in range(batch.num_rows):
            payment = limiter.pay(1, 0, lambda: None)
            while wait := payment.remaining().seconds:
                clock.sleep(wait)

    def run() -> None:
        payer = PrefetchingPayer(
            errors.append, limiter=limiter, name="pay", held_back=waited, clock=clock
        )
        with payer:
            for _ in range(20):
                clock.sleep(20 * FETCH_SECONDS)
                payer.put(pay, pa.record_batch({"n": pa.nulls(20 * FETCH_ROWS)}), 1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert errors == []
    assert waited.seconds() == pytest.approx(held, abs=1.0)


@pytest.mark.parametrize("channels", [2, 8])
def test_a_limit_of_ten_times_the_speed_is_not_waited_for(channels: int) -> None:
    """With real tasks, each of which has a part of the limit: at most 5 % of their time, for the first grant."""
    pause, counted = threading.Event(), list[Counters]()
    coordinator = Coordinator("l", 10 * channels * SPEED)

    def carry(limiter: LeaseLimiter) -> None:
        while (request := limiter.next_request()) is not None:
            limiter.receive(request, coordinator.handle(request))

    def count(task: Task) -> Counters:
        counted.append(Counters(task.id, 0))
        return counted[-1]

    def fetch(_split: Split, _number: int) -> None:
        pause.wait(FETCH_SECONDS)

    def run(_number: int) -> None:
        reader = MemoryReader(FETCHES, before=fetch)
        work = TransferWork(
            (TransferSource(reader, prepare((), SCHEMA)),),
            ((MemoryWriter(), plan()),),
            "j",
            1_000,
            1 << 20,
        )
        splits = [TransferSource.wrap(0, Split({"number": task})) for task in range(TASKS)]
        group = TaskGroup(0, tuple(Task(task, split) for task, split in enumerate(splits)), 1)
        limiter = LeaseLimiter("l", "job")
        messenger = threading.Thread(target=carry, args=(limiter,))
        messenger.start()
        GroupTransfer(
            work, group, 0, budget=DirtyBudget(DirtyLimit()), limiter=limiter, counters=count
        ).run()
        limiter.close()
        messenger.join()

    with ThreadPoolExecutor(channels) as pool:
        list(pool.map(run, range(channels)))
    waits = [counters.snapshot().waits for counters in counted]
    assert len(waits) == channels * TASKS
    limit = sum(seconds for of in waits for reason, seconds in of.items() if "limit" in reason)
    assert limit <= 0.05 * sum(sum(of.values()) for of in waits)
