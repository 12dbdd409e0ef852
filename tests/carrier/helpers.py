"""Batches to count, consumers that remember, threads that must end."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from spark_channel.carrier import Consumer
from spark_channel.clock import SystemClock

JOIN_SECONDS = 30.0
"""When a thread that must end has not, the test fails instead of hanging."""


def batch(*values: int) -> pa.RecordBatch:
    """One int64 column `n` of 8 bytes per row."""
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def values(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [value for each in batches for value in each.column("n").to_pylist()]


class Collector(Consumer):
    """Remembers every call, by the thread it came in. Safe to share between threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.events: list[str] = []
        self.calls: list[list[int]] = []
        self.threads: list[str] = []
        self.errors: list[tuple[list[int], Exception]] = []
        self.changed = threading.Condition(self.lock)

    def init(self) -> None:
        self._note("init")

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        with self.lock:
            self.calls.append(values(batches))
        self._note("consume")

    def on_error(self, batches: list[pa.RecordBatch], error: Exception) -> None:
        with self.lock:
            self.errors.append((values(batches), error))
        self._note("on_error")

    def on_exit(self) -> None:
        self._note("on_exit")

    def values(self) -> list[int]:
        with self.lock:
            return [value for call in self.calls for value in call]

    def wait_for(self, rows: int) -> None:
        """Until `rows` have come."""
        with self.changed:
            came = self.changed.wait_for(lambda: sum(map(len, self.calls)) >= rows, JOIN_SECONDS)
            assert came, f"{sum(map(len, self.calls))} of {rows} rows came"

    def _note(self, event: str) -> None:
        with self.changed:
            self.events.append(event)
            self.threads.append(threading.current_thread().name)
            self.changed.notify_all()


class Gate(Collector):
    """A collector that is busy until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.opened = threading.Event()

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        self.entered.set()
        assert self.opened.wait(JOIN_SECONDS)
        super().consume(batches)


class CountingClock(SystemClock):
    """The machine's clock, which remembers what was waited for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.timeouts: list[float | None] = []
        self.sleeping = threading.Semaphore(0)

    def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
        with self.lock:
            self.timeouts.append(timeout)
        self.sleeping.release()
        return super().wait(condition, timeout)


older_threads: set[threading.Thread] = set()
"""Those of the process when the test began: signals have one from the first session of Spark on."""


def consumer_threads() -> list[threading.Thread]:
    started = set(threading.enumerate()) - older_threads
    return [thread for thread in started if thread.name.startswith("spark-channel-")]


class Runner(threading.Thread):
    """A thread whose result, or error, is given back by `get`."""

    def __init__(self, what: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._what = what
        self.result: object = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._what()
        except BaseException as error:
            self.error = error

    def get(self) -> object:
        self.join(JOIN_SECONDS)
        assert not self.is_alive(), "the thread hangs"
        if self.error is not None:
            raise self.error
        return self.result


def start(what: Callable[[], object]) -> Runner:
    runner = Runner(what)
    runner.start()
    return runner


@contextmanager
def at_once(*whats: Callable[[], object]) -> Iterator[list[Runner]]:
    """Run them at the same time; at the end of the block all have ended, and none has raised."""
    barrier = threading.Barrier(len(whats))

    def run(what: Callable[[], object]) -> object:
        barrier.wait(JOIN_SECONDS)
        return what()

    runners = [start(lambda what=what: run(what)) for what in whats]  # type: ignore[misc] # mypy infers no lambda with a default
    yield runners
    for runner in runners:
        runner.get()
