"""What a coordinator costs over the network: a service process, and clients that keep their grants fresh.

    python -m tests.benchmarks.service_load [--clients 1000] [--seconds 15]

The service is `SharedLimit` in its own process, whose CPU is read from the system. The clients are the
real `LeaseLimiter` and the real connection, one of each per client, driven by a few threads of one process.
"""

import argparse
import heapq
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from spark_channel.errors import ServiceUnavailableError
from spark_channel.limits import LeaseLimiter, Leave, LimitChanged, Request, decode_reply, encode
from spark_channel.service import ServiceAddress, SharedLimit, find_shared_limit
from spark_channel.service.connection import Connection

__all__ = ["ServiceLoad", "measure"]

LIMIT = "service-load"
ROWS_PER_SECOND = 1_000_000
THREADS = 8
SLICE = 0.05
WARM_UP = 25.0
"""Until every client had a grant of the full length: the first ones are short."""
LOOK = 0.25
"""How often a client is looked at, at least: a task has its own thread, which news wakes immediately."""


@dataclass(frozen=True, slots=True)
class ServiceLoad:
    """CPU of the service process (a share of one core), requests per second, and seconds of a live change.

    From `set` until every client spends its part of the new limit: `lowered` to the half, `raised` to the whole.
    """

    cpu: float
    requests: float
    lowered: float
    raised: float


def _serve(pipe: Pipe) -> None:
    with SharedLimit(LIMIT, ROWS_PER_SECOND) as limit:
        pipe.send(None)
        while (rate := pipe.recv()) is not None:
            limit.set(rate)
            pipe.send(None)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """One task: always saturated."""

    def __init__(self, address: ServiceAddress, number: int) -> None:
        self.limiter = LeaseLimiter(LIMIT, "job", f"task {number}")
        self.connection = Connection(address)
        self._ended = threading.Event()
        self._listener = threading.Thread(target=self._listen, args=(address,))
        self.payment = self.limiter.pay(1 << 50, 0, lambda: None)

    def step(self) -> tuple[int, float | None]:
        """(requests sent, when to come again)."""
        sent = 0
        while (due := self.limiter.due())[0] is not None:
            self.send(due[0])
            sent += 1
        return sent, due[1]

    def send(self, request: Request) -> None:
        try:
            data = self.connection.send("coordinator", encode(request), timeout=5.0)
        except ServiceUnavailableError as error:
            self.limiter.failed(request, error)
        else:
            self.limiter.receive(request, decode_reply(data))
            if self._listener.ident is None and self.limiter.listen() is not None:
                self._listener.start()
        if self.limiter._broken is not None:
            raise self.limiter._broken

    def _listen(self, address: ServiceAddress) -> None:
        """As `LeaseMessenger` does."""
        with Connection(address) as connection:
            while not self._ended.is_set():
                request = self.limiter.listen()
                if request is None:
                    self._ended.wait(1.0)
                    continue
                try:
                    for data in connection.stream("listen", encode(request), timeout=65.0):
                        if isinstance(news := decode_reply(data), LimitChanged):
                            self.limiter.limit_changed(request, news)
                except ServiceUnavailableError:
                    return

    def close(self) -> None:
        self._ended.set()
        self.limiter.close()
        request, _ = self.limiter.due()
        if isinstance(request, Leave):
            self.send(request)
        self.connection.close()

    def join(self) -> None:
        if self._listener.ident is not None:
            self._listener.join(70.0)


class Drivers:
    """Threads that serve the clients when they are due."""

    def __init__(self, clients: list[Client]) -> None:
        self.requests = 0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(clients[part::THREADS],))
            for part in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, clients: list[Client]) -> None:
        turns = itertools.count()
        due = [
            (time.monotonic() + 2.0 * index / len(clients), next(turns), each)
            for index, each in enumerate(clients)
        ]
        heapq.heapify(due)
        while not self._ended.is_set():
            at, _, client = due[0]
            if at > time.monotonic():
                self._ended.wait(min(SLICE, at - time.monotonic()))
                continue
            sent, again = client.step()
            if sent:
                with self._lock:
                    self.requests += sent
            soon = time.monotonic() + LOOK
            heapq.heapreplace(
                due, (min(soon, again) if again is not None else soon, next(turns), client)
            )


def measure(clients: int = 1_000, seconds: float = 15.0) -> ServiceLoad:
    """Run the load, then halve the limit, and double it."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    service = context.Process(target=_serve, args=(other,))
    service.start()
    pipe.recv()
    address = find_shared_limit(LIMIT).service
    fleet = [Client(address, number) for number in range(clients)]
    drivers = Drivers(fleet)
    try:
        time.sleep(WARM_UP)
        assert service.pid is not None
        cpu, requests, since = cpu_seconds(service.pid), drivers.requests, time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - since
        cpu, requests = cpu_seconds(service.pid) - cpu, drivers.requests - requests
        fair = ROWS_PER_SECOND / clients
        lowered = _change(pipe, fleet, ROWS_PER_SECOND // 2, lambda pace: pace < 0.75 * fair)
        time.sleep(5.0)
        raised = _change(pipe, fleet, ROWS_PER_SECOND, lambda pace: pace > 0.75 * fair)
    finally:
        drivers.end()
        for each in fleet:
            each.close()
        for each in fleet:
            each.join()
        pipe.send(None)
        service.join()
    return ServiceLoad(cpu / took, requests / took, lowered, raised)


def _change(pipe: Pipe, fleet: list[Client], rate: int, good: Callable[[float], bool]) -> float:
    """Set `rate`; seconds until every client spends at a good pace, 30 at most."""
    begin = time.monotonic()
    pipe.send(rate)
    pipe.recv()
    late = fleet
    while late and time.monotonic() < begin + 30:
        late = [each for each in late if not good(each.limiter.rows_per_second or 0.0)]
        time.sleep(0.01)
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    print(measure(options.clients, options.seconds))


if __name__ == "__main__":
    main()
