"""Ends a task that makes no progress, with `onStall=fail`."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import StalledError
from spark_channel.progress import Counters
from spark_channel.progress.stall import Growth

__all__ = ["StallWatch"]


class StallWatch:
    """Looks at counters when the first of them could have stalled, from another thread, in a `with` block.

    Args:
        seconds: without a row moved, waits for the limit left out, after which `stalled` is called, once.
        stalled: told of the error; from the watch's thread.
    """

    def __init__(
        self, seconds: float, stalled: Callable[[BaseException], None], *, clock: Clock | None = None
    ) -> None:
        self._seconds = seconds
        self._stalled = stalled
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._changed = threading.Condition()
        self._watched: dict[Counters, Growth] = {}
        self._over = False
        self._thread = threading.Thread(target=self._run, name="spark-channel-stall", daemon=True)

    def add(self, counters: Counters) -> Counters:
        """Watch these, too; returns them."""
        with self._changed:
            growth = self._watched[counters] = Growth()
            growth.see(counters.snapshot(), self._clock.now())
            self._changed.notify_all()
        return counters

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (error := self._next()) is not None:
            self._stalled(error)
            return

    def _next(self) -> StalledError | None:
        """Wait for the first that stalls; None at the end."""
        with self._changed:
            while not self._over:
                now, wait = self._clock.now(), None
                for counters, growth in list(self._watched.items()):
                    snapshot = counters.snapshot()
                    if snapshot.phase.final:
                        del self._watched[counters]
                        continue
                    growth.see(snapshot, now)
                    idle = growth.idle(snapshot, now)
                    if idle >= self._seconds:
                        return StalledError(
                            f"task {snapshot.task} has read {snapshot.rows_read} rows and written "
                            f"{snapshot.rows_written}, and none for {idle:.0f} s (options 'stallTimeout' "
                            "and 'onStall=fail'): its source or its target does not answer. Look for locks "
                            "and full disks there; Spark tries the task again, spark.task.maxFailures times"
                        )
                    left = self._seconds - idle
                    wait = left if wait is None else min(wait, left)
                self._clock.wait(self._changed, wait)
            return None
