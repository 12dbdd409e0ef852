"""Encodes Arrow values as lines of LOAD DATA and rows of INSERT, or refuses the row. Pure.

All of it works on whole columns: the bytes of a batch are those of one Arrow array of its lines.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.sql.encode import (
    convert,
    dates,
    decimal_text,
    is_text,
    local_timestamps,
    refuse_where,
    storage,
)
from spark_channel.connectors.sql.mysql.column_types import members, parts
from spark_channel.connectors.sql.target import WriteColumn

__all__ = ["assignments", "insert_values", "load_lines"]

_INSTANTS = (1_000_000, 2_147_483_647_999_999)
"""Microseconds that a TIMESTAMP holds."""


def assignments(columns: Sequence[WriteColumn], quoted: Any) -> tuple[str, str]:
    """The column list and SET clause of LOAD DATA: bytes come as hexadecimal digits, bits as numbers."""
    listed, sets = [], []
    for number, column in enumerate(columns):
        name = parts(column.declared)[0]
        if _is_binary(column):
            listed.append(f"@c{number}")
            sets.append(f"{quoted(column.target)} = UNHEX(@c{number})")
        elif name == "bit":
            listed.append(f"@c{number}")
            sets.append(f"{quoted(column.target)} = CAST(@c{number} AS UNSIGNED)")
        else:
            listed.append(quoted(column.target))
    return ", ".join(listed), f" SET {', '.join(sets)}" if sets else ""


def load_lines(batch: pa.RecordBatch, columns: Sequence[WriteColumn], *, exact: bool = True) -> bytes:
    """Lines for `FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '"' ESCAPED BY ''`; NULL is a bare NULL.

    Raises:
        BadValueError: the first value found that would come back changed.
    """
    fields = []
    for column in columns:
        text, quotes = _text(storage(batch.column(column.name)), column, exact)
        if quotes:
            text = pc.replace_substring(text, '"', '""')
            text = pc.binary_join_element_wise('"', text, '"', "")
        fields.append(pc.fill_null(text, "NULL"))
    lines = pc.binary_join_element_wise(*fields, ",") if len(fields) > 1 else fields[0]
    return _bytes_of(pc.binary_join_element_wise(lines, "\n", ""))


def insert_values(
    batch: pa.RecordBatch, columns: Sequence[WriteColumn], most_bytes: int, *, exact: bool = True
) -> list[tuple[str, int]]:
    """The rows after INSERT ... VALUES, in pieces of at most `most_bytes` where a row is no longer: (text, rows)."""
    fields = []
    for column in columns:
        text, quotes = _text(storage(batch.column(column.name)), column, exact)
        if _is_binary(column):
            text = pc.binary_join_element_wise("x'", text, "'", "")
        elif quotes:
            text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), "'", "''")
            text = pc.binary_join_element_wise("'", text, "'", "")
        elif not _is_number(column):
            text = pc.binary_join_element_wise("'", text, "'", "")
        fields.append(pc.fill_null(text, "NULL"))
    rows = pc.binary_join_element_wise(*fields, ",") if len(fields) > 1 else fields[0]
    rows = pc.binary_join_element_wise("(", rows, ")", "").to_pylist()
    pieces: list[tuple[str, int]] = []
    begin = size = 0
    for number, row in enumerate(rows):
        if number > begin and size + len(row) * 3 > most_bytes:
            pieces.append((",".join(rows[begin:number]), number - begin))
            begin, size = number, 0
        size += len(row) if row.isascii() else len(row.encode())
    if begin < len(rows):
        pieces.append((",".join(rows[begin:]), len(rows) - begin))
    return pieces


def _is_binary(column: WriteColumn) -> bool:
    name = parts(column.declared)[0]
    return name.endswith(("binary", "blob"))


def _is_number(column: WriteColumn) -> bool:
    return parts(column.declared)[0] in (
        "tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "year", "bit",
    )  # fmt: skip


def _bytes_of(lines: pa.Array) -> bytes:
    """The bytes of all values of a text array, one after the other."""
    if len(lines) == 0:
        return b""
    lines = pa.concat_arrays([lines])  # a slice keeps the whole buffer, a copy does not
    return bytes(lines.buffers()[2] or b"")


def _text(array: pa.Array, column: WriteColumn, exact: bool) -> tuple[pa.Array, bool]:
    """The values as text, and whether they need quotes; `exact`: those that the server would change are refused."""
    kind = array.type
    name, sizes, _ = parts(column.declared)
    _refuse_filled_nulls(array, column, name)
    if pa.types.is_null(kind):
        return pc.cast(array, pa.string()), False
    if pa.types.is_boolean(kind):
        return pc.cast(pc.cast(array, pa.int8()), pa.string()), False
    if pa.types.is_integer(kind):
        if name == "year":
            inside = pc.or_(
                pc.equal(array, 0), pc.and_(pc.greater_equal(array, 1901), pc.less_equal(array, 2155))
            )
            refuse_where(pc.invert(inside), array, column, "a year is 0, or from 1901 to 2155")
            return pc.utf8_lpad(pc.cast(array, pa.string()), 4, "0"), False  # the text 0 is the year 2000
        return pc.cast(array, pa.string()), False
    if pa.types.is_floating(kind):
        array = pc.cast(
            array, pa.float64()
        )  # a float's own digits are another double, and may be none of a FLOAT
        odd = pc.invert(pc.is_finite(array))
        refuse_where(odd, array, column, "MySQL has no NaN and no infinity; replace it or leave the row out")
        return pc.cast(array, pa.string()), False
    if pa.types.is_decimal(kind):
        return decimal_text(array), False
    if pa.types.is_date(kind):
        return pc.cast(dates(array, column), pa.string()), False
    if pa.types.is_time(kind):
        micro = convert(array, pa.time64("us"), column, "times end at microseconds")
        if exact:
            _refuse_finer(pc.cast(micro, pa.int64()), array, column, sizes)
        return pc.cast(micro, pa.string()), False
    if pa.types.is_timestamp(kind):
        return _moment(array, column, sizes, exact), False
    if is_text(kind):
        array = pc.cast(array, pa.string())
        if name == "char" and exact:
            why = "a CHAR column drops the spaces at the end; declare it VARCHAR"
            refuse_where(pc.ends_with(array, " "), array, column, why)
        elif name in ("enum", "set"):
            _refuse_strangers(array, column, one=name == "enum")
        return array, True
    array = pc.cast(array, pa.binary())
    if name == "binary" and exact:
        short = pc.not_equal(pc.binary_length(array), int(sizes[0]) if sizes else 1)
        refuse_where(
            short, array, column, f"column {column.target!r} is {column.declared}, which pads with zeros"
        )
    return _hexadecimal(array), False


def _refuse_filled_nulls(array: pa.Array, column: WriteColumn, name: str) -> None:
    """NULL in columns for which the server has its own value, whatever the session's mode."""
    about = column.column
    if not array.null_count or not about.not_null:
        return
    if name == "timestamp":
        why = f"column {column.target!r} is NOT NULL, and the server would store the present time"
        refuse_where(pc.is_null(array), array, column, why)
    elif getattr(about, "numbered", False):
        why = f"column {column.target!r} is AUTO_INCREMENT, and the server would store a number. Leave the column out"
        refuse_where(pc.is_null(array), array, column, why)


