"""The phases of a job and of a task."""

from enum import StrEnum

__all__ = ["Phase"]


class Phase(StrEnum):
    """The phase of a job or of one attempt of a task. `done`, `ended` and `failed` are final.

    An attempt is `running`, then `done` or `failed`; `planning` and `publishing` belong to jobs. One is `ended`
    when Spark wanted no more of its rows, as below a LIMIT, and so is a read of such attempts.
    """

    PLANNING = "planning"
    RUNNING = "running"
    PUBLISHING = "publishing"
    DONE = "done"
    ENDED = "ended"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self in (Phase.DONE, Phase.ENDED, Phase.FAILED)
