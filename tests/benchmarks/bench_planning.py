"""How long the driver plans: merge and assign 100 000 tasks on 100 hosts (asked: under 2 s)."""

import time

from spark_channel.planning import Endpoint, Split, TransferPlan, TransferSpec, plan

TASKS = 100_000
LIMIT_SECONDS = 2.0


def plan_many() -> tuple[float, TransferPlan]:
    """Seconds of one core for one plan of `TASKS` tasks of unequal size into 1 000 groups of 5 channels."""
    spec = TransferSpec(
        Endpoint("generator"), Endpoint("discard"), channels=5_000, channels_per_task=5
    )
    splits = [Split({"n": number}, rows=number * 7919 % 10_007) for number in range(TASKS)]
    marks = [f"host-{number % 100}" for number in range(TASKS)]
    start = time.process_time()
    made = plan(spec, splits, parallelism=2, reader_marks=marks)
    return time.process_time() - start, made


def test_100_000_tasks_plan_in_under_two_seconds() -> None:
    seconds, made = plan_many()
    print(f"\nplan {TASKS} tasks: {seconds:.2f} s (asked: under {LIMIT_SECONDS:.0f} s)")
    assert len(made.groups) == 1_000
    assert sum(len(group.tasks) for group in made.groups) == TASKS
    assert seconds < LIMIT_SECONDS
