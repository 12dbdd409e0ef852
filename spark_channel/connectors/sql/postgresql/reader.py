"""Reads a table, a view or a query of a PostgreSQL database: by COPY, under a low limit by a cursor.

As Arrow, or, for a target that is PostgreSQL too, as COPY writes the rows.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import pyarrow as pa
from sqlglot import exp

from spark_channel.connectors.contracts import Read, Reader
from spark_channel.connectors.feed import ChangeFeed, FeedOptions
from spark_channel.connectors.native import NativeRows, native_batch
from spark_channel.connectors.sql.postgresql.copy_address import can_tell
from spark_channel.connectors.sql.postgresql.decode import MisfitError, decode, selected
from spark_channel.connectors.sql.postgresql.keeper import Keeper
from spark_channel.connectors.sql.postgresql.native import SYSTEM, native_types
from spark_channel.connectors.sql.postgresql.options import PostgresReadOptions
from spark_channel.connectors.sql.postgresql.read_session import ReadSession
from spark_channel.connectors.sql.postgresql.session import Session, literal
from spark_channel.connectors.sql.postgresql.source import ReadSource, read_source
from spark_channel.connectors.sql.postgresql.splits import make_splits, split_conditions
from spark_channel.errors import OptionError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

if TYPE_CHECKING:
    from spark_channel.connectors.sql.postgresql.copy_session import CopySession

__all__ = ["PostgresReader"]

_BATCH_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20
_SOCKET_BYTES = 10 << 20
"""Linux lets a receive buffer grow to 6 MiB, and a send buffer to 4 MiB: so far a COPY runs ahead."""
_SHOWN = 80

AnySession = TypeVar("AnySession", bound=Session)


class PostgresReader(Reader):
    """Splits by ranges of a key; under a held snapshot, which only a transfer has, by ranges of pages.

    One split is one statement and sees one state of the database. Splits of one job may see different
    states where somebody writes meanwhile, unless option `snapshot` and `hold` tie them together.
    """

    Options: ClassVar[type[ReadOptions]] = PostgresReadOptions
    options: PostgresReadOptions

    def __init__(self, options: PostgresReadOptions) -> None:
        super().__init__(options)
        self._source: ReadSource | None = None
        self._snapshot: str | None = None

    def schema(self) -> pa.Schema:
        with self._session("plan", fresh=True) as session:
            self._source = read_source(session, self.options)
        return self._source.schema

    @contextmanager
    def hold(self) -> Iterator[None]:
        if not self.options.snapshot:
            yield
            return
        with self._session("snapshot") as session:
            session.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            self._snapshot = str(session.value("SELECT pg_export_snapshot()"))
            try:
                yield
            finally:
                self._snapshot = None

    def split(self, advice: int) -> list[Split]:
        if self.options.snapshot and self._snapshot is None:
            raise OptionError(
                "option 'snapshot' needs somebody who holds the snapshot open until all is read, which "
                "only a transfer does: use spark_channel.transfer, or leave the option away",
                option="snapshot",
            )
        with self._session("plan") as session, session.transaction():
            self._enter(session, self._snapshot)
            splits = make_splits(
                session, self._known(session), self.options, max(1, advice), held=self._snapshot is not None
            )
        snapshot = {"snapshot": self._snapshot} if self._snapshot is not None else {}
        return [Split({**split.params, **snapshot}, split.rows, split.nbytes) for split in splits]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        with self.reading() as read:
            yield from read(split)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        connect: Callable[[str], Session] = self._copies if self.native else self._session
        with Keeper(partial(connect, "read")) as keeper:
            yield partial(self._read, keeper)

    def native_rows(self, splits: Sequence[Split]) -> NativeRows | None:
        source = self._source
        if source is None or not source.is_native or not can_tell(self.options.parameters(""), os.environ):
            return None
        if any(self._rows_at_once(split) is not None for split in splits):
            return None  # a cursor gives no rows as COPY writes them
        types = native_types(source.columns)
        return None if types is None else NativeRows(SYSTEM, source.schema, types)

    def _read(self, keeper: Keeper, split: Split) -> Iterator[pa.RecordBatch]:
        with keeper.session() as session:
            snapshot, rows = split.params.get("snapshot"), self._rows_at_once(split)
            if snapshot is None and rows is None:
                yield from self._selected(session, split, rows)
                return
            with session.transaction():
                if snapshot is not None:
                    self._enter(session, snapshot)
                yield from self._selected(session, split, rows)

    def _selected(self, session: Session, split: Split, rows: int | None) -> Iterator[pa.RecordBatch]:
        if self.native:
            return self._as_native(cast("CopySession", session), split)
        return self._as_arrow(cast(ReadSession, session), split, rows)

    def _as_native(self, session: "CopySession", split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of a split, as they come."""
        source = self._source
        assert source is not None  # or nobody had asked for native rows
        columns = [source.column(column.name) for column in source.columns]
        sql = source.select(columns, split_conditions(source, split)).sql("postgres")
        for piece, bounds in session.copy(sql, len(columns), min(_PIECE_BYTES, self._batch_bytes(split))):
            yield native_batch(piece, bounds)

    def _as_arrow(self, session: ReadSession, split: Split, rows: int | None) -> Iterator[pa.RecordBatch]:
        """The rows of a split, by COPY; or by a cursor, `rows` at a time."""
        source = self._known(session)
        columns = [
            exp.alias_(selected(source.column(column.name), column), f"c{number}")
            for number, column in enumerate(source.columns)
        ]
        sql = source.select(columns, split_conditions(source, split)).sql("postgres")
        size = self._batch_bytes(split)
        with session.stream(sql, size) if rows is None else session.fetch(sql, rows) as batches:
            for raw in batches:
                if raw.num_rows:
                    yield _decoded(raw, source, session.place)

    def feed(self, options: FeedOptions) -> ChangeFeed:
        from spark_channel.connectors.sql.postgresql.feed import postgres_feed

        return postgres_feed(self, options)

    def lasts(self, split: Split) -> bool:
        return "snapshot" not in split.params

    def resource_mark(self, split: Split) -> str | None:
        return self.options.address.parameters.get("host")

    @staticmethod
    def _enter(session: Session, snapshot: str | None) -> None:
        session.rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if snapshot is not None:
            session.rows(f"SET TRANSACTION SNAPSHOT {literal(snapshot).sql('postgres')}")

    def _session(self, purpose: str, *, fresh: bool = False) -> ReadSession:
        return _reading(ReadSession(self.options, failure=SourceError, purpose=purpose, fresh=fresh))

    def _copies(self, purpose: str) -> "CopySession":
        from spark_channel.connectors.sql.postgresql.copy_session import CopySession

        return _reading(CopySession(self.options, failure=SourceError, purpose=purpose))

    def _known(self, session: ReadSession) -> ReadSource:
        if self._source is None:
            self._source = read_source(session, self.options)
        return self._source

    def _rows_at_once(self, split: Split) -> int | None:
        """What to ask a cursor for under a limit that the sockets of a COPY would run far ahead of."""
        most = min(self._limit_bytes(split), default=_SOCKET_BYTES)
        if most >= _SOCKET_BYTES:
            return None
        rows = max(1, most // int(split.params["row_bytes"]))
        return rows if self.options.fetch_size is None else min(rows, self.options.fetch_size)

    def _batch_bytes(self, split: Split) -> int:
        size = _BATCH_BYTES
        if self.options.fetch_size is not None:
            size = self.options.fetch_size * int(split.params["row_bytes"])
        return max(1, min([size, *self._limit_bytes(split)]))

    def _limit_bytes(self, split: Split) -> list[int]:
        """What a limit in rows, and one in bytes, let into one fetch; [] without a limit."""
        rows, nbytes = self.fetch_size.rows, self.fetch_size.nbytes
        in_rows = [] if rows is None else [rows * int(split.params["row_bytes"])]
        return in_rows if nbytes is None else [*in_rows, nbytes]


def _reading(session: AnySession) -> AnySession:
    """`session`, which can change nothing."""
    try:
        session.rows("SET default_transaction_read_only = on")
    except BaseException:
        session.close()
        raise
    return session


def _decoded(raw: pa.RecordBatch, source: ReadSource, place: str) -> pa.RecordBatch:
    try:
        return decode(raw, source.columns, source.schema)
    except MisfitError as error:
        value: Any = "" if error.value is None else f" holds {str(error.value)[:_SHOWN]!r}, which"
        raise SourceError(
            f"column {error.column.name!r} ({error.column.typname}) of {source.label} in {place}{value} "
            f"does not fit {error.column.kind}: {error.why}. Leave the rows out with 'where', or read "
            f"the column as text with 'customSchema' ({error.column.name} STRING)"
        ) from None
