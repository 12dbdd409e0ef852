"""What it costs to see how a job goes: CPU of a task's reports, of the service that takes them, and of the line.

Client, service and display run in this process, so that its CPU time is that of all three; a loop that counts the same
unread batches is taken off.
"""

import io
import time
from collections.abc import Callable

from spark_channel.progress import Counters, JobSpec
from spark_channel.service import ProgressDisplay, ServiceClient, ServiceServer
from tests.benchmarks.harness import Row

SECONDS = 10.0
BATCHES_PER_SECOND = 50
"""A channel's batches under a limit: each holds 20 ms of it."""
TASKS = 8


def _count(counters: list[Counters]) -> float:
    """CPU seconds of this process while `counters` count for `SECONDS`."""
    begin, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - begin < SECONDS:
        for each in counters:
            each.read(2_000, 100_000)
            each.pushed(2_000, 100_000)
            each.wrote(2_000, 100_000)
            each.waited("limit:rows", 0.019)
        time.sleep(1 / BATCHES_PER_SECOND)
    return time.process_time() - cpu


def _seen(tasks: int) -> float:
    with ServiceServer() as server, ProgressDisplay("terminal", stream=io.StringIO()) as display:
        server.jobs.subscribe(display)
        with ServiceClient(server.address, "bench", JobSpec("read", rows_expected=10**9)) as client:
            return _count([client.counters(number, number) for number in range(tasks)])


def _share(seen: Callable[[], float], tasks: int) -> float:
    """Percent of one core, for each task."""
    alone = _count([Counters(number, number) for number in range(tasks)])
    return 100 * (seen() - alone) / SECONDS / tasks


def main() -> list[Row]:
    note = f"client, service and terminal together, {SECONDS:g} s"
    return [
        Row("progress of one task, of a core", _share(lambda: _seen(1), 1), "< 1", "%", note),
        Row(
            f"progress of {TASKS} tasks, of a core each",
            _share(lambda: _seen(TASKS), TASKS),
            "< 1",
            "%",
            note,
        ),
    ]
