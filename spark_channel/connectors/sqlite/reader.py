"""Reads a table, a view or a query of a SQLite file as Arrow."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.sql.catalog import MisfitError, ReadColumn, Table
from spark_channel.connectors.sql.pacing import ReadPacer
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.read.splits import Splitter, split_conditions
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sqlite.definition import read_definition
from spark_channel.connectors.sqlite.dialect import (
    SqliteDialect,
    SqliteTable,
    look_up,
    misfit_condition,
)
from spark_channel.connectors.sqlite.options import SqliteReadOptions
from spark_channel.connectors.sqlite.session import SqliteSession, check_file, session_statements
from spark_channel.connectors.sqlite.types import SHOWN, declared_type, raw_type
from spark_channel.errors import ChannelError, SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["SqliteReader"]


class SqliteSplitter(Splitter):
    """See `Splitter`."""

    def divider(self) -> tuple[str, ...]:
        """A key of NOT NULL columns, which stays with its row: VACUUM and REPLACE change the rowid of others."""
        table = self.source.table
        if not isinstance(table, SqliteTable) or table.is_view:
            return ()
        if table.without_rowid or table.rowid_alias() is not None:
            return self.source.dialect.split_key(table)
        columns = [column for column in table.columns if column.name in table.primary]
        never_null = all(self.source.dialect.is_never_null(table, column) for column in columns)
        return table.primary if never_null else ()


class SqliteReader(SqlReader):
    """Splits by rowid ranges of equal rows; a read call sees one consistent state of the file.

    The file is opened read-only. Other read calls may see other states, if another process writes meanwhile.
    """

    Options: ClassVar[type[ReadOptions]] = SqliteReadOptions
    Splitter = SqliteSplitter
    options: SqliteReadOptions

    def __init__(self, options: SqliteReadOptions) -> None:
        super().__init__(options, SqliteDialect())
        self._path = options.file
        self._looked: tuple[object, ReadSource] | None = None

    @contextmanager
    def connect(self, purpose: str) -> Iterator[Session]:
        """In a transaction."""
        check_file(self._path, SourceError)
        with SqliteSession.kept(
            self._path,
            "ro",
            lock_timeout=self.options.lock_timeout,
            failure=SourceError,
            init=session_statements(self.options.session_init_statement or ()),
        ) as session:
            session.execute("BEGIN")
            yield session
            with suppress(SourceError):  # SQLite ends some transactions by itself
                session.undo()

    def look_up(self, names: Sequence[str]) -> None:
        with self.connect("plan") as session:
            look_up(session, names)

    def defined(self, session: Session, table: Table) -> TableDefinition:
        assert isinstance(table, SqliteTable)
        if table.is_view or table.schema != "main":
            return super().defined(session, table)
        return read_definition(session, table)

    @contextmanager
    def looking(self) -> Iterator[tuple[Session, ReadSource]]:
        """The source is looked at again when the file or its schema has changed."""
        # Before it is opened: one that is replaced meanwhile is another at the next look.
        file = self._file()
        with self.connect("changes") as session:
            version = file, session.value("PRAGMA schema_version")
            if self._looked is None or self._looked[0] != version:
                self._looked = version, self.resolve(session)
            source = self._looked[1]
            if not _is_declared(source):
                self._looked = None
            yield session, source

    def batches(self, session: Session, sql: str, split: Split) -> Iterator[pa.RecordBatch]:
        return self.short_batches(session, sql, split, self.known(session).columns, None)

    def short_batches(
        self,
        session: Session,
        sql: str,
        split: Split,
        columns: Sequence[ReadColumn],
        pacer: ReadPacer | None,
    ) -> Iterator[pa.RecordBatch]:
        assert isinstance(session, SqliteSession)
        return session.stream(sql, self.batch_size(split), [raw_type(column) for column in columns])

    def misfit(
        self, session: Session, source: ReadSource, split: Split, error: MisfitError, before: int
    ) -> ChannelError:
        """The value came as text or number, and is none of its column's type."""
        assert error.index is not None
        where = f": row {before + error.index + 1} of the split"
        if isinstance(source.table, SqliteTable) and source.table.rowid is not None:
            column, literal = (
                source.column(error.column.name),
                self.dialect.literal(error.value, None),
            )
            same = f"{f'CAST({column} AS BLOB)' if isinstance(error.value, bytes) else column} = {literal}"
            query = source.sql(
                [source.column(source.table.rowid)], [*split_conditions(source, split), same]
            )
            rowid = session.value(self.dialect.limited(query, 1))
            where = where if rowid is None else f": the row with rowid {rowid}"
        return self.refused(session, source, error, where)

    def stopped(
        self, session: Session, source: ReadSource, split: Split, error: ChannelError
    ) -> ChannelError:
        """Return the error of a stopped statement: it names the value with a wrong storage class, if there is one."""
        number = source.table.rowid if isinstance(source.table, SqliteTable) else None
        row_text = "row_number() OVER ()" if number is None else source.column(number)
        for column in source.columns:
            odd = _odd_value(session, source, column, row_text, split_conditions(source, split))
            if odd is not None:
                where, value_text = odd
                where_text = f": {'row' if number is None else 'the row with rowid'} {where}"
                return self.refused(
                    session,
                    source,
                    MisfitError(column, f"{value_text}, which is not {column.kind}"),
                    where_text,
                )
        return error

    def _file(self) -> int:
        try:
            return self._path.stat().st_ino
        except OSError:
            return 0  # `connect` says what is wrong with it


def _odd_value(
    session: Session, source: ReadSource, column: ReadColumn, row_text: str, conditions: list[str]
) -> tuple[object, str] | None:
    """(place, value) of one whose storage class does not fit."""
    rows = source.sql([f"{row_text} AS place", f"{source.column(column.name)} AS v"], conditions)
    value_sql = f"substr(quote(v), 1, {SHOWN})"
    query = f"SELECT place, {value_sql}, typeof(v) FROM ({rows}) WHERE {misfit_condition('v', column)} LIMIT 1"  # noqa: S608 - names are quoted
    try:
        odd_rows = session.rows(query)
    except SourceError:
        return None
    return (odd_rows[0][0], f"{odd_rows[0][1]} ({odd_rows[0][2]})") if odd_rows else None


def _is_declared(source: ReadSource) -> bool:
    """Whether all is said by declarations, and nothing by the rows that are there."""
    table = source.table
    is_table = table is not None and table.schema == "main" and not table.is_view
    return is_table and all(declared_type(column.declared) is not None for column in source.columns)
