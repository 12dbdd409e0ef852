"""Passes one object from one thread to another."""

import threading
from typing import Generic, TypeVar

__all__ = ["Handover"]

_T = TypeVar("_T")


class Handover(Generic[_T]):
    """Holds at most one object, so the giving thread is at most one ahead of the taking one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: list[_T] = []
        self._closed = False
        self._cancelled = False

    def give(self, thing: _T) -> bool:
        """Wait for the place to be free. False: cancelled, and `thing` was not taken."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held or self._cancelled)
            if self._cancelled:
                return False
            self._held.append(thing)
            self._changed.notify_all()
            return True

    def take(self) -> _T | None:
        """Wait for the next thing; None when it was closed and is empty, or cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._held) or self._closed or self._cancelled)
            if self._cancelled or not self._held:
                return None
            thing = self._held.pop()
            self._changed.notify_all()
            return thing

    @property
    def holds(self) -> bool:
        """Whether the giver is ahead, by what the taker takes next."""
        with self._changed:
            return bool(self._held)

    def close(self) -> None:
        """Nothing more will be given."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def cancel(self) -> None:
        """Both sides end at once."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
