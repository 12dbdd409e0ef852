"""One reader for every database: a subclass names its dialect, its splitter, and how a session is made."""

import math
from abc import abstractmethod
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import pyarrow as pa

from spark_channel.arrow_schema import noted
from spark_channel.clock import connecting
from spark_channel.connectors.base.contract import (
    FetchSize,
    Increment,
    NativeRows,
    Read,
    Reader,
    SourceTable,
)
from spark_channel.connectors.base.health import RowCost
from spark_channel.connectors.base.overlap import FreeConnections, Stored
from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.sql.catalog import MisfitError, ReadColumn, Table
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.options import SqlReadOptions
from spark_channel.connectors.sql.pacing import ReadPacer
from spark_channel.connectors.sql.read.keyset import keyset_of
from spark_channel.connectors.sql.read.rights import naming_rights
from spark_channel.connectors.sql.read.short_statements import SessionHolder, ShortStatements
from spark_channel.connectors.sql.read.source import ReadSource, column_types, read_source
from spark_channel.connectors.sql.read.splits import Splitter as BaseSplitter
from spark_channel.connectors.sql.read.splits import split_conditions
from spark_channel.connectors.sql.session import BatchSize, Session
from spark_channel.connectors.sql.statements import name_readings
from spark_channel.connectors.sql.stored_tables import stored_in, stored_query, stored_table
from spark_channel.errors import ChannelError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split
from spark_channel.retry import Retry

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import TableDefinition
    from spark_channel.connectors.base.feed import ChangeFeed, FeedOptions

__all__ = ["SqlReader"]


_LIMITED_SECONDS = 5.0
"""Option `statementSeconds` where a limit makes a read long."""
_PIECE_MILLIS, _STATEMENT_MILLIS = 0.3, 5.0
"""Option `burstMillis`: a statement costs a server about 0.2 ms, and a piece of one about 0.1 ms."""
_FEW_ROWS, _FEW_BYTES = 10_000, 4 << 20
"""Below both, one connection reads a table in less time than Spark takes to start a second task."""
_EXPLAINED_ROWS = 1_000
_PLAN_COLUMNS = 4
"""The most columns of a plan that is a text: SQLite's."""
_NAMES_AT_ONCE = 200
"""Tables that one statement looks up by name."""
_MOST_FINER = 8
"""So many times more splits there are where each is one statement: a target pays for each of them, too."""


