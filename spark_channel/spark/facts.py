"""Facts about a session that `register` collects, as plain data for planner processes."""

from dataclasses import dataclass

__all__ = ["SessionFacts"]


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Each is None where the session could not be asked. See `ChannelDataSource`."""

    parallelism: int | None = None
    driver_host: str | None = None
    slots: int | None = None
