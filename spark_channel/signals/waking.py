"""Signals wake the main thread, which alone runs their handlers.

The system gives a signal to any thread of a process, often to one that was just made. A main thread that waits in a
call, for a lock or a socket, then learns nothing, and waits until that call returns.
"""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = [
    "wake_on_signals",
    "woken_by_signals",
]

_AGAIN_SECONDS = (0.01, 0.1, 1.0)
"""After a signal the main thread is woken at once, and again: it may have been about to begin its wait."""
_END = b"\0"


def wake_on_signals() -> None:
    """From now on. In the main thread, where no other part of the program learns of signals by a descriptor."""
    if _begins():
        _SignalThread.running = _SignalThread()


@contextmanager
def woken_by_signals(on_sigterm: Callable[[], None] | None = None) -> Iterator[None]:
    """While the block runs; see `wake_on_signals`. `on_sigterm` is called in another thread, also while the main one is
    in a call that no signal ends."""
    if not _begins():
        yield
        return
    _SignalThread.running = relay = _SignalThread(on_sigterm)
    try:
        yield
    finally:
        _SignalThread.running = None
        relay.end()


def _begins() -> bool:
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "pthread_kill"
    ):
        return False
    relay = _SignalThread.running
    if relay is not None and relay.is_alive():  # in a process that was forked it is not
        return False
    if signal.getsignal(signal.SIGURG) not in (signal.SIG_DFL, signal.SIG_IGN, _nothing):
        return False
    used = signal.set_wakeup_fd(-1)
    if used != -1 and (relay is None or used != relay.writable):
        signal.set_wakeup_fd(used)
        return False
    return True


class _SignalThread(threading.Thread):
    """Hears of each signal, and interrupts the main thread by one that means nothing."""

    running: "_SignalThread | None" = None

    def __init__(self, on_sigterm: Callable[[], None] | None = None) -> None:
        super().__init__(name="spark-channel-signals", daemon=True)
        self._on_sigterm = on_sigterm
        self._main = threading.main_thread().ident or 0
        self._readable, self.writable = os.pipe()
        os.set_blocking(self.writable, False)
        self._before = signal.signal(signal.SIGURG, _nothing)
        self.start()
        signal.set_wakeup_fd(self.writable, warn_on_full_buffer=False)

    def end(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGURG, self._before)
        os.set_blocking(self.writable, True)
        os.write(self.writable, _END)
        self.join()
        os.close(self._readable)
        os.close(self.writable)

    def run(self) -> None:
        news, waits = select.poll(), list[float]()
        news.register(self._readable, select.POLLIN)
        while True:
            if news.poll(1000 * waits.pop(0) if waits else None):
                came = os.read(self._readable, 4096)
                if _END in came:
                    return
                if not set(came) - {signal.SIGURG}:
                    continue
                if signal.SIGTERM in came and self._on_sigterm is not None:
                    self._on_sigterm()
                    self._on_sigterm = None
                waits = list(_AGAIN_SECONDS)
            signal.pthread_kill(self._main, signal.SIGURG)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    pass
