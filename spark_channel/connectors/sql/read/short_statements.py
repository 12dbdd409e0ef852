"""Reads a split in short statements by ranges of a unique key. No transaction is open between two of them.

The rows of a statement are taken from the server, under a limit in small pieces with rests between them, and only then
handed on: whatever waits behind (a limit, a slow target, a pause) waits while no statement runs. A statement that fails
has handed on nothing that the next one reads again.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, cast

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.contract import FetchSize
from spark_channel.connectors.base.health import RowCost, way_seconds
from spark_channel.connectors.sql.catalog import MisfitError, ReadColumn
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.pacing import ReadPacer
from spark_channel.connectors.sql.read.keyset import Keyset
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.session import BatchSize, Session
from spark_channel.errors import ChannelError, SourceError
from spark_channel.plain_text import log_of
from spark_channel.planning import Split
from spark_channel.retry import Retry

__all__ = ["SessionHolder", "ShortStatements"]

_log = log_of(__name__)


_MOST_BYTES = 16 << 20
"""Rows of one statement that are held; wider rows than were expected end it early."""


class Reading(Protocol):
    """The methods of a reader that short statements use."""

    dialect: Dialect
    takes_pieces: ClassVar[bool]
    row_cost: RowCost
    fetch_size: FetchSize

    def batch_size(self, split: Split) -> BatchSize: ...

    def short_batches(
        self,
        session: Session,
        sql: str,
        split: Split,
        columns: Sequence[ReadColumn],
        pacer: ReadPacer | None,
    ) -> Iterator[pa.RecordBatch]: ...

    def misfit(
        self, session: Session, source: ReadSource, split: Split, error: MisfitError, before: int
    ) -> ChannelError: ...

    def check_same(self, session: Session, source: ReadSource) -> None: ...

    def ended(
        self, session: Session, source: ReadSource, split: Split, error: ChannelError
    ) -> ChannelError: ...


class SessionHolder:
    """One session for statements that come one after another: opened when it is asked for, again after `drop`.

    Used by one thread. `pacer` is what its statements have learned of the server's speed and the job's.
    """

    def __init__(self, connect: Callable[[], AbstractContextManager[Session]]) -> None:
        self._connect = connect
        self._session: Session | None = None
        self._open = ExitStack()
        self.pacer: ReadPacer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.drop()

    def session(self) -> Session:
        if self._session is None:
            self._session = self._open.enter_context(self._connect())
        return self._session

    @contextmanager
    def answering(self) -> Iterator[Session]:
        """The session where its server still answers, else a new one; it ends with a block that fails."""
        if self._session is not None:
            try:
                self._session.ping()
            except ChannelError:
                self.drop()
        try:
            yield self.session()
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """End the session, which may be lost."""
        self._session = None
        self._open.close()


@dataclass(slots=True)
class _StatementResult:
    """What one statement returned. `is_cut`: it was ended early, or failed behind these rows; `is_ended`: by a time
    limit. `rested`: seconds for which the server was left alone between its pieces.
    """

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    is_cut: bool = False
    is_ended: bool = False
    rested: float = 0.0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes

    def joined(self) -> pa.RecordBatch:
        """All rows: they are paid as one, while the next statement runs."""
        batches, self.batches = self.batches, []  # what was handed on may go
        if len(batches) == 1:
            return batches[0]
        (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return whole


class ShortStatements:
    """One read of one split; `batches` is iterated once.

    `seconds` and `burst_seconds` are those of `ReadPacer`. A statement that is lost, or that the server ends, is
    repeated after the last row that it returned, for `retry_seconds`.
    """

    def __init__(
        self,
        reader: Reading,
        split: Split,
        keyset: Keyset,
        line: SessionHolder,
        *,
        seconds: float,
        burst_seconds: float = 0.0,
        retry_seconds: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._reader, self._split, self._keyset, self._line = reader, split, keyset, line
        self._seconds = seconds
        self._clock = clock
        self._burst_seconds = burst_seconds
        self._is_fitted = False
        self._retry = Retry(retry_seconds, what=f"reading {keyset.source.label}", clock=clock)
        self._before = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """In the source's schema.

        Raises:
            SourceError: what ended a statement, and did not pass.
        """
        steps = self._keyset.steps(None)
        while steps:
            begun = self._clock.now()
            rows_asked, result = self._fetch(steps[0])
            last, ended = self._last(result), self._clock.now()
            if result.batches:
                batch = result.joined()
                yield pa.RecordBatch.from_arrays(
                    batch.columns[: len(self._keyset.source.columns)],
                    schema=self._keyset.source.schema,
                )
                del batch
            self._pacer().handed_on(result.rows, ended - begun, self._clock.now() - ended)
            self._before += result.rows
            if last is not None and (result.is_cut or result.rows >= rows_asked):
                steps = self._keyset.steps(last)
            elif not result.is_cut:
                steps = steps[1:]
        source = self._keyset.source
        self._retry.call(
            lambda: self._reader.check_same(self._line.session(), source), self._passes
        )

    def _fetch(self, conditions: Sequence[str]) -> tuple[int, _StatementResult]:
        """One statement, until it succeeds: how many rows were asked for, and what came."""
        keyset, dialect = self._keyset, self._reader.dialect

        def once() -> tuple[int, _StatementResult]:
            while True:
                pacer, begun = self._pacer(), self._clock.now()
                rows_asked = pacer.statement_rows
                sql = dialect.short_statement(
                    keyset.columns, keyset.source.behind(conditions), keyset.order, rows_asked
                )
                try:
                    result = self._take(sql, rows_asked, begun)
                except ChannelError as error:
                    if rows_asked == 1 or not dialect.is_timeout(error):
                        raise
                    self._line.drop()
                    pacer.ended(
                        rows_asked, 0
                    )  # smaller ones may fit, however short `retry_seconds` is
                    _log.warning(
                        "a statement of %d rows was ended, the next one has %d: %s",
                        rows_asked,
                        pacer.statement_rows,
                        error,
                    )
                    continue
                if result.is_ended:
                    pacer.ended(rows_asked, result.rows)
                else:
                    seconds = self._clock.now() - begun - result.rested
                    if not pacer.in_pieces:
                        pacer.took(result.rows, seconds)
                    pacer.answered(rows_asked, result.rows, result.nbytes, seconds)
                    self._reader.row_cost.add(pacer.row_seconds)
                return rows_asked, result

        return self._retry.call(once, self._passes)

    def _pacer(self) -> ReadPacer:
        """The session's, which measures the network's round trip before the first statement."""
        pacer, reader = self._line.pacer, self._reader
        if pacer is None:
            empty_seconds = 0.0
            if self._burst_seconds:
                session, nothing = self._line.session(), self._keyset.source.sql(["1"], ["1 = 0"])
                empty_seconds = way_seconds(lambda: session.rows(nothing), self._clock)
            pacer = self._line.pacer = ReadPacer(
                self._burst_seconds,
                in_pieces=self._burst_seconds > 0 and reader.takes_pieces,
                seconds=self._seconds,
                empty_seconds=empty_seconds,
                speed=reader.fetch_size.rows_per_second,
                clock=self._clock,
            )
        if not self._is_fitted:
            width = int(self._split.params.get("row_bytes") or 0)
            pacer.fits(reader.batch_size(self._split), width)
            self._is_fitted = True
        return pacer

    def _take(self, sql: str, rows_asked: int, begun: float) -> _StatementResult:
        session, result, pacer = self._line.session(), _StatementResult(), self._pacer()
        pacer.begin(rows_asked)
        try:
            batches = self._reader.short_batches(
                session,
                sql,
                self._split,
                self._keyset.columns,
                pacer if pacer.in_pieces else None,
            )
            with closing(cast("Generator[pa.RecordBatch]", batches)):
                for raw in self._paced(batches, pacer, result):
                    if raw.num_rows:
                        result.add(self._decoded(session, raw, result.rows))
                    if result.nbytes > _MOST_BYTES or (
                        result.rows and self._clock.now() - begun > pacer.longest_seconds
                    ):
                        result.is_cut = True
                        break
            if not result.is_cut:
                session.rest()
        except ChannelError as error:
            if result.rows and self._passes(error):  # rows that came are kept, and not read again
                result.is_cut, result.is_ended = True, self._reader.dialect.is_timeout(error)
            else:
                if not self._may_pass(error):
                    raise self._reader.ended(
                        session, self._keyset.source, self._split, error
                    ) from error.__cause__
                raise
        if result.is_cut:
            self._line.drop()
        return result

    def _paced(
        self, batches: Iterator[pa.RecordBatch], pacer: ReadPacer, result: _StatementResult
    ) -> Iterator[pa.RecordBatch]:
        """Each batch is a piece; it is asked of the server when it is due."""
        if not pacer.in_pieces:
            yield from batches
            return
        while True:
            result.rested += pacer.rest()
            begun = self._clock.now()
            batch = next(batches, None)
            if batch is None:
                return
            pacer.took(batch.num_rows, self._clock.now() - begun)
            yield batch

    def _decoded(self, session: Session, raw: pa.RecordBatch, before: int) -> pa.RecordBatch:
        keyset = self._keyset
        schema = pa.schema([pa.field(column.name, column.kind) for column in keyset.columns])
        try:
            return self._reader.dialect.decode(raw, keyset.columns, schema)
        except MisfitError as error:
            raise self._reader.misfit(
                session, keyset.source, self._split, error, self._before + before
            ) from None

    def _last(self, result: _StatementResult) -> list[Any] | None:
        """The key of the last row; None without rows."""
        if not result.batches:
            return None
        values = [result.batches[-1].column(index)[-1].as_py() for index in self._keyset.places]
        if None in values:
            raise SourceError(
                f"{self._keyset.source.label} is read in the order of its unique key, "
                "and holds a NULL in it, which has no place in that order: "
                "read it with statementSeconds=0, one statement for each split"
            )
        return values

    def _may_pass(self, error: BaseException) -> bool:
        dialect = self._reader.dialect
        return isinstance(error, ChannelError) and (
            dialect.is_passing(error) or dialect.is_timeout(error)
        )

    def _passes(self, error: BaseException) -> bool:
        """Whether to go on after `error`, with a new session."""
        if not self._may_pass(error):
            return False
        self._line.drop()
        _log.warning("a statement was ended and is repeated after the last row received: %s", error)
        return True
