"""Tells the code that times a step of this thread how much of it was spent connecting."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["connecting", "seconds_connecting"]


class _Thread(threading.local):
    seconds = 0.0
    inside = False


_thread = _Thread()


@contextmanager
def connecting() -> Iterator[None]:
    """The time that the block takes goes into a connection. One inside another counts once."""
    if _thread.inside:
        yield
        return
    _thread.inside, began = True, time.perf_counter()
    try:
        yield
    finally:
        _thread.seconds += time.perf_counter() - began
        _thread.inside = False


def seconds_connecting() -> float:
    """What this thread has spent so, since it began."""
    return _thread.seconds