def _refuse_strangers(array: pa.Array, column: WriteColumn, *, one: bool) -> None:
    """Values that are not exactly a member: MySQL takes '1' for the first member, and 'A' or 'a ' for 'a'."""
    places = {text: place for place, text in enumerate(members(column.declared))}

    def is_kept(text: str) -> bool:
        if one:
            return text in places
        found = [places.get(part, -1) for part in text.split(",")] if text else []
        return all(before < after for before, after in zip([-1, *found], found, strict=False))

    texts = pc.unique(array.drop_null()).to_pylist()
    strange = pa.array([text for text in texts if not is_kept(text)], pa.string())
    why = (
        f"column {column.target!r} is {column.declared}, and it is none of these"
        if one
        else f"column {column.target!r} is {column.declared}: members of it, in this order, each once"
    )
    refuse_where(pc.is_in(array, value_set=strange), array, column, why)


def _moment(array: pa.Array, column: WriteColumn, sizes: list[str], exact: bool) -> pa.Array:
    if array.type.tz is None:
        local = local_timestamps(array, column)
    else:
        why = "a TIMESTAMP goes from 1970 to 2038; cast it to a timestamp without zone, which is a DATETIME"
        local = local_timestamps(array, column, _INSTANTS, why)
    if exact:
        _refuse_finer(pc.cast(local, pa.int64()), local, column, sizes)
    return pc.cast(local, pa.string())


def _refuse_finer(micro: pa.Array, array: pa.Array, column: WriteColumn, sizes: list[str]) -> None:
    """The server would round to the column's digits without a word."""
    digits = int(sizes[0]) if sizes else 0
    if digits < 6:
        unit = 10 ** (6 - digits)
        whole = pc.multiply(pc.divide(micro, unit), unit)
        why = f"column {column.target!r} is {column.declared}, which rounds it to {digits} digits of a second"
        refuse_where(pc.not_equal(whole, micro), array, column, why)


def _hexadecimal(array: pa.Array) -> pa.Array:
    """Bytes as hexadecimal digits, the whole column at once."""
    array = pa.concat_arrays([array])
    validity, offsets, data = array.buffers()
    if data is None or len(array) == 0:
        return (
            pc.fill_null(pa.array([""] * len(array), pa.string()), "")
            if not array.null_count
            else pa.array([None if each is None else "" for each in array.to_pylist()], pa.string())
        )
    places = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets], offset=array.offset)
    doubled = pc.multiply(places, pa.scalar(2, pa.int32()))
    digits = pa.py_buffer(bytes(data).hex().encode())
    if array.offset and validity is not None:
        return pa.array([None if each is None else each.hex() for each in array.to_pylist()], pa.string())
    return pa.Array.from_buffers(pa.string(), len(array), [validity, doubled.buffers()[1], digits])
