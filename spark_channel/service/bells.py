"""`Bells`: calls that wait until there is something new to tell."""

import threading

__all__ = ["LISTEN_SECONDS", "Bells"]

LISTEN_SECONDS = 60.0
"""How long a call listens at most. A client that was lost costs a thread for so long."""

MOST_LISTENERS = 2_000
"""Each is a thread of the server's that sleeps."""


class Bells:
    """One bell for each client that listens to a limit. Thread-safe."""

    def __init__(self, most: int = MOST_LISTENERS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._bells: dict[str, dict[str, threading.Event]] = {}
        self._count = 0
        self._ended = False

    def hang(self, limit: str, client: str) -> threading.Event | None:
        """A bell for `client`, before it looks for news; None when there are too many, or it is the end.

        An earlier one of the same client rings.
        """
        bell = threading.Event()
        with self._lock:
            if self._ended or self._count >= self._most:
                return None
            bells = self._bells.setdefault(limit, {})
            before = bells.get(client)
            bells[client] = bell
            if before is None:
                self._count += 1
            else:
                before.set()
        return bell

    def is_up(self, limit: str, client: str, bell: threading.Event) -> bool:
        """`bell` is still the one of that client, and it is not the end."""
        with self._lock:
            return not self._ended and self._bells.get(limit, {}).get(client) is bell

    def take_down(self, limit: str, client: str, bell: threading.Event) -> None:
        """Forget `bell`, unless the client has another one by now."""
        with self._lock:
            bells = self._bells.get(limit, {})
            if bells.get(client) is bell:
                del bells[client]
                self._count -= 1
                if not bells:
                    del self._bells[limit]

    def ring(self, limit: str, client: str | None = None) -> None:
        """Wake who listens to `limit` and its marks: all, or `client` alone."""
        with self._lock:
            if client is not None:
                bell = self._bells.get(limit, {}).get(client)
                rung = [] if bell is None else [bell]
            else:
                rung = [
                    bell
                    for name, bells in self._bells.items()
                    if name.partition("@")[0] == limit.partition("@")[0]
                    for bell in bells.values()
                ]
        for bell in rung:
            bell.set()

    def end(self) -> None:
        """Ring all, and hang no more."""
        with self._lock:
            self._ended = True
            rung = [bell for bells in self._bells.values() for bell in bells.values()]
        for bell in rung:
            bell.set()
