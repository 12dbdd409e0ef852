"""The times of rows that are counted later: at the end of their transaction, and by the next report."""

from collections import deque
from dataclasses import dataclass, field

from spark_channel.progress.counters import Snapshot

__all__ = ["Landing"]

_MOST_PUSHES = 100


@dataclass(frozen=True, slots=True)
class _Push:
    """Rows went into the channel, from `begin` to `end`: after `before` of them there were `after`."""

    begin: float
    end: float
    before: int
    after: int

    def when(self, rows: int) -> float:
        """The time at which that many rows had entered the channel."""
        share = (rows - self.before) / (self.after - self.before)
        return self.begin + min(1.0, max(0.0, share)) * (self.end - self.begin)


@dataclass(slots=True)
class Landing:
    """The times at which the rows of one attempt were written, on its own clock.

    A row is written after it was pushed, and before it is counted. Between the two, rows are taken to be as far behind
    their push as the ones before them: so neither the ends of transactions nor the times of reports make speeds that
    there were not.
    """

    landed: float = 0.0
    """When the last of the rows was written that are counted."""
    lag: float = 0.0
    seen: float = 0.0
    pushed: int = 0
    pushes: deque[_Push] = field(default_factory=lambda: deque(maxlen=_MOST_PUSHES))

    def times(self, snapshot: Snapshot, before: int) -> tuple[float, float]:
        """From when to when the rows were written that `snapshot` counts after the `before` ones of the last one."""
        seen, self.seen = self.seen, snapshot.seconds
        if snapshot.rows_pushed > self.pushed:
            self.pushes.append(_Push(seen, snapshot.seconds, self.pushed, snapshot.rows_pushed))
            self.pushed = snapshot.rows_pushed
        if snapshot.rows_written <= before:
            return snapshot.seconds, snapshot.seconds
        while len(self.pushes) > 1 and self.pushes[0].after <= before:
            self.pushes.popleft()
        first = self.pushes[0].when(before) if self.pushes else 0.0
        last = self._pushed_at(snapshot.rows_written, snapshot.seconds)
        end = min(max(last + self.lag, seen), snapshot.seconds)
        begin = min(max(self.landed, first), end)
        self.landed, self.lag = end, end - last
        return begin, end

    def _pushed_at(self, rows: int, otherwise: float) -> float:
        return next((push.when(rows) for push in self.pushes if rows <= push.after), otherwise)
