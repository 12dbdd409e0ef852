"""The sessions that read small tables."""

from collections.abc import Iterator
from typing import Any, Self

import pyarrow as pa

from spark_channel.connectors.base.contract import native_batch
from spark_channel.connectors.base.small_tables import SmallTable
from spark_channel.connectors.postgresql.read.reader import PostgresReader
from spark_channel.connectors.postgresql.write.small_table_plans import PgSmallPlan
from spark_channel.connectors.sql.write.small_tables import (
    PIECE,
)

__all__ = ["IDLE_LIMIT", "LOCK_LIMIT", "Sources"]

IDLE_LIMIT = "SET LOCAL idle_in_transaction_session_timeout = '5s'"
LOCK_LIMIT = "SET LOCAL lock_timeout = '2s'"
"""A table that is locked holds up the look at others, and is copied alone."""
_READ = (IDLE_LIMIT, "SET LOCAL lock_timeout = '100ms'")
"""The tables that were read before in the transaction are locked against ALTER TABLE meanwhile."""


class Sources:
    """The sessions that read. `at_once`: in one transaction; else no table is locked while the next one is paid."""

    def __init__(self, reader: PostgresReader, at_once: bool) -> None:
        self._reader, self._at_once = reader, at_once
        self._open: dict[bool, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for session in self._open.values():
            try:
                if self._at_once and kind is None and session.is_open:
                    session.execute("COMMIT")
            finally:
                session.__exit__(kind, None, None)

    def read(self, table: SmallTable) -> Iterator[pa.RecordBatch]:
        plan: PgSmallPlan = table.plan
        conditions = [table.condition] if table.condition else []
        session, source = self._session(native=plan.native), plan.source
        with session.closed_on_failure():
            if not self._at_once:
                session.begin("", LOCK_LIMIT)
            if plan.native:
                columns = [source.column(column.name) for column in source.columns]
                query = source.sql(columns, conditions)
                for piece, bounds in session.copy(query, len(columns), PIECE.nbytes):
                    yield native_batch(piece, bounds)
            else:
                asked = source.dialect.statement(source.columns, source.behind(conditions))
                for raw in session.stream(asked, PIECE):
                    if raw.num_rows:
                        yield source.dialect.decode(raw, source.columns, source.schema)
            if not self._at_once:
                session.execute("COMMIT")

    def _session(self, *, native: bool) -> Any:
        found = self._open.get(native)
        if found is None or not found.is_open:
            found = (self._reader.copies if native else self._reader.connect)("read")
            self._open[native] = found
            if self._at_once:
                with found.closed_on_failure():
                    found.begin("", *_READ)
        return found
