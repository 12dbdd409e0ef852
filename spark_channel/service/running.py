"""The services of this process, for a consumer that shows its job in one that runs already."""

import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spark_channel.service.jobs import JobRegistry
    from spark_channel.service.limits import LimitService

__all__ = ["RunningService", "note_running", "note_stopped", "running_service"]


class RunningService(Protocol):
    """What `ServiceServer` gives to its own process."""

    jobs: "JobRegistry"
    limits: "LimitService"


_running: list[tuple[int, RunningService]] = []
"""Each with its pid: a forked child inherits the list, and not their threads."""


def note_running(service: RunningService) -> None:
    """Let `running_service` find a service of this process."""
    _running.append((os.getpid(), service))


def note_stopped(service: RunningService) -> None:
    """Undo `note_running`."""
    _running[:] = [entry for entry in _running if entry[1] is not service]


def running_service() -> RunningService | None:
    """Return the service of this process that has run for the longest time; None without one."""
    pid = os.getpid()
    return next((service for started_by, service in list(_running) if started_by == pid), None)
