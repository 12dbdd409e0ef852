"""`Absent`: which clients may be spending a static share of the limit, because they do not reach the coordinator."""

from collections.abc import Iterable

from spark_channel.limits.issued_grants import Client
from spark_channel.limits.level import nanoseconds

__all__ = ["STATIC_HEARTBEAT", "Absent"]

STATIC_HEARTBEAT = 3.0
"""Seconds between two signs of life of a client that falls back on its static share when it is cut off."""

SILENT_SECONDS = 8.0
"""A client that is cut off spends its static share 10 s after its first request without an answer: by then what it
may spend has to be set aside."""

LAUNCH_SECONDS = 3.0
"""A task that never reached the coordinator begins with its static share after 4 s."""


class Absent:
    """Of `tasks` clients, each with 1/tasks of the limit when it is cut off, those that are not heard of.

    `at_once`: all of them run at a time, so that one that never joined is one that cannot. Else only those are
    counted that joined and fell silent. What is set aside for a client comes free when it is heard of again,
    leaves, or when another attempt of its task joins.
    """

    def __init__(self, tasks: int, at_once: bool) -> None:
        self._tasks = tasks
        self._at_once = at_once
        self._silent: dict[str, tuple[str, str]] = {}
        self._newest: dict[tuple[str, str], str] = {}
        """Of each task the client that joined last: one before it belongs to an attempt that is over."""
        self._names: set[str] = set()
        self._first: int | None = None
        self.count = 0

    @property
    def factor(self) -> float:
        """The part of the limit that is left for those who are heard of."""
        return max(0, self._tasks - self.count) / self._tasks

    def joined(self, client: Client, before: str, now: int) -> None:
        self._first = now if self._first is None else self._first
        if len(self._names) < self._tasks:
            self._names.add(client.name)
        self._silent.pop(before, None)
        self._newest[client.job.name, client.name] = client.id
        self._forget((client.job.name, client.name))

    def heard(self, client: Client) -> None:
        self._silent.pop(client.id, None)

    def left(self, client: Client) -> None:
        """Its task is done, or begins again with another client."""
        task = client.job.name, client.name
        self._forget(task)
        if self._newest.get(task) == client.id:
            del self._newest[task]

    def _forget(self, task: tuple[str, str]) -> None:
        for earlier in [each for each, one in self._silent.items() if one == task]:
            del self._silent[earlier]

    def look(self, clients: Iterable[Client], heartbeat: float, now: int) -> bool:
        """Look for silent ones among `clients`, the longest silent first; whether `count` has changed."""
        silence = nanoseconds(max(SILENT_SECONDS, heartbeat + SILENT_SECONDS - STATIC_HEARTBEAT))
        for client in clients:
            if client.seen + silence > now:
                break
            task = client.job.name, client.name
            if self._newest.get(task) == client.id and len(self._silent) < self._tasks:
                self._silent[client.id] = task
        count = len(self._silent)
        if self._at_once and self._first is not None and now - self._first >= nanoseconds(LAUNCH_SECONDS):
            count += self._tasks - len(self._names)
        changed, self.count = count != self.count, count
        return changed
