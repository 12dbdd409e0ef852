"""Sends batches to a MySQL server by LOAD DATA LOCAL or INSERT: each row is stored as it is, or refused."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import TypeVar

import pyarrow as pa

from spark_channel.connectors.base.contract import native_data
from spark_channel.connectors.base.health import RowCost, seconds_per_row, way_seconds
from spark_channel.connectors.mysql.session import IGNORED_ROWS, MysqlWriteSession, quoted
from spark_channel.connectors.mysql.types import LINE_FORM, assignments, insert_values, load_lines
from spark_channel.connectors.mysql.write.merge import PIECE_SECONDS, check_affected
from spark_channel.connectors.mysql.write.table_locks import in_turn, turns_end
from spark_channel.connectors.sql.catalog import WriteColumn
from spark_channel.connectors.sql.pacing import WritePacer
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.loading import Rows

__all__ = ["RefusedRowsError", "RowSender"]

_T = TypeVar("_T")

_MOST_PACKET = 4 << 20
_FILE = "spark_channel_rows"
"""What the server calls the rows of a LOAD DATA: there is no such file."""
_FORM = (
    "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY '\\n'"
)
_ZERO_ADVICE = "'zeroDates' null reads zero dates as NULL"
_WAYS = 2
"""A LOAD DATA goes to the server and back twice."""
_NEAR_SECONDS = 0.002
"""The round trip to a server, above which pieces take no turns: the server would be idle meanwhile."""


class RefusedRowsError(Exception):
    """The server took rows only with warnings: some of those from `begin` to `end` of the batch.

    MariaDB has no errors of values in LOAD DATA LOCAL: findings/mariadb-load-data-local-warns.sh
    """

    begin = end = 0


class RowSender:
    """Loads batches into `table`. A value that the server would change or leave out is an error, and no row of that
    batch is in the table when the caller rolls its statement back. Unless `exact`, the server may cut or round
    fractions of a second, and pad or strip fixed lengths, as it does for other clients. `words`: how the INSERT begins
    and ends, for rows whose keys may be in the table.
    """

    def __init__(
        self,
        session: MysqlWriteSession,
        table: str,
        columns: Sequence[WriteColumn],
        local: bool | None,
        *,
        exact: bool = True,
        words: tuple[str, str] | None = None,
        cost: RowCost | None,
        is_native: bool = False,
    ) -> None:
        """With `cost`, which is what rows cost the server, it measures the way there and back. `is_native`: rows are
        those of `MysqlSession.lines`.
        """
        self._exact, self._is_native = exact, is_native
        self._words = words
        self._session = session
        if words is not None:
            session.list_warnings()
        if not exact:
            session.execute("SET SESSION sql_notes = 0")  # each cut fraction is a note
        self._table, self._label = table, table.replace("`", "")
        self._columns = columns
        self._instants = any(_is_instant(column.kind) for column in columns)
        self._dates = [column.target for column in columns if is_native and _is_date(column)]
        if self._dates:
            # Zero dates arrive as they are, and are refused as where they are read as Arrow's.
            session.execute(
                "SET SESSION sql_mode = CONCAT(@@sql_mode, ',NO_ZERO_IN_DATE,NO_ZERO_DATE')"
            )
        self._local = (session.local_infile if local is None else local) and words is None
        self._cost = cost
        self._way = 0.0 if cost is None else way_seconds(lambda: session.rows("SELECT 1"))
        self._pacer = WritePacer(PIECE_SECONDS, empty_seconds=_WAYS * self._way)
        if not self._local:
            self._packet = min(_MOST_PACKET, session.most_packet // 2)

    def load(
        self, rows: Rows, spread: float = 0.0, parts: Sequence[tuple[float, float]] = ()
    ) -> None:
        """Load all `rows`: under a limit in pieces over `spread` seconds, by `parts` as in `Spread`, else at once.

        Raises:
            BadValueError: a value that cannot be stored exactly, found here.
            RefusedRowsError: a value that the server would change.
            BatchRefusedError: a row that it left out.
        """

        def send(begin: int, end: int) -> None:
            try:
                self._send(rows.slice(begin, end - begin))
            except BadValueError as error:
                error.index += begin
                raise
            except RefusedRowsError as error:
                error.begin, error.end = begin, min(end, rows.num_rows)
                raise

        with self._session.in_utc() if self._instants else nullcontext():
            if spread and self._cost is not None:
                until = turns_end(spread) if self._way <= _NEAR_SECONDS else None

                def send_in_turn(begin: int, end: int) -> float:
                    return in_turn(lambda: send(begin, end), until)

                self._pacer.run(send_in_turn, 0, rows.num_rows, spread=spread, parts=parts)
                return
            most = rows.num_rows if self._words is None else IGNORED_ROWS
            for begin in range(0, rows.num_rows, max(1, most)):
                send(begin, begin + most)

    def _send(self, part: Rows) -> None:
        if self._is_native:
            names = ", ".join(quoted(column.target) for column in self._columns)
            self._load(map(native_data, _batches(part)), part.num_rows, LINE_FORM, f"({names})")
            return
        if self._local:
            encode = partial(load_lines, columns=self._columns, exact=self._exact)
            names, sets = assignments(self._columns, quoted)
            lines = chain.from_iterable(_encoded(part, encode))
            self._load(lines, part.num_rows, _FORM, f"({names}){sets}")
            return
        names = ", ".join(quoted(column.target) for column in self._columns)
        verb, ending = self._words or ("INSERT", "")
        values = partial(
            insert_values, columns=self._columns, most_bytes=self._packet, exact=self._exact
        )
        for text, rows in chain.from_iterable(_encoded(part, values)):
            self._run(f"{verb} INTO {self._table} ({names}) VALUES {text}{ending}", rows)

    def _load(self, lines: Iterable[memoryview | bytes], rows: int, form: str, names: str) -> None:
        with self._session.may_send(_FILE, lines):
            self._run(
                f"LOAD DATA LOCAL INFILE '{_FILE}' INTO TABLE {self._table} "
                f"CHARACTER SET utf8mb4 {form} {names}",
                rows,
                ways=_WAYS,
            )

    def _run(self, sql: str, rows: int, *, ways: int = 1) -> None:
        """`ways`: how often the statement goes to the server and back."""
        begun = time.monotonic()
        affected, warnings = self._session.affected(sql)
        if self._cost is not None:
            self._cost.add(seconds_per_row(rows, time.monotonic() - begun, ways * self._way))
        if warnings and not self._session.lenient:
            if self._words is None:
                texts = [text for _, _, text in self._session.warnings()]
                if any(_is_about(text, name) for text in texts for name in self._dates):
                    texts[2:] = [_ZERO_ADVICE]
                raise RefusedRowsError("; ".join(texts[:3]) or f"{warnings} warnings")
            if others := self._session.warnings_but_keys():
                raise RefusedRowsError("; ".join(others))
        check_affected(self._label, rows, affected, self._words or ("INSERT", ""))


def _encoded(rows: Rows, encode: Callable[[pa.RecordBatch], _T]) -> list[_T]:
    """What `encode` makes of each batch; it judges all values before the first row is sent."""
    pieces, before = list[_T](), 0
    for batch in _batches(rows):
        try:
            pieces.append(encode(batch))
        except BadValueError as error:
            error.index += before
            raise
        before += batch.num_rows
    return pieces


def _batches(rows: Rows) -> list[pa.RecordBatch]:
    return rows.to_batches() if isinstance(rows, pa.Table) else [rows]


def _is_date(column: WriteColumn) -> bool:
    return bool(pa.types.is_date(column.kind) or pa.types.is_timestamp(column.kind))


def _is_about(warning: str, column: str) -> bool:
    return f"'{column}' at row" in warning or f"`{column}` at row" in warning


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None
