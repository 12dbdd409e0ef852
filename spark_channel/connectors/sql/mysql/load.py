"""Loads rows into one table of a session: by LOAD DATA LOCAL, or by INSERT if the server forbids it."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import pyarrow as pa

from spark_channel.connectors.health import RowCost, seconds_per_row, way_seconds
from spark_channel.connectors.sql.mysql.encode import assignments, insert_values, load_lines
from spark_channel.connectors.sql.mysql.publish import hold_affected
from spark_channel.connectors.sql.mysql.session import quoted
from spark_channel.connectors.sql.mysql.write_session import MysqlWriteSession
from spark_channel.connectors.sql.target import WriteColumn

__all__ = ["Loader", "RefusedRowsError"]

_MOST_PACKET = 4 << 20


class RefusedRowsError(Exception):
    """The server took rows only with warnings."""


class Loader:
    """Loads batches into `table`. What the server would change or leave out is an error, and nothing of that
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
    ) -> None:
        """With `cost`, which is what rows cost the server, it measures the way there and back."""
        self._exact = exact
        self._words = words
        self._session = session
        if words is not None:
            session.list_warnings()
        if not exact:
            session.rows("SET SESSION sql_notes = 0")  # what is cut off a fraction is a note
        self._table, self._label = table, table.replace("`", "")
        self._columns = columns
        self._instants = any(_is_instant(column.kind) for column in columns)
        self._local = (session.local_infile if local is None else local) and words is None
        self._cost = cost
        self._way = 0.0 if cost is None else way_seconds(lambda: session.rows("SELECT 1"))
        if not self._local:
            self._packet = min(_MOST_PACKET, session.most_packet // 2)

    def load(self, batch: pa.RecordBatch) -> None:
        """All rows of `batch`.

        Raises:
            BadValueError: a value that cannot be stored exactly, found here.
            RefusedRowsError: a value that the server would change.
            BatchRefusedError: a row that it left out.
        """
        if batch.num_rows == 0:
            return
        if self._local:
            self._load(load_lines(batch, self._columns, exact=self._exact), batch.num_rows)
        else:
            names = ", ".join(quoted(column.target) for column in self._columns)
            for text, rows in insert_values(batch, self._columns, self._packet, exact=self._exact):
                verb, more = self._words or ("INSERT", "")
                self._run(f"{verb} INTO {self._table} ({names}) VALUES {text}{more}", rows)

    def _load(self, lines: bytes, rows: int) -> None:
        names, sets = assignments(self._columns, quoted)
        with _as_file(lines) as path, self._session.may_send(path):
            self._run(
                f"LOAD DATA LOCAL INFILE {self._session.literal(path)} INTO TABLE {self._table} "
                "CHARACTER SET utf8mb4 FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' "
                f"LINES TERMINATED BY '\\n' ({names}){sets}",
                rows,
                ways=2,
            )

    def _run(self, sql: str, rows: int, *, ways: int = 1) -> None:
        """`ways`: how often the statement goes to the server and back."""
        with self._session.in_utc() if self._instants else nullcontext():
            begun = time.monotonic()
            affected, warnings = self._session.affected(sql)
            if self._cost is not None:
                self._cost.add(seconds_per_row(rows, time.monotonic() - begun, ways * self._way))
        if warnings and not self._session.lenient:
            if self._words is None:
                texts = [text for _, _, text in self._session.warnings()]
                raise RefusedRowsError("; ".join(texts[:3]) or f"{warnings} warnings")
            if others := self._session.warnings_but_keys():
                raise RefusedRowsError("; ".join(others))
        hold_affected(self._label, rows, affected, self._words or ("INSERT", ""))


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path under which this process reads `data`: in memory where the system can, else a temporary file."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("spark-channel")
        try:
            with os.fdopen(os.dup(handle), "wb") as file:
                file.write(data)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    with tempfile.NamedTemporaryFile(prefix="spark-channel-") as file:
        file.write(data)
        file.flush()
        yield file.name
