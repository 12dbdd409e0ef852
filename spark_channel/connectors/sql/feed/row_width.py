"""The width of a table's rows for a change feed: measured periodically, not for every range."""

from collections.abc import Callable

from spark_channel.clock import SYSTEM_CLOCK, Clock

__all__ = ["RowWidth"]


_FRESH_SECONDS = 60.0


class RowWidth:
    """Keeps a measured width for a minute. A copy in another process measures again."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._until = 0.0
        self._width: int | None = None

    def measured(self, measure: Callable[[], int]) -> int:
        """Bytes of a row, about; `measure` asks the source."""
        now = self._clock.now()
        if self._width is None or now >= self._until:
            self._width, self._until = measure(), now + _FRESH_SECONDS
        return self._width

    def __reduce__(self) -> tuple[type["RowWidth"], tuple[()]]:
        return RowWidth, ()
