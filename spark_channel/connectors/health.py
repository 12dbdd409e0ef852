"""Health signals of the system that a connector reads or writes, so that a job can slow down in time."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from spark_channel.limits import Sample

__all__ = ["Health"]


class Health(ABC):
    """One connection that asks a system how it is; used by one thread.

    It connects with the first `sample`, and again with the next one after an error. Each `sample` must be short, since
    nothing interrupts it, and light: it is taken about four times a second, whatever the speed of the job.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def sample(self) -> Sample:
        """What it says now. Signals that the role may not read are left out, and named.

        Raises:
            ChannelError: it cannot be asked.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection. Again: harmless."""
