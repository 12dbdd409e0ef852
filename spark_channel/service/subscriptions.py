"""`Subscriptions`: calls that wait until there is something new to tell."""

import threading

__all__ = ["LISTEN_SECONDS", "Subscriptions"]

LISTEN_SECONDS = 60.0
"""How long a call listens at most. A client that was lost costs a thread for so long."""

MOST_LISTENERS = 2_000
"""Each is a thread of the server's that sleeps."""


class Subscriptions:
    """One event for each client that listens to a limit. Thread-safe."""

    def __init__(self, most: int = MOST_LISTENERS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._subscriptions: dict[str, dict[str, threading.Event]] = {}
        self._count = 0
        self._ended = False

    def subscribe(self, limit: str, client: str) -> threading.Event | None:
        """An event for `client`, before it looks for news; None when there are too many, or it is the end.

        An earlier one of the same client is set.
        """
        event = threading.Event()
        with self._lock:
            if self._ended or self._count >= self._most:
                return None
            subscriptions = self._subscriptions.setdefault(limit, {})
            before = subscriptions.get(client)
            subscriptions[client] = event
            if before is None:
                self._count += 1
            else:
                before.set()
        return event

    def is_subscribed(self, limit: str, client: str, event: threading.Event) -> bool:
        """`event` is still the one of that client, and it is not the end."""
        with self._lock:
            return not self._ended and self._subscriptions.get(limit, {}).get(client) is event

    def unsubscribe(self, limit: str, client: str, event: threading.Event) -> None:
        """Forget `event`, unless the client has another one by now."""
        with self._lock:
            subscriptions = self._subscriptions.get(limit, {})
            if subscriptions.get(client) is event:
                del subscriptions[client]
                self._count -= 1
                if not subscriptions:
                    del self._subscriptions[limit]

    def notify(self, limit: str, client: str | None = None) -> None:
        """Wake the calls that listen to `limit` and its resources: all, or `client` alone."""
        with self._lock:
            if client is not None:
                event = self._subscriptions.get(limit, {}).get(client)
                notified = [] if event is None else [event]
            else:
                notified = [
                    event
                    for name, subscriptions in self._subscriptions.items()
                    if name.partition("@")[0] == limit.partition("@")[0]
                    for event in subscriptions.values()
                ]
        for event in notified:
            event.set()

    def end(self) -> None:
        """Wake all, and accept no more."""
        with self._lock:
            self._ended = True
            notified = [
                event for subscriptions in self._subscriptions.values() for event in subscriptions.values()
            ]
        for event in notified:
            event.set()
