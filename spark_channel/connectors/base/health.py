"""Health signals of the system that a connector reads or writes, so that a job can slow down in time."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from spark_channel.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
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

_SEEN, _ENOUGH = 15, 4
_TRIES = 3
_LEAST_ROWS, _LEAST_PART = 50, 0.25
_LEAST_CALLS = 20
_MOST_SLOWER = 10.0
_MOST_KINDS = 2_000
_SAMPLES_A_MINUTE = 240


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
    def sample(self) -> "HealthSample":
        """Return a sample. Signals that the role may not read are left out, and named.

        Raises:
            ChannelError: it cannot be asked.
        """

    @property
    def server(self) -> Hashable | None:
        """Equal for the two sides of a job that one connection can ask for both; None = each has its own."""
        return None

    def sample_for(self, other: Self, sample: "HealthSample") -> "HealthSample":
        """Return what `other`, a side of the job with the same `server`, would have said instead of `sample`."""
        return sample

    @abstractmethod
    def close(self) -> None:
        """End the connection. Calling it again has no effect."""


class _Connection(AbstractContextManager[Any], Protocol):
    """Its `with` block may keep it for the next user, as a pool does; `close` ends it."""

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
    def ask(self, session: _S) -> "HealthSample":
        """As `sample`."""

    def sample_for(self, other: Self, sample: "HealthSample") -> "HealthSample":
        return replace(sample, row_seconds=other._cost.seconds)

    def sample(self) -> "HealthSample":
        try:
            if self._session is None:
                self._session = self.connect()
            return self.ask(self._session)
        except BaseException:
            session, self._session = self._session, None
            if session is not None:
                session.close()
            raise

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with session:
                pass


class WakeLatency:
    """How late sessions wake up: so long they wait for a core.

    Late is what is longer than the shortest naps of the last minute. How long these take is the server's own affair:
    PostgreSQL and the kernel round a nap of 1 ms up to one of 2 ms, beside which waits of tenths of a millisecond do
    not show. One in thousands ends early: so the second shortest of a sample counts, or all others would be late ever
    after. None is shorter than `nap_seconds` seconds, whatever a server's clock says that is set back during a nap.
    """

    def __init__(self, nap_seconds: float) -> None:
        self._asked = nap_seconds
        self._shortest: deque[float] = deque(maxlen=_SAMPLES_A_MINUTE)

    def late(self, seconds: Iterable[float]) -> list[float]:
        """Seconds of each nap of a sample beyond the shortest ones."""
        naps = [max(self._asked, nap) for nap in seconds]
        self._shortest.extend(sorted(naps)[1:2] or naps)
        least = min(self._shortest, default=self._asked)
        return [max(0.0, nap - least) for nap in naps]


class StatementLatency:
    """The latency of an application's statements, from sums that a server keeps for each kind of statement.

    `mean` is in terms of the mean that their kind of statement had when it was first seen, so another mixture of
    statements changes nothing. It is kept when the server counts from zero again, or counts a kind again that it had
    dropped: learned then, it would be the latency beside the job. Sums of squares would show one stall in a second
    and nothing else, so no tail is computed.
    """

    def __init__(self) -> None:
        self._seen: dict[object, tuple[float, float]] = {}
        self._means: dict[object, float] = {}
        self._calls = self._sum = 0.0

    def mean(self, sums: Iterable[tuple[object, float, float]]) -> float | None:
        """Return the mean since the last answer; None = too few statements have ended.

        `sums`: of each kind, its key, and of all its calls the number and the sum of their seconds.
        """
        now = {key: (calls, total) for key, calls, total in sums if calls > 0}
        for key, (calls, total) in now.items():
            mean = self._means.setdefault(key, total / calls)
            before = self._seen.get(key)
            if before is None:
                continue
            if before[0] > calls or before[1] > total:
                before = 0.0, 0.0  # the server's counters began again
            new_calls = calls - before[0]
            if new_calls and mean > 0:
                slower = (total - before[1]) / new_calls / mean
                self._calls += new_calls
                # A report of a minute says nothing of the statements of a millisecond beside it.
                self._sum += new_calls * min(slower, _MOST_SLOWER)
        self._seen = now
        if len(self._means) > _MOST_KINDS:
            self._means = {key: self._means[key] for key in now}
        if self._calls < _LEAST_CALLS:
            return None
        times_slower = self._sum / self._calls
        self._calls = self._sum = 0.0
        return times_slower


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
        samples = sorted(self._seen.copy())
        return samples[(len(samples) - 1) // 2] if len(samples) >= _ENOUGH else 0.0
