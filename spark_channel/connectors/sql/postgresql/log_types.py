"""Arrow's types for columns as PostgreSQL's log has them, which names types by their numbers."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from spark_channel.connectors.sql.postgresql.column_types import ELEMENTS, read_type
from spark_channel.connectors.sql.postgresql.log_columns import LogColumn
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import SchemaError

__all__ = ["LogTypes"]

_BUILTIN = {**{oid: name for name, oid in ELEMENTS.items()}, 114: "json", 3802: "jsonb", 2950: "uuid"}
_NAMES = """
SELECT t.oid::bigint, b.typname::text, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE -1 END
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE t.oid IN ({oids})
"""


class LogTypes:
    """Asks the catalog once for each type that is not the server's own. One that was dropped is read as text."""

    def __init__(self, session: Callable[[], AbstractContextManager[Session]]) -> None:
        self._session = session
        self._known: dict[int, tuple[str, int]] = {}

    def schema(self, columns: Sequence[LogColumn]) -> pa.Schema:
        """
        Raises:
            SchemaError: an array, which is not decoded.
        """
        unknown = {each.oid for each in columns} - _BUILTIN.keys() - self._known.keys()
        if unknown:
            with self._session() as session:
                found = session.rows(_NAMES.format(oids=", ".join(map(str, sorted(unknown)))))
            self._known.update(dict.fromkeys(unknown, ("text", -1)))
            self._known.update({int(oid): (str(name), int(typmod)) for oid, name, typmod in found})
        return pa.schema([pa.field(each.name, self._kind(each)) for each in columns])

    def _kind(self, column: LogColumn) -> pa.DataType:
        name, typmod = self._known.get(column.oid) or (_BUILTIN[column.oid], -1)
        found = read_type(name, typmod if column.typmod == -1 else column.typmod)
        if found.is_array:
            raise SchemaError(f"column {column.name!r} is an array, which the change feed does not decode")
        return found.kind
