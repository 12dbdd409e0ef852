"""A copy under a limit on a virtual clock: short statements of a source that is late now and then, and payments."""

import random
import threading
from collections.abc import Callable
from itertools import accumulate

import pyarrow as pa

from spark_channel.connectors.sql.pacing import ReadPacer
from spark_channel.limits import RateLimiter
from spark_channel.pipeline.threads import PrefetchingPayer
from spark_channel.testing import VirtualClock

SECONDS = 30.0
SLICE = 0.02


class LimitedCopy:
    """Some tasks, one behind the other: their rows are read in short statements, and paid in slices.

    A piece takes `latency` seconds, the rows' own and what `late` returns. `paid` has (when, rows) of each payment.
    """

    def __init__(
        self,
        speed: float,
        late: Callable[[float], float],
        *,
        latency: float = 0.0005,
        row_seconds: float = 0.000_001,
        task_seconds: float = 2.5,
        open_seconds: float = 0.003,
    ) -> None:
        self.clock = VirtualClock()
        self.speed, self.late, self.latency, self.row_seconds = speed, late, latency, row_seconds
        self.task_rows = int(speed * task_seconds)
        self.open_seconds = open_seconds
        self.limiter = RateLimiter(speed, clock=self.clock)
        self.pacer = ReadPacer(0.0003, empty_seconds=latency, speed=speed, clock=self.clock)
        self.asked: list[tuple[float, int]] = []
        self.paid: list[tuple[float, int]] = []
        self.read = 0
        self.most_ahead = 0.0

    def run(self) -> None:
        """Move the rows of `SECONDS`."""
        errors: list[BaseException] = []
        thread = threading.Thread(target=self._run, args=(errors,), daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert errors == []

    def used(self, begin: float = 0.0) -> float:
        """The part of the limit that was used after `begin`, until the last row."""
        first = max(begin, self.paid[0][0])
        rows = sum(rows for at, rows in self.paid if at > first)
        return rows / self.speed / (self.paid[-1][0] - first)

    def worst(self, seconds: float) -> float:
        """The largest part of the limit that was used in a window of so many seconds."""
        sums, end, most = [0, *accumulate(rows for _, rows in self.paid)], 0, 0
        for begin, (at, _) in enumerate(self.paid):
            while end < len(self.paid) and self.paid[end][0] < at + seconds:
                end += 1
            most = max(most, sums[end] - sums[begin])
        return most / seconds / self.speed

    def _run(self, errors: list[BaseException]) -> None:
        try:
            payer = PrefetchingPayer(
                errors.append, limiter=self.limiter, name="pay", clock=self.clock
            )
            with payer:
                left = int(self.speed * SECONDS)
                while left > 0:
                    self._task(payer, min(left, self.task_rows))
                    payer.then(lambda: None)
                    left -= self.task_rows
        except BaseException as error:
            errors.append(error)

    def _task(self, payer: PrefetchingPayer, left: int) -> None:
        self.clock.sleep(self.open_seconds)
        while left > 0:
            asked = min(self.pacer.statement_rows, max(1, int(self.speed / 2)))
            begun, rows = self.clock.now(), self._statement(asked, min(asked, left))
            ended = self.clock.now()
            left -= rows
            self.read += rows
            paid = sum(rows for _, rows in self.paid)
            self.most_ahead = max(self.most_ahead, (self.read - paid) / self.speed)
            payer.put(self._pay, pa.record_batch({"n": pa.nulls(rows)}), 8 * rows)
            self.pacer.handed_on(rows, ended - begun, self.clock.now() - ended)

    def _statement(self, asked: int, come: int) -> int:
        self.pacer.begin(asked)
        taken = 0
        while taken < come:
            self.pacer.rest()
            rows, at = min(self.pacer.rows, come - taken), self.clock.now()
            self.clock.sleep(self.latency + self.row_seconds * rows + self.late(at))
            self.pacer.took(rows, self.clock.now() - at)
            self.asked.append((at, rows))
            taken += rows
        return taken

    def _pay(self, batch: pa.RecordBatch, _nbytes: int) -> None:
        left = batch.num_rows
        while left:
            rows = min(left, max(1, int(self.speed * SLICE)))
            payment = self.limiter.pay(rows, 0, lambda: None)
            while wait := payment.remaining().seconds:
                self.clock.sleep(wait)
            self.paid.append((self.clock.now(), rows))
            left -= rows


def never(_at: float) -> float:
    return 0.0


def jitter(seed: int) -> Callable[[float], float]:
    """A server that others keep a third busy: a third of the pieces waits a millisecond or so, some for long."""
    chance = random.Random(seed)

    def late(_at: float) -> float:
        if chance.random() < 0.005:
            return 0.05
        return chance.expovariate(1 / 0.001) if chance.random() < 0.33 else 0.0

    return late


def pauses(_at: float) -> float:
    """The server pauses for 0.3 s, every three seconds or so."""
    return 0.3 if _at % 3.0 < 0.004 else 0.0
