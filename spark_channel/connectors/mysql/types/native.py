"""Whether another MySQL or MariaDB table takes the rows of a table as the lines of LOAD DATA that they are read as."""

from collections.abc import Iterable

from spark_channel.connectors.base.contract import NativeRows
from spark_channel.connectors.mysql.types.arrow import SIGNED, parts
from spark_channel.connectors.sql.catalog import Column, Table
from spark_channel.connectors.sql.statements import only_name

__all__ = [
    "END",
    "ESCAPE",
    "LINE_FORM",
    "NULL_MARK",
    "SEPARATOR",
    "SYSTEM",
    "are_native",
    "native_types",
]


SYSTEM = "MySQL, lines of LOAD DATA"
SEPARATOR, ESCAPE, END, NULL_MARK = b"\x01", b"\x02", b"\x03" * 5, b"N"
"""`END` is as long as what is before a row in a packet: its head, and the length of a short field."""
LINE_FORM = f"FIELDS TERMINATED BY X'{SEPARATOR.hex()}' ESCAPED BY X'{ESCAPE.hex()}' LINES TERMINATED BY X'{END.hex()}'"

_WHOLE = frozenset(SIGNED)
_DATES = frozenset({"date", "datetime", "timestamp"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_CARRIED = _WHOLE | _DATES | _TEXTS | {"decimal", "float", "double", "time", "year", "enum", "set"}
"""Types of which a server reads back the text that another one shows as the same value.

Not bits and binaries, whose bytes are no text.
"""

Declared = tuple[str, tuple[str, ...], bool, bool]


def native_types(columns: Iterable[Column]) -> tuple[Declared, ...] | None:
    """(type, sizes, unsigned, NOT NULL) of each column; None where one is of another type."""
    types = tuple(map(_declared, columns))
    is_carried = all(
        name in _CARRIED and (name != "year" or sizes in ((), ("4",))) for name, sizes, *_ in types
    )
    return types if is_carried else None


def are_native(rows: NativeRows, table: Table) -> bool:
    """Whether `table` holds every value of `rows` as it comes.

    Where zero dates are refused among the rows, a server refuses those that are defaults of other columns, too.
    """
    if rows.system != SYSTEM:
        return False
    others = {column.name: column for column in table.columns}
    for name, declared in zip(rows.schema.names, rows.types, strict=True):
        column_name = only_name(name, list(others))
        if column_name is None or not _fits(declared, others.pop(column_name)):
            return False
    has_dates = any(name in _DATES for name, *_ in rows.types)
    return not (has_dates and any(map(_has_default_date, others.values())))


def _has_default_date(column: Column) -> bool:
    return column.has_default and parts(column.declared)[0] in _DATES


def _fits(declared: Declared, column: Column) -> bool:
    """A NULL may become another value in a column that takes none."""
    *kind, is_filled = declared
    *own_kind, takes_no_null = _declared(column)
    return kind == own_kind and is_filled >= takes_no_null and not column.generated


def _declared(column: Column) -> Declared:
    name, sizes, unsigned = parts(column.declared)
    if name in ("enum", "set"):
        return name, (column.declared.partition("(")[2],), False, column.not_null
    return name, () if name in _WHOLE else tuple(sizes), unsigned, column.not_null
