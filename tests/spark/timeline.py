"""What a recorder wrote down, and the measures that bands are given for.

At the source the promise is `limit * (window + 1.5 s)`, since fetches are sent before they are paid; at the
target it is the limit.
"""

import bisect
import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BIN = 0.1


def record(log: str, count: int) -> None:
    """One line, in one write: the instant of the monotonic clock, the process, and what is counted."""
    line = f"{time.monotonic():.6f} {os.getpid()} {count}\n".encode()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def entries(*logs: Path) -> list[tuple[float, int]]:
    """What was written down, in the order in which it happened: instants, and rows or what else was counted."""
    lines = [line.split() for log in logs for line in log.read_text().splitlines()]
    return sorted((float(at), int(count)) for at, _, count in lines)


def most_open(connections: Path) -> int:
    """The most connections that were open at one instant, of a log of +1 and -1."""
    return max(itertools.accumulate(change for _, change in entries(connections)))


class Timeline:
    """Rows over time, of all `logs` together, in seconds since `zero` (the first row's instant)."""

    def __init__(self, *logs: Path, zero: float | None = None) -> None:
        passed = entries(*logs)
        self.zero = passed[0][0] if zero is None else zero
        self.times = [at - self.zero for at, _ in passed]
        self.sums = [0, *itertools.accumulate(rows for _, rows in passed)]

    def until(self, instant: float) -> int:
        """Rows before `instant`."""
        return self.sums[bisect.bisect_left(self.times, instant)]

    def rows(self, begin: float, end: float) -> int:
        return self.until(end) - self.until(begin)

    def bins(self, end: float) -> list[int]:
        """Rows of each 100 ms from 0 to `end`."""
        return [self.rows(index * BIN, (index + 1) * BIN) for index in range(round(end / BIN))]

    def worst(self, window: float) -> int:
        """The fullest window."""
        return max((self.rows(at, at + window) for at in self.times), default=0)

    def back(self, begin: float, rate: float) -> float:
        """Seconds from `begin` to the end of the first half second at that rate."""
        steps = (begin + step * BIN for step in range(300))
        return next(
            (at + 0.5 - begin for at in steps if self.rows(at, at + 0.5) >= rate * 0.5),
            float("inf"),
        )


class Record:
    """A copy: its two timelines, when each event happened, and the limit in rows per second."""

    def __init__(
        self, source: Timeline, target: Timeline, events: list[float], rate: float
    ) -> None:
        self.source, self.target, self.events, self.rate = source, target, events, rate

    def measure(self, band: Mapping[str, Any]) -> float:
        """The figure that `band` is about."""
        timeline = {"source": self.source, "target": self.target}[band.get("at", "target")]
        value: float = getattr(self, f"_{band['measure']}")(timeline, band)
        return value

    def _worst(self, timeline: Timeline, band: Mapping[str, Any]) -> float:
        """The fullest window, over the limit."""
        window = float(band["window"])
        return timeline.worst(window) / (self.rate * window)

    def _mean(self, timeline: Timeline, band: Mapping[str, Any]) -> float:
        """The mean speed from `from` to `until` after an event, over the limit."""
        after: float = self.events[band["after"]]
        begin, end = after + float(band["from"]), after + float(band["until"])
        return timeline.rows(begin, end) / (self.rate * (end - begin))

    def _back(self, timeline: Timeline, band: Mapping[str, Any]) -> float:
        """Seconds from an event to the end of the first half second with that share of the limit."""
        return timeline.back(self.events[band["after"]], band["share"] * self.rate)

    def _down(self, timeline: Timeline, band: Mapping[str, Any]) -> float:
        """Seconds from an event to the last 100 ms above that speed, until another event or `for` seconds."""
        begin = self.events[band["after"]]
        end = self.events[band["until"]] if "until" in band else begin + band["for"]
        most = band["rows_per_second"] * BIN
        steps = range(int((end - begin) / BIN))
        busy = [
            step
            for step in steps
            if timeline.rows(begin + step * BIN, begin + (step + 1) * BIN) > most
        ]
        return (busy[-1] + 1) * BIN if busy else 0.0

    def _ahead(self, _timeline: Timeline, _band: Mapping[str, Any]) -> float:
        """The most that had left the source and not reached the target, in seconds of the limit."""
        instants = self.source.times
        most = max(self.source.until(at + 1e-6) - self.target.until(at + 1e-6) for at in instants)
        return most / self.rate
