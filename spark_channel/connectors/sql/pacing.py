"""When a limited job gives a server its next piece of work, and how large the piece is: one pacer for reads, one for
writes. They do no I/O; a database only says how to send a piece.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Self

from spark_channel.clock import SYSTEM_CLOCK, Clock, FixedSeconds
from spark_channel.connectors.base.health import seconds_per_row
from spark_channel.connectors.sql.session import BatchSize

__all__ = ["ReadPacer", "Spread", "WritePacer", "adding_seconds", "spread_of"]

_FIRST_ROWS, _LEAST_ROWS, _MOST_ROWS = 250, 50, 4_096
_SEEN = 16
_FIXED = 2
"""A piece whose fixed part is so many bursts gets more rows. Less may be the wait of a busy server for a core."""
_APART = 1.25
"""The larger of two sizes by which the fixed part is measured has so many times the rows of the smaller, at least."""
_REST, _BUSY, _LONGEST_REST = 3.0, 4.0, 0.5
_MOVE_SECONDS, _SEEN_MOVING = 0.001, 256
_SPREAD = 1 / 3
"""The part of the time in which rows have gathered; the next ones gather meanwhile."""
_LATE, _LATE_NEAR = 4, 2
"""Pieces that are late are so many times as large: each costs a server something beside its rows. The network to a near
server is known to take less than four pieces: rows that are late there wait for a core."""
_MOST_LATE = 0.04
"""Seconds for which pieces that are late are caught up with at once: more of it, and a second would see too much. What
the network takes of a piece is caught up with, too, or each piece would make the rest later."""
_LIMITED_SPREAD, _LONGEST_SPREAD = 0.85, 0.75
"""The part under a limit, of the time since the last rows were sent; and the most, in seconds."""
_ADDING_SECONDS, _ADDING_PART = 2.0, 0.2
_OVERLAPPED_SECONDS, _OVERLAPPED_PART, _COMMIT_SECONDS = 4.0, 0.96, 0.04
"""The target sees 1.04 times the limit in a second. The rest of the time is for the commit and the next begin, which
take a short task more of it."""
_ROOMY, _CROWDED_PART = 4.0, 0.8
"""Where fewer tasks fit into the channel, the reader waits for the target: it ends sooner, or the limit is not used."""
_FIRST_STATEMENT, _FIRST_SECONDS = 1_000, 0.1
"""The rows of the first statement, and for how long they last at most where the speed is known."""
_STATEMENT_SECONDS = 0.35
"""How long a statement's rows last at the speed that was seen. With what waits to be paid, and what is paid, a read is
ahead by at most a second and a half of its limit."""
_READ_SPREAD, _LONGEST_READ_SPREAD = 0.75, 0.5
_BLOCKED = 0.05
"""The part of a cycle that was waited for the limit, below which the job waits for the reader."""
_LEAST_HURRY = 1 / 16
_MOST_LARGER = 8
_STARTING = 8
"""So many statements are read at no more than twice the speed that is expected."""
_CYCLES = 8
_PAUSE_SECONDS = 3.0
"""A cycle that took longer was a pause, and says nothing of the speed."""
_ROW_BITS = 4
"""The leading bits of a piece's rows that are kept. So pieces have some 60 sizes: a server's statistics may keep each
as another statement."""
_LEAST_SHARE = 32
"""A statement that is one piece has this part of the rows that may be fetched at once: each costs about 0.5 ms."""


class _Pacer:
    """The size of the next piece, and the time at which it is due. Used by one thread.

    A piece keeps a core of the server busy for `burst_seconds` at most, 0.0 = any time, and has at least `least` rows
    and at most `most_rows`. The cost of a row is the least of the last pieces, since a busy server takes
    longer for it; `empty_seconds`, the network's latency, does not count. Where a piece takes twice as long as a burst
    whatever it has, such as a statement that opens many partitions, its rows may take as long as that part.
    Pieces are due evenly over the time that a turn has; one that is late makes the rests behind it shorter.
    """

    def __init__(
        self,
        burst_seconds: float,
        *,
        empty_seconds: float = 0.0,
        first: int = _FIRST_ROWS,
        least: int = _LEAST_ROWS,
        most: int = _MOST_ROWS,
        samples: int = _SEEN,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._burst_seconds, self._empty_seconds = burst_seconds, empty_seconds
        self._clock = clock
        self._rows, self._least, self.most_rows = first, least, most
        self._row_seconds: deque[float] = deque(maxlen=samples)
        self._pieces: deque[tuple[int, float]] = deque(maxlen=samples)
        self._fixed: tuple[float, float] | None = None
        """Seconds of a piece whatever it has, and of each of its rows; None = pieces had one size."""
        self._began = clock.now()
        self._asked = self._taken = 0
        self._spread = 0.0

    @property
    def rows(self) -> int:
        """The rows of the next piece."""
        return min(self._rows, self.most_rows)

    @property
    def row_seconds(self) -> float:
        """How long the server works for a row; 0.0 = not known."""
        ordered = sorted(self._row_seconds)
        return ordered[len(ordered) // 8] if ordered else 0.0

    def rest(self) -> float:
        """Before a piece: wait until it is due. Returns the seconds of rest."""
        if not 0 < self._taken < self._asked:
            return 0.0
        wait = self._due() - self._clock.now()
        self._clock.sleep(wait)
        return max(0.0, wait)

    def took(self, rows: int, seconds: float) -> None:
        """A piece of `rows` took so many seconds.

        Where the network takes most of them, only larger pieces show what a row costs.
        """
        self._taken += rows
        # A busy client measures too much for the way: no piece is faster than the network.
        self._empty_seconds = min(self._empty_seconds, seconds)
        if rows < min(self._least, self.rows):
            return
        cost = seconds_per_row(rows, seconds, self._empty_seconds, least_rows=1)
        if cost is not None:
            self._row_seconds.append(cost)
        else:  # it is less than this, whatever slower pieces seemed to cost
            fitting = (
                row_seconds for row_seconds in self._row_seconds if row_seconds <= seconds / rows
            )
            self._row_seconds = deque(fitting, self._row_seconds.maxlen)
        self._learn_fixed(rows, max(0.0, seconds - self._empty_seconds))
        self._rows = max(self._least, min(self._most_by_time(), 2 * self._rows))

    def _learn_fixed(self, rows: int, worked: float) -> None:
        self._pieces.append((rows, worked))
        fewest = min(self._pieces)
        most = max(self._pieces, key=lambda piece: (piece[0], -piece[1]))
        if most[0] >= _APART * fewest[0]:
            row_seconds = max(0.0, (most[1] - fewest[1]) / (most[0] - fewest[0]))
            self._fixed = max(0.0, fewest[1] - row_seconds * fewest[0]), row_seconds
        elif self._fixed is not None:
            least = min(worked for _, worked in self._pieces)
            self._fixed = min(self._fixed[0], least), self._fixed[1]

    def _most_by_time(self) -> int:
        cheapest, burst = self.row_seconds, self._burst_seconds
        if not cheapest or not burst:
            return self.most_rows
        if self._fixed is None and cheapest * self._least > _FIXED * burst:
            return min(self.most_rows, 2 * self._least)  # two sizes show which part is fixed
        if self._fixed is not None and self._fixed[0] > _FIXED * burst:
            burst, cheapest = self._fixed
        return int(min(self.most_rows, burst / cheapest)) if cheapest else self.most_rows

    def _begin(self, rows: int) -> None:
        self._began, self._asked, self._taken = self._clock.now(), rows, 0

    def _due(self) -> float:
        return self._began + self._spread * self._taken / self._asked


@dataclass(frozen=True, slots=True)
class Spread:
    """Over how many seconds held rows are added, and how they came: see `TaskWriter.arrived_parts`."""

    seconds: float
    parts: Sequence[tuple[float, float]] = ()


def _time_part(parts: Sequence[tuple[float, float]], rows_part: float) -> float:
    """The part of the time after which `rows_part` of the rows had come."""
    index = bisect_left(parts, rows_part, key=itemgetter(0))
    low, early = parts[index - 1] if index else (0.0, 0.0)
    high, late = parts[index] if index < len(parts) else (1.0, 1.0)
    return early + (late - early) * (rows_part - low) / (high - low) if high > low else late


class WritePacer(_Pacer):
    """Paces rows that are sent to a server, or moved by it from one table to another.

    `begin`, then for each piece `rest` and `took`; or `run`, which does all of it.
    """

    _free_at: float | None = None
    _parts: Sequence[tuple[float, float]] = ()

    @classmethod
    def moving(
        cls, first: int, *, burst_seconds: float = _MOVE_SECONDS, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """For rows that the server moves, in units that `run` counts by: a piece has at least `first` of them."""
        return cls(burst_seconds, first=first, least=first, samples=_SEEN_MOVING, clock=clock)

    def begin(
        self, rows: int, spread: float | None, parts: Sequence[tuple[float, float]] = ()
    ) -> None:
        """Work for so many rows begins. Pieces are spread over `spread` seconds, and longer where the server is late:
        evenly, or by `parts`, see `Spread`.

        None: over four times what they take. The server rests three times as long as a piece took: as it counts, at
        most four times what is usual, and half a second.
        """
        self._begin(rows)
        self._spread, self._free_at = spread or 0.0, None if spread is not None else self._began
        self._parts = parts

    def sent(self, rows: int) -> None:
        """So many rows are on their way; how long the server works for them is not known."""
        self._taken += rows

    def took(self, rows: int, seconds: float) -> None:
        super().took(rows, seconds)
        if self._free_at is not None:
            most = _BUSY * rows * self.row_seconds or seconds
            self._free_at = self._clock.now() + min(_REST * min(seconds, most), _LONGEST_REST)

    def run(
        self,
        work: Callable[[int, int], float | None],
        begin: int,
        end: int,
        *,
        spread: float | None = None,
        parts: Sequence[tuple[float, float]] = (),
    ) -> None:
        """`work(a, b)` for ranges that cover `begin` to `end`, each when it is due; see `begin`.

        `work` may return the seconds that the server says it took. While pieces are late, as where the network is slow,
        they are up to four times as large, and up to twice where the network is known to be fast.
        """
        self.begin(end - begin, spread, parts)
        at, larger = begin, 1
        while at < end:
            is_late = at > begin and not self.rest()
            is_near = 0 < self._empty_seconds <= _LATE * self._burst_seconds
            most = _LATE_NEAR if is_near else _LATE
            larger = min(most, 2 * larger) if is_late else max(1, larger // 2)
            rows = min(self.rows * larger, self.most_rows)
            stop, begun = min(at + rows, end), self._clock.now()
            worked = work(at, stop)
            self.took(stop - at, self._clock.now() - begun if worked is None else worked)
            at = stop

    def _due(self) -> float:
        if self._free_at is not None:
            return self._free_at
        due = self._began + self._spread * _time_part(self._parts, self._taken / self._asked)
        too_late = self._clock.now() - due - max(_MOST_LATE, self._empty_seconds)
        if too_late > 0:
            self._began += too_late
        return due + max(0.0, too_late)


def spread_of(gathered: float, since: float, room: float, *, is_limited: bool) -> float:
    """Return the seconds over which rows may be sent that gathered for `gathered` seconds, while the next ones come.

    Under a limit it is nearly all of the time since the last ones were sent, so that rows which come faster are sent
    faster each time; at most as long as the channel has `room`.
    """
    if not is_limited:
        return gathered * _SPREAD
    return min(_LIMITED_SPREAD * since, _LONGEST_SPREAD, room)


def adding_seconds(took: float, room: float, *, overlapped: bool) -> float:
    """Return the seconds over which the rows of a limited task, which came in `took` seconds, are added at its end.

    `overlapped`: the next task is read meanwhile, and the channel has room for `room` of them. Then they may take
    longer: the slower, the less is seen of it.
    """
    seconds = min(_ADDING_SECONDS, _ADDING_PART * took)
    if overlapped:
        part = _OVERLAPPED_PART if room > _ROOMY else min(_CROWDED_PART, room)
        longest = min(_OVERLAPPED_SECONDS, part * took)
        seconds = max(seconds, min(longest, max(took / 2, took - _COMMIT_SECONDS)))
    return seconds


class ReadPacer(_Pacer):
    """Paces the statements of a limited read, and the pieces in which their rows are fetched.

    For each split `fits`; for each statement `begin`, for each piece `rest` and `took`, then `answered` or `ended`, and
    `handed_on`. `in_pieces`: a statement has the rows of 0.35 s, whose pieces are due over three quarters of that time.
    Otherwise each statement is a piece. Whoever takes the rows keeps some for the limit to be paid: while it takes them
    at once, the reader is late, and rests less.

    The rows of a statement take at most `seconds`. `speed` is the rows per second that are expected until a speed was
    seen; 0.0 = not known.
    """

    def __init__(
        self,
        burst_seconds: float,
        *,
        in_pieces: bool = True,
        seconds: float = 5.0,
        empty_seconds: float = 0.0,
        speed: float = 0.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(burst_seconds, empty_seconds=empty_seconds, clock=clock)
        self.in_pieces, self._seconds, self._expected_speed = in_pieces, seconds, speed
        self._longest_spread = min(_LONGEST_READ_SPREAD, seconds / 4)
        self._paid_rows = min(
            _FIRST_STATEMENT,
            max(_LEAST_ROWS, int(speed * _FIRST_SECONDS)) if speed else _FIRST_STATEMENT,
        )
        """The most rows of the next statement, by the speed at which they are paid."""
        self._most = BatchSize(_MOST_ROWS, 1 << 62)
        self._ceiling = self._fitting = 1 << 62
        self._fixed_of_statement = FixedSeconds()
        self._hurry = 1.0
        """The part of the usual spread that the next statement has."""
        self._starting = _STARTING if speed else 0
        self._larger = 1
        """Pieces are so many times larger while the reader is late without any rest: each waits in a busy server."""
        self._blocked_at: float | None = None
        self._since_blocked = 0
        self._cycles: deque[tuple[int, float]] = deque(maxlen=_CYCLES)

    @property
    def rows(self) -> int:
        rows = min(self._rows * self._larger, self.most_rows)
        bits = max(0, rows.bit_length() - _ROW_BITS) if self.in_pieces else 0
        return rows >> bits << bits

    @property
    def statement_rows(self) -> int:
        """The rows that the next statement asks for."""
        if self.in_pieces:
            return min(self._fitting, self._paid_rows)
        return min(self._fitting, self.rows) if self._burst_seconds else self._fitting

    @property
    def longest_seconds(self) -> float:
        """How long a statement may last: its search, which fewer rows do not make shorter, does not count."""
        return self._seconds + self._fixed_of_statement.seconds

    def fits(self, most: BatchSize, width: int) -> None:
        """A split begins: at most `most` is fetched at once, and a row has `width` bytes, 0 = not known."""
        self._most, self._ceiling = most, most.rows
        self._fitting = self._allowed(width)
        if not self.in_pieces:
            self.most_rows, self._least = self._fitting, max(1, self._fitting // _LEAST_SHARE)
            self._rows = max(self._least, min(self._rows, self._fitting))

    def begin(self, rows: int) -> None:
        """A statement for so many rows begins."""
        self._begin(rows)
        speed = self._speed()
        if self.in_pieces and speed:
            usual = min(self._longest_spread, _READ_SPREAD * rows / speed)
            self._spread = usual * self._hurry if self._hurry >= _LEAST_HURRY else 0.0

    def answered(self, rows_asked: int, came: int, nbytes: int, seconds: float) -> None:
        """A statement for `rows_asked` rows returned `came` in so many seconds, without rests."""
        rows, seconds = self._fitting, self._fixed_of_statement.took(came, seconds)
        if seconds > self._seconds / 2:
            rows = min(rows, max(came, 1), int(rows_asked * self._seconds / 2 / seconds))
        elif came == rows_asked >= rows and seconds < self._seconds / 8:
            rows *= 2
        # Half of the width, since the most bytes were made from an estimate of a row, which is not exact.
        self._fitting = max(1, min(rows, self._allowed(nbytes // came // 2 if came else 0)))

    def ended(self, rows_asked: int, came: int) -> None:
        """A time limit of the server ended a statement for `rows_asked` rows, of which `came` had come."""
        self._ceiling = max(1, came, rows_asked // 2 if not came else 0)
        self._fitting = max(1, min(self._ceiling, rows_asked // 4))

    def handed_on(self, rows: int, inside: float, outside: float) -> None:
        """The statement's `rows` were read in `inside` seconds; `outside` later the next ones are wanted."""
        now, cycle = self._clock.now(), inside + outside
        self._since_blocked += rows
        if outside > _BLOCKED * cycle and rows:
            self._learn(now)
            self._hurry, self._larger = 1.0, max(1, self._larger // 2)
        elif 2 * rows > self._asked:  # fewer rows are taken at once in any case
            if self._hurry < 1.0:
                self._paid_rows = max(self._paid_rows, 2 * rows)
            if self.in_pieces and self._hurry < _LEAST_HURRY and self._cycles:
                self._larger = min(_MOST_LARGER, 2 * self._larger)
            least = _LEAST_HURRY / 2
            if self._starting:  # the rows of the head start need not be there at once
                self._starting, least = self._starting - 1, 0.5
            self._hurry = max(self._hurry / 2, least)

    def _learn(self, now: float) -> None:
        """Learn from the rows handed on since the last wait for the limit, which has paid for them meanwhile."""
        before, rows = self._blocked_at, self._since_blocked
        self._blocked_at, self._since_blocked = now, 0
        if before is None or now - before > _PAUSE_SECONDS:
            return
        self._cycles.append((rows, now - before))
        if speed := self._speed():
            self._paid_rows = max(_LEAST_ROWS, int(speed * _STATEMENT_SECONDS))

    def _speed(self) -> float:
        """Rows per second; 0.0 = not known."""
        seconds = sum(seconds_of_one for _, seconds_of_one in self._cycles)
        return sum(rows for rows, _ in self._cycles) / seconds if seconds else self._expected_speed

    def _allowed(self, width: int) -> int:
        most = min(self._most.rows, self._ceiling)
        return max(1, min(most, self._most.nbytes // width) if width else most)
