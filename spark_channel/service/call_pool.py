"""`CallPool`: threads that carry calls which may wait, as many as are busy at a time."""

import queue
import threading
from collections.abc import Callable

from spark_channel.clock import SYSTEM_CLOCK

__all__ = ["CallPool"]

_IDLE_SECONDS = 2.0
_MOST = 2_200
"""Clients that listen (`subscriptions.MOST_LISTENERS`), and as many again as are ever busy with something else."""


class CallPool:
    """Daemon threads: one that is stuck in a call does not hold the end of the program."""

    def __init__(self, name: str, most: int = _MOST) -> None:
        self._name, self._most = name, most
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._ended = False

    def take(self, call: Callable[[], None]) -> bool:
        """Carry out `call` in a thread; False when all are busy, or it is the end."""
        with self._lock:
            if self._ended:
                return False
            if self._idle:
                self._idle -= 1
            elif len(self._threads) >= self._most:
                return False
            else:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending, and since Python 3.12 starts no thread
                    return False
                self._threads.add(thread)
            self._work.put(call)
        return True

    def end(self, seconds: float) -> bool:
        """No more calls; False when some did not end within `seconds`."""
        with self._lock:
            self._ended = True
            threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        until = SYSTEM_CLOCK.now() + seconds
        for thread in threads:
            thread.join(max(0.0, until - SYSTEM_CLOCK.now()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        try:
            while (call := self._next()) is not None:
                call()
                with self._lock:
                    self._idle += 1
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._work.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            pass
        with self._lock:
            # A call that was put down for one who is idle is taken by one of them: it is there by now.
            try:
                return self._work.get_nowait()
            except queue.Empty:
                self._idle -= 1
                return None
