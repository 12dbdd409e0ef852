"""How long a pipeline waits when there is little to read. Pure."""

import random

__all__ = ["Backoff", "reconnect_delay"]

_ENOUGH_ROWS = 500
_ENOUGH_BYTES = 900 << 10
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0


class Backoff:
    """10 ms, times 5, up to 2 s, each 25 % more or less; starts over after a round with enough rows.

    Args:
        chance: a number of [0, 1) per call, `random.random` by default.
    """

    def __init__(
        self, first: float = 0.01, factor: float = 5.0, most: float = 2.0, jitter: float = 0.25, *,
        chance: "random.Random | None" = None,
    ) -> None:  # fmt: skip
        self._first = first
        self._factor = factor
        self._most = most
        self._jitter = jitter
        self._random = chance or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._next = first

    def after(self, rows: int, nbytes: int) -> float:
        """Seconds to wait after a round of `rows` and `nbytes`; 0 when it had enough."""
        if rows > _ENOUGH_ROWS or nbytes > _ENOUGH_BYTES:
            self._next = self._first
            return 0.0
        base = self._next
        self._next = min(self._most, base * self._factor)
        return base * (1 + self._jitter * (2 * self._random.random() - 1))


def reconnect_delay(attempt: int = 0, chance: "random.Random | None" = None) -> float:
    """Seconds before a lost connection is renewed for the `attempt`-th time (from 0): at random up to 0.1 s,
    then up to three times as long each time, 10 s at most. At random, so that not all come at once.
    """
    most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 3.0 ** min(attempt, 10))
    return (chance or random.Random()).uniform(0.001, most)  # noqa: S311 - spreads load, keeps no secret
