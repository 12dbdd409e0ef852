"""`StaticShare`: what one of so many Spark tasks spends when no coordinator can be asked."""

from dataclasses import dataclass
from typing import Self

from spark_channel.limits.level import MICROS

__all__ = ["StaticShare"]


@dataclass(frozen=True, slots=True)
class StaticShare:
    """1/`tasks` of a limit in rows and bytes per second (None = unlimited): plain data, made where the job is planned.

    `tasks` is the most that ever run at a time, so that all of them together keep the limit whatever they can reach.
    """

    rows_per_second: float | None
    bytes_per_second: float | None
    tasks: int

    @property
    def paces(self) -> tuple[float | None, float | None]:
        """The share of one task, rounded down."""
        return _part(self.rows_per_second, self.tasks), _part(self.bytes_per_second, self.tasks)

    def of(self, rows_per_second: float | None, bytes_per_second: float | None) -> Self:
        """The same share of another limit."""
        return type(self)(rows_per_second, bytes_per_second, self.tasks)


def _part(limit: float | None, tasks: int) -> float | None:
    return None if limit is None else max(1, int(limit * MICROS) // tasks) / MICROS
