"""The phases of a job and of a task."""

from enum import StrEnum

__all__ = ["Phase"]


class Phase(StrEnum):
    """Where a job or one attempt of a task stands. `done` and `failed` are final.

    An attempt is `running`, then `done` or `failed`; `planning` and `publishing` belong to jobs.
    """

    PLANNING = "planning"
    RUNNING = "running"
    PUBLISHING = "publishing"
    DONE = "done"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self in (Phase.DONE, Phase.FAILED)
