"""The pieces in which the rows of a limited statement are taken, evenly spaced: the server rests between two.

A statement is as long as half a second of the job's speed, and one piece of it keeps a core of the server busy for
`burst_seconds` at most. The speed is what was seen: under a limit whoever takes the rows is slow, and the next
statement is spread over three quarters of that time. Where the job waits for the reader itself, it does not rest.
"""

from collections import deque

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.health import seconds_per_row

__all__ = ["Pieces"]

_FIRST_ROWS, _LEAST_ROWS, _MOST_ROWS = 250, 50, 4_096
_FIRST_STATEMENT = 1_000
_SEEN = 16
_AHEAD_SECONDS = 0.6
"""How long a statement's rows last at the speed that was seen; the host's `fetch_size` is half a second."""
_SPREAD = 0.75
_LONGEST_SPREAD = 0.5
_STARVED = 0.05
"""The part of a cycle that is left when the rows are handed on, below which the rests are too long."""
_LEAST_SPREAD = 0.002
_PAUSE_SECONDS = 3.0
"""A cycle that took longer was a pause, and tells nothing of the speed."""


class Pieces:
    """Of one thread, for statement after statement; `begin`, for each piece `rest` and `took`, and `handed_on`.

    `seconds` is how long a statement may last, and `empty_seconds` what one without rows takes, which is the way to the
    server and back.
    """

    def __init__(
        self,
        burst_seconds: float,
        *,
        seconds: float = 5.0,
        empty_seconds: float = 0.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._burst_seconds = burst_seconds
        self._longest_spread = min(_LONGEST_SPREAD, seconds / 4)
        self._empty_seconds = empty_seconds
        self._clock = clock
        self._row_seconds: deque[float] = deque(maxlen=_SEEN)
        self.most_rows = _MOST_ROWS
        self._rows = _FIRST_ROWS
        self.statement_rows = _FIRST_STATEMENT
        """Of the next statement, at most."""
        self._spread = 0.0
        self._began = clock.now()
        self._asked = self._taken = 0
        self._before = 0

    @property
    def rows(self) -> int:
        """Of the next piece, at most `most_rows`."""
        return min(self._rows, self.most_rows)

    @property
    def row_seconds(self) -> float:
        """How long the server works for a row; 0.0 = not known. The least counts: a busy one takes longer for it."""
        seen = sorted(self._row_seconds)
        return seen[len(seen) // 8] if seen else 0.0

    def begin(self, rows: int, *, spread: float | None = None) -> None:
        """A statement for so many rows begins; `spread`: the seconds over which its pieces are spread, where that is
        known.
        """
        self._began, self._asked, self._taken = self._clock.now(), rows, 0
        if spread is not None:
            self._spread = spread

    def rest(self) -> float:
        """Before a piece: wait until it is due. Returns the seconds of rest."""
        if not 0 < self._taken < self._asked:
            return 0.0
        wait = self._began + self._spread * self._taken / self._asked - self._clock.now()
        self._clock.sleep(wait)
        return max(0.0, wait)

    def sent(self, rows: int) -> None:
        """So many rows are on their way; how long the server works for them is not known."""
        self._taken += rows

    def took(self, rows: int, seconds: float) -> None:
        """A piece brought `rows` in so many seconds.

        Where the way to the server and back takes most of them, larger pieces must tell what a row costs.
        """
        self._taken += rows
        if rows < min(_LEAST_ROWS, self.rows):
            return
        cost = seconds_per_row(rows, seconds, self._empty_seconds, least_rows=1)
        if cost is not None:
            self._row_seconds.append(cost)
        fitting = _MOST_ROWS
        if least := self.row_seconds:
            fitting = int(self._burst_seconds / least)
        self._rows = max(_LEAST_ROWS, min(fitting, 2 * self._rows, _MOST_ROWS))

    def handed_on(self, rows: int, inside: float, outside: float) -> None:
        """The statement's `rows` were read in `inside` seconds; `outside` later the next ones are wanted.

        They are wanted when the rows before these are paid.
        """
        before, self._before = self._before or rows, rows
        cycle = inside + outside
        if not rows or cycle <= 0.0 or cycle > _PAUSE_SECONDS:
            return
        if outside < _STARVED * cycle:
            self._spread = self._spread / 2 if self._spread > _LEAST_SPREAD else 0.0
            self.statement_rows = max(self.statement_rows, 2 * rows)
            return
        speed = before / cycle
        self._spread = min(self._longest_spread, _SPREAD * rows / speed)
        self.statement_rows = max(_LEAST_ROWS, int(speed * _AHEAD_SECONDS))
