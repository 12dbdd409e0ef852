"""DataX's own flow control, written from its description, to be run beside ours.

After each push, when 20 ms have passed since the last look: speed = delta / interval, and above the limit
a sleep of `speed * interval / limit - interval`, the longer of rows and bytes. The snapshot carries the
time before the sleep. Times are whole milliseconds of the wall clock.
"""

from dataclasses import dataclass

__all__ = ["FLOW_CONTROL_MS", "DataxChannel"]

FLOW_CONTROL_MS = 20


@dataclass(slots=True)
class DataxChannel:
    """The limit of one channel; 0 = off."""

    rows_per_second: int = 0
    bytes_per_second: int = 0
    rows: int = 0
    nbytes: int = 0
    last_ms: int = 0
    last_rows: int = 0
    last_bytes: int = 0

    def push(self, rows: int, nbytes: int, now: float) -> float:
        """Seconds to sleep after a push at `now` seconds."""
        self.rows += rows
        self.nbytes += nbytes
        now_ms = int(now * 1000 + 1e-6)
        interval = now_ms - self.last_ms
        if interval < FLOW_CONTROL_MS:
            return 0.0
        sleep = 0
        for limit, total, last in (
            (self.bytes_per_second, self.nbytes, self.last_bytes),
            (self.rows_per_second, self.rows, self.last_rows),
        ):
            if limit > 0:
                speed = (total - last) * 1000 // interval
                if speed > limit:
                    sleep = max(sleep, speed * interval // limit - interval)
        self.last_ms, self.last_rows, self.last_bytes = now_ms, self.rows, self.nbytes
        return sleep / 1000
