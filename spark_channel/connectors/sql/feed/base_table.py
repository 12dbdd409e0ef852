"""The table whose existing rows are read in chunks: held, with each chunk, to be as it was when its stream began."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_channel.connectors.base.feed import change_schema
from spark_channel.connectors.sql.catalog import Column, MisfitError
from spark_channel.connectors.sql.feed.base_chunk import (
    BaseChunk,
    base_keyset,
    between,
    check_order,
    chunk_rows,
    count_of,
    key_of,
    last_key,
)
from spark_channel.connectors.sql.feed.incremental_snapshot import Key
from spark_channel.connectors.sql.feed.schema_rule import SchemaRule
from spark_channel.connectors.sql.read.keyset import Keyset
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import ChannelError
from spark_channel.planning import Split

__all__ = ["BaseTable", "TableFacts"]


_WHOLE = Split({"kind": "all", "row_bytes": 0})


@dataclass(frozen=True)
class TableFacts:
    """What one database's catalog says. `size` asks for (rows, None = not known; bytes).

    `sorted_as` says what decides which of two values of a key's column is first.
    """

    size: Callable[[Any, ReadSource], tuple[int | None, int]]
    sorted_as: Callable[[Column], str]


class BaseTable:
    """Used by one thread, for one range.

    `columns` is the schema of the table as its stream began, `schema` that of the rows that are delivered. With None,
    a chunk has the columns that its table has then. `order`: see `BaseProgress`.
    """

    def __init__(
        self,
        reader: SqlReader,
        facts: TableFacts,
        columns: pa.Schema | None,
        schema: pa.Schema,
        order: Sequence[str],
        rule: SchemaRule,
    ) -> None:
        self._reader, self._facts, self._rule = reader, facts, rule
        self._columns, self._schema, self._order = columns, schema, order
        self._source: ReadSource | None = None

    def source(self, session: Session) -> ReadSource:
        """The table as it was when it was first asked for, without columns that the stream leaves out.

        Raises:
            SchemaError: it has other columns than its stream began with. SourceError: its keys have another order.
        """
        if self._source is None:
            self._source = self._checked(session)
        return self._source

    def look(self, session: Session) -> None:
        """Look at the table again: it may have been altered since the last chunk. It raises what `source` raises."""
        self._source = self._checked(session)

    @property
    def keyset(self) -> Keyset:
        """Once a chunk was read."""
        assert self._source is not None
        return base_keyset(self._source)

    def bound(self, session: Session, lower: Key | None, upper: Key, rows: int) -> Key | None:
        """The key of row number `rows` behind `lower`, up to `upper`; None = there are fewer rows."""
        rows_found = self._asked(
            session, lambda keyset: key_of(keyset, between(keyset, lower, upper), rows - 1)
        )
        return tuple(rows_found[0]) if rows_found else None

    def last(self, session: Session) -> Key | None:
        """The last key; None = the table is empty."""
        rows_found = self._asked(session, lambda keyset: key_of(keyset, [], 0, last=True))
        return tuple(rows_found[0]) if rows_found else None

    def count(self, session: Session, lower: Key | None, upper: Key, most: int) -> int:
        """How many rows there are behind `lower`, up to `upper`: up to `most`."""
        rows_found = self._asked(
            session, lambda keyset: count_of(keyset, between(keyset, lower, upper), most)
        )
        return int(rows_found[0][0])

    def _asked(self, session: Session, statement: Callable[[Keyset], str]) -> list[tuple[Any, ...]]:
        """What a statement answers that fails when the table was altered since it was looked at: then it is again."""
        while True:
            was = self.source(session)
            try:
                return session.rows(statement(base_keyset(was)))
            except ChannelError:
                self.look(session)
                if self.source(session).same_table == was.same_table:
                    raise

    def chunk_rows(self, session: Session) -> int:
        """How many rows are held at once, and read by one statement."""
        rows, nbytes = self._facts.size(session, self.source(session))
        return chunk_rows(
            rows,
            nbytes,
            lambda width: (
                self._reader.batch_size(Split({**_WHOLE.params, "row_bytes": width})).rows
            ),
        )

    def read(
        self, session: Session, lower: Key | None, upper: Key, rows: int
    ) -> list[pa.RecordBatch]:
        """The rows as the session has them, in the transaction that it is in.

        A table that was not locked before `look` is to be checked behind the statement, whose lock keeps its definition
        until the transaction ends: in another order of keys, the statement has left out rows.
        """
        source = self.source(session)
        keyset = base_keyset(source)
        sql = source.dialect.short_statement(
            keyset.columns, source.behind(between(keyset, lower, upper)), keyset.order, rows
        )
        return list(session.stream(sql, self._reader.batch_size(_WHOLE)))

    def check(self, session: Session) -> None:
        """It raises what `source` raises."""
        self._checked(session)

    def chunk(
        self,
        session: Session,
        raw: Sequence[pa.RecordBatch],
        upper: Key,
        rows: int,
        sees: Callable[[Any], bool],
        at: str,
    ) -> BaseChunk:
        """What `read` returned, in the types of its columns; see `BaseChunk`."""
        source, keyset = self.source(session), self.keyset
        kinds = pa.schema([pa.field(column.name, column.kind) for column in keyset.columns])
        try:
            batches = [
                self._reader.dialect.decode(batch, keyset.columns, kinds)
                for batch in raw
                if batch.num_rows
            ]
        except MisfitError as error:
            raise self._reader.misfit(session, source, _WHOLE, error, 0) from None
        is_full = sum(batch.num_rows for batch in batches) >= rows
        last = last_key(batches[-1], keyset) if is_full else None
        names = [column.name for column in source.columns]
        names_wanted, schema = (
            (names, change_schema(source.schema))
            if self._columns is None
            else (self._columns.names, self._schema)
        )
        places = [names.index(name) if name in names else None for name in names_wanted]
        return BaseChunk(batches, keyset, None if last == upper else last, sees, schema, at, places)

    def _checked(self, session: Session) -> ReadSource:
        source = self._reader.resolve(session)
        keyset = base_keyset(source)
        columns = self._columns
        if columns is not None:
            self._rule.check(
                columns, source.schema, source.label, [column.name for column in keyset.key]
            )
        check_order(keyset, self._facts.sorted_as, self._order)
        if columns is None:
            return source
        return replace(
            source,
            columns=tuple(column for column in source.columns if column.name in columns.names),
        )
