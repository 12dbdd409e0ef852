"""The columns of a followed table: their Arrow types as the log has them, and those that identify a row."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import cast

import pyarrow as pa

from spark_channel.connectors.postgresql.catalog import Part, PgColumn, PgTable
from spark_channel.connectors.postgresql.log.columns import LogColumn
from spark_channel.connectors.postgresql.types import ELEMENTS, OF_SESSION, read_type
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import SchemaError

__all__ = ["LogTypes", "check_decodable", "row_columns", "row_key"]


_BUILTIN = {
    **{oid: name for name, oid in ELEMENTS.items()},
    114: "json",
    3802: "jsonb",
    2950: "uuid",
}
_NAMES = """
SELECT t.oid::bigint, b.typname::text, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE -1 END
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE t.oid IN ({oids})
"""


def not_decoded(typname: str) -> str:
    """Why the change feed does not decode a column of this type; "" where it does."""
    if read_type(typname).is_array:
        return "is an array, which the change feed does not decode"
    if typname in OF_SESSION:
        setting = "lc_monetary" if typname == "money" else "search_path"
        return f"is {typname}, whose text in the log is another value where {setting} differs"
    return ""


class LogTypes:
    """Asks the catalog once for each type that is not the server's own. One that was dropped is read as text."""

    def __init__(self, session: Callable[[], AbstractContextManager[Session]]) -> None:
        self._session = session
        self._known: dict[int, tuple[str, int]] = {}

    def schema(self, columns: Sequence[LogColumn]) -> pa.Schema:
        """
        Raises:
            SchemaError: a type whose text in the log is not decoded.
        """
        unknown = {column.oid for column in columns} - _BUILTIN.keys() - self._known.keys()
        if unknown:
            with self._session() as session:
                rows = session.rows(_NAMES.format(oids=", ".join(map(str, sorted(unknown)))))
            self._known.update(dict.fromkeys(unknown, ("text", -1)))
            self._known.update({int(oid): (str(name), int(typmod)) for oid, name, typmod in rows})
        return pa.schema([pa.field(column.name, self._kind(column)) for column in columns])

    def _kind(self, column: LogColumn) -> pa.DataType:
        name, typmod = self._known.get(column.oid) or (_BUILTIN[column.oid], -1)
        if obstacle := not_decoded(name):
            raise SchemaError(f"column {column.name!r} {obstacle}")
        return read_type(name, typmod if column.typmod == -1 else column.typmod).kind


def row_key(source: ReadSource) -> tuple[str, ...]:
    """The key of the rows that are read; () where it is not read, or there is none."""
    key = cast(PgTable, source.table).key
    return key if set(key) <= set(source.schema.names) else ()


def row_columns(source: ReadSource) -> tuple[str, ...]:
    """The columns that may identify a row in a target: those of unique indexes, or all without such an index.

    Empty: `row_key`.
    """
    read = source.schema.names
    sets = [index for index in cast(PgTable, source.table).unique if set(index) <= set(read)]
    names = tuple(dict.fromkeys(name for index in sets for name in index)) or tuple(read)
    return () if names == row_key(source) else names


def check_decodable(
    source: ReadSource, part: Part, left_out: Callable[[str], bool] = lambda _name: False
) -> None:
    """
    Raises:
        SchemaError: the log lacks the values of a column, or has them in a form that is not decoded.
    """
    for column in source.columns:
        about = cast(PgColumn, source.about(column.name))
        if left_out(column.name):
            continue
        if about.generated and column.name not in part.generated:
            raise SchemaError(
                f"column {column.name!r} of {source.label} is generated, and its values are not in the log: leave "
                "it out with option 'columns' (from PostgreSQL 18 on, a publication with publish_generated_columns = "
                "stored has those of stored columns)"
            )
        if obstacle := not_decoded(about.base):
            raise SchemaError(
                f"column {column.name!r} of {source.label} {obstacle}: omit it with option 'columns'"
            )
