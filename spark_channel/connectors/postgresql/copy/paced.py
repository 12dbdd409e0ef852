"""Rows by COPY, evenly spread over a time: under a limit the server rests between them.

A COPY that is fed bit by bit costs the server half of what short ones cost, but only short ones show how long it works
for a row. So the first rows of each turn are a short COPY, which is measured. The others are fed to one COPY if that
works for no longer than a burst at a time; else they are short ones, too.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from spark_channel.clock import Clock
from spark_channel.connectors.base.health import RowCost, way_seconds
from spark_channel.connectors.postgresql.copy.format import CopyRows
from spark_channel.connectors.sql.pacing import WritePacer
from spark_channel.errors import TargetError
from spark_channel.plain_text import log_of

__all__ = ["PacedCopy"]


_log = log_of(__name__)

_BURST_SECONDS = 0.001
_WAYS = 2
"""A COPY goes to the server and back twice."""
_MEASURED_ROWS = 250
_ADDED_ROWS, _ADDED_BYTES = 1_000, 65_535
"""The server adds the rows of a COPY to their table when it has so many."""
_FED = 2
"""A row costs so many times less in a COPY that is fed than in a short one."""
_FED_SECONDS = 0.75
"""How long one is fed at most."""
_BUFFERED_SECONDS = 0.05
"""For so long the server gathers rows at most before it adds them: more would come together."""
_SHORT_ROWS, _SHORT_SECONDS = 50, 0.1
"""A short COPY has so many rows, or those of so many seconds: fewer cost too much, more would come together."""
_SHORT_WAYS = 2
"""Or those of so many times what the network takes of one, whatever it costs: with fewer the rows would be late."""


class Target(Protocol):
    """The methods of a session that are used here."""

    def rows(self, sql: str) -> Any: ...

    def copy(
        self, schema: str, table: str, rows: CopyRows, between: Callable[[int], None] | None = None
    ) -> None: ...


class PacedCopy:
    """Used by one thread: `begin`, then `copy` until all rows are sent. It keeps what it has measured of the server."""

    def __init__(self, session: Target, cost: RowCost, clock: Clock) -> None:
        """Measure the network's round trip."""
        self._cost, self._clock = cost, clock
        self._way = 0.0
        try:
            self._way = _WAYS * way_seconds(lambda: session.rows("SELECT 1"), clock)
        except TargetError as error:  # the call that sends the rows connects again
            _log.debug("the network's round trip was not measured: %s", error)
        self._pacer = WritePacer(_BURST_SECONDS, empty_seconds=self._way, clock=clock)
        self._short_rows = self._fed_rows = _SHORT_ROWS
        self._least_rows = 1
        self._rows_per_second = math.inf

    def begin(
        self,
        rows: int,
        spread: float,
        parts: Sequence[tuple[float, float]] = (),
        *,
        short_rows: int = 0,
    ) -> None:
        """`rows` are sent over `spread` seconds, evenly or by `parts` of it, see `Spread`; `short_rows`: by short COPYs
        of so many rows at most, or 0.

        They have more where the network takes so much of one that the rows would be late.
        """
        # The last COPY ends in time.
        self._pacer.begin(rows, max(spread / 2, spread - self._way), parts)
        self._rows_per_second = rows / spread if spread else math.inf
        self._least_rows = _due_in(_SHORT_WAYS * self._way, rows, spread) if spread else 1
        most = max(_SHORT_ROWS, _due_in(_SHORT_SECONDS, rows, spread))
        self._short_rows = max(1, self._least_rows, min(most, short_rows or most))
        self._fed_rows = _due_in(_FED_SECONDS, rows, spread)

    def copy(
        self,
        session: Target,
        schema: str,
        table: str,
        rows: pa.RecordBatch | pa.Table,
        encode: Callable[[pa.RecordBatch | pa.Table], CopyRows],
    ) -> None:
        """Each row when it is due."""
        pacer, at = self._pacer, 0
        while at < rows.num_rows:
            pacer.rest()
            is_fed = self._is_fed(rows)
            short = max(self._least_rows, min(pacer.rows, self._short_rows))
            if at and is_fed:
                part = encode(rows.slice(at, self._fed_rows))
                session.copy(schema, table, part, self._between(part))
            else:
                measured = _MEASURED_ROWS if pacer.row_seconds else pacer.rows
                part = encode(rows.slice(at, min(short, measured) if is_fed else short))
                begun = self._clock.now()
                session.copy(schema, table, part)
                pacer.took(part.count, self._clock.now() - begun)
                self._cost.add(pacer.row_seconds / (_FED if is_fed else 1))
            at += part.count

    def _between(self, part: CopyRows) -> Callable[[int], None]:
        """Waits until the next bytes of `part` are due."""
        whole, counted = sum(len(piece) for piece in part.pieces), 0

        def rest(sent: int) -> None:
            nonlocal counted
            rows = part.count * sent // whole
            self._pacer.sent(rows - counted)
            counted = rows
            self._pacer.rest()

        return rest

    def _is_fed(self, rows: pa.RecordBatch | pa.Table) -> bool:
        """Whether the server works for no longer than a burst when it adds rows to the table, and adds them often."""
        width = max(1, int(rows.nbytes) // max(1, rows.num_rows))
        added = min(_ADDED_ROWS, _ADDED_BYTES // width)
        is_often = added <= _BUFFERED_SECONDS * self._rows_per_second
        return is_often and bool(self._pacer.rows * _FED >= added)


def _due_in(seconds: float, rows: int, spread: float) -> int:
    """How many of `rows` over `spread` seconds are due in so many of them: one at least."""
    return max(1, int(rows * min(1.0, seconds / spread)) if spread else rows)