class SqlReader(Reader):
    """Splits by ranges of a key. A split is one statement, and sees one state of its table.

    Under a limit, or with `statementSeconds`, a split that has a unique key is read by short statements, each of which
    sees its own state.
    """

    Options: ClassVar[type[ReadOptions]] = SqlReadOptions
    Splitter: ClassVar[type[BaseSplitter]] = BaseSplitter
    takes_pieces: ClassVar[bool] = False
    """Whether a batch of `short_batches` is all that the server works for until the next one is asked for."""
    options: SqlReadOptions

    def __init__(self, options: SqlReadOptions, dialect: Dialect) -> None:
        super().__init__(options)
        self.dialect = dialect
        self._source: ReadSource | None = None
        self._stored: Stored | None = None
        self._undivided = ""
        self.row_cost = RowCost()

    @abstractmethod
    def connect(self, purpose: str) -> AbstractContextManager[Session]:
        """A session of `SourceError`s, which can change nothing where the database offers that.

        `purpose` is "plan" for the driver's questions, "read" for rows, "changes" for a feed's questions.
        """

    def schema(self) -> pa.Schema:
        try:
            with self.connect("plan") as session:
                self._source = self.planned(session)
        except SourceError as error:
            raise naming_rights(self, error) from error.__cause__
        return noted(self._source.schema, self._source.text_lengths)

    def column_types(self) -> Mapping[str, pa.DataType]:
        with self.connect("plan") as session:
            return column_types(session, self.dialect, self.options)

    def tables(self) -> list[SourceTable]:
        if not self.dialect.tables_sql:
            return super().tables()
        with self.connect("plan") as session:
            return _source_tables(self.dialect, session.rows(self.dialect.list_tables()))

    def named_tables(self, labels: Collection[str]) -> list[SourceTable]:
        if not self.dialect.tables_sql:
            return super().tables()
        names = sorted({name for label in labels for name in _readings(label)})
        statements = (
            self.dialect.list_tables(names[start : start + _NAMES_AT_ONCE])
            for start in range(0, len(names), _NAMES_AT_ONCE)
        )
        with self.connect("plan") as session:
            rows = {
                row[:2]: row
                for statement in dict.fromkeys(statements)
                for row in session.rows(statement)
            }
        return _source_tables(self.dialect, [rows[number] for number in sorted(rows)])

    def primary_key(self) -> tuple[str, ...]:
        with self.looking() as (_, source):
            return () if source.table is None else source.table.primary

    def definition(self, *, keys_only: bool = False) -> "TableDefinition | None":
        table = None if self._source is None else self._source.table
        if keys_only and table is not None and self.knows_key(table):
            return self._looked_up(table)
        with self.looking() as (session, source):
            return None if source.table is None else self.defined(session, source.table)

    def knows_key(self, table: Table) -> bool:
        """Whether `primary` of the table is its primary key, and holds for all rows that are read."""
        return bool(table.primary)

    def defined(self, session: Session, table: Table) -> "TableDefinition":
        """The table's definition; a database whose catalog says more has its own."""
        return self._looked_up(table)

    def _looked_up(self, table: Table) -> "TableDefinition":
        """What is known of the table without another statement."""
        from spark_channel.connectors.base.definition import (
            ColumnDefinition,
            ConstraintDefinition,
            TableDefinition,
        )

        return TableDefinition(
            self.dialect.sql,
            table.schema,
            table.name,
            tuple(
                ColumnDefinition(
                    column.name,
                    column.declared,
                    not_null=self.dialect.read_as_null(table, column, "") is None,
                    is_own=self.dialect.is_own_type(column),
                )
                for column in table.columns
            ),
            tuple(
                ConstraintDefinition(
                    "primary key" if columns == table.primary else "unique constraint",
                    "_".join((table.name, *columns)),
                    columns,
                    is_unique=True,
                )
                for columns in table.unique
            ),
        )

    def increment(self, column: str, after: int | None, *, again: bool) -> Increment:
        from spark_channel.connectors.sql.feed.increment import next_increment

        return next_increment(self, column, after, again=again)

    def has_values(self, columns: Sequence[str]) -> bool:
        with self.connect("plan") as session:
            source = self.known(session)
            values = [f"{source.column(name)} IS NOT NULL" for name in columns]
            query = source.sql(["1"], [f"({' OR '.join(values)})"])
            return bool(session.rows(source.dialect.limited(query, 1)))

    def split(self, advice: int) -> list[Split]:
        with self.connect("plan") as session:
            if self.stored_is_asked:
                self.find_stored(session)
            return self.fine_splits(session, max(1, advice))

    def free_connections(self) -> FreeConnections | None:
        with self.connect("plan") as session:
            return session.free_connections()

    def stored(self) -> Stored:
        if self._stored is None:
            with self.connect("plan") as session:
                self.find_stored(session)
        assert self._stored is not None
        return self._stored

    def native_rows(self, splits: Sequence[Split]) -> NativeRows | None:
        native = self.native_or_reason(splits)
        self.no_native = native if isinstance(native, str) else ""
        return None if isinstance(native, str) else native

    def native_or_reason(self, splits: Sequence[Split]) -> NativeRows | str:
        """As `native_rows`, or why the reader has none; "" = its system has none."""
        return ""

    def look_up(self, names: Sequence[str]) -> None:
        """Tables of this reader's options are planned next, of which nothing is read: the catalog may be asked once."""

    def stored_in(self, schema: str) -> Stored:
        """Where the tables of `schema` are: see `stored_tables.stored_in`."""
        with self.connect("plan") as session:
            return stored_in(session, self.dialect, schema)

    def referring(self, tables: Collection[tuple[str, str]]) -> set[tuple[str, str]] | None:
        """Those of `tables` (schema and name) that have foreign keys, perhaps with others; None = each table's
        definition says so.
        """
        if not self.dialect.referring_sql:
            return None
        query = " UNION ".join(
            self.dialect.referring_sql.format(schema=self.dialect.literal(schema, None))
            for schema in sorted({schema for schema, _ in tables})
        )
        with self.connect("plan") as session:
            return {(str(schema), str(name)) for schema, name in session.rows(query)}

    def find_stored(self, session: Session) -> None:
        """Find `stored` by a session that has no transaction open which an error would end."""
        source = self.known(session)
        if source.table is not None:
            table = source.table
            self._stored = stored_table(
                session, self.dialect, table.schema, table.name, is_view=table.is_view
            )
        else:
            query = self.options.query or f"SELECT * FROM {self.options.dbtable}"  # noqa: S608 - parsed only
            self._stored = stored_query(session, self.dialect, query)

    def fine_splits(self, session: Session, advice: int) -> list[Split]:
        """The splits; more and smaller ones, where a limit makes statements long that no key cuts."""
        try:
            return self._fine_splits(session, advice)
        except ChannelError as error:
            changed = None if self._source is None else self.changed(self._source)
            if changed is None:
                raise naming_rights(self, error) from error.__cause__
            raise changed from error.__cause__

    def _fine_splits(self, session: Session, advice: int) -> list[Split]:
        splits = self.splits(session, advice)
        long = [
            split for split in self._one_statement_each(splits) if split.params["kind"] == "range"
        ]
        seconds = self.statement_seconds
        longest = max((self.fetch_size.lasts(split) or 0.0 for split in long), default=0.0)
        if seconds is None or longest <= seconds:
            return splits
        return self.splits(session, advice * min(_MOST_FINER, math.ceil(longest / seconds)))

    def splits(self, session: Session, advice: int) -> list[Split]:
        """The splits, by a session in whatever transaction they are made in."""
        splitter = self.splitter(session, advice)
        splits = splitter.splits()
        self._undivided = splitter.undivided
        return splits

    def splitter(self, session: Session, advice: int) -> BaseSplitter:
        """Return what divides the source into about `advice` splits."""
        splitter = self.Splitter(session, self.known(session), self.options, advice)
        splitter.gently = self.fetch_size != FetchSize()
        return splitter

    def joined(self, splits: Sequence[Split]) -> Sequence[Split]:
        """One range for a small table. A condition may be slow where few rows meet it: then the ranges stay."""
        source, rows = self._source, [split.rows for split in splits]
        if (
            source is None
            or source.table is None
            or source.condition is not None
            or len(splits) < 2
        ):
            return splits
        if self.options.partition_column is not None or any(
            split.params["kind"] != "range" or "part" in split.params for split in splits
        ):
            return splits
        if None in rows or sum(filter(None, rows)) >= _FEW_ROWS:
            return splits
        sizes = [split.nbytes for split in splits]
        if None in sizes or sum(filter(None, sizes)) >= _FEW_BYTES:
            return splits
        params = {**splits[0].params, "upper": None}
        return [Split(params, sum(filter(None, rows)), sum(filter(None, sizes)))]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        with self.reading() as read:
            yield from read(split)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        with SessionHolder(self.connected) as line:
            yield partial(self.naming_rights, partial(self._read_by, line))

    @contextmanager
    def connected(self) -> Iterator[Session]:
        """A session for rows, whose making counts as connecting."""
        with ExitStack() as stack:
            with connecting():
                session = stack.enter_context(self.connect("read"))
            yield session

    def asked_table(self) -> tuple[str, str] | None:
        """Schema and name of the table that is read; None = it is a query."""
        if self._source is not None and self._source.table is not None:
            return self._source.table.schema, self._source.table.name
        text = self.options.dbtable
        readings = [] if text is None else list(name_readings(text, self.dialect.sql, ""))
        return readings[-1] if readings else None

    def naming_rights(self, read: Read, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows that `read` returns of `split`; an error of a missing right has the statement that grants it."""
        try:
            yield from read(split)
        except SourceError as error:
            raise naming_rights(self, error) from error.__cause__

    def _read_by(self, line: SessionHolder, split: Split) -> Iterator[pa.RecordBatch]:
        batches = self.short(split, line)
        if batches is not None:
            yield from batches
            return
        line.drop()
        with self.connected() as session:
            yield from self.rows(session, split)

    def short(self, split: Split, line: SessionHolder) -> Iterator[pa.RecordBatch] | None:
        """The rows of a split by short statements through `line`; None = it is one statement."""
        seconds = self.statement_seconds
        if seconds is None or not self.may_be_short(split):
            return None
        source = self._source or self._known_by(line)
        keyset = keyset_of(source, split)
        if keyset is None:
            return None
        is_limited = self.fetch_size != FetchSize()
        return ShortStatements(
            self,
            split,
            keyset,
            line,
            seconds=seconds,
            burst_seconds=self._burst_seconds if is_limited else 0.0,
            retry_seconds=getattr(self.options, "retry_timeout", 0.0),
        ).batches()

    @property
    def _burst_seconds(self) -> float:
        millis: float | None = self.options.burst_millis
        if millis is None:
            millis = _PIECE_MILLIS if self.takes_pieces else _STATEMENT_MILLIS
        return millis / 1000

    def explained(self, split: Split) -> tuple[str, str]:
        """The statement with which the read of `split` begins, and the server's plan for it, which runs nothing.

        Raises:
            SourceError: the server refuses to plan it.
        """
        with self.connect("plan") as session:
            source = self.known(session)
            is_short = self.statement_seconds is not None and self.may_be_short(split)
            keyset = keyset_of(source, split) if is_short else None
            if keyset is None:
                origin = source.behind(split_conditions(source, split))
                sql = self.dialect.statement(source.columns, origin)
            else:
                origin = source.behind(keyset.steps(None)[0])
                sql = self.dialect.short_statement(
                    keyset.columns, origin, keyset.order, _EXPLAINED_ROWS
                )
            word = "EXPLAIN QUERY PLAN" if self.dialect.sql == "sqlite" else "EXPLAIN"
            steps = [" | ".join(map(str, _step(row))) for row in session.rows(f"{word} {sql}")]
        return sql, "\n".join(steps)

    def _known_by(self, line: SessionHolder) -> ReadSource:
        """`known` in an executor, through a session that may be lost."""

        def once() -> ReadSource:
            try:
                return self.known(line.session())
            except ChannelError:
                line.drop()
                raise

        retry = Retry(getattr(self.options, "retry_timeout", 0.0), what="looking at the source")
        return retry.call(once, self.dialect.is_passing)

    @property
    def statement_seconds(self) -> float | None:
        """The target duration of a statement in seconds, from `statementSeconds`; None = unlimited."""
        if self.options.statement_seconds is not None:
            return self.options.statement_seconds or None
        limits = (
            self.options.shared_limit,
            self.options.rows_per_second_per_task,
            self.options.bytes_per_second_per_task,
        )
        return _LIMITED_SECONDS if self.fetch_size != FetchSize() or any(limits) else None

    def may_be_short(self, split: Split) -> bool:
        """Whether the read of `split` may see a new state with each statement."""
        return True

    def may_be_finer(self, splits: Sequence[Split]) -> bool:
        """Where an index finds the rows of each."""
        source = self._source
        return source is not None and all(keyset_of(source, split) is not None for split in splits)

    def remarks(self, splits: Sequence[Split]) -> list[str]:
        """That a value of many rows stays one split, and that a limit makes statements long which no key divides."""
        long = self._remark_on_time(splits)
        return [remark for remark in (self._undivided, long) if remark]

    def _remark_on_time(self, splits: Sequence[Split]) -> str:
        source, seconds = self._source, self.statement_seconds
        if source is None or seconds is None:
            return ""
        whole = self._one_statement_each(splits)
        longest = max(
            (duration for split in whole if (duration := self.fetch_size.lasts(split))),
            default=None,
        )
        if not whole or (longest is not None and longest <= seconds):
            return ""
        lasts = "" if longest is None else f" of up to {longest:.0f} s at this limit"
        if reason := self.dialect.no_keys:
            remark = f"{source.label} is read by one statement{lasts} for each split: {reason}"
            return f"{remark}. Use more 'channels' to have more splits, and so shorter statements"
        return (
            f"{source.label} is read by one statement{lasts} for each split, which holds back what "
            "the database must clean up. Shorter statements need a unique index on NOT NULL columns, "
            "which begins with 'partitionColumn' where that is given: add one, or use more 'channels'"
        )

    def _one_statement_each(self, splits: Sequence[Split]) -> list[Split]:
        """Those that could be read in short statements, if there were a key."""
        source = self._source
        if source is None:
            return []
        return [
            split
            for split in splits
            if self.may_be_short(split) and keyset_of(source, split) is None
        ]

    def rows(self, session: Session, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of a split through a session that stays open."""
        source = self.known(session)
        sql = self.dialect.statement(source.columns, source.behind(split_conditions(source, split)))
        before = 0
        try:
            with closing(
                cast(Generator[pa.RecordBatch], self.batches(session, sql, split))
            ) as batches:
                for raw in batches:
                    if raw.num_rows:
                        yield self.dialect.decode(raw, source.columns, source.schema)
                        before += raw.num_rows
            self.check_same(session, source)
        except MisfitError as error:
            raise self.misfit(session, source, split, error, before) from None
        except ChannelError as error:
            raise self.ended(session, source, split, error) from error.__cause__

    def ended(
        self, session: Session, source: ReadSource, split: Split, error: ChannelError
    ) -> ChannelError:
        """The error for a statement that ended with `error`: that the table is another one, where it is."""
        return self.changed(source) or self.stopped(session, source, split, error)

    def changed(self, source: ReadSource) -> SourceError | None:
        """The error that the source's name no longer means the table that was looked up; None = it does, or perhaps."""
        was, dialect = source.table, self.dialect
        if was is None:
            return None
        name = ".".join(dialect.quoted(part) for part in (was.schema, was.name) if part)
        try:
            with self.connect("plan") as session:
                server, now = session.place, dialect.find_table(session, name)
                if now is not None and dialect.is_same(session, was):
                    return None
        except ChannelError:
            return None  # the first error says more
        change = "it was dropped or renamed" if now is None else dialect.change_of(was, now)
        return SourceError(
            f"{source.label} in {server} is not the table any more that this read was planned for: {change}. Its rows "
            "would be a mixture of both, so the read ends: run it again"
        )

    def check_same(self, session: Session, source: ReadSource) -> None:
        """Check behind the last row of a split that all its statements read the table that was looked up.

        Raises:
            SourceError: another table has its name, or it was altered.
        """
        table = source.table
        if table is None or source.same_table is not None or self.dialect.is_same(session, table):
            return
        changed = self.changed(source)
        if changed is not None:
            raise changed

    def batches(self, session: Session, sql: str, split: Split) -> Iterator[pa.RecordBatch]:
        """The session's batches of a split, before decoding."""
        return session.stream(sql, self.batch_size(split))

    def short_batches(
        self,
        session: Session,
        sql: str,
        split: Split,
        columns: Sequence[ReadColumn],
        pacer: ReadPacer | None,
    ) -> Iterator[pa.RecordBatch]:
        """The session's batches of a short statement that selects `columns`; `pacer` says how large they are.

        It is given to a reader that `takes_pieces`, under a limit.
        """
        return session.stream(sql, self.batch_size(split))

    def feed(self, options: "FeedOptions") -> "ChangeFeed":
        from spark_channel.connectors.sql.feed.cursor_feed import CursorFeed

        return CursorFeed(self, options)

    @contextmanager
    def looking(self) -> Iterator[tuple[Session, ReadSource]]:
        """For a feed: a session, and the present state of the source."""
        # Of a run of many tables, which looks at this one for its plan, too.
        with self.connect("plan" if sessions.keeps else "changes") as session:
            yield session, self.resolve(session)

    def resolve(self, session: Session) -> ReadSource:
        """The present state of the source."""
        return read_source(session, self.dialect, self.options)

    def known(self, session: Session) -> ReadSource:
        """The source as it was when the read was planned."""
        if self._source is None:
            self._source = self.planned(session)
        return self._source

    def planned(self, session: Session) -> ReadSource:
        """The present state of the source, with what tells it from another one of its name at the end of a split."""
        return self.resolve(session)

    def selecting(self, columns: Sequence[ReadColumn]) -> Self:
        """A reader of other columns of the same rows. The source is known."""
        assert self._source is not None
        reader = copy(self)
        reader._source = replace(self._source, columns=tuple(columns))  # noqa: SLF001 - its own copy
        return reader

    def misfit(
        self, session: Session, source: ReadSource, split: Split, error: MisfitError, before: int
    ) -> ChannelError:
        """The error for a value that does not fit, after `before` rows of the split."""
        return self.refused(session, source, error, "")

    def stopped(
        self, session: Session, source: ReadSource, split: Split, error: ChannelError
    ) -> ChannelError:
        """The error for a statement that ended with `error`, which the session has explained."""
        return error

    def refused(
        self, session: Session, source: ReadSource, error: MisfitError, where: str
    ) -> SourceError:
        """The error for a value of a column, in the row that `where` describes."""
        column = error.column
        declared = f", declared {column.declared}," if column.declared else ""
        value = (
            f"a value that {column.kind} cannot hold" if self.options.hide_values else error.what
        )
        return SourceError(
            f"column {column.name!r}{declared} of {source.label} in {session.place}{where} holds {value}. "
            f"{self.dialect.misfit_advice(column)}"
        )

    def batch_size(self, split: Split) -> BatchSize:
        """The size of one fetch: option `fetchsize`, or the dialect's choice, below the limit."""
        width, most = int(split.params.get("row_bytes") or 0), self.fetch_size
        rows, nbytes = [self.dialect.batch_rows], [self.dialect.batch_bytes]
        if self.options.fetch_size is not None:
            rows = [self.options.fetch_size]
            nbytes = [self.options.fetch_size * width] if width else nbytes
        elif width and not self.dialect.cuts_by_bytes:
            rows.append(self.dialect.batch_bytes // width)
        if most.rows is not None:
            rows.append(most.rows)
            nbytes += [most.rows * width] if width else []
        if most.nbytes is not None:
            nbytes.append(most.nbytes)
            rows += [most.nbytes // width] if width else []
        return BatchSize(max(1, min(rows)), max(1, min(nbytes)))


def _step(row: Sequence[object]) -> Sequence[object]:
    """What a row of a server's plan says: in a few columns the last one is the text; more are a table."""
    return row[-1:] if len(row) <= _PLAN_COLUMNS else row


def _readings(label: str) -> set[tuple[str, str]]:
    """(schema, name) that a label may mean: split at any dot, as it is written, and as databases fold names."""
    splits = {("", label)}
    splits |= {
        (label[:index], label[index + 1 :]) for index, mark in enumerate(label) if mark == "."
    }
    return {
        (fold(schema), fold(name))
        for schema, name in splits
        for fold in (str, str.lower, str.upper)
    }


def _source_tables(dialect: Dialect, rows: Sequence[Sequence[Any]]) -> list[SourceTable]:
    return [
        SourceTable(
            str(schema),
            str(name),
            ".".join(dialect.quoted(str(part)) for part in (schema, name) if part),
            None if count is None else int(count),
            None if nbytes is None else int(nbytes),
            str(estimates[0]) if estimates else "",
            bool(estimates[1:] and estimates[1]),
        )
        for schema, name, count, nbytes, *estimates in rows
    ]
