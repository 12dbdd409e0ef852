"""Reads a table, a view or a query of a SQLite file as Arrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
from sqlglot import exp

from spark_channel.connectors.contracts import Reader
from spark_channel.connectors.feed import ChangeFeed, FeedOptions
from spark_channel.connectors.sql.sqlite.database import DriverError, Session, check_file
from spark_channel.connectors.sql.sqlite.decode import (
    MisfitError,
    ReadColumn,
    decode,
    misfit,
    raw_type,
    sentinel,
    value_expression,
)
from spark_channel.connectors.sql.sqlite.options import SqliteReadOptions, database_path
from spark_channel.connectors.sql.sqlite.script import session_statements
from spark_channel.connectors.sql.sqlite.source import ReadSource, read_source
from spark_channel.connectors.sql.sqlite.splits import make_splits, split_conditions
from spark_channel.connectors.sql.statements import Node, identifier
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["SqliteReader"]

_BATCH_ROWS = 16_384
_BATCH_BYTES = 8 << 20
_SHOWN = 80


class SqliteReader(Reader):
    """Splits by rowid ranges of equal rows; a read call sees one consistent state of the file.

    The file is opened read-only. Other read calls may see other states, where somebody writes meanwhile.
    """

    Options: ClassVar[type[ReadOptions]] = SqliteReadOptions
    options: SqliteReadOptions

    def __init__(self, options: SqliteReadOptions) -> None:
        super().__init__(options)
        self._path = database_path(options.url, options.path)
        self._source: ReadSource | None = None
        self._looked: tuple[object, ReadSource] | None = None

    def schema(self) -> pa.Schema:
        with self._session() as session:
            self._source = read_source(session, self.options)
        return self._source.schema

    def split(self, advice: int) -> list[Split]:
        with self._session() as session:
            session.rows("BEGIN")
            return make_splits(session, self._known(session), self.options, max(1, advice))

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        with self._session() as session:
            session.rows("BEGIN")
            source = self._known(session)
            conditions, parameters = split_conditions(source, split)
            sql = _statement(source, conditions).sql("sqlite")
            read = 0
            try:
                with session.stream(sql, parameters, self._batch_rows(split)) as batches:
                    _check_types(batches.schema, source)
                    for number, raw in enumerate(batches):
                        rows = raw.slice(1) if number == 0 else raw
                        if rows.num_rows:
                            yield decode(rows, source.columns, source.schema)
                            read += rows.num_rows
            except MisfitError as error:
                _refuse_value(session, source, split, error, read)
            except (DriverError, pa.ArrowException, OSError) as error:
                _refuse_storage(session, source, split, error)

    def feed(self, options: FeedOptions) -> ChangeFeed:
        from spark_channel.connectors.sql.sqlite.feed import SqliteFeed

        return SqliteFeed(self, options)

    @contextmanager
    def looking(self) -> Iterator[tuple[Session, ReadSource]]:
        """A session in a read transaction, and the source as it is now."""
        file = self._file()  # before it is opened: one that is replaced meanwhile is another at the next look
        with self._session() as session:
            session.rows("BEGIN")
            version = file, session.value("PRAGMA schema_version")
            if self._looked is None or self._looked[0] != version:
                self._looked = version, read_source(session, self.options)
            source = self._looked[1]
            if not source.is_declared:
                self._looked = None
            yield session, source

    def _file(self) -> int:
        try:
            return self._path.stat().st_ino
        except OSError:
            return 0  # `_session` says what is wrong with it

    def _session(self) -> Session:
        check_file(self._path, SourceError)
        return Session(
            self._path,
            "ro",
            lock_timeout=self.options.lock_timeout,
            failure=SourceError,
            init=session_statements(self.options.session_init_statement or ()),
        )

    def _known(self, session: Session) -> ReadSource:
        if self._source is None:
            self._source = read_source(session, self.options)
        return self._source

    def _batch_rows(self, split: Split) -> int:
        row_bytes = int(split.params["row_bytes"])
        rows = [_BATCH_ROWS, _BATCH_BYTES // row_bytes]
        if self.options.fetch_size is not None:
            rows = [self.options.fetch_size]
        if self.fetch_size.rows is not None:
            rows.append(self.fetch_size.rows)
        if self.fetch_size.nbytes is not None:
            rows.append(self.fetch_size.nbytes // row_bytes)
        return max(1, min(rows))


def _statement(source: ReadSource, conditions: list[Node]) -> Node:
    first = exp.select(
        *(exp.alias_(sentinel(column), f"c{number}") for number, column in enumerate(source.columns))
    )
    rows = source.select(
        [
            exp.alias_(value_expression(source.column(column.name), column), f"c{number}")
            for number, column in enumerate(source.columns)
        ],
        conditions,
    )
    return exp.Union(this=first, expression=rows, distinct=False)


def _check_types(schema: pa.Schema, source: ReadSource) -> None:
    for found, column in zip(schema, source.columns, strict=True):
        if not found.type.equals(raw_type(column)):
            raise pa.ArrowInvalid(f"column {column.name!r} begins with {found.type}, not {raw_type(column)}")


def _refuse_value(
    session: Session, source: ReadSource, split: Split, error: MisfitError, read: int
) -> NoReturn:
    """The value came as text or number, and is none of its column's type."""
    value = error.value
    shown = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    place = f"row {read + error.index + 1} of the split"
    if source.table is not None and source.table.rowid is not None:
        conditions, parameters = split_conditions(source, split)
        column = source.column(error.column.name)
        as_stored = exp.cast(column.copy(), "BLOB", dialect="sqlite") if isinstance(value, bytes) else column
        query = source.select(
            [source.column(source.table.rowid)],
            [*conditions, exp.EQ(this=as_stored, expression=exp.Placeholder())],
        ).limit(1)
        rowid = session.value(query.sql("sqlite"), [*parameters, value])
        place = place if rowid is None else f"the row with rowid {rowid}"
    _refuse(session, source, error.column, place, repr(shown[:_SHOWN]))


