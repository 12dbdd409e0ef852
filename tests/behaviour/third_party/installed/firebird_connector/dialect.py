"""Firebird's SQL and catalog.

Firebird spells a name that is not quoted in capitals. So `ID` is shown as `id`, and `id` (which was quoted) as `ID`.
"""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from firebird_connector.session import LOST, FirebirdSession, has_code
from spark_channel.connectors.sql import Column, Session, Table, WriteDialect

__all__ = ["LONGEST", "FirebirdDialect"]

_ARROW = {
    "BOOLEAN": pa.bool_(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE PRECISION": pa.float64(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BLOB SUB_TYPE TEXT": pa.string(),
    "BLOB": pa.binary(),
}
_CODES = {
    7: "SMALLINT",
    8: "INTEGER",
    10: "FLOAT",
    12: "DATE",
    13: "TIME",
    14: "CHAR",
    16: "BIGINT",
    23: "BOOLEAN",
    27: "DOUBLE PRECISION",
    35: "TIMESTAMP",
    37: "VARCHAR",
    261: "BLOB",
}
_WIDEST = {2: 4, 4: 9, 8: 18}
_DESCRIBED = {
    "date": "DATE",
    "time": "TIME",
    "datetime": "TIMESTAMP",
    "bool": "BOOLEAN",
    "bytes": "BLOB",
}
_OCTETS = 1
LONGEST = 31
"""Bytes that a name can have."""
_COLUMNS = """
    SELECT TRIM(r.RDB$FIELD_NAME), f.RDB$FIELD_TYPE, f.RDB$FIELD_SUB_TYPE, f.RDB$FIELD_SCALE,
        f.RDB$FIELD_PRECISION, f.RDB$CHARACTER_LENGTH, f.RDB$CHARACTER_SET_ID, f.RDB$FIELD_LENGTH,
        COALESCE(r.RDB$NULL_FLAG, f.RDB$NULL_FLAG, 0),
        COALESCE(r.RDB$DEFAULT_SOURCE, f.RDB$DEFAULT_SOURCE) IS NOT NULL OR r.RDB$IDENTITY_TYPE IS NOT NULL,
        f.RDB$COMPUTED_BLR IS NOT NULL
    FROM RDB$RELATION_FIELDS r JOIN RDB$FIELDS f ON f.RDB$FIELD_NAME = r.RDB$FIELD_SOURCE
    WHERE r.RDB$RELATION_NAME = ? ORDER BY r.RDB$FIELD_POSITION"""
_UNIQUE = """
    SELECT TRIM(i.RDB$INDEX_NAME), TRIM(s.RDB$FIELD_NAME), COALESCE(c.RDB$CONSTRAINT_TYPE, '') = 'PRIMARY KEY'
    FROM RDB$INDICES i JOIN RDB$INDEX_SEGMENTS s ON s.RDB$INDEX_NAME = i.RDB$INDEX_NAME
    LEFT JOIN RDB$RELATION_CONSTRAINTS c ON c.RDB$INDEX_NAME = i.RDB$INDEX_NAME
    WHERE i.RDB$RELATION_NAME = ? AND i.RDB$UNIQUE_FLAG = 1 AND COALESCE(i.RDB$INDEX_INACTIVE, 0) = 0
    ORDER BY 3 DESC, 1, s.RDB$FIELD_POSITION"""


class FirebirdDialect(WriteDialect):
    """See `WriteDialect`."""

    product = "Firebird"
    ddl_commits = True  # a new table can be used only after its transaction
    tick = 100
    new_types = {  # noqa: RUF012 - never changed
        pa.bool_(): "BOOLEAN",
        pa.int8(): "SMALLINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.uint8(): "SMALLINT",
        pa.uint16(): "INTEGER",
        pa.uint32(): "BIGINT",
        pa.float16(): "FLOAT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE PRECISION",
        pa.date32(): "DATE",
        pa.time64("us"): "TIME",
        pa.timestamp("us"): "TIMESTAMP",
        pa.string(): "BLOB SUB_TYPE TEXT",
        pa.binary(): "BLOB",
    }
    new_key_types = {pa.string(): "VARCHAR(250)"}  # noqa: RUF012 - a BLOB cannot be a key

    def new_decimal(self, digits: int, scale: int) -> str | None:
        return f"DECIMAL({digits}, {scale})" if digits <= 18 else None

    def spelled(self, name: str) -> str:
        """Its own inverse."""
        one_case = re.fullmatch(r"[a-z][a-z0-9_$]*|[A-Z][A-Z0-9_$]*", name)
        return name.swapcase() if one_case else name

    def literal(self, value: Any, column: Column | None) -> str:
        if column is not None and column.declared == "TIMESTAMP":
            value = str(value)[:24]  # four digits behind the second are all that it takes
        return super().literal(value, column)

    def limited(self, query: str, rows: int, after: int = 0) -> str:
        return f"{query} OFFSET {after} ROWS FETCH FIRST {rows} ROWS ONLY"

    def find_table(self, session: Session, text: str) -> Table | None:
        assert isinstance(session, FirebirdSession)
        names = [self.spelled(text), text.upper()]
        try:
            tree = exp.to_table(text)
            names += [tree.name if tree.this.quoted else tree.name.upper()] if not tree.db else []
        except Exception:  # sqlglot raises several kinds; a text that it cannot read is a name
            pass
        for name in names:
            if len(name.encode()) > LONGEST:
                continue
            found = session.rows(
                "SELECT RDB$VIEW_BLR IS NOT NULL FROM RDB$RELATIONS WHERE RDB$RELATION_NAME = ?",
                (name,),
            )
            if found:
                return self._described(session, name, is_view=found[0][0])
        return None

    def table_names(self, session: Session) -> list[str]:
        names = session.rows(
            "SELECT TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS WHERE RDB$SYSTEM_FLAG = 0 ORDER BY 1"
        )
        return [self.spelled(name) for (name,) in names]

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        assert isinstance(session, FirebirdSession)
        found = []
        for name, kind, shown, width, digits, scale, null in session.described(query):
            declared = (
                _DESCRIBED.get(kind.__name__)
                or {
                    "str": "VARCHAR" if shown else "BLOB SUB_TYPE TEXT",
                    "int": {2: "SMALLINT", 4: "INTEGER"}.get(width, "BIGINT"),
                    "float": "FLOAT" if width == 4 else "DOUBLE PRECISION",
                    "Decimal": f"DECIMAL({digits or _WIDEST.get(width)}, {-scale})",
                }[kind.__name__]
            )
            found.append(Column(self.spelled(name), declared, not null))
        return tuple(found)

    def arrow_type(self, column: Column) -> pa.DataType:
        if column.declared.startswith("DECIMAL"):
            digits, scale = map(int, re.findall(r"\d+", column.declared))
            return pa.decimal128(digits, scale)
        return (
            pa.binary()
            if column.declared.endswith("OCTETS")
            else _ARROW[column.declared.partition("(")[0]]
        )

    def is_passing(self, error: BaseException) -> bool:
        return has_code(error, LOST)

    def _described(self, session: FirebirdSession, name: str, *, is_view: bool) -> Table:
        columns = [
            Column(self.spelled(each), _declared(*more), bool(needed), default, generated)
            for each, *more, needed, default, generated in session.rows(_COLUMNS, (name,))
        ]
        keys: dict[str, list[str]] = {}
        primary = ""
        for index, column, is_primary in session.rows(_UNIQUE, (name,)):
            keys.setdefault(index, []).append(self.spelled(column))
            primary = index if is_primary else primary
        unique: Sequence[tuple[str, ...]] = [tuple(key) for key in keys.values()]
        return Table(
            "",
            self.spelled(name),
            tuple(columns),
            is_view,
            tuple(unique),
            tuple(keys.get(primary, ())),
        )


def _declared(
    code: int,
    sub_type: int | None,
    scale: int,
    digits: int | None,
    letters: int | None,
    charset: int,
    width: int,
) -> str:
    """As CREATE TABLE takes it."""
    kind = _CODES.get(code, f"type {code}")
    if kind in ("SMALLINT", "INTEGER", "BIGINT") and (sub_type or scale):
        return f"DECIMAL({digits or _WIDEST[width]}, {-scale})"
    if kind in ("CHAR", "VARCHAR"):
        octets = charset == _OCTETS
        return f"{kind}({width if octets else letters}){' CHARACTER SET OCTETS' if octets else ''}"
    return f"{kind} SUB_TYPE TEXT" if kind == "BLOB" and sub_type == 1 else kind
