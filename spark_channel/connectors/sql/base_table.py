"""The table whose existing rows are read in chunks: held, with each chunk, to be as it was when its stream began."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sql.base_chunks import (
    BaseChunk,
    base_keyset,
    between,
    check_order,
    chunk_rows,
    key_of,
    last_key,
)
from spark_channel.connectors.sql.catalog import Column, MisfitError
from spark_channel.connectors.sql.change_feed import change_schema
from spark_channel.connectors.sql.chunk_window import Key
from spark_channel.connectors.sql.keyset import Keyset
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.schema_rule import SchemaRule
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.source import ReadSource
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
        self, reader: SqlReader, facts: TableFacts, columns: pa.Schema | None, schema: pa.Schema, order: Sequence[str],
        rule: SchemaRule,
    ) -> None:  # fmt: skip
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
        """Look at the table again, for a chunk that has the columns that it has now."""
        if self._columns is None:
            self._source = self._checked(session)

    @property
    def keyset(self) -> Keyset:
        """Once a chunk was read."""
        assert self._source is not None
        return base_keyset(self._source)

    def bound(self, session: Session, lower: Key | None, upper: Key, rows: int) -> Key | None:
        """The key of row number `rows` behind `lower`, up to `upper`; None = there are fewer rows."""
        keyset = base_keyset(self.source(session))
        found = session.rows(key_of(keyset, between(keyset, lower, upper), rows - 1))
        return tuple(found[0]) if found else None

    def chunk_rows(self, session: Session) -> int:
        """How many rows are held at once, and read by one statement."""
        rows, nbytes = self._facts.size(session, self.source(session))
        return chunk_rows(
            rows,
            nbytes,
            lambda width: self._reader.batch_size(Split({**_WHOLE.params, "row_bytes": width})).rows,
        )

    def read(self, session: Session, lower: Key | None, upper: Key, rows: int) -> list[pa.RecordBatch]:
        """The rows as the session has them, in the transaction that it is in.

        The table is looked at again behind the statement, whose lock keeps its definition until the transaction ends:
        in another order of keys, the statement has left out rows.
        """
        source = self.source(session)
        keyset = base_keyset(source)
        sql = source.dialect.short_statement(
            keyset.columns, source.behind(between(keyset, lower, upper)), keyset.order, rows
        )
        raw = list(session.stream(sql, self._reader.batch_size(_WHOLE)))
        self._checked(session)
        return raw

    def chunk(
        self, session: Session, raw: Sequence[pa.RecordBatch], upper: Key, rows: int, sees: Callable[[Any], bool],
        at: str,
    ) -> BaseChunk:  # fmt: skip
        """What `read` returned, in the types of its columns; see `BaseChunk`."""
        source, keyset = self.source(session), self.keyset
        kinds = pa.schema([pa.field(column.name, column.kind) for column in keyset.columns])
        try:
            found = [
                self._reader.dialect.decode(each, keyset.columns, kinds) for each in raw if each.num_rows
            ]
        except MisfitError as error:
            raise self._reader.misfit(session, source, _WHOLE, error, 0) from None
        is_full = sum(each.num_rows for each in found) >= rows
        last = last_key(found[-1], keyset) if is_full else None
        names = [column.name for column in source.columns]
        wanted, schema = (
            (names, change_schema(source.schema))
            if self._columns is None
            else (self._columns.names, self._schema)
        )
        places = [names.index(name) if name in names else None for name in wanted]
        return BaseChunk(found, keyset, None if last == upper else last, sees, schema, at, places)

    def _checked(self, session: Session) -> ReadSource:
        found = self._reader.resolve(session)
        keyset = base_keyset(found)
        columns = self._columns
        if columns is not None:
            self._rule.check(columns, found.schema, found.label, [each.name for each in keyset.key])
        check_order(keyset, self._facts.sorted_as, self._order)
        if columns is None:
            return found
        return replace(found, columns=tuple(each for each in found.columns if each.name in columns.names))