def _refuse_storage(session: Session, source: ReadSource, split: Split, error: Exception) -> NoReturn:
    """The statement stopped: find the value whose storage class does not fit, else tell what SQLite said."""
    conditions, parameters = split_conditions(source, split)
    number = source.table.rowid if source.table is not None else None
    place: Node = source.column(number) if number is not None else exp.Window(this=exp.RowNumber())
    for column in source.columns:
        at = source.column(column.name)
        numbered = source.select(
            [
                exp.alias_(place.copy(), "place"),
                exp.alias_(at.copy(), "v"),
            ],
            conditions,
        ).subquery("numbered")
        held = exp.column(identifier("v"), identifier("numbered"))
        query = (
            exp.select(
                exp.column("place", "numbered"),
                exp.Anonymous(this="typeof", expressions=[held.copy()]),
                exp.func(
                    "substr",
                    exp.Anonymous(this="quote", expressions=[held.copy()]),
                    exp.Literal.number(1),
                    exp.Literal.number(_SHOWN),
                    dialect="sqlite",
                ),
            )
            .from_(numbered)
            .where(misfit(held, column))
            .limit(1)
        )
        try:
            rows: list[tuple[Any, ...]] = session.rows(query.sql("sqlite"), parameters)
        except SourceError:
            rows = []
        if rows:
            where, storage, value = rows[0]
            what = "the row with rowid" if number is not None else "row"
            _refuse(session, source, column, f"{what} {where}", f"{value} ({storage})")
    raise session.explain(error) from error


def _refuse(session: Session, source: ReadSource, column: ReadColumn, place: str, value: str) -> NoReturn:
    declared = f", declared {column.declared}," if column.declared else ""
    raise SourceError(
        f"column {column.name!r}{declared} of {source.label} in {session.path}: {place} holds {value}, "
        f"which is not {column.kind}. Name another type with 'customSchema' "
        f"(such as {column.name} STRING), or convert the column with 'query'"
    )
