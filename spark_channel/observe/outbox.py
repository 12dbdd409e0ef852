"""Sends the reports of jobs to other systems, in its own thread: a job neither waits for it nor fails by it."""

import logging
import queue
import threading
from collections.abc import Callable

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.observe.metrics import Family

__all__ = ["Outbox"]

_log = logging.getLogger(__name__)

_MOST = 1_000
_END_SECONDS = 5.0


class Outbox:
    """A bounded queue before `send`, which takes one item at a time and may raise.

    `tick` is called each `every` seconds, however many items there are.

    An item is dropped and counted if the queue is full, as are those that are left when `close` has waited for
    its deadline. The first failure of each kind is logged.
    """

    def __init__(
        self,
        what: str,
        send: Callable[[object], None],
        *,
        most: int = _MOST,
        tick: Callable[[], None] = lambda: None,
        every: float | None = None,
    ) -> None:
        self.what = what
        self._send, self._tick, self._every = send, tick, every
        self._items: queue.Queue[object] = queue.Queue(most)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._counts = {"sent": 0, "failed": 0, "dropped": 0}
        self._warned: set[str] = set()
        self._closing = self._abandoned = False

    def open(self) -> None:
        """Start the thread, which can no longer start when the interpreter ends."""
        with self._lock:
            if self._closing or self._thread is not None:
                return
            thread = threading.Thread(
                target=self._run, name=f"spark-channel-{self.what}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                return
            self._thread = thread

    def put(self, item: object) -> None:
        """Have `item` sent soon; never waits."""
        self.open()
        with self._lock:
            if self._closing:
                return
            if self._thread is None:
                self._count("dropped", "the program was ending")
                return
            try:
                self._items.put_nowait(item)
            except queue.Full:
                self._count("dropped", "the receiver is too slow")

    def close(self, seconds: float | None = None) -> None:
        """Send what is left, for 5 s or `seconds` at most. Calling it again has no effect."""
        seconds = _END_SECONDS if seconds is None else seconds
        with self._lock:
            thread, self._closing = self._thread, True
        if thread is None or self._abandoned:
            return
        until = SYSTEM_CLOCK.now() + seconds
        try:
            self._items.put(_END, timeout=seconds)
        except queue.Full:
            pass
        thread.join(max(0.0, until - SYSTEM_CLOCK.now()))
        with self._lock:
            left, self._abandoned = self._items.qsize(), True
            if thread.is_alive():
                self._count(
                    "dropped",
                    f"{seconds:g} s after the program's end it was not sent",
                    max(1, left),
                )

    def counts(self) -> dict[str, int]:
        """How many items were sent, failed and dropped."""
        with self._lock:
            return dict(self._counts)

    def family(self) -> Family:
        """The counts as a metric."""
        family = Family("spark_channel_notices_total", "counter", "Notices to other systems.")
        for outcome, count in self.counts().items():
            family.samples.append(((("to", self.what), ("outcome", outcome)), count))
        return family

    def _run(self) -> None:
        due = None if self._every is None else SYSTEM_CLOCK.now() + self._every
        while not self._abandoned:
            wait = None if due is None else max(0.0, due - SYSTEM_CLOCK.now())
            try:
                item = self._items.get(timeout=wait)
            except queue.Empty:
                item = _TICK
            if self._every is not None and due is not None and SYSTEM_CLOCK.now() >= due:
                due = SYSTEM_CLOCK.now() + self._every
                self._try(self._tick)
            if item is _TICK:
                continue
            if item is _END:
                return
            if self._try(lambda item=item: self._send(item)):  # type: ignore[misc] # mypy infers no lambda with a default
                with self._lock:
                    self._counts["sent"] += 1

    def _try(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:
            _log.debug("a notice to %s failed", self.what, exc_info=True)
            with self._lock:
                self._count("failed", str(error) or type(error).__name__)
            return False
        return True

    def _count(self, outcome: str, why: str, count: int = 1) -> None:
        self._counts[outcome] += count
        if outcome not in self._warned:
            self._warned.add(outcome)
            _log.warning(
                "a notice to %s was %s: %s. The job is not affected; further ones are counted in /metrics",
                self.what,
                "dropped" if outcome == "dropped" else "not accepted",
                why,
            )


_END = object()
_TICK = object()
