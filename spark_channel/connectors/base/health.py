"""Health signals of the system that a connector reads or writes, so that a job can slow down in time."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import ChannelError
from spark_channel.limits import HealthSample

__all__ = [
    "Health",
    "RowCost",
    "SessionHealth",
    "StatementLatency",
    "WakeLatency",
    "seconds_per_row",
    "way_seconds",
]

_SEEN, _ENOUGH = 8, 4
_TRIES = 3
_LEAST_ROWS, _LEAST_PART = 50, 0.25
_LEAST_CALLS = 20
_P99 = 2.33
"""Standard deviations."""


class Health(ABC):
    """One connection that asks a system how it is; used by one thread.

    It connects with the first `sample`, and again with the next one after an error. Each `sample` must be short, since
    nothing interrupts it, and light: it is taken about four times a second, whatever the speed of the job.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def sample(self) -> HealthSample:
        """Return a sample. Signals that the role may not read are left out, and named.

        Raises:
            ChannelError: it cannot be asked.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection. Calling it again has no effect."""


class _Connection(Protocol):
    def close(self) -> None: ...


_S = TypeVar("_S", bound=_Connection)


class SessionHealth(Health, Generic[_S]):
    """The health of a server, asked in a session that `connect` opens and `ask` uses."""

    def __init__(self, cost: "RowCost | None") -> None:
        self._cost = cost or RowCost()
        self._session: _S | None = None

    @abstractmethod
    def connect(self) -> _S:
        """Open the session."""

    @abstractmethod
    def ask(self, session: _S) -> HealthSample:
        """As `sample`."""

    def sample(self) -> HealthSample:
        try:
            if self._session is None:
                self._session = self.connect()
            return self.ask(self._session)
        except ChannelError:
            self.close()
            raise

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class WakeLatency:
    """How late sessions wake up: so long they wait for a core.

    Late is what is longer than the shortest nap so far. How long that takes is the server's own affair: PostgreSQL and
    the kernel round a nap of 1 ms up to one of 2 ms, beside which waits of tenths of a millisecond do not show. None is
    shorter than `asked` seconds, whatever a server's clock says that is set back during a nap.
    """

    def __init__(self, asked: float) -> None:
        self._asked = asked
        self._least = math.inf

    def late(self, seconds: Iterable[float]) -> list[float]:
        """Seconds of each nap beyond the shortest one."""
        found = [max(self._asked, each) for each in seconds]
        self._least = min([self._least, *found])
        return [each - self._least for each in found]


class StatementLatency:
    """The latency of an application's statements, from sums that a server keeps for each kind of statement.

    `tail` is an estimate of the 99th percentile: the mean and 2.33 standard deviations, of latencies in terms of the
    mean that their kind of statement had when it was first seen. So another mixture of statements changes nothing.
    """

    def __init__(self) -> None:
        self._seen: dict[object, tuple[float, float, float]] = {}
        self._means: dict[object, float] = {}
        self._calls = self._sum = self._squares = 0.0

    def tail(self, sums: Iterable[tuple[object, float, float, float]]) -> float | None:
        """Return the tail since the last answer; None = too few statements have ended.

        `sums`: of each kind, its key, and of all its calls the number, the sum of their seconds and of the squares.
        """
        now = {key: (calls, total, squares) for key, calls, total, squares in sums if calls > 0}
        for key, (calls, total, squares) in now.items():
            before = self._seen.get(key)
            if before is None or before[0] > calls:  # new, or the server's counters began again
                self._means[key] = total / calls
                continue
            mean, more = self._means[key], calls - before[0]
            if more and mean > 0:
                self._calls += more
                self._sum += max(0.0, total - before[1]) / mean
                self._squares += max(0.0, squares - before[2]) / mean**2
        self._seen = now
        self._means = {key: self._means[key] for key in now}
        if self._calls < _LEAST_CALLS:
            return None
        mean = self._sum / self._calls
        found = mean + _P99 * math.sqrt(max(0.0, self._squares / self._calls - mean**2))
        self._calls = self._sum = self._squares = 0.0
        return found


def way_seconds(ask: Callable[[], object], clock: Clock = SYSTEM_CLOCK) -> float:
    """The way to a system and back: the least that `ask`, a statement without rows, took in three tries."""
    took = []
    for _ in range(_TRIES):
        begun = clock.now()
        ask()
        took.append(clock.now() - begun)
    return min(took)


def seconds_per_row(
    rows: int, seconds: float, way: float, *, least_rows: int = _LEAST_ROWS
) -> float | None:
    """Return the server's seconds per row in a statement that took `seconds`, `way` of them for the network.

    None = unknown: there are fewer than `least_rows`, or the network took most of the time.
    """
    worked = seconds - way
    return worked / rows if rows >= least_rows and worked >= _LEAST_PART * seconds else None


class RowCost:
    """How long a system works for one row, as the statements of this process see it; for `HealthSample.row_seconds`.

    Any thread may `add`. The median of the last statements counts: some meet a busy system, or a busy client.
    """

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_SEEN)

    def add(self, seconds: float | None) -> None:
        """Add the seconds per row of one statement; None = not known."""
        if seconds:
            self._seen.append(seconds)

    @property
    def seconds(self) -> float:
        """0.0 = not known yet: the first statements are not like the others."""
        seen = sorted(self._seen.copy())
        return seen[(len(seen) - 1) // 2] if len(seen) >= _ENOUGH else 0.0
